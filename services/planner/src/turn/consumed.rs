//! What a turn consumes: tokens, time, and answers of no use.

use kernel::{
    TurnId,
    budget::Usage,
    command::ChargeTurn,
    event::PaidFor,
    model::{ModelFailure, note},
};

use super::Open;
use crate::{
    models::{Answer, Arguments, FailureKind, Finish, ModelError, ModelName, Unanswered, router::Answered},
    toolbox::Toolbox,
};

/// Most bytes of why something was paid for in vain.
const REASON_BYTES: usize = 300;

/// What a turn has consumed so far that the log does not have.
pub(super) struct Consumed {
    /// The delivery key of whatever brings it into the log: of several that try, one does.
    pub(super) key: String,
    pub(super) usage: Usage,
    pub(super) millis: u64,
    /// Model calls that gave nothing usable.
    pub(super) failures: Vec<ModelFailure>,
    /// How often it has asked.
    pub(super) asks: u32,
}

impl Consumed {
    /// Nothing yet, of a turn that is taken now.
    pub(super) fn of(turn: TurnId) -> Self {
        let key = format!("turn/{turn}/{}", uuid::Uuid::now_v7());
        Self { key, usage: Usage::default(), millis: 0, failures: Vec::new(), asks: 0 }
    }

    /// The log has it.
    pub(super) fn recorded(&mut self) {
        self.usage = Usage::default();
        self.failures.clear();
    }

    /// What is left of it, to be recorded as paid for in vain.
    pub(super) fn charge(self, turn_id: TurnId, reason: &str) -> ChargeTurn {
        let Self { usage, failures, .. } = self;
        let reason = kernel::excerpt(reason, REASON_BYTES);
        ChargeTurn { turn_id, paid_for: PaidFor::Answer, reason, usage, failures }
    }

    pub(super) fn spend(&mut self, usage: &Usage) {
        let mut spent = kernel::budget::Spent { usage: self.usage, ..Default::default() };
        spent.add(usage);
        self.usage = spent.usage;
    }

    pub(super) fn add(&mut self, answered: &mut Answered) {
        self.spend(&answered.answer.usage);
        self.millis = self.millis.saturating_add(answered.millis);
        for failure in answered.failures.drain(..) {
            note(&mut self.failures, failure);
        }
    }

    /// What was spent on no answer.
    pub(super) fn waste(&mut self, unanswered: Unanswered, is_last: bool) -> ModelError {
        let Unanswered { error, failures, usage } = unanswered;
        self.spend(&usage);
        for mut failure in failures {
            if is_last && failure.rule == "asked_again" {
                "gave_up".clone_into(&mut failure.rule);
            }
            note(&mut self.failures, failure);
        }
        error
    }

    /// An answer that the rules refuse.
    pub(super) fn unusable(&mut self, answered: &Answered, open: &Open<'_>, problems: &[String], is_last: bool) {
        let kind = fault_of(&answered.answer, &open.toolbox);
        self.told(answered, kind, problems, if is_last { "gave_up" } else { "asked_again" });
    }

    /// An answer that wants what the policies will not let pass.
    pub(super) fn forbidden(&mut self, answered: &Answered, refusals: &[String]) {
        self.told(answered, FailureKind::Forbidden, refusals, "asked_again");
    }

    fn told(&mut self, answered: &Answered, kind: FailureKind, problems: &[String], rule: &str) {
        metrics::counter!("planner_unusable_answers_total", "kind" => kind.as_str()).increment(1);
        if let Ok(model) = answered.model.parse::<ModelName>() {
            note(&mut self.failures, ModelError::new(kind, problems.join("; ")).noted(&model, rule));
        }
    }
}

/// In which way an answer is of no use.
fn fault_of(answer: &Answer, toolbox: &Toolbox) -> FailureKind {
    let is_malformed = |arguments: &Arguments| !matches!(arguments, Arguments::Json(value) if value.is_object());
    if answer.finish == Finish::Length {
        FailureKind::CutOff
    } else if answer.calls.iter().any(|call| toolbox.find(&call.name).is_none()) {
        FailureKind::UnknownTool
    } else if answer.calls.iter().any(|call| is_malformed(&call.arguments)) {
        FailureKind::MalformedArguments
    } else {
        FailureKind::Unusable
    }
}
