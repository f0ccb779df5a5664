//! Durable timers: claimed ahead of time, each fired when its time comes, by a commit that takes its row along.
//!
//! What is due within [`AHEAD`] is claimed in batches and sleeps here, each timer on its own, so that neither the look at the
//! table nor the claim's commit stands between its time and its firing. Those that come due together are commands under way
//! together, which the engine commits together. A loop knows when the next timer comes within reach and sleeps until then; a
//! doorbell tells of timers that are set for an earlier time. Since bells may be lost, the table is looked at every so often all
//! the same.
//!
//! In a burst firing comes first: the runs are read before their time comes, and what follows the commits is held back, so that
//! the turns that they lead to don't take the machine away from the timers behind them.

use std::collections::HashMap;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use bus::{Bus, BusError, Subscription, retry, subject};
use engine::{DueTimer, Engine, EngineError, PublishGate, SubmitError};
use futures::{FutureExt as _, StreamExt as _};
use kernel::{Command, RunId, RunState, TimerId, Timestamp, command::FireTimer, event::TimerSet};
use service::{Tracer, metrics::exemplar};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Config, span_of};

/// How long before its time a timer is claimed.
const AHEAD: Duration = Duration::from_secs(1);
/// Longest time without a look at the table. Shorter than [`AHEAD`], so that only timers set for the next moment need a bell.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most timers under claim here, in batches.
const BATCHES_AT_HAND: usize = 16;
/// Timers that are due at least so much later have their runs read in between.
const TIME_TO_READ: Duration = Duration::from_millis(50);
/// So many firings under way at once are a burst, which is over when so few are.
const BURST: (usize, usize) = (64, 8);
/// Shortest and longest pause after a look that failed.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Tells of timers as they are set.
pub(crate) struct Bells {
    subscription: Subscription,
}

/// Fires timers.
pub(crate) struct Timers {
    firing: Arc<Firing>,
    timers: engine::Timers,
    batch: u32,
    at_hand: Arc<Semaphore>,
}

/// What firing one timer takes.
struct Firing {
    engine: Engine,
    tracer: Tracer,
    claim: Duration,
    burst: Burst,
}

/// Tells bursts by the firings that are under way.
struct Burst {
    under_way: AtomicUsize,
    gate: PublishGate,
}

/// A firing under way.
struct UnderWay<'a>(&'a Burst);

impl Burst {
    fn begin(&self) -> UnderWay<'_> {
        if self.under_way.fetch_add(1, Ordering::Relaxed) + 1 >= BURST.0 {
            self.gate.hold();
        }
        UnderWay(self)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::Relaxed) <= BURST.1 + 1 {
            self.0.gate.release();
        }
    }
}

impl Bells {
    pub(crate) async fn listen(bus: &Bus) -> Result<Self, BusError> {
        Ok(Self { subscription: bus.subscribe(&subject::evt_of_type("timer.set")).await? })
    }

    /// Waits for a timer that is due before `next`. Safe to drop and call again.
    async fn earlier_than(&mut self, next: Timestamp) {
        loop {
            let Some(message) = self.subscription.next().await else {
                // The bus was drained.
                return std::future::pending().await;
            };
            // What can't be read may be anything: look.
            if message.json::<TimerSet>().map_or(true, |set| set.due < next) {
                // The others that rang meanwhile are found by the same look.
                while self.subscription.next().now_or_never().flatten().is_some() {}
                return;
            }
        }
    }
}

impl Timers {
    pub(crate) fn new(engine: &Engine, tracer: Tracer, config: &Config) -> Self {
        let claim = config.timer_claim();
        let burst = Burst { under_way: AtomicUsize::new(0), gate: engine.options().gate.clone() };
        let batch = config.timer_batch.max(1);
        let at_hand = usize::try_from(batch).unwrap_or(1).saturating_mul(BATCHES_AT_HAND);
        Self {
            firing: Arc::new(Firing { engine: engine.clone(), tracer, claim, burst }),
            timers: engine.timers(),
            batch,
            at_hand: Arc::new(Semaphore::new(at_hand)),
        }
    }

