//! The rules by example: each race and each promise that a user relies on.

use kernel::{
    Block, Command, Rejection, Status, TimerId, Trust, WaitId,
    budget::{Limits, Usage},
    call::{Binding, CallFailure, Exit, Observation, SignalCounts, Verdict},
    command::*,
    event::{ExternalRef, Finding, RunCreated},
    opinion::{Opinion, SecondOpinion, Why},
    state::FactKind,
    tool::{CallKind, Effect},
    units::Duration,
    wait::{Condition, ExternalPattern, WaitExpr},
};

use crate::build::*;

fn observation(call_id: kernel::CallId, decision: Option<&str>) -> Observation {
    Observation {
        call_id: Some(call_id),
        phase: "failure".into(),
        changed: "a test failed".into(),
        anomaly: decision.is_some(),
        decision: decision.map(str::to_owned),
        evidence: Vec::new(),
        missing: None,
        counts: SignalCounts::default(),
    }
}

fn exit(code: i32) -> Exit {
    Exit { code: Some(code), signal: None, reason: "exited".into(), bytes: 10, lines: 1 }
}

fn wait_for(on: WaitExpr) -> WaitRequest {
    WaitRequest { on, why: "to see".into(), assumes: None, expects: None, deadline: None }
}

fn start(call_id: kernel::CallId) -> StartCall {
    StartCall { call_id, executor: "executor-1".into(), binding: binding() }
}

fn binding() -> Binding {
    Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() }
}

#[test]
fn the_common_path_is_two_commits_of_two_events() {
    let mut run = Run::started(Limits::default());
    let call = run.call("read", Effect::Read, CallKind::Call);
    let call_id = call.call_id;
    let outcome = TurnOutcome { calls: vec![call], ..run.outcome() };
    assert_eq!(run.commit(outcome), ["turn.completed", "tool.requested"]);
    assert_eq!(run.state().status(), Status::Waiting);
    assert_eq!(run.must(completed(call_id)), ["tool.completed", "run.runnable"]);
    assert_eq!(run.state().status(), Status::Runnable);
}

#[test]
fn text_alone_is_the_final_answer() {
    let mut run = Run::started(Limits::default());
    let outcome = TurnOutcome { text: Some(block("42")), ..run.outcome() };
    assert_eq!(run.commit(outcome), ["turn.completed", "run.completed"]);
    assert_eq!(run.send(&Command::Cancel(ann(None))), Err(Rejection::Ended(Status::Completed)));
}

#[test]
fn an_outcome_that_asks_for_nothing_is_refused() {
    let mut run = Run::started(Limits::default());
    let refused = run.send(&Command::CommitTurn(Box::new(run.outcome())));
    assert!(matches!(refused, Err(Rejection::InvalidOutcome(_))), "{refused:?}");
}

#[test]
fn the_second_outcome_of_a_turn_only_costs() {
    let mut run = Run::started(Limits::default());
    let (first, second) = (run.outcome(), run.outcome());
    let call = run.call("read", Effect::Read, CallKind::Call);
    run.commit(TurnOutcome { calls: vec![call], ..first });
    let spent = run.state().spent.usage.input_tokens;
    assert_eq!(run.commit(TurnOutcome { text: Some(block("late")), ..second }), ["turn.rejected"]);
    assert_eq!(run.state().spent.usage.input_tokens, spent + 10, "the cost is kept");
    assert_eq!(run.state().status(), Status::Waiting);
}

#[test]
fn a_message_during_a_turn_drops_its_calls_and_opens_the_next() {
    let mut run = Run::started(Limits::default());
    let outcome = TurnOutcome { calls: vec![run.call("write", Effect::External, CallKind::Call)], ..run.outcome() };
    run.must(Command::AddMessage(AddMessage { block: block("stop that") }));
    assert_eq!(run.commit(outcome), ["turn.completed", "run.runnable"]);
    assert!(run.state().calls.is_empty());
    assert!(run.state().facts.iter().any(|fact| fact.kind == FactKind::Message), "the next turn is told");
}

#[test]
fn parallel_results_wake_once() {
    let mut run = Run::started(Limits::default());
    let calls = ["a", "b", "c"].map(|name| run.call(name, Effect::Read, CallKind::Call));
    let ids = run.request(calls.to_vec());
    assert_eq!(run.must(completed(ids[1])), ["tool.completed"]);
    assert_eq!(run.must(completed(ids[0])), ["tool.completed"]);
    assert_eq!(run.must(completed(ids[2])), ["tool.completed", "run.runnable"]);
}

