//! What the bus counts, through the `metrics` facade. Names end in their unit.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use crate::connection::Bus;

/// How often the server is asked where a consumer stands.
pub(crate) const LOOK: Duration = Duration::from_secs(10);

/// A message was taken by the server.
pub(crate) fn published(subject: &str, took: Duration) {
    counter!("bus_published_messages_total", "kind" => kind(subject)).increment(1);
    histogram!("bus_publish_seconds", "kind" => kind(subject)).record(took);
}

/// A message was not taken.
pub(crate) fn publish_failed(subject: &str) {
    counter!("bus_publish_failures_total", "kind" => kind(subject)).increment(1);
}

/// The first token of a subject, if it is one of ours: a label of few values.
fn kind(subject: &str) -> &'static str {
    let first = subject.split('.').next().unwrap_or_default();
    ["evt", "sig", "in", "log", "dlq", "live", "svc"].into_iter().find(|kind| *kind == first).unwrap_or("other")
}

/// The figures of one consumer.
pub(crate) struct ConsumerMeter {
    pub consumed: Counter,
    pub acknowledged: Counter,
    pub retried: Counter,
    pub deferred: Counter,
    pub dead_lettered: Counter,
    pub panics: Counter,
    pub repairs: Counter,
    pub handler_seconds: Histogram,
    pub pending: Gauge,
    pub in_flight: Gauge,
    unacknowledged: Gauge,
}

impl ConsumerMeter {
    pub(crate) fn new(consumer: &str) -> Self {
        let label = || consumer.to_owned();
        Self {
            consumed: counter!("bus_consumed_messages_total", "consumer" => label()),
            acknowledged: counter!("bus_acknowledged_messages_total", "consumer" => label()),
            retried: counter!("bus_retried_messages_total", "consumer" => label()),
            deferred: counter!("bus_deferred_messages_total", "consumer" => label()),
            dead_lettered: counter!("bus_dead_lettered_messages_total", "consumer" => label()),
            panics: counter!("bus_handler_panics_total", "consumer" => label()),
            repairs: counter!("bus_consumer_repairs_total", "consumer" => label()),
            handler_seconds: histogram!("bus_handler_seconds", "consumer" => label()),
            pending: gauge!("bus_consumer_pending_messages", "consumer" => label()),
            in_flight: gauge!("bus_consumer_in_flight_messages", "consumer" => label()),
            unacknowledged: gauge!("bus_consumer_unacknowledged_messages", "consumer" => label()),
        }
    }

    /// Asks the server now and then how much waits for the consumer, as long as the result is held: deliveries tell it too, but
    /// none come to one that is stuck.
    pub(crate) fn look(&self, bus: &Bus, consumer: &str, every: Duration) -> Look {
        let (bus, consumer) = (bus.clone(), consumer.to_owned());
        let (pending, unacknowledged) = (self.pending.clone(), self.unacknowledged.clone());
        let quiet = || Quiet([self.pending.clone(), self.unacknowledged.clone()]);
        let at_its_end = quiet();
        let asking = tokio::spawn(async move {
            // Whoever is stopped may be about to say something; it takes it back when it goes.
            let _quiet = at_its_end;
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match bus.consumer_status(&consumer).await {
                    Ok(status) => {
                        pending.set(status.pending as f64);
                        unacknowledged.set(status.unacknowledged as f64);
                    }
                    // Such as a server that is away, which others tell of.
                    Err(error) => tracing::debug!(consumer, %error, "can't ask where a consumer stands"),
                }
            }
        });
        Look { _asking: AbortOnDropHandle::new(asking), _quiet: quiet() }
    }
}

/// Whoever holds this has the gauges of a consumer kept up to date; nobody else speaks for it, and afterwards they say nothing.
pub(crate) struct Look {
    // In this order: first nobody asks any more.
    _asking: AbortOnDropHandle<()>,
    _quiet: Quiet,
}

/// Gauges that say nothing once this is gone.
struct Quiet([Gauge; 2]);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.iter().for_each(|gauge| gauge.set(0.0));
    }
}
