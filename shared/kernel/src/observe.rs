//! What an agent file says about turning signals into observations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Duration;

/// The shipped packs, as an agent may name them.
pub const PACKS: [&str; 20] = [
    "generic",
    "ci",
    "traces",
    "lint",
    "cargo",
    "python",
    "node",
    "go",
    "gcc",
    "cmake",
    "maven",
    "gradle",
    "dotnet",
    "ruby",
    "bazel",
    "docker",
    "kubernetes",
    "terraform",
    "git",
    "mozilla",
];

/// Older and shorter names of packs.
pub const PACK_ALIASES: [(&str, &str); 11] = [
    ("pytest", "python"),
    ("npm", "node"),
    ("jest", "node"),
    ("tsc", "node"),
    ("eslint", "node"),
    ("make", "gcc"),
    ("clang", "gcc"),
    ("rspec", "ruby"),
    ("kubectl", "kubernetes"),
    ("mozharness", "mozilla"),
    ("rust", "cargo"),
];

/// Rules that turn signals into observations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveRule {
    /// The tool whose output they are for. Not under `watch`, which names the service whose lines they are for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Only in files that were stored long ago, and without effect: the logs of services are looked at by `watch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Shipped sets of rules. Without any, all of them listen, and those count whose program is recognised by the command
    /// or by what it prints.
    pub packs: Vec<String>,
    /// Regular expressions of lines that mean failure.
    pub failure: Vec<String>,
    /// Regular expressions of lines that mean success.
    pub success: Vec<String>,
    /// Regular expressions of lines that mark progress; a first group is the phase, groups named `percent`, or `n` and `m`,
    /// are numbers.
    pub progress: Vec<String>,
    /// Regular expressions of lines that mean nothing, whatever else fits them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
    /// What lines that are JSON objects (or `key=value` pairs) mean, by their fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<RecordRule>,
    /// How many such lines, or how high a value, within which time needs a look.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<Threshold>,
    /// Procedures whose stages must follow each other in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Machine>,
    /// Lines that must come again and again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub heartbeats: Vec<Heartbeat>,
    /// What exit statuses mean, where 0 is not the only good one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<ExitRule>,
    /// No output for this long needs a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<Duration>,
    /// How long a failure waits for more evidence, or the end, before it wakes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle: Option<Duration>,
    /// Who is woken by what, and when; the first that fits counts, and what is usual follows the last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub escalate: Vec<Escalation>,
}

/// What a line means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// Something failed.
    #[default]
    Failure,
    /// Something went well.
    Success,
    /// It goes on.
    Progress,
    /// Nothing, whatever else the line looks like.
    Ignore,
}

/// A rule about a line that is a record: by one of its fields, or by an expression over all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RecordRule {
    /// Its name in reports; the place in the list if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The field, with dots into objects: `http.status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How it is compared.
    pub op: FieldOp,
    /// With what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
    /// CEL over the record, which is called `data`, instead of a single field.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What the line means then.
    pub means: Meaning,
}

/// How a field is compared with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FieldOp {
    /// It is there.
    #[default]
    Exists,
    /// It is not there.
    Missing,
    /// It is equal; texts without regard to case.
    Eq,
    /// It is not equal.
    Ne,
    /// It is less, as a number.
    Lt,
    /// It is at most as much.
    Le,
    /// It is more.
    Gt,
    /// It is at least as much.
    Ge,
    /// The text holds it, without regard to case.
    Contains,
    /// A regular expression fits.
    Matches,
}

/// Lines within a time, counted, or the values in them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Threshold {
    /// Its name in reports.
    pub id: String,
    /// Regular expression of the lines that count; a group named `value` is a number that is compared.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Field of a record that is compared, instead of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only values above this count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<f64>,
    /// Only values below this count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// So many of them are too many.
    #[serde(default = "one")]
    pub count: u32,
    /// Within this time.
    pub within: Duration,
}

const fn one() -> u32 {
    1
}

/// A procedure: stages that are entered one after the other, each with its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// Its name in reports.
    pub id: String,
    /// In their order; entering the last one ends the procedure.
    pub stages: Vec<Stage>,
}

/// A stage of a procedure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Stage {
    /// Its name, such as `started`.
    pub name: String,
    /// Regular expression of the line that enters it.
    pub enter: String,
    /// How long it may last before the next one is entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Duration>,
}

/// A line that must come again and again once it came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    /// Its name in reports.
    pub id: String,
    /// Regular expression of the line.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The longest time from one to the next.
    pub every: Duration,
}

/// What some exit statuses mean.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExitRule {
    /// Which.
    pub codes: Vec<i32>,
    /// What they mean: `success` or `failure`.
    pub means: Meaning,
}

/// What can be told while a program runs, or when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Anomaly {
    /// A line that shows a failure.
    Failure,
    /// A threshold was passed.
    Threshold,
    /// A stage lasted too long.
    Stage,
    /// A heartbeat stayed away.
    Heartbeat,
    /// No output.
    Silence,
    /// The status says success and the output says otherwise.
    Contradiction,
    /// The same kind of line, far more often than before.
    Burst,
}

/// When something wakes the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WakeWhen {
    /// At once.
    Now,
    /// After it has settled: with what else comes, or the end.
    #[default]
    Settled,
    /// Only with the end.
    End,
    /// Never; it is told all the same.
    Never,
}

/// A rule about waking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Escalation {
    /// What it is about; anything, if nothing is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<Anomaly>,
    /// By which rule, such as `cargo.panic`; a `*` at the end stands for any rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// When it wakes.
    pub wake: WakeWhen,
}

impl Escalation {
    /// Whether it is about this.
    #[must_use]
    pub fn fits(&self, anomaly: Anomaly, rule: &str) -> bool {
        let named = |wanted: &String| match wanted.strip_suffix('*') {
            Some(start) => rule.starts_with(start),
            None => rule == wanted,
        };
        (self.on.is_empty() || self.on.contains(&anomaly)) && self.rule.as_ref().is_none_or(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escalations_fit_by_kind_and_by_rule() {
        let rule = |on: &[Anomaly], rule: Option<&str>| Escalation {
            on: on.to_vec(),
            rule: rule.map(str::to_owned),
            wake: WakeWhen::Now,
        };
        assert!(rule(&[], None).fits(Anomaly::Silence, ""));
        assert!(rule(&[Anomaly::Failure], Some("cargo.*")).fits(Anomaly::Failure, "cargo.panic"));
        assert!(!rule(&[Anomaly::Failure], Some("cargo.*")).fits(Anomaly::Failure, "go.panic"));
        assert!(!rule(&[Anomaly::Failure], Some("cargo.*")).fits(Anomaly::Silence, "cargo.panic"));
        assert!(!rule(&[], Some("cargo")).fits(Anomaly::Failure, "cargo.panic"));
    }

    #[test]
    fn aliases_are_of_packs_and_hide_none() {
        for (alias, pack) in PACK_ALIASES {
            assert!(PACKS.contains(&pack) && !PACKS.contains(&alias), "{alias}");
        }
    }
}
