//! Waiting between tries: exponential, jittered, bounded.
//!
//! The only place that knows the `backoff` crate; everybody else sees [`exponential`], [`Policy`], [`with`] and [`when`].

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// Each wait is drawn from this share below to this share above its nominal length.
const JITTER: f64 = 0.25;

/// How long to wait between tries, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    min: Duration,
    max: Duration,
    within: Option<Duration>,
}

impl Policy {
    /// Waits that double from `min` to `max`, without end.
    pub const fn exponential(min: Duration, max: Duration) -> Self {
        Self { min, max, within: None }
    }

    /// Gives up rather than begin a try later than this after the first one.
    #[must_use]
    pub const fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }

    /// The waits of this policy. They end only if the policy is bounded by [`Policy::within`].
    pub fn delays(&self) -> Delays {
        Delays(self.backoff())
    }

    fn backoff(&self) -> ExponentialBackoff {
        let min = self.min.max(Duration::from_millis(1));
        ExponentialBackoff {
            current_interval: min,
            initial_interval: min,
            randomization_factor: JITTER,
            multiplier: 2.0,
            max_interval: self.max.max(min),
            max_elapsed_time: self.within,
            ..ExponentialBackoff::default()
        }
    }
}

/// Jittered waits, each about twice the one before.
#[derive(Debug)]
pub struct Delays(ExponentialBackoff);

impl Delays {
    /// Starts again from the shortest wait, as after a success.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next_backoff()
    }
}

/// Endless jittered waits that double from `min` to `max`.
pub fn exponential(min: Duration, max: Duration) -> Delays {
    Policy::exponential(min, max).delays()
}

/// The jittered wait after the given try, counted from 1.
pub fn delay(min: Duration, max: Duration, attempt: u64) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
    let nominal = min.saturating_mul(2_u32.saturating_pow(doublings)).min(max);
    exponential(nominal, nominal).next().unwrap_or(nominal)
}

/// A wait after the given try, counted from 1, drawn evenly from nothing up to what doubling from `first` to `most` comes to:
/// so that those who failed together do not come back together.
pub fn full_jitter(first: Duration, most: Duration, attempt: u32) -> Duration {
    let nominal = first.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1))).min(most);
    let half = nominal / 2;
    let mut drawn = ExponentialBackoff {
        current_interval: half,
        initial_interval: half,
        randomization_factor: 1.0,
        max_interval: nominal.max(Duration::from_millis(1)),
        max_elapsed_time: None,
        ..ExponentialBackoff::default()
    };
    drawn.next_backoff().unwrap_or(half).min(nominal)
}

/// Tries until it works or the policy gives up; the last error is returned.
pub async fn with<T, E, Op, Fut>(policy: Policy, op: Op) -> Result<T, E>
where
    E: Display,
    Op: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    when(policy, |_| true, op).await
}

/// Tries until it works, fails with an error that is not worth another try, or the policy gives up.
pub async fn when<T, E, Op, Fut>(policy: Policy, is_transient: impl Fn(&E) -> bool, mut op: Op) -> Result<T, E>
where
    E: Display,
    Op: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let is_transient = &is_transient;
    let operation = || {
        let attempt = op();
        async move {
            attempt.await.map_err(|error| {
                if is_transient(&error) { backoff::Error::transient(error) } else { backoff::Error::permanent(error) }
            })
        }
    };
    backoff::future::retry_notify(policy.backoff(), operation, |error: E, wait: Duration| {
        tracing::debug!(%error, wait_ms = wait.as_millis(), "trying again");
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn near(wait: Duration, nominal: Duration) -> bool {
        wait >= nominal.mul_f64(0.74) && wait <= nominal.mul_f64(1.26)
    }

    #[test]
    fn waits_double_up_to_the_maximum() {
        let waits: Vec<_> = exponential(10 * MS, 60 * MS).take(5).collect();
        for (wait, nominal) in waits.iter().zip([10, 20, 40, 60, 60]) {
            assert!(near(*wait, nominal * MS), "{wait:?} is not about {nominal} ms");
        }
    }

    #[test]
    fn the_wait_after_any_try_is_bounded() {
        assert!(near(delay(10 * MS, 500 * MS, 1), 10 * MS));
        assert!(near(delay(10 * MS, 500 * MS, 3), 40 * MS));
        assert!(near(delay(10 * MS, 500 * MS, u64::MAX), 500 * MS));
        assert!(near(delay(10 * MS, 500 * MS, 0), 10 * MS));
    }

    #[test]
    fn full_jitter_is_spread_from_nothing_to_its_bound() {
        let drawn: Vec<_> = (0..500).map(|_| full_jitter(100 * MS, 1000 * MS, 3)).collect();
        assert!(drawn.iter().all(|wait| *wait <= 400 * MS));
        assert!(drawn.iter().any(|wait| *wait < 80 * MS) && drawn.iter().any(|wait| *wait > 320 * MS));
        assert!((0..100).all(|_| full_jitter(100 * MS, 1000 * MS, u32::MAX) <= 1000 * MS));
    }

    #[tokio::test]
    async fn stops_at_success_and_at_permanent_errors() {
        let tries = Cell::new(0);
        let op = || {
            tries.set(tries.get() + 1);
            let tries = tries.get();
            async move { if tries < 3 { Err("not yet") } else { Ok(tries) } }
        };
        assert_eq!(with(Policy::exponential(MS, MS), op).await, Ok(3));

        tries.set(0);
        let op = || {
            tries.set(tries.get() + 1);
            async { Err::<(), _>("never") }
        };
        assert_eq!(when(Policy::exponential(MS, MS), |_| false, op).await, Err("never"));
        assert_eq!(tries.get(), 1);
    }

    #[tokio::test]
    async fn gives_up_in_time() {
        let policy = Policy::exponential(5 * MS, 5 * MS).within(30 * MS);
        assert_eq!(with(policy, || async { Err::<(), _>("down") }).await, Err("down"));
    }
}
