//! Calls that become tasks: the server goes on by itself, and is asked how far it is. Which task a call became is kept, so
//! that whoever takes the call up after a crash asks on instead of starting it again.

use std::time::{Duration, Instant};

use engine::McpTask;
use kernel::call::Call;
use kernel::tool::ToolRun;
use rmcp::model::{
    CallToolResult, CancelTaskParams, ErrorData, GetTaskParams, Task as RemoteTask, TaskPayload, UpdateTaskParams,
};
use rmcp::{Peer, RoleClient, ServiceError};
use serde_json::Value;

use super::call::Under;
use super::caller::{Caller as _, Progress};
use super::error::of_request;
use super::{Mcp, Remote, words};
use crate::outcome::{Content, Happened, ToolError};
use crate::tools::Invocation;

/// The shortest and the longest pause between two questions.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// What is asked if the server does not say how often.
const USUAL_PAUSE: Duration = Duration::from_secs(2);
/// How long one question may take.
const ASK_WITHIN: Duration = Duration::from_secs(30);
/// Questions in a row that may fail.
const MAX_FAILURES: u32 = 10;

impl Mcp {
    /// The task that a started call became, with what is needed to ask about it.
    pub async fn task_of(&self, call: &Call) -> Option<(McpTask, Remote)> {
        let found = self.inner.catalogue.task_of(call.request.call_id).await;
        let task =
            found.inspect_err(|error| tracing::warn!(%error, "it can't be read which task a call became")).ok()??;
        let now = self.inner.catalogue.now(&call.request.tool).await.ok()??;
        let ToolRun::Mcp(run) = &now.spec.run else { return None };
        Some((task, Remote::new(run, &now.spec, &now.digest)))
    }

    /// Asks on about the task that a call became.
    pub async fn resume(
        &self,
        task: &McpTask,
        remote: &Remote,
        invocation: Invocation<'_>,
    ) -> Result<Content, ToolError> {
        let unknown = |error: ToolError| ToolError { happened: Happened::Unknown, ..error };
        let Some(server) = self.inner.declared.get(&task.server) else {
            let words = format!("there is no MCP server `{}` here", task.server);
            return Err(unknown(ToolError::final_("misconfigured", words)));
        };
        let running = self.running(invocation.run, invocation.call);
        let live = self.inner.servers.of(invocation.tenant, server).await.map_err(|error| unknown(error.into()))?;
        let caller = self.caller(remote, invocation, server.timeouts.answer);
        let (cancelled, trust) = (&running.cancelled, remote.believed(server.trust));
        let under = Under { live: &live, remote, invocation, caller, cancelled, trust };
        self.ask_on(&under, &task.task_id, server.timeouts.task.std()).await
    }

    /// The call has just become a task: keeps which one, for whoever asks about it.
    pub(super) async fn became(&self, under: &Under<'_>, task: &RemoteTask) -> Content {
        let kept = McpTask { server: under.remote.run.server.clone(), task_id: task.task_id.clone() };
        let (run, call) = (under.invocation.run, under.invocation.call);
        if let Err(error) = self.inner.catalogue.keep_task(run, call, &kept).await {
            // It is only not found again after a crash; then the call is in doubt.
            tracing::warn!(run_id = %run, %call, %error, "it can't be kept which task a call became");
        }
        Content::task(kept)
    }

