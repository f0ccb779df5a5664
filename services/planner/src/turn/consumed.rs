//! What a turn consumes: tokens, time, and answers of no use.

use kernel::{
    budget::Usage,
    model::{ModelFailure, note},
};

use super::Open;
use crate::{
    models::{Answer, Arguments, FailureKind, Finish, ModelError, ModelName, Unanswered, router::Answered},
    toolbox::Toolbox,
};

/// What a turn has consumed so far.
#[derive(Default)]
pub(super) struct Consumed {
    pub(super) usage: Usage,
    pub(super) millis: u64,
    /// Model calls that gave nothing usable.
    pub(super) failures: Vec<ModelFailure>,
    /// How often it has asked.
    pub(super) asks: u32,
}

impl Consumed {
    fn spend(&mut self, usage: &Usage) {
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
        let rule = if is_last { "gave_up" } else { "asked_again" };
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
