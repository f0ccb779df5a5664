//! Schedules: what is due is decided together with the other schedulers, each firing once, and carried out here.

use std::time::Duration;

use engine::{Begin, Engine, EngineError, FiringOutcome, Schedules};
use futures::{StreamExt as _, stream};
use kernel::{Cause, Command, RunId, Timestamp, command::ByOperator};
use service::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{Config, firing::Carrier};

/// Longest time without a look at the table: so late is the first firing of a schedule that was just made, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after deciding: what is due all the same is another scheduler's to decide, who has it locked.
const BREATH: Duration = Duration::from_millis(50);
/// Schedules decided about at once.
const BATCH: u32 = 64;
/// Firings carried out side by side.
const SIDE_BY_SIDE: usize = 64;

/// Keeps the schedules.
pub(crate) struct Keeper {
    engine: Engine,
    schedules: Schedules,
    carrier: Carrier,
}

impl Keeper {
    pub(crate) fn new(engine: &Engine, tracer: Tracer, config: &Config) -> Self {
        let carrier = Carrier::new(engine, tracer, config);
        Self { engine: engine.clone(), schedules: engine.schedules(), carrier }
    }

    /// Fires what is due until told to stop. What was decided by then is carried out.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.look().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "can't look at the schedules at the moment"
                    );
                    LOOK_EVERY
                }
            };
            let _ = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Decides and carries out. Says how long there is nothing more to do.
    async fn look(&self) -> Result<Duration, EngineError> {
        let left = self.left().await?;
        if !left.is_zero() {
            return Ok(left);
        }
        let decided = self.schedules.decide(Timestamp::now(), BATCH).await?;
        let cancelling = decided.cancel.iter().map(|(run, schedule)| self.cancel(*run, schedule));
        futures::future::join_all(cancelling).await;
        let firings: Vec<_> = decided.begin.iter().map(|begin| self.fire(begin)).collect();
        stream::iter(firings).buffer_unordered(SIDE_BY_SIDE).for_each(|()| async {}).await;
        if decided.more {
            return Ok(Duration::ZERO);
        }
        Ok(self.left().await?.max(BREATH))
    }

    /// How long it is until something is due; no longer than the table may be left alone.
    async fn left(&self) -> Result<Duration, EngineError> {
        let next = self.schedules.next_look().await?.unwrap_or(Timestamp::MAX);
        let left = Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default();
        Ok(left.min(LOOK_EVERY))
    }

    async fn fire(&self, begin: &Begin) {
        let late = Timestamp::now().duration_since(begin.fire_at).as_secs_f64().max(0.0);
        let outcome = match self.carrier.carry_out(begin).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let (name, fire_at) = (&begin.schedule.spec.name, begin.fire_at);
                let error = &*error as &dyn std::error::Error;
                tracing::warn!(name, %fire_at, error, "a schedule could not fire, it is tried again");
                return;
            }
        };
        let word = match &outcome {
            FiringOutcome::Started => "started",
            FiringOutcome::Published => "published",
            FiringOutcome::Failed(why) => {
                let (name, tenant, fire_at) = (&begin.schedule.spec.name, &begin.schedule.tenant, begin.fire_at);
                tracing::error!(name, %tenant, %fire_at, why, "a schedule can't do what it says");
                "failed"
            }
        };
        metrics::counter!("scheduler_schedules_fired_total", "outcome" => word).increment(1);
        metrics::histogram!("scheduler_schedule_lateness_seconds").record(late);
        if let Err(error) = self.schedules.conclude(begin, &outcome).await {
            // It is begun again, under the same names, which changes nothing.
            tracing::warn!(error = &error as &dyn std::error::Error, "what came of a firing is not noted");
        }
    }

    /// Ends a run that is in the way of the next one.
    async fn cancel(&self, run: RunId, schedule: &str) {
        let by = format!("schedule:{schedule}");
        let reason = Some("the next run of its schedule is due".to_owned());
        let command = Command::Cancel(ByOperator { by, reason });
        let cause = Cause { service: "scheduler".to_owned(), ..Cause::default() };
        if let Err(error) = self.engine.submit(run, command, "schedule/overlap", cause).await {
            // It has ended, or is looked at again in a second.
            tracing::debug!(%run, error = &error as &dyn std::error::Error, "a run of a schedule is not cancelled");
        }
    }
}