    async fn ask_on(&self, under: &Under<'_>, task_id: &str, within: Duration) -> Result<Content, ToolError> {
        let deadline = Instant::now() + within;
        let (mut wait, mut failures) = (PAUSE.0, 0);
        loop {
            tokio::select! {
                () = under.cancelled.cancelled() => {
                    self.cancel(under, task_id).await;
                    return Err(ToolError { happened: Happened::Unknown, ..ToolError::final_("cancelled", "it was cancelled") });
                }
                () = tokio::time::sleep(wait) => {}
            }
            if Instant::now() >= deadline {
                self.cancel(under, task_id).await;
                return Err(ToolError::transient(
                    "timeout",
                    format!("its task did not end within {within:?}"),
                    Happened::Unknown,
                ));
            }
            let peer = match self.peer(under).await {
                Ok(peer) => peer,
                Err(error) => {
                    failures += 1;
                    wait = error.again.unwrap_or(PAUSE.1).clamp(PAUSE.0 * failures, PAUSE.1);
                    if failures > MAX_FAILURES {
                        return Err(ToolError { happened: Happened::Unknown, ..error });
                    }
                    continue;
                }
            };
            let asking = tokio::time::timeout(ASK_WITHIN, peer.get_task(GetTaskParams::new(task_id)));
            let asked = asking.await.unwrap_or(Err(ServiceError::Timeout { timeout: ASK_WITHIN }));
            let task = match asked {
                Ok(asked) => asked.task,
                Err(error) => {
                    failures += 1;
                    wait = (PAUSE.0 * 2_u32.pow(failures)).min(PAUSE.1);
                    let known_to_be_lost = matches!(error, ServiceError::McpError(_));
                    if failures > MAX_FAILURES || known_to_be_lost {
                        return Err(ToolError { happened: Happened::Unknown, ..of_request(&error) });
                    }
                    continue;
                }
            };
            failures = 0;
            wait = pause(task.task.poll_interval_ms);
            let message = task.task.status_message.as_deref().map(|message| words::clean(message, 500));
            match task.payload {
                TaskPayload::Working => under.caller.progress(Progress { progress: 0.0, total: None, message }),
                TaskPayload::InputRequired { input_requests } => {
                    let answers = under.answer_all(&input_requests).await?;
                    if let Err(error) = peer.update_task(UpdateTaskParams::new(task_id, answers)).await {
                        tracing::debug!(%error, "answers to a task did not arrive; it will ask again");
                    }
                }
                TaskPayload::Completed { result } => {
                    let result: CallToolResult = serde_json::from_value(Value::Object(result))
                        .map_err(|_| ToolError { happened: Happened::Unknown, ..super::call::unexpected() })?;
                    return self.finish(under, result).await;
                }
                TaskPayload::Failed { error } => {
                    let error = serde_json::from_value::<ErrorData>(Value::Object(error));
                    let failed = error
                        .map_or_else(|_| super::call::unexpected(), |error| of_request(&ServiceError::McpError(error)));
                    return Err(ToolError { happened: Happened::Perhaps, ..failed });
                }
                TaskPayload::Cancelled => {
                    let words = message.unwrap_or_else(|| "the server cancelled its task".to_owned());
                    let cancelled = ToolError::final_("cancelled", words);
                    return Err(ToolError { trust: under.trust, happened: Happened::Perhaps, ..cancelled });
                }
                _ => return Err(super::call::unexpected()),
            }
        }
    }

    /// The way to the server, opened anew if it broke: the task goes on all the same.
    async fn peer(&self, under: &Under<'_>) -> Result<Peer<RoleClient>, ToolError> {
        if under.live.connection.is_alive() {
            under.live.touch();
            return Ok(under.live.connection.peer().clone());
        }
        let server = self.inner.declared.get(&under.remote.run.server).ok_or_else(super::call::unexpected)?;
        let live = self.inner.servers.of(under.invocation.tenant, server).await?;
        Ok(live.connection.peer().clone())
    }

    async fn cancel(&self, under: &Under<'_>, task_id: &str) {
        let Ok(peer) = self.peer(under).await else { return };
        let cancelling = tokio::time::timeout(ASK_WITHIN, peer.cancel_task(CancelTaskParams::new(task_id)));
        if let Ok(Err(error)) | Err(error) = cancelling.await.map_err(|_| ServiceError::Timeout { timeout: ASK_WITHIN })
        {
            tracing::info!(%error, "a server could not be told that a task is given up");
        }
    }
}

fn pause(asked_ms: Option<u64>) -> Duration {
    asked_ms.map_or(USUAL_PAUSE, Duration::from_millis).clamp(PAUSE.0, PAUSE.1)
}
