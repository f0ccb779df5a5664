//! How fast a sleeping run is awake: measured on runs of the agent `listener`, which go back to sleep after each message.

use std::time::{Duration, Instant};

use kernel::Timestamp;
use serde_json::{Value, json};

use crate::{
    stats::Latencies,
    target::{Error, Target},
};

/// The event types that must be listened to.
pub const HEARD: [&str; 4] = ["run.runnable", "turn.completed", "run.waiting", "run.failed"];
/// How long a wake may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// From the sending of a message on.
#[derive(Default)]
pub struct Wakes {
    /// Until somebody who listens on NATS hears that the run is runnable: committed and published.
    runnable: Latencies,
    /// Until the turn that it woke has come to its outcome (the `at` of `turn.completed`).
    turn: Latencies,
    /// Until somebody who listens hears that the run sleeps again.
    asleep: Latencies,
}

impl Wakes {
    /// Wakes a run, and waits until it sleeps again.
    pub async fn one(&mut self, target: &Target, run: &str) -> Result<(), Error> {
        let mut events = target.listen(run).await;
        let (sent, instant) = (Timestamp::now(), Instant::now());
        let (path, message) = (format!("/v1/runs/{run}/messages"), json!({ "text": "wake up" }));
        let sending = target.post(&path, &message);
        let listening = async {
            while let Some(event) = events.recv().await {
                match event.event_type.as_str() {
                    "run.runnable" => self.runnable.push(instant.elapsed()),
                    "turn.completed" => self.turn.push(since(sent, event.at)),
                    "run.waiting" => {
                        self.asleep.push(instant.elapsed());
                        return Ok(());
                    }
                    _ => return Err::<_, Error>(format!("run {run} has failed: {}", event.data).into()),
                }
            }
            Err("no more events".into())
        };
        let done = tokio::time::timeout(PATIENCE, async { tokio::try_join!(sending, listening) }).await;
        target.forget(run).await;
        done.map_err(|_| format!("run {run} did not wake within {PATIENCE:?}"))??;
        Ok(())
    }

    /// The figures.
    pub fn figures(&mut self) -> Value {
        json!({
            "count": self.asleep.len(),
            "runnable_ms": self.runnable.percentiles(),
            "turn_ms": self.turn.percentiles(),
            "asleep_ms": self.asleep.percentiles(),
        })
    }
}

/// Nothing if the clock was set back in between.
pub fn since(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}
