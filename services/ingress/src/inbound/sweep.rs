//! What a crash left between recording an event and dispatching it.

use std::time::Duration;

use engine::{EngineError, RecordedExternal};
use tokio_util::sync::CancellationToken;

use super::Inbound;

/// Events in one look.
const BATCH: u32 = 100;

/// Dispatches what was left, every so often, until the token is cancelled. Several instances may do it at once. What is
/// younger than two rounds is probably being dispatched just now.
pub(crate) async fn sweep(inbound: Inbound, every: Duration, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = once(&inbound, every * 2).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "can't look for events that were left");
        }
    }
}

impl Inbound {
    /// Dispatches what the observer has recorded and not brought on: it may not speak to runs or start any.
    pub(super) async fn dispatch_recorded(&self) -> Result<(), EngineError> {
        let mut place = 0;
        loop {
            let page = self.externals.undispatched_after(place, Duration::ZERO, BATCH).await?;
            let Some(last) = page.last() else { return Ok(()) };
            place = last.external.position;
            for recorded in page.iter().filter(|recorded| recorded.external.source == engine::OBSERVER) {
                redo(self, recorded).await?;
            }
        }
    }
}

/// Looks once. Tells how many were dispatched. One that fails is left to the next look, and the others go on.
async fn once(inbound: &Inbound, older_than: Duration) -> Result<usize, EngineError> {
    let (mut done, mut place) = (0, 0);
    loop {
        let page = inbound.externals.undispatched_after(place, older_than, BATCH).await?;
        let Some(last) = page.last() else { break };
        place = last.external.position;
        for recorded in &page {
            done += usize::from(redo(inbound, recorded).await?);
        }
    }
    if done > 0 {
        tracing::info!(events = done, "dispatched events that were left behind");
        metrics::counter!("ingress_events_swept_total").increment(done as u64);
    }
    Ok(done)
}

/// Dispatches an event that was left. Tells whether it worked.
async fn redo(inbound: &Inbound, recorded: &RecordedExternal) -> Result<bool, EngineError> {
    let matches = inbound.externals.matching(recorded, None).await?;
    let dispatched = inbound.dispatch(recorded, matches).await;
    if let Err(error) = &dispatched {
        let position = recorded.external.position;
        tracing::warn!(position, error = error as &dyn std::error::Error, "an event still can't be dispatched");
    }
    Ok(dispatched.is_ok())
}
