//! Runs that wait: what they cost while nothing happens.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use crate::{
    stats::hundredth,
    target::{Error, Target},
};

/// How many runs, and for how long to look at them.
#[derive(clap::Args)]
pub struct Options {
    /// Waiting runs.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
    /// Seconds to look.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Process ids to look at; `loadtest/run` gives those of the stack.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
}

/// Creates runs that ask the operator at once, lets everything settle, and reads what the processes use.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env().await?;
    target.put_agent("waiter", include_str!("../agents/waiter.yaml")).await?;
    let started = Instant::now();
    let created: Vec<Result<(), Error>> = stream::iter(0..options.runs)
        .map(|_| async {
            let (run, mut events) = target.start("waiter", "wait").await?;
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
            Ok(())
        })
        .buffer_unordered(64)
        .collect()
        .await;
    created.into_iter().collect::<Result<Vec<()>, Error>>()?;
    let created_in = started.elapsed();
    // The outbox is swept and caches settle.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let before = processes(&options.pids);
    tokio::time::sleep(Duration::from_secs_f64(options.seconds)).await;
    let after = processes(&options.pids);
    let used: Vec<Value> = after
        .iter()
        .filter_map(|now| {
            let then = before.iter().find(|then| then.pid == now.pid)?;
            let share = (now.cpu_seconds - then.cpu_seconds) / options.seconds;
            Some(json!({
                "name": now.name,
                "pid": now.pid,
                "cpu_percent": hundredth(share * 100.0),
                "memory_mib": hundredth(now.memory_kib / 1024.0),
            }))
        })
        .collect();
    let sum = |field: &str| hundredth(used.iter().filter_map(|each| each[field].as_f64()).sum());
    Ok(json!({
        "scenario": "waiting",
        "runs": options.runs,
        "created_per_s": hundredth(options.runs as f64 / created_in.as_secs_f64()),
        "seconds": options.seconds,
        "cpu_percent_of_a_core": sum("cpu_percent"),
        "memory_mib": sum("memory_mib"),
        "processes": used,
    }))
}

struct Process {
    pid: u32,
    name: String,
    cpu_seconds: f64,
    memory_kib: f64,
}

/// Clock ticks a second in `/proc/<pid>/stat` (`man 5 proc`, `sysconf(_SC_CLK_TCK)`): 100 on every Linux in use.
const TICKS: f64 = 100.0;

fn processes(roots: &[u32]) -> Vec<Process> {
    let mut pids: Vec<u32> = roots.to_vec();
    let mut next = 0;
    while next < pids.len() {
        let children = format!("/proc/{0}/task/{0}/children", pids[next]);
        let children = std::fs::read_to_string(children).unwrap_or_default();
        pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    pids.into_iter().filter_map(process).collect()
}

/// CPU time and resident memory of one process (`man 5 proc`); none if it is gone.
fn process(pid: u32) -> Option<Process> {
    let folder = format!("/proc/{pid}");
    let stat = std::fs::read_to_string(Path::new(&folder).join("stat")).ok()?;
    let (head, fields) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    let status = std::fs::read_to_string(Path::new(&folder).join("status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory_kib = resident.split_whitespace().next()?.parse().ok()?;
    Some(Process { pid, name, cpu_seconds: ticks / TICKS, memory_kib })
}
