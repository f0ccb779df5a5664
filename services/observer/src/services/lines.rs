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
/// Rules that an alarm was told of before; once there are so many, another one is no news.
const KNOWN: usize = 32;
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
    /// It was told without a run, went on, and then started one.
    #[serde(default)]
    again: bool,
    /// Rules that it was told of before what is told now, and whether that started a run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    known: BTreeSet<String>,
    #[serde(default)]
    woke_before: bool,
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
    /// It is told though the alarm is on.
    is_news: bool,
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
        // A small thing that fails all the time hides no other.
        let is_news = self.alarms.get(&name_of(anomaly, quiet)).is_some_and(|alarm| !alarm.knows(rule));
        self.sign(Sign { anomaly, name: quiet, rule, wake, what, line, hold, lasts, is_news });
    }

    /// It says itself that it is well: what failed and was not told yet has passed.
    fn success(&mut self, at: i64) {
        let name = name_of(Anomaly::Failure, None);
        if let Some(alarm) = self.alarms.get_mut(&name) {
            if !alarm.told {
                meter::folded(alarm.times);
            }
            if alarm.told || !alarm.known.is_empty() {
                alarm.told = true;
                let long_since = at.saturating_sub(CLEAR_MS);
                alarm.well = Some(alarm.well.map_or(long_since, |well| well.min(long_since)));
            } else {
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
        self.sign(Sign { anomaly, name: Some(rule), rule, wake, what, line, hold: 0, lasts, is_news: false });
    }

    /// Takes what the pace of the service's lines tells, unless the watch says what life is.
    pub(super) fn learned(&mut self, watch: &CompiledWatch, learned: &Learned) {
        let anomaly = learned.anomaly;
        if anomaly == Anomaly::Heartbeat && watch.watch.says_what_life_is() {
            return;
        }
        let (wake, what, line) = (watch.wake(anomaly, LEARNED), Some(learned.what.clone()), learned.line.clone());
        let (name, rule, lasts) = (Some(LEARNED), LEARNED, learned.lasts);
        // The pace tells of a heartbeat that stays away beside another one only if that is another thing.
        let is_news = anomaly == Anomaly::Heartbeat;
        self.sign(Sign { anomaly, name, rule, wake, what, line, hold: 0, lasts, is_news });
    }

    fn sign(&mut self, sign: Sign<'_>) {
        let Sign { anomaly, name, rule, wake, what, line, hold, lasts, is_news } = sign;
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
            again: false,
            known: BTreeSet::new(),
            woke_before: false,
        });
        if is_news && alarm.told {
            alarm.begin_anew(at, line.seq, hold);
        }
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

    /// Takes what is late by now: only if all is heard that was said until then.
    pub(super) fn overdue(&mut self, watch: &CompiledWatch, pace: &Pace, now: Timestamp) {
        if let (Some(rules), Some(heard_from)) = (&watch.rules, pace.heard_from())
            && self.says == watch.says
        {
            for timely in self.timed.due(&rules.timed, now, Some(heard_from)) {
                self.timely(watch, &timely, None);
            }
        }
    }

    /// What has changed by now, by the names of the alarms.
    pub(super) fn check(&mut self, watch: &CompiledWatch, pace: &Pace, now: Timestamp) -> Vec<(String, Change)> {
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
                changes.push((name.clone(), alarm.change(now, alarm.what())));
                return true;
            }
            let is_on = match alarm.until {
                Some(until) => at < until,
                None if alarm.by.contains(LEARNED) => pace.misses_any(),
                None => alarm.by.iter().any(|rule| late.contains(rule)),
            };
            if is_on {
                alarm.well = None;
            } else {
                let well = *alarm.well.get_or_insert(alarm.until.unwrap_or(at));
                if at >= well.saturating_add(CLEAR_MS) {
                    let over = Change { firing: false, ..alarm.change(now, alarm.is_over(pace).to_owned()) };
                    changes.push((name.clone(), Change { wakes: alarm.woke || alarm.woke_before, ..over }));
                    return false;
                }
            }
            // What goes on when nobody looks at the last thing any more is worth a look after all.
            let quiet_until = self.quiet_until().unwrap_or(i64::MIN);
            let goes_on = is_on || alarm.until.is_some_and(|until| until >= quiet_until);
            if goes_on && alarm.wakes && !alarm.woke && self.may_wake(at) {
                (alarm.woke, alarm.again) = (true, true);
                changes.push((name.clone(), alarm.change(now, alarm.what())));
            }
            true
        });
        self.alarms = alarms;
        changes
    }

    /// Whether a run may be started now; if so, the next one waits.
    fn may_wake(&mut self, now: i64) -> bool {
        if self.quiet_until().is_some_and(|until| now < until) {
            return false;
        }
        if self.woken_at.is_some_and(|woken| now.saturating_sub(woken) >= CALM_MS) {
            self.wakes = 0;
        }
        self.wakes = self.wakes.saturating_add(1);
        self.woken_at = Some(now);
        true
    }

    /// Before this, no other run is started.
    fn quiet_until(&self) -> Option<i64> {
        let quiet = NEXT_WAKE_MS << self.wakes.saturating_sub(1).min(DOUBLED);
        self.woken_at.map(|woken| woken.saturating_add(quiet))
    }
}

impl Alarm {
    /// Whether it was told of this rule, or of so many that another one is no news.
    fn knows(&self, rule: &str) -> bool {
        self.known.len() >= KNOWN || self.known.contains(rule) || self.by.contains(rule)
    }

    /// It was told, and what comes now is another thing.
    fn begin_anew(&mut self, at: i64, episode: u64, hold: i64) {
        self.known.append(&mut self.by);
        self.woke_before |= self.woke;
        (self.told, self.woke, self.again) = (false, false, false);
        (self.since, self.episode, self.due) = (at, episode, at.saturating_add(hold));
        (self.times, self.what) = (0, None);
        self.lines.clear();
    }

    /// That it fires.
    fn change(&self, at: Timestamp, what: String) -> Change {
        let since = Timestamp::from_millisecond(self.since).unwrap_or(at);
        let (episode, again, evidence, wakes) = (self.episode, self.again, self.lines.clone(), self.woke);
        Change { firing: true, episode, again, since, at, what, evidence, wakes }
    }

    fn what(&self) -> String {
        if let Some(what) = &self.what {
            return what.clone();
        }
        let by: Vec<&str> = self.by.iter().map(String::as_str).collect();
        let times =
            if self.times == 1 { "A line that means".to_owned() } else { format!("{} lines that mean", self.times) };
        format!("{times} failure, by {}.", by.join(", "))
    }

    fn is_over(&self, pace: &Pace) -> &'static str {
        match self.anomaly {
            Anomaly::Heartbeat if self.by.contains(LEARNED) && pace.gave_up() => {
                "It has not come again, and is not waited for any more."
            }
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
