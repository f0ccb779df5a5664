//! The classic lost wake: an event is published just before the wait that wants it is registered, again and again, through
//! NATS, ingress and a real planner. Every one must wake its run, once.
//!
//! A run that wakes registers its next wait a few milliseconds later. How many is learned as we go, and the next event is
//! published 0 to 5 ms before that. What came of each event is read from the log in the end.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bus::{Bus, BusOptions, Outgoing};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::{
    stats::{fraction, hundredth},
    target::{Error, Seen, Target},
};

/// How long before its wait an event is published, at most.
const WINDOW: Duration = Duration::from_millis(5);
/// How long a run may sleep on an event that was published before it counts as not woken.
const PATIENCE: Duration = Duration::from_secs(20);
/// Events published for each one that must hit the window, at most.
const TRIES: usize = 5;
/// How much a new measurement counts against those before.
const WEIGHT: f64 = 0.1;

/// How often, and how many at a time.
#[derive(Clone, clap::Args)]
pub struct Options {
    /// Events that are to be published within 5 ms before the wait is registered.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// Runs at a time.
    #[arg(long, default_value_t = 16)]
    lanes: usize,
}

/// What the lanes share.
struct Shared {
    target: Target,
    bus: Bus,
    options: Options,
    hits: AtomicUsize,
    tried: AtomicUsize,
}

/// What a lane has published: the id of each event, and whether it was in the window.
struct Lane {
    run: String,
    published: HashMap<String, bool>,
}

/// Publishes until enough events have hit the window, then counts in the logs what became of all of them.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&["run.runnable", "wait.registered"]).await?;
    target.put_agent("waker", include_str!("../agents/waker.yaml")).await?;
    let nats = std::env::var("ESC_NATS_URL")?;
    let shared = Arc::new(Shared {
        target,
        bus: Bus::connect(BusOptions::new(nats, "loadtest-wakes")).await?,
        options: options.clone(),
        hits: AtomicUsize::new(0),
        tried: AtomicUsize::new(0),
    });
    let started = Instant::now();
    let lanes: Vec<_> = (0..options.lanes).map(|_| tokio::spawn(lane(Arc::clone(&shared)))).collect();
    let mut ended = Vec::new();
    for lane in lanes {
        ended.push(lane.await??);
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut tally = Tally::default();
    for lane in &ended {
        tally.add(lane, &consumed(&shared.target, &lane.run).await?);
    }
    Ok(json!({
        "scenario": "wakes",
        "count": tally.hits,
        "woken": tally.hits_woken,
        "lost": tally.lost,
        "doubled": tally.doubled,
        "published": tally.published,
        "lanes": options.lanes,
        "seconds": hundredth(seconds),
        "wakes_per_s": hundredth(tally.published as f64 / seconds),
    }))
}

/// Counts over all lanes.
#[derive(Default)]
struct Tally {
    published: usize,
    hits: usize,
    hits_woken: usize,
    lost: usize,
    doubled: usize,
}

impl Tally {
    fn add(&mut self, lane: &Lane, consumed: &HashMap<String, usize>) {
        for (id, hit) in &lane.published {
            let times = consumed.get(id).copied().unwrap_or(0);
            self.published += 1;
            self.hits += usize::from(*hit);
            self.hits_woken += usize::from(*hit && times > 0);
            self.lost += usize::from(times == 0);
            self.doubled += usize::from(times > 1);
        }
    }
}

