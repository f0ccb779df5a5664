//! Whole runs: create, five model steps with a tool step each, an approval that the driver gives, complete.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kernel::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    stats::{Latencies, hundredth},
    target::{Error, Seen, Target},
    wake::since,
};

/// The event types that a driver waits for.
const HEARD: [&str; 3] = ["approval.requested", "run.completed", "run.failed"];

/// Model steps and tool steps of one run.
const STEPS: f64 = 10.0;
/// How long a run may take before the driver gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much load, and for how long.
#[derive(clap::Args)]
pub struct Options {
    /// Runs at a time.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// Seconds to measure, after a tenth of that to warm up.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

#[derive(Default)]
struct Tally {
    runs: Latencies,
    resumes: Latencies,
    resumed_turns: Latencies,
    failures: u64,
}

/// From the sending of the operator's decision on.
struct Resume {
    /// Until the next step had begun: the `at` of the first event that it left. For this agent that is the turn that the
    /// decision woke, so leasing the turn, loading the run and asking the (scripted) model are within.
    step: Duration,
    /// Until the driver heard of the end of that turn, committed and published.
    turn: Duration,
}

/// Drives runs and counts those that ended within the time.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&HEARD).await?;
    target.put_agent("loadtest", include_str!("../agents/loadtest.yaml")).await?;
    let warm = Duration::from_secs_f64(options.seconds / 10.0);
    let begin = Instant::now() + warm;
    let end = begin + Duration::from_secs_f64(options.seconds);
    let target = Arc::new(target);
    let drivers: Vec<_> =
        (0..options.concurrency).map(|_| tokio::spawn(drive(Arc::clone(&target), begin, end))).collect();
    let mut tally = Tally::default();
    for driver in drivers {
        let part = driver.await??;
        tally.runs.extend(part.runs);
        tally.resumes.extend(part.resumes);
        tally.resumed_turns.extend(part.resumed_turns);
        tally.failures += part.failures;
    }
    let rate = tally.runs.len() as f64 / options.seconds;
    Ok(json!({
        "scenario": "agent",
        "concurrency": options.concurrency,
        "seconds": options.seconds,
        "runs": tally.runs.len(),
        "failures": tally.failures,
        "runs_per_s": hundredth(rate),
        "steps_per_s": hundredth(rate * STEPS),
        "run_ms": tally.runs.percentiles(),
        "resume_ms": tally.resumes.percentiles(),
        "resumed_turn_ms": tally.resumed_turns.percentiles(),
    }))
}

async fn drive(target: Arc<Target>, begin: Instant, end: Instant) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    while Instant::now() < end {
        let started = Instant::now();
        let (run, mut events) = target.start("loadtest", "go").await?;
        let outcome = tokio::time::timeout(PATIENCE, one_run(&target, &run, &mut events)).await;
        target.forget(&run).await;
        let done = Instant::now();
        match outcome {
            Ok(Ok(resume)) if done >= begin && done <= end => {
                tally.runs.push(done - started);
                tally.resumes.push(resume.step);
                tally.resumed_turns.push(resume.turn);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                eprintln!("run {run}: {error}");
                tally.failures += 1;
            }
            Err(_) => {
                eprintln!("run {run}: not done after {PATIENCE:?}");
                tally.failures += 1;
            }
        }
    }
    Ok(tally)
}

/// Approves when asked, and waits for the end.
async fn one_run(target: &Target, run: &str, events: &mut UnboundedReceiver<Seen>) -> Result<Resume, Error> {
    let asked = wait_for(target, run, events, "approval.requested").await?.data;
    let approval = asked["approval"]["approval_id"].as_str().ok_or("an approval without an id")?.to_owned();
    let (decided, instant) = (Timestamp::now(), Instant::now());
    let decision = json!({ "decision": "approve" });
    let path = format!("/v1/approvals/{approval}");
    let deciding = target.post(&path, &decision);
    let (_, resume) = tokio::try_join!(deciding, async {
        // The turn that the decision wakes completes the run: `turn.completed` and `run.completed` are of one commit, and so of
        // one time.
        let completed = wait_for(target, run, events, "run.completed").await?;
        Ok(Resume { step: since(decided, completed.at), turn: instant.elapsed() })
    })?;
    Ok(resume)
}

/// The next event of a type. What was said before we listened is found in the log, looked at when nothing comes.
pub async fn wait_for(
    target: &Target,
    run: &str,
    events: &mut UnboundedReceiver<Seen>,
    event_type: &str,
) -> Result<Seen, Error> {
    loop {
        let seen = match tokio::time::timeout(Duration::from_secs(2), events.recv()).await {
            Ok(Some(seen)) => vec![seen],
            Ok(None) => return Err("no more events".into()),
            Err(_) => target.events(run).await?,
        };
        for event in seen {
            if event.event_type == "run.failed" {
                return Err(format!("it failed: {}", event.data).into());
            }
            if event.event_type == event_type {
                return Ok(event);
            }
        }
    }
}
