//! What comes of turns, and what keeps a run on its way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    acceptance::{AskedCheck, CriterionVerdict},
    budget::Usage,
    call::ArtifactRef,
    context::{Standing, Summary},
    drift::{DriftKind, Remedy},
    ids::{ApprovalId, Seq, TurnId},
    model::ModelFailure,
    slice::Manifest,
    trust::{Block, Trust},
};

content! {
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
