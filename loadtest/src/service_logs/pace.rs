//! What the pace of the lines of recorded logs tells by itself. The recordings are minutes long, and pace is learned over many, so
//! they are read as one, again and again: as traffic that goes on as it did. Nothing in them is a reason to wake anybody.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use kernel::{Timestamp, observe::Anomaly};
use observer::services::{
    evidence::Line,
    pace::{Learned, Pace},
};
use serde_json::{Value, json};

use super::Row;

/// The time between the last line of a recording and the first of the next.
const APART: SignedDuration = SignedDuration::from_millis(500);

/// All files, one after the other.
#[derive(Default)]
pub(super) struct Recording(Vec<Vec<Row>>);

impl Recording {
    pub(super) fn add(&mut self, rows: Vec<Row>) {
        self.0.extend((!rows.is_empty()).then_some(rows));
    }

    /// Reads all of them so many times, and says what would have been told.
    pub(super) fn score(&self, rounds: u32) -> Value {
        let mut reading = Reading::default();
        for _ in 0..rounds {
            self.0.iter().for_each(|rows| reading.file(rows));
        }
        json!({
            "minutes": reading.now.as_second() / 60,
            "lines": reading.seq,
            "services": reading.paces.len(),
            "bursts": reading.bursts,
            "vanished": reading.vanished.len(),
            "would_wake": reading.vanished,
        })
    }
}

/// How far it has been read: in the time of the reading, in which files follow each other.
#[derive(Default)]
struct Reading {
    paces: BTreeMap<String, Pace>,
    now: Timestamp,
    seq: u64,
    bursts: u64,
    /// Services with a heartbeat that stayed away, and what was said of it.
    vanished: BTreeSet<(String, String)>,
}

impl Reading {
    fn file(&mut self, rows: &[Row]) {
        let Some(first) = rows.first() else { return };
        let begins = self.now.checked_add(APART).unwrap_or(self.now);
        let mut checked = begins;
        for row in rows {
            let at = begins.checked_add(row.at.duration_since(first.at)).unwrap_or(begins);
            (self.now, self.seq) = (at, self.seq + 1);
            let seq = self.seq;
            let line = || Line::new(&row.record, seq, 0, at);
            let pace = self.paces.entry(row.service.clone()).or_default();
            pace.hears_from(Timestamp::UNIX_EPOCH);
            let told = pace.note(&row.record, at, line);
            self.tell(&row.service, told);
            if at.duration_since(checked) >= SignedDuration::from_secs(1) {
                checked = at;
                self.check();
            }
        }
    }

    fn check(&mut self) {
        let now = self.now;
        let told: Vec<_> = self.paces.iter_mut().map(|(service, pace)| (service.clone(), pace.check(now))).collect();
        told.into_iter().for_each(|(service, told)| self.tell(&service, told));
    }

    fn tell(&mut self, service: &str, told: Option<Learned>) {
        match told {
            Some(Learned { anomaly: Anomaly::Burst, .. }) => self.bursts += 1,
            Some(learned) => drop(self.vanished.insert((service.to_owned(), learned.what))),
            None => {}
        }
    }
}
