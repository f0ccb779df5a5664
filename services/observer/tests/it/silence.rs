//! Calls that say nothing.

use serde_json::{Value, json, value::to_raw_value};

use crate::common::World;

const SILENT: &str = "  - tool: shell.run\n    silence: 500ms\n";

#[tokio::test]
async fn a_call_that_never_says_anything_is_noticed() {
    let world = World::new().await;
    let observer = world.observer();
    let build = world.activity(SILENT).await;
    world.until("silence", async || !world.observations(build.run).await.is_empty()).await;
    let observations = world.observations(build.run).await;
    assert_eq!(observations.len(), 1);
    assert_eq!((observations[0].phase.as_str(), observations[0].anomaly), ("silence", true));
    assert!(observations[0].decision.is_some());
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn a_call_that_falls_silent_is_noticed_also_by_the_next_observer() {
    let world = World::new().await;
    let mut build = world.activity("  - tool: shell.run\n    silence: 2s\n").await;
    let first = world.observer();
    build.say("working\n").await;
    let checkpoints = world.ingress.checkpoints();
    world.until("checkpoint", async || !checkpoints.load(&[build.call]).await.unwrap().is_empty()).await;
    // All that was said is acknowledged: the next one has only the checkpoint to know the call by.
    first.stop().await.unwrap();
    let second = world.observer();
    world.until("silence", async || !world.observations(build.run).await.is_empty()).await;
    let observations = world.observations(build.run).await;
    assert_eq!(observations.len(), 1);
    assert_eq!(observations[0].evidence[0].excerpt, "working");
    build.say("again\n").await;
    build.exit(0).await;
    world.concluded(&build).await;
    second.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn what_is_missing_before_an_observer_has_read_all_may_have_been_said_to_nobody() {
    let world = World::new().await;
    let heartbeats = "    heartbeats: [{ id: alive, match: alive, every: 60s }]";
    let mut build = world.activity(&format!("  - tool: shell.run\n{heartbeats}\n")).await;
    let first = world.observer();
    build.say("alive\n").await;
    let checkpoints = world.ingress.checkpoints();
    world.until("checkpoint", async || !checkpoints.load(&[build.call]).await.unwrap().is_empty()).await;
    first.stop().await.unwrap();
    // As if nobody had listened for ten minutes.
    let mut checkpoint = checkpoints.load(&[build.call]).await.unwrap().remove(0);
    let mut state: Value = serde_json::from_str(checkpoint.state.get()).unwrap();
    let last = &mut state["watch"]["timed"]["beats"]["0"]["at"];
    *last = json!(last.as_i64().unwrap() - 600_000);
    checkpoint.state = to_raw_value(&state).unwrap();
    checkpoints.save(vec![checkpoint]).await.unwrap();
    build.say("alive\n").await;
    build.exit(0).await;
    let second = world.observer();
    world.concluded(&build).await;
    let observations = world.observations(build.run).await;
    assert!(observations.iter().all(|told| told.phase != "heartbeat"), "{observations:#?}");
    second.stop().await.unwrap();
    world.close().await;
}
