//! Removes what is kept no longer: pieces of logs that are old, and objects whose rows are gone.
//!
//! First the row goes and its object is noted as abandoned, in one step; then the object; then the note. Whoever dies in between
//! leaves the rest to the next look, and several instances may look at once.

use std::time::Duration;

use engine::{Engine, EngineError};
use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// How often it is looked; sooner while there is more to remove.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(50);
/// Rows, and objects, that are removed in one step.
const MOST: u32 = 500;

/// What removes.
pub(crate) struct Janitor {
    pub(crate) store: Store,
    pub(crate) engine: Engine,
    /// How long logs of services are kept; for ever, if it does not say.
    pub(crate) retain_logs: Option<Duration>,
}

/// Nothing could be removed now.
#[derive(Debug, thiserror::Error)]
enum CleanError {
    #[error(transparent)]
    Rows(#[from] EngineError),
    #[error("the object store does not remove: {0}")]
    Objects(#[from] object_store::Error),
}

impl Janitor {
    /// Removes again and again, until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let pause = match self.clean().await {
                Ok(true) => SOON,
                Ok(false) => LOOK_EVERY,
                Err(error) => {
                    tracing::warn!(%error, "what is kept no longer could not be removed, trying again");
                    LOOK_EVERY
                }
            };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    /// One step; says whether there is more.
    async fn clean(&self) -> Result<bool, CleanError> {
        let rows = match self.retain_logs {
            Some(age) => self.engine.services().forget_segments(age, MOST).await?,
            None => 0,
        };
        let keys = self.engine.segments().abandoned(MOST).await?;
        for key in &keys {
            self.store.remove_object(key).await?;
        }
        if !keys.is_empty() {
            self.engine.segments().removed(&keys).await?;
        }
        metrics::counter!("artifact_objects_removed_total").increment(keys.len() as u64);
        Ok(rows >= u64::from(MOST) || keys.len() >= MOST as usize)
    }
}
