//! What each type of event says.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::{AskedCheck, Criterion, CriterionVerdict},
    agent::ParallelWake,
    budget::{LimitName, Limits, Spent, Usage},
    call::{Approval, ArtifactRef, Attempt, Binding, CallFailure, CallRequest, CallResult, Exit, Observation},
    child::{ParentRef, SpawnRequest},
    context::{Standing, Summary},
    drift::{DriftKind, Remedy},
    ids::{ApprovalId, CallId, ConversationId, MemoryId, RunId, Seq, StandingId, TenantId, TimerId, TurnId, WaitId},
    memory::{MemoryPlace, SkillRef},
    model::ModelFailure,
    opinion::SecondOpinion,
    slice::Manifest,
    trust::{Block, Trust},
    units::Duration,
    wait::{Wait, WakeKind},
};

/// Defines the content of an event type.
macro_rules! content {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident : $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
        )*
    };
}

content! {
    /// Content of `run.created`.
    RunCreated {
        /// Whose run.
        tenant: TenantId,
        /// Name of the agent.
        agent: String,
        /// Digest of the agent's definition, kept for the whole run.
        agent_digest: String,
        /// What is to be reached.
        objective: Block,
        /// What the run was started with.
        input: Block,
        /// How it is known that it was reached.
        #[serde(default)]
        acceptance: Vec<Criterion>,
        /// What it may spend.
        #[serde(default)]
        limits: Limits,
        /// The conversation it belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conversation_id: Option<ConversationId>,
        /// The user's own labels.
        #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
        metadata: serde_json::Map<String, serde_json::Value>,
        /// Which ends of parallel calls wake.
        #[serde(default)]
        parallel_wake: ParallelWake,
        /// How long wakes are gathered before a turn begins.
        #[serde(default)]
        debounce: Duration,
        /// Whether spans are exported; decided once.
        #[serde(default)]
        sampled: bool,
        /// The outside event that started it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trigger: Option<ExternalRef>,
        /// The run that started it as its child.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Box<ParentRef>>,
        /// The roles of whoever started it, for tools that are only for some. None: nobody did, such as an event or a schedule.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        roles: Vec<String>,
        /// The only tools that it may use, whatever its agent's file says. No list is no bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tools: Option<Vec<String>>,
    }
    /// Content of `run.queued`.
    RunQueued {
        /// Why.
        reason: String,
    }
    /// Content of `run.runnable`.
    RunRunnable {
        /// The turn that is open now.
        turn_id: TurnId,
        /// Its number within the run, from 1.
        number: u32,
        /// What woke it; none for the first turn and for repeats.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wake: Option<WakeKind>,
        /// Not to be taken before (debounce, backoff).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        not_before: Option<Timestamp>,
    }
    /// Content of `run.waiting`.
    RunWaiting {
        /// On what kinds of wake.
        kinds: Vec<WakeKind>,
        /// Until when at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        until: Option<Timestamp>,
    }
    /// Content of `run.paused`.
    RunPaused {
        /// Which operator, or `run:<id>` for the parent.
        by: String,
        /// Whether it follows its parent in that.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_parent: bool,
    }
    /// Content of `run.resumed`.
    RunResumed {
        /// Which operator, or `run:<id>` for the parent.
        by: String,
        /// Whether it follows its parent in that.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_parent: bool,
    }
    /// Content of `run.cancel_requested`.
    RunCancelRequested {
        /// How it will end.
        ending: Ending,
        /// Calls that have to stop first.
        open_calls: Vec<CallId>,
        /// Child runs that have to end first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open_children: Vec<RunId>,
    }
    /// How and why a run ends.
    Ending {
        /// Completed, failed or cancelled.
        outcome: Outcome,
        /// The termination rule, by name.
        rule: Rule,
        /// In words: the final answer, the reason, or who and why.
        text: Block,
    }
    /// Content of `run.completed`.
    RunCompleted {
        /// How it ended.
        ending: Ending,
        /// The run that started it as its child, and is to be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
    }
    /// Content of `run.failed`.
    RunFailed {
        /// How it ended.
        ending: Ending,
        /// The run that started it as its child, and is to be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
    }
    /// Content of `run.cancelled`.
    RunCancelled {
        /// How it ended.
        ending: Ending,
        /// The run that started it as its child, and is to be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<RunId>,
    }
    /// Content of `run.revised`: what is given holds from now on, the rest stays as it was.
    RunRevised {
        /// Its number among the revisions of the run, from 1.
        revision: u32,
        /// What is to be reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        objective: Option<Block>,
        /// How it is known that it was reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        acceptance: Option<Vec<Criterion>>,
        /// The only tools that it may use, of those that its agent's file names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tools: Option<Vec<String>>,
        /// Which operator.
        by: String,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Content of `turn.completed`.
    TurnCompleted {
        /// Which turn.
        turn_id: TurnId,
        /// Its number.
        number: u32,
        /// The seq of the state from which its slice was built.
        based_on: Seq,
        /// Provider and model that answered.
        model: String,
        /// What the model said beside its calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<Block>,
        /// What it cost.
        usage: Usage,
        /// The lowest trust in its slice.
        trust: Trust,
        /// What went into the slice and what was cut.
        manifest: Manifest,
        /// Why the model stopped, as the provider says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish_reason: Option<String>,
        /// How long the model took, in milliseconds.
        #[serde(default)]
        model_ms: u64,
        /// Calls that were dropped since an operator wrote in the meantime.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dropped_calls: Vec<String>,
        /// Calls to models that gave nothing usable, and what was done about them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failures: Vec<ModelFailure>,
    }
    /// Content of `turn.rejected`.
    TurnRejected {
        /// Which turn.
        turn_id: TurnId,
        /// Why: a stable word such as `invalid_output`, `superseded`, `provider`.
        code: String,
        /// What was wrong, in words for the model.
        problems: Vec<String>,
        /// What it cost all the same.
        usage: Usage,
        /// Calls to models that gave nothing usable, and what was done about them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failures: Vec<ModelFailure>,
    }
    /// Content of `turn.charged`.
    TurnCharged {
        /// Which turn: it may be open still, or over.
        turn_id: TurnId,
        /// What was paid for.
        paid_for: PaidFor,
        /// Why nothing came of it, in words.
        reason: String,
        /// What it cost.
        usage: Usage,
        /// Calls to models that gave nothing usable, and what was done about them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        failures: Vec<ModelFailure>,
    }
    /// Content of `message.added`.
    MessageAdded {
        /// Who speaks.
        role: Speaker,
        /// What is said.
        block: Block,
    }
    /// Content of `plan.updated`.
    PlanUpdated {
        /// All steps.
        steps: Vec<PlanStep>,
        /// From 1.
        revision: u32,
        /// Why it changed, in the model's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Content of `acceptance.requested`.
    AcceptanceRequested {
        /// The turn that says so.
        turn_id: TurnId,
        /// What it says was done.
        summary: Block,
        /// What looks into it.
        checks: Vec<AskedCheck>,
    }
    /// Content of `acceptance.judged`.
    AcceptanceJudged {
        /// Of each criterion that was looked into.
        verdicts: Vec<CriterionVerdict>,
        /// Whether the run is done: all of them hold, and no operator wrote in the meantime.
        accepted: bool,
        /// How often it was looked into, from 1.
        number: u32,
    }
    /// Content of `context.compacted`.
    ContextCompacted {
        /// Before which turn.
        turn_id: TurnId,
        /// `model`, or `extract` without one.
        strategy: String,
        /// What made it necessary.
        reason: String,
        /// Tokens of what is summarised.
        before_tokens: u64,
        /// Tokens of the summary.
        after_tokens: u64,
        /// What it cost.
        usage: Usage,
        /// What stayed as it was.
        kept: Standing,
        /// The summary; none if it would not have been shorter, so that all stays as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<Summary>,
        /// Why the run does not begin anew, although it was time for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_reset: Option<String>,
    }
    /// Content of `context.reset`.
    ContextReset {
        /// Before which turn.
        turn_id: TurnId,
        /// `model`, or `extract` without one.
        strategy: String,
        /// What made it necessary.
        reason: String,
        /// Tokens of what is left behind.
        before_tokens: u64,
        /// Tokens of the summary.
        after_tokens: u64,
        /// What it cost.
        usage: Usage,
        /// What stayed as it was.
        kept: Standing,
        /// What the run goes on with.
        summary: Summary,
        /// The same as a document.
        handoff: ArtifactRef,
    }
    /// Content of `drift.noticed`.
    DriftNoticed {
        /// In which turn.
        turn_id: TurnId,
        /// What was noticed.
        kind: DriftKind,
        /// What is done about it.
        remedy: Remedy,
        /// In the runtime's own words.
        detail: String,
        /// The question, if a person is asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<ApprovalId>,
    }
    /// A step of the plan.
    PlanStep {
        /// What is to be done.
        title: String,
        /// How far it is.
        status: StepStatus,
    }
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
    /// Content of `wait.registered`.
    WaitRegistered {
        /// The wait.
        wait: Wait,
    }
    /// Content of `wait.satisfied`.
    WaitSatisfied {
        /// Which wait.
        wait_id: WaitId,
        /// The seq of the fact that did it.
        by: Seq,
        /// What kind of fact.
        kind: WakeKind,
    }
    /// Content of `wait.expired`.
    WaitExpired {
        /// Which wait.
        wait_id: WaitId,
    }
    /// Content of `wait.cancelled`.
    WaitCancelled {
        /// Which wait.
        wait_id: WaitId,
        /// Why.
        reason: String,
    }
    /// Content of `timer.set`.
    TimerSet {
        /// Which timer.
        timer_id: TimerId,
        /// When it is due.
        #[schemars(with = "String")]
        due: Timestamp,
        /// What for.
        purpose: TimerPurpose,
    }
    /// Content of `timer.fired`.
    TimerFired {
        /// Which timer.
        timer_id: TimerId,
        /// When it was due.
        #[schemars(with = "String")]
        due: Timestamp,
    }
    /// Content of `timer.cancelled`.
    TimerCancelled {
        /// Which timers.
        timer_ids: Vec<TimerId>,
    }
    /// Content of `approval.requested`.
    ApprovalRequested {
        /// The question.
        approval: Approval,
    }
    /// Content of `approval.granted`.
    ApprovalGranted {
        /// Which approval.
        approval_id: ApprovalId,
        /// The authenticated operator.
        by: String,
        /// The arguments as the operator edited them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<serde_json::Value>,
        /// What the yes is bound to.
        binding: Binding,
        /// What the operator wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The standing approval that decided in the operator's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        standing: Option<StandingId>,
    }
    /// Content of `approval.denied`.
    ApprovalDenied {
        /// Which approval.
        approval_id: ApprovalId,
        /// The authenticated operator.
        by: String,
        /// What the operator wrote; the model sees it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    }
    /// Content of `approval.expired`.
    ApprovalExpired {
        /// Which approval.
        approval_id: ApprovalId,
        /// `no_answer`, or why it is moot.
        reason: String,
    }
    /// Content of `memory.written`.
    MemoryWritten {
        /// Which memory: always the same for its place.
        memory_id: MemoryId,
        /// Where it is kept.
        place: MemoryPlace,
        /// What is remembered, with its trust.
        block: Block,
        /// When it is forgotten by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        expires_at: Option<Timestamp>,
        /// The turn that wrote it.
        turn_id: TurnId,
    }
    /// Content of `memory.deleted`.
    MemoryDeleted {
        /// Which memory.
        memory_id: MemoryId,
        /// Where it was kept.
        place: MemoryPlace,
        /// The turn that wants it gone.
        turn_id: TurnId,
    }
    /// Content of `skill.opened`.
    SkillOpened {
        /// The skill as it was then.
        skill: SkillRef,
        /// The turn that opened it.
        turn_id: TurnId,
    }
    /// Content of `artifact.created`.
    ArtifactCreated {
        /// The artifact.
        artifact: ArtifactRef,
    }
    /// Content of `artifact.updated`.
    ArtifactUpdated {
        /// The artifact at its new version.
        artifact: ArtifactRef,
    }
    /// Content of `budget.exceeded`.
    BudgetExceeded {
        /// Which limit.
        limit: LimitName,
        /// The question whether the run may have as much again; none if it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ask: Option<Box<Approval>>,
    }
    /// Content of `budget.changed`.
    BudgetChanged {
        /// The limits from now on.
        limits: Limits,
        /// Which operator.
        by: String,
    }
    /// Content of `trust.declassified`. The run has still seen what it has seen: only arguments that hold this text are judged
    /// otherwise from now on.
    TrustDeclassified {
        /// What is believed, word for word, wherever it stands.
        text: String,
        /// The event that it came in with.
        from: Seq,
        /// How far it is believed.
        trust: Trust,
        /// Which operator.
        by: String,
        /// Why.
        reason: String,
    }
    /// Content of `external.matched`.
    ExternalMatched {
        /// Which outside event.
        external: ExternalRef,
        /// Which wait.
        wait_id: WaitId,
        /// Which condition of it.
        leaf: u16,
        /// What the event says: always data.
        block: Block,
    }
    /// An event from outside, by its coordinates.
    ExternalRef {
        /// Its place in the table of outside events.
        position: i64,
        /// Source token, such as `github`.
        source: String,
        /// CloudEvent id.
        id: String,
        /// CloudEvent type.
        event_type: String,
        /// `<source>:<subject>`.
        resource_key: String,
        /// W3C trace context that came with it, for a span link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceparent: Option<String>,
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Objective reached.
    Completed,
    /// Not reached.
    Failed,
    /// Ended by an operator.
    Cancelled,
}

/// The rule that ends a run, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The model answered with text alone.
    FinalAnswer,
    /// The model called `complete`.
    GoalMet,
    /// The model called `complete`, and all that is checked of its criteria holds.
    GoalVerified,
    /// The model said that it was done again and again, and it was not.
    NotAccepted,
    /// It went in circles, and nobody wanted it to go on.
    NoProgress,
    /// A model or its provider would not answer this, or a check of the operator's own forbade it.
    Safety,
    /// The model called `fail`.
    GaveUp,
    /// [`LimitName::Turns`].
    MaxTurns,
    /// [`LimitName::Tokens`].
    MaxTokens,
    /// [`LimitName::CostUsd`].
    MaxCost,
    /// [`LimitName::Wall`].
    MaxWall,
    /// [`LimitName::ToolCalls`].
    MaxToolCalls,
    /// By an operator.
    Cancelled,
    /// Its parent is ending.
    ParentEnded,
    /// A child failed, and the run does not go on without it.
    ChildFailed,
    /// Output refused again and again, or a provider that will never answer.
    Unrecoverable,
}

impl From<LimitName> for Rule {
    fn from(limit: LimitName) -> Self {
        match limit {
            LimitName::Turns => Self::MaxTurns,
            LimitName::Tokens => Self::MaxTokens,
            LimitName::CostUsd => Self::MaxCost,
            LimitName::Wall => Self::MaxWall,
            LimitName::ToolCalls => Self::MaxToolCalls,
        }
    }
}

/// Who speaks in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// A person.
    Operator,
    /// The agent, to the person.
    Agent,
}

/// What a model was paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaidFor {
    /// What to do in a turn.
    Answer,
    /// A summary of what went before.
    Summary,
}

/// How far a step of the plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// Not begun.
    Pending,
    /// Begun.
    InProgress,
    /// Done.
    Done,
    /// Given up.
    Dropped,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimerPurpose {
    /// A condition of a wait.
    Wait,
    /// A wait's deadline.
    Deadline,
    /// The run's wall time is used up.
    Wall,
    /// A call that was put off may go on.
    Retry,
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
