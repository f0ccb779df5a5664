//! Models behind HTTP, through the `genai` crate: OpenAI and everything that speaks like it, Anthropic, Gemini, Ollama.

use std::time::Duration;

use futures::{StreamExt, future::BoxFuture};
use genai::{
    Client, ModelIden, ServiceTarget, WebConfig,
    adapter::AdapterKind,
    chat::{ChatMessage, ChatOptions, ChatRequest, ChatStreamEvent, StopReason, StreamEnd, Tool, ToolCall},
    resolver::{AuthData, Endpoint},
};
use kernel::budget::Usage;
use serde_json::Value;

use super::{Answer, Arguments, Finish, ModelCall, ModelError, ModelName, OnDelta, Prompt, Provider};
use crate::slice::tokens;

/// Longest part of a provider's words that an error repeats, in bytes.
const ERROR_BYTES: usize = 400;

/// Time-outs of remote calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// For the connection.
    pub connect: Duration,
    /// Until the answer begins.
    pub first: Duration,
    /// Between two pieces of it.
    pub between: Duration,
    /// For the whole answer.
    pub whole: Duration,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first: Duration::from_secs(120),
            between: Duration::from_secs(60),
            whole: Duration::from_secs(600),
        }
    }
}

/// One model of one provider.
pub struct RemoteProvider {
    client: Client,
    target: Target,
    provider: String,
    model: String,
    options: RemoteOptions,
}

enum Target {
    /// The provider's usual place and key.
    Usual(ModelIden),
    /// Given by the agent's file.
    Given(ServiceTarget),
}

impl RemoteProvider {
    /// Ready to ask. `key` looks up a key by the name that the provider's own tools use, such as `OPENAI_API_KEY`.
    ///
    /// # Errors
    /// [`ModelError::Permanent`] if the provider is not known and no `base_url` is given, or its key is missing.
    pub fn open(
        name: &ModelName,
        base_url: Option<&str>,
        options: &RemoteOptions,
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ModelError> {
        let web = WebConfig { connect_timeout: Some(options.connect), ..WebConfig::default() };
        let client = Client::builder()
            .with_web_config(web)
            .build()
            .map_err(|error| ModelError::Permanent(format!("no HTTP client: {error}")))?;
        let kind = adapter(name, base_url.is_some())?;
        let model = ModelIden::new(kind, name.model.clone());
        let variable = match known(&name.provider) {
            Some(kind) => kind.default_key_env_name().map(str::to_owned),
            None => Some(format!("{}_API_KEY", name.provider.to_ascii_uppercase().replace(['-', '.'], "_"))),
        };
        let found = variable.as_deref().and_then(&key).filter(|key| !key.is_empty());
        let target = match (base_url, found, variable) {
            (Some(url), found, _) => Target::Given(ServiceTarget {
                endpoint: Endpoint::from_owned(format!("{}/", url.trim_end_matches('/'))),
                // A server of one's own may want none; the header is sent all the same.
                auth: AuthData::from_single(found.unwrap_or_else(|| "none".to_owned())),
                model,
            }),
            (None, None, Some(variable)) => {
                return Err(ModelError::Permanent(format!(
                    "no key for {}: set {variable} in the planner's environment",
                    name.provider
                )));
            }
            (None, _, _) => Target::Usual(model),
        };
        let provider = conventional(&name.provider).to_owned();
        Ok(Self { client, target, provider, model: name.model.clone(), options: *options })
    }

    async fn stream(&self, prompt: &Prompt, on_delta: OnDelta<'_>) -> Result<Answer, ModelError> {
        let (request, options) = (request(prompt), self.chat_options(prompt));
        let opened = match &self.target {
            Target::Usual(model) => self.client.exec_chat_stream(model, request, Some(&options)).await,
            Target::Given(target) => self.client.exec_chat_stream(target.clone(), request, Some(&options)).await,
        };
        let mut stream = opened.map_err(classify)?.stream;
        while let Some(event) = stream.next().await {
            match event.map_err(classify)? {
                ChatStreamEvent::Chunk(chunk) => on_delta(&chunk.content),
                ChatStreamEvent::End(end) => return self.answer_of(prompt, end),
                // A call is acted on only when it is complete; reasoning is not kept.
                _ => {}
            }
        }
        Err(ModelError::transient("the answer broke off before its end"))
    }

    fn chat_options(&self, prompt: &Prompt) -> ChatOptions {
        ChatOptions::default()
            .with_max_tokens(u32::try_from(prompt.max_output_tokens).unwrap_or(u32::MAX))
            .with_capture_content(true)
            .with_capture_tool_calls(true)
            .with_capture_reasoning_content(true)
            .with_capture_usage(true)
            .with_stream_header_timeout(self.options.first)
            .with_stream_read_timeout(self.options.between)
    }

    fn answer_of(&self, prompt: &Prompt, end: StreamEnd) -> Result<Answer, ModelError> {
        let text = end.captured_texts().unwrap_or_default().concat();
        let calls: Vec<_> = end.captured_tool_calls().unwrap_or_default().into_iter().map(call_of).collect();
        let finish = end.captured_stop_reason.as_ref().map_or(Finish::Stop, finish_of);
        let silent = text.trim().is_empty() && calls.is_empty();
        match finish {
            Finish::Filtered if calls.is_empty() => {
                return Err(ModelError::Refused(kernel::excerpt(&text, ERROR_BYTES)));
            }
            Finish::Length => {}
            _ if silent => return Err(ModelError::Invalid("the answer was empty".to_owned())),
            _ => {}
        }
        let usage = end.captured_usage.map_or_else(|| estimate(prompt, &text, &calls), |usage| usage_of(&usage));
        let response_id = end.captured_response_id;
        Ok(Answer { model: self.model.clone(), text, calls, usage, finish, response_id })
    }
}

impl Provider for RemoteProvider {
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let whole = tokio::time::timeout(self.options.whole, self.stream(prompt, on_delta)).await;
            let late = || ModelError::transient(format!("no whole answer within {} s", self.options.whole.as_secs()));
            whole.map_err(|_| late())?
        })
    }

    fn provider(&self) -> &str {
        &self.provider
    }

    fn model(&self) -> &str {
        &self.model
    }
}

