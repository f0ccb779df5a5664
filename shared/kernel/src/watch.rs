//! What an agent file says about services: what a healthy one looks like, and what an action on one leads to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{agent::Start, observe::ObserveRule, units::Duration};

/// A service that an agent watches. The pace of its lines is listened to in any case; nothing else has to be said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    /// Its name, as its records say it; a `*` at the end stands for any rest.
    pub service: String,
    /// What is looked at all the time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthRule>,
    /// What its lines mean, in the words in which it is said of the output of tools: `packs`, `failure`, `success`, `ignore`,
    /// `records`, `thresholds`, `machines`, `heartbeats`, `settle` and `escalate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveRule>,
    /// What an action on it leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actions: Option<ActionRule>,
    /// The run that an alarm starts, or the end of an action that no run asked about. Without one they are recorded only,
    /// and seen by whoever waits for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

impl Watch {
    /// Whether it is about this service.
    #[must_use]
    pub fn is_about(&self, service: &str) -> bool {
        self.service.strip_suffix('*').map_or(self.service == service, |start| service.starts_with(start))
    }

    /// Whether it says how it wants to hear that there is no sign of life.
    #[must_use]
    pub fn says_what_life_is(&self) -> bool {
        self.health.iter().any(|rule| rule.silence.is_some())
            || self.observe.as_ref().is_some_and(|rule| !rule.heartbeats.is_empty())
    }
}

/// What is looked at all the time. Besides its name it has exactly one condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HealthRule {
    /// Its name, in alarms.
    pub name: String,
    /// Too many records are faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<ErrorLimit>,
    /// A number in the records is too high or too low: queue depth, disk, memory, latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<FieldLimit>,
    /// A line comes too often: restarts, expired sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<LineLimit>,
    /// Faults of a kind that was not seen before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_errors: Option<NewErrors>,
    /// Nothing is heard of the service for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<Duration>,
    /// How long the condition must hold before it is an alarm.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub hold: Option<Duration>,
    /// How long it must not hold before the service counts as recovered; a minute unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear_after: Option<Duration>,
}

/// How many faults are too many within a time: by their number, by their share of all records, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorLimit {
    /// More faults than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// A greater share than this, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Of at least so many records; a share of fewer says nothing. 20 unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Within this time; a minute unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Duration>,
}

/// A bound on a number in the records.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FieldLimit {
    /// The attribute that holds it, with dots into objects: `queue.depth`; or the name of a metric.
    pub name: String,
    /// Only of records with these words in these attributes, such as `state: used` of the memory of a machine.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub only: BTreeMap<String, String>,
    /// It is a counter, and what is compared is by how much it rose within the time, all instances together: restarts, errors.
    #[serde(skip_serializing_if = "is_false")]
    pub rise: bool,
    /// Higher is too high.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<f64>,
    /// Lower is too low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// Where it is well again; the bound itself unless said otherwise. A gap between the two keeps an alarm from flapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clear: Option<f64>,
    /// The quantile that is compared, from 0 to 1, such as 0.95; if there is none, the worst of the latest numbers of all
    /// instances, disks and whatever else the labels of a metric tell apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// The quantile of at least so many numbers; 20 unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u64>,
    /// Within this time; a minute unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Duration>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// How often a line may come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LineLimit {
    /// Regular expression over the text of a record.
    #[serde(rename = "match")]
    pub pattern: String,
    /// More often than this is too often; once is, unless said otherwise.
    pub count: u64,
    /// Within this time; a minute unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<Duration>,
}

/// Faults of a new kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewErrors {
    /// How long, from the first record of the service on, every fault counts as known; five minutes unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learn: Option<Duration>,
    /// So many of a new kind are needed; one unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// What an action on a service leads to, if it takes effect, and if it does not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActionRule {
    /// Tools of this agent that act on the service: each call of one opens a window, and its run is told what came of it. The
    /// id of the call, which goes out as its idempotency key, is what its lines are known by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Regular expressions of lines that say that it took effect.
    pub success: Vec<String>,
    /// Regular expressions of lines that say that it failed. Records whose severity is a fault say so by themselves.
    pub failure: Vec<String>,
    /// What it goes through, in order.
    pub stages: Vec<ActionStage>,
    /// When it is given up on; a minute unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Duration>,
    /// After so long without a further line of it nothing more is expected; ten seconds unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<Duration>,
    /// How long a sign of success or failure waits for others, which may be late; two seconds unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle: Option<Duration>,
    /// How the conclusion is cross-checked: logs may be missing or wrong.
    pub verify: Vec<VerifyStep>,
}

/// A stage of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActionStage {
    /// Its name, such as `accepted`.
    pub name: String,
    /// Regular expression of the line that says that it was reached.
    #[serde(rename = "match")]
    pub pattern: String,
}

/// A look at the world itself: a call of a tool that only reads, made by the tool-executor under the agent's policies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VerifyStep {
    /// The tool; its effect must be `read`, and the agent must have it.
    pub tool: String,
    /// Its arguments. `{request_id}`, `{session_id}`, `{trace_id}`, `{action_id}`, `{service}` and `{actor}` in texts are filled in:
    /// with anything where one is an argument by itself, percent-encoded in URLs, and within other texts only with what is plain.
    pub arguments: serde_json::Map<String, serde_json::Value>,
    /// CEL over `data.result` (what the tool gave, JSON read), `data.text` and `data.action` that holds if it took effect.
    pub expect: String,
}
