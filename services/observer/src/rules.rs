//! The rules of an agent for a tool, compiled: one look for words on each line, and the patterns only where one is found.

mod build;
mod hits;
mod look;

use std::time::Duration;

use aho_corasick::AhoCorasick;
use kernel::{
    agent::AgentSpec,
    observe::{Anomaly, Escalation, ExitRule, Meaning, ObserveRule, WakeWhen},
};
use regex::bytes::{Regex, RegexSet};

pub use self::hits::{Active, Edge, Failure, Hits, Progress};
use crate::{
    findings::Finder,
    packs::Packs,
    records::{Record, RecordRules},
    timed::TimedRules,
};

/// Score of a rule of the agent itself, above every shipped one.
pub(crate) const OWN_SCORE: u8 = 100;
/// Score of lines that only follow from a failure.
pub(crate) const CONSEQUENCE_SCORE: u8 = 20;

/// Bounds that hold for every agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of what is told in one observation.
    pub packet_bytes: usize,
    /// Least time between two notes about progress.
    pub progress_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { packet_bytes: 2048, progress_every: Duration::from_secs(10) }
    }
}

enum Kind {
    Failure { score: u8, wake: WakeWhen, is_consequence: bool, verdict: bool, before: u8, after: u8 },
    Ignore,
    Success { verdict: bool },
    Progress(Box<Regex>),
    Detect,
    Section(Edge),
    Threshold(usize, Box<Regex>),
    Stage(usize, usize),
    Heartbeat(usize),
}

struct Rule {
    name: String,
    kind: Kind,
    /// The pack that it is of; none for the agent's own.
    pack: Option<u8>,
}

/// Patterns that are matched together, and the rule of each.
struct Set {
    patterns: RegexSet,
    rules: Vec<usize>,
}

/// A section of output, by its pack.
pub(crate) struct SectionRule {
    pub(crate) name: String,
    pub(crate) mute: bool,
}

struct PackInfo {
    name: String,
    commands: Vec<String>,
    /// It listens whatever the program is.
    always: bool,
}

/// Compiled rules. Cheap to share, never changed.
pub struct Rules {
    /// Patterns of packs, behind the words; they see the line without what systems put in front of it.
    shipped: Set,
    /// Patterns of the agent, behind the words.
    own: Set,
    /// Patterns without a word that is on every line that they fit: each line is held against them.
    slow: Set,
    /// Lines that tell which program prints.
    detect: Set,
    /// Progress: only the latest is of interest; and what is in it, by its place.
    tail: Set,
    progress: Vec<Regex>,
    rules: Vec<Rule>,
    packs: Vec<PackInfo>,
    sections: Vec<SectionRule>,
    words: Option<AhoCorasick>,
    always: Active,
    records: RecordRules,
    /// Windows, machines and heartbeats.
    pub(crate) timed: TimedRules,
    /// Where tools say that something is wrong.
    pub(crate) finder: Finder,
    exit: Vec<ExitRule>,
    escalate: Vec<Escalation>,
    /// No output for this long needs a decision.
    pub silence: Option<Duration>,
    /// How long a failure waits for more evidence.
    pub settle: Duration,
    /// Bounds.
    pub limits: Limits,
    /// What could not be used, for people.
    pub problems: Vec<String>,
}

impl Rules {
    /// The rules that `agent` has for the output of `tool`; all packs, if it has none.
    #[must_use]
    pub fn for_tool(agent: Option<&AgentSpec>, tool: &str, limits: Limits) -> Self {
        Self::for_tool_with(agent, tool, Packs::shipped(), limits)
    }

    /// As [`Rules::for_tool`], with these packs.
    #[must_use]
    pub fn for_tool_with(agent: Option<&AgentSpec>, tool: &str, packs: &Packs, limits: Limits) -> Self {
        Self::compile_with(&rule_for(agent, tool), packs, limits)
    }

    /// Compiles a rule with the shipped packs. What cannot be used is named in [`Rules::problems`], the rest works: an
    /// observer that is half deaf is better than none.
    #[must_use]
    pub fn compile(rule: &ObserveRule, limits: Limits) -> Self {
        Self::compile_with(rule, Packs::shipped(), limits)
    }

    /// Compiles a rule with these packs.
    #[must_use]
    pub fn compile_with(rule: &ObserveRule, packs: &Packs, limits: Limits) -> Self {
        build::rules(rule, build::Base::Usual, packs, limits)
    }

