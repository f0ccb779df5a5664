//! What only time tells: how many lines within how long, stages that last too long, heartbeats that stay away.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kernel::{
    call::Evidence,
    observe::{Anomaly, Heartbeat, Machine, ObserveRule, Stage, Threshold},
};
use serde::{Deserialize, Serialize};

use crate::{records::Record, text};

/// So many repetitions of failures within a minute are a burst; the next one is told of after a while.
const BURST: u32 = 500;
const BURST_MS: i64 = 60_000;
const NEXT_BURST: i64 = 10;
/// Most bytes of a line that is shown.
const LINE_BYTES: usize = 160;

/// A line that counts for something timed, by the places of rule and stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TimedHit {
    /// It counts for a threshold, with its value.
    Threshold {
        /// Which.
        place: usize,
        /// The number in it.
        value: Option<f64>,
    },
    /// It enters a stage.
    Stage {
        /// Of which machine.
        machine: usize,
        /// Which.
        stage: usize,
    },
    /// It is a heartbeat.
    Beat {
        /// Which.
        place: usize,
    },
}

/// The rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimedRules {
    thresholds: Vec<Threshold>,
    machines: Vec<Machine>,
    heartbeats: Vec<Heartbeat>,
}

/// Something that time told. Fits into a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timely {
    pub(crate) anomaly: Anomaly,
    /// The rule's name.
    pub(crate) rule: String,
    /// When it had its reason, in milliseconds.
    pub(crate) at: i64,
    /// Where in the output it has its reason.
    pub(crate) offset: u64,
    pub(crate) line: u64,
    /// In words.
    pub(crate) changed: String,
    /// The line that it has its reason in.
    pub(crate) excerpt: String,
    /// It is told once in a call, wherever it has its reason.
    pub(crate) is_only: bool,
}

impl Timely {
    /// What is told once in a call.
    pub(crate) fn only(anomaly: Anomaly, rule: &str, mark: Mark, changed: String) -> Self {
        Self { is_only: true, ..timely(anomaly, rule.to_owned(), mark, changed) }
    }

    /// The line that it has its reason in.
    pub(crate) fn evidence(&self) -> Evidence {
        Evidence {
            excerpt: self.excerpt.clone(),
            offset: self.offset,
            line: self.line + 1,
            rule: self.rule.clone(),
            ..Evidence::default()
        }
    }
}

/// A line where something began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) at: i64,
    pub(crate) offset: u64,
    pub(crate) line: u64,
    text: String,
    /// It stands in the log of a service, by message and place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_logged: bool,
    /// What was to be told of it was told.
    #[serde(default)]
    told: bool,
}

/// A machine under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Under {
    stage: usize,
    since: Mark,
}

/// What is known so far. Fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Timed {
    /// When lines came that count, in milliseconds, by threshold.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    windows: BTreeMap<usize, VecDeque<i64>>,
    /// Until when a threshold that was told of is not told of again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    quiet: BTreeMap<usize, i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    machines: BTreeMap<usize, Under>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    beats: BTreeMap<usize, Mark>,
    /// Repetitions in the minute of this number, and the minute from which a burst is told of again.
    repeated: (i64, u32),
    next_burst: i64,
}

/// A line and where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) offset: u64,
    pub(crate) line: u64,
    pub(crate) text: &'a [u8],
    pub(crate) at: Timestamp,
    /// It stands in the log of a service: `offset` is its message there, and `line` its place in that.
    pub(crate) is_logged: bool,
}

impl Place<'_> {
    pub(crate) fn mark(&self) -> Mark {
        let visible = text::visible(self.text);
        let text = text::window(visible.trim(), 0, LINE_BYTES).into_owned();
        let (at, is_logged) = (self.at.as_millisecond(), self.is_logged);
        Mark { at, offset: self.offset, line: self.line, text, is_logged, told: false }
    }
}

impl Mark {
    /// In words: `line 7`.
    pub(crate) fn name(&self) -> String {
        let line = self.line.saturating_add(1);
        if self.is_logged { format!("line {line} of message {}", self.offset) } else { format!("line {line}") }
    }
}

