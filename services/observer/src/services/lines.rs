//! What an agent says about the lines of a service (`observe` in `watch`), and what their pace tells: alarms, each told once, and
//! once more when it is over.
//!
//! What wakes starts a run: a failure after it has settled with what else came, the rest at once. What comes in the next
//! minutes is told too, and starts no other run: somebody looks at it already. Everything goes by the time of the bus, and has a
//! name that follows from what was read, so that whoever reads it again tells the same.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kernel::observe::{Anomaly, WakeWhen};
use serde::{Deserialize, Serialize};
use signals::Record;

use super::{Place, evidence::Line, health::Change, pace::Learned, pace::Pace, watches::CompiledWatch};
use crate::{
    beats::LEARNED,
    meter, records,
    rules::Rules,
    text,
    timed::{self, Timed, Timely},
};

/// Alarms of one watch and service at a time; what is beyond is counted.
const ALARMS: usize = 64;
/// Lines that are shown with one, and rules that are named: the first ones, and of lines also the last.
const SHOWN: usize = 4;
const NAMED: usize = 6;
/// How long it must have been well before an alarm is over, as for rules of `health`.
const CLEAR_MS: i64 = 60_000;
/// After a run was started, the next one waits so long at least, and each time twice as long.
const NEXT_WAKE_MS: i64 = 300_000;
const DOUBLED: u32 = 4;
/// After so long without one that begins anew.
const CALM_MS: i64 = 4 * 3_600_000;

/// What is known of a service's lines, by one watch. Bounded, and fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Lines {
    /// What the watch said when this was written.
    says: u64,
    timed: Timed,
    /// By name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    alarms: BTreeMap<String, Alarm>,
    /// When a run was started last, in milliseconds, and how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    woken_at: Option<i64>,
    wakes: u32,
}

/// Something that is not well. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Alarm {
    anomaly: Anomaly,
    /// When it began, and with which message.
    since: i64,
    episode: u64,
    /// When it is told.
    due: i64,
    /// How long it lasts; none: until that shows.
    until: Option<i64>,
    /// Since when it is well again.
    #[serde(default)]
    well: Option<i64>,
    /// By which rules, and how often.
    by: BTreeSet<String>,
    times: u64,
    /// In words, if the rules alone don't say it.
    what: Option<String>,
    lines: Vec<Line>,
    /// Whether it may start a run, whether it was told, and whether it did.
    wakes: bool,
    told: bool,
    woke: bool,
}

/// A reason for an alarm.
struct Sign<'a> {
    anomaly: Anomaly,
    /// What is behind the kind in its name.
    name: Option<&'a str>,
    rule: &'a str,
    wake: WakeWhen,
    what: Option<String>,
    line: Line,
    /// Milliseconds that it waits for others, and that it lasts.
    hold: i64,
    lasts: Option<i64>,
}

impl Lines {
    /// Takes a record.
    pub(super) fn record(&mut self, watch: &CompiledWatch, record: &Record, place: Place) {
        let Some(rules) = &watch.rules else { return };
        if self.says != watch.says {
            // Windows are known by their places in the file, which has changed.
            (self.says, self.timed) = (watch.says, Timed::default());
        }
        let body = text::plain(record.body.as_bytes());
        if !rules.can_hit(&body) && !rules.reads_records() {
            return;
        }
        let hits = rules.look_with(&body, rules.always(), || Some(records::Record::of_log(record)));
        let line = || Line::new(record, place.seq, place.index, place.at);
        match hits.failure {
            // What packs know and would wake nobody for is no news of a service.
            Some(failure) if failure.wake != WakeWhen::End => {
                let rule = rules.name(failure.rule).to_owned();
                self.failure(rules, &rule, failure.wake, line());
            }
            Some(_) => {}
            None if hits.success => self.success(place.at.as_millisecond()),
            None => {}
        }
        for hit in hits.timed {
            let (offset, index, at) = (place.seq, u64::from(place.index), place.at);
            let place = timed::Place { offset, line: index, text: &body, at, is_logged: true };
            if let Some(timely) = self.timed.hit(&rules.timed, hit, place) {
                let within = watch.within(&timely.rule);
                self.timely(watch, &timely, Some(within.saturating_mul(2)));
            }
        }
    }

