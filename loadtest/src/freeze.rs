//! The kill switch under load: how long after `PUT /v1/freeze` the last effect began, as the world outside sees it.
//!
//! The world is a server here, which notes when each request reaches it. Runs send requests to it all the time, four of each at
//! once; the switch is thrown while they come, again and again, each time at another moment.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::State, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    agent::wait_for,
    stats::{fraction, hundredth},
    target::{Error, Target},
};

/// The event types that a driver waits for.
const HEARD: [&str; 2] = ["run.completed", "run.failed"];
/// How long effects may take to come (again), and a run to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most that a throw of the switch is put off once effects come, so that it meets them anywhere.
const JITTER: Duration = Duration::from_millis(50);

/// How often, and under how much load.
#[derive(clap::Args)]
pub struct Options {
    /// How often the switch is thrown.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Runs at a time, with four effects each.
    #[arg(long, default_value_t = 32)]
    concurrency: usize,
    /// Seconds for which effects flow before each throw, once they have come again.
    #[arg(long, default_value_t = 2.0)]
    flow: f64,
    /// Seconds for which the world is watched after each answer.
    #[arg(long, default_value_t = 1.0)]
    watch: f64,
    /// What is frozen: `agent:effects`, `tool:http.request`, `tenant` or `all`.
    #[arg(long, default_value = "agent:effects")]
    scope: String,
}

/// When effects reached the world.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Vec<Instant>>>);

/// What one throw of the switch did, in milliseconds.
struct Thrown {
    /// From sending it to its answer.
    answer: f64,
    /// From sending it to the last effect; less than nothing if none came any more.
    last_after_sent: f64,
    /// From its answer to the last effect; less than nothing if that came before.
    last_after_answer: f64,
    /// Effects after the answer.
    late: usize,
    /// Effects that came in the second before it was sent.
    before: usize,
}

/// Throws the switch again and again while effects come.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&HEARD).await?;
    let (world, address) = World::open().await?;
    let agent = include_str!("../agents/effects.yaml").replace("WORLD", &address);
    target.put_agent("effects", agent).await?;
    let driving = Arc::new(AtomicBool::new(true));
    let objective: Arc<str> = format!("Send all four to http://{address}/effect.").into();
    let drivers: Vec<_> = (0..options.concurrency)
        .map(|_| tokio::spawn(drive(target.clone(), Arc::clone(&objective), Arc::clone(&driving))))
        .collect();
    let thrown = throw_all(&target, &world, options).await;
    driving.store(false, Ordering::Relaxed);
    // Whatever went wrong, nothing stays frozen, and no run waits for that.
    freeze(&target, &options.scope, false).await?;
    let mut failures = 0;
    for driver in drivers {
        failures += driver.await?;
    }
    let thrown = thrown?;
    let worst = thrown.iter().map(|thrown| thrown.last_after_answer).fold(f64::NEG_INFINITY, f64::max);
    Ok(json!({
        "scenario": "freeze",
        "rounds": thrown.len(),
        "concurrency": options.concurrency,
        "scope": options.scope,
        "effects": world.count(),
        "failures": failures,
        "effects_per_s_before": percentiles(&thrown, |thrown| thrown.before as f64),
        "answer_ms": percentiles(&thrown, |thrown| thrown.answer),
        "last_effect_after_sent_ms": percentiles(&thrown, |thrown| thrown.last_after_sent),
        "last_effect_after_answer_ms": percentiles(&thrown, |thrown| thrown.last_after_answer),
        "worst_after_answer_ms": hundredth(worst),
        "effects_after_answer": thrown.iter().map(|thrown| thrown.late).sum::<usize>(),
    }))
}