/// One run that is woken again and again.
async fn lane(shared: Arc<Shared>) -> Result<Lane, Error> {
    let (run, events) = shared.target.start("waker", "wait").await?;
    let mut ears = Ears::new(events);
    let mut lane = Lane { run: run.clone(), published: HashMap::new() };
    // The first wait may have been registered before we listened: this event only sets things going.
    tokio::time::sleep(Duration::from_millis(500)).await;
    while ears.events.try_recv().is_ok() {}
    publish(&shared, &run).await?;
    let mut takes = 10e-3;
    let Some(mut runnable) = ears.next("run.runnable").await else {
        return Err(format!("run {run} does not wake").into());
    };
    while shared.hits.load(Ordering::Relaxed) < shared.options.count
        && shared.tried.fetch_add(1, Ordering::Relaxed) < shared.options.count * TRIES
    {
        let before = WINDOW.as_secs_f64() * fraction();
        let delay = Duration::from_secs_f64((takes - before).max(0.0));
        tokio::time::sleep_until((runnable + delay).into()).await;
        let published = Instant::now();
        let id = publish(&shared, &run).await?;
        let Some(registered) = ears.next_after(runnable, "wait.registered").await else {
            eprintln!("run {run}: no wait is registered after {PATIENCE:?}");
            return Ok(lane);
        };
        takes += WEIGHT * ((registered - runnable).as_secs_f64() - takes);
        let hit = registered >= published && registered - published <= WINDOW;
        shared.hits.fetch_add(usize::from(hit), Ordering::Relaxed);
        lane.published.insert(id, hit);
        let Some(again) = ears.next("run.runnable").await else {
            eprintln!("run {run}: still asleep {PATIENCE:?} after its event");
            return Ok(lane);
        };
        runnable = again;
    }
    Ok(lane)
}

/// Hands the event to NATS without waiting for its answer, and returns its id.
async fn publish(shared: &Shared, run: &str) -> Result<String, Error> {
    let id = Uuid::now_v7().to_string();
    let event = json!({
        "specversion": "1.0", "id": id, "source": "https://load.test", "type": "load.wake", "subject": run,
        "data": {},
    });
    let message = Outgoing::new("in.default.load.load.wake", event.to_string())
        .header("Content-Type", "application/cloudevents+json")
        .msg_id(&id);
    let acknowledged = shared.bus.publisher().send(message).await?;
    tokio::spawn(async move {
        if let Err(error) = acknowledged.await {
            eprintln!("an event was not taken: {error}");
        }
    });
    Ok(id)
}

/// When turns were opened and waits registered, as heard on NATS. What is heard of twice (what the outbox still had is
/// published again) counts once, and one kind may overtake the other on the way here.
struct Ears {
    events: UnboundedReceiver<Seen>,
    known: HashSet<String>,
    heard: HashMap<String, VecDeque<Instant>>,
}

impl Ears {
    fn new(events: UnboundedReceiver<Seen>) -> Self {
        Self { events, known: HashSet::new(), heard: HashMap::new() }
    }

    /// When the next event of a type was heard of; none if that takes too long.
    async fn next(&mut self, event_type: &str) -> Option<Instant> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.heard.get_mut(event_type).and_then(VecDeque::pop_front) {
                return Some(at);
            }
            let seen = tokio::time::timeout_at(deadline, self.events.recv()).await.ok().flatten()?;
            let id = [&seen.data["turn_id"], &seen.data["wait"]["wait_id"]].into_iter().find_map(Value::as_str);
            if id.is_some_and(|id| self.known.insert(id.to_owned())) {
                self.heard.entry(seen.event_type).or_default().push_back(Instant::now());
            }
        }
    }

    /// The same, without those of before.
    async fn next_after(&mut self, before: Instant, event_type: &str) -> Option<Instant> {
        loop {
            match self.next(event_type).await {
                Some(at) if at < before => {}
                heard => return heard,
            }
        }
    }
}

/// How often the run has consumed each outside event, by id.
async fn consumed(target: &Target, run: &str) -> Result<HashMap<String, usize>, Error> {
    let mut consumed = HashMap::new();
    let mut after = 0;
    loop {
        let page = target.get(&format!("/v1/runs/{run}/events?after={after}&limit=1000")).await?;
        let events = page["items"].as_array().cloned().unwrap_or_default();
        let Some(last) = events.last() else { return Ok(consumed) };
        after = last["seq"].as_u64().ok_or("an event without a number")?;
        for event in events.iter().filter(|event| event["type"] == "external.matched") {
            let id = event["data"]["external"]["id"].as_str().unwrap_or_default();
            *consumed.entry(id.to_owned()).or_default() += 1;
        }
    }
}
