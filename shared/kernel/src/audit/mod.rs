//! Whether logs keep the promises of the runtime: a second reading of the events that shares nothing with `decide`, and
//! with `apply` only the question whether it can fold them. The simulation asks it after every commit, `infra/test` asks it
//! about the log in Postgres.
//!
//! ```
//! # use kernel::{audit::Auditor, Event, RunId};
//! # let logs: Vec<(RunId, Vec<Event>)> = Vec::new();
//! let mut auditor = Auditor::new(None);
//! for (run, log) in &logs {
//!     assert!(auditor.run(*run, log).is_empty());
//! }
//! ```

mod acceptance;
mod calls;
mod ending;
mod family;
pub mod rules;
mod trust;
mod turns;
mod waits;

use std::{borrow::Borrow, collections::HashMap};

use jiff::Timestamp;
use serde::Serialize;

pub use self::family::Families;
use self::{
    acceptance::Acceptance, calls::Calls, ending::Control, family::Kin, trust::Provenance, turns::Turns, waits::Waits,
};
use crate::{
    apply::apply,
    event::{Event, EventData},
    ids::{RunId, Seq},
    state::RunState,
};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// In which run.
    pub run_id: RunId,
    /// By which event; none if it is about where the run stands.
    pub seq: Option<Seq>,
    /// Which promise: one of [`rules::ALL`].
    pub rule: &'static str,
    /// What is wrong, in words.
    pub detail: String,
}

/// Audits logs, run by run. What it keeps beyond a run is one entry for each outside event that an exclusive wait took, and for
/// each run with a parent or a child.
#[derive(Debug, Default)]
pub struct Auditor {
    settled: Option<Timestamp>,
    under_way: Option<RunAudit>,
    taken: HashMap<i64, RunId>,
    families: Families,
}

impl Auditor {
    /// `settled` says that nobody had had anything to do for a while at that time, so that nothing may be left over.
    #[must_use]
    pub fn new(settled: Option<Timestamp>) -> Self {
        Self { settled, ..Self::default() }
    }

    /// Audits the whole log of a run.
    pub fn run<E: Borrow<Event>>(&mut self, run_id: RunId, log: impl IntoIterator<Item = E>) -> Vec<Violation> {
        let mut violations = self.finish();
        for event in log {
            violations.extend(self.push(run_id, event.borrow()));
        }
        violations.extend(self.finish());
        violations
    }

    /// Takes the next event of a stream that is ordered by run and seq. A run is over when the next one begins.
    pub fn push(&mut self, run_id: RunId, event: &Event) -> Vec<Violation> {
        let other = self.under_way.as_ref().is_some_and(|audit| audit.report.run_id != run_id);
        let violations = if other { self.finish() } else { Vec::new() };
        self.under_way.get_or_insert_with(|| RunAudit::new(run_id)).push(event);
        violations
    }

    /// What is left to say at the end, of the last run and of all together.
    pub fn finish(&mut self) -> Vec<Violation> {
        let Some(mut audit) = self.under_way.take() else { return Vec::new() };
        audit.rest();
        if let Some(at) = self.settled {
            audit.settled(at);
        }
        let run_id = audit.report.run_id;
        for (position, seq) in audit.take_exclusive() {
            let first = *self.taken.entry(position).or_insert(run_id);
            if first != run_id {
                let detail = format!("the outside event at {position} was taken by run {first} before");
                audit.report.add(Some(seq), rules::EXCLUSIVE, detail);
            }
        }
        audit.tell(&mut self.families);
        audit.take_violations()
    }

    /// What parents and children say of each other, once all logs were read.
    #[must_use]
    pub fn families(&self) -> Vec<Violation> {
        self.families.violations(self.settled.is_some())
    }
}

/// Audits one run, event by event.
#[derive(Clone, Debug)]
pub struct RunAudit {
    report: Report,
    log: Log,
    acceptance: Acceptance,
    turns: Turns,
    waits: Waits,
    calls: Calls,
    control: Control,
    trust: Provenance,
    kin: Kin,
}

/// Where violations go.
#[derive(Clone, Debug)]
struct Report {
    run_id: RunId,
    violations: Vec<Violation>,
}

impl Report {
    fn add(&mut self, seq: Option<Seq>, rule: &'static str, detail: impl Into<String>) {
        self.violations.push(Violation { run_id: self.run_id, seq, rule, detail: detail.into() });
    }

    /// Says what is wrong unless `holds`.
    fn expect(&mut self, holds: bool, event: &Event, rule: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            self.add(Some(event.seq), rule, detail());
        }
    }

    /// The same of where the run stands.
    fn expect_now(&mut self, holds: bool, rule: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            self.add(None, rule, detail());
        }
    }
}

impl RunAudit {
    /// Of a run of which nothing was read yet.
    #[must_use]
    pub fn new(run_id: RunId) -> Self {
        Self {
            report: Report { run_id, violations: Vec::new() },
            log: Log::default(),
            acceptance: Acceptance::default(),
            turns: Turns::default(),
            waits: Waits::default(),
            calls: Calls::default(),
            control: Control::default(),
            trust: Provenance::default(),
            kin: Kin::default(),
        }
    }