async fn throw_all(target: &Target, world: &World, options: &Options) -> Result<Vec<Thrown>, Error> {
    let mut thrown = Vec::with_capacity(options.rounds);
    for _ in 0..options.rounds {
        let lifted = Instant::now();
        // What was held goes on within seconds, and then it flows for a while.
        let flowing = async {
            while world.since(lifted).len() < 4 * options.concurrency {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, flowing)
            .await
            .map_err(|_| format!("no effects within {PATIENCE:?}: does the executor run on this machine?"))?;
        tokio::time::sleep(Duration::from_secs_f64(options.flow) + JITTER.mul_f64(fraction())).await;
        thrown.push(throw(target, world, options).await?);
        freeze(target, &options.scope, false).await?;
    }
    Ok(thrown)
}

async fn throw(target: &Target, world: &World, options: &Options) -> Result<Thrown, Error> {
    let sent = Instant::now();
    freeze(target, &options.scope, true).await?;
    let answered = Instant::now();
    tokio::time::sleep(Duration::from_secs_f64(options.watch)).await;
    let last = world.last().ok_or("no effect came")?;
    let second_before = world.since(sent.checked_sub(Duration::from_secs(1)).unwrap_or(sent));
    Ok(Thrown {
        answer: between(sent, answered),
        last_after_sent: between(sent, last),
        last_after_answer: between(answered, last),
        late: world.since(answered).len(),
        before: second_before.iter().filter(|at| **at < sent).count(),
    })
}

async fn freeze(target: &Target, scope: &str, on: bool) -> Result<Value, Error> {
    target.put("/v1/freeze", &json!({ "scope": scope, "on": on, "reason": "load test" })).await
}

/// Starts run after run, until told to stop. Says how many did not end as they should.
async fn drive(target: Target, objective: Arc<str>, driving: Arc<AtomicBool>) -> usize {
    let mut failures = 0;
    while driving.load(Ordering::Relaxed) {
        let outcome = async {
            let (run, mut events) = target.start("effects", &objective).await?;
            let ended = tokio::time::timeout(PATIENCE, wait_for(&target, &run, &mut events, "run.completed")).await;
            target.forget(&run).await;
            // Such as one that a policy asks about.
            ended.unwrap_or_else(|_| Err(format!("run {run}: not done after {PATIENCE:?}").into()))
        };
        if let Err(error) = outcome.await {
            eprintln!("{error}");
            failures += 1;
            // Not again and again, if it is the stack that is at fault.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    failures
}

impl World {
    /// A server on a free port, and where it is.
    async fn open() -> Result<(Self, String), Error> {
        let world = Self::default();
        let note = async |State(world): State<Self>| world.note();
        let routes = Router::new().route("/effect", post(note)).with_state(world.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        tokio::spawn(axum::serve(listener, routes).into_future());
        Ok((world, address))
    }

    fn note(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    }

    fn since(&self, instant: Instant) -> Vec<Instant> {
        let effects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        effects.iter().rev().take_while(|at| **at >= instant).copied().collect()
    }

    fn last(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last().copied()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Milliseconds from one moment to another; less than nothing if that was earlier.
fn between(from: Instant, to: Instant) -> f64 {
    let millis = |time: Duration| time.as_secs_f64() * 1000.0;
    if to >= from { millis(to - from) } else { -millis(from - to) }
}

/// Median and 99th percentile, to the hundredth; null if there are none.
fn percentiles(thrown: &[Thrown], figure: impl Fn(&Thrown) -> f64) -> Value {
    let mut figures: Vec<f64> = thrown.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| figures.get((figures.len() * percent / 100).min(figures.len().saturating_sub(1)));
    let shown = |percent: usize| at(percent).map_or(Value::Null, |figure| hundredth(*figure).into());
    json!({ "p50": shown(50), "p99": shown(99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_answer_is_less_than_nothing() {
        let now = Instant::now();
        let later = now + Duration::from_millis(40);
        assert!((between(now, later) - 40.0).abs() < 1e-6 && (between(later, now) + 40.0).abs() < 1e-6);
        let thrown =
            |last_after_answer| Thrown { answer: 100.0, last_after_sent: 1.0, last_after_answer, late: 0, before: 1 };
        let all: Vec<_> = [-3.0, -1.0, -2.0].map(thrown).into();
        assert_eq!(percentiles(&all, |thrown| thrown.last_after_answer), json!({ "p50": -2.0, "p99": -1.0 }));
        assert_eq!(percentiles(&[], |thrown| thrown.answer)["p50"], Value::Null);
    }

    #[tokio::test]
    async fn the_world_sees_what_reaches_it() {
        let (world, address) = World::open().await.unwrap();
        let before = Instant::now();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        http.post(format!("http://{address}/effect")).body("1").send().await.unwrap().error_for_status().unwrap();
        assert_eq!((world.count(), world.since(before).len(), world.since(Instant::now()).len()), (1, 1, 0));
        assert!(world.last().unwrap() >= before);
    }
}
