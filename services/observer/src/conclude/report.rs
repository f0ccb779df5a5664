//! What is told, in words: what changed, whether a decision is needed, the least that shows it, what is missing. Never what
//! to do. All of it together is small.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kernel::{
    call::{Evidence, Exit, Observation},
    observe::{Anomaly, WakeWhen},
};

use super::{Frame, Report, Standing, Watch};
use crate::{
    evidence::{Summary, cost},
    rules::{Limits, Rules},
    templates::Miner,
    timed::Timely,
};

/// Places that are named.
const PLACES: usize = 4;
/// Most bytes of a place.
const PLACE_BYTES: usize = 120;
/// Least bytes of evidence, however much else there is to say.
const EVIDENCE_AT_LEAST: usize = 512;
/// Things that time told and that wait for the end to be shown; further ones are only counted.
const AT_END: usize = 4;

impl Watch {
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

    pub(super) fn progress(&mut self, since: u64) -> Report {
        let percent = self.percent.map(|percent| format!(", {percent}%")).unwrap_or_default();
        let phase = self.phase.as_deref().unwrap_or_default();
        let changed = format!("Phase `{phase}`{percent} after {} lines.", self.counts.lines);
        self.counts.suppressed += 1;
        Report::Observe { key: self.key("phase", since), observation: self.observation("progress", changed) }
    }

    pub(super) fn failure(&mut self, rules: &Rules, offset: u64) -> Report {
        let summary = self.collector.summary();
        let changed = format!("{} It still runs, {} lines so far.", shows(summary), self.counts.lines);
        let decision = format!("the output of `{}` shows a failure while it still runs", self.tool);
        let mut observation = Observation { decision: Some(decision), ..self.observation("failure", changed) };
        self.add_evidence(rules, &mut observation);
        Report::Observe { key: self.key("failure", offset), observation }
    }

    pub(super) fn silence(&mut self, rules: &Rules, silence: Duration) -> Report {
        let seconds = silence.as_secs();
        let changed = match self.counts.lines {
            0 => format!("No output at all for {seconds} s."),
            lines => format!("No output for {seconds} s, after {lines} lines."),
        };
        let wakes = !matches!(rules.wake(Anomaly::Silence, ""), WakeWhen::Never | WakeWhen::End);
        let observation = Observation {
            anomaly: true,
            decision: wakes.then(|| format!("`{}` has been silent for {seconds} s and still runs", self.tool)),
            evidence: self.collector.tail(rules.limits.packet_bytes / 2, "silence").into_iter().collect(),
            ..self.observation("silence", changed)
        };
        Report::Observe { key: self.key("silence", self.next_offset()), observation }
    }

    /// What time told; nothing now, if the agent wants to hear of it with the end.
    pub(super) fn timely(&mut self, rules: &Rules, timely: &Timely, now: Timestamp) -> Option<Report> {
        if rules.wake(timely.anomaly, &timely.rule) == WakeWhen::End {
            self.show_at_end(timely.clone());
            return None;
        }
        let (phase, why) = match timely.anomaly {
            Anomaly::Stage => ("stage", "a stage lasts longer than it may"),
            Anomaly::Heartbeat => ("heartbeat", "a heartbeat stays away"),
            Anomaly::Burst if timely.is_only => ("burst", "lines of a kind come far more often than before"),
            Anomaly::Burst => ("burst", "failures come again and again"),
            _ => ("threshold", "a threshold was passed"),
        };
        let wakes = self.may_wake(rules, timely.anomaly, &timely.rule, now);
        let observation = Observation {
            anomaly: true,
            decision: wakes.then(|| format!("`{}`: {why}", self.tool)),
            evidence: vec![timely.evidence()],
            ..self.observation(phase, timely.changed.clone())
        };
        let kind = format!("{phase}/{}", timely.rule);
        let key = if timely.is_only { format!("obs/{}/{kind}", self.call_id) } else { self.key(&kind, timely.offset) };
        Some(Report::Observe { key, observation })
    }

    pub(super) fn show_at_end(&mut self, timely: Timely) {
        if self.at_end.len() < AT_END {
            self.at_end.push(timely);
        } else {
            self.counts.suppressed += 1;
        }
    }

    /// `frame`: the last one.
    pub(super) fn conclude(&mut self, rules: &Rules, miner: &mut Miner, exit: &Exit, frame: &Frame<'_>) -> Report {
        self.ended = true;
        self.held = None;
        let lost = exit.bytes.saturating_sub(self.next_offset());
        let duration_ms = millis(frame.read_at.duration_since(self.started_at));
        let told = exit.code.filter(|_| exit.reason == "exited").and_then(|code| rules.exit_means(code));
        let succeeded = told.unwrap_or_else(|| exit.is_success());
        let changed = ended(exit, self.counts.lines, duration_ms);
        let mut observation = self.observation(if succeeded { "completed" } else { "failed" }, changed);
        observation.missing = self.missing(lost);
        observation.counts.gap_bytes += lost;
        observation.anomaly = !matches!(exit.reason.as_str(), "exited" | "cancelled") || !self.at_end.is_empty();
        let at_end = std::mem::take(&mut self.at_end);
        for timely in &at_end {
            observation.changed.push(' ');
            observation.changed.push_str(&timely.changed);
        }
        let doubt = if succeeded {
            self.conclude_success(rules, miner, &mut observation)
        } else {
            self.conclude_failure(rules, miner, exit, frame.at, &mut observation);
            None
        };
        add_as_far_as_fits(rules.limits, &mut observation, at_end.iter().map(Timely::evidence));
        self.counts = observation.counts;
        let key = format!("obs/{}/exit", self.call_id);
        Report::Conclude { key, exit: exit.clone(), succeeded, observation, duration_ms, doubt, asked: None }
    }

