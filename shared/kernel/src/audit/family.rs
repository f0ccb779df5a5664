//! Parents and children: what each log says of the others, and whether all say the same.

use std::collections::{BTreeMap, BTreeSet};

use super::{Report, Violation, is_end, rules};
use crate::{
    budget::{Limits, Spent},
    child::{MAX_DEPTH, ParentRef, SpawnRequest},
    event::{Ending, Event, EventData, Outcome, RunCreated, SubagentStarted},
    ids::{CallId, RunId},
    trust::Trust,
};

/// What one log says of its family.
#[derive(Clone, Debug, Default)]
pub(super) struct Kin {
    parent: Option<ParentRef>,
    /// What it was given.
    given: Limits,
    task: Option<Trust>,
    tools: Option<BTreeSet<String>>,
    simulated: bool,
    lowest: Option<Trust>,
    /// Whether it is held with its parent, and whether it is held at all.
    follows: bool,
    is_held: bool,
    by_operator: bool,
    is_ending: bool,
    end: Option<Ending>,
    spent: Spent,
    children: BTreeMap<RunId, Known>,
}

/// A child, as its parent's log has it.
#[derive(Clone, Debug)]
struct Known {
    spawn: SpawnRequest,
    limits: Limits,
    settled: Option<Settled>,
}

#[derive(Clone, Copy, Debug)]
struct Settled {
    outcome: Outcome,
    trust: Trust,
    spent: Spent,
}

impl Kin {
    pub(super) fn see(&mut self, event: &Event, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => self.created(event, created, report),
            EventData::RunForked(forked) => self.simulated = !forked.effects,
            EventData::SubagentStarted(started) => self.started(event, started, report),
            EventData::ToolRequested(requested) if !requested.call.is_compensation() => {
                let allowed = self.tools.as_ref().is_none_or(|tools| has(tools, &requested.call.tool));
                report.expect(allowed, event, rules::CHILD_TOOLS, || format!("`{}` is requested", requested.call.tool));
            }
            EventData::SubagentCompleted(done) => {
                self.settled(done.child_id, Outcome::Completed, done.result.trust, done.spent);
            }
            EventData::SubagentFailed(failed) => {
                self.settled(failed.child_id, Outcome::Failed, failed.reason.trust, failed.spent);
            }
            EventData::SubagentCancelled(cancelled) => {
                self.settled(cancelled.child_id, Outcome::Cancelled, cancelled.reason.trust, cancelled.spent);
            }
            EventData::BudgetChanged(changed) if self.parent.is_some() => {
                let kept = changed.limits.stricter(&self.given) == changed.limits;
                report.expect(kept, event, rules::BUDGET, || format!("a child may have {:?} at most", self.given));
            }
            EventData::RunPaused(paused) => self.hold(paused.by_parent, true),
            EventData::RunResumed(resumed) => self.hold(resumed.by_parent, false),
            EventData::RunCancelRequested(_) => self.is_ending = true,
            EventData::RunCompleted(end) => self.end = Some(end.ending.clone()),
            EventData::RunFailed(end) => self.end = Some(end.ending.clone()),
            EventData::RunCancelled(end) => self.end = Some(end.ending.clone()),
            _ => {}
        }
        self.is_ending |= is_end(&event.data);
    }

    fn created(&mut self, event: &Event, created: &RunCreated, report: &mut Report) {
        self.parent = created.parent.as_deref().cloned();
        self.given = created.limits.clone();
        self.task = Some(created.input.trust);
        self.tools = created.tools.as_ref().map(|tools| tools.iter().cloned().collect());
        self.simulated = is_simulated(created);
        let depth = self.parent.as_ref().map_or(0, |parent| parent.depth);
        report.expect(depth <= MAX_DEPTH, event, rules::CHILD_DEPTH, || format!("it is {depth} below the first run"));
    }

    fn started(&mut self, event: &Event, started: &SubagentStarted, report: &mut Report) {
        let SubagentStarted { spawn, child_id, attempt, limits, .. } = started;
        let derived = RunId::child(report.run_id, spawn.call_id, *attempt);
        report.expect(derived == *child_id, event, rules::CHILD_ID, || format!("{derived} was expected"));
        let within = self.tools.as_ref().is_none_or(|tools| spawn.tools.iter().all(|tool| has(tools, tool)));
        report.expect(within, event, rules::CHILD_TOOLS, || format!("{:?} may have {:?}", child_id, spawn.tools));
        let known = Known { spawn: spawn.clone(), limits: limits.clone(), settled: None };
        let first = self.children.insert(*child_id, known).is_none();
        report.expect(first, event, rules::CHILD_ID, || format!("{child_id} was started before"));
    }

    fn settled(&mut self, child: RunId, outcome: Outcome, trust: Trust, spent: Spent) {
        if let Some(known) = self.children.get_mut(&child) {
            known.settled = Some(Settled { outcome, trust, spent });
        }
    }

    fn hold(&mut self, by_parent: bool, held: bool) {
        if by_parent {
            self.follows = held;
        } else {
            self.by_operator = held;
        }
        self.is_held = self.follows || self.by_operator;
    }

    /// What the other audits of this log know of it.
    pub(super) fn tell(&mut self, lowest: Trust, spent: Spent) {
        self.lowest = Some(lowest);
        self.spent = spent;
    }

    pub(super) fn is_alone(&self) -> bool {
        self.parent.is_none() && self.children.is_empty()
    }
}

