//! What was committed and, by a crash or an outage, not published: published again.

use std::time::Duration;

use engine::{Engine, Outbox};
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;

/// Commits that are published again at once.
const LIMIT: i64 = 256;
/// Pause while there is something to do.
const BUSY: Duration = Duration::from_secs(1);
/// Longest pause while there is not.
const IDLE: Duration = Duration::from_secs(3);

/// Sweeps the outbox.
pub(crate) struct Sweeper {
    outbox: Outbox,
    older_than: Duration,
}

impl Sweeper {
    pub(crate) fn new(engine: &Engine, older_than: Duration) -> Self {
        Self { outbox: engine.outbox(), older_than }
    }

    /// Sweeps until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, stop: CancellationToken) {
        let mut pause = BUSY;
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            pause = if leader.leads() { self.sweep(pause).await } else { IDLE };
        }
    }

    /// Sweeps once and says how long to leave it alone.
    async fn sweep(&self, pause: Duration) -> Duration {
        match self.outbox.sweep(self.older_than, LIMIT).await {
            Ok(swept) if swept.commits == 0 && swept.deleted == 0 => (2 * pause).clamp(BUSY, IDLE),
            Ok(swept) => {
                if swept.commits > 0 {
                    tracing::info!(
                        commits = swept.commits,
                        events = swept.events,
                        "published what was left in the outbox"
                    );
                    metrics::counter!("scheduler_outbox_swept_total").increment(swept.events as u64);
                }
                if i64::try_from(swept.commits).is_ok_and(|commits| commits >= LIMIT) { Duration::ZERO } else { BUSY }
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "can't sweep the outbox at the moment");
                IDLE
            }
        }
    }
}
