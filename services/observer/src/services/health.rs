//! How well a service is, by one rule: a pure state machine over its records and time.
//!
//! It goes by the time at which the bus stored the records. So whoever reads the same records again comes to the same alarms,
//! under the same names; and an alarm is told once, and so is its end.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use kernel::{
    units,
    watch::{FieldLimit, HealthRule},
};
use regex::Regex;
use serde::{Deserialize, Serialize};
use signals::Record;

use self::numbers::Numbers;
use super::{evidence::Line, shape};

mod numbers;

/// Parts that the time of a rule is counted in.
const PARTS: i64 = 12;
/// Numbers that a quantile is made of; the latest ones.
const NUMBERS: usize = 512;
/// Kinds of faults that are remembered. Once it is full, what is new can't be told any more, and nothing is called new.
const KINDS: usize = 2048;
/// Lines that are shown with an alarm.
const SHOWN: usize = 4;
/// The time that a rule looks at, and after which a service counts as recovered, unless it says otherwise.
const USUAL: Duration = Duration::from_secs(60);
/// How long faults are learnt, unless the rule says otherwise.
const LEARN: Duration = Duration::from_secs(300);

/// What happened to an alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Whether it fires; else it is over.
    pub firing: bool,
    /// Which alarm: the message at which it began. The same however often it is come to.
    pub episode: u64,
    /// It was told before without a run, and starts one now.
    pub again: bool,
    /// Since when the service is not, or was not, well.
    pub since: Timestamp,
    /// When it changed.
    pub at: Timestamp,
    /// What was seen, in the runtime's own words.
    pub what: String,
    /// Lines that show it, those first that say most.
    pub evidence: Vec<Line>,
    /// Whether a run is to be started, or was.
    pub wakes: bool,
}

/// How far an alarm is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Alarm {
    /// All is well.
    #[default]
    Well,
    /// Not well, but not for long enough.
    Suspect { since: i64, episode: u64 },
    /// Told.
    Firing { since: i64, episode: u64 },
    /// Told, and well again, but not for long enough.
    Clearing { since: i64, episode: u64, well: i64 },
}

/// Whether the service is well by the rule, just now.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Bad(String),
    Well(String),
    /// Between the bound and where it is well again, or too little to go by: whatever it was, it stays.
    Open,
}

/// What is known of a service, by one rule. Bounded, and fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    alarm: Alarm,
    /// All records and those that count, by part of the rule's time; the number of the part comes first.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    parts: VecDeque<(i64, u64, u64)>,
    /// Numbers that a quantile is made of and when they came, in milliseconds.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    numbers: VecDeque<(i64, f64)>,
    /// The latest ones, by what they are of.
    latest: Numbers,
    /// Kinds of faults that are known.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    known: BTreeSet<u64>,
    /// The new kind that is being counted, how often it came, and when it last did.
    #[serde(skip_serializing_if = "Option::is_none")]
    fresh: Option<(u64, u64, i64)>,
    /// When the first and the last record came.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<i64>,
    /// The last message that it has seen.
    seq: u64,
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    lines: VecDeque<Line>,
}

impl Health {
    /// Whether its alarm has been told and is not over.
    #[must_use]
    pub const fn is_firing(&self) -> bool {
        matches!(self.alarm, Alarm::Firing { .. } | Alarm::Clearing { .. })
    }

    /// Takes a record that came at `at`, in the message `seq`. `line` gives it as evidence.
    pub fn record(
        &mut self,
        rule: &HealthRule,
        pattern: Option<&Regex>,
        record: &Record,
        at: Timestamp,
        seq: u64,
        line: impl FnOnce() -> Line,
    ) {
        let now = at.as_millisecond();
        self.first.get_or_insert(now);
        self.last = Some(self.last.map_or(now, |last| last.max(now)));
        self.seq = self.seq.max(seq);
        let counts = if rule.errors.is_some() {
            record.is_fault()
        } else if let Some(limit) = &rule.field {
            self.number(limit, over_of(rule), record, now)
        } else if rule.lines.is_some() {
            pattern.is_some_and(|pattern| pattern.is_match(&record.body))
        } else if rule.new_errors.is_some() {
            record.is_fault() && self.is_new(rule, record, now)
        } else {
            false
        };
        self.count(rule, now, counts);
        if counts {
            if self.lines.len() == SHOWN {
                self.lines.pop_front();
            }
            self.lines.push_back(line());
        }
    }

