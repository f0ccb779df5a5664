//! What a run took, and what it did not take.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kernel::{
    ApprovalId, CallId, Event, EventData, budget::Usage, call::SignalCounts, economics::Economics as Waking,
    wait::WakeKind,
};
use serde::Serialize;

use super::words::{bytes, count, dollars, many, span};
use crate::{
    style::{Paint, Style},
    views::EventView,
};

/// Heights of bars, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Turns whose tokens are shown one by one: the last ones.
const TURNS_SHOWN: usize = 16;

/// Sums over the events of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Economics {
    /// From the first event to the last one, in milliseconds.
    pub took_ms: i64,
    /// Of that, asleep: no turn open, nothing held.
    pub asleep_ms: i64,
    /// Raw lines, bytes and frames, and observations that were folded without a wake.
    pub signals: Signals,
    /// Observations recorded.
    pub observations: u64,
    /// Of those, the ones that asked for a decision.
    pub decisions_needed: u64,
    /// Wakes by kind.
    pub wakes: BTreeMap<&'static str, u64>,
    /// Model use.
    pub usage: Usage,
    /// Tokens in and out of each committed turn.
    pub tokens_per_turn: Vec<u64>,
    /// Turns that were refused.
    pub turns_rejected: u64,
    /// Tool calls requested.
    pub tool_calls: u64,
    /// Of those, approved by a person.
    pub approved: u64,
    /// What waking cost and saved, as `GET /v1/runs/{id}/economics` has it.
    pub waking: Waking,
    #[serde(skip)]
    counts: BTreeMap<Option<CallId>, SignalCounts>,
    /// Questions about calls.
    #[serde(skip)]
    asked: BTreeSet<ApprovalId>,
    #[serde(skip)]
    first: Option<Timestamp>,
    #[serde(skip)]
    asleep_since: Option<Timestamp>,
}

/// Raw output, before any of it was concluded from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Signals {
    /// Lines.
    pub lines: u64,
    /// Bytes.
    pub bytes: u64,
    /// Frames: messages on the bus.
    pub frames: u64,
    /// Observations that changed nothing and woke nobody.
    pub suppressed: u64,
}

impl Economics {
    /// Adds an event.
    pub fn add(&mut self, event: &EventView, data: &EventData) {
        let first = *self.first.get_or_insert(event.at);
        self.took_ms = millis(event.at.duration_since(first));
        self.waking.add(&Event { seq: event.seq, at: event.at, data: data.clone() });
        match data {
            EventData::RunRunnable(runnable) => {
                if let Some(kind) = runnable.wake {
                    *self.wakes.entry(kind.as_str()).or_default() += 1;
                }
                self.wake_up(event.at);
            }
            EventData::TurnCompleted(turn) => {
                self.spend(&turn.usage);
                self.tokens_per_turn.push(turn.usage.input_tokens + turn.usage.output_tokens);
                self.asleep_since = Some(event.at);
            }
            EventData::TurnRejected(turn) => {
                self.spend(&turn.usage);
                self.turns_rejected += 1;
            }
            EventData::TurnCharged(charged) => self.spend(&charged.usage),
            EventData::ToolRequested(_) => self.tool_calls += 1,
            EventData::ApprovalRequested(requested) => {
                self.asked.extend(requested.approval.call_id.map(|_| requested.approval.approval_id));
            }
            EventData::ApprovalGranted(granted) => {
                self.approved += u64::from(self.asked.contains(&granted.approval_id))
            }
            EventData::ObservationRecorded(recorded) => {
                let observation = &recorded.observation;
                if let Some(asked) = &recorded.asked {
                    self.spend(&asked.usage);
                }
                self.observations += 1;
                self.decisions_needed += u64::from(observation.decision.is_some());
                // The counts of an observation are since the start of its call.
                self.counts.insert(observation.call_id, observation.counts);
                self.signals = self.counts.values().fold(Signals::default(), Signals::plus);
            }
            EventData::RunCompleted(_) | EventData::RunFailed(_) | EventData::RunCancelled(_) => self.wake_up(event.at),
            _ => {}
        }
    }

    /// How long the run slept until now, if it did.
    pub fn asleep_for(&self, now: Timestamp) -> Option<SignedDuration> {
        self.asleep_since.map(|since| now.duration_since(since))
    }

    /// Wakes in all.
    pub fn wakes(&self) -> u64 {
        self.wakes.values().sum()
    }

    fn wake_up(&mut self, now: Timestamp) {
        self.asleep_ms += self.asleep_for(now).map_or(0, millis);
        self.asleep_since = None;
    }

    fn spend(&mut self, usage: &Usage) {
        let sum = &mut self.usage;
        sum.model_calls += usage.model_calls;
        sum.input_tokens += usage.input_tokens;
        sum.cached_tokens += usage.cached_tokens;
        sum.output_tokens += usage.output_tokens;
        sum.cost_microusd += usage.cost_microusd;
    }

