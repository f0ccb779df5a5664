//! The least that shows what went wrong: lines that the rules picked, a little around them, each once, likeliest first.
//!
//! What is the cause, and what only looks like one, is weighed when it is told: a rule says how likely its lines are causes;
//! lines just before a sign of failure count more, and lines that come again and again, that were there when all went well,
//! that stand in quoted output, or whose test passed in the end, count less.

mod finding;
mod trace;

use std::collections::VecDeque;

use kernel::call::Evidence;
use serde::{Deserialize, Serialize};

use crate::{
    rules::{Failure, Rules},
    text,
};
pub(crate) use finding::Kept;
use finding::{Finding, Rank};

/// Lines that are kept for what may come after them.
const RECENT: usize = 16;
/// Most bytes of a line in an excerpt.
const LINE_BYTES: usize = 400;
/// Most bytes of the first excerpt, and of each other one.
const FIRST_BYTES: usize = 900;
const OTHER_BYTES: usize = 480;
/// Findings that are kept until they are reported.
const FINDINGS: usize = 24;
/// Lines that are remembered to tell repetitions.
const REMEMBERED: usize = 256;
/// A finding is noise beside one that ranks so much higher.
const NOISE: i32 = 45;
/// An excerpt smaller than this says nothing.
const WORTH_BYTES: usize = 60;
/// Lines of the tail that stand for a failure without evidence.
const TAIL_LINES: usize = 10;
/// What lies so many lines before a sign of failure may have led to it.
const LED: u64 = 40;
/// Lines of a new kind that are kept.
const NOVEL: usize = 4;
/// Names of failed tests that are listened for, in case they pass in the end.
const RETRIED: usize = 8;
/// A shorter name is on lines that mean something else.
const NAME_BYTES: usize = 6;

/// What was found since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Different failures.
    pub failures: u64,
    /// Of those, the ones that are worth waking for.
    pub waking: u64,
    /// The first line of them, from 1.
    pub first_line: u64,
}

/// A line, and what is known of it beside its text.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// Byte offset of its first byte.
    pub offset: u64,
    /// Its number, from 0.
    pub number: u64,
    /// Its text, without colours.
    pub text: &'a [u8],
    /// It stands in quoted output.
    pub quoted: bool,
    /// Such lines were there when all went well.
    pub is_background: bool,
}

/// Gathers evidence, in bounded memory whatever comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collector {
    recent: VecDeque<Kept>,
    found: Vec<Finding>,
    /// Different failures since the last report, also those that are not kept.
    failures: u64,
    waking: u64,
    first_line: Option<u64>,
    seen: VecDeque<u64>,
    /// Failed tests by name, as long as they may still pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed_tests: Vec<String>,
    /// Anything was ever found.
    any: bool,
}

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It shows nothing.
    Plain,
    /// It shows a failure that was not seen before.
    New,
    /// It shows one again, or belongs to the one before.
    Again,
}