/// The families of all runs whose logs were read. What it keeps is an entry for each run that has a parent or a child.
#[derive(Clone, Debug, Default)]
pub struct Families {
    members: BTreeMap<RunId, Kin>,
}

impl Families {
    /// Takes what a log said.
    pub(super) fn take(&mut self, run: RunId, kin: Kin) {
        self.members.insert(run, kin);
    }

    /// What does not fit. `settled` says that nobody had had anything to do for a while: then every child is where its
    /// parent has it. Otherwise the logs were read one after the other, and only what can't change any more is compared.
    #[must_use]
    pub fn violations(&self, settled: bool) -> Vec<Violation> {
        let mut report = Report { run_id: RunId(uuid::Uuid::nil()), violations: Vec::new() };
        for (run, kin) in &self.members {
            report.run_id = *run;
            for (child, known) in &kin.children {
                match self.members.get(child) {
                    Some(member) => {
                        fits(*run, kin, known, member, &mut report);
                        if settled {
                            in_step(*child, kin, known, member, &mut report);
                        }
                    }
                    None => {
                        // One that ended long ago may have been removed.
                        let excused = !settled || known.settled.is_some() || (kin.is_held && !kin.is_ending);
                        report.expect_now(excused, rules::FAMILY, || format!("child {child} was never created"));
                    }
                }
            }
            if let Some(parent) = kin.parent.as_ref().and_then(|parent| self.members.get(&parent.run_id)) {
                let known = parent.children.contains_key(run);
                report.expect_now(known, rules::FAMILY, || "its parent does not know of it".to_owned());
            }
        }
        report.violations
    }
}

/// Whether a tool is in the list, by its name or by its server's.
fn has(tools: &BTreeSet<String>, tool: &str) -> bool {
    let server = tool.find('.').map(|at| format!("{}.*", &tool[..at]));
    tools.contains(tool) || server.is_some_and(|server| tools.contains(&server))
}

/// What holds of a parent and a child at any time.
fn fits(parent: RunId, kin: &Kin, known: &Known, member: &Kin, report: &mut Report) {
    let spawn = &known.spawn;
    let is_it = member.parent.as_ref().is_some_and(|of| (of.run_id, of.call_id) == (parent, spawn.call_id));
    report.expect_now(is_it, rules::FAMILY, || format!("the child for call {} is another's", spawn.call_id));
    let depth = member.parent.as_ref().map_or(0, |of| of.depth);
    let below = kin.parent.as_ref().map_or(0, |of| of.depth) + 1;
    report.expect_now(depth == below, rules::CHILD_DEPTH, || format!("its child says that it is {depth} deep"));
    let simulated = member.simulated == kin.simulated;
    report.expect_now(simulated, rules::SIMULATED, || format!("its child is simulated: {}", member.simulated));
    let tools = member.tools.as_ref().is_some_and(|tools| tools.iter().all(|tool| spawn.tools.contains(tool)));
    report.expect_now(tools, rules::CHILD_TOOLS, || format!("its child may use {:?}", member.tools));
    let given = member.given == known.limits;
    report
        .expect_now(given, rules::BUDGET, || format!("its child was given {:?}, not {:?}", member.given, known.limits));
    let trusted = member.task.is_some_and(|task| task <= spawn.task.trust);
    report.expect_now(trusted, rules::TRUST, || format!("its child's task is taken for {:?}", member.task));
    let (Some(settled), Some(end)) = (known.settled, &member.end) else { return };
    let Settled { outcome, trust, spent } = settled;
    report.expect_now(outcome == end.outcome, rules::FAMILY, || {
        format!("its child is {:?}, not {outcome:?}", end.outcome)
    });
    report.expect_now(spent == member.spent, rules::BUDGET, || {
        format!("its child spent {:?}, not {spent:?}", member.spent)
    });
    let most = end.text.trust.join(member.lowest.unwrap_or(Trust::Untrusted));
    report.expect_now(trust <= most, rules::TRUST, || format!("its child's answer is {most:?}, not {trust:?}"));
}

/// What holds once everything has come to rest.
fn in_step(child: RunId, kin: &Kin, known: &Known, member: &Kin, report: &mut Report) {
    let (settled, ended) = (known.settled.is_some(), member.end.is_some());
    report.expect_now(settled == ended, rules::FAMILY, || {
        format!("child {child} has ended: {ended}; its parent knows: {settled}")
    });
    let outlives = kin.end.is_some() && !ended;
    report.expect_now(!outlives, rules::FAMILY, || format!("child {child} outlives it"));
    let follows = ended || member.is_ending || kin.is_ending || member.follows == kin.is_held;
    report.expect_now(follows, rules::FAMILY, || format!("child {child} is held: {}", member.follows));
}

/// Whether a run is created to have no effects, since the one above it has none.
pub(super) fn is_simulated(created: &RunCreated) -> bool {
    created.parent.as_ref().is_some_and(|parent| parent.simulated)
}

/// The call that an event about a child ends, if it ends one.
pub(super) fn ended_call(data: &EventData) -> Option<(CallId, RunId)> {
    match data {
        EventData::SubagentCompleted(done) => Some((done.call_id, done.child_id)),
        EventData::SubagentFailed(failed) => Some((failed.call_id, failed.child_id)),
        EventData::SubagentCancelled(cancelled) => Some((cancelled.call_id, cancelled.child_id)),
        _ => None,
    }
}
