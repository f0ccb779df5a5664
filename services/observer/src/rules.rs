//! The rules of an agent for a tool, compiled: one look for words on each line, and the patterns only where one is found.

mod build;

use std::time::Duration;

use aho_corasick::AhoCorasick;
use kernel::{
    agent::AgentSpec,
    observe::{Anomaly, Escalation, ExitRule, Meaning, ObserveRule, WakeWhen},
};
use regex::bytes::{Regex, RegexSet};

use crate::{
    findings::Finder,
    packs::Packs,
    prefix,
    records::{Record, RecordRules},
    text,
    timed::{TimedHit, TimedRules},
};

/// Score of a rule of the agent itself, above every shipped one.
pub(crate) const OWN_SCORE: u8 = 100;
/// Score of lines that only follow from a failure.
pub(crate) const CONSEQUENCE_SCORE: u8 = 20;
/// What a rule of a pack counts less whose program was not recognised.
const STRANGER: u8 = 15;
/// Most bytes of a phase's name.
const PHASE_BYTES: usize = 60;

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

/// Packs whose programs were recognised, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Active(pub u32);

impl Active {
    fn has(self, pack: u8) -> bool {
        self.0 & (1 << pack) != 0
    }
}

/// What a line says, by the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hits {
    /// It shows a failure.
    pub failure: Option<Failure>,
    /// It says that something went well.
    pub success: bool,
    /// A program's last word on whether it went well.
    pub verdict: Option<bool>,
    /// How far it has come.
    pub progress: Option<Progress>,
    /// It begins or ends a section, by its place.
    pub section: Option<Edge>,
    /// What counts for windows of time.
    pub timed: Vec<TimedHit>,
}

/// An end of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// It begins here.
    From(usize),
    /// It ends here.
    To(usize),
}

/// A line that shows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which rule, by its place.
    pub rule: usize,
    /// How likely the line is the cause itself.
    pub score: u8,
    /// Whether and when it wakes while the program runs.
    pub wake: WakeWhen,
    /// It only says that something failed before it.
    pub is_consequence: bool,
    /// Lines before it that explain it.
    pub before: usize,
    /// Lines after it that explain it.
    pub after: usize,
    /// Where in the line, roughly.
    pub at: usize,
}

impl Failure {
    /// Whether it is worth waking for while the program runs.
    #[must_use]
    pub const fn wakes(&self) -> bool {
        matches!(self.wake, WakeWhen::Now | WakeWhen::Settled)
    }

    /// Whether the agent itself calls it one.
    #[must_use]
    pub const fn is_own(&self) -> bool {
        self.score == OWN_SCORE
    }
}

/// How far the output says that the program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the program's own words: outside text.
    pub phase: Option<String>,
    /// Of the whole.
    pub percent: Option<u8>,
}

impl Progress {
    /// With what another one says beyond it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { phase: self.phase.or(other.phase), percent: self.percent.or(other.percent) }
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
        build::rules(rule, packs, limits)
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

    fn reads_records(&self) -> bool {
        !self.records.is_empty() || self.timed.reads_records()
    }

    /// What the line says.
    #[must_use]
    pub fn look(&self, line: &[u8], active: Active) -> Hits {
        let looking = Looking { rules: self, active, line, hits: Hits::default(), is_ignored: false, at: 0 };
        let word = self.words.as_ref().and_then(|words| words.find(line));
        self.look_at(word.map(|word| word.start()), looking)
    }

    /// What the line says, whether or not it holds a word: what the look for words spares.
    #[must_use]
    pub fn look_at_all(&self, line: &[u8], active: Active) -> Hits {
        self.look_at(Some(0), Looking { rules: self, active, line, hits: Hits::default(), is_ignored: false, at: 0 })
    }

    fn look_at(&self, word: Option<usize>, mut looking: Looking<'_>) -> Hits {
        let line = looking.line;
        if let Some(word) = word {
            looking.at = word;
            let body = &line[prefix::len(line)..];
            self.shipped.each(body, |rule| looking.rule(rule, body));
            self.own.each_form(line, body, |rule, text| looking.rule(rule, text));
        }
        if !self.slow.rules.is_empty() {
            let body = &line[prefix::len(line)..];
            self.slow.each_form(line, body, |rule, text| looking.rule(rule, text));
        }
        if self.reads_records()
            && let Some(record) = Record::read(line)
        {
            looking.record(&record);
        }
        looking.done()
    }

    /// How far it has come, by a line at the end of what has come.
    #[must_use]
    pub fn tail_progress(&self, line: &[u8]) -> Progress {
        let mut latest = Progress::default();
        let body = &line[prefix::len(line)..];
        self.tail.each(body, |place| {
            let found = self.progress.get(place).and_then(|regex| progress(regex, body));
            latest = std::mem::take(&mut latest).or(found.unwrap_or_default());
        });
        latest
    }

    /// The packs that listen whatever the program is.
    #[must_use]
    pub const fn always(&self) -> Active {
        self.always
    }