    fn failure(&mut self, rules: &Rules, rule: &str, wake: WakeWhen, line: Line) {
        let quiet = (wake == WakeWhen::Never).then_some("quiet");
        let settle = i64::try_from(rules.settle.as_millis()).unwrap_or(i64::MAX);
        let hold = if wake == WakeWhen::Now { 0 } else { settle };
        let (anomaly, what, lasts) = (Anomaly::Failure, None, Some(0));
        self.sign(Sign { anomaly, name: quiet, rule, wake, what, line, hold, lasts });
    }

    /// It says itself that it is well: what failed and was not told yet has passed.
    fn success(&mut self, at: i64) {
        let name = name_of(Anomaly::Failure, None);
        if let Some(alarm) = self.alarms.get_mut(&name) {
            if alarm.told {
                let long_since = at.saturating_sub(CLEAR_MS);
                alarm.well = Some(alarm.well.map_or(long_since, |well| well.min(long_since)));
            } else {
                meter::folded(alarm.times);
                self.alarms.remove(&name);
            }
        }
    }

    fn timely(&mut self, watch: &CompiledWatch, timely: &Timely, lasts: Option<i64>) {
        let line = Line {
            seq: timely.offset,
            index: u32::try_from(timely.line).unwrap_or(u32::MAX),
            at: Timestamp::from_millisecond(timely.at).unwrap_or(Timestamp::MAX),
            time: None,
            text: timely.excerpt.clone(),
        };
        let (anomaly, rule) = (timely.anomaly, timely.rule.as_str());
        let (wake, what) = (watch.wake(anomaly, rule), Some(timely.changed.clone()));
        self.sign(Sign { anomaly, name: Some(rule), rule, wake, what, line, hold: 0, lasts });
    }

    /// Takes what the pace of the service's lines tells, unless the watch says what life is.
    pub(super) fn learned(&mut self, watch: &CompiledWatch, learned: &Learned) {
        let anomaly = learned.anomaly;
        if anomaly == Anomaly::Heartbeat && watch.watch.says_what_life_is() {
            return;
        }
        let (wake, what, line) = (watch.wake(anomaly, LEARNED), Some(learned.what.clone()), learned.line.clone());
        let (name, rule, lasts) = (Some(LEARNED), LEARNED, learned.lasts);
        self.sign(Sign { anomaly, name, rule, wake, what, line, hold: 0, lasts });
    }

    fn sign(&mut self, sign: Sign<'_>) {
        let Sign { anomaly, name, rule, wake, what, line, hold, lasts } = sign;
        let at = line.at.as_millisecond();
        let until = lasts.map(|lasts| at.saturating_add(lasts));
        let name = name_of(anomaly, name);
        if !self.alarms.contains_key(&name) && self.alarms.len() >= ALARMS {
            return meter::folded(1);
        }
        let alarm = self.alarms.entry(name).or_insert_with(|| Alarm {
            anomaly,
            since: at,
            episode: line.seq,
            due: at.saturating_add(hold),
            until,
            well: None,
            by: BTreeSet::new(),
            times: 0,
            what: None,
            lines: Vec::new(),
            wakes: matches!(wake, WakeWhen::Now | WakeWhen::Settled),
            told: false,
            woke: false,
        });
        if alarm.times > 0 {
            meter::folded(1);
        }
        alarm.times += 1;
        alarm.due = alarm.due.min(at.saturating_add(hold));
        alarm.until = alarm.until.max(until);
        alarm.well = None;
        alarm.what = alarm.what.take().or(what);
        if alarm.by.len() < NAMED {
            alarm.by.insert(rule.to_owned());
        }
        if alarm.lines.len() == SHOWN {
            alarm.lines.remove(1);
        }
        alarm.lines.push(line);
    }

