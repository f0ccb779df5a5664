//! Compiling rules.

use std::time::Duration;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind};
use kernel::observe::{Anomaly, Meaning, ObserveRule, WakeWhen};
use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::{Active, CONSEQUENCE_SCORE, Edge, Kind, Limits, OWN_SCORE, PackInfo, Rule, Rules, SectionRule, Set};
use crate::{
    findings::Finder,
    literals,
    packs::{BASE, Pack, PackRule, Packs},
    records::RecordRules,
    timed::TimedRules,
};

/// How long a failure waits for more evidence unless the agent says otherwise.
const SETTLE: Duration = Duration::from_secs(5);
/// Most memory that one pattern may compile to, and all of them together.
const PATTERN_BYTES: usize = 1 << 20;
const SET_BYTES: usize = 64 << 20;
/// Most patterns of one agent for one tool; those beyond are named and left out.
const MAX_PATTERNS: usize = 1200;
/// Packs that listen whatever the program is: they know what is common to many.
const ALWAYS: [&str; 5] = [BASE, "ci", "traces", "lint", "git"];
/// The start of a line, behind what systems put in front of it.
const START: &str = r"^\s*";

/// Several rules for the same output as one.
pub(super) fn merge<'a>(rules: impl Iterator<Item = &'a ObserveRule>) -> ObserveRule {
    rules.fold(ObserveRule::default(), |mut all, rule| {
        let rule = rule.clone();
        all.packs.extend(rule.packs);
        all.failure.extend(rule.failure);
        all.success.extend(rule.success);
        all.progress.extend(rule.progress);
        all.ignore.extend(rule.ignore);
        all.records.extend(rule.records);
        all.thresholds.extend(rule.thresholds);
        all.machines.extend(rule.machines);
        all.heartbeats.extend(rule.heartbeats);
        all.exit.extend(rule.exit);
        all.escalate.extend(rule.escalate);
        all.silence = all.silence.or(rule.silence);
        all.settle = all.settle.or(rule.settle);
        all
    })
}

/// Which packs listen beside those that are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// Those that know what is common to many programs; and if none is named, all of them.
    Usual,
    /// None.
    None,
}

pub(super) fn rules(rule: &ObserveRule, base: Base, packs: &Packs, limits: Limits) -> Rules {
    let mut builder = Builder { escalate: rule.escalate.clone(), ..Builder::default() };
    builder.own(rule);
    let mut findings = Vec::new();
    if base == Base::Usual && rule.packs.is_empty() {
        for (name, pack) in packs.all() {
            builder.pack(name, pack, ALWAYS.contains(&name));
            findings.extend(&pack.findings);
        }
    } else {
        for (name, pack) in builder.named(rule, base, packs) {
            builder.pack(name, pack, true);
            findings.extend(&pack.findings);
        }
    }
    let finder = Finder::new(&findings, &mut builder.problems);
    builder.build(rule, finder, limits)
}

#[derive(Default)]
struct Builder {
    rules: Vec<Rule>,
    /// Pattern, rule and words of each.
    shipped: Vec<(String, usize)>,
    own: Vec<(String, usize)>,
    slow: Vec<(String, usize)>,
    tail: Vec<(String, Regex)>,
    detect: Vec<(String, usize)>,
    packs: Vec<PackInfo>,
    sections: Vec<SectionRule>,
    words: Vec<Vec<u8>>,
    escalate: Vec<kernel::observe::Escalation>,
    problems: Vec<String>,
}

