//! What a call's output amounts to: a pure state machine over frames and time.
//!
//! Progress is folded: a note now and then, and no wake. A failure is held for a while, since the end or more evidence is
//! usually close behind it. Silence wakes once. The end concludes the call, with what has not been told yet.
//!
//! Every report has a key that follows from the output itself, never from how often or by whom it was read: whoever reads
//! the same output again makes the same report under the same key, and the log takes it once.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kernel::{
    CallId,
    call::{Exit, Observation, SignalCounts},
};
use serde::{Deserialize, Serialize};

use crate::{
    evidence::{Collector, Noted, Summary},
    lines::{Line, Splitter},
    rules::{Progress, Rules},
    text,
};

/// After a failure was told of, the next one that is not the end waits this long at least; and twice as long each time.
const NEXT_WAKE: Duration = Duration::from_secs(300);

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
        /// What was concluded.
        observation: Observation,
        /// How long it ran, in milliseconds.
        duration_ms: u64,
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
    ended: bool,
}

/// A failure that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    offset: u64,
    until: Timestamp,
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
            silence_told: false,
            held: None,
            wakes: 0,
            woken_at: None,
            phase: None,
            percent: None,
            phase_since: None,
            noted_at: started_at,
            success: None,
            ended: false,
        }
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

    /// Whether its output shows a failure that is worth waking for, not counting what was told before.
    #[must_use]
    pub fn shows_failure(&self) -> bool {
        self.collector.summary().waking > 0
    }

    /// Takes a frame, and says what is to be told.
    pub fn frame(&mut self, rules: &Rules, frame: &Frame<'_>) -> Vec<Report> {
        if self.ended {
            return Vec::new();
        }
        // What was due before this frame came, unless the end says it all.
        let mut reports = if frame.exit.is_none() { self.due_before(rules, frame.at) } else { Vec::new() };
        self.read(rules, frame);
        if let Some(exit) = &frame.exit {
            reports.push(self.conclude(rules, exit, frame.read_at));
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
            rules.silence.filter(|silence| !self.silence_told && now >= after(self.last_at, *silence))
        {
            self.silence_told = true;
            reports.push(self.silence(rules, silence));
        }
        reports
    }

    fn due_before(&mut self, rules: &Rules, now: Timestamp) -> Vec<Report> {
        let mut reports = Vec::new();
        if let Some(held) = self.held.filter(|held| now >= held.until) {
            self.held = None;
            self.wakes += 1;
            self.woken_at = Some(now);
            reports.push(self.failure(rules, held.offset));
        }
        if self.phase_since.is_some() && now >= after(self.noted_at, rules.limits.progress_every) {
            self.noted_at = now;
            reports.extend(self.phase_since.take().map(|since| self.progress(since)));
        }
        reports
    }

    fn read(&mut self, rules: &Rules, frame: &Frame<'_>) {
        let mut splitter = std::mem::take(&mut self.splitter);
        let at = frame.at;
        let fed = splitter.feed(frame.offset, frame.first_line, frame.body, |line| self.line(rules, line, at));
        if frame.exit.is_some() {
            splitter.finish(|line| self.line(rules, line, at));
        }
        self.counts.lines = splitter.lines();
        self.splitter = splitter;
        self.counts.gap_bytes = (self.counts.gap_bytes + fed.gap).saturating_sub(fed.late);
        if fed.new + fed.late > 0 {
            self.counts.frames += 1;
            self.counts.bytes += fed.new + fed.late;
            self.last_at = self.last_at.max(frame.at);
            self.silence_told = false;
        }
    }

    fn line(&mut self, rules: &Rules, line: Line<'_>, at: Timestamp) {
        let visible = text::visible(line.bytes);
        let hits = rules.look(&visible);
        let waking = hits.failure.is_some_and(|failure| failure.wakes);
        match self.collector.line(line.offset, line.number, &visible, hits.failure, rules) {
            Noted::New if waking && self.held.is_none() => {
                self.held = Some(Held { offset: line.offset, until: self.hold_until(rules, at) });
            }
            Noted::New | Noted::Plain => {}
            Noted::Again => self.counts.suppressed += 1,
        }
        if hits.success {
            self.success = Some(text::window(visible.trim(), 0, 160).into_owned());
        }
        if let Some(progress) = hits.progress {
            self.note_progress(progress, line.offset);
        }
    }

    /// Later failures wait longer: a log that is full of them is one thing to decide about, not many.
    fn hold_until(&self, rules: &Rules, at: Timestamp) -> Timestamp {
        let settled = after(at, rules.settle);
        match self.woken_at {
            None => settled,
            Some(woken) => {
                let times = 1_u32.checked_shl(self.wakes.saturating_sub(1)).unwrap_or(u32::MAX);
                settled.max(after(woken, NEXT_WAKE.saturating_mul(times)))
            }
        }
    }

    fn note_progress(&mut self, progress: Progress, offset: u64) {
        if let Some(phase) = progress.phase.filter(|phase| self.phase.as_ref() != Some(phase)) {
            self.phase = Some(phase);
            self.percent = None;
            self.counts.suppressed += u64::from(self.phase_since.is_some());
            self.phase_since = Some(offset);
        }
        if progress.percent.is_some() && progress.percent != self.percent {
            self.percent = progress.percent;
            self.counts.suppressed += 1;
        }
    }

    fn observation(&self, phase: &str, changed: String) -> Observation {
        Observation {
            call_id: Some(self.call_id),
            phase: phase.to_owned(),
            changed,
            anomaly: false,
            decision: None,
            evidence: Vec::new(),
            missing: self.missing(0),
            counts: self.counts,
        }
    }

    fn missing(&self, at_end: u64) -> Option<String> {
        let bytes = self.counts.gap_bytes + at_end;
        (bytes > 0).then(|| format!("{bytes} bytes of output were lost on the way"))
    }

    fn key(&self, kind: &str, offset: u64) -> String {
        format!("obs/{}/{kind}/{offset}", self.call_id)
    }

    fn progress(&mut self, since: u64) -> Report {
        let percent = self.percent.map(|percent| format!(", {percent}%")).unwrap_or_default();
        let phase = self.phase.as_deref().unwrap_or_default();
        let changed = format!("Phase `{phase}`{percent} after {} lines.", self.counts.lines);
        self.counts.suppressed += 1;
        Report::Observe { key: self.key("phase", since), observation: self.observation("progress", changed) }
    }

    fn failure(&mut self, rules: &Rules, offset: u64) -> Report {
        let summary = self.collector.summary();
        let evidence = self.collector.take(rules.limits.evidence_bytes);
        let changed = format!("{} It still runs, {} lines so far.", shows(summary), self.counts.lines);
        let decision = format!("the output of `{}` shows a failure while it still runs", self.tool);
        let observation = Observation { decision: Some(decision), evidence, ..self.observation("failure", changed) };
        Report::Observe { key: self.key("failure", offset), observation }
    }

    fn silence(&self, rules: &Rules, silence: Duration) -> Report {
        let seconds = silence.as_secs();
        let changed = match self.counts.lines {
            0 => format!("No output at all for {seconds} s."),
            lines => format!("No output for {seconds} s, after {lines} lines."),
        };
        let observation = Observation {
            anomaly: true,
            decision: Some(format!("`{}` has been silent for {seconds} s and still runs", self.tool)),
            evidence: self.collector.tail(rules.limits.evidence_bytes / 2, "silence").into_iter().collect(),
            ..self.observation("silence", changed)
        };
        Report::Observe { key: self.key("silence", self.next_offset()), observation }
    }

    fn conclude(&mut self, rules: &Rules, exit: &Exit, read_at: Timestamp) -> Report {
        self.ended = true;
        self.held = None;
        let lost = exit.bytes.saturating_sub(self.next_offset());
        let duration_ms = millis(read_at.duration_since(self.started_at));
        let summary = self.collector.summary();
        let mut observation = self.observation(if exit.is_success() { "completed" } else { "failed" }, String::new());
        observation.missing = self.missing(lost);
        observation.counts.gap_bytes += lost;
        observation.anomaly = !matches!(exit.reason.as_str(), "exited" | "cancelled");
        let mut changed = ended(exit, self.counts.lines, duration_ms);
        if exit.is_success() {
            self.conclude_success(rules, summary, &mut observation, &mut changed);
        } else {
            self.conclude_failure(rules, exit, summary, &mut observation, &mut changed);
        }
        observation.changed = changed;
        self.counts = observation.counts;
        Report::Conclude { key: format!("obs/{}/exit", self.call_id), exit: exit.clone(), observation, duration_ms }
    }

    /// A status of 0 outweighs what merely looks like an error. What is certainly one contradicts it.
    fn conclude_success(
        &mut self,
        rules: &Rules,
        summary: Summary,
        observation: &mut Observation,
        changed: &mut String,
    ) {
        if summary.waking > 0 {
            observation.anomaly = true;
            observation.decision =
                Some(format!("`{}` says that it succeeded, but its output shows a failure", self.tool));
            observation.evidence = self.collector.take(rules.limits.evidence_bytes);
            changed.push(' ');
            changed.push_str(&shows(summary));
            return;
        }
        observation.counts.suppressed += summary.failures;
        if let Some(line) = &self.success {
            changed.push_str(&format!(" Its last word on that: {line}"));
        }
    }

    fn conclude_failure(
        &mut self,
        rules: &Rules,
        exit: &Exit,
        summary: Summary,
        observation: &mut Observation,
        changed: &mut String,
    ) {
        if exit.reason == "cancelled" {
            observation.phase = "cancelled".to_owned();
            return;
        }
        observation.decision = Some(format!("`{}` failed", self.tool));
        observation.evidence = self.collector.take(rules.limits.evidence_bytes);
        if summary.failures > 0 {
            changed.push(' ');
            changed.push_str(&shows(summary));
        } else if self.collector.found_any() {
            changed.push_str(" Its output shows no failure beyond those told before.");
        } else {
            changed.push_str(" No rule found a failure in its output; these are its last lines.");
            observation.evidence.extend(self.collector.tail(rules.limits.evidence_bytes / 2, "tail"));
        }
    }
}

