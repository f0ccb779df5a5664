//! Whether a run goes in circles: what is remembered for that, and what is done about it, from cheap to dear.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{ApprovalId, CallId, Seq};

/// Calls that are remembered.
pub const MAX_RECENT: usize = 24;

/// A way of going in circles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftKind {
    /// The same call with the same arguments, and the same came of it.
    RepeatedCalls,
    /// One call after the other fails.
    RepeatedFailures,
    /// Calls end well and tell nothing new.
    NoNewInformation,
    /// The plan grows and nothing of it gets done.
    GrowingScope,
    /// It says again that it is done, and did nothing about what did not hold.
    ForgottenCriteria,
}

/// What is done about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// The model is told.
    Remind,
    /// What went before is summarised, and the model is told to plan anew.
    Replan,
    /// The repetition is refused.
    Block,
    /// It begins anew, with a handoff.
    Reset,
    /// A person is asked.
    Ask,
}

impl DriftKind {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RepeatedCalls => "repeated_calls",
            Self::RepeatedFailures => "repeated_failures",
            Self::NoNewInformation => "no_new_information",
            Self::GrowingScope => "growing_scope",
            Self::ForgottenCriteria => "forgotten_criteria",
        }
    }
}

impl Remedy {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Remind => "remind",
            Self::Replan => "replan",
            Self::Block => "block",
            Self::Reset => "reset",
            Self::Ask => "ask",
        }
    }

    /// What is done when this did not help.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::Remind => Self::Replan,
            Self::Replan => Self::Block,
            Self::Block => Self::Reset,
            Self::Reset | Self::Ask => Self::Ask,
        }
    }
}

/// The last remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// What was noticed.
    pub kind: DriftKind,
    /// What was done.
    pub remedy: Remedy,
    /// By which event.
    pub at: Seq,
    /// In which turn, by number.
    pub turn: u32,
    /// The question, if a person was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<ApprovalId>,
}

/// A call that was made not long ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentCall {
    /// Which call.
    pub call_id: CallId,
    /// The event that asked for it.
    pub seq: Seq,
    /// Which tool.
    pub tool: String,
    /// Stands for the tool and its arguments.
    pub asked: String,
    /// Stands for what came of it; none while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came: Option<String>,
    /// Whether it ended otherwise than well.
    #[serde(default)]
    pub failed: bool,
}

/// Stands for a text: the same for the same text.
#[must_use]
pub fn fingerprint(parts: &[&str]) -> String {
    let name = parts.join("\u{1f}");
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).simple().to_string()[..16].to_owned()
}

/// Stands for a call: the same for the same tool and arguments.
#[must_use]
pub fn fingerprint_of_call(tool: &str, arguments: &serde_json::Value) -> String {
    fingerprint(&[tool, &arguments.to_string()])
}

pub(crate) fn remember(recent: &mut VecDeque<RecentCall>, call: RecentCall) {
    if recent.len() == MAX_RECENT {
        recent.pop_front();
    }
    recent.push_back(call);
}
