//! What the pace of lines tells without any rule: heartbeats that nobody declared and that stay away, and bursts.
//!
//! Both are told once in a call, under one name each, so that whoever reads the same output again tells nothing twice, whatever
//! was learned of it. A burst is told and wakes nobody. A kind of line that came regularly and then not any more is mostly
//! the end of a step, so by itself it is only shown with a failure; it is told, and wakes, if nothing at all has come since: then
//! it was the last sign of life. An agent that says how it wants to hear of silence, or which heartbeats there are, is not second-guessed.

use jiff::Timestamp;
use kernel::observe::Anomaly;
use serde::{Deserialize, Serialize};

use crate::{
    seen::{Burst, Rhythm, Sighting},
    templates::TemplateId,
    timed::{Mark, Place, Timely},
};

/// The name under which agents find it in `escalate`, and people in evidence.
pub(crate) const LEARNED: &str = "learned";
/// Heartbeats of a call that are listened for. Programs have one or two; a few more come and go with the steps of a build.
const BEATS: usize = 8;
/// Intervals that a heartbeat may stay away: what waits for a slow answer misses one or two, not five.
const MISSED: i64 = 5;
/// And so long at least: less is a pause like those between two steps (linking, unpacking, starting a container), in which
/// builds print nothing. It is what the shipped agent asks for as `silence`. Held against four whole CI logs by their own clocks
/// (34,900 lines, 2.4 hours, five pauses of half a minute and more), all of this together found one pause: a test that hung for
/// five minutes. Of bursts it found one each in two of them.
const AWAY_MS: i64 = 60_000;

/// Lines that come regularly, and what was told of them. Fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Beats {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beats: Vec<Beat>,
    burst_told: bool,
    vanished_told: bool,
}

/// A kind of line that comes at a regular pace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Beat {
    id: TemplateId,
    /// Milliseconds from one to the next, and lines.
    every: u32,
    apart: u64,
    last: Mark,
}

impl Beats {
    /// Takes what a line's coming says of its kind; the first burst is told.
    #[inline]
    pub(crate) fn note(&mut self, id: TemplateId, sighting: Sighting, place: Place<'_>) -> Option<Timely> {
        match sighting.rhythm {
            Rhythm::Same => {}
            Rhythm::Regular(every) => self.beat(id, every, place),
            Rhythm::Irregular => self.beats.retain(|beat| beat.id != id),
        }
        sighting.burst.and_then(|burst| self.burst(burst, place))
    }

    fn beat(&mut self, id: TemplateId, every: u32, place: Place<'_>) {
        let mut beat = Beat { id, every, apart: 1, last: place.mark() };
        if let Some(known) = self.beats.iter_mut().find(|known| known.id == id) {
            beat.apart = place.line.saturating_sub(known.last.line).max(1);
            *known = beat;
        } else if self.beats.len() < BEATS {
            self.beats.push(beat);
        } else if let Some(oldest) = self.beats.iter_mut().min_by_key(|known| known.last.at) {
            *oldest = beat;
        }
    }

    fn burst(&mut self, burst: Burst, place: Place<'_>) -> Option<Timely> {
        if std::mem::replace(&mut self.burst_told, true) {
            return None;
        }
        let changed = format!(
            "Lines like line {} came {} times within a minute; {} is usual for them.",
            place.line + 1,
            burst.count,
            burst.usual
        );
        Some(Timely::only(Anomaly::Burst, LEARNED, place.mark(), changed))
    }

    /// The heartbeat that was the last sign of life, if there was one, it stays away and was not told of. `output`: when any output
    /// came last, and how many lines there were by then; `quiet_from`: since when nothing came that would have been heard.
    pub(crate) fn vanished(&self, output: (Timestamp, u64), quiet_from: Timestamp, now: Timestamp) -> Option<Timely> {
        let (output, lines, now) = (output.0.as_millisecond(), output.1, now.as_millisecond());
        if self.vanished_told || now.saturating_sub(quiet_from.as_millisecond()) < AWAY_MS {
            return None;
        }
        let beats = self.beats.iter().filter(|beat| beat.was_alive(output, lines) && beat.is_away(now));
        let beat = beats.min_by_key(|beat| beat.every)?;
        let quiet = now.saturating_sub(output) / 1000;
        let changed = format!("{} Nothing else has come for {quiet} s.", beat.stays_away(now));
        Some(Timely::only(Anomaly::Heartbeat, LEARNED, beat.last.clone(), changed))
    }

    /// It is not told of again.
    pub(crate) const fn vanished_is_told(&mut self) {
        self.vanished_told = true;
    }

    /// The heartbeat that stayed away last, unless it was told of: what may have to do with a failure.
    pub(crate) fn away(&self, now: Timestamp) -> Option<Timely> {
        let now = now.as_millisecond();
        let away = self.beats.iter().filter(|beat| !self.vanished_told && beat.is_away(now));
        let beat = away.max_by_key(|beat| beat.last.at)?;
        Some(Timely::only(Anomaly::Heartbeat, LEARNED, beat.last.clone(), beat.stays_away(now)))
    }
}

impl Beat {
    /// Whether it still beat when output came last. Another line ends a row of nothing but beats: what was waited for has come.
    /// Among other lines it may have been any of them, as long as the next beat was not due.
    fn was_alive(&self, output: i64, lines: u64) -> bool {
        if self.apart == 1 {
            return self.last.line + 1 >= lines;
        }
        output.saturating_sub(self.last.at) <= i64::from(self.every) * 3 / 2
    }

    fn is_away(&self, now: i64) -> bool {
        now.saturating_sub(self.last.at) > (i64::from(self.every) * MISSED).max(AWAY_MS)
    }

    fn stays_away(&self, now: i64) -> String {
        let (every, away) = (self.every.saturating_add(500) / 1000, now.saturating_sub(self.last.at) / 1000);
        format!("Lines like line {} came every {every} s, and none for {away} s.", self.last.line + 1)
    }
}
