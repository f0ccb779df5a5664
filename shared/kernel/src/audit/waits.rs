//! Waits, the outside events and timers that meet them, and what is set for later.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::{
    Report,
    calls::{Calls, End},
    rules,
};
use crate::{
    event::{Event, EventData, ExternalMatched, Speaker, TimerFired},
    ids::{ApprovalId, CallId, Seq, TimerId, WaitId},
    wait::{Condition, Wait, WaitExpr},
};

#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    current: Option<Current>,
    timers: BTreeMap<TimerId, Timestamp>,
    /// By position, what an outside event was consumed for: a wait, or the start of the run.
    consumed: HashMap<i64, Option<WaitId>>,
    pub(super) exclusive: Vec<(i64, Seq)>,
}

/// The registered wait, with its own account of what was met.
#[derive(Clone, Debug)]
struct Current {
    wait: Wait,
    conditions: Vec<Condition>,
    met: Vec<bool>,
}

impl Current {
    /// What names a call that is not open (any more) is met from the beginning.
    fn new(wait: &Wait, calls: &Calls) -> Self {
        let leaves = wait.on.leaves();
        let is_met = |on: &Condition| matches!(on, Condition::TaskResult { call_id } if !calls.is_open(*call_id));
        let met = leaves.iter().map(|leaf| is_met(&leaf.condition)).collect();
        let conditions = leaves.into_iter().map(|leaf| leaf.condition.clone()).collect();
        Self { wait: wait.clone(), conditions, met }
    }

    fn meet(&mut self, meets: impl Fn(&Condition) -> bool) {
        for (condition, met) in self.conditions.iter().zip(&mut self.met) {
            *met |= meets(condition);
        }
    }

    fn is_met(&self) -> bool {
        holds(&self.wait.on, &mut self.met.iter().copied())
    }
}

/// Whether an expression holds, from whether each of its conditions does.
fn holds(on: &WaitExpr, met: &mut impl Iterator<Item = bool>) -> bool {
    match on {
        WaitExpr::On(_) => met.next().unwrap_or(false),
        // Counted, since each condition has to be asked for its own, also when the answer is known.
        WaitExpr::Any(of) => of.iter().filter(|each| holds(each, met)).count() > 0,
        WaitExpr::All(of) => of.iter().filter(|each| !holds(each, met)).count() == 0,
    }
}

impl Waits {
    pub(super) fn see(&mut self, event: &Event, calls: &Calls, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => {
                self.consumed.extend(created.trigger.as_ref().map(|trigger| (trigger.position, None)));
            }
            EventData::WaitRegistered(registered) => {
                let free = self.current.is_none();
                report.expect(free, event, rules::ONE_WAIT, || "another wait is registered".to_owned());
                self.current = Some(Current::new(&registered.wait, calls));
            }
            EventData::WaitSatisfied(satisfied) => self.leave(event, satisfied.wait_id, Some(true), report),
            EventData::WaitExpired(expired) => self.leave(event, expired.wait_id, Some(false), report),
            EventData::WaitCancelled(cancelled) => self.leave(event, cancelled.wait_id, None, report),
            EventData::ExternalMatched(matched) => self.matched(event, matched, report),
            EventData::TimerSet(set) => {
                self.timers.insert(set.timer_id, set.due);
            }
            EventData::TimerFired(fired) => self.fired(event, fired, report),
            EventData::TimerCancelled(cancelled) => {
                self.timers.retain(|timer, _| !cancelled.timer_ids.contains(timer));
            }
            EventData::MessageAdded(message) if message.role == Speaker::Operator => self.operator(None),
            EventData::ApprovalGranted(granted) => self.operator(Some(granted.approval_id)),
            EventData::ApprovalDenied(denied) => self.operator(Some(denied.approval_id)),
            EventData::ApprovalExpired(expired) => self.operator(Some(expired.approval_id)),
            data => {
                if let Some((ended, _)) = End::of(data) {
                    self.meet(|on| matches!(on, Condition::TaskResult { call_id } if *call_id == ended));
                }
            }
        }
    }

    fn meet(&mut self, meets: impl Fn(&Condition) -> bool) {
        if let Some(current) = &mut self.current {
            current.meet(meets);
        }
    }

    fn operator(&mut self, answered: Option<ApprovalId>) {
        self.meet(|on| matches!(on, Condition::OperatorInput { approval_id } if *approval_id == answered));
    }

    /// A wait goes; `met` says whether it had to hold.
    fn leave(&mut self, event: &Event, wait_id: WaitId, met: Option<bool>, report: &mut Report) {
        let current = self.current.take().filter(|current| current.wait.wait_id == wait_id);
        let fits = current.is_some_and(|current| met.is_none_or(|met| current.is_met() == met));
        report.expect(fits, event, rules::WAIT_HOLDS, || format!("wait {wait_id} does not stand so"));
    }

    fn matched(&mut self, event: &Event, matched: &ExternalMatched, report: &mut Report) {
        let (external, leaf) = (&matched.external, usize::from(matched.leaf));
        let position = external.position;
        let current = self.current.as_mut().filter(|current| current.wait.wait_id == matched.wait_id);
        let pattern = current.and_then(|current| match (current.conditions.get(leaf)?, current.met.get_mut(leaf)?) {
            (Condition::External(pattern), met) if !*met => {
                *met = true;
                Some(pattern)
            }
            _ => None,
        });
        let about = |pattern: &crate::wait::ExternalPattern| {
            pattern.resource_key() == external.resource_key && pattern.matches_type(&external.event_type)
        };
        let wanted = pattern.is_some_and(about);
        report.expect(wanted, event, rules::WANTED, || format!("nothing wants the event at {position}"));
        if pattern.is_some_and(|pattern| pattern.exclusive) {
            self.exclusive.push((position, event.seq));
        }
        let had = self.consumed.entry(position).or_insert(Some(matched.wait_id));
        let once = *had == Some(matched.wait_id);
        report.expect(once, event, rules::CONSUMED_ONCE, || format!("the event at {position} was consumed before"));
    }

    fn fired(&mut self, event: &Event, fired: &TimerFired, report: &mut Report) {
        let due = self.timers.remove(&fired.timer_id);
        let as_set = due.is_some_and(|due| due <= event.at);
        report.expect(as_set, event, rules::TIMER_SET, || format!("timer {} was due at {due:?}", fired.timer_id));
        self.meet(|on| matches!(on, Condition::Timer { timer_id, .. } if *timer_id == fired.timer_id));
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn is_met(&self) -> bool {
        self.current.as_ref().is_some_and(Current::is_met)
    }

    pub(super) fn names(&self, call: CallId) -> bool {
        let names = |on: &Condition| matches!(on, Condition::TaskResult { call_id } if *call_id == call);
        self.current.as_ref().is_some_and(|current| current.conditions.iter().any(names))
    }

    /// What an ended run may not leave behind.
    pub(super) fn is_clean(&self) -> bool {
        self.current.is_none() && self.timers.is_empty()
    }

    pub(super) fn settled(&self, at: Timestamp, report: &mut Report) {
        for (timer, due) in self.timers.iter().filter(|(_, due)| **due <= at) {
            report.add(None, rules::SETTLED, format!("timer {timer} was due at {due} and did not fire"));
        }
    }
}
