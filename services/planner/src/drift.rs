//! Whether a run goes in circles, by what it has done lately: from cheap signs, without asking a model.
//!
//! What is done about it gets dearer each time that it did not help: the model is told, has to plan anew over a summary, may not
//! repeat itself, begins anew with a handoff, and in the end a person is asked. Each step is an event.

use std::collections::BTreeSet;

use kernel::{
    RunState, Seq,
    command::{EndRequest, TurnOutcome},
    drift::{Drift, DriftKind, RecentCall, Remedy, fingerprint_of_call},
};

/// The same call with the same end, so often.
const REPEATS: usize = 3;
/// Failures one after the other.
const FAILURES: usize = 4;
/// Calls that end well and tell nothing new.
const SILENT: usize = 8;
/// Revisions of the plan in which nothing gets done, while it grows.
const IDLE_REVISIONS: u32 = 4;
/// Turns after which going in circles is something new.
const FORGOTTEN_AFTER: u32 = 20;

/// What was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What kind.
    pub kind: DriftKind,
    /// In the runtime's own words.
    pub detail: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// About what.
    pub notice: Notice,
    /// This.
    pub remedy: Remedy,
}

/// Whether a run goes in circles, and what is to be done about it now. Nothing, as long as nothing has happened since the last
/// remedy.
#[must_use]
pub fn next_step(state: &RunState) -> Option<Step> {
    let notice = notice(state)?;
    let Some(last) = state.drift.filter(|last| is_fresh(state, last)) else {
        return Some(Step { notice, remedy: Remedy::Remind });
    };
    // A turn that is taken again, since no model answered, has not failed to help once more.
    let refused = state.rejected_in_row > 0 && turn(state) > last.turn;
    let acted = newest(state).is_some_and(|newest| newest > last.at) || refused;
    let replanned = notice.kind == DriftKind::GrowingScope && turn(state) > last.turn;
    // Whoever was let go on by a person begins at the first step again.
    let remedy = if answer(state) == Some(true) { Remedy::Remind } else { last.remedy.next() };
    (acted || replanned).then_some(Step { notice, remedy })
}

/// What a person said who was asked whether the run may go on: yes or no, if anybody was asked and has answered.
#[must_use]
pub fn answer(state: &RunState) -> Option<bool> {
    let asked = state.drift.filter(|last| is_fresh(state, last))?.asked?;
    state.decided.iter().find(|(id, _)| *id == asked).map(|(_, verdict)| verdict == "approved")
}

/// The calls of an outcome that repeat what did not help, while that is refused.
#[must_use]
pub fn blocked(state: &RunState, outcome: &TurnOutcome) -> Vec<String> {
    let Some(last) = state.drift.filter(|last| is_fresh(state, last) && last.remedy >= Remedy::Block) else {
        return Vec::new();
    };
    if last.remedy == Remedy::Ask {
        // A person said that it may.
        return Vec::new();
    }
    let before = |call: &&RecentCall| call.seq < last.at;
    let barred: BTreeSet<&str> = state
        .recent
        .iter()
        .filter(before)
        .filter(|call| call.failed || times(state, call) >= REPEATS)
        .map(|call| call.asked.as_str())
        .collect();
    let repeats =
        outcome.calls.iter().filter(|call| barred.contains(fingerprint_of_call(&call.tool, &call.arguments).as_str()));
    repeats
        .map(|call| {
            format!("`{}` with these arguments is blocked, since nothing new comes of it: do something else", call.tool)
        })
        .collect()
}

