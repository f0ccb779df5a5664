//! What may be asked of a run, and by which service.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::{AskedCheck, Criterion, CriterionVerdict},
    budget::{Limits, Spent, Usage},
    call::{Approval, ArtifactRef, Attempt, Binding, CallFailure, CallRequest, CallResult, Exit, Observation, Verdict},
    child::SpawnRequest,
    context::{Standing, Summary},
    drift::{DriftKind, Remedy},
    event::{ExternalRef, Finding, Outcome, PaidFor, PlanStep, Rule, RunCreated, RunForked},
    ids::{ApprovalId, CallId, RunId, Seq, StandingId, TimerId, TurnId, WaitId},
    memory::{MemoryChange, SkillRef},
    model::ModelFailure,
    opinion::SecondOpinion,
    slice::Manifest,
    trust::{Block, Trust},
    wait::WaitExpr,
};

/// The services, as far as authority goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The public door.
    Ingress,
    /// Decides what to want.
    Planner,
    /// Touches the world.
    ToolExecutor,
    /// Concludes.
    Observer,
    /// Keeps time.
    Scheduler,
    /// Asks people.
    Approval,
    /// Keeps content.
    Artifact,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ingress,
        Self::Planner,
        Self::ToolExecutor,
        Self::Observer,
        Self::Scheduler,
        Self::Approval,
        Self::Artifact,
    ];

    /// The service's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Planner => "planner",
            Self::ToolExecutor => "tool-executor",
            Self::Observer => "observer",
            Self::Scheduler => "scheduler",
            Self::Approval => "approval",
            Self::Artifact => "artifact",
        }
    }
}

impl Role {
    /// Whether this service may put an event of this type into the log. What only one kind of authority may say is only
    /// its service's to write; the consequences that any command may have are everybody's.
    #[must_use]
    pub fn may_write(self, event_type: &str) -> bool {
        match event_type {
            "run.created" | "run.queued" | "run.paused" | "run.resumed" | "budget.changed" => {
                matches!(self, Self::Ingress | Self::Scheduler)
            }
            "run.forked" | "run.revised" | "trust.declassified" => self == Self::Ingress,
            "memory.written" | "memory.deleted" | "skill.opened" => self == Self::Planner,
            "turn.completed"
            | "turn.rejected"
            | "turn.charged"
            | "plan.updated"
            | "wait.registered"
            | "run.waiting"
            | "acceptance.requested"
            | "acceptance.judged"
            | "context.compacted"
            | "context.reset"
            | "drift.noticed" => self == Self::Planner,
            "tool.requested" => matches!(self, Self::Planner | Self::ToolExecutor),
            "artifact.created" | "artifact.updated" => {
                matches!(self, Self::Planner | Self::Artifact | Self::Ingress)
            }
            "message.added" => matches!(self, Self::Ingress | Self::Planner),
            "tool.started" | "tool.progressed" | "tool.in_doubt" | "tool.reconciled" => self == Self::ToolExecutor,
            "tool.completed" | "tool.failed" => matches!(self, Self::ToolExecutor | Self::Observer),
            "tool.denied" => matches!(self, Self::ToolExecutor | Self::Approval),
            "subagent.started" => matches!(self, Self::Planner | Self::Scheduler),
            "subagent.completed" | "subagent.failed" | "subagent.cancelled" => self == Self::Scheduler,
            "observation.recorded" => matches!(self, Self::Observer | Self::ToolExecutor),
            "approval.requested" => matches!(self, Self::ToolExecutor | Self::Planner),
            "approval.granted" | "approval.denied" => self == Self::Approval,
            "timer.fired" | "tool.due" => self == Self::Scheduler,
            "external.matched" => matches!(self, Self::Ingress | Self::Planner),
            _ => true,
        }
    }
}

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

/// For [`Command::Create`]. The run's id is the one that the command is submitted for.
#[derive(Clone, Debug, PartialEq)]
pub struct CreateRun {
    /// What will be recorded.
    pub created: RunCreated,
    /// Whether it may begin at once; if not, why.
    pub hold: Option<String>,
}

/// For [`Command::Fork`]. The run's id is the one that the command is submitted for.
#[derive(Clone, Debug, PartialEq)]
pub struct ForkRun {
    /// The run as if it were new.
    pub create: CreateRun,
    /// What it brings along.
    pub forked: RunForked,
}