fn shows(summary: Summary) -> String {
    match summary.failures {
        1 => format!("Its output shows a failure, at line {}.", summary.first_line),
        failures => {
            format!("Its output shows {failures} different failures, the first at line {}.", summary.first_line)
        }
    }
}

fn ended(exit: &Exit, lines: u64, duration_ms: u64) -> String {
    let how = match (exit.reason.as_str(), exit.code, exit.signal) {
        ("timeout", ..) => "It was ended since it ran longer than it may".to_owned(),
        ("output_cap", ..) => "It was ended since it wrote more than it may".to_owned(),
        ("process_cap", ..) => "It was ended since it had more processes than it may".to_owned(),
        ("memory_cap", ..) => "It was ended since it used more memory than it may".to_owned(),
        ("cancelled", ..) => "It was cancelled".to_owned(),
        ("lost", ..) => "Its process is gone, and nobody knows how it ended".to_owned(),
        (_, Some(code), _) => format!("It ended with status {code}"),
        (_, None, Some(signal)) => format!("It was ended by signal {signal}"),
        (_, None, None) => "It ended".to_owned(),
    };
    format!("{how} after {lines} lines in {}.{} s.", duration_ms / 1000, duration_ms % 1000 / 100)
}

fn after(at: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| at.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

fn millis(span: SignedDuration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
