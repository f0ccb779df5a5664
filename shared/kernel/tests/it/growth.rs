//! What a run keeps does not grow with its age.

use kernel::{
    Block, Command, Rejection, Trust,
    budget::Limits,
    call::{Observation, SignalCounts},
    command::{DeliverExternal, TurnOutcome, WaitRequest},
    event::ExternalRef,
    state::{MAX_CONSUMED, MAX_OPEN_CALLS, MAX_OPEN_QUESTIONS, TITLE_BYTES},
    tool::{CallKind, Effect},
    wait::{Condition, ExternalPattern},
};

use crate::build::{Run, approval, completed};

fn pull_request(number: i64) -> Condition {
    Condition::External(ExternalPattern {
        source: "forge".into(),
        event_type: "merged".into(),
        subject: number.to_string(),
        filter: None,
        exclusive: false,
        verify: None,
    })
}

fn merged(run: &Run, number: i64) -> Command {
    Command::DeliverExternal(Box::new(DeliverExternal {
        external: ExternalRef {
            position: number,
            source: "forge".into(),
            id: format!("e{number}"),
            event_type: "merged".into(),
            resource_key: format!("forge:{number}"),
            traceparent: None,
        },
        wait_id: run.state().wait.as_ref().unwrap().wait_id,
        leaf: 0,
        block: Block::new("merged", Trust::Untrusted, "event:forge/e"),
    }))
}

#[test]
fn a_run_that_waits_for_one_thing_after_the_other_forgets_the_first() {
    let mut run = Run::started(Limits::default());
    let last = i64::try_from(MAX_CONSUMED).unwrap() + 10;
    for number in 1..=last {
        let on = pull_request(number).into();
        let wait = WaitRequest { on, why: "w".into(), assumes: None, expects: None, deadline: None };
        run.commit(TurnOutcome { wait: Some(wait), ..run.outcome() });
        assert!(run.state().waits_from.is_empty(), "only what the wait is about");
        assert!(!run.must(merged(&run, number)).is_empty());
    }
    let consumed = &run.state().consumed;
    assert_eq!(consumed.len(), MAX_CONSUMED);
    assert!(!consumed.contains_key("forge:10") && consumed.contains_key("forge:11"));
    assert_eq!(consumed[&format!("forge:{last}")], last);
}

fn refused(run: &mut Run, outcome: TurnOutcome) -> String {
    match run.send(&Command::CommitTurn(Box::new(outcome))) {
        Err(Rejection::InvalidOutcome(problems)) => problems.join("\n"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn so_many_calls_may_be_open_and_no_more() {
    let mut run = Run::started(Limits::default());
    let many = |run: &Run, count: usize| -> Vec<_> {
        (0..count).map(|number| run.call(&format!("read{number}"), Effect::Read, CallKind::Call)).collect()
    };
    let calls = many(&run, MAX_OPEN_CALLS + 1);
    let too_many = TurnOutcome { calls, ..run.outcome() };
    assert!(refused(&mut run, too_many).contains("256 calls may be open"));
    let ids = run.request(many(&run, MAX_OPEN_CALLS));
    run.must(crate::build::said("go on"));
    let one_more = TurnOutcome { calls: many(&run, 1), ..run.outcome() };
    assert!(refused(&mut run, one_more.clone()).contains("wait for some of them first"));
    run.must(completed(ids[0]));
    run.commit(TurnOutcome { based_on: run.state().seq, ..one_more });
    assert_eq!(run.state().calls.len(), MAX_OPEN_CALLS);
}

#[test]
fn so_many_questions_may_be_open_and_no_more() {
    let mut run = Run::started(Limits::default());
    for number in 0..MAX_OPEN_QUESTIONS {
        let question = Some(approval(&run, None, &format!("question/{number}")));
        run.commit(TurnOutcome { question, ..run.outcome() });
        run.must(crate::build::said("ask again"));
    }
    assert_eq!(run.state().open_questions(), MAX_OPEN_QUESTIONS);
    let one_more = TurnOutcome { question: Some(approval(&run, None, "one more")), ..run.outcome() };
    assert!(refused(&mut run, one_more).contains("64 questions are open"));
}

#[test]
fn long_titles_are_cut_and_still_fold() {
    let mut run = Run::started(Limits::default());
    let ids = run.request(vec![run.call("build", Effect::Write, CallKind::Activity)]);
    for _ in 0..3 {
        let observation = Observation {
            call_id: Some(ids[0]),
            phase: "p".repeat(10_000),
            changed: "more".into(),
            anomaly: false,
            decision: None,
            evidence: Vec::new(),
            missing: None,
            counts: SignalCounts::default(),
        };
        run.must(Command::Observe(observation));
    }
    let titles: Vec<_> = run.state().facts.iter().map(|fact| fact.title.as_str()).collect();
    let [observed] = titles.as_slice() else { panic!("{titles:?}") };
    assert!(observed.len() < 2 * TITLE_BYTES && observed.contains("bytes cut"), "{observed}");
}
