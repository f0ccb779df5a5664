//! What is in mind of one service, and how it changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use signals::Record;

use super::{
    Place,
    evidence::Line,
    health::{Change, Health},
    lines::Lines,
    pace::{Learned, Pace},
    watches::CompiledWatch,
};

/// What is in mind of a service, as a checkpoint has it.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Mind {
    /// By agent and rule.
    health: BTreeMap<String, Health>,
    /// By agent and watch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lines: BTreeMap<String, Lines>,
    pub(super) pace: Pace,
}

/// A service whose log is read.
#[derive(Debug, Default)]
pub(super) struct Service {
    pub(super) mind: Mind,
    pub(super) watchers: Vec<Arc<CompiledWatch>>,
    /// The last message that it includes.
    pub(super) seq: u64,
    pub(super) is_dirty: bool,
    pub(super) throttle: Throttle,
}

/// What was found by now: changes by watch and rule, and what the pace of the lines tells.
pub(super) struct Checked {
    pub(super) changes: Vec<(Arc<CompiledWatch>, String, Change)>,
    pub(super) learned: Option<Learned>,
}

/// How many records came in the second that is counted, and those that were passed over.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    second: i64,
    records: u64,
    skipped: u64,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Service {
    /// Holds a record against what agents watch, and says what its pace tells.
    pub(super) fn record(&mut self, record: &Record, place: Place) -> Option<Learned> {
        let line = || Line::new(record, place.seq, place.index, place.at);
        let learned = self.mind.pace.note(record, place.at, line);
        for watch in &self.watchers {
            for (rule, pattern) in watch.watch.health.iter().zip(&watch.lines) {
                let health = self.mind.health.entry(name(watch, &rule.name)).or_default();
                health.record(rule, pattern.as_ref(), record, place.at, place.seq, line);
            }
            let lines = self.mind.lines.entry(name_of(watch)).or_default();
            lines.record(watch, record, place);
            if let Some(learned) = &learned {
                lines.learned(watch, learned);
            }
        }
        learned
    }

    /// What has changed by now. `is_caught_up`: nothing more was said until then than was read, so that what did not come is
    /// late. Rules that are gone from their files are forgotten.
    pub(super) fn check(&mut self, now: Timestamp, is_caught_up: bool) -> Checked {
        let learned = if is_caught_up { self.mind.pace.check(now) } else { None };
        let mut changes = Vec::new();
        let (mut known, mut watched) = (BTreeSet::new(), BTreeSet::new());
        for watch in &self.watchers {
            for rule in &watch.watch.health {
                let name = name(watch, &rule.name);
                if let Some(health) = self.mind.health.get_mut(&name)
                    && let Some(change) = health.check(rule, now)
                {
                    changes.push((Arc::clone(watch), rule.name.clone(), change));
                }
                known.insert(name);
            }
            let lines = self.mind.lines.entry(name_of(watch)).or_default();
            if let Some(learned) = &learned {
                lines.learned(watch, learned);
            }
            if is_caught_up {
                lines.overdue(watch, &self.mind.pace, now);
            }
            let changed = lines.check(watch, &self.mind.pace, now);
            changes.extend(changed.into_iter().map(|(name, change)| (Arc::clone(watch), name, change)));
            watched.insert(name_of(watch));
        }
        if !self.watchers.is_empty() {
            self.mind.health.retain(|name, _| known.contains(name));
            self.mind.lines.retain(|name, _| watched.contains(name));
        }
        Checked { changes, learned }
    }
}

fn name_of(watch: &CompiledWatch) -> String {
    format!("{}/{}", watch.agent, watch.index)
}

fn name(watch: &CompiledWatch, rule: &str) -> String {
    format!("{}/{}/{rule}", watch.agent, watch.index)
}

impl Throttle {
    /// Counts records, and says whether they are too many for this second; 0 is no limit.
    pub(super) fn is_too_fast(&mut self, at: Timestamp, records: u64, per_second: u64) -> bool {
        if self.second != at.as_second() {
            (self.second, self.records) = (at.as_second(), 0);
        }
        // The first message of a second is always looked at.
        let is_full = per_second > 0 && self.records > 0 && self.records + records > per_second;
        if is_full {
            self.skipped += records;
            self.since.get_or_insert(at);
            self.until = Some(at);
        } else {
            self.records += records;
        }
        is_full
    }

    /// What was passed over until a moment ago.
    pub(super) fn close(&mut self, now: Timestamp) -> Option<(u64, Timestamp, Timestamp)> {
        let (since, until) = (self.since?, self.until?);
        if now.duration_since(until) < SignedDuration::from_secs(1)
            && now.duration_since(since) < SignedDuration::from_secs(10)
        {
            return None;
        }
        (self.since, self.until) = (None, None);
        Some((std::mem::take(&mut self.skipped), since, until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn what_stays_away_is_told_once_all_is_read_and_not_before() {
        let yaml = "service: shop\nobserve: { heartbeats: [{ id: tick, match: never, every: 30s }, { id: other, match: tick, every: 30s }] }";
        let watch = CompiledWatch::new("keeper", 0, &serde_saphyr::from_str(yaml).unwrap());
        let mut service = Service { watchers: vec![Arc::new(watch)], ..Service::default() };
        service.mind.pace.hears_from(at(0));
        for (seq, second) in (1..).zip((0..600).step_by(10)) {
            let place = Place { seq, index: 0, at: at(second) };
            service.record(&Record::from_text("INFO tick"), place);
        }
        // After a gap in the stream the next line comes minutes later.
        service.record(&Record::from_text("INFO GET /"), Place { seq: 90, index: 0, at: at(900) });
        let checked = service.check(at(900), false);
        assert_eq!((checked.changes.len(), checked.learned), (0, None));
        service.mind.pace.hears_from(at(900));
        assert!(service.check(at(901), true).changes.is_empty());
        let checked = service.check(at(961), true);
        assert_eq!((checked.changes.len(), checked.learned.is_some()), (1, true));
    }
}