#[test]
fn an_effect_needs_its_start_and_an_unapproved_one_gets_none() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    assert!(matches!(run.send(&completed(ids[0])), Err(Rejection::CallStatus(..))));
    run.must(Command::AskApproval(Box::new(approval(&run, Some(ids[0]), "merge"))));
    assert!(matches!(run.send(&Command::StartCall(start(ids[0]))), Err(Rejection::CallStatus(..))));
    let approval_id = *run.state().approvals.keys().next().unwrap();
    let yes = decision(approval_id, Verdict::Approve, "ann");
    assert_eq!(run.must(Command::DecideApproval(yes.clone())), ["approval.granted"]);
    assert!(matches!(run.send(&Command::DecideApproval(yes)), Err(Rejection::AlreadyDecided(..))));
    let other = StartCall { binding: Binding { arguments: "changed".into(), ..binding() }, ..start(ids[0]) };
    assert_eq!(run.send(&Command::StartCall(other)), Err(Rejection::GrantMismatch(ids[0])));
    assert_eq!(run.must(Command::StartCall(start(ids[0]))), ["tool.started"]);
    assert!(run.send(&Command::StartCall(start(ids[0]))).is_err(), "an effect starts once");
    assert_eq!(run.must(completed(ids[0])), ["tool.completed", "run.runnable"]);
}

#[test]
fn edited_arguments_are_what_is_dispatched() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    run.must(Command::AskApproval(Box::new(approval(&run, Some(ids[0]), "merge"))));
    let approval_id = *run.state().approvals.keys().next().unwrap();
    let edited = Some((serde_json::json!({ "name": "edited" }), "b".to_owned()));
    run.must(Command::DecideApproval(DecideApproval { edited, ..decision(approval_id, Verdict::Approve, "ann") }));
    assert_eq!(run.state().calls[&ids[0]].request.arguments["name"], "edited");
    assert_eq!(run.send(&Command::StartCall(start(ids[0]))), Err(Rejection::GrantMismatch(ids[0])));
    let shown = StartCall { binding: Binding { arguments: "b".into(), ..binding() }, ..start(ids[0]) };
    run.must(Command::StartCall(shown));
}

#[test]
fn a_denied_call_tells_the_model_why() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    run.must(Command::AskApproval(Box::new(approval(&run, Some(ids[0]), "merge"))));
    let approval_id = *run.state().approvals.keys().next().unwrap();
    let no = DecideApproval { reason: Some("not on a Friday".into()), ..decision(approval_id, Verdict::Deny, "ann") };
    assert_eq!(run.must(Command::DecideApproval(no)), ["approval.denied", "tool.denied", "run.runnable"]);
    assert!(run.state().facts.iter().any(|fact| fact.block.text.contains("Friday")));
}

#[test]
fn an_unanswered_question_becomes_a_no() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    let question = approval(&run, Some(ids[0]), "merge");
    let approval_id = question.approval_id;
    run.must(Command::AskApproval(Box::new(question)));
    assert!(run.must(Command::ExpireApproval(ExpireApproval { approval_id })).is_empty(), "not yet");
    run.now = 2_000_000;
    let events = run.must(Command::ExpireApproval(ExpireApproval { approval_id }));
    assert_eq!(events, ["approval.expired", "tool.denied", "run.runnable"]);
}

#[test]
fn an_activity_ends_by_its_observation_in_one_wake() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("build", Effect::Write, CallKind::Activity)]);
    run.must(Command::StartCall(start(ids[0])));
    assert_eq!(run.must(Command::Observe(observation(ids[0], None))), ["observation.recorded"]);
    assert_eq!(run.state().status(), Status::Waiting, "progress does not wake");
    let conclude = ConcludeCall {
        call_id: ids[0],
        exit: exit(1),
        succeeded: false,
        observation: observation(ids[0], Some("the tests fail")),
        asked: None,
        duration_ms: 10,
    };
    let events = run.must(Command::ConcludeCall(Box::new(conclude.clone())));
    assert_eq!(events, ["observation.recorded", "tool.failed", "run.runnable"]);
    assert_eq!(run.send(&Command::ConcludeCall(Box::new(conclude))), Err(Rejection::CallNotOpen(ids[0])));
}