/// What a turn wants, checked and ready to commit.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnOutcome {
    /// The turn that it answers.
    pub turn_id: TurnId,
    /// The seq of the state from which the slice was built.
    pub based_on: Seq,
    /// Provider and model that answered.
    pub model: String,
    /// What the model said beside its calls.
    pub text: Option<Block>,
    /// Tool calls.
    pub calls: Vec<CallRequest>,
    /// Child runs.
    pub spawns: Vec<SpawnRequest>,
    /// What to wait for.
    pub wait: Option<WaitRequest>,
    /// The new plan.
    pub plan: Option<PlanChange>,
    /// Messages to the operator.
    pub say: Vec<Block>,
    /// A question to the operator; the run waits for the answer.
    pub question: Option<Approval>,
    /// Artifacts that were stored.
    pub artifacts: Vec<ArtifactRef>,
    /// What to remember and to forget.
    pub memories: Vec<MemoryChange>,
    /// Skills that were opened.
    pub skills: Vec<SkillRef>,
    /// The end, if it is reached.
    pub end: Option<EndRequest>,
    /// What it cost.
    pub usage: Usage,
    /// The lowest trust in its slice.
    pub trust: Trust,
    /// What went into the slice.
    pub manifest: Manifest,
    /// Why the model stopped.
    pub finish_reason: Option<String>,
    /// How long the model took, in milliseconds.
    pub model_ms: u64,
    /// Calls to models that gave nothing usable.
    pub failures: Vec<ModelFailure>,
}

impl TurnOutcome {
    /// The same outcome, all of it trusted no more than `most`.
    #[must_use]
    pub(crate) fn believed(&self, most: Trust) -> Self {
        let mut outcome = self.clone();
        let most = most.join(outcome.trust);
        let blocks = outcome.text.iter_mut().chain(&mut outcome.say).map(|block| &mut block.trust);
        let calls = outcome.calls.iter_mut().map(|call| &mut call.trust);
        let artifacts = outcome.artifacts.iter_mut().map(|artifact| &mut artifact.trust);
        let question = outcome.question.iter_mut().flat_map(|asked| [&mut asked.trust, &mut asked.question.trust]);
        let end = outcome.end.iter_mut().map(|end| match end {
            EndRequest::Complete(block) | EndRequest::Fail(block) | EndRequest::CompleteIf { summary: block, .. } => {
                &mut block.trust
            }
        });
        let spawns = outcome.spawns.iter_mut().map(|spawn| &mut spawn.task.trust);
        let memories = outcome.memories.iter_mut().filter_map(|change| match change {
            MemoryChange::Write { block, .. } => Some(&mut block.trust),
            MemoryChange::Delete { .. } => None,
        });
        for trust in blocks
            .chain(calls)
            .chain(spawns)
            .chain(memories)
            .chain(artifacts)
            .chain(question)
            .chain(end)
            .chain([&mut outcome.trust])
        {
            *trust = trust.join(most);
        }
        outcome
    }
}

/// A plan that takes the place of the one before.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanChange {
    /// All steps.
    pub steps: Vec<PlanStep>,
    /// Why it changes, in the model's words.
    pub reason: Option<String>,
}

/// How a turn wants the run to end.
#[derive(Clone, Debug, PartialEq)]
pub enum EndRequest {
    /// With its objective reached.
    Complete(Block),
    /// The same, of a run whose criteria are checked: if these checks hold. What they need stands among the outcome's calls and
    /// children, and nothing else does.
    CompleteIf {
        /// What was done.
        summary: Block,
        /// One for each checked criterion.
        checks: Vec<AskedCheck>,
    },
    /// Without.
    Fail(Block),
}

/// What a turn wants to wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitRequest {
    /// The conditions.
    pub on: WaitExpr,
    /// Why the run pauses.
    pub why: String,
    /// What it takes for granted.
    pub assumes: Option<String>,
    /// What it expects.
    pub expects: Option<String>,
    /// When it gives up.
    pub deadline: Option<Timestamp>,
}

/// For [`Command::RejectTurn`].
#[derive(Clone, Debug, PartialEq)]
pub struct RejectTurn {
    /// The turn.
    pub turn_id: TurnId,
    /// `invalid_output` or `provider`.
    pub code: String,
    /// What was wrong.
    pub problems: Vec<String>,
    /// What it cost.
    pub usage: Usage,
    /// Calls to models that gave nothing usable.
    pub failures: Vec<ModelFailure>,
}

/// For [`Command::ChargeTurn`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChargeTurn {
    /// The turn, open or not.
    pub turn_id: TurnId,
    /// What was paid for.
    pub paid_for: PaidFor,
    /// Why nothing came of it, in words.
    pub reason: String,
    /// What it cost.
    pub usage: Usage,
    /// Calls to models that gave nothing usable.
    pub failures: Vec<ModelFailure>,
}

/// For [`Command::Judge`].
#[derive(Clone, Debug, PartialEq)]
pub struct Judge {
    /// The open turn.
    pub turn_id: TurnId,
    /// Of each criterion that was looked into.
    pub verdicts: Vec<CriterionVerdict>,
    /// What is left for people: the report of the run, if it ends by this.
    pub artifacts: Vec<ArtifactRef>,
}

/// For [`Command::Compact`].
#[derive(Clone, Debug, PartialEq)]
pub struct Compact {
    /// The open turn.
    pub turn_id: TurnId,
    /// `model` or `extract`.
    pub strategy: String,
    /// What made it necessary.
    pub reason: String,
    /// Tokens of what is summarised.
    pub before_tokens: u64,
    /// Tokens of the summary.
    pub after_tokens: u64,
    /// What it cost.
    pub usage: Usage,
    /// What must stay as it is.
    pub kept: Standing,
    /// The summary; none if it would not be shorter.
    pub summary: Option<Summary>,
    /// With a handoff the run begins anew.
    pub handoff: Option<ArtifactRef>,
    /// Why the run does not begin anew, although it was time for that.
    pub not_reset: Option<String>,
}

