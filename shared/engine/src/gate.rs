//! Holding back what follows commits while there is more to commit: a burst is committed first and heard of then, so that
//! those who hear of it don't take the machine away from it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The longest that anything is held back.
pub(crate) const HELD_AT_MOST: Duration = Duration::from_secs(1);

/// Says whether commits are heard of at once, which they are unless somebody holds them back. Cheap to clone; clones are one.
#[derive(Clone, Debug)]
pub struct PublishGate {
    held: Arc<watch::Sender<bool>>,
}

impl Default for PublishGate {
    fn default() -> Self {
        Self { held: Arc::new(watch::Sender::new(false)) }
    }
}

impl PublishGate {
    /// Holds back what is committed from now on, for a second at the longest: snapshots and messages wait. A crash meanwhile
    /// costs nothing, since the outbox has them.
    pub fn hold(&self) {
        self.held.send_if_modified(|held| !std::mem::replace(held, true));
    }

    /// Lets go.
    pub fn release(&self) {
        self.held.send_if_modified(|held| std::mem::replace(held, false));
    }

    /// Whether something is held back.
    pub(crate) fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Waits until nothing is.
    pub(crate) async fn released(&self) {
        // The sender is this very value, so the wait ends only with what is waited for.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }
}