#[test]
fn what_a_second_opinion_costs_is_the_runs_and_no_turn() {
    let ended = |limits: Limits| {
        let mut run = Run::started(limits);
        let ids = run.request(vec![run.call("build", Effect::Write, CallKind::Activity)]);
        run.must(Command::StartCall(start(ids[0])));
        let before = run.state().spent;
        let usage = Usage { model_calls: 1, input_tokens: 90, output_tokens: 10, cost_microusd: 7, ..Usage::default() };
        let said = Opinion { anomaly: true, decision_needed: true, why: Why::Failed };
        let asked =
            SecondOpinion { model: Some("scripted:small".into()), said: Some(said), usage, ..Default::default() };
        let conclude = ConcludeCall {
            call_id: ids[0],
            exit: exit(0),
            succeeded: true,
            observation: observation(ids[0], Some("a model says otherwise")),
            asked: Some(asked),
            duration_ms: 10,
        };
        let events = run.must(Command::ConcludeCall(Box::new(conclude)));
        let spent = run.state().spent;
        assert_eq!(spent.turns, before.turns);
        assert_eq!(spent.usage.tokens(), before.usage.tokens() + 100);
        assert_eq!(spent.usage.cost_microusd, before.usage.cost_microusd + 7);
        events
    };
    assert_eq!(ended(Limits::default()), ["observation.recorded", "tool.completed", "run.runnable"]);
    let short = Limits { tokens: Some(100), ..Limits::default() };
    assert_eq!(ended(short), ["observation.recorded", "tool.completed", "budget.exceeded", "run.failed"]);
}

#[test]
fn a_flood_of_progress_stays_one_fact() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("build", Effect::Write, CallKind::Activity)]);
    run.must(Command::StartCall(start(ids[0])));
    for _ in 0..1000 {
        run.must(Command::Observe(observation(ids[0], None)));
    }
    assert_eq!(run.state().facts.iter().filter(|fact| fact.kind == FactKind::Observation).count(), 1);
}

#[test]
fn doubt_is_never_repeated_blindly() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("merge", Effect::External, CallKind::Call)]);
    run.must(Command::StartCall(start(ids[0])));
    run.must(Command::DoubtCall(DoubtCall { call_id: ids[0], reason: "its executor is gone".into() }));
    assert!(run.send(&Command::StartCall(start(ids[0]))).is_err());
    let evidence = Block::new("no such merge", Trust::Untrusted, "probe");
    let looked_at = |as_of| {
        let evidence = evidence.clone();
        Command::ReconcileCall(ReconcileCall {
            call_id: ids[0],
            finding: Finding::NotDone,
            as_of,
            evidence,
            result: None,
        })
    };
    assert!(matches!(run.send(&looked_at(at(run.now))), Err(Rejection::TooEarly(..))));
    let before = at(run.now);
    run.now += 60;
    // Who looked too early and was held up since has nothing to tell.
    assert!(matches!(run.send(&looked_at(before)), Err(Rejection::TooEarly(..))));
    run.must(looked_at(at(run.now)));
    assert_eq!(run.must(Command::StartCall(start(ids[0]))), ["tool.started"]);
    run.must(Command::DoubtCall(DoubtCall { call_id: ids[0], reason: "again".into() }));
    let as_of = at(run.now);
    let done = ReconcileCall { call_id: ids[0], finding: Finding::Done, as_of, evidence, result: None };
    assert_eq!(run.must(Command::ReconcileCall(done)), ["tool.reconciled", "tool.completed", "run.runnable"]);
}

#[test]
fn an_unknown_outcome_ends_the_call_and_wakes() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("pay", Effect::Payment, CallKind::Call)]);
    run.must(Command::StartCall(start(ids[0])));
    run.must(Command::DoubtCall(DoubtCall { call_id: ids[0], reason: "its executor is gone".into() }));
    let evidence = Block::new("no way to ask", Trust::System, "runtime");
    let as_of = at(run.now);
    let unknown = ReconcileCall { call_id: ids[0], finding: Finding::Unknown, as_of, evidence, result: None };
    assert_eq!(run.must(Command::ReconcileCall(unknown)), ["tool.reconciled", "run.runnable"]);
    assert!(run.state().calls.is_empty());
}

#[test]
fn ending_waits_for_what_has_started() {
    let mut run = Run::started(Limits::default());
    let calls =
        vec![run.call("build", Effect::Write, CallKind::Activity), run.call("merge", Effect::External, CallKind::Call)];
    let ids = run.request(calls);
    run.must(Command::StartCall(start(ids[0])));
    assert_eq!(run.must(Command::Cancel(ann(Some("enough")))), ["tool.cancelled", "run.cancel_requested"]);
    assert_eq!(run.state().status(), Status::Cancelling);
    assert_eq!(run.send(&Command::StartCall(start(ids[1]))), Err(Rejection::Ending));
    let cancelled = Command::CancelCall(CancelCall { call_id: ids[0], reason: "killed".into() });
    assert_eq!(run.must(cancelled), ["tool.cancelled", "run.cancelled"]);
    assert_eq!(run.state().status(), Status::Cancelled);
}

