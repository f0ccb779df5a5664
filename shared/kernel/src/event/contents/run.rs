//! How a run begins, is held and ends, and what it may reach, spend and believe.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ExternalRef;
use crate::{
    acceptance::Criterion,
    agent::ParallelWake,
    budget::{LimitName, Limits},
    call::Approval,
    child::ParentRef,
    ids::{CallId, ConversationId, RunId, Seq, TenantId, TurnId},
    trust::{Block, Trust},
    units::Duration,
    wait::WakeKind,
};

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
}

impl RunCreated {
    /// A run of an agent, and the rest as an event says it that leaves it out.
    #[must_use]
    pub fn new(
        tenant: TenantId,
        agent: impl Into<String>,
        agent_digest: impl Into<String>,
        objective: Block,
        input: Block,
    ) -> Self {
        Self {
            tenant,
            agent: agent.into(),
            agent_digest: agent_digest.into(),
            objective,
            input,
            acceptance: Vec::new(),
            limits: Limits::default(),
            conversation_id: None,
            metadata: serde_json::Map::new(),
            parallel_wake: ParallelWake::default(),
            debounce: Duration::default(),
            sampled: false,
            trigger: None,
            parent: None,
            roles: Vec::new(),
            tools: None,
        }
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