    /// Takes the number that a rule is about, if a record has it, and says whether it shows that the service is not well.
    fn number(&mut self, limit: &FieldLimit, over: i64, record: &Record, now: i64) -> bool {
        let is_meant = limit.only.iter().all(|(name, word)| record.says(name, word));
        let Some(number) = record.number(&limit.name).filter(|_| is_meant) else { return false };
        if limit.quantile.is_none() {
            return self.latest.take(limit, over, record, now, number);
        }
        if self.numbers.len() == NUMBERS {
            self.numbers.pop_front();
        }
        self.numbers.push_back((now, number));
        numbers::is_beyond(limit, number)
    }

    /// Notes a fault's kind, and says whether it is a new one.
    fn is_new(&mut self, rule: &HealthRule, record: &Record, now: i64) -> bool {
        let kind = shape::kind(&record.body);
        if let Some((fresh, times, at)) = self.fresh.as_mut().filter(|(fresh, ..)| *fresh == kind) {
            (*fresh, *times, *at) = (kind, *times + 1, now);
            return true;
        }
        if self.known.len() >= KINDS || !self.known.insert(kind) {
            return false;
        }
        let learn = rule.new_errors.as_ref().and_then(|new| new.learn).map_or(LEARN, units::Duration::std);
        let learnt = self.first.is_some_and(|first| now.saturating_sub(first) >= millis(learn));
        if learnt {
            self.fresh = Some((kind, 1, now));
        }
        learnt
    }

    fn count(&mut self, rule: &HealthRule, now: i64, counts: bool) {
        let part = now.div_euclid(part_of(rule));
        match self.parts.iter_mut().rev().find(|(have, ..)| *have == part) {
            Some((_, all, counted)) => (*all, *counted) = (*all + 1, *counted + u64::from(counts)),
            None => {
                self.parts.push_back((part, 1, u64::from(counts)));
                self.parts.make_contiguous().sort_unstable();
            }
        }
        while self.parts.len() > usize::try_from(PARTS).unwrap_or(1) + 1 {
            self.parts.pop_front();
        }
    }

    /// What has changed by now.
    pub fn check(&mut self, rule: &HealthRule, now: Timestamp) -> Option<Change> {
        let millis_now = now.as_millisecond();
        let verdict = self.verdict(rule, millis_now);
        let hold = rule.hold.map_or(0, |hold| millis(hold.std()));
        let clear = millis(rule.clear_after.map_or(USUAL, units::Duration::std));
        if let (Alarm::Well, Verdict::Bad(_)) = (self.alarm, &verdict) {
            self.alarm = Alarm::Suspect { since: millis_now, episode: self.seq };
        }
        match (self.alarm, verdict) {
            (Alarm::Suspect { since, episode }, Verdict::Bad(what)) if millis_now - since >= hold => {
                self.alarm = Alarm::Firing { since, episode };
                Some(self.change(true, episode, since, now, what))
            }
            (Alarm::Suspect { .. }, Verdict::Well(_)) => {
                self.alarm = Alarm::Well;
                self.lines.clear();
                None
            }
            (Alarm::Firing { since, episode }, Verdict::Well(_)) => {
                self.alarm = Alarm::Clearing { since, episode, well: millis_now };
                None
            }
            (Alarm::Clearing { since, episode, .. }, Verdict::Bad(_)) => {
                self.alarm = Alarm::Firing { since, episode };
                None
            }
            (Alarm::Clearing { since, episode, well }, Verdict::Well(what)) if millis_now - well >= clear => {
                self.alarm = Alarm::Well;
                self.lines.clear();
                self.fresh = None;
                Some(self.change(false, episode, since, now, what))
            }
            _ => None,
        }
    }

    fn change(&self, firing: bool, episode: u64, since: i64, at: Timestamp, what: String) -> Change {
        let since = Timestamp::from_millisecond(since).unwrap_or(at);
        let evidence = self.lines.iter().rev().cloned().collect();
        Change { firing, episode, again: false, since, at, what, evidence, wakes: true }
    }

