//! Leases in Redis: who is on it just now. A hint that saves work, never a promise: only the log decides.

use std::{sync::LazyLock, time::Duration};

use redis::{Script, aio::ConnectionManager};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    error::{EngineError, rd},
    snapshot::RedisKeys,
};

/// Prolongs a lease that is still ours. One that has vanished (an emptied Redis) is taken anew; one of somebody else is not.
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local holder = redis.call('GET', KEYS[1])
         if holder and holder ~= ARGV[1] then return 0 end
         redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
         return 1",
    )
});

/// Gives up a lease if it is still ours.
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")
});

/// The leases. Cheap to clone.
#[derive(Clone)]
pub struct Leases {
    redis: ConnectionManager,
    keys: RedisKeys,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Leases {
    pub(crate) fn new(redis: ConnectionManager, keys: RedisKeys) -> Self {
        Self { redis, keys }
    }

    /// Takes the lease `name` for `ttl`, unless somebody has it. `holder` is for people who look into Redis.
    ///
    /// The lease is renewed in the background until it is dropped or released. If it cannot be renewed in time, or somebody
    /// else has it all the same, it is lost: see [`Lease::lost`].
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn acquire(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<Lease>, EngineError> {
        let slot = Slot {
            redis: self.redis.clone(),
            key: self.keys.lease(name),
            value: format!("{holder}/{}", Uuid::now_v7().simple()),
            ttl: ttl.max(Duration::from_millis(1)),
        };
        // Counted from before the request: the server's clock starts later, so ours runs out first.
        let asked = Instant::now();
        if !slot.take().await? {
            return Ok(None);
        }
        Ok(Some(Lease::keep(slot, asked)))
    }

    /// As [`Leases::acquire`], for something that goes on by itself: whoever works for the same `holder` takes the lease over,
    /// from a process that is gone or from one that does not know yet that it is not wanted any more.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn acquire_for(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<Lease>, EngineError> {
        let slot = Slot {
            redis: self.redis.clone(),
            key: self.keys.lease(name),
            value: holder.to_owned(),
            ttl: ttl.max(Duration::from_millis(1)),
        };
        let asked = Instant::now();
        Ok(if slot.renew().await? { Some(Lease::keep(slot, asked)) } else { None })
    }

    /// Whether anybody has the lease `name`.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn is_held(&self, name: &str) -> Result<bool, EngineError> {
        Ok(self.held_many(&[name]).await?.first().copied().unwrap_or(false))
    }

    /// Which of the leases somebody has, in the order of `names`, in one round trip.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn held_many<S: AsRef<str> + Sync>(&self, names: &[S]) -> Result<Vec<bool>, EngineError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = names.iter().map(|name| self.keys.lease(name.as_ref())).collect();
        let holders: Vec<Option<Vec<u8>>> = redis::cmd("MGET")
            .arg(&keys)
            .query_async(&mut self.redis.clone())
            .await
            .map_err(rd("looking at leases"))?;
        Ok(holders.iter().map(Option::is_some).collect())
    }
}

/// A held lease. Dropping it gives it up, soon; [`Lease::release`] waits until it is.
#[derive(Debug)]
pub struct Lease {
    token: String,
    lost: CancellationToken,
    stop: CancellationToken,
    keeper: Option<JoinHandle<()>>,
}

impl Lease {
    fn keep(slot: Slot, since: Instant) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let token = slot.value.clone();
        let keeper = tokio::spawn(keep(slot, since, lost.clone(), stop.clone()));
        Self { token, lost, stop, keeper: Some(keeper) }
    }

    /// What tells this lease from every other one, of the same holder too.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether it can no longer be counted on.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Waits until it can no longer be counted on: somebody else may be on it from now on.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Lets it run out by itself, which costs nothing: for what nobody will want a lease on again.
    pub fn leave(mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.abort();
        }
    }

    /// Gives it up and waits until Redis has heard of it, or can't be reached.
    pub async fn release(mut self) {
        self.stop.cancel();
        if let Some(keeper) = self.keeper.take() {
            // It only fails by a panic, and then there is nothing left to wait for.
            let _ = keeper.await;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Renews until told to stop; then gives the lease up.
async fn keep(slot: Slot, since: Instant, lost: CancellationToken, stop: CancellationToken) {
    let mut until = since + slot.ttl;
    while !lost.is_cancelled() {
        let next = tokio::time::sleep(slot.ttl / 3);
        tokio::select! {
            () = stop.cancelled() => break,
            () = next => {}
        }
        let asked = Instant::now();
        match tokio::time::timeout_at(until, slot.renew()).await {
            Ok(Ok(true)) => until = asked + slot.ttl,
            Ok(Ok(false)) => {
                tracing::warn!(lease = slot.key, "lost a lease: somebody else has it");
                lost.cancel();
            }
            Ok(Err(error)) if Instant::now() < until => {
                tracing::debug!(
                    lease = slot.key,
                    error = &error as &dyn std::error::Error,
                    "a lease was not renewed, trying again"
                );
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(lease = slot.key, "lost a lease: it could not be renewed in time");
                lost.cancel();
            }
        }
    }
    if let Err(error) = slot.release().await {
        tracing::debug!(lease = slot.key, error = &error as &dyn std::error::Error, "a lease was left to run out");
    }
}

/// A lease as Redis has it.
struct Slot {
    redis: ConnectionManager,
    key: String,
    value: String,
    ttl: Duration,
}

impl Slot {
    async fn take(&self) -> Result<bool, EngineError> {
        let taken: Option<String> = redis::cmd("SET")
            .arg(&self.key)
            .arg(&self.value)
            .arg("NX")
            .arg("PX")
            .arg(self.millis())
            .query_async(&mut self.redis.clone())
            .await
            .map_err(rd("taking a lease"))?;
        Ok(taken.is_some())
    }

    async fn renew(&self) -> Result<bool, EngineError> {
        RENEW
            .key(&self.key)
            .arg(&self.value)
            .arg(self.millis())
            .invoke_async(&mut self.redis.clone())
            .await
            .map_err(rd("renewing a lease"))
    }

    async fn release(&self) -> Result<(), EngineError> {
        RELEASE
            .key(&self.key)
            .arg(&self.value)
            .invoke_async::<()>(&mut self.redis.clone())
            .await
            .map_err(rd("releasing a lease"))
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }
}