    /// As lines for people.
    pub fn lines(&self, style: Style) -> Vec<String> {
        let row = |name: &str, text: String| format!("  {}  {text}", style.paint(Paint::Dim, &format!("{name:<16}")));
        let signals = &self.signals;
        let mut lines = vec![row("time", self.time())];
        if signals.lines > 0 {
            let (amount, frames) = (bytes(signals.bytes), many(signals.frames, "signal"));
            lines.push(row("raw output", format!("{}, {amount}, in {frames}", many(signals.lines, "line"))));
        }
        if self.observations > 0 {
            let needed = match self.decisions_needed {
                0 => "none of them needed a decision".to_owned(),
                needed => format!("{} needed a decision", count(needed)),
            };
            lines.push(row("observations", format!("{}, {needed}", count(self.observations))));
            lines.push(row("suppressed", format!("{} that would have changed nothing", count(signals.suppressed))));
        }
        lines.push(row("wakes", self.wakes_in_words()));
        lines.extend(self.saved_in_words().map(|words| row("wakes saved", words)));
        lines.push(row("tool calls", self.calls_in_words()));
        lines.push(row("model calls", self.model_in_words()));
        if !self.tokens_per_turn.is_empty() {
            lines.push(row("tokens per turn", self.tokens_in_words()));
        }
        lines
    }

    fn time(&self) -> String {
        let of = |millis: i64| span(SignedDuration::from_millis(millis));
        let share = if self.took_ms > 0 { self.asleep_ms * 100 / self.took_ms } else { 0 };
        format!("{}, {share}% of it asleep at no cost ({})", of(self.took_ms), of(self.asleep_ms))
    }

    fn wakes_in_words(&self) -> String {
        let kinds: Vec<_> =
            self.wakes.iter().map(|(kind, times)| format!("{} {times}", kind.replace('_', " "))).collect();
        match self.wakes() {
            0 => "none".to_owned(),
            all => format!("{} ({})", count(all), kinds.join(", ")),
        }
    }

    /// What was gathered into other wakes, and what was in vain; nothing if there is nothing to say.
    fn saved_in_words(&self) -> Option<String> {
        let Waking { coalesced, false_wakes, tokens_per_wake, .. } = &self.waking;
        if self.wakes() == 0 {
            return None;
        }
        let in_vain = match false_wakes {
            0 => "none in vain".to_owned(),
            several => format!("{} in vain", count(*several)),
        };
        let tokens = tokens_per_wake.map(|tokens| format!(", {} tokens for each", count(tokens))).unwrap_or_default();
        Some(format!("{} gathered into others, {in_vain}{tokens}", count(*coalesced)))
    }

    fn calls_in_words(&self) -> String {
        let approved =
            if self.approved > 0 { format!(", {} approved by a person", self.approved) } else { String::new() };
        format!("{}{approved}", count(self.tool_calls))
    }

    fn model_in_words(&self) -> String {
        let usage = &self.usage;
        let calls = u64::from(usage.model_calls);
        let cached =
            if usage.cached_tokens > 0 { format!(" ({} cached)", count(usage.cached_tokens)) } else { String::new() };
        let (read, written) = (count(usage.input_tokens), count(usage.output_tokens));
        let per_line = match self.signals.lines.checked_div(calls) {
            Some(lines) if lines > 1 => format!(", one for every {} of raw output", many(lines, "line")),
            _ => String::new(),
        };
        format!(
            "{}{per_line}; {read} tokens read{cached}, {written} written, {}",
            count(calls),
            dollars(usage.cost_microusd)
        )
    }

    fn tokens_in_words(&self) -> String {
        let most = self.tokens_per_turn.iter().copied().max().unwrap_or(0).max(1);
        let from = self.tokens_per_turn.len().saturating_sub(TURNS_SHOWN);
        let shown = &self.tokens_per_turn[from..];
        let bar = |tokens: &u64| BARS[usize::try_from(tokens * 7 / most).unwrap_or(7).min(7)];
        let bars: String = shown.iter().map(bar).collect();
        let numbers: Vec<_> = shown.iter().map(|tokens| count(*tokens)).collect();
        let before = if from > 0 { "… " } else { "" };
        format!("{bars}  {before}{}", numbers.join(" "))
    }
}

impl Signals {
    fn plus(self, counts: &SignalCounts) -> Self {
        Self {
            lines: self.lines + counts.lines,
            bytes: self.bytes + counts.bytes,
            frames: self.frames + counts.frames,
            suppressed: self.suppressed + counts.suppressed,
        }
    }
}

/// The name of a kind of wake for people.
pub fn wake_in_words(kind: WakeKind) -> &'static str {
    match kind {
        WakeKind::Timer => "a timer",
        WakeKind::TaskResult => "a result",
        WakeKind::External => "an event",
        WakeKind::OperatorInput => "a person",
    }
}

fn millis(span: SignedDuration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX).max(0)
}
