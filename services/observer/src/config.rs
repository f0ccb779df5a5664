//! What the observer can be told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::Common;

use crate::rules::Limits;

/// Configuration of the observer; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Connections to Postgres.
    pub pool_size: u32,
    /// Most bytes of what is told in one observation.
    pub packet_bytes: usize,
    /// Seconds between two notes about the progress of a call, at least.
    pub progress_seconds: u64,
    /// Milliseconds between two checkpoints: what is read again after a crash.
    pub checkpoint_millis: u64,
    /// Log records of one service that are looked at in a second; further ones are kept and counted as a gap. 0 is no limit.
    pub records_per_second: u64,
    /// Milliseconds for which a partition stays an observer's after its last sign of life.
    pub lease_millis: u64,
    /// Seconds for which a tool-executor is looked for that asks an agent's checks about the end of an activity. After that, what the
    /// checks say of their silence holds.
    pub check_seconds: u64,
    /// Seconds that a second opinion is waited for, where an agent asks for one. After that the rules' word stands.
    pub opinion_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            common: Common::for_service("observer"),
            pool_size: 8,
            packet_bytes: limits.packet_bytes,
            progress_seconds: limits.progress_every.as_secs(),
            checkpoint_millis: 1000,
            records_per_second: 50_000,
            lease_millis: 10_000,
            check_seconds: 30,
            opinion_seconds: 10,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            // What a person could not read is no evidence, and the run's state keeps 4 KiB.
            packet_bytes: self.packet_bytes.clamp(768, 3 * 1024),
            progress_every: Duration::from_secs(self.progress_seconds.max(1)),
        }
    }

    pub(crate) fn checkpoint_every(&self) -> Duration {
        Duration::from_millis(self.checkpoint_millis.max(10))
    }

    /// The end of a call is told so much later at the most: not for long, since a run waits for it.
    pub(crate) fn opinion(&self) -> Duration {
        Duration::from_secs(self.opinion_seconds.clamp(1, 60))
    }

    pub(crate) fn checks(&self) -> Duration {
        Duration::from_secs(self.check_seconds)
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_millis.max(500))
    }
}