/// Whether an answer says once more that it is done, with nothing done about what did not hold.
#[must_use]
pub fn forgets_criteria(state: &RunState, outcome: &TurnOutcome) -> Option<Notice> {
    let claims = matches!(outcome.end, Some(EndRequest::CompleteIf { .. }));
    if !claims || state.refusals == 0 {
        return None;
    }
    let checks: BTreeSet<_> = state.verdicts.iter().filter_map(|verdict| verdict.call_id).collect();
    let idle = state.recent.back().is_none_or(|last| checks.contains(&last.call_id));
    idle.then(|| Notice {
        kind: DriftKind::ForgottenCriteria,
        detail: "It was said again to be done, and nothing was done about the criteria that do not hold.".to_owned(),
    })
}

fn notice(state: &RunState) -> Option<Notice> {
    repeated_calls(state)
        .or_else(|| repeated_failures(state))
        .or_else(|| nothing_new(state))
        .or_else(|| growing_scope(state))
}

fn repeated_calls(state: &RunState) -> Option<Notice> {
    let last = state.recent.iter().rev().find(|call| call.came.is_some())?;
    let times = times(state, last);
    (times >= REPEATS).then(|| Notice {
        kind: DriftKind::RepeatedCalls,
        detail: format!("`{}` was called {times} times with the same arguments, and the same came of it.", last.tool),
    })
}

/// How often this very call came to this very end.
fn times(state: &RunState, of: &RecentCall) -> usize {
    let same = |call: &&RecentCall| call.asked == of.asked && call.came == of.came && call.came.is_some();
    state.recent.iter().filter(same).count()
}

fn repeated_failures(state: &RunState) -> Option<Notice> {
    let ended: Vec<_> = state.recent.iter().rev().filter(|call| call.came.is_some()).take(FAILURES).collect();
    let all = ended.len() == FAILURES && ended.iter().all(|call| call.failed);
    all.then(|| Notice {
        kind: DriftKind::RepeatedFailures,
        detail: format!("The last {FAILURES} calls all failed, the last of them `{}`.", ended[0].tool),
    })
}

fn nothing_new(state: &RunState) -> Option<Notice> {
    let ended: Vec<_> = state.recent.iter().filter(|call| call.came.is_some() && !call.failed).collect();
    let (before, last) = ended.split_at(ended.len().saturating_sub(SILENT));
    let known: BTreeSet<_> = before.iter().map(|call| &call.came).collect();
    let silent = last.len() == SILENT && !before.is_empty() && last.iter().all(|call| known.contains(&call.came));
    silent.then(|| Notice {
        kind: DriftKind::NoNewInformation,
        detail: format!("The last {SILENT} calls told nothing that calls before them had not told."),
    })
}

fn growing_scope(state: &RunState) -> Option<Notice> {
    let open = state
        .plan
        .iter()
        .filter(|step| !matches!(step.status, kernel::event::StepStatus::Done | kernel::event::StepStatus::Dropped));
    let open = u32::try_from(open.count()).unwrap_or(u32::MAX);
    let grows = state.plan_idle >= IDLE_REVISIONS && open > state.plan_scope + state.plan_scope / 2 + 1;
    grows.then(|| Notice {
        kind: DriftKind::GrowingScope,
        detail: format!(
            "The plan was changed {} times with no step done, and grew from {} open steps to {open}.",
            state.plan_idle, state.plan_scope
        ),
    })
}

fn is_fresh(state: &RunState, last: &Drift) -> bool {
    turn(state).saturating_sub(last.turn) <= FORGOTTEN_AFTER
}

fn turn(state: &RunState) -> u32 {
    state.turn.as_ref().map_or(state.turns_opened, |turn| turn.number)
}

fn newest(state: &RunState) -> Option<Seq> {
    state.recent.back().map(|call| call.seq)
}

/// What the model is told beside what was noticed.
#[must_use]
pub const fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Remind => "Do something else, or say why this is right.",
        Remedy::Replan => "What went before was summarised. Make a new plan with `update_plan` before you go on.",
        Remedy::Block => "The same again is refused from now on.",
        Remedy::Reset => "You begin anew, with a handoff: read it, and take another way.",
        Remedy::Ask => "The operator is asked whether you may go on.",
    }
}
