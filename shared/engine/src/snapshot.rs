//! Snapshots in Redis: a cache of states, never the truth. What is missing, old or unreadable is loaded from the log.

use std::sync::Arc;

use kernel::{RunId, RunState, STATE_VERSION};
use redis::{Script, aio::ConnectionManager};

use crate::error::{EngineError, rd};

/// Redis keys of one system: a prefix for what belongs to it.
#[derive(Clone, Debug)]
pub(crate) struct RedisKeys {
    prefix: String,
}

impl RedisKeys {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = if namespace.is_empty() { "esc:".to_owned() } else { format!("{namespace}:esc:") };
        Self { prefix }
    }

    /// The key of a run's snapshot. It names the state's version, so that another shape is never read.
    pub(crate) fn snapshot(&self, run: RunId) -> String {
        format!("{}s{STATE_VERSION}:{run}", self.prefix)
    }

    /// The key of a lease.
    pub(crate) fn lease(&self, name: &str) -> String {
        format!("{}lease:{name}", self.prefix)
    }

    /// The key of a target's breaker.
    pub(crate) fn breaker(&self, target: &str) -> String {
        format!("{}breaker:{target}", self.prefix)
    }

    /// The key of a rate.
    pub(crate) fn rate(&self, name: &str) -> String {
        format!("{}rate:{name}", self.prefix)
    }

    /// What all keys begin with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// How long a snapshot is kept after its last change: runs that sleep longer are loaded from the log.
const KEEP_SECONDS: u64 = 7 * 24 * 3600;
/// Snapshots that are larger are not worth caching.
const MAX_BYTES: usize = 1 << 20;
/// Most snapshots fit into this.
const USUAL_BYTES: usize = 8 << 10;
/// Width of the seq in front of a snapshot, so that seqs compare as text.
const SEQ_WIDTH: usize = 20;

/// Sets a snapshot only if it is newer than what is there.
const SET_IF_NEWER: &str = "
for i = 1, #KEYS do
  local have = redis.call('GETRANGE', KEYS[i], 0, 19)
  if have == '' or have < string.sub(ARGV[i + 1], 1, 20) then
    redis.call('SET', KEYS[i], ARGV[i + 1], 'EX', ARGV[1])
  end
end";

/// The snapshots.
#[derive(Clone)]
pub(crate) struct Snapshots {
    redis: ConnectionManager,
    keys: RedisKeys,
    set: Arc<Script>,
}

impl Snapshots {
    pub(crate) fn new(redis: ConnectionManager, keys: RedisKeys) -> Self {
        Self { redis, keys, set: Arc::new(Script::new(SET_IF_NEWER)) }
    }

    /// The snapshots of `runs`, in their order; none where there is no readable one.
    pub(crate) async fn get(&self, runs: &[RunId]) -> Result<Vec<Option<RunState>>, EngineError> {
        let keys: Vec<_> = runs.iter().map(|run| self.keys.snapshot(*run)).collect();
        let mut redis = self.redis.clone();
        let values: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(&keys).query_async(&mut redis).await.map_err(rd("reading snapshots"))?;
        Ok(values.into_iter().zip(runs).map(|(value, run)| parse(&value?, *run)).collect())
    }

    /// Removes the snapshot of a run. What could not be removed is found to be a lie again.
    pub(crate) async fn forget(&self, run: RunId) {
        let mut redis = self.redis.clone();
        let key = self.keys.snapshot(run);
        if let Err(error) = redis::cmd("UNLINK").arg(key).query_async::<()>(&mut redis).await {
            tracing::debug!(run_id = %run, error = &error as &dyn std::error::Error, "a snapshot was not removed");
        }
    }

    /// Stores states unless newer ones are there.
    pub(crate) async fn put(&self, states: &[Arc<RunState>]) -> Result<(), EngineError> {
        let mut call = self.set.prepare_invoke();
        call.arg(KEEP_SECONDS);
        let mut any = false;
        for state in states {
            let value = render(state)?;
            if value.len() <= MAX_BYTES {
                call.key(self.keys.snapshot(state.run_id)).arg(value);
                any = true;
            }
        }
        if any {
            let mut redis = self.redis.clone();
            call.invoke_async::<()>(&mut redis).await.map_err(rd("writing snapshots"))?;
        }
        Ok(())
    }
}

fn render(state: &RunState) -> Result<Vec<u8>, EngineError> {
    let mut value = Vec::with_capacity(USUAL_BYTES);
    value.extend_from_slice(format!("{:0SEQ_WIDTH$}", state.seq).as_bytes());
    serde_json::to_writer(&mut value, state).map_err(|source| EngineError::Json { what: "a snapshot", source })?;
    Ok(value)
}

fn parse(value: &[u8], run: RunId) -> Option<RunState> {
    let state: RunState = serde_json::from_slice(value.get(SEQ_WIDTH..)?).ok()?;
    (state.run_id == run).then_some(state)
}
