//! What a tool is, as far as the rules of a run depend on it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Duration;

/// What a tool does to the world, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Looks, changes nothing.
    Read,
    /// Changes the run's own workspace.
    Write,
    /// Changes something outside.
    External,
    /// Destroys something outside.
    Destructive,
    /// Moves money.
    Payment,
    /// Moves things.
    Physical,
}

impl Effect {
    /// The name used on the wire and in policies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::External => "external",
            Self::Destructive => "destructive",
            Self::Payment => "payment",
            Self::Physical => "physical",
        }
    }
}

/// How a tool runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// The result is the answer.
    #[default]
    Call,
    /// Goes on by itself after its start; output and end come as signals.
    Activity,
}

/// A tool as declared in `infra/agents/tools/*.yaml`. The planner offers it, the tool-executor runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolSpec {
    /// `family.verb`, such as `shell.run`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input: serde_json::Value,
    /// JSON Schema of the result, if it has one.
    #[serde(default)]
    pub output: Option<serde_json::Value>,
    /// Whether it answers or goes on by itself.
    #[serde(default)]
    pub kind: CallKind,
    /// What it does to the world.
    pub effect: Effect,
    /// Whether doing it twice is the same as doing it once.
    #[serde(default)]
    pub idempotent: bool,
    /// How long one attempt may take.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// How it is carried out.
    pub run: ToolRun,
    /// How to find out whether a call whose outcome is unknown has happened.
    #[serde(default)]
    pub probe: Option<Probe>,
}

const fn default_timeout() -> Duration {
    Duration::from_secs(60)
}

impl ToolSpec {
    /// Whether `tool.started` must be durable before it begins: everything whose repetition could be seen outside.
    #[must_use]
    pub const fn needs_start(&self) -> bool {
        needs_start(self.kind, self.effect, self.idempotent)
    }
}

/// The rule behind [`ToolSpec::needs_start`]: a read, or an idempotent write in the own workspace, may simply be done again.
#[must_use]
pub const fn needs_start(kind: CallKind, effect: Effect, idempotent: bool) -> bool {
    match (kind, effect) {
        (CallKind::Activity, _) => true,
        (CallKind::Call, Effect::Read) => false,
        (CallKind::Call, Effect::Write) => !idempotent,
        (CallKind::Call, _) => true,
    }
}

/// How a tool is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToolRun {
    /// A function of the tool-executor, by its name.
    Builtin(String),
    /// A templated HTTP request.
    Http(HttpRequest),
}

/// A request with `{name}` places filled from the arguments (percent-encoded in the URL).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// `GET`, `POST`, …
    pub method: String,
    /// Absolute URL with places; `{env:NAME}` is filled from the executor's environment, at load.
    pub url: String,
    /// Header values with places; `secret:NAME` as a value is resolved when sent.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// JSON body with places in its strings; none means the arguments themselves for methods with a body.
    #[serde(default)]
    pub body: Option<serde_json::Value>,
    /// Loopback and private addresses may be reached.
    #[serde(default)]
    pub allow_private: bool,
}

/// A question whose answer says whether a call has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The request; `{idempotency_key}` is a place too.
    pub http: HttpRequest,
    /// JSON pointer into the answer; the call has happened if what is there is neither absent, null nor false.
    pub done: String,
}
