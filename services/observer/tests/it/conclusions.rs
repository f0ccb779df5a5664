//! What comes out of floods, failures and successes.

use bus::{Outgoing, subject};
use kernel::{CallId, RunId, TenantId};

use crate::common::World;

const CARGO: &str = "  - tool: shell.run\n    packs: [cargo]\n    settle: 60s\n";

#[tokio::test]
async fn a_flood_with_one_failure_wakes_once_with_its_evidence() {
    let world = World::new().await;
    let mut build = world.activity(CARGO).await;
    let observer = world.observer();
    let line = |number: u32| match number {
        31_007 => "test parser::numbers ... FAILED\n".to_owned(),
        _ => format!("test case_{number} with a name that makes the line longer ... ok\n"),
    };
    build.say_all((0..50_000).map(line)).await;
    build.exit(101).await;

    let types = world.concluded(&build).await;
    assert_eq!(types.iter().filter(|name| *name == "observation.recorded").count(), 1, "{types:?}");
    let observation = world.observations(build.run).await.remove(0);
    assert_eq!(observation.phase, "failed");
    assert!(observation.decision.is_some());
    assert_eq!(observation.evidence.len(), 1, "{observation:#?}");
    assert_eq!(observation.evidence[0].excerpt, "test parser::numbers ... FAILED");
    assert_eq!(observation.evidence[0].line, 31_008);
    assert_eq!((observation.counts.lines, observation.counts.bytes), (50_000, build.offset));
    assert_eq!((observation.counts.gap_bytes, observation.missing.as_ref()), (0, None));
    assert!(types.contains(&"tool.failed".to_owned()));
    assert!(world.state(build.run).await.turn.is_some(), "the run was woken");

    // Whoever asks why is led to the start of the call, in the run's own trace.
    let events = world.events(build.run).await;
    let of = |name: &str| events.iter().find(|event| event.event_type == name).unwrap();
    let cause = &of("observation.recorded").cause;
    assert_eq!(cause.seq, Some(of("tool.started").seq));
    assert!(cause.traceparent.as_ref().unwrap().contains(&build.run.trace_id()));
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn success_concludes_without_a_decision() {
    let world = World::new().await;
    let mut build = world.activity(CARGO).await;
    let observer = world.observer();
    build.say("   Compiling x v1\ntest result: ok. 3 passed; 0 failed; 0 ignored\n").await;
    build.exit(0).await;
    let types = world.concluded(&build).await;
    assert!(types.contains(&"tool.completed".to_owned()));
    let observations = world.observations(build.run).await;
    assert_eq!(observations.len(), 1);
    assert_eq!((observations[0].phase.as_str(), observations[0].decision.as_ref()), ("completed", None));
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn a_failure_in_a_long_run_wakes_before_the_end() {
    let world = World::new().await;
    let mut build = world.activity("  - tool: shell.run\n    failure: ['error[E']\n    settle: 100ms\n").await;
    let observer = world.observer();
    build.say("working\nerror[E0308]: mismatched types\n").await;
    world.until("report of the failure", async || !world.observations(build.run).await.is_empty()).await;
    let state = world.state(build.run).await;
    assert!(state.turn.is_some() && state.calls.contains_key(&build.call), "woken, and it still runs");
    build.say("more\n").await;
    build.exit(1).await;
    world.concluded(&build).await;
    let phases: Vec<_> = world.observations(build.run).await.into_iter().map(|seen| seen.phase).collect();
    assert_eq!(phases, ["failure", "failed"]);
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn what_belongs_to_nobody_holds_nobody_up() {
    let world = World::new().await;
    let observer = world.observer();
    let publisher = world.stack.bus().publisher();
    let sig = |run: &str, call: &str| subject::sig(TenantId::default(), run, call);
    let (run, call) = (RunId::mint().to_string(), CallId::mint().to_string());
    for number in 0..32 {
        for message in [
            Outgoing::new(sig(&run, &format!("no-call-{number}")), "x\n"),
            Outgoing::new(sig(&run, &call), "no offset\n"),
            Outgoing::new(sig(&run, &CallId::mint().to_string()), "x\n").header("Esc-Offset", number),
            Outgoing::new(sig(&run, &CallId::mint().to_string()), "x\n").header("Esc-Offset", u64::MAX),
            Outgoing::new(subject::log("default", format!("service-{number}")), "a record\n"),
        ] {
            publisher.publish(message).await.unwrap();
        }
    }
    let mut builds = Vec::new();
    for _ in 0..8 {
        let mut build = world.activity(CARGO).await;
        build.say("fine\n").await;
        build.exit(0).await;
        builds.push(build);
    }
    for build in &builds {
        assert!(world.concluded(build).await.contains(&"tool.completed".to_owned()));
    }
    observer.stop().await.unwrap();
    world.close().await;
}
