//! What a run remembers of its past, when the past itself has grown too long to be shown.
//!
//! History is a few entries in excerpts. What falls out of it is made into a summary, in words; what must not get lost
//! (objective, criteria, plan, waits, calls, questions, trust) is no part of those words: it stands in fields of its own, which
//! a compaction names once more, and which the rules compare with the run as it is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::Criterion,
    event::PlanStep,
    ids::{ApprovalId, CallId, RunId, Seq, WaitId},
    state::RunState,
    trust::{Block, Trust},
};

/// Most bytes of a summary.
pub const SUMMARY_BYTES: usize = 8 * 1024;
/// Most bytes of the objective that is named with a compaction.
const OBJECTIVE_BYTES: usize = 512;

/// What went before, in fewer words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The words: what was found, done, tried in vain, and is still open.
    pub body: Block,
    /// The last event that is in it.
    pub upto: Seq,
    /// Entries of history that it stands for, those of summaries before it included.
    pub entries: u32,
}

/// What a compaction must leave as it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// What is to be reached; of a long one the head and the tail.
    pub objective: Block,
    /// How it is known that it was reached.
    pub acceptance: Vec<Criterion>,
    /// The plan.
    pub plan: Vec<PlanStep>,
    /// Its revision.
    pub plan_revision: u32,
    /// The registered wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitId>,
    /// Open calls.
    pub calls: Vec<CallId>,
    /// Open child runs.
    pub children: Vec<RunId>,
    /// Open questions.
    pub questions: Vec<ApprovalId>,
    /// The least trust of all that ever entered the run.
    pub trust: Trust,
}

impl RunState {
    /// What a compaction must leave as it is.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            objective: self.objective.clone().excerpt(OBJECTIVE_BYTES),
            acceptance: self.acceptance.clone(),
            plan: self.plan.clone(),
            plan_revision: self.plan_revision,
            wait: self.wait.as_ref().map(|wait| wait.wait_id),
            calls: self.calls.keys().copied().collect(),
            children: self.children.values().map(|child| child.child_id).collect(),
            questions: self.approvals.keys().copied().collect(),
            trust: self.lowest_trust,
        }
    }
}
