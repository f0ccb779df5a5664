//! Many timers due within a short time, each of a run that sleeps on it.

use std::{collections::HashMap, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use kernel::{TimerId, Timestamp, wait::Condition};
use serde_json::{Value, json};

use crate::{
    door::{Door, Stores, wait_for},
    stats::{Latencies, hundredth},
    target::{Error, Target},
    wake::since,
};

/// How many timers, and how close together.
#[derive(clap::Args)]
pub struct Options {
    /// Timers.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Seconds over which they are due, evenly.
    #[arg(long, default_value_t = 1.0)]
    within: f64,
    /// Runs that can be put to sleep in a second, at the least; the first timer is due only when all of them sleep.
    #[arg(long, default_value_t = 1000.0)]
    made_per_s: f64,
    #[command(flatten)]
    stores: Stores,
}

/// What is made ready in addition to the time that making the runs takes.
const MARGIN: Duration = Duration::from_secs(5);
/// How long after the last is due to wait for those that have not fired.
const PATIENCE: Duration = Duration::from_secs(60);

/// Puts runs to sleep, and looks how late their timers fire.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&[]).await?;
    target.put_agent("sleeper", include_str!("../agents/sleeper.yaml")).await?;
    let mut fired = target.subscribe("timer.fired").await?;
    let mut turned = target.subscribe("turn.completed").await?;
    let door = Door::open(&options.stores, "sleeper").await?;
    let first = Timestamp::now() + MARGIN + Duration::from_secs_f64(options.count as f64 / options.made_per_s);
    let apart = options.within / options.count.max(1) as f64;
    let runs: HashMap<String, Timestamp> = stream::iter(0..options.count)
        .map(|index| {
            let due = first + Duration::from_secs_f64(apart * index as f64);
            let door = &door;
            async move {
                let asleep =
                    door.asleep(|run| wait_for(Condition::Timer { timer_id: TimerId::derive(run, "loadtest"), due }));
                asleep.await.map(|run| (run.to_string(), due))
            }
        })
        .buffer_unordered(512)
        .try_collect()
        .await?;
    if Timestamp::now() >= first {
        return Err("the first timer was due before the last was set: give a lower --made-per-s".into());
    }
    door.close().await?;
    let last = first + Duration::from_secs_f64(options.within);
    let deadline = tokio::time::Instant::now() + since(Timestamp::now(), last) + PATIENCE;
    let (mut late, mut heard, mut turn) = (Latencies::default(), Latencies::default(), Latencies::default());
    let (mut unfired, mut asleep) = (runs.clone(), runs);
    while !(unfired.is_empty() && asleep.is_empty()) {
        let event = tokio::select! {
            Some(event) = fired.recv() => event,
            Some(event) = turned.recv() => event,
            () = tokio::time::sleep_until(deadline) => break,
        };
        if event.event_type == "turn.completed" {
            if let Some(due) = asleep.remove(&event.run) {
                turn.push(since(due, event.at));
            }
        } else if let Some(due) = unfired.remove(&event.run) {
            late.push(since(due, event.at));
            heard.push(since(due, Timestamp::now()));
        }
    }
    Ok(json!({
        "scenario": "timers",
        "count": options.count,
        "within_s": options.within,
        "fired": late.len(),
        "missing": unfired.len(),
        "from": first,
        "late_ms": late.percentiles(),
        "heard_late_ms": heard.percentiles(),
        "turn_late_ms": turn.percentiles(),
        "worst_turn_late_ms": turn.worst().map(|worst| hundredth(worst.as_secs_f64() * 1000.0)),
        "worst_heard_late_ms": heard.worst().map(|worst| hundredth(worst.as_secs_f64() * 1000.0)),
    }))
}