#[test]
fn a_wait_for_any_is_satisfied_once_and_its_timers_go() {
    let mut run = Run::started(Limits::default());
    let timer_id = TimerId::derive(run.id, "t");
    let on = WaitExpr::Any(vec![
        Condition::Timer { timer_id, due: at(100) }.into(),
        Condition::External(ExternalPattern {
            source: "forge".into(),
            event_type: "merged".into(),
            subject: "1".into(),
            filter: None,
            exclusive: false,
            verify: None,
        })
        .into(),
    ]);
    let outcome = TurnOutcome { wait: Some(wait_for(on)), ..run.outcome() };
    assert_eq!(run.commit(outcome), ["turn.completed", "wait.registered", "timer.set", "run.waiting"]);
    let wait_id: WaitId = run.state().wait.as_ref().unwrap().wait_id;
    let deliver = DeliverExternal {
        external: ExternalRef {
            position: 7,
            source: "forge".into(),
            id: "e1".into(),
            event_type: "merged".into(),
            resource_key: "forge:1".into(),
            traceparent: None,
        },
        wait_id,
        leaf: 1,
        block: Block::new("merged", Trust::Operator, "event:forge/e1"),
    };
    let events = run.must(Command::DeliverExternal(Box::new(deliver.clone())));
    assert_eq!(events, ["external.matched", "wait.satisfied", "timer.cancelled", "run.runnable"]);
    let fact = run.state().facts.back().unwrap();
    assert_eq!(fact.block.trust, Trust::Untrusted, "whatever the door says");
    assert!(run.must(Command::DeliverExternal(Box::new(deliver))).is_empty(), "the second time does nothing");
    assert!(run.must(Command::FireTimer(FireTimer { timer_id })).is_empty());
    assert_eq!(run.state().consumed["forge:1"], 7);
}

#[test]
fn a_deadline_wakes_and_says_so() {
    let mut run = Run::started(Limits::default());
    let on = Condition::OperatorInput { approval_id: None }.into();
    let wait = WaitRequest { deadline: Some(at(50)), ..wait_for(on) };
    let outcome = TurnOutcome { wait: Some(wait), ..run.outcome() };
    run.commit(outcome);
    let timer_id = *run.state().timers.keys().next().unwrap();
    assert!(run.must(Command::FireTimer(FireTimer { timer_id })).is_empty(), "not before its time");
    run.now = 60;
    let events = run.must(Command::FireTimer(FireTimer { timer_id }));
    assert_eq!(events, ["timer.fired", "wait.expired", "run.runnable"]);
}

#[test]
fn waits_for_all_need_all() {
    let mut run = Run::started(Limits::default());
    let call = run.call("read", Effect::Read, CallKind::Call);
    let call_id = call.call_id;
    let timer_id = TimerId::derive(run.id, "t");
    let on =
        WaitExpr::All(vec![Condition::TaskResult { call_id }.into(), Condition::Timer { timer_id, due: at(5) }.into()]);
    let outcome = TurnOutcome { calls: vec![call], wait: Some(wait_for(on)), ..run.outcome() };
    run.commit(outcome);
    assert_eq!(run.must(completed(call_id)), ["tool.completed"], "the timer is still to come");
    run.now = 10;
    assert_eq!(run.must(Command::FireTimer(FireTimer { timer_id })), ["timer.fired", "wait.satisfied", "run.runnable"]);
}

#[test]
fn budgets_end_runs_by_name() {
    let mut run = Run::started(Limits { turns: Some(1), ..Limits::default() });
    let ids = run.request(vec![run.call("read", Effect::Read, CallKind::Call)]);
    assert_eq!(run.must(completed(ids[0])), ["tool.completed", "budget.exceeded", "run.failed"]);

    let mut run = Run::started(Limits { wall: Some(Duration::from_secs(5)), ..Limits::default() });
    let timer_id = *run.state().timers.keys().next().unwrap();
    run.now = 10;
    assert_eq!(run.must(Command::FireTimer(FireTimer { timer_id })), ["timer.fired", "budget.exceeded", "run.failed"]);
}

