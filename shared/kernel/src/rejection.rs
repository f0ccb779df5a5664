//! Why a command is refused. Strings are for people; callers match on the variants and on [`Rejection::code`].

use crate::{
    call::CallStatus,
    command::Role,
    ids::{ApprovalId, CallId, RunId, TurnId},
    status::Status,
};

/// A command that the rules do not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// There is no such run.
    #[error("no such run")]
    NoSuchRun,
    /// A run with this id exists.
    #[error("the run exists already")]
    RunExists,
    /// The run has ended.
    #[error("the run has ended ({})", .0.as_str())]
    Ended(Status),
    /// The run is ending: no new work starts.
    #[error("the run is ending: no new work starts")]
    Ending,
    /// The run is held.
    #[error("the run is paused")]
    Paused,
    /// The run is not held.
    #[error("the run is not paused")]
    NotPaused,
    /// The run is not waiting for admission.
    #[error("the run is not queued")]
    NotQueued,
    /// Another turn is open, or none.
    #[error("turn {0} is not the open one")]
    StaleTurn(TurnId),
    /// The outcome breaks a rule; each problem is in words for the model.
    #[error("the outcome cannot be committed: {}", .0.join("; "))]
    InvalidOutcome(Vec<String>),
    /// No such call is open.
    #[error("call {0} is not open")]
    CallNotOpen(CallId),
    /// The call is not so far, or farther.
    #[error("call {0} is {1:?}")]
    CallStatus(CallId, CallStatus),
    /// What would be dispatched is not what was approved.
    #[error("call {0} differs from what was approved: ask again")]
    GrantMismatch(CallId),
    /// A call in doubt cannot be known to be undone while its effect may still be under way.
    #[error("call {0} may still be under way: ask again after {1}")]
    TooEarly(CallId, jiff::Timestamp),
    /// It can't be vouched for so.
    #[error("{0}")]
    CannotVouch(String),
    /// No effect of this call is to be undone now.
    #[error("nothing of call {0} is to be undone now")]
    NothingToCompensate(CallId),
    /// No such approval is open.
    #[error("approval {0} is not open")]
    ApprovalNotOpen(ApprovalId),
    /// It was decided before.
    #[error("approval {0} was already {1}")]
    AlreadyDecided(ApprovalId, String),
    /// It takes two people, and this one has said yes already, be it under another name.
    #[error("approval {0} takes another person: `{1}` has agreed to it already")]
    AlreadyEndorsed(ApprovalId, String),
    /// It takes two people, and the first one has agreed to other arguments.
    #[error("approval {0} takes two people who agree to the same arguments: `{1}` has agreed to others")]
    EndorsedOtherwise(ApprovalId, String),
    /// It takes two people, so what one of them allowed once and for all does not answer it.
    #[error("approval {0} takes two people each time: no standing approval answers it")]
    TakesTwoPeople(ApprovalId),
    /// The approval's time is over.
    #[error("approval {0} has expired")]
    ApprovalExpired(ApprovalId),
    /// The run is no child of that one.
    #[error("run {0} is not the parent of this one")]
    NotTheParent(RunId),
    /// It is held since its parent is.
    #[error("the run is held with its parent {0}: resume that one")]
    HeldByParent(RunId),
    /// A child may not be given more than its parent has set aside.
    #[error(
        "the run is a child, and its parent {0} has set aside less than that: raise the parent's budget and start another"
    )]
    BeyondParent(RunId),
    /// The run is a fork whose effects stop at the door.
    #[error("the run is a fork whose effects are simulated: no call that could be seen outside starts")]
    Simulated,
    /// Nothing may start there at present: an operator has thrown the kill switch.
    #[error("frozen by an operator: nothing starts until that is lifted")]
    Frozen,
    /// The service may not ask for this.
    #[error("{} may not {}", .0.as_str(), .1)]
    NotAllowed(Role, &'static str),
}

impl Rejection {
    /// A stable word.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchRun => "no_such_run",
            Self::RunExists => "run_exists",
            Self::Ended(_) => "run_ended",
            Self::Ending => "run_ending",
            Self::Paused => "run_paused",
            Self::NotPaused => "run_not_paused",
            Self::NotQueued => "run_not_queued",
            Self::StaleTurn(_) => "stale_turn",
            Self::InvalidOutcome(_) => "invalid_outcome",
            Self::CallNotOpen(_) => "call_not_open",
            Self::CallStatus(..) => "call_status",
            Self::GrantMismatch(_) => "grant_mismatch",
            Self::TooEarly(..) => "too_early",
            Self::CannotVouch(_) => "cannot_vouch",
            Self::NothingToCompensate(_) => "nothing_to_compensate",
            Self::ApprovalNotOpen(_) => "approval_not_open",
            Self::AlreadyDecided(..) => "already_decided",
            Self::AlreadyEndorsed(..) => "already_endorsed",
            Self::EndorsedOtherwise(..) => "endorsed_otherwise",
            Self::TakesTwoPeople(_) => "takes_two_people",
            Self::ApprovalExpired(_) => "approval_expired",
            Self::NotTheParent(_) => "not_the_parent",
            Self::HeldByParent(_) => "held_by_parent",
            Self::BeyondParent(_) => "beyond_parent",
            Self::Simulated => "simulated",
            Self::Frozen => "frozen",
            Self::NotAllowed(..) => "not_allowed",
        }
    }
}
