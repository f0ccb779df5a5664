//! How Redis stands, for whoever looks after it: it may answer, and take nothing.

use std::time::Duration;

use crate::{
    engine::connect_redis,
    error::{EngineError, rd},
    options::REDIS_WITHIN,
};

/// How Redis stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedisState {
    /// Bytes that it uses.
    pub used_bytes: u64,
    /// Bytes that it may use; 0 is no limit.
    pub max_bytes: u64,
}

/// Asks Redis how it stands, and writes a key that goes by itself, as the engine would.
///
/// # Errors
/// When it does not answer, or takes nothing: for want of memory, of rights, or since it is a replica.
pub async fn redis_state(url: &str, namespace: &str) -> Result<RedisState, EngineError> {
    let mut redis = tokio::time::timeout(Duration::from_secs(10), connect_redis(url, REDIS_WITHIN))
        .await
        .map_err(|_| rd("connecting")(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))??;
    let key = format!("{namespace}:esc:doctor");
    let written = redis::cmd("SET").arg(key).arg("1").arg("EX").arg(10).query_async::<()>(&mut redis).await;
    written.map_err(rd("write"))?;
    let said: String = redis::cmd("INFO").arg("memory").query_async(&mut redis).await.map_err(rd("INFO"))?;
    let number = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
    };
    Ok(RedisState { used_bytes: number("used_memory"), max_bytes: number("maxmemory") })
}