    /// The packs whose program prints such lines.
    #[must_use]
    pub fn detect(&self, line: &[u8]) -> Active {
        let mut active = Active::default();
        let body = &line[prefix::len(line)..];
        self.detect.each(body, |rule| active.0 |= self.rules[rule].pack.map_or(0, |pack| 1 << pack));
        active
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
const fn usual(anomaly: Anomaly) -> WakeWhen {
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

impl Set {
    fn each(&self, line: &[u8], mut each: impl FnMut(usize)) {
        if !self.rules.is_empty() {
            self.patterns.matches(line).iter().for_each(|place| each(self.rules[place]));
        }
    }

    /// As `each`, for the line as it came and without what systems put in front of it: a rule once.
    fn each_form<'l>(&self, line: &'l [u8], body: &'l [u8], mut each: impl FnMut(usize, &'l [u8])) {
        if self.rules.is_empty() {
            return;
        }
        let behind = self.patterns.matches(body);
        behind.iter().for_each(|place| each(self.rules[place], body));
        if body.len() < line.len() {
            let whole = self.patterns.matches(line);
            whole.iter().filter(|place| !behind.matched(*place)).for_each(|place| each(self.rules[place], line));
        }
    }
}

/// A line that is looked at.
struct Looking<'a> {
    rules: &'a Rules,
    active: Active,
    line: &'a [u8],
    hits: Hits,
    is_ignored: bool,
    at: usize,
}

impl Looking<'_> {
    fn rule(&mut self, place: usize, text: &[u8]) {
        let rule = &self.rules.rules[place];
        let is_known = rule.pack.is_none_or(|pack| self.active.has(pack));
        match &rule.kind {
            Kind::Failure { score, wake, is_consequence, verdict, before, after } => {
                let found = Failure {
                    rule: place,
                    score: if is_known { *score } else { score.saturating_sub(STRANGER).max(1) },
                    wake: if is_known || *wake == WakeWhen::Never { *wake } else { WakeWhen::End },
                    is_consequence: *is_consequence,
                    before: usize::from(*before),
                    after: usize::from(*after),
                    at: self.at,
                };
                if *verdict && is_known {
                    self.hits.verdict = Some(false);
                }
                self.hits.failure = Some(stronger(self.hits.failure, found));
            }
            Kind::Ignore => self.is_ignored = true,
            Kind::Success { verdict } => {
                self.hits.success |= is_known;
                if *verdict && is_known {
                    self.hits.verdict = self.hits.verdict.or(Some(true));
                }
            }
            Kind::Progress(regex) if self.hits.progress.is_none() => self.hits.progress = progress(regex, text),
            Kind::Progress(_) => {}
            Kind::Detect => {}
            Kind::Section(edge) => self.hits.section = Some(*edge),
            Kind::Threshold(place, regex) => {
                let value = number(regex, text);
                self.hits.timed.push(TimedHit::Threshold { place: *place, value });
            }
            Kind::Stage(machine, stage) => {
                self.hits.timed.push(TimedHit::Stage { machine: *machine, stage: *stage });
            }
            Kind::Heartbeat(place) => self.hits.timed.push(TimedHit::Beat { place: *place }),
        }
    }

    fn record(&mut self, record: &Record) {
        for (place, means) in self.rules.records.of(record) {
            match means {
                Meaning::Failure => self.rule(place, self.line),
                Meaning::Ignore => self.is_ignored = true,
                Meaning::Success => self.hits.success = true,
                Meaning::Progress => {
                    self.hits.progress = self.hits.progress.take().or_else(|| Some(record.progress(PHASE_BYTES)));
                }
            }
        }
        self.hits.timed.extend(self.rules.timed.of_record(record));
    }

    fn done(mut self) -> Hits {
        if self.is_ignored {
            // What the agent itself calls a failure is one, whatever it looks like.
            self.hits.failure = self.hits.failure.filter(Failure::is_own);
            if self.hits.verdict == Some(false) {
                self.hits.verdict = None;
            }
        }
        self.hits
    }
}

/// The agent's own rules come first. A line that only follows from a failure shows no cause, whatever else it looks like;
/// otherwise the higher score counts.
fn stronger(have: Option<Failure>, found: Failure) -> Failure {
    let rank = |failure: &Failure| (failure.is_own(), failure.is_consequence, failure.score);
    match have {
        Some(have) if rank(&have) >= rank(&found) => have,
        _ => found,
    }
}

fn progress(regex: &Regex, line: &[u8]) -> Option<Progress> {
    let groups = regex.captures(line)?;
    let number = |name| groups.name(name).and_then(|found| text_of(found.as_bytes())?.parse::<f64>().ok());
    let percent = number("percent").or_else(|| {
        let (done, all) = (number("n")?, number("m")?);
        (all > 0.0 && done <= all).then(|| 100.0 * done / all)
    });
    let numbers = ["percent", "n", "m"].map(|name| groups.name(name).map(|found| found.range()));
    let phase = groups.iter().skip(1).flatten().find(|group| !numbers.contains(&Some(group.range())));
    let phase = phase.map(|group| {
        let phase = text::visible(group.as_bytes());
        text::window(phase.trim(), 0, PHASE_BYTES).into_owned()
    });
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent| percent as u8);
    (phase.is_some() || percent.is_some()).then_some(Progress { phase, percent })
}

fn number(regex: &Regex, line: &[u8]) -> Option<f64> {
    text_of(regex.captures(line)?.name("value")?.as_bytes())?.parse().ok()
}

fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
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