impl Collector {
    /// Whether the next line is wanted whatever it says.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.found.last().is_some_and(|open| open.to_come > 0)
    }

    /// Whether lines are listened to that say that a failed test has passed.
    #[must_use]
    pub fn listens_for_passes(&self) -> bool {
        !self.failed_tests.is_empty()
    }

    /// Takes a line that shows a failure.
    pub fn hit(&mut self, spot: &Spot<'_>, found: Failure, rules: &Rules) -> Noted {
        let line = kept(spot, found.at);
        let key = finding::key(found.rule, &line.text);
        let again = self.seen.contains(&key);
        if !again {
            if self.seen.len() == REMEMBERED {
                self.seen.pop_front();
            }
            self.seen.push_back(key);
        }
        if found.is_consequence {
            self.mark_led(spot.number);
        }
        let again = again && !self.replaces_quoted(spot, key);
        let noted = if self.join_open(&line, spot, found, rules) {
            Noted::Again
        } else if again {
            if let Some(same) = self.found.iter_mut().find(|finding| finding.key == key) {
                same.times = same.times.saturating_add(1);
            }
            Noted::Again
        } else {
            self.note_new(line.clone(), spot, key, found, rules);
            Noted::New
        };
        if !found.is_consequence {
            self.listen(&line.text);
        }
        self.remember(spot);
        noted
    }

    /// Takes a line that shows nothing by itself.
    pub fn plain(&mut self, spot: &Spot<'_>) {
        if let Some(open) = self.found.last_mut().filter(|open| open.to_come > 0) {
            if open.in_trace() {
                open.trace(kept(spot, 0), trace::part(spot.text), None);
            } else if open.has_room() {
                open.lines.push(kept(spot, 0));
                open.to_come -= 1;
            } else {
                open.to_come = 0;
            }
        }
        self.remember(spot);
    }

    /// If a line says that a test has passed which failed before, that failure is over.
    pub fn passed(&mut self, line: &[u8]) {
        let named = |name: &String| finding::names(line, name);
        let Some(at) = self.failed_tests.iter().position(named).filter(|_| finding::says_passed(line)) else { return };
        let name = self.failed_tests.remove(at);
        for finding in self.found.iter_mut().filter(|finding| finding::names(finding.line().text.as_bytes(), &name)) {
            finding.recovered = true;
        }
    }

    /// Takes a line that shows nothing by itself, and that was never there when all went well.
    pub fn novel(&mut self, spot: &Spot<'_>) {
        let novel = self.found.iter().filter(|finding| finding.rule == finding::NOVEL).count();
        if self.is_open() || novel >= NOVEL || self.found.len() >= FINDINGS {
            return self.plain(spot);
        }
        let mut lines = self.before(1);
        lines.push(kept(spot, 0));
        self.found.push(finding::novel(lines));
        self.remember(spot);
    }

    /// The last lines that were kept, latest first.
    pub fn latest(&self) -> impl Iterator<Item = &str> {
        self.recent.iter().rev().map(|line| line.text.as_str())
    }

    /// What was found since the last report.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let recovered = |wakes: bool| {
            self.found.iter().filter(|finding| finding.recovered && (finding.wakes || !wakes)).count() as u64
        };
        Summary {
            failures: self.failures.saturating_sub(recovered(false)),
            waking: self.waking.saturating_sub(recovered(true)),
            first_line: self.first_line.map_or(0, |line| line + 1),
        }
    }

    /// Whether the agent itself calls anything of it a failure.
    #[must_use]
    pub fn has_own(&self) -> bool {
        self.found.iter().any(|finding| finding.is_own() && !finding.recovered)
    }

    /// Whether anything was ever found.
    #[must_use]
    pub const fn found_any(&self) -> bool {
        self.any
    }

    /// The best evidence since the last report, likeliest causes first, at most `max` bytes in all. Begins a new report.
    pub fn take(&mut self, max: usize) -> Vec<Evidence> {
        let found = std::mem::take(&mut self.found);
        (self.failures, self.waking, self.first_line) = (0, 0, None);
        let mut ranked = finding::ranked(found);
        ranked.sort_by_key(|(rank, finding)| (std::cmp::Reverse(*rank), finding.line().offset));
        let ranked = finding::joined(ranked, NOISE);
        let best = ranked.first().map_or(Rank::MIN, |(rank, _)| *rank);
        let mut left = max;
        let mut shown: Vec<u64> = Vec::new();
        let mut evidence: Vec<Evidence> = Vec::new();
        for (rank, finding) in &ranked {
            if left < WORTH_BYTES {
                break;
            }
            if rank + NOISE < best || shown.contains(&finding.line().offset) {
                continue;
            }
            let most = if evidence.is_empty() { finding.most().max(FIRST_BYTES) } else { OTHER_BYTES };
            let taken = finding.excerpt(left.min(most), &mut shown);
            left = left.saturating_sub(cost(&taken));
            evidence.push(taken);
        }
        evidence
    }

    /// The last lines, for want of anything better.
    #[must_use]
    pub fn tail(&self, max: usize, rule: &str) -> Option<Evidence> {
        let lines = self.before(TAIL_LINES);
        if lines.is_empty() { None } else { Some(finding::tail(lines, rule).excerpt(max, &mut Vec::new())) }
    }

    /// Findings just before a sign of failure may have led to it.
    fn mark_led(&mut self, line: u64) {
        for finding in &mut self.found {
            finding.led |= !finding.is_consequence && line.saturating_sub(finding.last_line()) <= LED;
        }
    }

    fn note_new(&mut self, line: Kept, spot: &Spot<'_>, key: u64, found: Failure, rules: &Rules) {
        self.failures += u64::from(!found.is_consequence || !self.any);
        self.waking += u64::from(found.wakes());
        self.first_line = Some(self.first_line.map_or(line.line, |first| first.min(line.line)));
        self.any = true;
        self.keep(line, spot, key, found, rules);
    }

    /// What was quoted before and is now said for itself counts where it is said.
    fn replaces_quoted(&mut self, spot: &Spot<'_>, key: u64) -> bool {
        let quoted = |finding: &Finding| finding.key == key && finding.quoted;
        let Some(at) = self.found.iter().position(quoted).filter(|_| !spot.quoted) else { return false };
        let gone = self.found.remove(at);
        self.failures = self.failures.saturating_sub(1);
        self.waking = self.waking.saturating_sub(u64::from(gone.wakes));
        true
    }

    /// A hit within the context of the finding before belongs to it; the likelier of the two lines is the one to show.
    fn join_open(&mut self, line: &Kept, spot: &Spot<'_>, found: Failure, rules: &Rules) -> bool {
        let joins = |open: &&mut Finding| {
            open.to_come > 0 && (open.has_room() || open.in_trace()) && (open.is_own() || !found.is_own())
        };
        let Some(open) = self.found.last_mut().filter(joins) else { return false };
        if open.in_trace() {
            let said = Some((rules.name(found.rule), found));
            open.trace(line.clone(), trace::part(spot.text), said);
            return true;
        }
        if trace::opens(spot.text) {
            open.begin_trace();
        }
        open.lines.push(line.clone());
        open.to_come = (open.to_come - 1).max(found.after);
        if found.wakes() && !open.wakes {
            open.wakes = true;
            self.waking += 1;
        }
        if found.is_consequence {
            open.led |= !open.is_consequence;
        } else if (found.score > open.score || open.is_consequence) && spot.is_background <= open.is_background {
            open.score = found.score;
            open.rule = rules.name(found.rule).to_owned();
            open.hit = open.lines.len() - 1;
            open.is_consequence = false;
            open.quoted = spot.quoted;
            open.is_background = spot.is_background;
        }
        true
    }

    fn keep(&mut self, line: Kept, spot: &Spot<'_>, key: u64, found: Failure, rules: &Rules) {
        if let Some(open) = self.found.last_mut() {
            open.to_come = 0;
        }
        let mut lines = self.before(found.before);
        lines.push(line);
        let trace = trace::opens(spot.text).then_some(0);
        let finding = Finding {
            rule: rules.name(found.rule).to_owned(),
            key,
            score: found.score,
            wakes: found.wakes(),
            is_consequence: found.is_consequence,
            hit: lines.len() - 1,
            lines,
            to_come: found.after,
            times: 1,
            led: false,
            quoted: spot.quoted,
            is_background: spot.is_background,
            recovered: false,
            trace,
        };
        if self.found.len() == FINDINGS {
            // The least likely goes, the latest of those first; first causes stay.
            let ranks = finding::ranks(&self.found);
            let least = ranks.iter().enumerate().min_by_key(|(at, rank)| (**rank, std::cmp::Reverse(*at)));
            match least {
                Some((at, rank)) if *rank < i32::from(finding.score) => drop(self.found.remove(at)),
                _ => return,
            }
        }
        self.found.push(finding);
    }

    /// Remembers the name of a failed test, in case it passes when it is tried again.
    fn listen(&mut self, text: &str) {
        if self.failed_tests.len() == RETRIED {
            return;
        }
        if let Some(name) = finding::test_name(text).filter(|name| name.len() >= NAME_BYTES)
            && self.failed_tests.iter().all(|have| have != name)
        {
            self.failed_tests.push(name.to_owned());
        }
    }

    /// The last lines, so many at most, without what is not to be seen.
    fn before(&self, count: usize) -> Vec<Kept> {
        let from = self.recent.len().saturating_sub(count);
        let shown = |line: &Kept| {
            let mut line = line.clone();
            if text::has_controls(&line.text) {
                line.text = text::visible(line.text.as_bytes()).into_owned();
            }
            line
        };
        self.recent.range(from..).map(shown).collect()
    }

    /// Blank lines explain nothing.
    fn remember(&mut self, spot: &Spot<'_>) {
        if spot.text.trim_ascii().is_empty() {
            return;
        }
        let mut kept = if self.recent.len() == RECENT { self.recent.pop_front() } else { None }.unwrap_or_default();
        kept.text.clear();
        match std::str::from_utf8(spot.text) {
            Ok(text) if text.len() <= LINE_BYTES => kept.text.push_str(text),
            _ => kept.text.push_str(&text::window(&text::visible(spot.text), 0, LINE_BYTES)),
        }
        (kept.offset, kept.line) = (spot.offset, spot.number);
        self.recent.push_back(kept);
    }
}

/// What an excerpt takes of the packet, with the words around it.
pub(crate) fn cost(evidence: &Evidence) -> usize {
    evidence.excerpt.len() + evidence.rule.len() + 24
}

fn kept(spot: &Spot<'_>, around: usize) -> Kept {
    let visible = text::visible(spot.text);
    Kept { offset: spot.offset, line: spot.number, text: text::window(&visible, around, LINE_BYTES).into_owned() }
}

#[cfg(test)]
mod tests;
