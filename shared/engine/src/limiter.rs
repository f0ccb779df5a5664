//! Limits that all instances share, in Redis: how often something may be done, and whether a target that fails is left alone.
//!
//! Both are there to spare whoever is called, and neither keeps anything safe: policies, approvals and the log do that. So
//! when Redis does not answer, whoever asks is let through (and says so). A worker needs a lease in the same Redis anyway, so
//! that an outage there stops new work before it comes here.

use std::{sync::LazyLock, time::Duration};

use redis::{Script, aio::ConnectionManager};

use crate::{
    error::{EngineError, rd},
    snapshot::RedisKeys,
};

/// Asks a breaker and any number of rates at once: what is refused by one is not counted by any. Time is the server's, so that
/// instances whose clocks differ share one.
///
/// A rate is a leaky bucket, kept as the time at which it will be empty. A breaker is a hash: `fails` in a row, `opened` how
/// often in a row, `until` when it may be tried again, `probing` until when somebody is at that.
static ADMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = time[1] * 1000 + math.floor(time[2] / 1000)
         local probe = 0
         if ARGV[1] ~= '0' then
           local b = redis.call('HMGET', KEYS[1], 'until', 'probing')
           local open = tonumber(b[1] or 0)
           if open > now then return {1, open - now, 0} end
           if open > 0 then
             local probing = tonumber(b[2] or 0)
             if probing > now then return {1, probing - now, 0} end
             probe = 1
           end
         end
         local tats = {}
         for i = 2, #KEYS do
           local every, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
           local tat = math.max(tonumber(redis.call('GET', KEYS[i]) or 0), now)
           local wait = tat - now - every * (burst - 1)
           if wait > 0 then return {2, math.ceil(wait), i - 1} end
           tats[i] = tat + every
         end
         for i = 2, #KEYS do
           redis.call('SET', KEYS[i], string.format('%.3f', tats[i]), 'PX', math.ceil(tats[i] - now) + 1000)
         end
         if probe == 1 then redis.call('HSET', KEYS[1], 'probing', now + tonumber(ARGV[2])) end
         return {0, probe, 0}",
    )
});

/// A call failed: counts it, and opens the breaker after too many in a row, or at once if it was the probe. Longer each time.
static FAILED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = time[1] * 1000 + math.floor(time[2] / 1000)
         local threshold, first, most, forget = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
         local fails = redis.call('HINCRBY', KEYS[1], 'fails', 1)
         local b = redis.call('HMGET', KEYS[1], 'until', 'opened')
         local open, opened = tonumber(b[1] or 0), tonumber(b[2] or 0)
         local rest = 0
         if open <= now and (fails >= threshold or open > 0) then
           rest = math.min(first * 2 ^ math.min(opened, 30), most)
           redis.call('HSET', KEYS[1], 'until', string.format('%d', now + rest), 'opened', opened + 1, 'probing', 0, 'fails', 0)
         end
         redis.call('PEXPIRE', KEYS[1], string.format('%d', rest + forget))
         return string.format('%d', rest)",
    )
});

/// Adds an amount to a bucket that empties by itself, and says for how long it is over its burst.
static CHARGE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = time[1] * 1000 + math.floor(time[2] / 1000)
         local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + tonumber(ARGV[1])
         if tonumber(ARGV[1]) > 0 then
           redis.call('SET', KEYS[1], string.format('%.3f', tat), 'PX', math.ceil(tat - now) + 1000)
         end
         return string.format('%d', math.max(math.ceil(tat - now - tonumber(ARGV[2])), 0))",
    )
});

/// A minute, over which amounts are spread.
const MINUTE_MS: f64 = 60_000.0;

/// At most so many in so much time, evenly spread but for a burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What is counted, such as `tool/github.merge`.
    pub name: String,
    /// How many.
    pub count: u32,
    /// In how much time.
    pub per: Duration,
}

/// When a target is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Failures in a row that open it; 0 is never.
    pub threshold: u32,
    /// How long it is left alone the first time; twice as long each time after.
    pub first: Duration,
    /// How long at most.
    pub most: Duration,
    /// How long a probe may take before somebody else may try one.
    pub probe: Duration,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self {
            threshold: 5,
            first: Duration::from_secs(2),
            most: Duration::from_secs(120),
            probe: Duration::from_secs(30),
        }
    }
}

