//! Looking at a line: which patterns fit it, and what that says.

use kernel::observe::{Meaning, WakeWhen};
use regex::bytes::Regex;

use super::{Active, Failure, Hits, Kind, Progress, Rules, Set};
use crate::{prefix, records::Record, text, timed::TimedHit};

/// What a rule of a pack counts less whose program was not recognised.
const STRANGER: u8 = 15;
/// Most bytes of a phase's name.
const PHASE_BYTES: usize = 60;

/// A line that is looked at.
struct Looking<'a> {
    rules: &'a Rules,
    active: Active,
    line: &'a [u8],
    hits: Hits,
    is_ignored: bool,
    at: usize,
}

impl Rules {
    /// What the line says.
    #[must_use]
    pub fn look(&self, line: &[u8], active: Active) -> Hits {
        self.look_with(line, active, || Record::read(line))
    }

    /// As [`Rules::look`], for a line whose fields are read by `record`.
    pub(crate) fn look_with(&self, line: &[u8], active: Active, record: impl FnOnce() -> Option<Record>) -> Hits {
        let word = self.words.as_ref().and_then(|words| words.find(line));
        self.look_at(word.map(|word| word.start()), Looking::new(self, active, line), record)
    }

    /// What the line says, whether or not it holds a word: what the look for words spares.
    #[must_use]
    pub fn look_at_all(&self, line: &[u8], active: Active) -> Hits {
        self.look_at(Some(0), Looking::new(self, active, line), || Record::read(line))
    }

    fn look_at(&self, word: Option<usize>, mut looking: Looking<'_>, record: impl FnOnce() -> Option<Record>) -> Hits {
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
            && let Some(record) = record()
        {
            looking.record(&record);
        }
        looking.done()
    }

    /// The packs whose program prints such lines.
    #[must_use]
    pub fn detect(&self, line: &[u8]) -> Active {
        let mut active = Active::default();
        let body = &line[prefix::len(line)..];
        self.detect.each(body, |rule| active.0 |= self.rules[rule].pack.map_or(0, |pack| 1 << pack));
        active
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

impl<'a> Looking<'a> {
    fn new(rules: &'a Rules, active: Active, line: &'a [u8]) -> Self {
        Self { rules, active, line, hits: Hits::default(), is_ignored: false, at: 0 }
    }

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
