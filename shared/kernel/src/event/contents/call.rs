//! What becomes of calls and of child runs.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Rule;
use crate::{
    budget::{Limits, Spent},
    call::{Attempt, Binding, CallFailure, CallRequest, CallResult, Exit, Observation},
    child::SpawnRequest,
    ids::{CallId, RunId, TurnId},
    opinion::SecondOpinion,
    trust::Block,
};

content! {
    /// Content of `tool.requested`.
    ToolRequested {
        /// The call.
        call: CallRequest,
        /// The turn that asks.
        turn_id: TurnId,
    }
    /// Content of `tool.denied`.
    ToolDenied {
        /// Which call.
        call_id: CallId,
        /// A stable word: `policy`, `operator`, `expired`, `unknown_tool`, `invalid_arguments`, `schema_changed`.
        code: String,
        /// In words for the model.
        reason: Block,
    }
    /// Content of `tool.started`.
    ToolStarted {
        /// Which call.
        call_id: CallId,
        /// From 1.
        attempt: u32,
        /// The executor instance.
        executor: String,
        /// The key that goes out with the effect.
        idempotency_key: String,
        /// What was dispatched.
        binding: Binding,
    }
    /// Content of `tool.progressed`.
    ToolProgressed {
        /// Which call.
        call_id: CallId,
        /// An attempt that failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Attempt>,
        /// Until when it is put off. Nothing of it is under way then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        put_off: Option<Timestamp>,
        /// Why: `retry`, `rate_limited`, `circuit_open`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Where it goes on outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        handle: Option<serde_json::Value>,
        /// What it asks of the model, such as input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asks: Option<Block>,
    }
    /// Content of `tool.due`.
    ToolDue {
        /// Which call.
        call_id: CallId,
    }
    /// Content of `tool.completed`.
    ToolCompleted {
        /// Which call.
        call_id: CallId,
        /// What came out.
        result: CallResult,
        /// How its process ended, for an activity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Exit>,
    }
    /// Content of `tool.failed`.
    ToolFailed {
        /// Which call.
        call_id: CallId,
        /// Why.
        failure: CallFailure,
        /// How its process ended, for an activity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit: Option<Exit>,
    }
    /// Content of `tool.cancelled`.
    ToolCancelled {
        /// Which call.
        call_id: CallId,
        /// Why.
        reason: String,
        /// Whether it had started.
        started: bool,
    }
    /// Content of `tool.in_doubt`.
    ToolInDoubt {
        /// Which call.
        call_id: CallId,
        /// Why.
        reason: String,
    }
    /// Content of `tool.reconciled`.
    ToolReconciled {
        /// Which call.
        call_id: CallId,
        /// What was found.
        finding: Finding,
        /// When it was looked; if that is not said, when this was recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        as_of: Option<Timestamp>,
        /// By what.
        evidence: Block,
    }
    /// Content of `subagent.started`.
    SubagentStarted {
        /// What was asked for.
        spawn: SpawnRequest,
        /// The turn that asked.
        turn_id: TurnId,
        /// The child's run.
        child_id: RunId,
        /// From 1; more if children before it failed.
        attempt: u32,
        /// What it may spend, set aside from what its parent has left.
        limits: Limits,
    }
    /// Content of `subagent.completed`.
    SubagentCompleted {
        /// Which call.
        call_id: CallId,
        /// The child's run.
        child_id: RunId,
        /// Its answer.
        result: Block,
        /// What it and its own children spent.
        spent: Spent,
        /// The rule that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<Rule>,
    }
    /// Content of `subagent.failed`.
    SubagentFailed {
        /// Which call.
        call_id: CallId,
        /// The child's run.
        child_id: RunId,
        /// Why.
        reason: Block,
        /// The rule that ended it.
        rule: Rule,
        /// What it and its own children spent.
        spent: Spent,
        /// Whether another child takes over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    }
    /// Content of `subagent.cancelled`.
    SubagentCancelled {
        /// Which call.
        call_id: CallId,
        /// The child's run.
        child_id: RunId,
        /// Why.
        reason: Block,
        /// What it and its own children spent.
        spent: Spent,
    }
    /// Content of `observation.recorded`.
    ObservationRecorded {
        /// What was concluded.
        observation: Observation,
        /// What came of asking a model about it, if one was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<SecondOpinion>,
    }
}

/// What came of looking into a call in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// It has happened.
    Done,
    /// It has not happened: it may be started again with the same idempotency key.
    NotDone,
    /// Nobody can say: it is never repeated blindly.
    Unknown,
}
