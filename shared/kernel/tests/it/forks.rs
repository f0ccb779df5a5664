//! Forks and revisions: what a run is told of another one, and what an operator changes of it.

use kernel::{
    Block, Command, EventData, Rejection, RunId, Timestamp, Trust,
    budget::Limits,
    call::Binding,
    command::{CreateRun, ForkRun, ReviseRun, StartCall},
    event::RunForked,
    fork::{Carried, Origin},
    memory::{MemoryChange, MemoryPlace, MemoryScope},
    state::FactKind,
    tool::{CallKind, Effect},
};
use serde_json::Value;

use crate::build::{Run, completed, created};

/// A run that has called something and knows of its result, before its second turn.
fn lived() -> Run {
    let mut run = Run::started(Limits::default());
    let request = run.call("look", Effect::Read, CallKind::Call);
    let calls = run.request(vec![request]);
    run.must(completed(calls[0]));
    run
}

fn fork(of: &Run, effects: bool) -> Run {
    let state = of.state();
    let origin = Origin { run_id: of.id, seq: state.seq, turn: state.turns_opened };
    let forked = RunForked { origin, effects, carried: Carried::of(state) };
    let mut run = Run::new();
    let create = CreateRun { created: created(Limits::default()), hold: None };
    assert_eq!(
        run.must(Command::Fork(Box::new(ForkRun { create, forked }))),
        ["run.created", "run.forked", "run.runnable"]
    );
    run
}

fn start(call_id: kernel::CallId) -> Command {
    let binding = Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() };
    Command::StartCall(StartCall { call_id, executor: "e".into(), binding })
}

fn holds(run: &Run) {
    let violations = kernel::audit::Auditor::new(None).run(run.id, &run.log);
    assert!(violations.is_empty(), "{violations:?}");
}

#[test]
fn a_fork_knows_what_was_known_and_nothing_that_was_under_way() {
    let origin = lived();
    let run = fork(&origin, false);
    let state = run.state();
    assert_eq!(state.origin.map(|origin| origin.run_id), Some(origin.id));
    assert!(state.facts.iter().any(|fact| fact.kind == FactKind::Result && fact.title.contains("`test.look`")));
    assert!(state.facts.iter().all(|fact| fact.seq == 2 && fact.call_id.is_none()));
    assert_eq!(state.facts.back().unwrap().kind, FactKind::Notice);
    assert!(state.history.iter().any(|entry| entry.title.contains("You called")));
    assert!(state.calls.is_empty() && state.wait.is_none() && state.spent.turns == 0);
    assert_eq!(state.lowest_trust, origin.state().lowest_trust, "what it was told is not believed more");
    assert_ne!(state.turn.as_ref().unwrap().turn_id, origin.state().turn.as_ref().unwrap().turn_id);
    holds(&run);
}

#[test]
fn what_is_gone_from_the_past_is_not_forgotten_in_trust() {
    let mut state = lived().state().clone();
    state.facts.clear();
    state.history.clear();
    state.lowest_trust = Trust::Untrusted;
    let carried = Carried::of(&state);
    assert_eq!(Trust::join_all(carried.trusts()), Trust::Untrusted);
    state.lowest_trust = Trust::System;
    assert!(Carried::of(&state).history.is_empty(), "nothing is made up where nothing is missing");
}

#[test]
fn a_simulated_fork_starts_nothing_and_takes_what_is_on_record() {
    let mut run = fork(&lived(), false);
    let request = run.call("merge", Effect::External, CallKind::Call);
    let call = run.request(vec![request])[0];
    assert_eq!(run.send(&start(call)), Err(Rejection::Simulated));
    assert!(run.must(completed(call)).starts_with(&["tool.completed"]));
    holds(&run);

    let mut allowed = fork(&lived(), true);
    let request = allowed.call("merge", Effect::External, CallKind::Call);
    let call = allowed.request(vec![request])[0];
    assert_eq!(allowed.must(start(call)), ["tool.started"]);
    holds(&allowed);
}

#[test]
fn a_simulated_fork_changes_nothing_that_others_remember() {
    for effects in [false, true] {
        let mut run = fork(&lived(), effects);
        let place = MemoryPlace { scope: MemoryScope::Agent, owner: "tester".into(), key: "habit".into() };
        let change = MemoryChange::Write { place, block: crate::build::block("early"), expires_at: None };
        let text = Some(crate::build::block("done"));
        let names = run.commit(kernel::command::TurnOutcome { memories: vec![change], text, ..run.outcome() });
        assert_eq!(names.contains(&"memory.written"), effects, "{names:?}");
        holds(&run);
    }
}

