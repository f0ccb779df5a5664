//! What is asked for about calls: by executors, people and observers.

use jiff::Timestamp;

use crate::{
    call::{Attempt, Binding, CallFailure, CallRequest, CallResult, Exit, Observation, Verdict},
    event::Finding,
    ids::{ApprovalId, CallId, StandingId},
    opinion::SecondOpinion,
    trust::Block,
};

/// For `Command::DenyCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenyCall {
    /// Which call.
    pub call_id: CallId,
    /// A stable word (see `tool.denied`).
    pub code: String,
    /// In words for the model.
    pub reason: Block,
}

/// For `Command::DecideApproval`.
#[derive(Clone, Debug, PartialEq)]
pub struct DecideApproval {
    /// Which approval.
    pub approval_id: ApprovalId,
    /// Yes or no.
    pub verdict: Verdict,
    /// The arguments as edited, with the digest that they have now.
    pub edited: Option<(serde_json::Value, String)>,
    /// What the operator wrote.
    pub reason: Option<String>,
    /// The authenticated operator.
    pub by: String,
    /// Names that may be the same person's: whoever made the token that they came with has had it in hand. Looked at only where
    /// two people have to agree.
    pub aliases: Vec<String>,
    /// The standing approval that decides in the name of whoever gave it.
    pub standing: Option<StandingId>,
}

/// For `Command::ExpireApproval`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpireApproval {
    /// Which approval.
    pub approval_id: ApprovalId,
}

/// For `Command::StartCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct StartCall {
    /// Which call.
    pub call_id: CallId,
    /// The executor instance.
    pub executor: String,
    /// What is about to be dispatched; compared with what was granted.
    pub binding: Binding,
}

/// For `Command::ProgressCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressCall {
    /// Which call.
    pub call_id: CallId,
    /// An attempt that failed.
    pub attempt: Option<Attempt>,
    /// When it goes on, if it is put off: nobody is at it until then. Of a call that may not be repeated, this says that it is
    /// known not to have happened.
    pub put_off: Option<Timestamp>,
    /// Starts of the call that whoever puts it off knows of: one that has started since is somebody else's, and under way.
    pub starts: u32,
    /// Why, as a stable word: `retry`, `rate_limited`, `circuit_open`.
    pub reason: Option<String>,
    /// Where it goes on outside.
    pub handle: Option<serde_json::Value>,
    /// What it asks of the model, such as input.
    pub asks: Option<Block>,
}

impl ProgressCall {
    /// Nothing yet.
    #[must_use]
    pub const fn of(call_id: CallId) -> Self {
        Self { call_id, attempt: None, put_off: None, starts: 0, reason: None, handle: None, asks: None }
    }
}

/// For `Command::CompensateCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompensateCall {
    /// The call that undoes the newest effect that is not undone.
    pub request: CallRequest,
}

/// For `Command::CompleteCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompleteCall {
    /// Which call.
    pub call_id: CallId,
    /// What came out.
    pub result: CallResult,
}

/// For `Command::FailCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct FailCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub failure: CallFailure,
}

/// For `Command::CancelCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct CancelCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub reason: String,
}

/// For `Command::DoubtCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct DoubtCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub reason: String,
}

/// For `Command::ReconcileCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconcileCall {
    /// Which call.
    pub call_id: CallId,
    /// What was found.
    pub finding: Finding,
    /// When it was looked: what may have happened later is not in the finding.
    pub as_of: Timestamp,
    /// By what.
    pub evidence: Block,
    /// The result, if it is known to have happened.
    pub result: Option<CallResult>,
}

/// For `Command::ConcludeCall`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcludeCall {
    /// Which activity.
    pub call_id: CallId,
    /// How it ended.
    pub exit: Exit,
    /// Whether that is success: with status 0, unless the agent's rules say otherwise.
    pub succeeded: bool,
    /// The last observation of it.
    pub observation: Observation,
    /// What came of asking a model about it, if one was asked.
    pub asked: Option<SecondOpinion>,
    /// How long it ran, in milliseconds.
    pub duration_ms: u64,
}
