//! The auditor finds what it is there for, and nothing in logs that the rules made.

use kernel::{
    Block, Command, Event, EventData, RunId, Timestamp, Trust,
    audit::{Auditor, Violation, rules},
    budget::Limits,
    call::Binding,
    command::*,
    event::{ExternalRef, RunPaused},
    tool::{CallKind, Effect},
    wait::{Condition, ExternalPattern},
};

use crate::build::*;

fn audit(run: &Run) -> Vec<&'static str> {
    audit_log(run.id, &run.log, None)
}

fn audit_log(run: RunId, log: &[Event], settled: Option<Timestamp>) -> Vec<&'static str> {
    let mut auditor = Auditor::new(settled);
    auditor.run(run, log).into_iter().map(|violation| violation.rule).collect()
}

/// A run whose one effect has ended.
fn finished() -> Run {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    let binding = Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() };
    run.must(Command::StartCall(StartCall { call_id: ids[0], executor: "e".into(), binding }));
    run.must(completed(ids[0]));
    let end = Some(EndRequest::Complete(block("done")));
    let outcome = TurnOutcome { end, trust: Trust::Untrusted, ..run.outcome() };
    run.commit(outcome);
    run
}

/// The log without an event, numbered anew.
fn without(run: &Run, name: &str) -> Vec<Event> {
    let kept = run.log.iter().filter(|event| event.data.type_name() != name).cloned();
    kept.zip(1..).map(|(event, seq)| Event { seq, ..event }).collect()
}

/// The log with an event twice, numbered anew.
fn twice(run: &Run, name: &str) -> Vec<Event> {
    let times = |event: &Event| if event.data.type_name() == name { 2 } else { 1 };
    let log = run.log.iter().flat_map(|event| std::iter::repeat_n(event.clone(), times(event)));
    log.zip(1..).map(|(event, seq)| Event { seq, ..event }).collect()
}

#[test]
fn what_the_rules_made_is_in_order() {
    assert_eq!(audit(&finished()), Vec::<&str>::new());
}

#[test]
fn a_log_that_was_tampered_with_is_told_by_the_rule_that_it_breaks() {
    let run = finished();
    let found = |log: &[Event]| audit_log(run.id, log, None);
    assert!(found(&without(&run, "tool.started")).contains(&rules::STARTED_FIRST));
    assert!(found(&without(&run, "run.runnable")).contains(&rules::OPEN_TURN));
    assert!(found(&without(&run, "tool.completed")).contains(&rules::CLEAN_END));
    assert!(found(&without(&run, "run.created")).contains(&rules::FOLDS));
    assert!(found(&twice(&run, "turn.completed")).contains(&rules::ONE_OUTCOME));
    assert!(found(&twice(&run, "tool.started")).contains(&rules::STARTS_ONCE));
    assert!(found(&twice(&run, "tool.completed")).contains(&rules::ONE_END));
    assert_eq!(found(&run.log[..2]), Vec::<&str>::new());
    let gap: Vec<_> = run.log.iter().filter(|event| event.seq != 3).cloned().collect();
    assert!(found(&gap).contains(&rules::GAPLESS));
    let mut longer = run.log.clone();
    let seq = longer.len() as u64 + 1;
    longer.push(Event {
        seq,
        at: at(1000),
        data: EventData::RunPaused(RunPaused { by: "ann".into(), by_parent: false }),
    });
    assert_eq!(found(&longer), [rules::LAST]);
}

#[test]
fn a_result_without_its_turn_is_a_lost_wake() {
    let run = finished();
    let until = run.log.iter().position(|event| event.data.type_name() == "tool.completed").unwrap();
    assert_eq!(audit_log(run.id, &run.log[..=until], None), [rules::NO_LOST_WAKE, rules::SLEEPS_ON]);
}

#[test]
fn a_quiet_system_leaves_nothing_to_do() {
    let mut run = Run::started(Limits::default());
    assert_eq!(audit_log(run.id, &run.log, Some(at(9))), [rules::SETTLED], "the turn");
    run.request(vec![run.call("read", Effect::Read, CallKind::Call)]);
    assert_eq!(audit_log(run.id, &run.log, Some(at(9))), [rules::SETTLED], "the call");
    assert_eq!(audit_log(run.id, &run.log, None), Vec::<&str>::new());
}

#[test]
fn a_turn_is_believed_no_more_than_what_it_saw() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("read", Effect::Read, CallKind::Call)]);
    run.must(completed(ids[0]));
    // The planner believes itself too much.
    run.commit(TurnOutcome { text: Some(block("so it is")), ..run.outcome() });
    assert_eq!(audit(&run), Vec::<&str>::new(), "the rules do not");
    let turn = run.log.iter_mut().rev().find_map(|event| match &mut event.data {
        EventData::TurnCompleted(turn) => Some(turn),
        _ => None,
    });
    let turn = turn.unwrap();
    assert_eq!(turn.trust, Trust::Untrusted);
    turn.trust = Trust::System;
    assert_eq!(audit(&run), [rules::TRUST]);
}

#[test]
fn two_runs_never_share_an_exclusive_event() {
    let pattern = ExternalPattern {
        source: "forge".into(),
        event_type: "merged".into(),
        subject: "1".into(),
        filter: None,
        exclusive: true,
        verify: None,
    };
    let mut auditor = Auditor::new(None);
    let mut violations: Vec<Violation> = Vec::new();
    for _ in 0..2 {
        let mut run = Run::started(Limits::default());
        let on = Condition::External(pattern.clone()).into();
        let wait = WaitRequest { on, why: "w".into(), assumes: None, expects: None, deadline: None };
        run.commit(TurnOutcome { wait: Some(wait), ..run.outcome() });
        let external = ExternalRef {
            position: 7,
            source: "forge".into(),
            id: "e".into(),
            event_type: "merged".into(),
            resource_key: "forge:1".into(),
            traceparent: None,
        };
        let wait_id = run.state().wait.as_ref().unwrap().wait_id;
        let block = Block::new("merged", Trust::Untrusted, "event:forge/e");
        run.must(Command::DeliverExternal(Box::new(DeliverExternal { external, wait_id, leaf: 0, block })));
        for event in &run.log {
            violations.extend(auditor.push(run.id, event));
        }
    }
    violations.extend(auditor.finish());
    assert_eq!(violations.iter().map(|violation| violation.rule).collect::<Vec<_>>(), [rules::EXCLUSIVE]);
    assert!(serde_json::to_string(&violations).unwrap().contains("externals.exclusive"));
}

#[test]
fn rules_have_names_of_their_own() {
    let mut names: Vec<_> = rules::ALL.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rules::ALL.len());
}
