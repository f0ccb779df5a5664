//! Numbers of a service, each series of them by itself: a disk that is full is not well because another one is empty.
//!
//! What tells series apart is which instance said it, and, of a data point of a metric, its labels. What was not heard of for a
//! while, though others were, is gone: a pod, a disk.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use kernel::watch::FieldLimit;
use serde::{Deserialize, Serialize};
use signals::Record;

use crate::meter;

/// Series of one rule. Beyond, further ones are left out: would they take the place of others that still speak, each would be new
/// each time, and none could rise.
const SERIES: usize = 512;
/// Steps by which a number has risen that are kept, and those of all series together; beyond, the oldest two become one.
const STEPS: usize = 32;
const ALL_STEPS: usize = 2048;
/// The largest sum: two of them are still a number.
const MOST: f64 = f64::MAX / 2.0;
/// How long a series may be quiet, at least, until it is gone.
const GONE: i64 = 300_000;

/// The numbers of a rule. Bounded, and fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Numbers(BTreeMap<u64, Series>);

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Series {
    /// When it was heard of last, in milliseconds.
    at: i64,
    /// What it was then; of one that says what came since the last time, all that has come since it is known.
    last: f64,
    /// When it rose, and by how much.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    rises: VecDeque<(i64, f64)>,
}

impl Numbers {
    /// Takes a number that came at `now`. Whether it shows that the service is not well: it is beyond the bound, or it rose.
    pub(super) fn take(&mut self, limit: &FieldLimit, over: i64, record: &Record, now: i64, number: f64) -> bool {
        let key = key(record);
        self.0.retain(|_, series| now.saturating_sub(series.at) <= over.max(GONE));
        if self.0.len() >= SERIES && !self.0.contains_key(&key) {
            let oldest = self.0.iter().min_by_key(|(_, series)| series.at).map(|(key, series)| (*key, series.at));
            let Some((oldest, _)) = oldest.filter(|(_, at)| now.saturating_sub(*at) > GONE) else {
                meter::passed_over("too_many_series");
                return false;
            };
            self.0.remove(&oldest);
        }
        let steps = (ALL_STEPS / (self.0.len() + 1)).min(STEPS);
        let is_new = !self.0.contains_key(&key);
        let series = self.0.entry(key).or_default();
        let rise = series.rise(number, is_new, record.is_delta(&limit.name));
        series.at = series.at.max(now);
        if !limit.rise {
            return is_beyond(limit, series.last);
        }
        // What is not finite can't be stored: whoever reads it again would know nothing of the service.
        if rise <= 0.0 || !rise.is_finite() {
            return false;
        }
        series.rises.retain(|(at, _)| now.saturating_sub(*at) < over);
        series.rises.push_back((now, rise));
        while series.rises.len() > steps
            && let (Some((_, first)), Some(second)) = (series.rises.pop_front(), series.rises.front_mut())
        {
            second.1 = (second.1 + first).min(MOST);
        }
        true
    }

    /// The number that is compared: of the latest ones the worst, or by how much all have risen together within the rule's time.
    pub(super) fn compared(&self, limit: &FieldLimit, over: i64, now: i64) -> Option<f64> {
        if self.0.is_empty() {
            return None;
        }
        if limit.rise {
            let recent =
                self.0.values().flat_map(|series| &series.rises).filter(|(at, _)| now.saturating_sub(*at) < over);
            return Some(recent.map(|(_, rise)| rise).sum());
        }
        let latest = self.0.values().map(|series| series.last);
        if limit.above.is_some() { latest.max_by(f64::total_cmp) } else { latest.min_by(f64::total_cmp) }
    }
}

impl Series {
    /// Takes the next number, and gives by how much it rose.
    fn rise(&mut self, number: f64, is_new: bool, is_delta: bool) -> f64 {
        if is_delta {
            // It has come since the last time, also if nothing was heard of that.
            self.last = (self.last + number).clamp(-MOST, MOST);
            return number;
        }
        let before = std::mem::replace(&mut self.last, number);
        match (is_new, number >= before) {
            // Whatever it was before is no rise.
            (true, _) => 0.0,
            (_, true) => number - before,
            // A counter that is lower than it was has begun anew, and has counted this much since.
            (_, false) => number,
        }
    }
}

/// Whether a number is too high or too low.
pub(super) fn is_beyond(limit: &FieldLimit, number: f64) -> bool {
    limit.above.is_some_and(|above| number > above) || limit.below.is_some_and(|below| number < below)
}

/// Which series a record is of.
fn key(record: &Record) -> u64 {
    let mut hasher = DefaultHasher::new();
    record.component.hash(&mut hasher);
    for (name, value) in record.labels().into_iter().flatten() {
        (name, value.to_string()).hash(&mut hasher);
    }
    hasher.finish()
}
