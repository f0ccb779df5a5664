//! Looks at what is waited for outside, also if pushes come: a callback that was lost is found by asking.
//!
//! Which waits are due for a look follows from when they began, so that whichever scheduler does the upkeep finds the same, and
//! nothing has to be remembered. The question itself is the executor's to ask: it rings for it. What goes on by itself is
//! looked at by whoever follows it; that somebody does is for the reaper to see.

use std::time::Duration;

use engine::{Engine, EngineError, Outbox, Pace, Reads, VerifiedWait};
use kernel::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;

/// Conditions that are read together.
const PAGE: u32 = 1000;
/// Bells between two breaths, so that a scheduler that takes over after a long time does not flood the executors.
const AT_ONCE: usize = 200;
/// A breath.
const BREATH: Duration = Duration::from_secs(1);

/// Rings for waits that are due for a look.
pub(crate) struct Reconciler {
    reads: Reads,
    outbox: Outbox,
    every: Duration,
    pace: Pace,
}

impl Reconciler {
    pub(crate) fn new(engine: &Engine, every: Duration, pace: Pace) -> Self {
        Self { reads: engine.reads(), outbox: engine.outbox(), every, pace }
    }

    /// Looks until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, stop: CancellationToken) {
        let mut last: Option<Instant> = None;
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_none() {
                return;
            }
            if !leader.leads() {
                last = None;
                continue;
            }
            let began = Instant::now();
            // Nobody knows how long nobody looked: all that could have been due meanwhile is.
            let window = last.map_or(self.pace.longest.mul_f64(1.25), |last| began - last);
            match stop.run_until_cancelled(self.look(window)).await {
                None => return,
                Some(Ok(())) => last = Some(began),
                Some(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "can't look at what is waited for at the moment");
                }
            }
        }
    }

    /// Rings for each condition whose look fell into the last `window`.
    async fn look(&self, window: Duration) -> Result<(), EngineError> {
        let now = Timestamp::now();
        let (mut after, mut rung) = (None, 0);
        loop {
            let page = self.reads.verified_waits_after(after, PAGE).await?;
            let mut runs: Vec<_> =
                page.iter().filter(|wait| self.is_due(wait, now, window)).map(|wait| wait.run_id).collect();
            runs.dedup();
            for run in runs {
                match self.outbox.ring_wait(run).await {
                    Ok(sent) => rung += sent,
                    Err(error) if error.is_transient() => return Err(error),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(run_id = %run, error, "can't ring for a wait");
                    }
                }
                if rung > 0 && rung.is_multiple_of(AT_ONCE) {
                    tokio::time::sleep(BREATH).await;
                }
            }
            after = page.last().map(|last| (last.run_id, last.wait_id, last.leaf));
            if page.len() < PAGE as usize {
                metrics::counter!("scheduler_verifications_total").increment(rung as u64);
                return Ok(());
            }
        }
    }

    fn is_due(&self, wait: &VerifiedWait, now: Timestamp, window: Duration) -> bool {
        let span = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        let left = wait.deadline.map(|deadline| span(now, deadline));
        self.pace.is_due(span(wait.since, now), left, window, (wait.wait_id.0, wait.leaf))
    }
}