#[test]
fn held_runs_remember_what_happens() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![
        run.call("read", Effect::Read, CallKind::Call),
        run.call("merge", Effect::External, CallKind::Call),
    ]);
    run.must(Command::Pause(ann(None)));
    assert_eq!(run.send(&Command::StartCall(start(ids[1]))), Err(Rejection::Paused));
    run.must(Command::AddMessage(AddMessage { block: block("look again") }));
    assert_eq!(run.state().status(), Status::Paused);
    assert_eq!(run.must(Command::Resume(ann(None))), ["run.resumed", "run.runnable"]);
}

#[test]
fn refused_turns_end_a_run_in_the_end() {
    let mut run = Run::started(Limits::default());
    let mut events = Vec::new();
    for _ in 0..3 {
        let turn_id = run.state().turn.as_ref().unwrap().turn_id;
        let problems = vec!["not a plan".to_owned()];
        events = run.must(Command::RejectTurn(RejectTurn {
            turn_id,
            code: "invalid_output".into(),
            problems,
            usage: Default::default(),
            failures: Vec::new(),
        }));
    }
    assert_eq!(events, ["turn.rejected", "run.failed"]);
}

#[test]
fn what_was_wrong_with_an_answer_repeats_a_model_and_so_is_data() {
    for (seen, believed) in [(Trust::Operator, Trust::Trusted), (Trust::Untrusted, Trust::Untrusted)] {
        let mut run = Run::new();
        let input = Block::new("begin", seen, "test");
        let created = RunCreated { input, ..created(Limits::default()) };
        run.must(Command::Create(Box::new(CreateRun { created, hold: None })));
        let turn_id = run.state().turn.as_ref().unwrap().turn_id;
        run.must(Command::RejectTurn(RejectTurn {
            turn_id,
            code: "invalid_output".into(),
            problems: vec!["there is no tool `obey me`".into()],
            usage: Default::default(),
            failures: Vec::new(),
        }));
        assert_eq!(run.state().facts.back().unwrap().block.trust, believed);
    }
}

#[test]
fn failures_are_facts_for_the_next_turn() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("read", Effect::Read, CallKind::Call)]);
    let failure = CallFailure {
        block: Block::new("no such file", Trust::Untrusted, "tool:test"),
        code: "not_found".into(),
        duration_ms: 1,
    };
    run.must(Command::FailCall(FailCall { call_id: ids[0], failure }));
    let fact = run.state().facts.back().unwrap();
    assert_eq!((fact.kind, fact.block.text.as_str()), (FactKind::Failure, "no such file"));
}

#[test]
fn an_outcome_about_a_state_that_never_was_is_refused() {
    let mut run = Run::started(Limits::default());
    let end = Some(EndRequest::Complete(block("done")));
    let outcome = TurnOutcome { end, based_on: run.state().seq + 1, ..run.outcome() };
    let refused = run.send(&Command::CommitTurn(Box::new(outcome)));
    assert!(matches!(refused, Err(Rejection::InvalidOutcome(_))), "{refused:?}");
}

fn merged(exclusive: bool) -> WaitExpr {
    let (source, event_type, subject) = ("forge".into(), "merged*".into(), "1".into());
    Condition::External(ExternalPattern { source, event_type, subject, filter: None, exclusive, verify: None }).into()
}

fn delivery(run: &Run, position: i64, leaf: u16) -> Command {
    Command::DeliverExternal(Box::new(DeliverExternal {
        external: ExternalRef {
            position,
            source: "forge".into(),
            id: format!("e{position}"),
            event_type: "merged".into(),
            resource_key: "forge:1".into(),
            traceparent: None,
        },
        wait_id: run.state().wait.as_ref().unwrap().wait_id,
        leaf,
        block: Block::new("merged", Trust::Untrusted, "event:forge/e"),
    }))
}

#[test]
fn an_event_that_the_run_had_is_not_for_its_next_wait() {
    let mut run = Run::started(Limits::default());
    run.commit(TurnOutcome { wait: Some(wait_for(merged(false))), ..run.outcome() });
    run.must(delivery(&run, 7, 0));
    run.commit(TurnOutcome { wait: Some(wait_for(merged(false))), ..run.outcome() });
    assert!(run.must(delivery(&run, 7, 0)).is_empty(), "dispatched once more after a crash");
    assert!(run.must(delivery(&run, 6, 0)).is_empty(), "dispatched late");
    assert_eq!(run.must(delivery(&run, 8, 0)), ["external.matched", "wait.satisfied", "run.runnable"]);
}

