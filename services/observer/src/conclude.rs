//! What a call's output amounts to: a pure state machine over frames and time.
//!
//! Progress is folded: a note now and then, and no wake. A failure is held for a while, since the end or more evidence is
//! usually close behind it. What only time tells (silence, thresholds, stages, heartbeats) is told when it is due. The end
//! concludes the call, with what has not been told yet.
//!
//! Every report has a key that follows from the output itself, never from how often or by whom it was read: whoever reads
//! the same output again makes the same report under the same key, and the log takes it once. What was learned from other
//! calls weighs evidence, and never decides whether or when something is told; what the pace of lines tells has one key in a call.

mod doubt;
mod reading;
mod report;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kernel::{
    CallId,
    call::{Exit, Observation, SignalCounts},
    observe::{Anomaly, WakeWhen},
    opinion::SecondOpinion,
};
use serde::{Deserialize, Serialize};

use crate::{
    beats::Beats,
    evidence::Collector,
    lines::Splitter,
    rules::{Active, Failure, Rules},
    seen::Seen,
    templates::Miner,
    timed::{Timed, Timely},
};

/// After a failure was told of, the next one that is not the end waits this long at least; and twice as long each time.
const NEXT_WAKE: Duration = Duration::from_secs(300);
/// And this long, if only shipped rules take it for one: whoever lets a program run that seems to fail wants to hear how it ends. CI jobs
/// are ended after an hour or two; with five minutes, one of an hour that was full of noise woke five times.
const NEXT_GUESS: Duration = Duration::from_secs(7200);

/// A piece of output as it arrives.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// Byte offset of its body in the call's output.
    pub offset: u64,
    /// Number of the line that it begins in, from 0.
    pub first_line: Option<u64>,
    /// When it was stored: the clock that silence and holding go by.
    pub at: Timestamp,
    /// When it was read from the process: the clock that durations go by.
    pub read_at: Timestamp,
    /// The output itself.
    pub body: &'a [u8],
    /// How the process ended; only the last frame says.
    pub exit: Option<Exit>,
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The call goes on.
    Observe {
        /// What makes it the same when it is told again.
        key: String,
        /// What was concluded.
        observation: Observation,
    },
    /// The call has ended.
    Conclude {
        /// As above.
        key: String,
        /// How it ended.
        exit: Exit,
        /// Whether that is success, by the agent's rules.
        succeeded: bool,
        /// What was concluded.
        observation: Observation,
        /// How long it ran, in milliseconds.
        duration_ms: u64,
        /// What would be told if the rules, which are unsure, were wrong. Somebody may be asked before this is told.
        doubt: Option<Box<Observation>>,
        /// What came of asking.
        asked: Option<SecondOpinion>,
    },
}

impl Report {
    /// What makes it the same when it is told again.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Observe { key, .. } | Self::Conclude { key, .. } => key,
        }
    }

    /// What was concluded.
    #[must_use]
    pub const fn observation(&self) -> &Observation {
        match self {
            Self::Observe { observation, .. } | Self::Conclude { observation, .. } => observation,
        }
    }
}

/// What the output says of how it goes, by its latest word on that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    #[default]
    Unknown,
    /// A program's last word was that it went well, and nothing failed since.
    Passed,
    /// Something failed.
    Failed,
    /// A program's last word was that it failed.
    Verdict,
}