impl TimedRules {
    pub(crate) fn new(rule: &ObserveRule) -> Self {
        let (thresholds, machines) = (rule.thresholds.clone(), rule.machines.clone());
        Self { thresholds, machines, heartbeats: rule.heartbeats.clone() }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.thresholds.is_empty() && self.machines.is_empty() && self.heartbeats.is_empty()
    }

    /// Whether the agent says which heartbeats there are.
    pub(crate) const fn has_heartbeats(&self) -> bool {
        !self.heartbeats.is_empty()
    }

    /// Whether a threshold is about a field.
    pub(crate) fn reads_records(&self) -> bool {
        self.thresholds.iter().any(|threshold| threshold.path.is_some())
    }

    /// The thresholds that a record counts for.
    pub(crate) fn of_record<'r>(&'r self, record: &'r Record) -> impl Iterator<Item = TimedHit> + 'r {
        self.thresholds.iter().enumerate().filter_map(|(place, threshold)| {
            let value = record.number(threshold.path.as_deref()?)?;
            Some(TimedHit::Threshold { place, value: Some(value) })
        })
    }
}

impl Timed {
    /// Takes a line that counts.
    pub(crate) fn hit(&mut self, rules: &TimedRules, hit: TimedHit, place: Place<'_>) -> Option<Timely> {
        match hit {
            TimedHit::Threshold { place: which, value } => {
                let threshold = rules.thresholds.get(which)?;
                counts(threshold, value).then(|| self.count(threshold, which, place)).flatten()
            }
            TimedHit::Stage { machine, stage } => {
                self.enter(rules.machines.get(machine)?, machine, stage, place);
                None
            }
            TimedHit::Beat { place: which } => {
                self.beats.insert(which, place.mark());
                None
            }
        }
    }

    fn count(&mut self, threshold: &Threshold, which: usize, place: Place<'_>) -> Option<Timely> {
        let now = place.at.as_millisecond();
        if self.quiet.get(&which).is_some_and(|until| now < *until) {
            return None;
        }
        let within = i64::try_from(threshold.within.as_millis()).unwrap_or(i64::MAX);
        let window = self.windows.entry(which).or_default();
        window.push_back(now);
        let most = usize::try_from(threshold.count.max(1)).unwrap_or(usize::MAX);
        while window.len() > most || window.front().is_some_and(|first| now.saturating_sub(*first) > within) {
            window.pop_front();
        }
        if window.len() < most {
            return None;
        }
        window.clear();
        self.quiet.insert(which, now.saturating_add(within));
        let what = match (threshold.above, threshold.below) {
            (Some(above), _) => format!(" above {above}"),
            (None, Some(below)) => format!(" below {below}"),
            (None, None) => String::new(),
        };
        let times = if most == 1 { "once".to_owned() } else { format!("{most} times within {}", threshold.within) };
        let mark = place.mark();
        let changed = format!("Threshold `{}` was passed: {times}{what}, at {}.", threshold.id, mark.name());
        Some(timely(Anomaly::Threshold, threshold.id.clone(), mark, changed))
    }

    /// Counts a failure that was seen before; one of very many within a minute is told.
    pub(crate) fn repeated(&mut self, rule: &str, place: Place<'_>) -> Option<Timely> {
        let minute = place.at.as_millisecond().div_euclid(BURST_MS);
        if self.repeated.0 != minute {
            self.repeated = (minute, 0);
        }
        self.repeated.1 = self.repeated.1.saturating_add(1);
        if self.repeated.1 != BURST || minute < self.next_burst {
            return None;
        }
        self.next_burst = minute.saturating_add(NEXT_BURST);
        let mark = place.mark();
        let changed =
            format!("Failures that were seen before came {BURST} times within a minute, up to {}.", mark.name());
        Some(timely(Anomaly::Burst, rule.to_owned(), mark, changed))
    }

    fn enter(&mut self, machine: &Machine, which: usize, stage: usize, place: Place<'_>) {
        let is_last = stage + 1 == machine.stages.len();
        let goes_on = match self.machines.get(&which) {
            // The first stage begins anew; a line of a stage that is over, or under way, changes nothing.
            Some(under) => stage == 0 || stage > under.stage,
            None => !is_last,
        };
        if !goes_on {
            return;
        }
        if is_last {
            self.machines.remove(&which);
        } else {
            self.machines.insert(which, Under { stage, since: place.mark() });
        }
    }

