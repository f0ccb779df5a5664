//! What the bus counts, through the `metrics` facade. Names end in their unit.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

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
        }
    }
}
