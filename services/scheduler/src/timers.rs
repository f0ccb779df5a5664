//! Durable timers: claimed row by row, fired by a commit that takes the row along.
//!
//! A loop knows when the next timer is due and sleeps until then. A doorbell tells of timers that are set for an earlier time;
//! since bells may be lost, the table is looked at once a second all the same. Firing is many commands under way at once, which
//! the engine commits together.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, Subscription, retry, subject};
use engine::{DueTimer, Engine, SubmitError};
use futures::{FutureExt as _, StreamExt as _};
use kernel::{Command, Timestamp, command::FireTimer, event::TimerSet};
use service::Tracer;
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Config, span_of};

/// Longest time without a look at the table.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Commands under way at once, in claims.
const CLAIMS_UNDER_WAY: usize = 4;
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
    under_way: Arc<Semaphore>,
}

/// What firing one timer takes.
struct Firing {
    engine: Engine,
    tracer: Tracer,
    claim: Duration,
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
        let batch = config.timer_batch.max(1);
        let permits = usize::try_from(batch).unwrap_or(1).saturating_mul(CLAIMS_UNDER_WAY);
        Self {
            firing: Arc::new(Firing { engine: engine.clone(), tracer, claim }),
            timers: engine.timers(),
            batch,
            under_way: Arc::new(Semaphore::new(permits)),
        }
    }

    /// Fires what is due until told to stop, then waits for what is under way.
    pub(crate) async fn run(self, mut bells: Bells, stop: CancellationToken) {
        let mut pauses = retry::exponential(PAUSE.0, PAUSE.1);
        let mut fired = JoinSet::new();
        while !stop.is_cancelled() {
            let looked = match self.claim(&mut fired).await {
                // There may be more.
                Ok(true) => Ok(()),
                Ok(false) => self.wait(&mut bells, &stop).await,
                Err(error) => Err(error),
            };
            match looked {
                Ok(()) => pauses.reset(),
                Err(error) => pause(&error, pauses.next(), &stop).await,
            }
            while fired.try_join_next().is_some() {}
        }
        while fired.join_next().await.is_some() {}
    }

    /// Claims what is due and begins to fire it. Says whether there may be more.
    async fn claim(&self, fired: &mut JoinSet<()>) -> Result<bool, engine::EngineError> {
        // Not more than can be fired within the claim.
        let Ok(room) = Arc::clone(&self.under_way).acquire_many_owned(self.batch).await else { return Ok(false) };
        let claimed = self.timers.claim_due(self.batch, self.firing.claim).await?;
        let mut room = room;
        let full = u32::try_from(claimed.len()).is_ok_and(|count| count >= self.batch);
        for timer in claimed {
            let place = room.split(1);
            let firing = Arc::clone(&self.firing);
            fired.spawn(async move {
                firing.fire(timer).await;
                drop(place);
            });
        }
        Ok(full)
    }

    /// Waits until something is due, as far as that is known.
    async fn wait(&self, bells: &mut Bells, stop: &CancellationToken) -> Result<(), engine::EngineError> {
        while !stop.is_cancelled() {
            let due = self.timers.next_due().await?.unwrap_or(Timestamp::MAX);
            let now = Timestamp::now();
            if due <= now {
                return Ok(());
            }
            let next = due.min(now.checked_add(LOOK_EVERY).unwrap_or(Timestamp::MAX));
            let sleep = Duration::try_from(next.duration_since(now)).unwrap_or_default();
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(sleep) => {}
                () = bells.earlier_than(next) => {}
            }
        }
        Ok(())
    }
}

impl Firing {
    async fn fire(&self, timer: DueTimer) {
        let (span, cause) = span_of(&self.tracer, "fire_timer", timer.run_id, timer.sampled);
        let key = format!("timer/{}", timer.timer_id);
        let submit = || {
            let command = Command::FireTimer(FireTimer { timer_id: timer.timer_id });
            self.engine.submit(timer.run_id, command, key.clone(), cause.clone())
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
                metrics::histogram!("scheduler_timer_lateness_seconds").record(late.as_secs_f64().max(0.0));
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

async fn pause(error: &engine::EngineError, pause: Option<Duration>, stop: &CancellationToken) {
    tracing::warn!(error = error as &dyn std::error::Error, "can't look at the timers at the moment");
    let _ = stop.run_until_cancelled(tokio::time::sleep(pause.unwrap_or(PAUSE.1))).await;
}
