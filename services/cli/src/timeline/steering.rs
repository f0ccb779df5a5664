//! What keeps a run on its way in the story: its plan, looks into what is done, summaries, circles.

use kernel::{
    EventData,
    event::{AcceptanceJudged, PlanStep, StepStatus},
};

use super::{Timeline, line::Line, quoted};
use crate::style::Paint;

impl Timeline {
    /// The line of an event about the way of the run, if it is one.
    pub(super) fn steering_line(&mut self, data: &EventData) -> Option<Line> {
        match data {
            EventData::PlanUpdated(plan) => {
                let before = std::mem::replace(&mut self.plan, plan.steps.clone());
                let line = plan_line(&before, &plan.steps);
                Some(plan.reason.iter().fold(line, |line, reason| line.aside(format!("— {reason}"))))
            }
            EventData::AcceptanceRequested(requested) => {
                let line = Line::new('?', "done?", Paint::World).say(&requested.summary.text);
                Some(line.aside(format!("{} criteria are looked into", requested.checks.len())))
            }
            EventData::AcceptanceJudged(judged) => Some(judged_line(judged)),
            EventData::ContextCompacted(compacted) => {
                let what = if compacted.summary.is_some() {
                    "history is summarised"
                } else {
                    "a summary would not be shorter"
                };
                let line = Line::new('≡', "compacted", Paint::Dim).say(what);
                let line = line.aside(format!("{} to {} tokens", compacted.before_tokens, compacted.after_tokens));
                Some(compacted.not_reset.iter().fold(line, |line, why| line.aside(format!("no new beginning: {why}"))))
            }
            EventData::ContextReset(reset) => {
                let line = Line::new('≡', "reset", Paint::Warn).say(format!("begins anew with {}", reset.handoff.name));
                Some(line.aside(format!("{} to {} tokens", reset.before_tokens, reset.after_tokens)))
            }
            EventData::DriftNoticed(noticed) => {
                let line = Line::new('↻', "circles", Paint::Warn).say(&noticed.detail);
                Some(line.aside(noticed.remedy.as_str()))
            }
            _ => None,
        }
    }
}

/// The plan; of one that is told again, only the steps that went on.
fn plan_line(before: &[PlanStep], steps: &[PlanStep]) -> Line {
    let same = before.len() == steps.len() && before.iter().zip(steps).all(|(old, new)| old.title == new.title);
    let moved = |place: usize, step: &PlanStep| !same || before.get(place).is_none_or(|old| old.status != step.status);
    let done = steps.iter().filter(|step| step.status == StepStatus::Done).count();
    let line = Line::new('☰', "plan", Paint::Model).say(format!("{done}/{}", steps.len()));
    steps.iter().enumerate().filter(|(place, step)| moved(*place, step)).fold(line, |line, (_, step)| {
        let (mark, paint) = match step.status {
            StepStatus::Pending => ('○', Paint::Plain),
            StepStatus::InProgress => ('◐', Paint::Bold),
            StepStatus::Done => ('●', Paint::Good),
            StepStatus::Dropped => ('×', Paint::Bad),
        };
        line.painted(paint, format!(" {mark} {}", step.title))
    })
}

/// What came of looking into the criteria.
fn judged_line(judged: &AcceptanceJudged) -> Line {
    let held = judged.verdicts.iter().filter(|verdict| verdict.passed).count();
    let (glyph, label, paint) =
        if judged.accepted { ('✓', "verified", Paint::Good) } else { ('✗', "not done", Paint::Bad) };
    let line = Line::new(glyph, label, paint).say(format!("{held} of {} criteria hold", judged.verdicts.len()));
    let failed = judged.verdicts.iter().filter(|verdict| !verdict.passed);
    failed.fold(line, |line, verdict| {
        line.below(Paint::Dim, quoted(&format!("{}: {}", verdict.how, verdict.evidence.text)))
    })
}
