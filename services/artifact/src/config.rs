//! How the artifact service is set up.

use serde::{Deserialize, Serialize};
use service::{Common, ConfigError};

/// Configuration of the artifact service. Where content is kept is the common key `artifacts_url`, who may ask is
/// `internal_token`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Connections to Postgres.
    pub pool_size: u32,
    /// Bytes of one artifact at most.
    pub max_bytes: u64,
    /// Bytes of raw output that make a segment.
    pub segment_bytes: usize,
    /// Milliseconds after which a smaller segment is stored all the same.
    pub segment_millis: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("artifact"),
            pool_size: 6,
            max_bytes: 1 << 30,
            segment_bytes: 1 << 20,
            segment_millis: 1000,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    /// What no single key can say by itself.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.common.internal_token.is_empty() {
            return Err(ConfigError::Invalid {
                key: "internal_token".into(),
                origin: "the configuration of artifact".into(),
                message: "missing: without it anybody who reaches the port could read and write content".into(),
            });
        }
        Ok(())
    }
}