    /// Fires what is due until told to stop, then waits for what is under way and gives back the rest.
    pub(crate) async fn run(self, mut bells: Bells, stop: CancellationToken) {
        let mut pauses = retry::exponential(PAUSE.0, PAUSE.1);
        let mut at_hand = JoinSet::new();
        let mut unfired: Vec<TimerId> = Vec::new();
        while !stop.is_cancelled() {
            let looked = match self.claim(&mut at_hand, &stop).await {
                // There may be more.
                Ok(true) => Ok(()),
                Ok(false) => self.wait(&mut bells, &stop).await,
                Err(error) => Err(error),
            };
            match looked {
                Ok(()) => pauses.reset(),
                Err(error) => pause(&error, pauses.next(), &stop).await,
            }
            // Some may have ended by the same stop already, and are to be given back too.
            while let Some(ended) = at_hand.try_join_next() {
                unfired.extend(ended.ok().flatten());
            }
        }
        unfired.extend(at_hand.join_all().await.into_iter().flatten());
        if let Err(error) = self.timers.release(&unfired).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                timers = unfired.len(),
                "timers are not given back: another scheduler has them when the claim ends"
            );
        }
    }

    /// Claims what will soon be due, and sets a task on each timer that ends when it has fired, or with its id if it is to be
    /// given back. Says whether there may be more.
    async fn claim(
        &self,
        at_hand: &mut JoinSet<Option<TimerId>>,
        stop: &CancellationToken,
    ) -> Result<bool, EngineError> {
        // Not more than can be fired within the claim.
        let room = stop.run_until_cancelled(Arc::clone(&self.at_hand).acquire_many_owned(self.batch)).await;
        let Some(Ok(mut room)) = room else { return Ok(false) };
        let claimed = self.timers.claim_ahead(self.batch, AHEAD, self.firing.claim).await?;
        let full = u32::try_from(claimed.len()).is_ok_and(|count| count >= self.batch);
        let mut seen = self.read_ahead(&claimed).await;
        for timer in claimed {
            let place = room.split(1);
            let (firing, stop) = (Arc::clone(&self.firing), stop.clone());
            let seen = seen.remove(&timer.run_id);
            at_hand.spawn(async move {
                let _place = place;
                match stop.run_until_cancelled(reach(timer.due)).await {
                    Some(()) => firing.fire(timer, seen).await,
                    None => return Some(timer.timer_id),
                }
                None
            });
        }
        Ok(full)
    }

    /// The runs of those timers whose time leaves time for it.
    async fn read_ahead(&self, claimed: &[DueTimer]) -> HashMap<RunId, Arc<RunState>> {
        let from = Timestamp::now().checked_add(TIME_TO_READ).unwrap_or(Timestamp::MAX);
        let runs: Vec<RunId> = claimed.iter().filter(|timer| timer.due > from).map(|timer| timer.run_id).collect();
        if runs.is_empty() { HashMap::new() } else { self.firing.engine.glimpse(&runs).await }
    }

    /// Waits until something comes within reach, as far as that is known.
    async fn wait(&self, bells: &mut Bells, stop: &CancellationToken) -> Result<(), EngineError> {
        while !stop.is_cancelled() {
            let due = self.timers.next_due().await?.unwrap_or(Timestamp::MAX);
            let now = Timestamp::now();
            let in_reach = due.checked_sub(AHEAD).unwrap_or(due);
            if in_reach <= now {
                return Ok(());
            }
            let next = in_reach.min(now.checked_add(LOOK_EVERY).unwrap_or(Timestamp::MAX));
            tokio::select! {
                () = stop.cancelled() => {}
                () = reach(next) => {}
                () = bells.earlier_than(next) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Waits until the wall clock, which may be set, shows this time.
async fn reach(time: Timestamp) {
    while let Ok(left) = Duration::try_from(time.duration_since(Timestamp::now()))
        && !left.is_zero()
    {
        tokio::time::sleep(left).await;
    }
}

impl Firing {
    /// Fires a timer, on the run as it was seen a moment ago, if it was.
    async fn fire(&self, timer: DueTimer, seen: Option<Arc<RunState>>) {
        let _under_way = self.burst.begin();
        let (span, cause) = span_of(&self.tracer, "fire_timer", timer.run_id, timer.sampled);
        let key = format!("timer/{}", timer.timer_id);
        let submit = || {
            let command = Command::FireTimer(FireTimer { timer_id: timer.timer_id });
            let (key, cause, seen) = (key.clone(), cause.clone(), seen.clone());
            async move {
                match &seen {
                    Some(seen) => self.engine.submit_on(seen, command, key, cause).await,
                    None => self.engine.submit(timer.run_id, command, key, cause).await,
                }
            }
        };
        // No longer than the claim: afterwards it is anybody's.
        let policy = retry::Policy::exponential(PAUSE.0, PAUSE.1).within(self.claim);
        let submitted = retry::when(policy, SubmitError::is_transient, submit).await;
        let late = Timestamp::now().duration_since(timer.due);
        span.set_attribute("escapement.timer.late_ms", i64::try_from(late.as_millis()).unwrap_or(i64::MAX));
        match submitted {
            Ok(committed) if committed.events.is_empty() => {}
            Ok(_) => {
                metrics::counter!("scheduler_timers_fired_total").increment(1);
                let late = late.as_secs_f64().max(0.0);
                metrics::histogram!("scheduler_timer_lateness_seconds").record(late);
                exemplar("scheduler_timer_lateness_seconds", &[], late, span.context());
            }
            // The run ended between the claim and now, and took its timers along.
            Err(SubmitError::Rejected(rejection)) => span.in_scope(|| {
                tracing::debug!(timer_id = %timer.timer_id, %rejection, "a timer is not wanted any more");
            }),
            Err(error) => {
                span.record_error("submit", &error);
                span.in_scope(|| {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(timer_id = %timer.timer_id, error, "a timer could not be fired, it is tried again");
                });
            }
        }
    }
}

async fn pause(error: &EngineError, pause: Option<Duration>, stop: &CancellationToken) {
    tracing::warn!(error = error as &dyn std::error::Error, "can't look at the timers at the moment");
    let _ = stop.run_until_cancelled(tokio::time::sleep(pause.unwrap_or(PAUSE.1))).await;
}
