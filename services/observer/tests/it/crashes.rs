//! Observers that die, and observers that share.

use std::collections::BTreeSet;

use crate::common::{World, partitions};

const CARGO: &str = "  - tool: shell.run\n    packs: [cargo]\n    settle: 60s\n";

fn line(number: u32) -> String {
    match number {
        1_500 => "thread 'a' panicked at src/a.rs:1:1:\n".to_owned(),
        8_700 => "test late ... FAILED\n".to_owned(),
        _ => format!("test case_{number} ... ok\n"),
    }
}

#[tokio::test]
async fn a_killed_observer_is_followed_by_one_that_concludes_the_same() {
    let world = World::new().await;
    let mut build = world.activity(CARGO).await;
    let first = world.mortal_observer();
    build.say_all((0..4_000).map(line)).await;
    let checkpoints = world.ingress.checkpoints();
    world.until("checkpoint", async || !checkpoints.load(&[build.call]).await.unwrap().is_empty()).await;
    drop(first);
    build.say_all((4_000..10_000).map(line)).await;
    let second = world.mortal_observer();
    // In the middle of the rest, or after it: either way nothing is told twice.
    world
        .until("progress", async || {
            let now = checkpoints.load(&[build.call]).await.unwrap();
            now.iter().any(|checkpoint| checkpoint.state.get().contains("\"test late ... FAILED\""))
        })
        .await;
    drop(second);
    let third = world.observer();
    build.exit(101).await;

    let types = world.concluded(&build).await;
    for (name, times) in [("observation.recorded", 1), ("tool.failed", 1), ("tool.completed", 0)] {
        assert_eq!(types.iter().filter(|have| *have == name).count(), times, "{name} in {types:?}");
    }
    let observation = world.observations(build.run).await.remove(0);
    assert_eq!((observation.counts.lines, observation.counts.gap_bytes), (10_000, 0));
    assert_eq!(observation.counts.bytes, build.offset);
    let lines: Vec<u64> = observation.evidence.iter().map(|evidence| evidence.line).collect();
    assert_eq!(lines, [1_500, 8_701], "with a line before the panic: {observation:#?}");
    // The end is delivered again to whoever comes next, and changes nothing.
    third.stop().await.unwrap();
    let fourth = world.observer();
    let mut other = world.activity(CARGO).await;
    other.say("fine\n").await;
    other.exit(0).await;
    world.concluded(&other).await;
    assert_eq!(world.observations(build.run).await.len(), 1);
    fourth.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn observers_share_the_partitions_and_take_over_from_each_other() {
    let world = World::new().await;
    let (mut first, mut second) = (world.mortal_observer(), world.observer());
    let (one, two) = (first.listening().await.unwrap(), second.listening().await.unwrap());
    world
        .until("sharing", async || {
            let (one, two) = (partitions(one).await, partitions(two).await);
            let all: BTreeSet<_> = one.iter().chain(&two).collect();
            all.len() == 8 && one.len() + two.len() == 8 && !one.is_empty() && !two.is_empty()
        })
        .await;
    let mut builds = Vec::new();
    for _ in 0..12 {
        let mut build = world.activity(CARGO).await;
        build.say("   Compiling x v1\nerror: it does not\n").await;
        builds.push(build);
    }
    // One of the two dies: what it had read is not lost, and nothing is concluded twice.
    drop(first);
    for build in &mut builds {
        build.say("more\n").await;
        build.exit(101).await;
    }
    for build in &builds {
        let types = world.concluded(build).await;
        assert_eq!(types.iter().filter(|name| *name == "observation.recorded").count(), 1, "{types:?}");
        let observation = world.observations(build.run).await.remove(0);
        assert_eq!((observation.counts.lines, observation.counts.gap_bytes), (3, 0));
        assert!(observation.evidence[0].excerpt.contains("it does not"));
    }
    second.stop().await.unwrap();
    world.close().await;
}

const TIMED: &str = "  - tool: shell.run
    thresholds: [{ id: retries, match: retrying, count: 3, within: 1h }]
    machines: [{ id: deploy, stages: [{ name: begun, enter: '^begin deploy', within: 1h }, { name: done, enter: '^deploy done' }] }]
";

#[tokio::test]
async fn what_is_counted_over_time_survives_the_observer_that_counted_it() {
    let world = World::new().await;
    let mut build = world.activity(TIMED).await;
    let first = world.mortal_observer();
    build.say("begin deploy\nretrying\nretrying\n").await;
    let checkpoints = world.ingress.checkpoints();
    world
        .until("checkpoint", async || {
            let now = checkpoints.load(&[build.call]).await.unwrap();
            now.iter().any(|checkpoint| checkpoint.state.get().contains("\"windows\""))
        })
        .await;
    drop(first);
    build.say("retrying\nretrying\n").await;
    let second = world.mortal_observer();
    world.until("threshold", async || !world.observations(build.run).await.is_empty()).await;
    drop(second);
    let third = world.observer();
    build.exit(0).await;
    world.concluded(&build).await;
    let observations = world.observations(build.run).await;
    let told: Vec<_> = observations.iter().map(|seen| (seen.phase.as_str(), seen.decision.is_some())).collect();
    assert_eq!(told, [("threshold", true), ("completed", false)], "{observations:#?}");
    assert_eq!((observations[0].evidence[0].line, observations[0].evidence[0].rule.as_str()), (4, "retries"));
    assert!(observations[1].changed.contains("`deploy` did not come further than `begun`"), "{observations:#?}");
    third.stop().await.unwrap();
    world.close().await;
}