#[test]
fn a_run_below_a_simulated_fork_is_simulated_as_well() {
    let mut run = fork(&lived(), false);
    let child = kernel::child::SpawnRequest {
        call_id: kernel::CallId::derive(run.id, "child"),
        agent: "helper".into(),
        agent_digest: "d".into(),
        task: crate::build::block("help"),
        tools: vec!["test.look".into()],
        limits: Limits::default(),
        on_failure: Default::default(),
        acceptance: Vec::new(),
        parallel_wake: Default::default(),
        debounce: Default::default(),
    };
    let outcome = kernel::command::TurnOutcome { spawns: vec![child], ..run.outcome() };
    assert!(run.commit(outcome).contains(&"subagent.started"));
    let (call, known) = run.state().children.iter().next().unwrap();
    let step = kernel::child::next_step(run.state(), *call, None, None).unwrap();
    let mut below = Run { id: known.child_id, ..Run::new() };
    below.must(step.command);
    let told = below.state().facts.iter().any(|fact| fact.block.text.contains("simulated"));
    assert!(below.state().simulated && told);
    let request = below.call("merge", Effect::External, CallKind::Call);
    let request = kernel::call::CallRequest { tool: "test.look".into(), ..request };
    let asked = below.request(vec![request])[0];
    assert_eq!(below.send(&start(asked)), Err(Rejection::Simulated));
    // Whoever reads both logs notices if only one of them has no effects.
    let mut auditor = kernel::audit::Auditor::new(None);
    assert_eq!(auditor.run(run.id, &run.log), []);
    assert_eq!(auditor.run(below.id, &below.log), []);
    assert_eq!(auditor.families(), []);
    let EventData::RunCreated(created) = &mut below.log[0].data else { panic!("no beginning") };
    created.parent.as_mut().unwrap().simulated = false;
    let mut auditor = kernel::audit::Auditor::new(None);
    auditor.run(run.id, &run.log);
    auditor.run(below.id, &below.log);
    assert!(auditor.families().iter().any(|violation| violation.rule == kernel::audit::rules::SIMULATED));
}

#[test]
fn what_a_simulated_fork_records_is_nothing_to_undo() {
    let mut run = fork(&lived(), false);
    let mut request = run.call("merge", Effect::External, CallKind::Call);
    request.compensation = kernel::call::Compensation::Declared;
    let call = run.request(vec![request])[0];
    run.must(completed(call));
    assert!(run.state().undo.is_empty());
    assert_eq!(run.must(Command::Cancel(crate::build::ann(None))).last(), Some(&"run.cancelled"));
    holds(&run);
}

#[test]
fn a_revision_is_kept_told_and_drops_what_was_wanted_without_it() {
    let mut run = Run::started(Limits::default());
    let before = run.outcome();
    let revise = ReviseRun {
        objective: Some(Block::new("mend the tests as well", Trust::Operator, "operator:ann")),
        tools: Some(vec!["test.look".into()]),
        by: "ann".into(),
        reason: Some("they are red".into()),
        ..ReviseRun::default()
    };
    assert_eq!(run.must(Command::Revise(Box::new(revise))), ["run.revised", "message.added"]);
    assert_eq!((run.state().revision, run.state().objective.text.as_str()), (1, "mend the tests as well"));
    assert!(run.state().facts.back().unwrap().block.text.contains("they are red"));
    // A turn that did not know of it begins nothing, and the next one may not use what was taken away.
    let request = run.call("look", Effect::Read, CallKind::Call);
    let names = run.commit(kernel::command::TurnOutcome { calls: vec![request], ..before });
    assert!(!names.contains(&"tool.requested"), "{names:?}");
    let other = run.call("merge", Effect::External, CallKind::Call);
    let outcome = kernel::command::TurnOutcome { calls: vec![other], ..run.outcome() };
    assert!(matches!(run.send(&Command::CommitTurn(Box::new(outcome))), Err(Rejection::InvalidOutcome(_))));
    let again = ReviseRun { acceptance: Some(Vec::new()), by: "ann".into(), ..ReviseRun::default() };
    run.must(Command::Revise(Box::new(again)));
    assert_eq!(run.state().revision, 2);
    holds(&run);
}

#[test]
fn a_revision_may_change_the_budget_with_it_and_an_ending_run_is_not_revised() {
    let mut run = Run::started(Limits::default());
    let limits = Limits { turns: Some(3), ..Limits::default() };
    let revise = ReviseRun { limits: Some(limits), by: "ann".into(), ..ReviseRun::default() };
    assert_eq!(run.must(Command::Revise(Box::new(revise.clone()))), ["budget.changed"]);
    run.must(Command::Cancel(crate::build::ann(None)));
    assert!(run.send(&Command::Revise(Box::new(revise))).is_err());
}

/// Written by the first version that had them: never edited, only added to.
const OLDEST: &str = include_str!("../golden/fork-v1.jsonl");

#[test]
fn the_oldest_forks_load_and_are_written_as_they_were() {
    let mut state = None;
    for (line, seq) in OLDEST.lines().zip(1..) {
        let row: Value = serde_json::from_str(line).unwrap();
        let data = EventData::decode(row["type"].as_str().unwrap(), 1, &row["data"].to_string()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&data.encode().unwrap()).unwrap(), row["data"]);
        let event = kernel::Event { seq, at: Timestamp::UNIX_EPOCH, data };
        state = Some(kernel::apply(state, RunId::mint(), &event).unwrap());
    }
    let state = state.unwrap();
    assert!(state.simulated && state.revision == 1 && state.plan.len() == 1);
}
