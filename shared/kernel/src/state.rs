//! The state of a run: what is left of its events. Bounded, whatever the age of the run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::{Criterion, CriterionVerdict, Verification},
    agent::ParallelWake,
    budget::{LimitName, Limits, Spent},
    call::{Approval, ArtifactRef, Call, Endorsement},
    child::{Child, ParentRef},
    context::Summary,
    drift::{Drift, RecentCall},
    event::{Ending, ExternalRef, PlanStep, RunRunnable, TimerPurpose},
    fork::Origin,
    ids::{ApprovalId, CallId, ConversationId, RunId, Seq, TenantId, TimerId, TurnId},
    mutants::{self, Mutant, broken},
    status::Status,
    trust::{Block, Trust, excerpt},
    units::Duration,
    wait::{Wait, WakeKind},
};

/// Version of the shape of [`RunState`]: part of snapshot keys, so that a change of shape never reads an old one.
pub const STATE_VERSION: u32 = 9;

/// The code with which a call ends whose tool is no longer what the model saw.
pub const SCHEMA_CHANGED: &str = "schema_changed";

/// Most facts that wait for a turn one by one; older ones are counted, and stay in the log.
pub const MAX_FACTS: usize = 64;
/// Most entries of history that a turn may see.
pub const MAX_HISTORY: usize = 24;
/// Most bytes of a fact's text that the state keeps.
pub const FACT_BYTES: usize = 4096;
/// Most bytes of an entry of history.
pub const HISTORY_BYTES: usize = 1024;
/// Most bytes of a fact's or an entry's title that the state keeps.
pub const TITLE_BYTES: usize = 256;
/// Most calls of a run that may be open at a time.
pub const MAX_OPEN_CALLS: usize = 256;
/// Most questions of a run that may be open at a time, beside those about its calls.
pub const MAX_OPEN_QUESTIONS: usize = 64;
/// Most artifacts and decided approvals that the state remembers; the projections have all.
pub const MAX_REMEMBERED: usize = 64;
/// Most resource keys of which the state remembers what was consumed last. Of one that is forgotten, an event that was consumed
/// may be seen once more by a look-back, if it is young enough for that; none is ever missed.
pub const MAX_CONSUMED: usize = 256;

/// Most effects that the state remembers to undo; of more, the oldest stay as they are.
pub const MAX_UNDO: usize = 1024;

/// What is known of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Which run.
    pub run_id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// The last event folded in.
    pub seq: Seq,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Name of its agent.
    pub agent: String,
    /// Digest of its agent's definition.
    pub agent_digest: String,
    /// What is to be reached.
    pub objective: Block,
    /// How it is known that it was reached.
    pub acceptance: Vec<Criterion>,
    /// The conversation it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// The user's labels.
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Whether spans are exported.
    pub sampled: bool,
    /// The outside event that started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<ExternalRef>,
    /// The run that started it as its child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentRef>,
    /// The roles of whoever started it; a child has its parent's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// The only tools that it may use; none is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<BTreeSet<String>>,
    /// The run that it goes on from, if it is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whether its effects stop at the door.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// How often an operator has changed what it is to reach, or with what.
    #[serde(default)]
    pub revision: u32,
    /// Which ends of parallel calls wake.
    pub parallel_wake: ParallelWake,
    /// How long wakes are gathered before a turn begins.
    pub debounce: Duration,
    /// What it may spend.
    pub limits: Limits,
    /// What it has spent.
    pub spent: Spent,
    /// What its ended children spent, their own children's included.
    #[serde(default)]
    pub children_spent: Spent,
    /// What it was given when it was created: a child never has more.
    #[serde(default)]
    pub given: Limits,
    /// The least trust of all content that ever entered the run, in whatever way.
    pub lowest_trust: Trust,
    /// Whether it still waits for admission.
    pub queued: bool,
    /// Whether it is held, by whomever.
    pub paused: bool,
    /// Whether an operator holds it.
    #[serde(default)]
    pub held_by_operator: bool,
    /// Whether it is held with its parent.
    #[serde(default)]
    pub held_by_parent: bool,
    /// How it is ending or has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// Whether it has ended.
    pub ended: bool,
    /// The open turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
    /// Turns opened so far.
    pub turns_opened: u32,
    /// Turns refused in a row.
    pub rejected_in_row: u32,
    /// The last event that asks for a turn and that no committed turn has seen.
    #[serde(default, skip_serializing_if = "mutants::leaves_out")]
    pub wake: Option<Wake>,
    /// What has happened since the last committed turn.
    pub facts: VecDeque<Fact>,
    /// Facts that fell out of `facts` before a turn saw them.
    pub facts_omitted: u64,
    /// What went before, in excerpts.
    pub history: VecDeque<Entry>,
    /// When it was last told that a tool is no longer what it was: it is offered tools as they were then. None: as they were
    /// when it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools_at: Option<Timestamp>,
    /// What went before that, in fewer words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// Entries of history that fell out before they were summarised.
    #[serde(default)]
    pub history_lost: u64,
    /// How often history was summarised or begun anew.
    #[serde(default)]
    pub compactions: u32,
    /// When a summary would not have been shorter: it is not tried again before there is more to summarise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction_stopped: Option<Seq>,
    /// The number of the turn before which the run began anew the last time.
    #[serde(default)]
    pub last_reset: u32,
    /// How often since then it could not begin anew, although it was time for that.
    #[serde(default)]
    pub resets_failed: u32,
    /// Before which turn that was tried last.
    #[serde(default)]
    pub reset_tried: u32,
    /// Calls that were made not long ago.
    #[serde(default)]
    pub recent: VecDeque<RecentCall>,
    /// Revisions of the plan since a step of it was last done.
    #[serde(default)]
    pub plan_idle: u32,
    /// Steps of the plan that were not done when the last one was.
    #[serde(default)]
    pub plan_scope: u32,
    /// What was last done about going in circles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// What looks into whether the run is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// What came of it the last time.
    #[serde(default)]
    pub verdicts: Vec<CriterionVerdict>,
    /// How often it came out that the run is not done.
    #[serde(default)]
    pub refusals: u32,
    /// How often it was looked into.
    #[serde(default)]
    pub judged: u32,
    /// The limit at which the run stopped, until an operator says whether it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
    /// The plan.
    pub plan: Vec<PlanStep>,
    /// Its revision, from 1.
    pub plan_revision: u32,
    /// Effects that are undone, the newest first, should the run be cancelled or fail.
    #[serde(default)]
    pub undo: VecDeque<Undo>,
    /// Open calls.
    pub calls: BTreeMap<CallId, Call>,
    /// Open child runs, by the call that each answers.
    #[serde(default)]
    pub children: BTreeMap<CallId, Child>,
    /// The registered wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// When it was registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_since: Option<Timestamp>,
    /// Why the run paused when it last did, after the wait itself is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_wait: Option<Wait>,
    /// Set timers.
    pub timers: BTreeMap<TimerId, Timer>,
    /// Open questions.
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// Of open questions that take two people, the first yes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endorsed: BTreeMap<ApprovalId, Endorsement>,
    /// Questions that were answered, newest last.
    pub decided: VecDeque<(ApprovalId, String)>,
    /// Its artifacts, newest last.
    pub artifacts: VecDeque<ArtifactRef>,
    /// The skills that it has opened, by name, with the digest as of then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skills: BTreeMap<String, String>,
    /// By resource key, the position of the last outside event that this run consumed.
    pub consumed: BTreeMap<String, i64>,
    /// By resource key of the wait, the position of the last outside event that was consumed before it was registered: what the
    /// wait is about comes after it. Keys of which nothing was consumed are missing.
    #[serde(default)]
    pub waits_from: BTreeMap<String, i64>,
}

