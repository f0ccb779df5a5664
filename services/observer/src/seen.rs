//! The kinds of lines that a call has had: how often, and at which pace.
//!
//! A kind is held against its own past in this call, and against nothing else: calls of one agent run side by side and one
//! after the other, so in what is known of all of them the end of one would look like something that stays away in the next.
//! What is done for nearly every line is one look-up, one addition and two comparisons; the rest only when time has moved on.

use std::{collections::HashMap, hash::BuildHasherDefault};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::templates::{Mixed, TEMPLATES, TemplateId};

/// Kinds that are told apart; half of what a source may have, so that one call alone never fills its source.
const KINDS: usize = TEMPLATES / 2;
/// The time over which lines of a kind are counted together: the unit in which people speak of rates, and longer than the
/// pauses within one step of a build, so that the lines of a step are not taken for a burst beside its pauses.
const WINDOW_MS: i64 = 60_000;
/// A burst is at least so many lines in a window: fewer than two a second are read by people as they come.
const BURST: u32 = 100;
/// And so many times what is usual. Parts of one program that share a kind of line (compiling and linking, small tests and
/// large ones) differ by up to a few times; ten times is another order of magnitude.
const BURST_TIMES: u32 = 10;
/// Windows before it is known what is usual: the first is cut by the start of the call, and two more make a habit.
const USUAL_AFTER: u32 = 3;
/// Of what is usual, the latest window makes three tenths: after six windows a new habit is nine tenths of it.
const LATEST: (u64, u64) = (3, 10);
/// Windows without a line of the kind that count at most: by then nothing is left of what was usual.
const EMPTY: i64 = 60;
/// Intervals before a kind is called regular. Lines that come at random deviate from their mean interval by three quarters of
/// it; that eight of them in a row look as if they did by less than three tenths is a matter of a few in a thousand.
const REGULAR_AFTER: u32 = 8;
/// How much a regular interval deviates at most, in tenths of it: output is gathered into frames and stored before it is dated.
const DEVIATES: u64 = 3;
/// What comes more often than this is a flow, no heartbeat.
const HEARTBEAT_MS: u32 = 1000;
/// Intervals without which the pace of a kind is not worth a place in a checkpoint: nothing has been learned of it.
const WORTH_KEEPING: u32 = 2;

/// What a line's coming says of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// It is the first of its kind.
    pub(crate) is_first: bool,
    /// How its kind comes by now.
    pub(crate) rhythm: Rhythm,
    /// With it, its kind has come far more often in this window than is usual: how often.
    pub(crate) burst: Option<Burst>,
}

/// How a kind of line comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rhythm {
    /// Nothing new is known of it.
    #[default]
    Same,
    /// Once in so many milliseconds.
    Regular(u32),
    /// Now like this, now like that.
    Irregular,
}

/// Far more lines of a kind than is usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// In this minute so far.
    pub(crate) count: u32,
    /// In a minute, as a rule.
    pub(crate) usual: u32,
}

/// The kinds of lines that a call has had: bounded, and small in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Seen(HashMap<TemplateId, Kind, BuildHasherDefault<Mixed>>);

/// Lines of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
struct Kind {
    count: u32,
    pace: Pace,
}

/// How lines of a kind come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pace {
    /// The window that is counted, by its number since the epoch, and lines in it.
    window: i64,
    count: u32,
    /// Lines in a window as a rule, in hundredths, and windows that this was learned from.
    usual: u32,
    windows: u32,
    /// When the last line came; the time between two as a rule, how much that differs (all in milliseconds), and how often it
    /// was learned.
    last_ms: i64,
    interval: u32,
    deviation: u32,
    intervals: u32,
}

/// A kind as a checkpoint has it: how often it came; and its pace, if anything was learned of it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Count(u32),
    Paced(u32, [i64; 8]),
}

impl Seen {
    /// Takes a line of this kind in. Beyond the bound, each line of another kind counts as the first.
    pub(crate) fn note(&mut self, id: TemplateId, at: Timestamp) -> Sighting {
        self.note_within(KINDS, id, at)
    }

