//! What an agent file says. Parsing is elsewhere; this is its meaning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::observe::ObserveRule;
use crate::{budget::Limits, tool::ToolRun, units::Duration, watch::Watch};

/// An agent definition. A run keeps the version with which it started, by digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Its name: `[a-z0-9-]`, at most 63 characters.
    pub name: String,
    /// `provider:model`, or several to fall back on in this order.
    pub model: Models,
    /// Where the provider is, if not at its usual place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// What the agent is told, with the operator's authority.
    pub instructions: String,
    /// Names of the tools that it may use; `<server>.*` stands for all of an MCP server.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Names of the agents that it may start as children of its runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// How many of those may be at work at a time; 8 if nothing is said, 64 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_children: Option<u32>,
    /// Folders with a `SKILL.md`.
    #[serde(default)]
    pub skills: Vec<String>,
    /// Outside events that start a run.
    #[serde(default)]
    pub triggers: Vec<Trigger>,
    /// What turns signals into observations.
    #[serde(default)]
    pub observe: Vec<ObserveRule>,
    /// Services that are watched, beside and between runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<Watch>,
    /// What a run may spend.
    #[serde(default)]
    pub budget: Limits,
    /// Controls that can be switched off.
    #[serde(default)]
    pub controls: Controls,
    /// How it is known that the objective is reached.
    #[serde(default)]
    pub acceptance: Vec<Criterion>,
    /// What the operator allows by name.
    #[serde(default)]
    pub allow: Allow,
    /// Which ends of parallel calls wake the model.
    #[serde(default)]
    pub parallel_wake: ParallelWake,
    /// How long wakes are gathered before a turn begins.
    #[serde(default)]
    pub debounce: Duration,
    /// How long an approval stays open.
    #[serde(default = "default_approval_expiry")]
    pub approval_expiry: Duration,
}

impl AgentSpec {
    /// How many children of a run may be at work at a time.
    #[must_use]
    pub fn max_children(&self) -> u32 {
        self.max_children.unwrap_or(8)
    }
}

const fn default_approval_expiry() -> Duration {
    Duration::from_secs(24 * 3600)
}

impl AgentSpec {
    /// Whether it may use a tool: by its name, or with all the others of its MCP server.
    #[must_use]
    pub fn may_use(&self, name: &str, run: &ToolRun) -> bool {
        let is_server = |named: &str| matches!(run, ToolRun::Mcp(run) if named.strip_suffix(".*") == Some(&run.server));
        self.tools.iter().any(|named| named == name || is_server(named))
    }
}

/// One model, or several in order of preference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Models {
    /// The only one.
    One(String),
    /// The first that answers.
    Several(Vec<String>),
}

impl Models {
    /// In order of preference.
    #[must_use]
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(model) => std::slice::from_ref(model),
            Self::Several(models) => models,
        }
    }
}

/// An outside event that starts a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trigger {
    /// CloudEvent type; a `*` at the end stands for any rest.
    pub on: String,
    /// CEL over the event (`id`, `source`, `type`, `subject`, `time`, `data`) that must hold.
    #[serde(default, rename = "where", skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// What the run starts with.
    #[serde(default)]
    pub start: Start,
    /// The service whose signal the event is: it becomes a record among the service's logs, and starts no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// What a triggered run starts with. The event itself is added as untrusted data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// The objective, with the operator's authority.
    pub input: String,
}

/// Controls of the planner that can be switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Controls(pub BTreeMap<String, Switch>);

/// A switch as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Switch {
    /// `true` / `false` (YAML 1.1 readers also make these of `on` / `off`).
    Flag(bool),
    /// `on`, `off`, `auto`.
    Word(String),
}

/// A condition for being done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Criterion {
    /// In words, judged by the model.
    Words(String),
}

/// What the operator allows by name, so that it need not be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// Hosts (`host` or `host:port`) that may be read.
    pub hosts: Vec<String>,
    /// Commands that may be run as they stand; a `*` at the end stands for any rest without shell syntax.
    pub commands: Vec<String>,
}

/// Which ends of the calls of one turn wake the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParallelWake {
    /// When all have ended.
    #[default]
    All,
    /// Also at the first that fails.
    FirstFailure,
}