#[test]
fn events_for_one_wait_may_come_in_any_order() {
    let mut run = Run::started(Limits::default());
    let on = WaitExpr::All(vec![merged(false), merged(false)]);
    run.commit(TurnOutcome { wait: Some(wait_for(on)), ..run.outcome() });
    assert_eq!(run.must(delivery(&run, 7, 1)), ["external.matched"]);
    assert_eq!(run.must(delivery(&run, 6, 0)), ["external.matched", "wait.satisfied", "run.runnable"]);
}

#[test]
fn a_result_is_not_pushed_out_by_a_flood() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![
        run.call("build", Effect::Write, CallKind::Activity),
        run.call("read", Effect::Read, CallKind::Call),
    ]);
    run.must(Command::StartCall(start(ids[0])));
    run.must(Command::AddMessage(AddMessage { block: block("hurry") }));
    let outcome =
        TurnOutcome { wait: Some(wait_for(Condition::TaskResult { call_id: ids[0] }.into())), ..run.outcome() };
    run.must(completed(ids[1]));
    for phase in 0..100 {
        let observation = Observation { phase: format!("{phase} %"), ..observation(ids[0], None) };
        run.must(Command::Observe(observation));
    }
    assert_eq!(run.commit(outcome).last(), Some(&"run.runnable"), "the result came while the turn was under way");
}

#[test]
fn the_first_of_several_satisfies_and_the_others_do_nothing() {
    let mut run = Run::started(Limits::default());
    let timer = |name: &str, due| Condition::Timer { timer_id: TimerId::derive(run.id, name), due: at(due) }.into();
    let any = (0..20).map(|number| timer(&format!("t{number}"), 100 + number)).collect();
    let on =
        WaitExpr::Any(vec![WaitExpr::Any(any), merged(false), WaitExpr::All(vec![timer("late", 900), merged(true)])]);
    let deadline = Some(at(1000));
    run.commit(TurnOutcome { wait: Some(WaitRequest { deadline, ..wait_for(on) }), ..run.outcome() });
    assert_eq!(run.state().timers.len(), 22, "with the deadline's");
    let late = delivery(&run, 9, 22);
    let events = run.must(delivery(&run, 8, 20));
    assert_eq!(events, ["external.matched", "wait.satisfied", "timer.cancelled", "run.runnable"]);
    assert!(run.state().timers.is_empty() && run.state().wait.is_none(), "nothing of it is left");
    assert!(run.must(late).is_empty());
    assert_eq!(run.state().status(), Status::Runnable);
}

#[test]
fn a_deadline_beside_an_event_goes_with_it() {
    let mut run = Run::started(Limits::default());
    let wait = |deadline| WaitRequest { deadline: Some(at(deadline)), ..wait_for(merged(false)) };
    run.commit(TurnOutcome { wait: Some(wait(50)), ..run.outcome() });
    let timer_id = *run.state().timers.keys().next().unwrap();
    assert_eq!(run.must(delivery(&run, 7, 0))[1..], ["wait.satisfied", "timer.cancelled", "run.runnable"]);
    run.now = 60;
    assert!(run.must(Command::FireTimer(FireTimer { timer_id })).is_empty(), "too late to matter");

    run.commit(TurnOutcome { wait: Some(wait(100)), ..run.outcome() });
    let late = delivery(&run, 8, 0);
    let timer_id = *run.state().timers.keys().next().unwrap();
    run.now = 100;
    assert_eq!(run.must(Command::FireTimer(FireTimer { timer_id })), ["timer.fired", "wait.expired", "run.runnable"]);
    assert!(run.must(late).is_empty(), "the event comes after the deadline");
}

#[test]
fn trust_that_is_lost_stays_lost() {
    let mut run = Run::started(Limits::default());
    assert_eq!(run.state().lowest_trust, Trust::Operator);
    let ids = run.request(vec![run.call("read", Effect::Read, CallKind::Call)]);
    run.must(completed(ids[0]));
    assert_eq!(run.state().lowest_trust, Trust::Untrusted);
    for _ in 0..40 {
        run.commit(TurnOutcome { wait: Some(wait_for(merged(false))), ..run.outcome() });
        run.must(Command::AddMessage(AddMessage { block: block("go on") }));
    }
    let shown = run.state().history.iter().map(|entry| entry.block.trust).chain([Trust::Operator]).min();
    assert_eq!(shown, Some(Trust::Operator), "the state does not show it any more");
    assert_eq!(run.state().lowest_trust, Trust::Untrusted, "and remembers it");
}
