//! One call to a server.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use kernel::tool::McpPart;
use kernel::{CallId, RunId, Trust, excerpt};
use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientRequest, GetPromptRequestParams, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, PaginatedRequestParams, ReadResourceRequestParams, Request, RequestMetaObject,
    ServerResult,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::caller::{Answer, Caller, Form};
use super::content::{self, Part};
use super::person::RunCaller;
use super::servers::Live;
use super::{Mcp, Remote, declare, lock};
use crate::artifacts::NewArtifact;
use crate::outcome::{Content, Happened, ToolError};
use crate::tools::Invocation;

/// Times that a server may answer a call with a question of its own instead of a result.
const MAX_ROUNDS: usize = 10;
/// What is shown of an error that a tool tells.
const ERROR_BYTES: usize = 4096;

/// A call that is known to be under way, until it is dropped.
pub(super) struct Running<'a> {
    mcp: &'a Mcp,
    call: CallId,
    pub cancelled: CancellationToken,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.mcp.inner.running).remove(&self.call);
    }
}

/// What a call needs while it lasts.
pub(super) struct Under<'a> {
    pub live: &'a Arc<Live>,
    pub remote: &'a Remote,
    pub invocation: Invocation<'a>,
    pub caller: Arc<RunCaller>,
    pub cancelled: &'a CancellationToken,
    /// How far what the server says may be believed.
    pub trust: Trust,
}

impl Mcp {
    /// Carries out one attempt of a call, within its time, in which the time of questions to a person does not count.
    pub async fn call(&self, remote: &Remote, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        let name = &remote.run.server;
        let Some(server) = self.inner.declared.get(name).filter(|server| server.serves(invocation.tenant)) else {
            return Err(ToolError::final_("misconfigured", format!("there is no MCP server `{name}` here")));
        };
        let running = self.running(invocation.run, invocation.call);
        let live = self.inner.servers.of(invocation.tenant, server).await?;
        live.still(&remote.name, &remote.digest).await?;
        let _place = live.place(invocation.timeout).await?;
        let caller = self.caller(remote, invocation, server.timeouts.answer);
        let (cancelled, trust) = (&running.cancelled, remote.believed(server.trust));
        let under = Under { live: &live, remote, invocation, caller, cancelled, trust };
        let outcome = match &remote.run.part {
            McpPart::Tool(tool) => self.tool(&under, tool).await,
            part => self.look(&under, part).await,
        };
        live.touch();
        outcome
    }

    pub(super) fn running(&self, run: RunId, call: CallId) -> Running<'_> {
        let cancelled = CancellationToken::new();
        lock(&self.inner.running).insert(call, (run, cancelled.clone()));
        Running { mcp: self, call, cancelled }
    }

    pub(super) fn caller(
        &self,
        remote: &Remote,
        invocation: Invocation<'_>,
        answer: kernel::units::Duration,
    ) -> Arc<RunCaller> {
        Arc::new(RunCaller {
            engine: self.inner.engine.clone(),
            tenant: invocation.tenant.clone(),
            run: invocation.run,
            call: invocation.call,
            tool: remote.name.clone(),
            server: remote.run.server.clone(),
            traceparent: invocation.traceparent.to_owned(),
            answer,
            asked: AtomicU32::new(0),
            ticked: Default::default(),
        })
    }

    async fn tool(&self, under: &Under<'_>, tool: &str) -> Result<Content, ToolError> {
        let mut params = CallToolRequestParams::new(tool.to_owned()).with_arguments(under.invocation.arguments.clone());
        params.meta = meta(under.invocation);
        for _ in 0..MAX_ROUNDS {
            let request = ClientRequest::CallToolRequest(Request::new(params.clone()));
            match under.request(request).await? {
                ServerResult::CallToolResult(result) => return self.finish(under, result).await,
                // Some leave the content out.
                ServerResult::EmptyResult(_) => return self.finish(under, CallToolResult::default()).await,
                ServerResult::CreateTaskResult(created) => return Ok(self.became(under, &created.task).await),
                ServerResult::InputRequiredResult(asked) => {
                    params.input_responses = under.answers(&asked).await?;
                    params.request_state = asked.request_state;
                }
                _ => return Err(unexpected()),
            }
        }
        Err(ToolError { happened: Happened::Perhaps, ..ToolError::final_("protocol", "the server asks and asks") })
    }

    /// Resources and prompts.
    async fn look(&self, under: &Under<'_>, part: &McpPart) -> Result<Content, ToolError> {
        let arguments = under.invocation.arguments;
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let parts = match part {
            McpPart::Tool(_) => return Err(unexpected()),
            McpPart::ListPrompts => {
                let listing = tokio::time::timeout(under.invocation.timeout, under.live.connection.prompts());
                let listed = listing.await.unwrap_or(Err(ServiceError::Timeout { timeout: under.invocation.timeout }));
                content::of_prompts(&listed.map_err(|error| under.live.connection.failed(&error))?)
            }
            McpPart::ListResources => {
                let cursor = Some(text("cursor").to_owned()).filter(|cursor| !cursor.is_empty());
                let params = cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
                let listing =
                    tokio::time::timeout(under.invocation.timeout, under.live.connection.peer().list_resources(params));
                let listed = listing.await.unwrap_or(Err(ServiceError::Timeout { timeout: under.invocation.timeout }));
                let listed = listed.map_err(|error| under.live.connection.failed(&error))?;
                content::of_resources(&listed.resources, listed.next_cursor.as_deref())
            }
            McpPart::ReadResource => {
                let params = ReadResourceRequestParams::new(text("uri"));
                match under.request(ClientRequest::ReadResourceRequest(Request::new(params))).await? {
                    ServerResult::ReadResourceResult(result) => content::of_resource(&result),
                    _ => return Err(unexpected()),
                }
            }
            McpPart::GetPrompt => {
                let filled = declare::prompt_arguments(arguments);
                let params = GetPromptRequestParams::new(text("name")).with_arguments(filled);
                match under.request(ClientRequest::GetPromptRequest(Request::new(params))).await? {
                    ServerResult::GetPromptResult(result) => content::of_prompt(&result),
                    _ => return Err(unexpected()),
                }
            }
        };
        Ok(self.assemble(under, parts, None).await)
    }

    /// What a tool's result means.
    pub(super) async fn finish(&self, under: &Under<'_>, result: CallToolResult) -> Result<Content, ToolError> {
        let parts = content::of_tool(&result);
        if result.is_error == Some(true) {
            let texts = parts.iter().filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Binary { .. } => None,
            });
            let said = excerpt(&texts.collect::<Vec<_>>().join("\n"), ERROR_BYTES);
            let message = if said.is_empty() { "it failed, and did not say why".to_owned() } else { said };
            return Err(ToolError {
                code: "tool_error",
                message,
                trust: under.trust,
                happened: Happened::Perhaps,
                again: None,
            });
        }
        Ok(self.assemble(under, parts, result.structured_content).await)
    }

    /// One content of many parts: text is joined, anything else kept beside it.
    async fn assemble(&self, under: &Under<'_>, parts: Vec<Part>, value: Option<Value>) -> Content {
        let trust = under.trust;
        let mut parts = parts;
        if parts.len() == 1
            && let Some(Part::Binary { bytes, media_type }) = parts.pop_if(|part| matches!(part, Part::Binary { .. }))
        {
            return Content { trust, value, ..Content::outside(bytes, media_type) };
        }
        let mut texts = Vec::new();
        for (number, part) in parts.into_iter().enumerate() {
            texts.push(match part {
                Part::Text(text) => text,
                Part::Binary { bytes, media_type } => self.keep(under, number + 1, bytes, &media_type).await,
            });
        }
        Content { trust, value, ..Content::outside(texts.join("\n\n").into_bytes(), "text/plain") }
    }

    /// Keeps a part of a result, and says where.
    async fn keep(&self, under: &Under<'_>, number: usize, bytes: Vec<u8>, media_type: &str) -> String {
        let invocation = under.invocation;
        let (length, name) = (bytes.len(), format!("{}-{}-{number}", under.remote.name, invocation.call));
        let sound = !media_type.is_empty() && media_type.len() <= 200 && media_type.is_ascii();
        let media_type = if sound { media_type } else { "application/octet-stream" };
        let new = NewArtifact {
            tenant: invocation.tenant,
            run: invocation.run,
            name: &name,
            media_type,
            trust: under.trust,
            traceparent: invocation.traceparent,
        };
        match self.inner.artifacts.put(new, self.inner.secrets.redact_bytes(bytes)).await {
            Ok(kept) => {
                format!(
                    "[{length} bytes of {media_type}, kept as artifact {} version {}]",
                    kept.artifact_id, kept.version
                )
            }
            Err(error) => {
                tracing::warn!(run_id = %invocation.run, call = %invocation.call, %error, "a part of a result could not be kept");
                format!("[{length} bytes of {media_type}; the artifact service could not be reached, so they are lost]")
            }
        }
    }
}