    /// A status of success outweighs what merely looks like an error. A program's own last word, and what the agent itself
    /// calls a failure, contradict it. In between the rules are unsure: what else may have to be told is given back.
    fn conclude_success(
        &mut self,
        rules: &Rules,
        miner: &mut Miner,
        observation: &mut Observation,
    ) -> Option<Box<Observation>> {
        let summary = self.collector.summary();
        let contradicted = self.standing == Standing::Verdict || self.collector.has_own();
        if contradicted && summary.failures > 0 {
            observation.anomaly = true;
            let wakes = !matches!(rules.wake(Anomaly::Contradiction, ""), WakeWhen::Never);
            observation.decision =
                wakes.then(|| format!("`{}` says that it succeeded, but its output shows a failure", self.tool));
            observation.changed.push(' ');
            observation.changed.push_str(&shows(summary));
            self.add_evidence(rules, observation);
            return None;
        }
        if let Some(unfinished) = self.timed.unfinished(&rules.timed) {
            observation.changed.push_str(&format!(" {unfinished}."));
        }
        let doubt = self.doubt(rules, summary, observation);
        if doubt.is_none() {
            miner.learn(self.seen.ids());
        }
        // Where nobody is asked, whoever hears of the end is told at least what they could look at.
        if !self.is_advised() && self.is_unsure(summary) {
            observation.changed.push(' ');
            observation.changed.push_str(&shows(summary));
        }
        observation.counts.suppressed += summary.failures;
        if let Some(line) = &self.success {
            observation.changed.push_str(&format!(" Its last word on that: {line}"));
        }
        doubt
    }

    fn conclude_failure(
        &mut self,
        rules: &Rules,
        miner: &Miner,
        exit: &Exit,
        at: Timestamp,
        observation: &mut Observation,
    ) {
        if exit.reason == "cancelled" {
            observation.phase = "cancelled".to_owned();
            return;
        }
        observation.decision = Some(format!("`{}` failed", self.tool));
        let summary = self.collector.summary();
        if summary.failures > 0 {
            observation.changed.push(' ');
            observation.changed.push_str(&shows(summary));
        } else if self.collector.found_any() {
            observation.changed.push_str(" Its output shows no failure beyond those told before.");
        } else {
            observation.changed.push_str(" No rule found a failure in its output.");
        }
        if let Some(unfinished) = self.timed.unfinished(&rules.timed) {
            observation.changed.push_str(&format!(" {unfinished}."));
        }
        if self.novel > 0 {
            let (novel, learned) = (self.novel, miner.learned());
            observation.changed.push_str(&format!(
                " {novel} kinds of lines are new, beside the {learned} times before that it ended well."
            ));
        }
        let away = self.beats.away(at).filter(|_| !rules.says_what_life_is());
        if let Some(away) = &away {
            observation.changed.push(' ');
            observation.changed.push_str(&away.changed);
        }
        self.add_evidence(rules, observation);
        if observation.evidence.is_empty() {
            observation.changed.push_str(" These are its last lines.");
            observation.evidence.extend(self.collector.tail(rules.limits.packet_bytes / 2, "tail"));
        }
        add_as_far_as_fits(rules.limits, observation, away.iter().map(Timely::evidence));
    }

    /// Fills what is left of the packet with evidence, and names the places in files that it speaks of.
    pub(super) fn add_evidence(&mut self, rules: &Rules, observation: &mut Observation) {
        let left = room(rules.limits, observation);
        let mut evidence = self.collector.take(left);
        let places = places(rules, &evidence);
        if !places.is_empty() {
            let named = format!(" It names {}.", places.join(", "));
            while evidence.len() > 1 && evidence.iter().map(cost).sum::<usize>() + named.len() > left {
                evidence.pop();
            }
            observation.changed.push_str(&named);
        }
        observation.evidence = evidence;
    }
}

/// What the packet has room for beside what it says already.
fn room(limits: Limits, observation: &Observation) -> usize {
    let words = |text: &Option<String>| text.as_ref().map_or(0, |text| text.len() + 10);
    let said = observation.changed.len() + words(&observation.decision) + words(&observation.missing);
    limits.packet_bytes.saturating_sub(said).max(EVIDENCE_AT_LEAST)
}

/// Adds evidence for which the packet still has room.
fn add_as_far_as_fits(limits: Limits, observation: &mut Observation, evidence: impl Iterator<Item = Evidence>) {
    let mut left = room(limits, observation).saturating_sub(observation.evidence.iter().map(cost).sum());
    for one in evidence.filter(|one| !one.excerpt.is_empty()) {
        if cost(&one) <= left {
            left -= cost(&one);
            observation.evidence.push(one);
        }
    }
}

/// Where the evidence says that something is wrong, each place once.
fn places(rules: &Rules, evidence: &[Evidence]) -> Vec<String> {
    let mut places: Vec<String> = Vec::new();
    for excerpt in evidence {
        for found in rules.finder.find(excerpt.excerpt.lines().map(behind_prefix)) {
            let place = found.place();
            if found.line.is_some() && place.len() <= PLACE_BYTES && !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places.truncate(PLACES);
    places
}

fn behind_prefix(line: &str) -> &str {
    line.get(crate::prefix::len(line.as_bytes())..).unwrap_or(line)
}

pub(super) fn shows(summary: Summary) -> String {
    match summary.failures {
        0 | 1 => format!("Its output shows a failure, at line {}.", summary.first_line),
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

fn millis(span: SignedDuration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(0)
}
