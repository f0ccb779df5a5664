//! What the scheduler can be told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::Common;

/// Configuration of the scheduler; the keys that all services have are in [`Common`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The keys that every service has.
    #[serde(flatten)]
    pub common: Common,
    /// Connections to Postgres.
    pub pool_size: u32,
    /// Timers that are claimed at once.
    pub timer_batch: u32,
    /// Seconds for which a claimed timer is nobody else's; a scheduler that dies leaves its timers for so long.
    pub timer_claim_seconds: u64,
    /// Seconds after which a commit counts as not published. Longer than the outbox keeps what was.
    pub sweep_after_seconds: u64,
    /// Seconds between two looks at what somebody should be at.
    pub reap_seconds: u64,
    /// Seconds for which an open turn or a requested call may be nobody's before it is rung for again.
    pub neglect_seconds: u64,
    /// Seconds between two looks at what is waited for outside, at least: just after it began, and just before its deadline.
    pub reconcile_shortest_seconds: u64,
    /// Seconds between two looks at most: in steady state.
    pub reconcile_longest_seconds: u64,
    /// The pause between two looks in percent of the time since it began.
    pub reconcile_share_percent: u32,
    /// Seconds between two looks at children that are not in step with their parents.
    pub tend_seconds: u64,
    /// Runs of one tenant that may be under way at once; 0 is no limit. As in ingress, which queues the others.
    pub max_running: u32,
    /// Share of runs whose spans are exported, from 0 to 1. As in ingress.
    pub trace_ratio: f64,
    /// Days for which it is remembered what became of the times of schedules.
    pub retain_firings_days: u64,
    /// Days for which handled deliveries are remembered.
    pub inbox_days: u64,
    /// Days for which events from outside are kept once they are dealt with. One that comes again later counts as new.
    pub retain_external_days: u64,
    /// Days for which idempotency keys are remembered.
    pub retain_idempotency_days: u64,
    /// Days after which an ended run is removed with its log and all that belongs to it; 0 is never.
    pub retain_runs_days: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("scheduler"),
            pool_size: 6,
            timer_batch: 1000,
            timer_claim_seconds: 10,
            sweep_after_seconds: 5,
            reap_seconds: 5,
            neglect_seconds: 15,
            reconcile_shortest_seconds: 5,
            reconcile_longest_seconds: 900,
            reconcile_share_percent: 20,
            tend_seconds: 3,
            max_running: 0,
            trace_ratio: 1.0,
            retain_firings_days: 90,
            inbox_days: 7,
            retain_external_days: 30,
            retain_idempotency_days: 7,
            retain_runs_days: 0,
        }
    }
}

impl AsRef<Common> for Config {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl Config {
    pub(crate) fn timer_claim(&self) -> Duration {
        Duration::from_secs(self.timer_claim_seconds.max(1))
    }

    pub(crate) fn sweep_after(&self) -> Duration {
        Duration::from_secs(self.sweep_after_seconds)
    }

    pub(crate) fn reap_every(&self) -> Duration {
        Duration::from_secs(self.reap_seconds.max(1))
    }

    pub(crate) fn pace(&self) -> engine::Pace {
        engine::Pace {
            shortest: Duration::from_secs(self.reconcile_shortest_seconds),
            longest: Duration::from_secs(self.reconcile_longest_seconds),
            share: f64::from(self.reconcile_share_percent) / 100.0,
        }
    }

    pub(crate) fn tend_every(&self) -> Duration {
        Duration::from_secs(self.tend_seconds.max(1))
    }

    pub(crate) fn neglect(&self) -> Duration {
        Duration::from_secs(self.neglect_seconds)
    }

    /// How long what is kept.
    pub(crate) fn ages(&self) -> Ages {
        Ages {
            inbox: days(self.inbox_days),
            externals: days(self.retain_external_days),
            firings: days(self.retain_firings_days),
            idempotency_keys: days(self.retain_idempotency_days),
            // A remembered key names its run.
            ended_runs: (self.retain_runs_days > 0)
                .then(|| days(self.retain_runs_days.max(self.retain_idempotency_days))),
        }
    }
}

/// How long what is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    pub(crate) inbox: Duration,
    pub(crate) externals: Duration,
    pub(crate) firings: Duration,
    pub(crate) idempotency_keys: Duration,
    /// None: for ever.
    pub(crate) ended_runs: Option<Duration>,
}

/// At least one.
fn days(days: u64) -> Duration {
    Duration::from_secs(days.max(1).saturating_mul(24 * 3600))
}