/// What is known of one call's output. Fits into a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    call_id: CallId,
    tool: String,
    started_at: Timestamp,
    splitter: Splitter,
    collector: Collector,
    counts: SignalCounts,
    /// When output last came; the start, before any.
    last_at: Timestamp,
    /// Since when all that comes has been heard: what was said before that, and how regularly, is not known in time.
    #[serde(skip)]
    heard_from: Option<Timestamp>,
    /// The silence since then was told of.
    #[serde(default)]
    silence_told: bool,
    /// The first failure that is worth waking for and was not told of.
    #[serde(default)]
    held: Option<Held>,
    /// Wakes for failures so far.
    #[serde(default)]
    wakes: u32,
    #[serde(default)]
    woken_at: Option<Timestamp>,
    /// Those of them that only shipped rules asked for.
    #[serde(default)]
    guesses: u32,
    #[serde(default)]
    guessed_at: Option<Timestamp>,
    #[serde(default)]
    phase: Option<String>,
    #[serde(default)]
    percent: Option<u8>,
    /// Where the phase began, if it was not told of.
    #[serde(default)]
    phase_since: Option<u64>,
    noted_at: Timestamp,
    /// The last line that said that something went well.
    #[serde(default)]
    success: Option<String>,
    #[serde(default)]
    standing: Standing,
    /// Programs that were recognised.
    #[serde(default)]
    active: Active,
    /// The section that the output is in, and lines after which it is over.
    #[serde(default)]
    section: Option<(String, u32)>,
    #[serde(default)]
    timed: Timed,
    /// The kinds of its lines, and what their pace tells.
    #[serde(default)]
    seen: Seen,
    #[serde(default)]
    beats: Beats,
    /// What time told, and is to be shown with the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    at_end: Vec<Timely>,
    /// Kinds of lines that were never there when all went well.
    #[serde(default)]
    novel: u64,
    /// Somebody may be asked at the end, if the rules are unsure.
    #[serde(default)]
    advised: bool,
    #[serde(default)]
    ended: bool,
}

/// A failure that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    offset: u64,
    until: Timestamp,
    /// Not only shipped rules take it for a failure.
    #[serde(default)]
    is_wanted: bool,
}

impl Watch {
    /// Nothing is known yet of a call that started then.
    #[must_use]
    pub fn new(call_id: CallId, tool: &str, started_at: Timestamp) -> Self {
        Self {
            call_id,
            tool: tool.to_owned(),
            started_at,
            splitter: Splitter::default(),
            collector: Collector::default(),
            counts: SignalCounts::default(),
            last_at: started_at,
            heard_from: None,
            silence_told: false,
            held: None,
            wakes: 0,
            woken_at: None,
            guesses: 0,
            guessed_at: None,
            phase: None,
            percent: None,
            phase_since: None,
            noted_at: started_at,
            success: None,
            standing: Standing::default(),
            active: Active::default(),
            section: None,
            timed: Timed::default(),
            seen: Seen::default(),
            beats: Beats::default(),
            at_end: Vec::new(),
            novel: 0,
            advised: false,
            ended: false,
        }
    }

    /// With what the command tells about the programs that it runs.
    #[must_use]
    pub fn running(mut self, rules: &Rules, command: &str) -> Self {
        self.active = rules.active_for(command);
        self
    }

    /// Offset of the first byte that it has not seen.
    #[must_use]
    pub const fn next_offset(&self) -> u64 {
        self.splitter.next_offset()
    }

    /// What it has read.
    #[must_use]
    pub const fn counts(&self) -> SignalCounts {
        self.counts
    }

    /// Whether the end was told.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether its output shows a failure, for want of a status.
    #[must_use]
    pub fn shows_failure(&self) -> bool {
        match self.standing {
            Standing::Passed => false,
            Standing::Failed | Standing::Verdict => true,
            Standing::Unknown => self.collector.summary().waking > 0,
        }
    }

    /// The programs whose output it was taken for.
    #[must_use]
    pub const fn active(&self) -> Active {
        self.active
    }

    /// Takes a frame, and says what is to be told.
    pub fn frame(&mut self, rules: &Rules, miner: &mut Miner, frame: &Frame<'_>) -> Vec<Report> {
        if self.ended {
            return Vec::new();
        }
        // What was due before this frame came, unless the end says it all.
        let mut reports = if frame.exit.is_none() { self.due_before(rules, frame.at) } else { Vec::new() };
        let timely = self.read(rules, miner, frame);
        if let Some(exit) = &frame.exit {
            timely.into_iter().for_each(|timely| self.show_at_end(timely));
            reports.push(self.conclude(rules, miner, exit, frame));
        } else {
            reports.extend(timely.into_iter().filter_map(|timely| self.timely(rules, &timely, frame.at)));
            reports.extend(self.held_until(rules, frame.at));
        }
        reports
    }

