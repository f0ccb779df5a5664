//! What the pace of a service's lines tells without any rule: heartbeats that stay away, and bursts.
//!
//! As in a call (`beats.rs`), each kind of line is held against its own past. A service has no end and no steps, so what comes
//! regularly is meant to go on, whatever else it says meanwhile; but most lines of a service come with its traffic, and that may end.
//! So a heartbeat here is what came evenly for minutes, and many times in a row. Time is that of the bus: whoever reads the same
//! records again finds the same.

use jiff::Timestamp;
use kernel::observe::Anomaly;
use serde::{Deserialize, Serialize};
use signals::Record;

use super::{evidence::Line, shape};
use crate::{
    seen::{Burst, Rhythm, Seen},
    templates::TemplateId,
};

/// Kinds of lines of one service whose pace is known: they stand in its checkpoint, which is written every second.
const KINDS: usize = 128;
/// Kinds that have not come for so long are forgotten when there is no room for others; those that came once, sooner.
const KEPT_MS: i64 = 3_600_000;
const RARE_MS: i64 = 300_000;
/// How often it is looked for room.
const ROOM_MS: i64 = 60_000;
/// Heartbeats of a service that are listened for.
const BEATS: usize = 16;
/// Beats in a row, and the time over which they came, before it counts as one. That traffic comes as evenly for so long by chance
/// (within three tenths of its mean interval, as in `seen.rs`) is out of the question.
const IN_A_ROW: u32 = 20;
const LEARN_MS: i64 = 300_000;
/// Intervals that it may stay away, and the least time: a restart of the service takes that long.
const MISSED: i64 = 5;
const AWAY_MS: i64 = 60_000;
/// One that stays away for so long, and for so many intervals, will hardly come again: what said it is gone.
const GIVEN_UP_MS: i64 = 3_600_000;
const GIVEN_UP: i64 = 20;
/// How long a burst counts as under way: two of the minutes in which lines are counted.
const BURST_MS: i64 = 120_000;

/// Something that the pace of a service's lines tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// A burst or a heartbeat.
    pub anomaly: Anomaly,
    /// In the runtime's own words.
    pub what: String,
    /// The line that shows it: for a heartbeat the last one.
    pub line: Line,
    /// How long it lasts, in milliseconds; none if that shows by itself.
    pub lasts: Option<i64>,
}

/// What is known of the pace of a service's lines. Bounded, and fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    seen: Seen,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beats: Vec<Beat>,
    /// When room was made last, in milliseconds.
    looked: i64,
    /// When one that stays away was told of last, in milliseconds, and whether any was given up since all was well.
    told_at: i64,
    gave_up: bool,
    /// Since when all that is said has been heard. None: not yet, so nobody is taken for silent.
    #[serde(skip)]
    heard_from: Option<Timestamp>,
}

/// A kind of line that comes at a regular pace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Beat {
    id: TemplateId,
    /// Milliseconds from one to the next.
    every: u32,
    /// Since when, in milliseconds, and how many of them.
    since: i64,
    times: u32,
    last: Line,
    /// It stays away, and that was told.
    #[serde(default)]
    is_away: bool,
}

impl Pace {
    /// Says that all that is said from now on is heard.
    pub fn hears_from(&mut self, now: Timestamp) {
        self.heard_from = self.heard_from.max(Some(now));
    }

    /// Since when that is so.
    #[must_use]
    pub const fn heard_from(&self) -> Option<Timestamp> {
        self.heard_from
    }

    /// Takes a record that came at `at`. `line` gives it as evidence.
    pub fn note(&mut self, record: &Record, at: Timestamp, line: impl FnOnce() -> Line) -> Option<Learned> {
        // Numbers without words are no lines; limits are for them.
        if record.body.is_empty() {
            return None;
        }
        self.make_room(at.as_millisecond());
        let id = TemplateId(shape::kind(&record.body));
        let sighting = self.seen.note_within(KINDS, id, at);
        // What was away and comes is back, at whatever pace.
        self.beats.retain(|beat| !(beat.id == id && beat.is_away));
        match sighting.rhythm {
            Rhythm::Same if sighting.burst.is_none() => return None,
            Rhythm::Same => {}
            Rhythm::Irregular => self.beats.retain(|beat| beat.id != id),
            Rhythm::Regular(every) => {
                let line = line();
                self.beat(id, every, &line);
                return sighting.burst.map(|burst| told_of(burst, line));
            }
        }
        sighting.burst.map(|burst| told_of(burst, line()))
    }

