//! What an agent file says. Parsing is elsewhere; this is its meaning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::{acceptance::Criterion, observe::ObserveRule};
use crate::{
    acceptance::{Check, CheckedCriterion, MAX_CRITERIA},
    budget::Limits,
    opinion::Adviser,
    tool::ToolRun,
    units::Duration,
    watch::Watch,
};

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
    /// Other models for turns of other kinds.
    #[serde(default, skip_serializing_if = "Routes::is_empty")]
    pub routes: Routes,
    /// Collections of documents of which it is told what fits, and which it may search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knowledge: Vec<String>,
    /// What it is told of earlier runs, and what is kept of its own.
    #[serde(default, skip_serializing_if = "MemoryRules::is_default")]
    pub memory: MemoryRules,
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
    /// A small model that gives a second opinion where the observer's rules are unsure. None unless it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer: Option<Adviser>,
    /// What a run may spend.
    #[serde(default)]
    pub budget: Limits,
    /// Controls that can be switched off.
    #[serde(default)]
    pub controls: Controls,
    /// How it is known that the objective is reached.
    #[serde(default)]
    pub acceptance: Vec<Criterion>,
    /// Name of an agent that looks into the criteria that are in words only, with tools of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluator: Option<String>,
    /// Checks of the operator's own at fixed points of a turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<PointCheck>,
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
    /// When people are reminded of an approval that is still open, counted from when it was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approval_reminders: Vec<Duration>,
    /// When others are told of an approval that is still open, counted from when it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_escalation: Option<Duration>,
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

impl AgentSpec {
    /// The criteria of a run: those that it is given, or the file's. With an evaluator, criteria in words are looked into by it;
    /// with the control `evaluator` off, nothing is.
    #[must_use]
    pub fn criteria(&self, given: Vec<Criterion>) -> Vec<Criterion> {
        let criteria = if given.is_empty() { self.acceptance.clone() } else { given };
        let on = self.controls.is_on(EVALUATOR);
        let by_evaluator = |text: String| match &self.evaluator {
            Some(agent) => Criterion::Checked(CheckedCriterion { text, check: Check::Evaluator(agent.clone()) }),
            None => Criterion::Words(text),
        };
        let judged = |criterion: Criterion| match criterion {
            Criterion::Words(text) if on => by_evaluator(text),
            Criterion::Checked(checked) if !on => Criterion::Words(checked.text),
            other => other,
        };
        criteria.into_iter().take(MAX_CRITERIA).map(judged).collect()
    }
}

/// A check of the operator's own, asked at a fixed point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PointCheck {
    /// Its name, for the log and for the model: `[a-z0-9-]`.
    pub name: String,
    /// Where it is asked.
    pub at: Point,
    /// A webhook, signed as Standard Webhooks has it: `https://…`, or `http://` on loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The secret that signs it, as `secret:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// A responder on NATS instead: `svc.checks.<this>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responder: Option<String>,
    /// How long it may take.
    #[serde(default = "default_check_timeout")]
    pub timeout: Duration,
    /// What no answer means.
    #[serde(default)]
    pub default: NoAnswer,
}

const fn default_check_timeout() -> Duration {
    Duration::from_secs(3)
}

/// The five fixed points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Point {
    /// Before a model is asked.
    BeforeModel,
    /// Before a tool call begins.
    BeforeTool,
    /// After a tool call has ended, before the model is told.
    AfterTool,
    /// Before the outcome of a turn is committed.
    BeforeCommit,
    /// Before a run ends with its objective reached.
    AtEnd,
}

impl Point {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeModel => "before_model",
            Self::BeforeTool => "before_tool",
            Self::AfterTool => "after_tool",
            Self::BeforeCommit => "before_commit",
            Self::AtEnd => "at_end",
        }
    }
}

/// What it means that a check does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoAnswer {
    /// No.
    #[default]
    Deny,
    /// Yes.
    Allow,
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

/// Models for turns that are not like the others. Where nothing is said, `model` answers; and it answers where none of these
/// does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Routes {
    /// For the first turn, in which the plan is made, and for turns after something failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard: Option<Models>,
    /// For judging work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Models>,
    /// For what is left when the budget runs low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thrift: Option<Thrift>,
}

/// Cheaper models for when the budget runs low.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Thrift {
    /// The share of tokens or of money that is left, from 0 to 1, below which they answer.
    pub below: f64,
    /// Those.
    #[serde(rename = "use")]
    pub models: Models,
}

