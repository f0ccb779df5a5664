//! Calls that are put off, and effects that are undone.

use kernel::{
    Command, Rejection, Status, TimerId, Trust,
    audit::Auditor,
    budget::Limits,
    call::{Attempt, Binding, CallStatus, Compensation, ErrorClass, Verdict},
    command::{CompensateCall, DoubtCall, EndRequest, FireTimer, ProgressCall, StartCall, TurnOutcome},
    event::{EventData, TimerPurpose},
    tool::{CallKind, Effect},
};

use crate::build::*;

fn start(call_id: kernel::CallId) -> Command {
    let binding = Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() };
    Command::StartCall(StartCall { call_id, executor: "executor-1".into(), binding })
}

fn put_off(run: &Run, call_id: kernel::CallId, seconds: i64) -> Command {
    let attempt = Attempt {
        number: 1,
        began: at(run.now),
        took_ms: 3,
        class: ErrorClass::Retry,
        code: "http_status".into(),
        said: "HTTP 429".into(),
        target: Some("api.example.com:443".into()),
        dry_run: false,
    };
    Command::ProgressCall(Box::new(ProgressCall {
        attempt: Some(attempt),
        put_off: Some(at(run.now + seconds)),
        starts: run.state().calls[&call_id].attempts,
        reason: Some("retry".into()),
        ..ProgressCall::of(call_id)
    }))
}

fn retry(run: &Run) -> TimerId {
    let mut timers = run.state().timers.iter().filter(|(_, timer)| timer.purpose == TimerPurpose::Retry);
    let timer = *timers.next().unwrap().0;
    assert!(timers.next().is_none());
    timer
}

fn audited(run: &Run) {
    assert_eq!(Auditor::new(None).run(run.id, &run.log), []);
}

#[test]
fn a_call_that_is_put_off_is_nobodys_until_its_time() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    run.must(start(ids[0]));
    let command = put_off(&run, ids[0], 300);
    assert_eq!(run.must(command), ["tool.progressed", "timer.set"]);
    let call = &run.state().calls[&ids[0]];
    assert_eq!((call.status, call.failed_attempts), (CallStatus::Requested, 1));
    assert!(call.put_off.is_some() && !call.is_started());
    let fire = Command::FireTimer(FireTimer { timer_id: retry(&run) });
    assert!(run.must(fire.clone()).is_empty(), "not yet");
    run.now += 400;
    assert_eq!(run.must(fire), ["timer.fired", "tool.due"]);
    assert!(run.state().calls[&ids[0]].put_off.is_none());
    assert_eq!(run.must(start(ids[0])), ["tool.started"]);
    assert_eq!(run.state().calls[&ids[0]].attempts, 2);
    run.must(completed(ids[0]));
    audited(&run);
}

#[test]
fn a_dry_run_counts_apart_and_anew_once_a_person_has_agreed() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    let Command::ProgressCall(mut tried) = put_off(&run, ids[0], 300) else { unreachable!() };
    tried.put_off = None;
    tried.attempt.as_mut().unwrap().dry_run = true;
    assert_eq!(run.must(Command::ProgressCall(tried)), ["tool.progressed"]);
    let counts = |run: &Run| {
        let call = &run.state().calls[&ids[0]];
        (call.failed_attempts, call.failed_dry_runs)
    };
    assert_eq!(counts(&run), (0, 1));
    let question = approval(&run, Some(ids[0]), "merge");
    let yes = decision(question.approval_id, Verdict::Approve, "ann");
    run.must(Command::AskApproval(Box::new(question)));
    run.must(Command::DecideApproval(yes));
    assert_eq!((counts(&run), run.state().calls[&ids[0]].status), ((0, 0), CallStatus::Approved));
    audited(&run);
}

#[test]
fn nobody_puts_off_what_somebody_else_has_started_since() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    let late = put_off(&run, ids[0], 300);
    run.must(start(ids[0]));
    assert_eq!(run.send(&late), Err(Rejection::CallStatus(ids[0], CallStatus::Started)));
    run.must(completed(ids[0]));
    audited(&run);
}

#[test]
fn a_call_that_goes_on_sooner_or_ends_leaves_no_timer_behind() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    let command = put_off(&run, ids[0], 300);
    run.must(command);
    assert_eq!(run.must(start(ids[0])), ["tool.started", "timer.cancelled"]);
    let command = put_off(&run, ids[0], 300);
    run.must(command);
    assert_eq!(run.must(Command::Cancel(ann(None))), ["timer.cancelled", "tool.cancelled", "run.cancelled"]);
    audited(&run);
}

