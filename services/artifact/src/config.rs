//! What the artifact service can be told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::Common;

/// Configuration of the artifact service; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Connections to Postgres.
    pub pool_size: u32,
    /// Most bytes of one artifact.
    pub artifact_max_bytes: u64,
    /// Bytes of raw output of a call after which a segment is stored.
    pub segment_bytes: usize,
    /// Milliseconds after which what there is of a segment is stored.
    pub segment_millis: u64,
    /// Bytes of raw output, of all calls, that may wait to be stored.
    pub archive_buffer_bytes: usize,
    /// Days for which the logs of services are kept; 0 is for ever. Output of calls is kept as long as its run.
    pub retain_logs_days: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("artifact"),
            pool_size: 6,
            artifact_max_bytes: 1 << 30,
            segment_bytes: 1 << 20,
            segment_millis: 2000,
            archive_buffer_bytes: 32 << 20,
            retain_logs_days: 30,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    pub(crate) fn segment_age(&self) -> Duration {
        Duration::from_millis(self.segment_millis.max(10))
    }

    pub(crate) fn retain_logs(&self) -> Option<Duration> {
        (self.retain_logs_days > 0).then(|| Duration::from_secs(self.retain_logs_days.saturating_mul(24 * 3600)))
    }
}