    /// Takes the next event.
    pub fn push(&mut self, event: &Event) {
        let report = &mut self.report;
        self.log.see(event, report);
        self.acceptance.see(event, report);
        self.trust.see(event, &self.calls, report);
        self.turns.see(event, &self.calls, report);
        self.waits.see(event, &self.calls, report);
        self.calls.see(event, report);
        self.control.see(event, &self.calls, &self.waits, report);
        self.kin.see(event, report);
    }

    /// Checks what holds between two commits.
    pub fn rest(&mut self) {
        let report = &mut self.report;
        self.log.compare(report);
        self.control.rest(&self.calls, report);
        self.calls.rest(report);
        if !self.control.is_held_back() {
            self.turns.rest(&self.calls, &self.waits, report);
        }
    }

    /// Checks what holds when nobody has had anything to do for a while, at the time `at`.
    pub fn settled(&mut self, at: Timestamp) {
        let report = &mut self.report;
        self.waits.settled(at, report);
        self.control.settled(report);
        if !self.control.is_paused() {
            self.turns.settled(report);
            self.calls.settled(at, report);
        }
    }

    /// Tells what this log says of its parent and its children.
    pub fn tell(&self, families: &mut Families) {
        if self.kin.is_alone() {
            return;
        }
        let mut kin = self.kin.clone();
        kin.tell(self.trust.lowest_of_all(), self.turns.spent());
        families.take(self.report.run_id, kin);
    }

    /// The state as folded here.
    #[must_use]
    pub fn state(&self) -> Option<&RunState> {
        self.log.state.as_ref()
    }

    /// What was wrong since this was asked the last time.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.report.violations)
    }

    /// Outside events (by position, with the event that says so) that exclusive waits took since this was asked the last
    /// time: no two runs may have the same.
    pub fn take_exclusive(&mut self) -> Vec<(i64, Seq)> {
        std::mem::take(&mut self.waits.exclusive)
    }
}

/// The log as such, and the states that it folds to.
#[derive(Clone, Debug, Default)]
struct Log {
    seq: Seq,
    at: Option<Timestamp>,
    ended: bool,
    broken: bool,
    state: Option<RunState>,
    /// The same state, stored and read back somewhere on the way.
    shadow: Option<RunState>,
}

impl Log {
    fn see(&mut self, event: &Event, report: &mut Report) {
        self.compare_kept(event, report);
        let expected = self.seq + 1;
        report.expect(event.seq == expected, event, rules::GAPLESS, || format!("event {expected} was expected"));
        report.expect(self.at.is_none_or(|at| at <= event.at), event, rules::TIME, || "time went back".to_owned());
        report.expect(!self.ended, event, rules::LAST, || format!("`{}` after the end", event.data.type_name()));
        self.seq = event.seq;
        self.at = Some(event.at);
        self.ended |= is_end(&event.data);
        self.fold(event, report);
    }

    /// What a compaction says that it keeps is what the run had.
    fn compare_kept(&self, event: &Event, report: &mut Report) {
        let kept = match &event.data {
            EventData::ContextCompacted(compacted) => &compacted.kept,
            EventData::ContextReset(reset) => &reset.kept,
            _ => return,
        };
        let same = self.state.as_ref().is_some_and(|state| state.standing() == *kept);
        report
            .expect(same, event, rules::COMPACTION, || "a summary is about another standing than the run's".to_owned());
    }

    fn fold(&mut self, event: &Event, report: &mut Report) {
        if self.broken {
            return;
        }
        match apply(self.state.take(), report.run_id, event) {
            Ok(state) => self.state = Some(state),
            Err(error) => {
                self.broken = true;
                report.add(Some(event.seq), rules::FOLDS, error.to_string());
            }
        }
        if let Some(shadow) = self.shadow.take() {
            self.shadow = apply(Some(shadow), report.run_id, event).ok();
        }
        // Often while a log is short, seldom when it is long.
        if event.seq.is_power_of_two() || event.seq.is_multiple_of(997) {
            if self.shadow.is_some() {
                self.compare(report);
            }
            self.shadow = self.state.as_ref().and_then(stored_and_read);
            self.compare(report);
        }
    }

    fn compare(&self, report: &mut Report) {
        if let Some(state) = &self.state {
            let same = self.shadow.as_ref() == Some(state);
            report.expect_now(same, rules::SNAPSHOT, || format!("at seq {} the stored state differs", self.seq));
        }
    }
}

fn stored_and_read(state: &RunState) -> Option<RunState> {
    serde_json::to_string(state).ok().and_then(|stored| serde_json::from_str(&stored).ok())
}

/// Whether an event ends its run.
fn is_end(data: &EventData) -> bool {
    matches!(data, EventData::RunCompleted(_) | EventData::RunFailed(_) | EventData::RunCancelled(_))
}