impl Builder {
    /// The packs that the agent names, and what they rest on.
    fn named<'p>(&mut self, rule: &ObserveRule, base: Base, packs: &'p Packs) -> Vec<(&'p str, &'p Pack)> {
        let mut found: Vec<(&str, &Pack)> = Vec::new();
        let others: &[&str] = if base == Base::Usual { &ALWAYS } else { &[] };
        for name in others.iter().copied().chain(rule.packs.iter().map(String::as_str)) {
            match packs.get(name) {
                Some((known, pack)) if found.iter().all(|(have, _)| *have != known) => found.push((known, pack)),
                Some(_) => {}
                None => {
                    let known = packs.names().collect::<Vec<_>>().join(", ");
                    self.problems.push(format!("there is no pack `{name}`; there are {known}"));
                }
            }
        }
        found
    }

    /// The agent's own patterns.
    fn own(&mut self, rule: &ObserveRule) {
        for (index, pattern) in rule.failure.iter().enumerate() {
            let name = format!("failure[{index}]");
            let kind = self.own_failure(&name);
            self.add_own(name, pattern, |_| kind);
        }
        for (index, pattern) in rule.success.iter().enumerate() {
            self.add_own(format!("success[{index}]"), pattern, |_| Kind::Success { verdict: false });
        }
        for (index, pattern) in rule.progress.iter().enumerate() {
            self.add_own(format!("progress[{index}]"), pattern, |regex| Kind::Progress(Box::new(regex)));
        }
        for (index, pattern) in rule.ignore.iter().enumerate() {
            self.add_own(format!("ignore[{index}]"), pattern, |_| Kind::Ignore);
        }
        for (place, threshold) in rule.thresholds.iter().enumerate() {
            if let Some(pattern) = &threshold.pattern {
                self.add_own(threshold.id.clone(), pattern, |regex| Kind::Threshold(place, Box::new(regex)));
            }
        }
        for (place, machine) in rule.machines.iter().enumerate() {
            for (stage, of) in machine.stages.iter().enumerate() {
                self.add_own(format!("{}.{}", machine.id, of.name), &of.enter, |_| Kind::Stage(place, stage));
            }
        }
        for (place, heartbeat) in rule.heartbeats.iter().enumerate() {
            self.add_own(heartbeat.id.clone(), &heartbeat.pattern, |_| Kind::Heartbeat(place));
        }
    }

    fn own_failure(&self, name: &str) -> Kind {
        let wake = self.wake(name, WakeWhen::Settled);
        Kind::Failure { score: OWN_SCORE, wake, is_consequence: false, verdict: false, before: 2, after: 4 }
    }

    /// When a rule wakes: as the agent says, or as is usual for it.
    fn wake(&self, name: &str, usual: WakeWhen) -> WakeWhen {
        let told = self.escalate.iter().find(|escalation| escalation.fits(Anomaly::Failure, name));
        told.map_or(usual, |escalation| escalation.wake)
    }

    /// A pattern that is no regular expression is taken for the text that it is: `error[E` means what it says.
    fn add_own(&mut self, name: String, pattern: &str, kind: impl FnOnce(Regex) -> Kind) {
        if pattern.is_empty() {
            return;
        }
        let (pattern, regex) = match compile(pattern, true) {
            Ok(regex) => (pattern.to_owned(), regex),
            Err(regex::Error::CompiledTooBig(_)) => {
                self.problems.push(format!("{name} is too large to be matched on every line"));
                return;
            }
            Err(_) => {
                self.problems.push(format!("{name} is no regular expression and is taken as plain text"));
                let literal = regex::escape(pattern);
                match compile(&literal, true) {
                    Ok(regex) => (literal, regex),
                    Err(error) => return self.problems.push(format!("{name} can't be used: {error}")),
                }
            }
        };
        let place = self.rule(name, kind(regex), None);
        match literals::required(&pattern, true) {
            Some(words) => {
                self.words.extend(words);
                self.own.push((pattern, place));
            }
            None => self.slow.push((pattern, place)),
        }
    }

    fn rule(&mut self, name: String, kind: Kind, pack: Option<u8>) -> usize {
        self.rules.push(Rule { name, kind, pack });
        self.rules.len() - 1
    }

    fn pack(&mut self, name: &str, pack: &Pack, always: bool) {
        let bit = u8::try_from(self.packs.len()).unwrap_or(u8::MAX);
        if bit >= 32 {
            self.problems.push(format!("pack `{name}` is left out: there are more than 32"));
            return;
        }
        self.packs.push(PackInfo { name: name.to_owned(), commands: pack.commands.clone(), always });
        for rule in &pack.failure {
            self.add_failure(name, bit, rule, false);
        }
        for rule in &pack.consequence {
            self.add_failure(name, bit, rule, true);
        }
        for rule in &pack.success {
            let kind = Kind::Success { verdict: rule.verdict };
            self.add_shipped(format!("{name}.{}", rule.id), &rule.pattern, bit, |_| kind);
        }
        for pattern in &pack.ignore {
            self.add_shipped(format!("{name}.ignore"), pattern, bit, |_| Kind::Ignore);
        }
        for pattern in &pack.detect {
            self.add_shipped(format!("{name}.detect"), pattern, bit, |_| Kind::Detect);
        }
        for pattern in &pack.progress {
            self.add_progress(name, pattern);
        }
        for section in &pack.sections {
            let place = self.sections.len();
            let label = format!("{name}.{}", section.id);
            self.sections.push(SectionRule { name: label.clone(), mute: section.mute });
            self.add_shipped(label.clone(), &section.from, bit, |_| Kind::Section(Edge::From(place)));
            self.add_shipped(label, &section.to, bit, |_| Kind::Section(Edge::To(place)));
        }
    }

    fn add_failure(&mut self, pack: &str, bit: u8, rule: &PackRule, is_consequence: bool) {
        let name = format!("{pack}.{}", rule.id);
        let wake = self.wake(&name, if rule.wakes { WakeWhen::Settled } else { WakeWhen::End });
        let score = if is_consequence { CONSEQUENCE_SCORE } else { rule.score.min(OWN_SCORE - 1) };
        let (before, after) = (rule.before, rule.after);
        let kind = Kind::Failure { score, wake, is_consequence, verdict: rule.verdict, before, after };
        self.add_shipped(name, &rule.pattern, bit, |_| kind);
    }

    /// Of progress only the latest is of interest, so it is not looked for on every line.
    fn add_progress(&mut self, pack: &str, pattern: &str) {
        let pattern = pattern.replace("{start}", START);
        match compile(&pattern, false) {
            Ok(regex) => self.tail.push((pattern, regex)),
            Err(error) => self.problems.push(format!("{pack}.progress can't be used: {error}")),
        }
    }

    /// A pattern of a pack. What only matters beside something else on the line needs no words of its own.
    fn add_shipped(&mut self, name: String, pattern: &str, bit: u8, kind: impl FnOnce(Regex) -> Kind) {
        if self.rules.len() >= MAX_PATTERNS {
            self.problems.push(format!("{name} is left out: there are more than {MAX_PATTERNS} patterns"));
            return;
        }
        let pattern = pattern.replace("{start}", START);
        let regex = match compile(&pattern, false) {
            Ok(regex) => regex,
            Err(error) => return self.problems.push(format!("{name} can't be used: {error}")),
        };
        let kind = kind(regex);
        match (&kind, literals::required(&pattern, false)) {
            (Kind::Detect, _) => {
                let place = self.rule(name, kind, Some(bit));
                self.detect.push((pattern, place));
            }
            (Kind::Ignore, _) => {
                let place = self.rule(name, kind, Some(bit));
                self.shipped.push((pattern, place));
            }
            (_, Some(words)) => {
                let place = self.rule(name, kind, Some(bit));
                self.words.extend(words);
                self.shipped.push((pattern, place));
            }
            (_, None) => self.problems.push(format!("{name} can't be used: no word is on every line that it fits")),
        }
    }

    fn build(mut self, rule: &ObserveRule, finder: Finder, limits: Limits) -> Rules {
        let mut records = RecordRules::default();
        for (index, record) in rule.records.iter().enumerate() {
            let name = record.id.clone().unwrap_or_else(|| format!("records[{index}]"));
            let kind = match record.means {
                Meaning::Failure => self.own_failure(&name),
                _ => Kind::Ignore,
            };
            let place = self.rule(name, kind, None);
            if let Err(problem) = records.add(record, place) {
                let name = &self.rules[place].name;
                self.problems.push(format!("{name} can't be used: {problem}"));
            }
        }
        let patterns = [&mut self.shipped, &mut self.detect, &mut self.own, &mut self.slow].map(std::mem::take);
        let [shipped, detect, own, slow] = patterns;
        let (shipped, detect) = (self.set(shipped, false), self.set(detect, false));
        let (own, slow) = (self.set(own, true), self.set(slow, true));
        let (patterns, regexes): (Vec<_>, Vec<_>) = std::mem::take(&mut self.tail).into_iter().unzip();
        let tail = self.set(patterns.into_iter().zip(0..).collect(), false);
        let words = self.automaton();
        let always = self.packs.iter().zip(0..).filter(|(pack, _)| pack.always);
        let always = Active(always.fold(0, |all, (_, bit): (_, u32)| all | 1 << bit));
        Rules {
            shipped,
            own,
            slow,
            detect,
            tail,
            progress: regexes,
            rules: self.rules,
            packs: self.packs,
            sections: self.sections,
            words,
            always,
            records,
            timed: TimedRules::new(rule),
            finder,
            exit: rule.exit.clone(),
            escalate: self.escalate,
            silence: rule.silence.map(kernel::units::Duration::std).filter(|silence| !silence.is_zero()),
            settle: rule.settle.map_or(SETTLE, kernel::units::Duration::std),
            limits,
            problems: self.problems,
        }
    }

    fn set(&mut self, patterns: Vec<(String, usize)>, unicode: bool) -> Set {
        let (patterns, rules): (Vec<_>, Vec<_>) = patterns.into_iter().unzip();
        match RegexSetBuilder::new(&patterns).unicode(unicode).size_limit(SET_BYTES).dfa_size_limit(16 << 20).build() {
            Ok(patterns) => Set { patterns, rules },
            Err(error) => {
                self.problems.push(format!("the patterns can't be used together: {error}"));
                Set { patterns: RegexSet::empty(), rules: Vec::new() }
            }
        }
    }

    /// A word that holds another one needs no place of its own.
    fn automaton(&mut self) -> Option<AhoCorasick> {
        let mut words = std::mem::take(&mut self.words);
        words.sort_by_key(Vec::len);
        let mut needed: Vec<Vec<u8>> = Vec::new();
        for word in words {
            if !needed.iter().any(|have| memchr::memmem::find(&word, have).is_some()) {
                needed.push(word);
            }
        }
        if needed.is_empty() {
            return None;
        }
        let build = |kind| AhoCorasickBuilder::new().ascii_case_insensitive(true).kind(Some(kind)).build(&needed);
        build(AhoCorasickKind::DFA)
            .or_else(|_| build(AhoCorasickKind::NoncontiguousNFA))
            .inspect_err(|error| self.problems.push(format!("the words can't be looked for: {error}")))
            .ok()
    }
}

fn compile(pattern: &str, unicode: bool) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).unicode(unicode).size_limit(PATTERN_BYTES).build()
}
