//! Attribute names of the OpenTelemetry semantic conventions for generative AI (v1.41), and the few of Escapement's own.

use opentelemetry::{Array, StringValue, Value};

/// What is done: [`INVOKE_AGENT`], [`CHAT`], [`EXECUTE_TOOL`].
pub const OPERATION_NAME: &str = "gen_ai.operation.name";
/// Who offers the model: `openai`, `anthropic`, `gcp.gemini`, or a custom name such as `scripted`.
pub const PROVIDER_NAME: &str = "gen_ai.provider.name";
/// Conversation that the run belongs to.
pub const CONVERSATION_ID: &str = "gen_ai.conversation.id";
/// Name of the agent, as in its file.
pub const AGENT_NAME: &str = "gen_ai.agent.name";
/// Identity of the agent: the digest of its definition.
pub const AGENT_ID: &str = "gen_ai.agent.id";
/// Version of the agent.
pub const AGENT_VERSION: &str = "gen_ai.agent.version";
/// What the agent is for.
pub const AGENT_DESCRIPTION: &str = "gen_ai.agent.description";
/// Model asked for.
pub const REQUEST_MODEL: &str = "gen_ai.request.model";
/// Most tokens asked for.
pub const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
/// Temperature asked for.
pub const REQUEST_TEMPERATURE: &str = "gen_ai.request.temperature";
/// Model that answered.
pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
/// Identity of the answer, given by the provider.
pub const RESPONSE_ID: &str = "gen_ai.response.id";
/// Why the model stopped: an array of strings.
pub const RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
/// Tokens read, cached ones included.
pub const USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
/// Tokens written.
pub const USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
/// Input tokens served from the provider's cache.
pub const USAGE_CACHE_READ_INPUT_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
/// Input tokens written into the provider's cache.
pub const USAGE_CACHE_CREATION_INPUT_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
/// Kind of output asked for: `text`, `json`, ...
pub const OUTPUT_TYPE: &str = "gen_ai.output.type";
/// Name of the tool.
pub const TOOL_NAME: &str = "gen_ai.tool.name";
/// `function`, `extension` or `datastore`.
pub const TOOL_TYPE: &str = "gen_ai.tool.type";
/// What the tool is for.
pub const TOOL_DESCRIPTION: &str = "gen_ai.tool.description";
/// Identity of the call.
pub const TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
/// Kind of failure of the operation; a low-cardinality name.
pub const ERROR_TYPE: &str = "error.type";

/// [`OPERATION_NAME`] of a run's root span, named `invoke_agent <agent>`.
pub const INVOKE_AGENT: &str = "invoke_agent";
/// [`OPERATION_NAME`] of a model call, named `chat <model>`.
pub const CHAT: &str = "chat";
/// [`OPERATION_NAME`] of a tool call, named `execute_tool <tool>`.
pub const EXECUTE_TOOL: &str = "execute_tool";

/// Escapement's own: the run, as a UUID.
pub const RUN_ID: &str = "escapement.run.id";
/// Escapement's own: the turn, as a UUID.
pub const TURN_ID: &str = "escapement.turn.id";
/// Escapement's own: the tenant.
pub const TENANT: &str = "escapement.tenant";
/// Escapement's own: the event that caused the operation.
pub const EVENT_ID: &str = "escapement.event.id";

/// A list of texts, which the conventions want for some attributes.
pub fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(Array::String(texts.into_iter().map(|text| StringValue::from(text.to_owned())).collect()))
}
