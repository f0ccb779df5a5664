//! The kill switch, as far as this process has to hear of it.
//!
//! What is not in the log as started is refused there. What was, a moment before the switch was thrown, and has not begun, is
//! let be: whoever is between a start and its effect looks again if it has heard of a change since.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bus::{Bus, BusError, subject};
use engine::{EngineError, Freezes};
use futures::StreamExt as _;
use kernel::{CallId, RunState};
use serde::Deserialize;
use service::Shutdown;
use tokio::sync::mpsc::UnboundedReceiver;

/// Looks at the kill switch. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KillSwitch {
    freezes: Freezes,
    heard: Arc<AtomicU64>,
}

/// What is heard.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Change {
    /// Activities that are to end, too.
    stop: Vec<CallId>,
}

/// What had been heard at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard(u64);

impl KillSwitch {
    /// Listens until the shutdown. What is to be stopped besides comes out of the receiver.
    pub async fn listen(
        freezes: Freezes,
        bus: &Bus,
        shutdown: &Shutdown,
    ) -> Result<(Self, UnboundedReceiver<Vec<CallId>>), BusError> {
        let heard = Arc::new(AtomicU64::new(0));
        let mut changes = bus.subscribe(&subject::svc("tool-executor", "freeze")).await?;
        let count = Arc::clone(&heard);
        // Each is as short as what an operator asks for, and there is one for each time that one does.
        let (stop, stopped) = tokio::sync::mpsc::unbounded_channel();
        let hearing = async move {
            while let Some(change) = changes.next().await {
                count.fetch_add(1, Ordering::SeqCst);
                // What can't be read freezes all the same: the log says what.
                let change: Change = serde_json::from_slice(&change.payload).unwrap_or_default();
                if !change.stop.is_empty() && stop.send(change.stop).is_err() {
                    break;
                }
            }
        };
        shutdown.spawn_background(shutdown.closing().run_until_cancelled_owned(hearing));
        Ok((Self { freezes, heard }, stopped))
    }

    /// What has been heard so far.
    pub fn heard(&self) -> Heard {
        Heard(self.heard.load(Ordering::SeqCst))
    }

    /// The scope that keeps the tool from starting, if there was a change since.
    pub async fn thrown_since(&self, heard: Heard, run: &RunState, tool: &str) -> Result<Option<String>, EngineError> {
        if self.heard().0 == heard.0 { Ok(None) } else { self.holds(run, tool).await }
    }

    /// The scope that keeps the tool from starting now.
    pub async fn holds(&self, run: &RunState, tool: &str) -> Result<Option<String>, EngineError> {
        self.freezes.holds(run, tool).await
    }
}
