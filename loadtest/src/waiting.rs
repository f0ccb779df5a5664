//! Runs that wait: what they cost while nothing happens, and how fast one of them is awake.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use crate::{
    door::{Door, Stores, until_called},
    processes::{Processes, total},
    stats::hundredth,
    target::{Error, Target},
    wake::{HEARD, Wakes},
};

/// How many runs, and for how long to look at them.
#[derive(clap::Args)]
pub struct Options {
    /// Waiting runs.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
    /// How they are made.
    #[arg(long, value_enum, default_value_t = Through::Api)]
    through: Through,
    /// Seconds to look.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// How many of them to wake afterwards, one after the other.
    #[arg(long, default_value_t = 200)]
    wake: usize,
    /// Process ids to look at; `loadtest/run` gives those of the stack.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
    #[command(flatten)]
    stores: Stores,
}

/// How the runs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Through {
    /// As users do.
    Api,
    /// Straight into the log: the same rows and snapshots, many times faster.
    Engine,
}

/// Creates runs that sleep until the operator writes, lets everything settle, and reads what the processes use.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&HEARD).await?;
    target.put_agent("listener", include_str!("../agents/listener.yaml")).await?;
    let empty = Processes::now(&options.pids);
    let started = Instant::now();
    let runs = match options.through {
        Through::Api => through_api(&target, options.runs).await?,
        Through::Engine => through_engine(&options.stores, options.runs).await?,
    };
    let created_in = started.elapsed();
    // The outbox is swept and caches settle.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = Processes::now(&options.pids);
    let looked = Instant::now();
    tokio::time::sleep(Duration::from_secs_f64(options.seconds)).await;
    let after = Processes::now(&options.pids);
    let cpu = after.cpu_since(&before, looked.elapsed());
    let mut wakes = Wakes::default();
    for run in runs.iter().step_by((runs.len() / options.wake.max(1)).max(1)).take(options.wake) {
        wakes.one(&target, run).await?;
    }
    Ok(json!({
        "scenario": "waiting",
        "runs": options.runs,
        "created_per_s": hundredth(options.runs as f64 / created_in.as_secs_f64()),
        "seconds": options.seconds,
        "cpu_percent_of_a_core": total(&cpu),
        "cpu_percent": cpu,
        "memory_mib": after.memory(),
        "memory_mib_before": empty.memory(),
        "wake": wakes.figures(),
    }))
}

async fn through_api(target: &Target, count: usize) -> Result<Vec<String>, Error> {
    stream::iter(0..count)
        .map(|_| async {
            let (run, mut events) = target.start("listener", "wait").await?;
            let asleep = async {
                while let Some(event) = events.recv().await {
                    if event.event_type == "run.waiting" {
                        break;
                    }
                }
            };
            // One that fell asleep before we listened is asleep all the same.
            let _ = tokio::time::timeout(Duration::from_secs(10), asleep).await;
            target.forget(&run).await;
            Ok(run)
        })
        .buffer_unordered(64)
        .try_collect()
        .await
}

/// Runs that sleep until the operator writes, straight into the log.
pub async fn through_engine(stores: &Stores, count: usize) -> Result<Vec<String>, Error> {
    let door = Door::open(stores, "listener").await?;
    let runs = stream::iter(0..count)
        .map(|_| async { door.asleep(|_| until_called()).await.map(|run| run.to_string()) })
        .buffer_unordered(1024)
        .try_collect()
        .await?;
    door.close().await?;
    Ok(runs)
}
