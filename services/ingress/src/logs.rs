//! Log records on their way to the bus: as many as each service may say, and no more than are read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bus::{Bus, BusError, Outgoing, PARTITIONS, Publisher, header, subject};
use kernel::TenantId;
use signals::Record;
use tokio_util::sync::CancellationToken;

/// How often it is looked whether the readers keep up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Messages behind which readers count as too slow: with the largest messages, an eighth of what the stream holds.
const BEHIND: u64 = 1024;
/// The time after which one who is told to wait may come again.
const BEHIND_FOR: Duration = Duration::from_secs(2);
/// Services whose pace is remembered; beyond, all are forgotten and start afresh.
const SERVICES: usize = 4096;

/// Takes records in. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Logs {
    publisher: Publisher,
    pace: Pace,
    behind: Arc<AtomicBool>,
}

/// Why records can't be taken now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Busy {
    /// A service says more than it may.
    #[error("`{service}` sends more records than the {per_second} a second that one service may")]
    TooFast {
        /// Which.
        service: String,
        /// How many it may say.
        per_second: u64,
        /// When there is room again.
        after: Duration,
    },
    /// What was taken before is not read yet.
    #[error("the readers of the logs are behind")]
    Behind {
        /// When to come again.
        after: Duration,
    },
    /// The bus does not take them.
    #[error("the bus does not take records now")]
    Unavailable(#[source] BusError),
}

impl Logs {
    /// `per_second` records of one service; 0 is no limit.
    pub(crate) fn new(bus: &Bus, per_second: u64) -> Self {
        Self { publisher: bus.publisher(), pace: Pace::new(per_second), behind: Arc::default() }
    }

    /// Publishes records, all or none as far as their senders can tell: with the same `identity` again, what was taken is not
    /// taken twice.
    pub(crate) async fn publish(
        &self,
        tenant: &TenantId,
        records: Vec<(String, Record)>,
        identity: &str,
    ) -> Result<(), Busy> {
        if self.behind.load(Ordering::Relaxed) {
            refused("behind", records.len());
            return Err(Busy::Behind { after: BEHIND_FOR });
        }
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (service, _) in &records {
            *counts.entry(service).or_default() += 1;
        }
        if let Err(busy) = self.pace.take(tenant, &counts, Instant::now()) {
            refused("too_fast", records.len());
            return Err(busy);
        }
        let count = records.len() as u64;
        let messages = signals::batches(records).into_iter().enumerate().map(|(place, batch)| {
            Outgoing::new(subject::log(tenant, &batch.service), batch.payload)
                .header(header::CONTENT_TYPE, "application/x-ndjson")
                .msg_id(format!("log/{tenant}/{identity}/{place}"))
        });
        for outcome in self.publisher.publish_all(messages.collect()).await {
            if let Err(error) = outcome {
                refused("unavailable", usize::try_from(count).unwrap_or(usize::MAX));
                return Err(Busy::Unavailable(error));
            }
        }
        metrics::counter!("ingress_log_records_total", "outcome" => "taken").increment(count);
        Ok(())
    }

    /// Looks whether the readers keep up, until told to stop. As long as that can't be seen, they count as keeping up: what
    /// the stream itself drops is noticed by the observer.
    pub(crate) async fn follow_readers(self, bus: Bus, stop: CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(every.tick()).await.is_some() {
            let mut pending = 0;
            for consumer in (0..PARTITIONS).map(|number| format!("observer-{number}")).chain(["artifact".to_owned()]) {
                match bus.consumer_status(&consumer).await {
                    Ok(status) => pending = pending.max(status.pending),
                    Err(error) => tracing::debug!(consumer, %error, "can't see how far a reader is"),
                }
            }
            metrics::gauge!("ingress_log_readers_pending").set(pending as f64);
            if self.behind.swap(pending > BEHIND, Ordering::Relaxed) != (pending > BEHIND) {
                tracing::info!(pending, behind = pending > BEHIND, "the readers of the logs");
            }
        }
    }
}

fn refused(outcome: &'static str, records: usize) {
    metrics::counter!("ingress_log_records_total", "outcome" => outcome).increment(records as u64);
}

/// A bucket for each service, that fills as time goes by and holds two seconds' worth.
#[derive(Clone)]
struct Pace {
    per_second: u64,
    buckets: Arc<Mutex<HashMap<(TenantId, String), Bucket>>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Pace {
    fn new(per_second: u64) -> Self {
        Self { per_second, buckets: Arc::default() }
    }

    /// Takes room for all, or for none. A batch that is larger than a bucket takes a full one, and the next waits longer.
    fn take(&self, tenant: &TenantId, counts: &BTreeMap<&str, u64>, now: Instant) -> Result<(), Busy> {
        if self.per_second == 0 {
            return Ok(());
        }
        let rate = self.per_second as f64;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() + counts.len() > SERVICES {
            buckets.clear();
        }
        let full = Bucket { left: rate * 2.0, at: now };
        for (service, count) in counts {
            let bucket = buckets.entry((tenant.clone(), (*service).to_owned())).or_insert(full);
            let since = now.saturating_duration_since(bucket.at).as_secs_f64();
            *bucket = Bucket { left: (bucket.left + since * rate).min(full.left), at: now };
            let needed = (*count as f64).min(full.left);
            if bucket.left < needed {
                let after = Duration::from_secs_f64(((needed - bucket.left) / rate).clamp(0.001, 60.0));
                let service = (*service).to_owned();
                return Err(Busy::TooFast { service, per_second: self.per_second, after });
            }
        }
        for (service, count) in counts {
            if let Some(bucket) = buckets.get_mut(&(tenant.clone(), (*service).to_owned())) {
                bucket.left -= *count as f64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_own_pace() {
        let (pace, tenant, now) = (Pace::new(100), TenantId::default(), Instant::now());
        let take = |service: &'static str, count, after| {
            pace.take(&tenant, &BTreeMap::from([(service, count)]), now + Duration::from_millis(after))
        };
        assert!(take("a", 150, 0).is_ok());
        let Err(Busy::TooFast { after, .. }) = take("a", 100, 0) else { panic!("there is no room") };
        assert_eq!(after, Duration::from_millis(500));
        assert!(take("b", 200, 0).is_ok(), "another one's room is its own");
        assert!(take("a", 100, 500).is_ok(), "room comes with time");
        assert!(take("c", 1000, 0).is_ok(), "a large batch gets through");
        assert!(take("c", 1, 5000).is_err(), "and is paid for");
        assert!(take("c", 1, 9000).is_ok());
    }

    #[test]
    fn what_one_service_has_no_room_for_is_not_taken_from_another() {
        let (pace, tenant, now) = (Pace::new(10), TenantId::default(), Instant::now());
        pace.take(&tenant, &BTreeMap::from([("b", 20)]), now).unwrap();
        assert!(pace.take(&tenant, &BTreeMap::from([("a", 20), ("b", 1)]), now).is_err());
        assert!(pace.take(&tenant, &BTreeMap::from([("a", 20)]), now).is_ok());
    }
}
