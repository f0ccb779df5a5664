//! What may be asked of a run, and by which service.

mod call;
mod role;
mod run;
mod turn;

pub use call::*;
pub use role::Role;
pub use run::*;
pub use turn::*;

use crate::call::{Approval, ArtifactRef, Observation};

/// A request to change a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start a run.
    Create(Box<CreateRun>),
    /// Start a run that goes on from where another one stood.
    Fork(Box<ForkRun>),
    /// Let a queued run begin.
    Admit,
    /// Commit a turn's outcome, whole or not at all.
    CommitTurn(Box<TurnOutcome>),
    /// Record that a turn gave nothing that could be committed.
    RejectTurn(RejectTurn),
    /// Record what was paid for a turn that nothing came of, without ending it.
    ChargeTurn(ChargeTurn),
    /// What looked into the criteria has ended: what came of it.
    Judge(Box<Judge>),
    /// Older history becomes a summary.
    Compact(Box<Compact>),
    /// The run goes in circles: what is done about it.
    NoteDrift(NoteDrift),
    /// An operator writes into the run.
    AddMessage(AddMessage),
    /// Hold the run.
    Pause(ByOperator),
    /// Let it go on.
    Resume(ByOperator),
    /// End it.
    Cancel(ByOperator),
    /// Change what it may spend.
    ChangeBudget(ChangeBudget),
    /// Change what it is to reach, or with what.
    Revise(Box<ReviseRun>),
    /// Somebody gives the run something to use: it was stored.
    KeepArtifact(Box<ArtifactRef>),
    /// Vouch for a text from outside.
    Declassify(Declassify),
    /// An executor refuses a call before any effect.
    DenyCall(DenyCall),
    /// An executor asks a person about a call.
    AskApproval(Box<Approval>),
    /// A person decides.
    DecideApproval(DecideApproval),
    /// No person decided in time.
    ExpireApproval(ExpireApproval),
    /// An executor is about to cause the effect.
    StartCall(StartCall),
    /// Something is known of a call that is not its end.
    ProgressCall(Box<ProgressCall>),
    /// The effect of an ended call is to be undone, since the run ends without success.
    CompensateCall(Box<CompensateCall>),
    /// The call ended well.
    CompleteCall(CompleteCall),
    /// The call ended badly.
    FailCall(FailCall),
    /// The call was stopped.
    CancelCall(CancelCall),
    /// The executor of a started call is gone.
    DoubtCall(DoubtCall),
    /// The doubt was looked into.
    ReconcileCall(ReconcileCall),
    /// An observer concluded something.
    Observe(Observation),
    /// An observer saw an activity end.
    ConcludeCall(Box<ConcludeCall>),
    /// A timer is due.
    FireTimer(FireTimer),
    /// An outside event matches a wait.
    DeliverExternal(Box<DeliverExternal>),
    /// A child run has ended: its parent takes note.
    SettleChild(Box<ChildReport>),
    /// A child run ends with its parent.
    EndChild(ByParent),
    /// A child run is held, or let go, with its parent.
    HoldChild(HoldChild),
}

impl Command {
    /// Whether `role` may ask for it. Postgres and NATS permissions say the same once more.
    #[must_use]
    pub const fn allowed_to(&self, role: Role) -> bool {
        match self {
            Self::Create(_) => matches!(role, Role::Ingress | Role::Scheduler),
            Self::Admit => matches!(role, Role::Scheduler | Role::Ingress),
            Self::CommitTurn(_)
            | Self::RejectTurn(_)
            | Self::ChargeTurn(_)
            | Self::Judge(_)
            | Self::Compact(_)
            | Self::NoteDrift(_) => {
                matches!(role, Role::Planner)
            }
            Self::Fork(_)
            | Self::AddMessage(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::ChangeBudget(_)
            | Self::Revise(_)
            | Self::KeepArtifact(_)
            | Self::Declassify(_) => {
                matches!(role, Role::Ingress)
            }
            // A schedule may end its last run to begin the next.
            Self::Cancel(_) => matches!(role, Role::Ingress | Role::Scheduler),
            Self::DecideApproval(_) | Self::ExpireApproval(_) => matches!(role, Role::Approval),
            Self::DenyCall(_)
            | Self::AskApproval(_)
            | Self::StartCall(_)
            | Self::ProgressCall(_)
            | Self::CompensateCall(_)
            | Self::CompleteCall(_)
            | Self::FailCall(_)
            | Self::CancelCall(_)
            | Self::DoubtCall(_)
            | Self::ReconcileCall(_) => matches!(role, Role::ToolExecutor),
            // Who looks for itself at what is waited for, and finds it there, says so.
            Self::Observe(_) => matches!(role, Role::Observer | Role::ToolExecutor),
            Self::ConcludeCall(_) => matches!(role, Role::Observer),
            Self::FireTimer(_) | Self::SettleChild(_) | Self::EndChild(_) | Self::HoldChild(_) => {
                matches!(role, Role::Scheduler)
            }
            Self::DeliverExternal(_) => matches!(role, Role::Ingress),
        }
    }

    /// A name for logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Fork(_) => "fork",
            Self::Admit => "admit",
            Self::CommitTurn(_) => "commit_turn",
            Self::RejectTurn(_) => "reject_turn",
            Self::ChargeTurn(_) => "charge_turn",
            Self::Judge(_) => "judge",
            Self::Compact(_) => "compact",
            Self::NoteDrift(_) => "note_drift",
            Self::AddMessage(_) => "add_message",
            Self::Pause(_) => "pause",
            Self::Resume(_) => "resume",
            Self::Cancel(_) => "cancel",
            Self::ChangeBudget(_) => "change_budget",
            Self::Revise(_) => "revise",
            Self::KeepArtifact(_) => "keep_artifact",
            Self::Declassify(_) => "declassify",
            Self::DenyCall(_) => "deny_call",
            Self::AskApproval(_) => "ask_approval",
            Self::DecideApproval(_) => "decide_approval",
            Self::ExpireApproval(_) => "expire_approval",
            Self::StartCall(_) => "start_call",
            Self::ProgressCall(_) => "progress_call",
            Self::CompensateCall(_) => "compensate_call",
            Self::CompleteCall(_) => "complete_call",
            Self::FailCall(_) => "fail_call",
            Self::CancelCall(_) => "cancel_call",
            Self::DoubtCall(_) => "doubt_call",
            Self::ReconcileCall(_) => "reconcile_call",
            Self::Observe(_) => "observe",
            Self::ConcludeCall(_) => "conclude_call",
            Self::FireTimer(_) => "fire_timer",
            Self::DeliverExternal(_) => "deliver_external",
            Self::SettleChild(_) => "settle_child",
            Self::EndChild(_) => "end_child",
            Self::HoldChild(_) => "hold_child",
        }
    }
}