/// For [`Command::NoteDrift`].
#[derive(Clone, Debug, PartialEq)]
pub struct NoteDrift {
    /// The open turn.
    pub turn_id: TurnId,
    /// What was noticed.
    pub kind: DriftKind,
    /// What is done about it.
    pub remedy: Remedy,
    /// In the runtime's own words.
    pub detail: String,
    /// The question, if a person is asked.
    pub asked: Option<ApprovalId>,
}

/// For [`Command::AddMessage`].
#[derive(Clone, Debug, PartialEq)]
pub struct AddMessage {
    /// What the operator writes.
    pub block: Block,
}

/// For commands that need nothing but a person.
#[derive(Clone, Debug, PartialEq)]
pub struct ByOperator {
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// For [`Command::ChangeBudget`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeBudget {
    /// The limits from now on.
    pub limits: Limits,
    /// The authenticated operator.
    pub by: String,
}

/// For [`Command::Revise`]. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReviseRun {
    /// What is to be reached.
    pub objective: Option<Block>,
    /// How it is known that it was reached.
    pub acceptance: Option<Vec<Criterion>>,
    /// The only tools that it may use.
    pub tools: Option<Vec<String>>,
    /// What it may spend.
    pub limits: Option<Limits>,
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// For [`Command::Declassify`].
#[derive(Clone, Debug, PartialEq)]
pub struct Declassify {
    /// What is to be believed, word for word.
    pub text: String,
    /// The event that it came in with.
    pub from: Seq,
    /// The authenticated operator.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// For [`Command::DenyCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct DenyCall {
    /// Which call.
    pub call_id: CallId,
    /// A stable word (see `tool.denied`).
    pub code: String,
    /// In words for the model.
    pub reason: Block,
}

/// For [`Command::DecideApproval`].
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
    /// The standing approval that decides in the name of whoever gave it.
    pub standing: Option<StandingId>,
}

/// For [`Command::ExpireApproval`].
#[derive(Clone, Debug, PartialEq)]
pub struct ExpireApproval {
    /// Which approval.
    pub approval_id: ApprovalId,
}

/// For [`Command::StartCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct StartCall {
    /// Which call.
    pub call_id: CallId,
    /// The executor instance.
    pub executor: String,
    /// What is about to be dispatched; compared with what was granted.
    pub binding: Binding,
}

/// For [`Command::ProgressCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressCall {
    /// Which call.
    pub call_id: CallId,
    /// An attempt that failed.
    pub attempt: Option<Attempt>,
    /// When it goes on, if it is put off: nobody is at it until then. Of a call that may not be repeated, this says that it is
    /// known not to have happened.
    pub put_off: Option<Timestamp>,
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
        Self { call_id, attempt: None, put_off: None, reason: None, handle: None, asks: None }
    }
}

/// For [`Command::CompensateCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct CompensateCall {
    /// The call that undoes the newest effect that is not undone.
    pub request: CallRequest,
}

/// For [`Command::CompleteCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct CompleteCall {
    /// Which call.
    pub call_id: CallId,
    /// What came out.
    pub result: CallResult,
}

/// For [`Command::FailCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct FailCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub failure: CallFailure,
}

/// For [`Command::CancelCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct CancelCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub reason: String,
}

/// For [`Command::DoubtCall`].
#[derive(Clone, Debug, PartialEq)]
pub struct DoubtCall {
    /// Which call.
    pub call_id: CallId,
    /// Why.
    pub reason: String,
}

/// For [`Command::ReconcileCall`].
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

/// For [`Command::ConcludeCall`].
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

/// For [`Command::FireTimer`].
#[derive(Clone, Debug, PartialEq)]
pub struct FireTimer {
    /// Which timer.
    pub timer_id: TimerId,
}

/// For [`Command::DeliverExternal`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeliverExternal {
    /// Which event.
    pub external: ExternalRef,
    /// Which wait.
    pub wait_id: WaitId,
    /// Which condition of it.
    pub leaf: u16,
    /// What the event says.
    pub block: Block,
}

/// For [`Command::SettleChild`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChildReport {
    /// The call that the child answers.
    pub call_id: CallId,
    /// The child's run.
    pub child_id: RunId,
    /// How it ended.
    pub outcome: Outcome,
    /// By which rule.
    pub rule: Rule,
    /// What it came to, as far as it may be believed.
    pub answer: Block,
    /// What it and its own children spent.
    pub spent: Spent,
}

/// For [`Command::EndChild`].
#[derive(Clone, Debug, PartialEq)]
pub struct ByParent {
    /// The parent.
    pub parent: RunId,
    /// Why.
    pub reason: String,
}

/// For [`Command::HoldChild`].
#[derive(Clone, Debug, PartialEq)]
pub struct HoldChild {
    /// The parent.
    pub parent: RunId,
    /// Whether it is held from now on.
    pub hold: bool,
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