    /// Compiles what is said about the lines of a service. Of the packs only those listen that are named: a service goes on
    /// after what would end a program.
    #[must_use]
    pub fn for_service(rule: &ObserveRule) -> Self {
        build::rules(rule, build::Base::None, Packs::shipped(), Limits::default())
    }

    /// The name of a rule, such as `cargo.panic` or `failure[0]`.
    #[must_use]
    pub fn name(&self, rule: usize) -> &str {
        self.rules.get(rule).map_or("", |rule| rule.name.as_str())
    }

    /// How many patterns listen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shipped.rules.len() + self.detect.rules.len() + self.own.rules.len() + self.slow.rules.len()
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The packs that a command is known to belong to, and those that always listen.
    #[must_use]
    pub fn active_for(&self, command: &str) -> Active {
        let knows = |pack: &PackInfo| pack.always || pack.commands.iter().any(|start| has_word(command, start));
        let bits = self.packs.iter().enumerate().filter(|(_, pack)| knows(pack)).map(|(bit, _)| 1 << bit);
        Active(bits.fold(0, |all, bit: u32| all | bit))
    }

    /// The names of recognised packs.
    pub fn names_of(&self, active: Active) -> impl Iterator<Item = &str> {
        self.packs.iter().zip(0..).filter(move |(_, bit)| active.has(*bit)).map(|(pack, _)| pack.name.as_str())
    }

    /// Whether the patterns can say anything of a line: false for nearly all of them.
    #[must_use]
    pub fn can_hit(&self, line: &[u8]) -> bool {
        let Some(words) = &self.words else { return !self.slow.rules.is_empty() || self.reads_records() };
        !self.slow.rules.is_empty() || words.is_match(line) || (self.reads_records() && Record::can_be(line))
    }

    /// Whether any rule is about the fields of records.
    pub(crate) fn reads_records(&self) -> bool {
        !self.records.is_empty() || self.timed.reads_records()
    }

    /// The packs that listen whatever the program is.
    #[must_use]
    pub const fn always(&self) -> Active {
        self.always
    }

    /// A section by its place.
    pub(crate) fn section(&self, place: usize) -> Option<&SectionRule> {
        self.sections.get(place)
    }

    /// A section by its name.
    pub(crate) fn section_named(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|section| section.name == name)
    }

    /// Whether the agent says how it wants to hear that there is no sign of life.
    pub(crate) const fn says_what_life_is(&self) -> bool {
        self.silence.is_some() || self.timed.has_heartbeats()
    }

    /// Whether a status means success, if the agent says so.
    #[must_use]
    pub fn exit_means(&self, code: i32) -> Option<bool> {
        let rule = self.exit.iter().find(|rule| rule.codes.contains(&code))?;
        Some(rule.means == Meaning::Success)
    }

    /// When something wakes.
    #[must_use]
    pub fn wake(&self, anomaly: Anomaly, rule: &str) -> WakeWhen {
        let told = self.escalate.iter().find(|escalation| escalation.fits(anomaly, rule));
        told.map_or_else(|| usual(anomaly), |escalation| escalation.wake)
    }
}

/// What `agent` says about the output of `tool`, as one rule.
pub(crate) fn rule_for(agent: Option<&AgentSpec>, tool: &str) -> ObserveRule {
    let rules = agent.map(|agent| agent.observe.as_slice()).unwrap_or_default();
    let fits = |rule: &&ObserveRule| match &rule.tool {
        Some(named) => named == tool,
        None => rule.service.is_none(),
    };
    build::merge(rules.iter().filter(fits))
}

/// When something wakes unless the agent says otherwise.
pub(crate) const fn usual(anomaly: Anomaly) -> WakeWhen {
    match anomaly {
        Anomaly::Silence | Anomaly::Contradiction | Anomaly::Stage | Anomaly::Heartbeat => WakeWhen::Now,
        Anomaly::Failure | Anomaly::Threshold => WakeWhen::Settled,
        Anomaly::Burst => WakeWhen::Never,
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("patterns", &self.rules.len())
            .field("problems", &self.problems)
            .finish_non_exhaustive()
    }
}

/// Whether `word` stands in `command` by itself.
fn has_word(command: &str, word: &str) -> bool {
    let cut =
        |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric() && !matches!(letter, '-' | '_'));
    command
        .match_indices(word)
        .any(|(at, _)| cut(command[..at].chars().next_back()) && cut(command[at + word.len()..].chars().next()))
}

#[cfg(test)]
mod tests;