/// Whether something may be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Admitted {
        /// As the one try that says whether the target is well again.
        probe: bool,
    },
    /// The target is left alone for so long.
    Open {
        /// Until it may be tried again.
        wait: Duration,
    },
    /// It was done too often.
    Limited {
        /// Until it may be done again.
        wait: Duration,
        /// By which rate.
        rate: String,
    },
}

/// The limits. Cheap to clone.
#[derive(Clone)]
pub struct Limiter {
    redis: ConnectionManager,
    keys: RedisKeys,
}

impl std::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limiter").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Limiter {
    pub(crate) fn new(redis: ConnectionManager, keys: RedisKeys) -> Self {
        Self { redis, keys }
    }

    /// Asks for one call to `target` under these rates. Counted only if all of them, and the breaker, let it pass.
    ///
    /// # Errors
    /// When Redis does not answer: let it pass.
    pub async fn admit(&self, target: &str, breaker: BreakerOptions, rates: &[Rate]) -> Result<Admission, EngineError> {
        let mut script = ADMIT.prepare_invoke();
        script.key(self.keys.breaker(target)).arg(breaker.threshold).arg(millis(breaker.probe));
        for rate in rates {
            let count = rate.count.max(1);
            let every = rate.per.as_secs_f64() * 1000.0 / f64::from(count);
            script.key(self.keys.rate(&rate.name)).arg(every).arg(count);
        }
        let (answer, number, which): (u8, u64, usize) =
            script.invoke_async(&mut self.redis.clone()).await.map_err(rd("asking for admission"))?;
        let wait = Duration::from_millis(number);
        Ok(match answer {
            0 => Admission::Admitted { probe: number == 1 },
            1 => Admission::Open { wait },
            _ => {
                let rate = which.checked_sub(1).and_then(|index| rates.get(index));
                Admission::Limited { wait, rate: rate.map(|rate| rate.name.clone()).unwrap_or_default() }
            }
        })
    }

    /// How long nothing more should be taken of `name`, of which `per_minute` may be taken: a minute's worth at once, and then as
    /// it comes back. What a thing takes is known only afterwards, so it is charged then, and may go beyond.
    ///
    /// # Errors
    /// When Redis does not answer: go on.
    pub async fn debt(&self, name: &str, per_minute: u64) -> Result<Duration, EngineError> {
        self.charge(name, per_minute, 0).await
    }

    /// Takes an amount, and says how long nothing more should be taken.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn charge(&self, name: &str, per_minute: u64, amount: u64) -> Result<Duration, EngineError> {
        let takes = amount as f64 * MINUTE_MS / per_minute.max(1) as f64;
        let wait: u64 = CHARGE
            .key(self.keys.rate(name))
            .arg(takes)
            .arg(MINUTE_MS)
            .invoke_async(&mut self.redis.clone())
            .await
            .map_err(rd("counting what was taken"))?;
        Ok(Duration::from_millis(wait))
    }

    /// The target answered, whatever it said: it is well.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn succeeded(&self, target: &str) -> Result<(), EngineError> {
        redis::cmd("DEL")
            .arg(self.keys.breaker(target))
            .query_async(&mut self.redis.clone())
            .await
            .map_err(rd("closing a breaker"))
    }

    /// The target failed. For how long it is left alone, if that was once too often.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn failed(&self, target: &str, breaker: BreakerOptions) -> Result<Option<Duration>, EngineError> {
        if breaker.threshold == 0 {
            return Ok(None);
        }
        let forget = millis(breaker.most).saturating_mul(2).max(60_000);
        let rest: u64 = FAILED
            .key(self.keys.breaker(target))
            .arg(breaker.threshold)
            .arg(millis(breaker.first))
            .arg(millis(breaker.most))
            .arg(forget)
            .invoke_async(&mut self.redis.clone())
            .await
            .map_err(rd("counting a failure"))?;
        Ok((rest > 0).then(|| Duration::from_millis(rest)))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