/// The open turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Its id.
    pub turn_id: TurnId,
    /// Its number, from 1.
    pub number: u32,
    /// The event that opened it.
    pub opened_by: Seq,
    /// Not to be taken before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// What woke it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<WakeKind>,
}

/// An effect that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    /// The call that had it.
    pub call_id: CallId,
    /// How far that call could be believed.
    pub trust: Trust,
}

/// A reason for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// The event.
    pub seq: Seq,
    /// What kind.
    pub kind: WakeKind,
}

/// A run that has reached a limit, and waits for an operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    /// Which limit.
    pub limit: LimitName,
    /// The question.
    pub approval_id: ApprovalId,
    /// Whether the answer was no, or none came.
    #[serde(default)]
    pub refused: bool,
}

/// A set timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// When it is due.
    pub due: Timestamp,
    /// What for.
    pub purpose: TimerPurpose,
}

/// Something that happened and that the next turn is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fact {
    /// The event that says so.
    pub seq: Seq,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What kind.
    pub kind: FactKind,
    /// What happened, in the runtime's own words.
    pub title: String,
    /// The content, with its trust.
    pub block: Block,
    /// The call that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
}

/// Kinds of facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactKind {
    /// What the run was started with.
    Input,
    /// An operator wrote.
    Message,
    /// A call ended well.
    Result,
    /// A call ended otherwise.
    Failure,
    /// An observer concluded.
    Observation,
    /// An outside event.
    External,
    /// A timer fired or a deadline came.
    Timer,
    /// A person decided.
    Decision,
    /// The runtime says something about the run itself.
    Notice,
}

/// An entry of history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// The event.
    pub seq: Seq,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What it was, in the runtime's own words.
    pub title: String,
    /// An excerpt of it.
    pub block: Block,
}

impl RunState {
    /// Where the run stands.
    #[must_use]
    pub fn status(&self) -> Status {
        use crate::event::Outcome;
        match &self.ending {
            Some(ending) if self.ended => match ending.outcome {
                Outcome::Completed => Status::Completed,
                Outcome::Failed => Status::Failed,
                Outcome::Cancelled => Status::Cancelled,
            },
            Some(_) => Status::Cancelling,
            None if self.paused => Status::Paused,
            None if self.queued => Status::Queued,
            None if self.turn.is_some() => Status::Runnable,
            None => Status::Waiting,
        }
    }

