//! Work that somebody should be at, and nobody is: rung for again, from what the log says. So a worker that died, a lost
//! message and even a lost stream cost seconds, not work.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::{AttentionRow, Engine, EngineError, Leases, Outbox, Reads};
use kernel::{RunId, Status};
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;

/// Rows that are looked at together.
const PAGE: u32 = 1000;

/// Rings for neglected work.
pub(crate) struct Reaper {
    reads: Reads,
    leases: Leases,
    outbox: Outbox,
    every: Duration,
    neglect: Duration,
}

impl Reaper {
    pub(crate) fn new(engine: &Engine, every: Duration, neglect: Duration) -> Self {
        service::metrics::announce(&metrics::counter!("scheduler_rings_total"));
        Self { reads: engine.reads(), leases: engine.leases(), outbox: engine.outbox(), every, neglect }
    }

    /// Looks until told to stop. No run is rung for more often than the interval.
    pub(crate) async fn run(&self, leader: &Leader, stop: CancellationToken) {
        let mut place = None;
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_none() {
                return;
            }
            if leader.leads()
                && let Err(error) = self.look(&mut place).await
            {
                tracing::warn!(error = &error as &dyn std::error::Error, "can't look for neglected work at the moment");
            }
        }
    }

    async fn look(&self, place: &mut Option<RunId>) -> Result<(), EngineError> {
        let mut neglected = self.abandoned_calls().await?;
        neglected.extend(self.neglected_runs(place).await?);
        for run in neglected {
            match self.outbox.ring(run).await {
                Ok(0) => {}
                Ok(rung) => {
                    metrics::counter!("scheduler_rings_total").increment(rung as u64);
                    tracing::info!(run_id = %run, rung, "rang for work that nobody is at");
                }
                Err(error) if error.is_transient() => return Err(error),
                // Such as a log that a newer version writes: that run is for newer instances, the others are for this one.
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(run_id = %run, error, "can't ring for a run");
                }
            }
        }
        Ok(())
    }

    /// Runs with a call whose effect may be under way, and whose executor has let go of it.
    async fn abandoned_calls(&self) -> Result<BTreeSet<RunId>, EngineError> {
        let mut abandoned = BTreeSet::new();
        let mut after = None;
        loop {
            let page = self.reads.started_calls_after(after, PAGE).await?;
            let names: Vec<_> = page.iter().map(|call| format!("call/{}", call.call_id)).collect();
            let held = self.leases.held_many(&names).await?;
            let free = page.iter().zip(held).filter(|(_, held)| !held).map(|(call, _)| call.run_id);
            abandoned.extend(free);
            after = page.last().map(|last| (last.started_at, last.call_id));
            if page.len() < PAGE as usize {
                return Ok(abandoned);
            }
        }
    }

    /// Runs with an open turn or a requested call that nobody has taken up for too long: about a page of them, from where the
    /// look before ended. When all workers are busy there may be very many, and ringing for all would not help.
    async fn neglected_runs(&self, place: &mut Option<RunId>) -> Result<Vec<RunId>, EngineError> {
        let mut neglected = Vec::new();
        while neglected.len() < PAGE as usize {
            let page = self.reads.attention_after(*place, self.neglect, PAGE).await?;
            neglected.extend(self.unheld(&page).await?);
            if page.len() < PAGE as usize {
                *place = None;
                break;
            }
            *place = page.last().map(|last| last.run_id);
        }
        Ok(neglected)
    }

    /// Those of them that nobody is at, as far as leases say.
    async fn unheld(&self, rows: &[AttentionRow]) -> Result<Vec<RunId>, EngineError> {
        let names: Vec<_> = rows.iter().filter_map(|row| row.turn_id.map(|turn| format!("turn/{turn}"))).collect();
        let mut held = self.leases.held_many(&names).await?.into_iter();
        let neglected = rows.iter().filter(|row| match row.turn_id {
            Some(_) => !held.next().unwrap_or(false),
            // That is for the admission.
            None if row.status == Status::Queued => false,
            // Which of its calls it is for, and whether somebody is at it, is for the executor to say.
            None => true,
        });
        Ok(neglected.map(|row| row.run_id).collect())
    }
}