    /// As `note`, within another bound.
    pub(crate) fn note_within(&mut self, kinds: usize, id: TemplateId, at: Timestamp) -> Sighting {
        let is_full = self.0.len() >= kinds;
        let kind = match self.0.get_mut(&id) {
            Some(kind) => kind,
            None if is_full => return Sighting { is_first: true, ..Sighting::default() },
            None => self.0.entry(id).or_default(),
        };
        kind.count = kind.count.saturating_add(1);
        let rhythm = kind.pace.move_to(at.as_millisecond());
        kind.pace.count = kind.pace.count.saturating_add(1);
        Sighting { is_first: kind.count == 1, rhythm, burst: kind.pace.burst() }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets kinds that have not come since `before`, and those that nothing was learned of and have not since `rare` (both in
    /// milliseconds).
    pub(crate) fn forget(&mut self, before: i64, rare: i64) {
        self.0.retain(|_, kind| kind.pace.last_ms >= if kind.pace.intervals < WORTH_KEEPING { rare } else { before });
    }

    /// All of them.
    pub(crate) fn ids(&self) -> impl Iterator<Item = TemplateId> + '_ {
        self.0.keys().copied()
    }
}

impl Pace {
    /// Goes on to the time of the next line. Lines that come together count as one beat.
    fn move_to(&mut self, now: i64) -> Rhythm {
        if now <= self.last_ms {
            return Rhythm::Same;
        }
        let window = now.div_euclid(WINDOW_MS);
        if window != self.window {
            self.close(window);
        }
        if self.last_ms > 0 {
            self.learn(u32::try_from(now - self.last_ms).unwrap_or(u32::MAX));
        }
        self.last_ms = now;
        match self.intervals {
            REGULAR_AFTER.. if self.is_regular() => Rhythm::Regular(self.interval),
            REGULAR_AFTER.. => Rhythm::Irregular,
            _ => Rhythm::Same,
        }
    }

    /// Learns from the windows that are over what is usual.
    fn close(&mut self, window: i64) {
        if self.count > 0 {
            let hundredths = u64::from(self.count) * 100;
            let (new, of) = LATEST;
            let usual = match self.windows {
                0 => hundredths,
                _ => (u64::from(self.usual) * (of - new) + hundredths * new) / of,
            };
            let empty = (window - self.window - 1).clamp(0, EMPTY);
            let usual = (0..empty).fold(usual, |usual, _| usual * (of - new) / of);
            self.usual = u32::try_from(usual).unwrap_or(u32::MAX);
            self.windows = self.windows.saturating_add(1 + u32::try_from(empty).unwrap_or(0));
        }
        (self.window, self.count) = (window, 0);
    }

    fn learn(&mut self, interval: u32) {
        if self.intervals == 0 {
            self.interval = interval;
        } else {
            self.deviation = drifted(self.deviation, self.interval.abs_diff(interval));
            self.interval = drifted(self.interval, interval);
        }
        self.intervals = self.intervals.saturating_add(1);
    }

    fn is_regular(&self) -> bool {
        self.interval >= HEARTBEAT_MS && u64::from(self.deviation) * 10 < u64::from(self.interval) * DEVIATES
    }

