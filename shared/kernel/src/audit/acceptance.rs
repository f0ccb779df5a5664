//! Whether a run that is called done was found to be: by calls that looked into its criteria and ended well.

use std::collections::{BTreeMap, BTreeSet};

use super::{Report, rules};
use crate::{
    acceptance::{AskedCheck, Criterion},
    event::{AcceptanceJudged, Event, EventData, Rule, RunCompleted},
    ids::CallId,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance {
    /// The criteria that something looks into, by number.
    checked: BTreeSet<u16>,
    /// What looks into them at present.
    asked: Option<Vec<AskedCheck>>,
    /// Calls that have ended since it was asked, and whether they ended well.
    ended: BTreeMap<CallId, bool>,
    /// Whether it was said last that all of them hold.
    accepted: bool,
}

impl Acceptance {
    pub(super) fn see(&mut self, event: &Event, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => self.take(&created.acceptance),
            EventData::RunRevised(revised) => {
                if let Some(acceptance) = &revised.acceptance {
                    self.take(acceptance);
                }
            }
            EventData::TurnCompleted(_) => self.forget(),
            EventData::AcceptanceRequested(requested) => {
                self.forget();
                let named: BTreeSet<u16> = requested.checks.iter().map(|asked| asked.criterion).collect();
                report.expect(named == self.checked, event, rules::ACCEPTANCE, || {
                    format!("criteria {named:?} are looked into of {:?}", self.checked)
                });
                self.asked = Some(requested.checks.clone());
            }
            EventData::AcceptanceJudged(judged) => self.judge(event, judged, report),
            EventData::RunCompleted(end) => self.end(event, end, report),
            EventData::ToolCompleted(done) => self.ends(done.call_id, true),
            EventData::ToolFailed(failed) => self.ends(failed.call_id, false),
            EventData::ToolDenied(denied) => self.ends(denied.call_id, false),
            EventData::ToolCancelled(cancelled) => self.ends(cancelled.call_id, false),
            EventData::SubagentCompleted(done) => {
                self.ends(done.call_id, matches!(done.rule, Some(Rule::GoalMet | Rule::GoalVerified)));
            }
            EventData::SubagentFailed(failed) if !failed.again => self.ends(failed.call_id, false),
            EventData::SubagentCancelled(cancelled) => self.ends(cancelled.call_id, false),
            _ => {}
        }
    }

    fn take(&mut self, acceptance: &[Criterion]) {
        let checked = (0..).zip(acceptance).filter(|(_, criterion)| criterion.check().is_some());
        self.checked = checked.map(|(number, _)| number).collect();
        self.forget();
    }

    fn forget(&mut self) {
        self.asked = None;
        self.ended.clear();
        self.accepted = false;
    }

    fn ends(&mut self, call: CallId, well: bool) {
        self.ended.insert(call, well);
    }

    fn judge(&mut self, event: &Event, judged: &AcceptanceJudged, report: &mut Report) {
        let asked = self.asked.take().unwrap_or_default();
        let by: BTreeMap<u16, Option<CallId>> = asked.iter().map(|asked| (asked.criterion, asked.call_id)).collect();
        for verdict in judged.verdicts.iter().filter(|verdict| verdict.passed) {
            let looked = by.get(&verdict.criterion);
            let well = looked.is_some_and(|call| call.is_none_or(|call| self.ended.get(&call) == Some(&true)));
            report.expect(well, event, rules::ACCEPTANCE, || {
                format!("criterion {} is said to hold, by {looked:?}", verdict.criterion)
            });
        }
        let holding: BTreeSet<u16> =
            judged.verdicts.iter().filter(|verdict| verdict.passed).map(|verdict| verdict.criterion).collect();
        self.accepted = judged.accepted && holding == self.checked;
        report.expect(self.accepted || !judged.accepted, event, rules::ACCEPTANCE, || {
            format!("it is accepted with {holding:?} of {:?}", self.checked)
        });
    }

    fn end(&self, event: &Event, end: &RunCompleted, report: &mut Report) {
        let rule = end.ending.rule;
        let holds = if self.checked.is_empty() { rule != Rule::GoalVerified } else { self.accepted };
        report.expect(
            holds && (self.checked.is_empty() || rule == Rule::GoalVerified),
            event,
            rules::ACCEPTANCE,
            || format!("complete by {rule:?}, with criteria {:?} and accepted: {}", self.checked, self.accepted),
        );
    }
}