impl Under<'_> {
    async fn request(&self, request: ClientRequest) -> Result<ServerResult, ToolError> {
        let (caller, timeout) = (self.caller.clone(), self.invocation.timeout);
        self.live.connection.request(request, caller, timeout, self.cancelled).await
    }

    /// Our answers to what a server wants to know before it goes on. Models are not its to use.
    pub async fn answers(&self, asked: &InputRequiredResult) -> Result<Option<InputResponses>, ToolError> {
        let Some(requests) = &asked.input_requests else { return Ok(None) };
        self.answer_all(requests).await.map(Some)
    }

    pub async fn answer_all(&self, requests: &InputRequests) -> Result<InputResponses, ToolError> {
        let mut responses = InputResponses::new();
        for (key, request) in requests {
            let refused = |what: &str| {
                let words = format!("the server asks for {what}, and that is refused");
                ToolError { happened: Happened::Perhaps, ..ToolError::final_("refused", words) }
            };
            let answer = match request {
                InputRequest::Elicitation(asked) => {
                    let asked = serde_json::to_value(&asked.params).unwrap_or_default();
                    self.answer(&asked).await
                }
                InputRequest::ListRoots(_) => json!({"roots": []}),
                _ => return Err(refused("a model")),
            };
            responses.insert(key.clone(), answer);
        }
        Ok(responses)
    }

    async fn answer(&self, asked: &Value) -> Value {
        if asked["mode"] == "url" || !asked["requestedSchema"].is_object() || !self.live.asks() {
            return json!({"action": "decline"});
        }
        let message = asked["message"].as_str().unwrap_or_default().to_owned();
        let form = Form { message, schema: asked["requestedSchema"].clone() };
        match self.caller.answer(form).await {
            Answer::Given(content) => json!({"action": "accept", "content": content}),
            Answer::Declined => json!({"action": "decline"}),
            Answer::Nobody => json!({"action": "cancel"}),
        }
    }
}

pub(super) fn unexpected() -> ToolError {
    let words = "the server answered with something else than was asked for";
    ToolError { happened: Happened::Unknown, ..ToolError::final_("protocol", words) }
}

/// What goes out with every attempt: a key by which the server can tell a repetition, and the trace.
fn meta(invocation: Invocation<'_>) -> Option<RequestMetaObject> {
    let meta = json!({
        "traceparent": invocation.traceparent, "escapement.dev/idempotency-key": invocation.idempotency_key,
    });
    serde_json::from_value(meta).ok()
}
