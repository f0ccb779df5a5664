//! Holding and ending.

use std::collections::BTreeSet;

use super::{Report, calls::Calls, family::is_simulated, is_end, rules, waits::Waits};
use crate::event::{Ending, Event, EventData, Outcome};

#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    queued: bool,
    paused: bool,
    /// Whether it may have no effects, being a fork or below one.
    simulated: bool,
    /// With its parent, and by an operator.
    held: [bool; 2],
    exceeded: bool,
    ending: Option<Ending>,
    ended: bool,
}

impl Control {
    pub(super) fn see(&mut self, event: &Event, calls: &Calls, waits: &Waits, report: &mut Report) {
        if let Some(name) = new_work(&event.data) {
            let allowed = self.ending.is_none() || is_about_compensation(&event.data, calls);
            report.expect(allowed, event, rules::NO_NEW_WORK, || format!("`{name}` while ending"));
        }
        match &event.data {
            EventData::RunCreated(created) => self.simulated = is_simulated(created),
            EventData::RunForked(forked) => self.simulated = !forked.effects,
            EventData::RunQueued(_) => self.queued = true,
            EventData::RunRunnable(_) => self.queued = false,
            EventData::RunPaused(paused) => self.hold(paused.by_parent, true),
            EventData::RunResumed(resumed) => self.hold(resumed.by_parent, false),
            EventData::BudgetExceeded(exceeded) => {
                self.exceeded |= exceeded.ask.is_none();
                // It was let in, and met its limit.
                self.queued = false;
            }
            EventData::ToolStarted(started) => {
                let call = started.call_id;
                let held = self.paused && !calls.is_compensation(call);
                report.expect(!held, event, rules::HELD, || format!("call {call} starts while held"));
                report.expect(!self.simulated, event, rules::SIMULATED, || {
                    format!("call {call} starts in a simulated run")
                });
            }
            EventData::RunCancelRequested(requested) => {
                self.queued = false;
                self.ending = Some(requested.ending.clone());
                let named: BTreeSet<_> = requested.open_calls.iter().copied().collect();
                let children = &requested.open_children;
                let told = |call| named.contains(&call) || calls.is_child_among(call, children);
                let all = calls.open().all(told) && calls.unstarted().next().is_none();
                report.expect(all, event, rules::REACHES_ALL, || format!("only {named:?} and {children:?} are told"));
            }
            EventData::RunCompleted(end) => self.end(event, Outcome::Completed, &end.ending, report),
            EventData::RunFailed(end) => self.end(event, Outcome::Failed, &end.ending, report),
            EventData::RunCancelled(end) => self.end(event, Outcome::Cancelled, &end.ending, report),
            _ => {}
        }
        if is_end(&event.data) {
            let clean = !calls.any_open() && !calls.any_question() && waits.is_clean();
            report.expect(clean, event, rules::CLEAN_END, || {
                format!("left behind: calls {:?}, waits {waits:?}", calls.open().collect::<Vec<_>>())
            });
        }
    }

    fn end(&mut self, event: &Event, outcome: Outcome, ending: &Ending, report: &mut Report) {
        let said = self.ending.as_ref().is_none_or(|said| said == ending) && ending.outcome == outcome;
        report.expect(said, event, rules::CLEAN_END, || format!("{:?} was said, {ending:?} came", self.ending));
        self.queued = false;
        self.ending = Some(ending.clone());
        self.ended = true;
    }

    fn hold(&mut self, by_parent: bool, held: bool) {
        self.held[usize::from(!by_parent)] = held;
        self.paused = self.held.contains(&true);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether nothing should be expected to begin.
    pub(super) fn is_held_back(&self) -> bool {
        self.paused || self.queued || self.ending.is_some()
    }

    pub(super) fn rest(&self, calls: &Calls, report: &mut Report) {
        let ending = self.ending.is_some();
        report.expect_now(!self.exceeded || ending, rules::BUDGET_ENDS, || "the run goes on".to_owned());
        let has_reason = (calls.any_open() || calls.owes_compensation()) && calls.unstarted().next().is_none();
        let waits_for_calls = self.ended || !ending || has_reason;
        report.expect_now(waits_for_calls, rules::REACHES_ALL, || {
            "the run is ending, for nothing or too slow".to_owned()
        });
    }

    pub(super) fn settled(&self, report: &mut Report) {
        report.expect_now(self.paused || !self.queued, rules::SETTLED, || "nobody let the run begin".to_owned());
        report.expect_now(self.ended || self.ending.is_none(), rules::SETTLED, || "the run never ends".to_owned());
    }
}

/// Whether what begins is the undoing of an effect, which is what an ending may begin.
fn is_about_compensation(data: &EventData, calls: &Calls) -> bool {
    match data {
        EventData::ToolRequested(requested) => requested.call.is_compensation(),
        EventData::ToolStarted(started) => calls.is_compensation(started.call_id),
        EventData::ApprovalRequested(requested) => {
            requested.approval.call_id.is_some_and(|call| calls.is_compensation(call))
        }
        _ => false,
    }
}

/// The name of an event that begins something.
fn new_work(data: &EventData) -> Option<&'static str> {
    let begins = matches!(
        data,
        EventData::RunRunnable(_)
            | EventData::TurnCompleted(_)
            | EventData::ToolRequested(_)
            | EventData::ToolStarted(_)
            | EventData::SubagentStarted(_)
            | EventData::WaitRegistered(_)
            | EventData::ApprovalRequested(_)
    );
    begins.then(|| data.type_name())
}