/// The adapter for a provider's name, if there is one.
fn known(provider: &str) -> Option<AdapterKind> {
    match provider {
        "google" => Some(AdapterKind::Gemini),
        "qwen" | "alibaba" => Some(AdapterKind::Aliyun),
        "openai-responses" => Some(AdapterKind::OpenAIResp),
        other => AdapterKind::from_lower_str(other),
    }
}

fn adapter(name: &ModelName, has_base_url: bool) -> Result<AdapterKind, ModelError> {
    match known(&name.provider) {
        // OpenAI itself offers its newer models by the responses API; servers like it speak chat completions.
        Some(AdapterKind::OpenAI) if !has_base_url => match AdapterKind::from_model(&name.model) {
            Ok(AdapterKind::OpenAIResp) => Ok(AdapterKind::OpenAIResp),
            _ => Ok(AdapterKind::OpenAI),
        },
        Some(kind) => Ok(kind),
        None if has_base_url => Ok(AdapterKind::OpenAI),
        None => Err(ModelError::Permanent(format!(
            "provider `{}` is not known: give a `base_url` that speaks like OpenAI, or use openai, anthropic, gemini, ollama, deepseek, qwen, …",
            name.provider
        ))),
    }
}

/// The name in the GenAI conventions and in the list of prices.
fn conventional(provider: &str) -> &str {
    match provider {
        "openai_resp" | "openai-responses" => "openai",
        "google" => "gemini",
        other => other,
    }
}

fn request(prompt: &Prompt) -> ChatRequest {
    let tools = prompt.tools.iter().map(|tool| {
        Tool::new(tool.name.clone()).with_description(tool.description.clone()).with_schema(tool.schema.clone())
    });
    ChatRequest::new(vec![ChatMessage::user(prompt.user.clone())]).with_system(prompt.system.clone()).with_tools(tools)
}

fn call_of(call: &ToolCall) -> ModelCall {
    let arguments = match &call.fn_arguments {
        // What does not parse is left as the text that it was; no arguments at all are an empty text.
        Value::String(text) if text.trim().is_empty() => Arguments::Json(Value::Object(serde_json::Map::new())),
        Value::String(text) => Arguments::Malformed(text.clone()),
        Value::Null => Arguments::Json(Value::Object(serde_json::Map::new())),
        value => Arguments::Json(value.clone()),
    };
    ModelCall { id: Some(call.call_id.clone()).filter(|id| !id.is_empty()), name: call.fn_name.clone(), arguments }
}