    fn verdict(&self, rule: &HealthRule, now: i64) -> Verdict {
        let over = over_of(rule);
        let seconds = over / 1000;
        if let Some(limit) = &rule.errors {
            let (all, faults) = self.counted(rule, now);
            let many = limit.count.is_some_and(|count| faults > count);
            let enough = all >= limit.at_least.unwrap_or(20);
            let share = faults as f64 / all.max(1) as f64;
            let large = limit.share.is_some_and(|most| enough && share > most);
            return judged(many || large, format!("{faults} of {all} records within {seconds} s are faults"));
        }
        if let Some(limit) = &rule.lines {
            let (_, times) = self.counted(rule, now);
            return judged(times > limit.count, format!("the line came {times} times within {seconds} s"));
        }
        if let Some(new) = &rule.new_errors {
            let clear = millis(rule.clear_after.map_or(USUAL, units::Duration::std));
            let fresh = self.fresh.filter(|(_, times, at)| now - at < clear && *times >= new.count.unwrap_or(1));
            return match fresh {
                Some((_, times, _)) => {
                    Verdict::Bad(format!("a fault of a kind that was not seen before, {times} times"))
                }
                // That it is quiet is what it was waited for; another minute would say no more.
                None => Verdict::Well("the new fault has not come again".to_owned()),
            };
        }
        if let Some(silence) = rule.silence {
            let Some(last) = self.last else { return Verdict::Open };
            let quiet = now.saturating_sub(last);
            return judged(quiet >= millis(silence.std()), format!("nothing was heard for {} s", quiet / 1000));
        }
        self.number_verdict(rule, now)
    }

    fn number_verdict(&self, rule: &HealthRule, now: i64) -> Verdict {
        let Some(limit) = &rule.field else { return Verdict::Open };
        let over = over_of(rule);
        let number = match limit.quantile {
            None => self.latest.compared(limit, over, now),
            Some(quantile) => {
                let mut recent: Vec<f64> =
                    self.numbers.iter().filter(|(at, _)| now - at <= over).map(|(_, it)| *it).collect();
                recent.sort_by(f64::total_cmp);
                let enough = recent.len() as u64 >= limit.at_least.unwrap_or(20);
                let rank = (quantile * (recent.len().saturating_sub(1)) as f64).round() as usize;
                recent.get(rank).copied().filter(|_| enough)
            }
        };
        let Some(number) = number else { return Verdict::Open };
        let name = &limit.name;
        let words = match limit.quantile {
            Some(quantile) => format!("the {quantile} quantile of `{name}` is {number}"),
            None if limit.rise => format!("`{name}` rose by {number} within {} s", over / 1000),
            None => format!("`{name}` is {number}"),
        };
        let (bad, well) = match (limit.above, limit.below) {
            (Some(above), _) => (number > above, number <= limit.clear.unwrap_or(above)),
            (None, Some(below)) => (number < below, number >= limit.clear.unwrap_or(below)),
            (None, None) => (false, false),
        };
        match (bad, well) {
            (true, _) => Verdict::Bad(words),
            (false, true) => Verdict::Well(words),
            (false, false) => Verdict::Open,
        }
    }

    /// All records and those that count, within the rule's time.
    fn counted(&self, rule: &HealthRule, now: i64) -> (u64, u64) {
        let first = (now - over_of(rule)).div_euclid(part_of(rule));
        let within = self.parts.iter().filter(|(part, ..)| *part > first);
        within.fold((0, 0), |(all, counted), part| (all + part.1, counted + part.2))
    }
}

fn judged(is_bad: bool, what: String) -> Verdict {
    if is_bad { Verdict::Bad(what) } else { Verdict::Well(what) }
}

fn over_of(rule: &HealthRule) -> i64 {
    let over = rule.errors.as_ref().and_then(|limit| limit.over);
    let over = over.or_else(|| rule.field.as_ref()?.over).or_else(|| rule.lines.as_ref()?.over);
    millis(over.map_or(USUAL, units::Duration::std)).max(1000)
}

fn part_of(rule: &HealthRule) -> i64 {
    (over_of(rule) / PARTS).max(1)
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
