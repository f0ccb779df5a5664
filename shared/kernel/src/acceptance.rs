//! When a run is done, and who says so: somebody else than the model that did the work.
//!
//! A criterion in words is as good as the model's own word. One with a [`Check`] is looked into when the model says that it is
//! done: `complete` becomes a request, the checks are calls and child runs like any other, and only when all of them hold does
//! the run end, by the rule `goal_verified`. Otherwise the model is told what did not hold, [`MAX_REFUSALS`] times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    ids::{CallId, Seq},
    state::RunState,
    trust::Block,
};

/// How often a model may say that it is done while it is not, before the run ends as not accepted.
pub const MAX_REFUSALS: u32 = 3;
/// Most criteria of a run.
pub const MAX_CRITERIA: usize = 32;
/// Most bytes of what shows that a criterion holds, or does not.
pub const EVIDENCE_BYTES: usize = 600;
/// The tool that a command is checked with.
pub const COMMAND_TOOL: &str = "shell.run";

/// A condition for being done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Criterion {
    /// In words: the model's own word, unless the agent's file names an `evaluator`.
    Words(String),
    /// With what checks it.
    Checked(CheckedCriterion),
}

/// A condition that is looked into by something else than the model that did the work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckedCriterion {
    /// The condition in words.
    pub text: String,
    /// What looks into it.
    pub check: Check,
}

/// What looks into a criterion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A command that ends with status 0, run by `shell.run`.
    Command(String),
    /// A tool that reads back how things are: its call ends well, and its result is as expected.
    Tool(ToolCheck),
    /// An artifact of the run that is there, and is as expected.
    Artifact(ArtifactCheck),
    /// An agent that looks for itself, with its own tools: it completes if the criterion holds, and fails if not.
    Evaluator(String),
}

/// A tool that reads back how things are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCheck {
    /// Its name; the agent must have it.
    pub tool: String,
    /// What it is called with.
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// JSON Schema of the result; none: it is enough that the call ends well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Value>,
}

/// An artifact that the run must have made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactCheck {
    /// Its name; the newest version counts.
    pub name: String,
    /// JSON Schema of its content; none: it is enough that it is there and not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<Value>,
}

/// A check as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AskedCheck {
    /// Which criterion, from 0.
    pub criterion: u16,
    /// The call, or the child's call, that looks into it; an artifact needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

/// What came of looking into a criterion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CriterionVerdict {
    /// Which criterion, from 0.
    pub criterion: u16,
    /// Whether it holds.
    pub passed: bool,
    /// How it was looked into, in the runtime's own words.
    pub how: String,
    /// What shows it.
    pub evidence: Block,
    /// The call that looked into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

/// A run that says that it is done, while that is looked into.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// What the model says was done.
    pub summary: Block,
    /// The event that asked.
    pub asked: Seq,
    /// What looks into it.
    pub checks: Vec<OpenCheck>,
}

/// A check that is under way, or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCheck {
    /// Which criterion, and by what.
    #[serde(flatten)]
    pub asked: AskedCheck,
    /// Whether its call ended well; none while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_well: Option<bool>,
}

impl Criterion {
    /// The condition in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Words(text) => text,
            Self::Checked(checked) => &checked.text,
        }
    }

    /// What looks into it, if anything does.
    #[must_use]
    pub const fn check(&self) -> Option<&Check> {
        match self {
            Self::Words(_) => None,
            Self::Checked(checked) => Some(&checked.check),
        }
    }
}

impl Check {
    /// The tool that is called, and with what; none if it is no tool that looks.
    #[must_use]
    pub fn call(&self) -> Option<(&str, Value)> {
        match self {
            Self::Command(command) => Some((COMMAND_TOOL, json!({ "command": command }))),
            Self::Tool(check) => Some((&check.tool, Value::Object(check.arguments.clone()))),
            Self::Artifact(_) | Self::Evaluator(_) => None,
        }
    }

    /// How it is looked into, in a few words.
    #[must_use]
    pub fn how(&self) -> String {
        match self {
            Self::Command(command) => format!("exit status of `{}`", crate::excerpt(command, 160)),
            Self::Tool(check) => format!("read back with `{}`", check.tool),
            Self::Artifact(check) => format!("artifact `{}`", check.name),
            Self::Evaluator(agent) => format!("evaluator agent `{agent}`"),
        }
    }
}

impl Verification {
    /// Whether all that looks into it has come to its end.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| check.asked.call_id.is_none() || check.ended_well.is_some())
    }

    pub(crate) fn end_call(&mut self, call: CallId, well: bool) {
        for check in self.checks.iter_mut().filter(|check| check.asked.call_id == Some(call)) {
            check.ended_well = Some(well);
        }
    }
}

impl RunState {
    /// The criteria that something else than the model looks into, by number.
    pub fn checked_criteria(&self) -> impl Iterator<Item = (u16, &CheckedCriterion)> {
        (0..).zip(&self.acceptance).filter_map(|(number, criterion)| match criterion {
            Criterion::Checked(checked) => Some((number, checked)),
            Criterion::Words(_) => None,
        })
    }

    /// Whether what looks into the criteria has ended, and it is to be said what came of it.
    #[must_use]
    pub fn is_to_be_judged(&self) -> bool {
        self.verification.as_ref().is_some_and(Verification::is_ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_are_read_as_people_write_them() {
        let criteria: Vec<Criterion> = serde_json::from_value(json!([
            "it is reviewed",
            {"text": "tests pass", "check": {"command": "make test"}},
            {"text": "merged", "check": {"tool": {"tool": "github.get_pull", "arguments": {"number": 7}, "expect": {"type": "object"}}}},
            {"text": "reported", "check": {"artifact": {"name": "report.json"}}},
            {"text": "sound", "check": {"evaluator": "reviewer"}},
        ]))
        .unwrap();
        assert_eq!(criteria[0].check(), None);
        assert_eq!(criteria[1].check().unwrap().call(), Some(("shell.run", json!({"command": "make test"}))));
        assert_eq!(criteria[2].check().unwrap().call(), Some(("github.get_pull", json!({"number": 7}))));
        assert!(criteria[3].check().unwrap().call().is_none() && criteria[4].check().unwrap().call().is_none());
        assert_eq!(criteria[4].text(), "sound");
        assert!(serde_json::from_value::<Criterion>(json!({"text": "x", "check": {"command": "x"}, "y": 1})).is_err());
    }
}
