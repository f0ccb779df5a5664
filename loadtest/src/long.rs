//! One run with a very long log: what it costs to load it, and what its next turn costs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kernel::{RunId, RunState};
use serde_json::{Value, json};

use crate::{
    door::{Door, Stores, until_called},
    stats::{Latencies, hundredth},
    target::{Error, Target},
    wake::{HEARD, Wakes},
};

/// How long.
#[derive(clap::Args)]
pub struct Options {
    /// Events in the run's log.
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// How often to measure, at the tenth turn and at the end.
    #[arg(long, default_value_t = 100)]
    samples: usize,
    #[command(flatten)]
    stores: Stores,
}

/// The turn at which the run is still young.
const YOUNG: u32 = 10;
/// Messages of one turn while the run grows.
const SAY: usize = 200;

/// Measures a run at its tenth turn, lets it grow, and measures again.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&HEARD).await?;
    target.put_agent("listener", include_str!("../agents/listener.yaml")).await?;
    let door = Door::open(&options.stores, "listener").await?;
    let run = door.asleep(|_| until_called()).await?;
    let mut state = door.load(run).await?;
    while state.turns_opened < YOUNG - 1 {
        state = turn(&door, run, 0).await?;
    }
    let young = look(&door, &target, run, options.samples).await?;
    let started = Instant::now();
    state = door.load(run).await?;
    let before = state.seq;
    while state.seq < options.events {
        state = turn(&door, run, SAY).await?;
    }
    let grown = (state.seq - before) as f64 / started.elapsed().as_secs_f64();
    let old = look(&door, &target, run, options.samples).await?;
    door.close().await?;
    Ok(json!({
        "scenario": "long",
        "events": state.seq,
        "turns": state.turns_opened,
        "grown_events_per_s": hundredth(grown),
        "young": young,
        "old": old,
    }))
}

/// A message, and the turn that it opens.
async fn turn(door: &Door, run: RunId, say: usize) -> Result<Arc<RunState>, Error> {
    let state = door.message(run).await?;
    door.turn(&state, say, until_called()).await
}

/// What the run costs as it is now.
async fn look(door: &Door, target: &Target, run: RunId, samples: usize) -> Result<Value, Error> {
    let (mut loads, mut cold, mut commits) = (Latencies::default(), Latencies::default(), Latencies::default());
    for _ in 0..samples {
        let started = Instant::now();
        door.load(run).await?;
        loads.push(started.elapsed());
        let started = Instant::now();
        door.load_cold(run).await?;
        cold.push(started.elapsed());
        let state = door.message(run).await?;
        let started = Instant::now();
        door.turn(&state, 0, until_called()).await?;
        commits.push(started.elapsed());
    }
    // Its last snapshot is on its way; the services are to find it, as they would if the run had slept.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut wakes = Wakes::default();
    for _ in 0..samples {
        wakes.one(target, &run.to_string()).await?;
    }
    let state = door.load(run).await?;
    Ok(json!({
        "events": state.seq,
        "turn": state.turns_opened,
        "load_ms": loads.percentiles(),
        "load_without_snapshot_ms": cold.percentiles(),
        "commit_ms": commits.percentiles(),
        "wake": wakes.figures(),
        "snapshot_bytes": snapshot_bytes(&state)?,
    }))
}

fn snapshot_bytes(state: &RunState) -> Result<usize, Error> {
    Ok(serde_json::to_vec(state)?.len())
}