    /// What time has told by now. What was said before `heard_from` may not all have been heard: until then nothing was late.
    pub(crate) fn due(&mut self, rules: &TimedRules, now: Timestamp, heard_from: Option<Timestamp>) -> Vec<Timely> {
        let (now, heard_from) = (now.as_millisecond(), heard_from.map_or(i64::MIN, Timestamp::as_millisecond));
        let mut told = Vec::new();
        for (which, under) in &mut self.machines {
            let Some(machine) = rules.machines.get(*which) else { continue };
            let Some(stage) = machine.stages.get(under.stage) else { continue };
            let Some(within) = stage.within.filter(|_| !under.since.told) else { continue };
            if is_over(now, under.since.at.max(heard_from), within.std()) {
                under.since.told = true;
                let next = machine.stages.get(under.stage + 1).map_or("its end", |next| next.name.as_str());
                let changed = format!(
                    "`{}` has been at `{}` for more than {within}, since {}; `{next}` has not come.",
                    machine.id,
                    stage.name,
                    under.since.name()
                );
                told.push(timely(Anomaly::Stage, of_stage(machine, stage), under.since.clone(), changed));
            }
        }
        for (which, last) in &mut self.beats {
            let Some(heartbeat) = rules.heartbeats.get(*which) else { continue };
            if !last.told && is_over(now, last.at.max(heard_from), heartbeat.every.std()) {
                last.told = true;
                let changed = format!(
                    "Heartbeat `{}` stays away: the last was at {}, more than {} ago.",
                    heartbeat.id,
                    last.name(),
                    heartbeat.every
                );
                told.push(timely(Anomaly::Heartbeat, heartbeat.id.clone(), last.clone(), changed));
            }
        }
        told
    }

    /// The rules by which a stage or a heartbeat is late, and was told of.
    pub(crate) fn late<'t>(&'t self, rules: &'t TimedRules) -> impl Iterator<Item = String> + 't {
        let stages = self.machines.iter().filter(|(_, under)| under.since.told).filter_map(|(which, under)| {
            let machine = rules.machines.get(*which)?;
            Some(of_stage(machine, machine.stages.get(under.stage)?))
        });
        let beats = self.beats.iter().filter(|(_, last)| last.told);
        stages.chain(beats.filter_map(|(which, _)| Some(rules.heartbeats.get(*which)?.id.clone())))
    }

    /// Procedures that have not come to their end, in words.
    pub(crate) fn unfinished(&self, rules: &TimedRules) -> Option<String> {
        let (which, under) = self.machines.iter().next()?;
        let machine = rules.machines.get(*which)?;
        let stage = machine.stages.get(under.stage)?;
        Some(format!("`{}` did not come further than `{}`", machine.id, stage.name))
    }
}

fn counts(threshold: &Threshold, value: Option<f64>) -> bool {
    let above = threshold.above.is_none_or(|above| value.is_some_and(|value| value > above));
    let below = threshold.below.is_none_or(|below| value.is_some_and(|value| value < below));
    above && below
}

fn timely(anomaly: Anomaly, rule: String, mark: Mark, changed: String) -> Timely {
    let Mark { at, offset, line, text: excerpt, .. } = mark;
    Timely { anomaly, rule, at, offset, line, changed, excerpt, is_only: false }
}

/// The name of a rule about a stage.
fn of_stage(machine: &Machine, stage: &Stage) -> String {
    format!("{}.{}", machine.id, stage.name)
}

