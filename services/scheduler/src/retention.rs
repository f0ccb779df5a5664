//! What is forgotten: what will not be asked for again, and, if so configured, runs that ended long ago.

use std::time::Duration;

use engine::{Engine, EngineError};
use kernel::RunId;
use tokio_util::sync::CancellationToken;

use crate::{config::Ages, leader::Leader};

/// Rows deleted in one go, so that nobody waits for a lock.
const BATCH: u32 = 2000;
/// Pause between two of them.
const BREATH: Duration = Duration::from_millis(100);
/// Pause of a scheduler that leaves it to another.
const NOT_MINE: Duration = Duration::from_secs(30);
/// Pause when there is no more.
const EVERY: Duration = Duration::from_secs(15 * 60);

/// Forgets.
pub(crate) struct Retention {
    retention: engine::Retention,
    ages: Ages,
}

/// Where a round of forgetting stands.
#[derive(Default)]
struct Round {
    /// The last run that was looked at.
    last: Option<RunId>,
    /// Whether all runs were.
    runs_done: bool,
}

impl Retention {
    pub(crate) fn new(engine: &Engine, ages: Ages) -> Self {
        Self { retention: engine.retention(), ages }
    }

    /// Forgets until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, stop: CancellationToken) {
        let mut pause = NOT_MINE;
        let mut round = Round::default();
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            if !leader.leads() {
                pause = NOT_MINE;
                continue;
            }
            pause = match self.step(&mut round).await {
                Ok(true) => BREATH,
                Ok(false) => {
                    round = Round::default();
                    EVERY
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "can't forget at the moment");
                    EVERY
                }
            };
        }
    }

    /// Deletes some of everything. Says whether there may be more.
    async fn step(&self, round: &mut Round) -> Result<bool, EngineError> {
        let (retention, ages) = (&self.retention, &self.ages);
        let full = |deleted: u64| deleted >= u64::from(BATCH);
        let inbox = retention.prune_inbox(ages.inbox, BATCH).await?;
        metrics::counter!("scheduler_inbox_pruned_total").increment(inbox);
        let externals = retention.prune_externals(ages.externals, BATCH).await?;
        metrics::counter!("scheduler_external_events_pruned_total").increment(externals);
        let starts = retention.prune_gatherings(ages.externals, BATCH).await?;
        metrics::counter!("scheduler_gatherings_pruned_total").increment(starts);
        let actions = retention.prune_actions(ages.externals, BATCH).await?;
        metrics::counter!("scheduler_actions_pruned_total").increment(actions);
        let firings = retention.prune_firings(ages.firings, BATCH).await?;
        metrics::counter!("scheduler_firings_pruned_total").increment(firings);
        let keys = retention.prune_idempotency_keys(ages.idempotency_keys, BATCH).await?;
        metrics::counter!("scheduler_idempotency_keys_pruned_total").increment(keys);
        let runs = match ages.ended_runs {
            Some(age) => self.remove_runs(age, round).await?,
            None => false,
        };
        Ok(full(inbox) || full(externals) || full(starts) || full(actions) || full(firings) || full(keys) || runs)
    }

    async fn remove_runs(&self, age: Duration, round: &mut Round) -> Result<bool, EngineError> {
        let removed = self.retention.remove_ended_runs(round.last, age, BATCH).await?;
        metrics::counter!("scheduler_runs_removed_total").increment(removed.runs);
        if removed.runs > 0 {
            tracing::info!(runs = removed.runs, "removed runs that ended long ago");
        }
        round.runs_done |= removed.next.is_none();
        if removed.next.is_some() {
            round.last = removed.next;
        }
        // After the last run there may still be long logs on their way out.
        Ok(!round.runs_done || removed.rows > 0)
    }
}
