//! What a run keeps does not grow with its age.

use kernel::{
    Block, Command, Trust,
    budget::Limits,
    command::{DeliverExternal, TurnOutcome, WaitRequest},
    event::ExternalRef,
    state::MAX_CONSUMED,
    wait::{Condition, ExternalPattern},
};

use crate::build::Run;

fn pull_request(number: i64) -> Condition {
    Condition::External(ExternalPattern {
        source: "forge".into(),
        event_type: "merged".into(),
        subject: number.to_string(),
        filter: None,
        exclusive: false,
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