#[test]
fn what_has_not_ended_may_ask_and_wakes() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("install", Effect::Write, CallKind::Activity)]);
    run.must(start(ids[0]));
    let asks =
        Command::ProgressCall(Box::new(ProgressCall { asks: Some(block("y or n?")), ..ProgressCall::of(ids[0]) }));
    assert_eq!(run.must(asks), ["tool.progressed", "run.runnable"]);
    assert_eq!(run.state().calls[&ids[0]].status, CallStatus::Started);
    audited(&run);
}

#[test]
fn a_doubt_about_a_start_ends_when_it_is_found_where_it_goes_on() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("deploy", Effect::External, CallKind::Activity)]);
    run.must(start(ids[0]));
    let doubt = DoubtCall { call_id: ids[0], reason: "its executor is gone".into() };
    run.must(Command::DoubtCall(doubt));
    let asks = ProgressCall { asks: Some(block("what?")), ..ProgressCall::of(ids[0]) };
    assert!(run.send(&Command::ProgressCall(Box::new(asks))).is_err());
    let found = ProgressCall { handle: Some(serde_json::json!({"id": 7})), ..ProgressCall::of(ids[0]) };
    assert_eq!(run.must(Command::ProgressCall(Box::new(found))), ["tool.progressed"]);
    let call = &run.state().calls[&ids[0]];
    assert_eq!((call.status, call.handle.as_ref()), (CallStatus::Started, Some(&serde_json::json!({"id": 7}))));
    audited(&run);
}

/// A run with two effects that can be undone, one after the other.
fn with_two_effects() -> (Run, Vec<kernel::CallId>) {
    let mut run = Run::started(Limits { tool_calls: Some(2), ..Limits::default() });
    let mut done = Vec::new();
    for name in ["book", "pay"] {
        let mut call = run.call(name, Effect::External, CallKind::Call);
        call.compensation = Compensation::Declared;
        call.trust = Trust::Untrusted;
        let ids = run.request(vec![call]);
        run.must(start(ids[0]));
        run.must(completed(ids[0]));
        done.extend(ids);
    }
    (run, done)
}

fn compensate(run: &Run, undone: kernel::CallId) -> Command {
    let mut request = run.call("undo", Effect::External, CallKind::Call);
    request.compensation = Compensation::Of(undone);
    Command::CompensateCall(Box::new(CompensateCall { request }))
}

/// The call that undoes, as it was asked for last.
fn undoing(run: &Run) -> kernel::CallId {
    let asked = run.log.iter().rev().find_map(|event| match &event.data {
        EventData::ToolRequested(requested) => Some(requested.call.clone()),
        _ => None,
    });
    let asked = asked.unwrap();
    assert!(asked.is_compensation() && asked.trust == Trust::Untrusted);
    asked.call_id
}

#[test]
fn a_run_that_is_cancelled_undoes_its_effects_newest_first() {
    let (mut run, done) = with_two_effects();
    let too_soon = compensate(&run, done[1]);
    assert_eq!(run.send(&too_soon), Err(Rejection::NothingToCompensate(done[1])));
    run.must(Command::Pause(ann(None)));
    assert_eq!(run.must(Command::Cancel(ann(None))), ["run.cancel_requested"]);
    assert_eq!(run.state().status(), Status::Cancelling);
    let (wrong, right) = (compensate(&run, done[0]), compensate(&run, done[1]));
    assert_eq!(run.send(&wrong), Err(Rejection::NothingToCompensate(done[0])));
    assert_eq!(run.must(right), ["tool.requested"]);
    let first = undoing(&run);
    let second = compensate(&run, done[0]);
    assert!(run.send(&second).is_err(), "one at a time");
    // Also while the run is held, and beyond its budget: it was asked to end.
    run.must(start(first));
    assert_eq!(run.must(completed(first)), ["tool.completed"]);
    run.must(second);
    let second = undoing(&run);
    run.must(start(second));
    assert_eq!(run.must(completed(second)), ["tool.completed", "run.cancelled"]);
    audited(&run);
}

#[test]
fn a_run_that_succeeds_undoes_nothing() {
    let (mut run, _) = with_two_effects();
    let end = TurnOutcome { end: Some(EndRequest::Complete(block("done"))), ..run.outcome() };
    assert_eq!(run.commit(end), ["turn.completed", "run.completed"]);
    audited(&run);
}