    /// What has changed by now, by the names of the alarms.
    pub(super) fn check(&mut self, watch: &CompiledWatch, pace: &Pace, now: Timestamp) -> Vec<(String, Change)> {
        if let (Some(rules), Some(heard_from)) = (&watch.rules, pace.heard_from())
            && self.says == watch.says
        {
            for timely in self.timed.due(&rules.timed, now, Some(heard_from)) {
                self.timely(watch, &timely, None);
            }
        }
        let late: BTreeSet<String> = watch.rules.iter().flat_map(|rules| self.timed.late(&rules.timed)).collect();
        let at = now.as_millisecond();
        let mut changes = Vec::new();
        let mut alarms = std::mem::take(&mut self.alarms);
        alarms.retain(|name, alarm| {
            if !alarm.told {
                if at < alarm.due {
                    return true;
                }
                alarm.told = true;
                alarm.woke = alarm.wakes && self.may_wake(at);
                changes.push((name.clone(), alarm.change(true, now)));
                return true;
            }
            let is_on = match alarm.until {
                Some(until) => at < until,
                None if alarm.by.contains(LEARNED) => pace.misses_any(),
                None => alarm.by.iter().any(|rule| late.contains(rule)),
            };
            if is_on {
                alarm.well = None;
                return true;
            }
            let well = *alarm.well.get_or_insert(alarm.until.unwrap_or(at));
            if at < well.saturating_add(CLEAR_MS) {
                return true;
            }
            changes.push((name.clone(), alarm.change(false, now)));
            false
        });
        self.alarms = alarms;
        changes
    }

    /// Whether a run may be started now; if so, the next one waits.
    fn may_wake(&mut self, now: i64) -> bool {
        if let Some(woken) = self.woken_at {
            let since = now.saturating_sub(woken);
            if since >= CALM_MS {
                self.wakes = 0;
            } else if since < NEXT_WAKE_MS << self.wakes.saturating_sub(1).min(DOUBLED) {
                return false;
            }
        }
        self.wakes = self.wakes.saturating_add(1);
        self.woken_at = Some(now);
        true
    }
}

impl Alarm {
    fn change(&self, firing: bool, at: Timestamp) -> Change {
        let since = Timestamp::from_millisecond(self.since).unwrap_or(at);
        let what = if firing { self.what() } else { self.is_over().to_owned() };
        Change { firing, episode: self.episode, since, at, what, evidence: self.lines.clone(), wakes: self.woke }
    }

    fn what(&self) -> String {
        if let Some(what) = &self.what {
            return what.clone();
        }
        let by: Vec<&str> = self.by.iter().map(String::as_str).collect();
        let times = if self.times == 1 { "A line".to_owned() } else { format!("{} lines", self.times) };
        format!("{times} that mean failure, by {}.", by.join(", "))
    }

    const fn is_over(&self) -> &'static str {
        match self.anomaly {
            Anomaly::Failure => "No further line means failure.",
            Anomaly::Threshold => "The threshold was not passed again.",
            Anomaly::Stage => "It went on.",
            Anomaly::Heartbeat => "It is not missed any more.",
            Anomaly::Burst | Anomaly::Silence | Anomaly::Contradiction => "They come as usual again.",
        }
    }
}

/// The name of an alarm: rules of `health` are called otherwise.
fn name_of(anomaly: Anomaly, rule: Option<&str>) -> String {
    let kind = match anomaly {
        Anomaly::Failure => "failure",
        Anomaly::Threshold => "threshold",
        Anomaly::Stage => "stage",
        Anomaly::Heartbeat => "heartbeat",
        Anomaly::Silence => "silence",
        Anomaly::Contradiction => "contradiction",
        Anomaly::Burst => "burst",
    };
    rule.map_or_else(|| format!("observe.{kind}"), |rule| format!("observe.{kind}.{rule}"))
}

#[cfg(test)]
mod tests;