impl Routes {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// All models that are named.
    pub fn all(&self) -> impl Iterator<Item = &String> {
        let thrift = self.thrift.iter().map(|thrift| &thrift.models);
        self.hard.iter().chain(&self.evaluation).chain(thrift).flat_map(Models::all)
    }
}

/// What an agent is told of earlier runs, and what is kept of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryRules {
    /// Which memories a turn is told of by itself.
    pub recall: Recall,
    /// Whether a run that reaches its end is asked what of it should be remembered.
    pub extract: bool,
}

impl MemoryRules {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Which memories a turn is told of by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recall {
    /// None; it may still search.
    None,
    /// Those that are no less believed than what the run has seen anyway.
    #[default]
    Careful,
    /// All, also those that make a run untrusted that was not.
    All,
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
    /// CEL over the event whose value tells apart what is held back or counted by itself, such as
    /// `data.pull_request.number`; the event's subject unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Gathers events until no further one has come for a while; one run is given all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Debounce>,
    /// Gathers events until there are so many, or for so long; one run is given all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// How many runs may start in a span of time; further ones start later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Throttle>,
    /// How many runs may be under way at a time; further ones start when one of them has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// An event that a waiting run of this agent takes starts none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wake: bool,
    /// The service whose signal the event is: it becomes a record among the service's logs, and starts no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

impl Trigger {
    /// Whether a run may start later than its event, or not for each of them.
    #[must_use]
    pub fn holds_back(&self) -> bool {
        self.debounce.is_some() || self.batch.is_some() || self.throttle.is_some() || self.concurrency.is_some()
    }
}

/// How long events are gathered after the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Debounce {
    /// So long after the last one.
    Quiet(Duration),
    /// So long after the last one, and no longer than that after the first.
    Bounded(Bounded),
}

/// A debounce that comes to an end also if events never stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bounded {
    /// How long no event must have come.
    pub quiet: Duration,
    /// How long the first one waits at most.
    pub at_most: Duration,
}

impl Debounce {
    /// How long no event must have come.
    #[must_use]
    pub const fn quiet(self) -> Duration {
        match self {
            Self::Quiet(quiet) => quiet,
            Self::Bounded(bounded) => bounded.quiet,
        }
    }

    /// How long the first event waits at most: ten times as long, unless it is said.
    #[must_use]
    pub const fn at_most(self) -> Duration {
        match self {
            Self::Quiet(quiet) => Duration::from_millis(quiet.as_millis().saturating_mul(10)),
            Self::Bounded(bounded) => bounded.at_most,
        }
    }
}

/// How many events are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// So many at most.
    pub size: u32,
    /// For so long at most.
    pub within: Duration,
}

/// How many runs may start in a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// So many at most.
    pub runs: u32,
    /// In any span of this length.
    pub per: Duration,
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

/// The control that has criteria checked by something else than the model that did the work. On unless it is switched off.
pub const EVALUATOR: &str = "evaluator";
/// The control that notices a run that goes in circles. On unless it is switched off.
pub const DRIFT: &str = "drift";
/// The control that summarises older history. `auto` unless it is switched off; `extract` does it without a model.
pub const COMPACTION: &str = "compaction";
/// The control that begins anew with a handoff every so many turns, such as `reset: 200`. Off unless it is set.
pub const RESET: &str = "reset";
/// All of them.
pub const CONTROLS: [&str; 4] = [EVALUATOR, DRIFT, COMPACTION, RESET];

impl Controls {
    /// Whether a control is on. One that is not named is.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        match self.0.get(name) {
            None => true,
            Some(Switch::Flag(on)) => *on,
            Some(Switch::Number(number)) => *number > 0,
            Some(Switch::Word(word)) => !matches!(word.as_str(), "off" | "no" | "false" | "never"),
        }
    }

    /// The word that a control is set to, if it is one.
    #[must_use]
    pub fn word(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Switch::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// The number that a control is set to, if it is one.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u32> {
        match self.0.get(name) {
            Some(Switch::Number(number)) => Some(*number),
            _ => None,
        }
    }
}

/// A switch as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Switch {
    /// `true` / `false` (YAML 1.1 readers also make these of `on` / `off`).
    Flag(bool),
    /// How much, where a control takes that.
    Number(u32),
    /// `on`, `off`, `auto`.
    Word(String),
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
