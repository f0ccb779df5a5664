//! The ordered end of a service, under a deadline.
//!
//! In order: readiness goes off, nothing new is pulled, what is in flight ends, background helpers close, telemetry is
//! flushed (by [`Running`](crate::Running)). When the deadline passes, what is left is cut off: messages that were
//! not acknowledged are delivered again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The end of one service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    draining: CancellationToken,
    stopping: CancellationToken,
    closing: CancellationToken,
    cut_off: CancellationToken,
    work: TaskTracker,
    background: TaskTracker,
    drain: Duration,
    deadline: OnceLock<Instant>,
}

/// Work in flight: the drain waits until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct InFlight {
    _token: TaskTrackerToken,
}

/// Cuts everything off when dropped, what only listens for an ordered end too: consumers are tasks of their own.
#[derive(Debug)]
pub(crate) struct KillOnDrop(Shutdown);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything that was in flight came to its end.
    Clean,
    /// The deadline passed and what was left was cut off.
    Overdue,
}

impl Shutdown {
    /// An end that may take `drain` at the longest, once it has begun.
    pub fn new(drain: Duration) -> Self {
        let inner = Inner {
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
            cut_off: CancellationToken::new(),
            work: TaskTracker::new(),
            background: TaskTracker::new(),
            drain,
            deadline: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Cancelled first: the service is not ready any more.
    pub fn draining(&self) -> CancellationToken {
        self.inner.draining.clone()
    }

    /// Cancelled next: nothing new is pulled, long streams end. `run` awaits this and returns once its work is done.
    pub fn stopping(&self) -> CancellationToken {
        self.inner.stopping.clone()
    }

    /// Cancelled when nothing is in flight any more: HTTP servers and other helpers of the work close. Not for `run`
    /// itself, which counts as work in flight.
    pub fn closing(&self) -> CancellationToken {
        self.inner.closing.clone()
    }

    /// Cancelled when the deadline has passed.
    pub fn cut_off(&self) -> CancellationToken {
        self.inner.cut_off.clone()
    }

    /// Whether the end has begun.
    pub fn is_stopping(&self) -> bool {
        self.inner.stopping.is_cancelled()
    }

    /// Marks work that the drain has to wait for.
    pub fn in_flight(&self) -> InFlight {
        InFlight { _token: self.inner.work.token() }
    }

    /// Spawns work that the drain waits for. `None` comes out if it was cut off.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let cut_off = self.cut_off();
        self.inner.work.spawn(async move { cut_off.run_until_cancelled_owned(future).await })
    }

    /// Spawns a helper that outlives the work: it has to end by itself once [`Shutdown::closing`] is cancelled.
    pub fn spawn_background<F>(&self, future: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let cut_off = self.cut_off();
        self.inner.background.spawn(async move { cut_off.run_until_cancelled_owned(future).await })
    }

    /// Goes through the phases in order and comes back at the end of the last or at the deadline. Whoever calls second
    /// waits for the same end.
    pub async fn drain(&self) -> Drained {
        let inner = &*self.inner;
        let deadline = *inner.deadline.get_or_init(|| Instant::now() + inner.drain);
        inner.draining.cancel();
        inner.stopping.cancel();
        inner.work.close();
        inner.background.close();
        let phases = async {
            inner.work.wait().await;
            inner.closing.cancel();
            inner.background.wait().await;
        };
        match tokio::time::timeout_at(deadline, phases).await {
            Ok(()) => Drained::Clean,
            Err(_) => {
                self.kill();
                Drained::Overdue
            }
        }
    }

    /// What is left of the time to drain; all of it, if the drain has not begun.
    pub fn remaining(&self) -> Duration {
        match self.inner.deadline.get() {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => self.inner.drain,
        }
    }

    /// Cuts everything off at once, as a crash would.
    pub fn kill(&self) {
        // The cut comes first: nothing takes this for the beginning of an ordered end.
        for token in [&self.inner.cut_off, &self.inner.draining, &self.inner.stopping, &self.inner.closing] {
            token.cancel();
        }
    }

    /// Cuts everything off when dropped.
    pub(crate) fn kill_on_drop(&self) -> KillOnDrop {
        KillOnDrop(self.clone())
    }
}