    /// Whether the line that was counted last is the one that makes it a burst.
    fn burst(&self) -> Option<Burst> {
        if self.count < BURST || self.windows < USUAL_AFTER {
            return None;
        }
        let usual = self.usual.div_ceil(100).max(1);
        let limit = usual.saturating_mul(BURST_TIMES).max(BURST);
        (self.count == limit).then_some(Burst { count: self.count, usual })
    }
}

/// The mean, with a fifth of its weight on the latest value.
fn drifted(mean: u32, latest: u32) -> u32 {
    u32::try_from((u64::from(mean) * 4 + u64::from(latest)) / 5).unwrap_or(u32::MAX)
}

impl From<Kind> for Stored {
    fn from(Kind { count, pace }: Kind) -> Self {
        if pace.intervals < WORTH_KEEPING {
            return Self::Count(count);
        }
        let number = i64::from;
        let learned = [number(pace.interval), number(pace.deviation), number(pace.intervals)];
        let [interval, deviation, intervals] = learned;
        let (in_window, usual, windows) = (number(pace.count), number(pace.usual), number(pace.windows));
        Self::Paced(count, [pace.window, in_window, usual, windows, pace.last_ms, interval, deviation, intervals])
    }
}

impl From<Stored> for Kind {
    fn from(stored: Stored) -> Self {
        let number = |number: i64| u32::try_from(number).unwrap_or(0);
        match stored {
            Stored::Count(count) => Self { count, pace: Pace::default() },
            Stored::Paced(count, [window, in_window, usual, windows, last_ms, interval, deviation, intervals]) => {
                let pace = Pace {
                    window,
                    count: number(in_window),
                    usual: number(usual),
                    windows: number(windows),
                    last_ms,
                    interval: number(interval),
                    deviation: number(deviation),
                    intervals: number(intervals),
                };
                Self { count, pace }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: TemplateId = TemplateId(7);

    /// What lines of one kind at these times say.
    fn sightings(seen: &mut Seen, times: impl IntoIterator<Item = i64>) -> Vec<Sighting> {
        times.into_iter().map(|time| seen.note(KIND, Timestamp::from_millisecond(time).unwrap())).collect()
    }

    #[test]
    fn a_kind_that_comes_far_more_often_than_it_did_is_a_burst_once_in_its_minute() {
        let mut seen = Seen::default();
        let minutes = |minutes: std::ops::Range<i64>, lines: i64| {
            minutes
                .flat_map(move |minute| (0..lines).map(move |line| 1 + minute * WINDOW_MS + line * WINDOW_MS / lines))
        };
        let mut bursts = |times: &mut dyn Iterator<Item = i64>| -> Vec<Burst> {
            sightings(&mut seen, times).into_iter().filter_map(|sighting| sighting.burst).collect()
        };
        assert_eq!(bursts(&mut minutes(0..3, 500)), [], "a flood from the start is all that is known");
        assert_eq!(bursts(&mut minutes(3..20, 12)), [], "less is no burst");
        assert_eq!(bursts(&mut minutes(20..21, 119)), []);
        assert_eq!(bursts(&mut minutes(30..33, 12)), []);
        let found = bursts(&mut minutes(33..34, 900));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!((100..=130).contains(&found[0].count) && (1..=13).contains(&found[0].usual), "{found:?}");
        assert_eq!(bursts(&mut minutes(34..40, 900)), [], "by now that is usual");
    }

    #[test]
    fn a_kind_is_regular_if_it_comes_as_it_did() {
        let last = |times: &mut dyn Iterator<Item = i64>| {
            sightings(&mut Seen::default(), times).last().map(|sighting| sighting.rhythm)
        };
        let beats = |every: i64| (1..=12_i64).map(move |beat| 1000 + beat * every);
        assert_eq!(last(&mut beats(5000)), Some(Rhythm::Regular(5000)));
        assert_eq!(last(&mut beats(5000).take(8)), Some(Rhythm::Same), "too few to tell");
        assert_eq!(last(&mut beats(200)), Some(Rhythm::Irregular), "a flow");
        let trembling = |beat: i64| 1000 + beat * 5000 + [0, 900, -700, 300][(beat % 4) as usize];
        assert!(matches!(last(&mut (1..=12).map(trembling)), Some(Rhythm::Regular(4000..=6000))));
        let random = |beat: i64| 1000 + beat * 5000 + (beat * beat * 7919) % 9000;
        assert_eq!(last(&mut (1..=12).map(random)), Some(Rhythm::Irregular));
        let in_pairs = beats(5000).flat_map(|at| [at, at]);
        assert_eq!(last(&mut in_pairs.take(23)), Some(Rhythm::Regular(5000)), "what comes together is one beat");
    }

    #[test]
    fn it_is_bounded_and_a_checkpoint_keeps_what_was_learned() {
        let mut seen = Seen::default();
        for time in 0..40_i64 {
            for id in 0..2000 {
                let at = Timestamp::from_millisecond(1_800_000_000_000 + time * 5000).unwrap();
                assert_eq!(seen.note(TemplateId(u64::MAX - id), at).is_first, time == 0 || id >= KINDS as u64);
            }
        }
        assert_eq!(seen.ids().count(), KINDS);
        let stored = serde_json::to_string(&seen).unwrap();
        assert!(stored.len() < 48 * 1024, "{} bytes", stored.len());
        assert_eq!(serde_json::from_str::<Seen>(&stored).unwrap(), seen);
        let before: Seen = serde_json::from_str(r#"{"7":3}"#).unwrap();
        assert_eq!(before.0[&KIND].count, 3, "as observers wrote it that knew of no pace");
        seen.note_within(KINDS + 1, KIND, Timestamp::from_millisecond(1_800_000_190_000).unwrap());
        seen.forget(1_800_000_195_000, 1_800_000_191_000);
        assert_eq!(seen.len(), KINDS, "of what came once nothing was learned");
        seen.forget(1_800_000_196_000, 1_800_000_191_000);
        assert_eq!(seen.len(), 0);
    }
}