    fn beat(&mut self, id: TemplateId, every: u32, line: &Line) {
        let now = line.at.as_millisecond();
        if let Some(known) = self.beats.iter_mut().find(|known| known.id == id) {
            (known.every, known.times, known.last) = (every, known.times.saturating_add(1), line.clone());
            return;
        }
        let fresh = Beat { id, every, since: now, times: 1, last: line.clone(), is_away: false };
        if self.beats.len() < BEATS {
            self.beats.push(fresh);
            return;
        }
        let others = self.beats.iter_mut().filter(|beat| !beat.is_away && !beat.is_one());
        if let Some(oldest) = others.min_by_key(|beat| beat.last.at) {
            *oldest = fresh;
        }
    }

    fn make_room(&mut self, now: i64) {
        if self.seen.len() >= KINDS && now.saturating_sub(self.looked) >= ROOM_MS {
            self.looked = now;
            self.seen.forget(now.saturating_sub(KEPT_MS), now.saturating_sub(RARE_MS));
        }
    }

    /// What has stayed away by now and was not told of. Several at once are one thing, and so is what fell silent with them and is
    /// missed later, since it comes more seldom.
    pub fn check(&mut self, now: Timestamp) -> Option<Learned> {
        let (now, heard_from) = (now.as_millisecond(), self.heard_from?.as_millisecond());
        let is_told = self.misses_any();
        let gave_up = self.beats.extract_if(.., |beat| beat.is_given_up(now, heard_from)).filter(|beat| beat.is_away);
        self.gave_up |= gave_up.count() > 0;
        let mut gone: Vec<&mut Beat> = self.beats.iter_mut().filter(|beat| beat.goes_away(now, heard_from)).collect();
        gone.iter_mut().for_each(|beat| beat.is_away = true);
        let told_at = self.told_at;
        gone.retain(|beat| !is_told || beat.last.at.as_millisecond() > told_at);
        if gone.is_empty() {
            return None;
        }
        self.told_at = now;
        self.gave_up &= is_told;
        let first = gone.iter().min_by_key(|beat| beat.every)?;
        let others = match gone.len() {
            1 => String::new(),
            count => format!(" So do {} other kinds of lines.", count - 1),
        };
        let away = now.saturating_sub(first.last.at.as_millisecond()) / 1000;
        let what = format!(
            "Lines of a kind came every {} s, {} times in a row, and none for {away} s.{others}",
            first.every.saturating_add(500) / 1000,
            first.times
        );
        Some(Learned { anomaly: Anomaly::Heartbeat, what, line: first.last.clone(), lasts: None })
    }

    /// Whether a heartbeat that was told of still stays away.
    #[must_use]
    pub fn misses_any(&self) -> bool {
        self.beats.iter().any(|beat| beat.is_away)
    }

    /// Whether one of those that were missed last did not come again, and is not waited for any more.
    #[must_use]
    pub const fn gave_up(&self) -> bool {
        self.gave_up
    }
}

impl Beat {
    /// Whether it came evenly for long enough to be a heartbeat.
    fn is_one(&self) -> bool {
        self.times >= IN_A_ROW && self.last.at.as_millisecond().saturating_sub(self.since) >= LEARN_MS
    }

    /// For how long it has not come, though it would have been heard.
    fn quiet(&self, now: i64, heard_from: i64) -> i64 {
        now.saturating_sub(self.last.at.as_millisecond().max(heard_from))
    }

    fn goes_away(&self, now: i64, heard_from: i64) -> bool {
        !self.is_away && self.is_one() && self.quiet(now, heard_from) > (i64::from(self.every) * MISSED).max(AWAY_MS)
    }

    /// Whether it is not waited for any more. What was not told of yet is told first.
    fn is_given_up(&self, now: i64, heard_from: i64) -> bool {
        (self.is_away || !self.is_one())
            && self.quiet(now, heard_from) >= (i64::from(self.every) * GIVEN_UP).max(GIVEN_UP_MS)
    }
}

fn told_of(burst: Burst, line: Line) -> Learned {
    let what =
        format!("Lines of a kind came {} times within a minute; {} is usual for them.", burst.count, burst.usual);
    Learned { anomaly: Anomaly::Burst, what, line, lasts: Some(BURST_MS) }
}

#[cfg(test)]
mod tests;
