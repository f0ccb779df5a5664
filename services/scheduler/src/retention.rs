//! What is forgotten: deliveries that were handled so long ago that they will not come again.

use std::time::Duration;

use engine::Engine;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;

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
    inbox: Duration,
}

impl Retention {
    pub(crate) fn new(engine: &Engine, inbox: Duration) -> Self {
        Self { retention: engine.retention(), inbox }
    }

    /// Forgets until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, stop: CancellationToken) {
        let mut pause = NOT_MINE;
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            if !leader.leads() {
                pause = NOT_MINE;
                continue;
            }
            pause = EVERY;
            match self.retention.prune_inbox(self.inbox, BATCH).await {
                Ok(deleted) => {
                    metrics::counter!("scheduler_inbox_pruned_total").increment(deleted);
                    if deleted >= u64::from(BATCH) {
                        pause = BREATH;
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "can't forget old deliveries at the moment"
                    );
                }
            }
        }
    }
}
