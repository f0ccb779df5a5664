//! What the pace of lines tells without any rule: heartbeats that nobody declared and that stay away, and bursts.
//!
//! Both are told once in a call, under one name each, so that whoever reads the same output again tells nothing twice, whatever
//! was learned of it. A burst is told and wakes nobody. A kind of line that came regularly and then not any more is mostly
//! the end of a step, so by itself it is only shown with a failure. It is told, and wakes, if it was the last sign of life: nothing at
//! all has come since, and it says that something is alive, not how far it has come. For no length of time tells the two
//! apart: linking, packing and training print nothing for many minutes after lines at an even pace, and end well.
//! An agent that says how it wants to hear of silence, or which heartbeats there are, is not second-guessed.

use jiff::Timestamp;
use kernel::observe::Anomaly;
use serde::{Deserialize, Serialize};

use crate::{
    seen::{Burst, Rhythm, Sighting},
    services::shape,
    templates::TemplateId,
    text,
    timed::{Mark, Place, Timely},
};

/// The name under which agents find it in `escalate`, and people in evidence.
pub(crate) const LEARNED: &str = "learned";
/// Heartbeats of a call that are listened for. Programs have one or two; a few more come and go with the steps of a build.
const BEATS: usize = 8;
/// Intervals that a heartbeat may stay away: what waits for a slow answer misses one or two, not five.
const MISSED: i64 = 5;
/// And so long at least: less is a pause like those between two steps (unpacking, starting a container). It is what the
/// shipped agent asks for as `silence`.
const AWAY_MS: i64 = 60_000;
/// Beats in a row that said the same, but for numbers, before they count as a sign of life.
const ALIKE: u32 = 3;
/// Words with which programs say that they are alive, and wait. A line without any of them may as well say how far it has
/// come, and its pace says nothing about when the next one is due.
const OF_LIFE: [&str; 26] = [
    "alive",
    "attempt",
    "elapsed",
    "heartbeat",
    "heartbeats",
    "idle",
    "keepalive",
    "keep-alive",
    "pending",
    "ping",
    "poll",
    "polled",
    "polling",
    "pong",
    "retries",
    "retry",
    "retrying",
    "sleeping",
    "still",
    "tick",
    "try",
    "trying",
    "wait",
    "waiting",
    "watchdog",
    "yet",
];

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
    /// What it says without its numbers, and how many in a row said just that, as a sign of life.
    #[serde(default)]
    shape: u64,
    #[serde(default)]
    alike: u32,
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
        let visible = text::visible(place.text);
        let alike = u32::from(says_alive(&visible));
        let mut beat = Beat { id, every, apart: 1, last: place.mark(), shape: shape::kind(&visible), alike };
        if let Some(known) = self.beats.iter_mut().find(|known| known.id == id) {
            beat.apart = place.line.saturating_sub(known.last.line).max(1);
            if beat.shape == known.shape {
                beat.alike *= known.alike.saturating_add(1);
            }
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
        let was_alive = |beat: &&Beat| beat.alike >= ALIKE && beat.was_last(output, lines);
        let beats = self.beats.iter().filter(was_alive).filter(|beat| beat.is_away(now));
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
    fn was_last(&self, output: i64, lines: u64) -> bool {
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

/// Whether a line says that something is alive, in any of the usual words. Names that hold one of them don't count.
fn says_alive(line: &str) -> bool {
    let is_of_word = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '/' | ':' | '.');
    let words = line.split(|letter: char| !is_of_word(letter)).map(|word| word.trim_end_matches(['.', ':']));
    words.filter(|word| word.len() <= 10).any(|word| OF_LIFE.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_are_told_from_progress() {
        for line in [
            "aws_instance.web: Still creating... [10s elapsed]",
            "still waiting for the leader, 5 s",
            "not there yet, try 3",
            "2026-07-29T23:48:08Z [worker] heartbeat 17",
            "Retrying: connection refused (attempt 4)",
            "poll: nothing new",
        ] {
            assert!(says_alive(line), "{line}");
        }
        for line in [
            "[12/96] Building CXX object src/waiting.cpp.o",
            "test tests::it_waits_and_polls ... ok",
            "epoch 3 of 50: loss 0.31",
            "ok 12 - src/still/running.js",
            "",
        ] {
            assert!(!says_alive(line), "{line}");
        }
    }
}