fn is_over(now: i64, since: i64, span: Duration) -> bool {
    let span = SignedDuration::try_from(span).map_or(i128::MAX, |span| span.as_millis());
    i128::from(now.saturating_sub(since)) > span
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(yaml: &str) -> TimedRules {
        TimedRules::new(&serde_saphyr::from_str(yaml).unwrap())
    }

    fn place(seconds: i64, text: &str) -> Place<'_> {
        let at = Timestamp::from_second(seconds).unwrap();
        Place { offset: seconds as u64, line: seconds as u64, text: text.as_bytes(), at, is_logged: false }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_threshold_is_told_once_for_its_time() {
        let rules = rules("thresholds: [{ id: retries, match: retry, count: 3, within: 10s }]");
        let mut timed = Timed::default();
        let hit = TimedHit::Threshold { place: 0, value: None };
        let told: Vec<i64> = [0, 9, 18, 20, 21, 22, 23, 40, 41, 42]
            .into_iter()
            .filter(|second| timed.hit(&rules, hit, place(*second, "retry")).is_some())
            .collect();
        assert_eq!(told, [21, 42]);
    }

    #[test]
    fn only_values_beyond_the_bound_count() {
        let rules = rules("thresholds: [{ id: slow, path: took, above: 100, count: 2, within: 1m }]");
        let mut timed = Timed::default();
        let mut hit = |second, value| {
            timed.hit(&rules, TimedHit::Threshold { place: 0, value: Some(value) }, place(second, "")).is_some()
        };
        assert_eq!([hit(1, 101.0), hit(2, 100.0), hit(3, 500.0)], [false, false, true]);
        let record = Record::read(br#"{"took":120}"#).unwrap();
        assert_eq!(rules.of_record(&record).count(), 1);
    }

    #[test]
    fn a_stage_that_lasts_too_long_is_told_and_an_end_in_time_is_not() {
        let rules = rules(
            "machines: [{ id: deploy, stages: [{ name: begun, enter: a, within: 60s }, { name: rolling, enter: b, within: 5m }, { name: done, enter: c }] }]",
        );
        let mut timed = Timed::default();
        let stage = |stage| TimedHit::Stage { machine: 0, stage };
        timed.hit(&rules, stage(2), place(1, "c"));
        assert_eq!(timed, Timed::default(), "an end without a beginning");
        timed.hit(&rules, stage(0), place(10, "a"));
        assert!(timed.due(&rules, at(70), None).is_empty());
        let told = timed.due(&rules, at(71), None);
        assert_eq!(timed.late(&rules).collect::<Vec<_>>(), ["deploy.begun"]);
        assert_eq!((told.len(), told[0].offset, told[0].rule.as_str()), (1, 10, "deploy.begun"));
        assert!(timed.due(&rules, at(500), None).is_empty(), "told once");
        timed.hit(&rules, stage(1), place(500, "b"));
        assert_eq!(timed.late(&rules).next(), None, "it goes on");
        assert!(timed.unfinished(&rules).unwrap().contains("rolling"));
        let stored = serde_json::to_string(&timed).unwrap();
        let mut timed: Timed = serde_json::from_str(&stored).unwrap();
        timed.hit(&rules, stage(2), place(600, "c"));
        assert!(timed.due(&rules, at(5000), None).is_empty() && timed.unfinished(&rules).is_none());
    }

    #[test]
    fn a_burst_is_told_once_for_a_while() {
        let mut timed = Timed::default();
        let mut told = Vec::new();
        for line in 0..20_000_i64 {
            let second = if line < 2000 { line / 100 } else { line };
            told.extend(timed.repeated("generic.fatal", place(second, "fatal: x")).map(|timely| timely.offset));
        }
        assert_eq!(told, [4], "at the 500th of the first minute, and no more while they come one a second");
    }

    #[test]
    fn a_heartbeat_that_stays_away_is_told_until_it_comes_again() {
        let rules = rules("heartbeats: [{ id: alive, match: alive, every: 30s }]");
        let mut timed = Timed::default();
        assert!(timed.due(&rules, at(1000), None).is_empty(), "it never began");
        let beat = TimedHit::Beat { place: 0 };
        timed.hit(&rules, beat, place(0, "alive"));
        timed.hit(&rules, beat, place(25, "alive"));
        assert!(timed.due(&rules, at(55), None).is_empty());
        assert_eq!(timed.due(&rules, at(56), None).len(), 1);
        assert!(timed.due(&rules, at(99), None).is_empty());
        timed.hit(&rules, beat, place(100, "alive"));
        assert!(timed.due(&rules, at(131), Some(at(120))).is_empty(), "nobody heard what was said till then");
        assert_eq!(timed.due(&rules, at(151), Some(at(120))).len(), 1);
    }
}