    /// What may wake it, when it sleeps.
    #[must_use]
    pub fn wake_kinds(&self) -> BTreeSet<WakeKind> {
        let mut kinds = self.wait.as_ref().map(Wait::kinds).unwrap_or_default();
        if !self.calls.is_empty() || !self.children.is_empty() {
            kinds.insert(WakeKind::TaskResult);
        }
        if !self.approvals.is_empty() {
            kinds.insert(WakeKind::OperatorInput);
        }
        if self.turn.is_some() || self.ending.is_some() {
            kinds.clear();
        }
        kinds
    }

    /// The moment whose tools it is offered.
    #[must_use]
    pub fn tools_as_of(&self) -> Timestamp {
        self.tools_at.unwrap_or(self.created_at)
    }

    /// Whether the call is open, be it a tool's or a child's.
    #[must_use]
    pub fn is_open_call(&self, call: CallId) -> bool {
        self.calls.contains_key(&call) || self.children.contains_key(&call)
    }

    /// Whether the open turn is this one.
    #[must_use]
    pub fn is_open_turn(&self, turn: TurnId) -> bool {
        self.turn.as_ref().is_some_and(|open| open.turn_id == turn)
    }

    /// Calls whose effect may have happened and is not settled.
    pub fn started_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.values().filter(|call| call.is_started())
    }

    /// Open questions that are not about a call.
    #[must_use]
    pub fn open_questions(&self) -> usize {
        self.approvals.values().filter(|approval| approval.call_id.is_none()).count()
    }

    /// Whether the results that no explicit wait names ask for a turn: all calls of the turn have ended, or one failed and
    /// the agent wants to know at once.
    #[must_use]
    pub fn results_complete(&self) -> bool {
        let named = |call: CallId| self.wait.as_ref().is_some_and(|wait| wait.names_call(call));
        let ended: Vec<_> = self
            .facts
            .iter()
            .filter(|fact| matches!(fact.kind, FactKind::Result | FactKind::Failure))
            .filter(|fact| fact.call_id.is_some_and(|call| !named(call)))
            .collect();
        let open = self.calls.keys().chain(self.children.keys()).any(|call| !named(*call));
        let failed = ended.iter().any(|fact| fact.kind == FactKind::Failure);
        !ended.is_empty() && (!open || (failed && self.parallel_wake == ParallelWake::FirstFailure))
    }

    /// The effect that has to be undone next, since the run ends without success and nothing of it or of its children is under
    /// way any more.
    #[must_use]
    pub fn to_compensate(&self) -> Option<CallId> {
        let quiet = self.calls.is_empty() && self.children.is_empty() && !self.ended;
        self.undo.back().map(|undo| undo.call_id).filter(|_| quiet && self.owes_compensation())
    }

    /// Whether effects have to be undone before the run ends.
    #[must_use]
    pub fn owes_compensation(&self) -> bool {
        let without_success =
            self.ending.as_ref().is_some_and(|ending| ending.outcome != crate::event::Outcome::Completed);
        without_success && !self.undo.is_empty()
    }

    pub(crate) fn open_turn(&mut self, seq: Seq, opened: &RunRunnable) {
        self.queued = false;
        self.turns_opened = opened.number;
        self.turn = Some(Turn {
            turn_id: opened.turn_id,
            number: opened.number,
            opened_by: seq,
            not_before: opened.not_before,
            wake: opened.wake,
        });
    }

    pub(crate) fn push_fact(&mut self, fact: Fact) {
        if self.facts.len() == MAX_FACTS {
            // The oldest goes of what matters least: first what was merely noticed, then the ends of calls, since a turn
            // may still be owed to them, and last what the run was started with and what people said.
            let importance = |fact: &Fact| match fact.kind {
                FactKind::Input | FactKind::Message => 2,
                FactKind::Result | FactKind::Failure => 1,
                _ => 0,
            };
            let least = self.facts.iter().enumerate().min_by_key(|(_, fact)| importance(fact));
            let oldest = least.map_or(0, |(number, _)| number);
            self.facts.remove(oldest);
            self.facts_omitted += 1;
        }
        self.lowest_trust = self.lowest_trust.join(fact.block.trust);
        let (title, block) = (excerpt(&fact.title, TITLE_BYTES), fact.block.excerpt(FACT_BYTES));
        self.facts.push_back(Fact { title, block, ..fact });
    }

    pub(crate) fn push_history(&mut self, entry: Entry) {
        if self.history.len() == MAX_HISTORY {
            self.history.pop_front();
            self.history_lost += 1;
        }
        self.lowest_trust = self.lowest_trust.join(entry.block.trust);
        let (title, block) = (excerpt(&entry.title, TITLE_BYTES), entry.block.excerpt(HISTORY_BYTES));
        self.history.push_back(Entry { title, block, ..entry });
    }

    pub(crate) fn remember_decided(&mut self, approval: ApprovalId, verdict: &str) {
        if !broken(Mutant::DecidesTwice) {
            self.approvals.remove(&approval);
            self.endorsed.remove(&approval);
        }
        if self.decided.len() == MAX_REMEMBERED {
            self.decided.pop_front();
        }
        self.decided.push_back((approval, verdict.to_owned()));
    }
}