    /// What is to be told by now, given that no more output has come.
    pub fn due(&mut self, rules: &Rules, now: Timestamp) -> Vec<Report> {
        if self.ended {
            return Vec::new();
        }
        let mut reports = self.due_before(rules, now);
        if let Some(silence) =
            rules.silence.filter(|silence| !self.silence_told && now >= after(self.quiet_from(), *silence))
        {
            self.silence_told = true;
            reports.push(self.silence(rules, silence));
        }
        // What is worth a decision waits until it may ask for one.
        if !rules.says_what_life_is()
            && self.next_wake().is_none_or(|next| now >= next)
            && let Some(vanished) = self.beats.vanished((self.last_at, self.counts.lines), self.quiet_from(), now)
        {
            self.beats.vanished_is_told();
            reports.extend(self.timely(rules, &vanished, now));
        }
        reports
    }

    /// Says that all that comes is heard from now on.
    pub(crate) fn hears_from(&mut self, now: Timestamp) {
        self.heard_from = Some(now);
    }

    /// Since when nothing has come that would have been heard.
    fn quiet_from(&self) -> Timestamp {
        self.heard_from.map_or(self.last_at, |heard_from| heard_from.max(self.last_at))
    }

    fn due_before(&mut self, rules: &Rules, now: Timestamp) -> Vec<Report> {
        let mut reports: Vec<Report> = self.held_until(rules, now).into_iter().collect();
        if !rules.timed.is_empty() {
            let due = self.timed.due(&rules.timed, now, self.heard_from);
            reports.extend(due.into_iter().filter_map(|timely| self.timely(rules, &timely, now)));
        }
        if self.phase_since.is_some() && now >= after(self.noted_at, rules.limits.progress_every) {
            self.noted_at = now;
            reports.extend(self.phase_since.take().map(|since| self.progress(since)));
        }
        reports
    }

    /// The failure that was held back until now, unless it has passed since.
    fn held_until(&mut self, rules: &Rules, now: Timestamp) -> Option<Report> {
        let held = self.held.filter(|held| now >= held.until)?;
        self.held = None;
        if self.collector.summary().waking == 0 {
            return None;
        }
        self.wakes += 1;
        self.woken_at = Some(now);
        if !held.is_wanted {
            self.guesses += 1;
            self.guessed_at = Some(now);
        }
        Some(self.failure(rules, held.offset))
    }

    /// Later failures wait longer: a log that is full of them is one thing to decide about, not many.
    fn hold(&mut self, rules: &Rules, failure: Failure, offset: u64, at: Timestamp) {
        let settled = if failure.wake == WakeWhen::Now { at } else { after(at, rules.settle) };
        let is_wanted = failure.is_own() || failure.wake == WakeWhen::Now;
        let guess = next_after(self.guessed_at.filter(|_| !is_wanted), NEXT_GUESS, self.guesses);
        let until = [self.next_wake(), guess].into_iter().flatten().fold(settled, Timestamp::max);
        match &mut self.held {
            Some(held) => {
                held.until = held.until.min(until);
                held.is_wanted |= is_wanted;
            }
            None => self.held = Some(Held { offset, until, is_wanted }),
        }
    }

    /// Before this, nobody is woken again while it runs.
    fn next_wake(&self) -> Option<Timestamp> {
        next_after(self.woken_at, NEXT_WAKE, self.wakes)
    }

    /// Whether something may wake now; if it does, the next waits.
    fn may_wake(&mut self, rules: &Rules, anomaly: Anomaly, rule: &str, now: Timestamp) -> bool {
        let wanted = matches!(rules.wake(anomaly, rule), WakeWhen::Now | WakeWhen::Settled);
        let may = wanted && self.next_wake().is_none_or(|next| now >= next);
        if may {
            self.wakes += 1;
            self.woken_at = Some(now);
        }
        may
    }
}

/// The wait is twice as long each time.
fn next_after(last: Option<Timestamp>, span: Duration, times: u32) -> Option<Timestamp> {
    let longer = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
    last.map(|last| after(last, span.saturating_mul(longer)))
}

fn after(at: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| at.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
