//! What a planner asks for.

use jiff::Timestamp;

use crate::{
    acceptance::{AskedCheck, CriterionVerdict},
    budget::Usage,
    call::{Approval, ArtifactRef, CallRequest},
    child::SpawnRequest,
    context::{Standing, Summary},
    drift::{DriftKind, Remedy},
    event::{PaidFor, PlanStep},
    ids::{ApprovalId, Seq, TurnId},
    memory::{MemoryChange, SkillRef},
    model::ModelFailure,
    slice::Manifest,
    trust::{Block, Trust},
    wait::WaitExpr,
};

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
    /// Nothing yet, by a model that has seen nothing less trusted than `trust`.
    #[must_use]
    pub fn empty(turn_id: TurnId, based_on: Seq, model: impl Into<String>, trust: Trust) -> Self {
        Self {
            turn_id,
            based_on,
            model: model.into(),
            text: None,
            calls: Vec::new(),
            spawns: Vec::new(),
            wait: None,
            plan: None,
            say: Vec::new(),
            question: None,
            artifacts: Vec::new(),
            memories: Vec::new(),
            skills: Vec::new(),
            end: None,
            usage: Usage::default(),
            trust,
            manifest: Manifest::default(),
            finish_reason: None,
            model_ms: 0,
            failures: Vec::new(),
        }
    }

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

/// For `Command::RejectTurn`.
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

/// For `Command::ChargeTurn`.
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

/// For `Command::Judge`.
#[derive(Clone, Debug, PartialEq)]
pub struct Judge {
    /// The open turn.
    pub turn_id: TurnId,
    /// Of each criterion that was looked into.
    pub verdicts: Vec<CriterionVerdict>,
    /// What is left for people: the report of the run, if it ends by this.
    pub artifacts: Vec<ArtifactRef>,
}

/// For `Command::Compact`.
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

/// For `Command::NoteDrift`.
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
