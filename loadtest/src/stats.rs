//! Latencies and their percentiles.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

/// Durations, gathered to be summed up once.
#[derive(Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Adds one.
    pub fn push(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// Adds those of another.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The longest.
    pub fn worst(&self) -> Option<Duration> {
        self.0.iter().max().copied()
    }

    /// Median and 99th percentile in milliseconds, to the hundredth; null if there are none.
    pub fn percentiles(&mut self) -> Value {
        self.0.sort_unstable();
        let at = |share: f64| -> Value {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
            let index = ((self.0.len() as f64 * share) as usize).min(self.0.len().saturating_sub(1));
            self.0.get(index).map_or(Value::Null, |latency| hundredth(latency.as_secs_f64() * 1000.0).into())
        };
        json!({ "p50": at(0.5), "p99": at(0.99) })
    }
}

/// A figure rounded to the hundredth.
pub fn hundredth(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// A number from 0 to 1, evenly spread: the random end of an id.
pub fn fraction() -> f64 {
    let [.., a, b, c, d] = Uuid::now_v7().into_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_pushed() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentiles()["p50"], Value::Null);
        (1..=100).for_each(|millis| latencies.push(Duration::from_millis(millis)));
        assert_eq!(latencies.percentiles(), json!({ "p50": 51.0, "p99": 100.0 }));
        assert_eq!(latencies.len(), 100);
    }
}