fn finish_of(reason: &StopReason) -> Finish {
    match reason {
        StopReason::Completed(_) | StopReason::StopSequence(_) => Finish::Stop,
        StopReason::MaxTokens(_) => Finish::Length,
        StopReason::ToolCall(_) => Finish::Calls,
        StopReason::ContentFilter(_) => Finish::Filtered,
        StopReason::Other(word) => Finish::Other(kernel::excerpt(word, 40)),
    }
}

fn usage_of(usage: &genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or_default();
    Usage {
        model_calls: 1,
        input_tokens: count(usage.prompt_tokens),
        cached_tokens: count(usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens)),
        output_tokens: count(usage.completion_tokens),
        cost_microusd: 0,
    }
}

/// For servers that do not count.
fn estimate(prompt: &Prompt, text: &str, calls: &[ModelCall]) -> Usage {
    let written = calls.iter().map(|call| match &call.arguments {
        Arguments::Json(value) => tokens::count(&value.to_string()),
        Arguments::Malformed(text) => tokens::count(text),
    });
    Usage {
        model_calls: 1,
        input_tokens: tokens::count(&prompt.system) + tokens::count(&prompt.user) + prompt.tool_tokens,
        output_tokens: tokens::count(text) + written.sum::<u64>(),
        ..Usage::default()
    }
}

fn classify(error: genai::Error) -> ModelError {
    // A failed stream wraps what the server said.
    if let genai::Error::WebStream { error, cause, .. } = error {
        return match error.downcast::<genai::Error>() {
            Ok(inner) => classify(*inner),
            Err(_) => ModelError::transient(shorten(&cause)),
        };
    }
    let message = shorten(&error.to_string());
    if let Some(status) = error.status() {
        let retry_after = error.headers().and_then(retry_after);
        return match status.as_u16() {
            408 | 409 | 425 | 429 | 500..=599 => ModelError::Transient { message, retry_after },
            _ => ModelError::Permanent(message),
        };
    }
    match &error {
        // An error in the middle of a stream: overload and the like, unless the provider says otherwise.
        genai::Error::ChatResponse { body, .. } if is_permanent(body) => ModelError::Permanent(message),
        genai::Error::ChatResponse { .. } => ModelError::transient(message),
        genai::Error::WebModelCall { .. } | genai::Error::WebAdapterCall { .. } => ModelError::transient(message),
        genai::Error::StreamParse { .. }
        | genai::Error::NoChatResponse { .. }
        | genai::Error::InvalidJsonResponseElement { .. }
        | genai::Error::ChatResponseGeneration { .. }
        | genai::Error::JsonValueExt(_)
        | genai::Error::SerdeJson(_) => ModelError::Invalid(message),
        _ => ModelError::Permanent(message),
    }
}

fn is_permanent(body: &Value) -> bool {
    let error = body.get("error").unwrap_or(body);
    let word = error.get("type").or_else(|| error.get("code")).and_then(Value::as_str).unwrap_or_default();
    ["invalid_request_error", "authentication_error", "permission_error", "not_found_error", "invalid_api_key"]
        .contains(&word)
}

fn retry_after(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let millis = number("retry-after-ms").map(|millis| millis / 1000.0);
    let seconds = millis.or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn shorten(text: &str) -> String {
    kernel::excerpt(text, ERROR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(provider: &str, model: &str, base_url: Option<&str>, keys: &[&str]) -> Result<RemoteProvider, ModelError> {
        let name = ModelName { provider: provider.to_owned(), model: model.to_owned() };
        let key = |wanted: &str| keys.contains(&wanted).then(|| "k".to_owned());
        RemoteProvider::open(&name, base_url, &RemoteOptions::default(), key)
    }

    #[test]
    fn a_missing_key_is_named() {
        for (provider, variable) in
            [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY"), ("google", "GEMINI_API_KEY")]
        {
            let error = open(provider, "m", None, &[]).err().unwrap();
            assert!(error.to_string().contains(variable), "{error}");
            assert!(open(provider, "m", None, &[variable]).is_ok());
        }
        assert!(open("ollama", "llama", None, &[]).is_ok());
    }

    #[test]
    fn an_unknown_provider_needs_a_place() {
        assert!(open("mine", "m", None, &[]).err().unwrap().to_string().contains("base_url"));
        assert!(open("mine", "m", Some("http://127.0.0.1:9/v1"), &[]).is_ok());
    }

    #[test]
    fn errors_in_a_stream_are_told_apart() {
        assert!(is_permanent(&serde_json::json!({"type": "error", "error": {"type": "invalid_request_error"}})));
        assert!(!is_permanent(&serde_json::json!({"error": {"type": "overloaded_error"}})));
    }
}
