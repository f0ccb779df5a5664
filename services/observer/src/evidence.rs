//! The least that shows what went wrong: lines that the rules picked, a little around them, each once.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

use kernel::call::Evidence;
use serde::{Deserialize, Serialize};

use crate::{
    rules::{Failure, Rules},
    text,
};

/// Lines that are kept for what may come after them.
const RECENT: usize = 16;
/// Most bytes of a line in an excerpt.
const LINE_BYTES: usize = 320;
/// Most bytes of one excerpt.
const EXCERPT_BYTES: usize = 800;
/// Most lines of one excerpt.
const EXCERPT_LINES: usize = 24;
/// Findings that are kept until they are reported.
const FINDINGS: usize = 16;
/// Lines that are remembered to tell repetitions.
const REMEMBERED: usize = 256;
/// A finding is noise beside one that scores so much more.
const NOISE: u8 = 35;
/// An excerpt smaller than this says nothing.
const WORTH_BYTES: usize = 80;
/// Lines of the tail that stand for a failure without evidence.
const TAIL_LINES: usize = 10;

/// A visible line and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    offset: u64,
    line: u64,
    text: String,
}

/// A failure that a line shows, with its context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Finding {
    rule: String,
    score: u8,
    wakes: bool,
    lines: Vec<Kept>,
    /// Place of the line in `lines`.
    hit: usize,
    /// Lines that still belong to it.
    to_come: usize,
}

impl Finding {
    fn line(&self) -> &Kept {
        &self.lines[self.hit.min(self.lines.len() - 1)]
    }

    fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.text.len() + 1).sum()
    }

    fn has_room(&self) -> bool {
        self.lines.len() < EXCERPT_LINES && self.bytes() < EXCERPT_BYTES
    }

    /// The line that was hit and as much around it as fits, nearest first.
    fn excerpt(&self, max: usize) -> Evidence {
        let own = text::window(&self.line().text, 0, max);
        let (mut from, mut to, mut left) = (self.hit, self.hit, max.saturating_sub(own.len()));
        loop {
            let before = from.checked_sub(1).map(|at| self.lines[at].text.len() + 1).filter(|need| *need <= left);
            let after = self.lines.get(to + 1).map(|line| line.text.len() + 1).filter(|need| *need <= left);
            match (before, after) {
                (_, Some(need)) if to - self.hit <= self.hit - from || before.is_none() => {
                    to += 1;
                    left -= need;
                }
                (Some(need), _) => {
                    from -= 1;
                    left -= need;
                }
                (None, _) => break,
            }
        }
        let texts: Vec<&str> =
            (from..=to).map(|at| if at == self.hit { &own } else { self.lines[at].text.as_str() }).collect();
        let first = &self.lines[from];
        Evidence { excerpt: texts.join("\n"), offset: first.offset, line: first.line + 1, rule: self.rule.clone() }
    }
}

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
    /// Takes a visible line, and what the rules say of it.
    pub fn line(&mut self, offset: u64, number: u64, visible: &str, failure: Option<Failure>, rules: &Rules) -> Noted {
        let text = text::window(visible, failure.map_or(0, |found| found.at), LINE_BYTES);
        let noted = match failure {
            Some(found) => self.hit(Kept { offset, line: number, text: text.clone().into_owned() }, found, rules),
            None => {
                self.continue_open(|| Kept { offset, line: number, text: text.clone().into_owned() });
                Noted::Plain
            }
        };
        self.remember(offset, number, &text);
        noted
    }

    /// What was found since the last report.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let first_line = self.first_line.map_or(0, |line| line + 1);
        Summary { failures: self.failures, waking: self.waking, first_line }
    }

    /// Whether anything was ever found.
    #[must_use]
    pub const fn found_any(&self) -> bool {
        self.any
    }

    /// The best evidence since the last report, likeliest causes first, at most `max` bytes in all. Begins a new report.
    pub fn take(&mut self, max: usize) -> Vec<Evidence> {
        let mut found = std::mem::take(&mut self.found);
        (self.failures, self.waking, self.first_line) = (0, 0, None);
        found.sort_by_key(|finding| (std::cmp::Reverse(finding.score), finding.line().offset));
        let best = found.first().map_or(0, |finding| finding.score);
        let mut left = max;
        let mut evidence: Vec<Evidence> = Vec::new();
        for finding in found.iter().filter(|finding| finding.score.saturating_add(NOISE) >= best) {
            if left < WORTH_BYTES {
                break;
            }
            let taken = finding.excerpt(left.min(EXCERPT_BYTES));
            left = left.saturating_sub(taken.excerpt.len());
            evidence.push(taken);
        }
        evidence
    }

    /// The last lines, for want of anything better.
    #[must_use]
    pub fn tail(&self, max: usize, rule: &str) -> Option<Evidence> {
        let last = self.recent.len().checked_sub(1)?;
        let from = self.recent.len().saturating_sub(TAIL_LINES);
        let lines: Vec<Kept> = self.recent.range(from..).cloned().collect();
        let hit = last - from;
        let finding = Finding { rule: rule.to_owned(), score: 0, wakes: false, lines, hit, to_come: 0 };
        Some(finding.excerpt(max))
    }

    fn hit(&mut self, line: Kept, found: Failure, rules: &Rules) -> Noted {
        let mut hasher = DefaultHasher::new();
        (found.rule, text::normal(&line.text)).hash(&mut hasher);
        let key = hasher.finish();
        let again = self.seen.contains(&key);
        if !again {
            if self.seen.len() == REMEMBERED {
                self.seen.pop_front();
            }
            self.seen.push_back(key);
        }
        if self.join_open(&line, found, rules) {
            return Noted::Again;
        }
        if again {
            return Noted::Again;
        }
        self.failures += 1;
        self.waking += u64::from(found.wakes);
        self.first_line = Some(self.first_line.map_or(line.line, |first| first.min(line.line)));
        self.any = true;
        self.keep(line, found, rules);
        Noted::New
    }

    /// A hit within the context of the finding before belongs to it; the likelier of the two lines is the one to show.
    fn join_open(&mut self, line: &Kept, found: Failure, rules: &Rules) -> bool {
        let Some(open) = self.found.last_mut().filter(|open| open.to_come > 0 && open.has_room()) else { return false };
        open.lines.push(line.clone());
        open.to_come = (open.to_come - 1).max(found.after);
        if found.wakes && !open.wakes {
            open.wakes = true;
            self.waking += 1;
        }
        if found.score > open.score {
            open.score = found.score;
            open.rule = rules.name(found.rule).to_owned();
            open.hit = open.lines.len() - 1;
        }
        true
    }

    fn continue_open(&mut self, line: impl FnOnce() -> Kept) {
        if let Some(open) = self.found.last_mut().filter(|open| open.to_come > 0) {
            if open.has_room() {
                open.lines.push(line());
                open.to_come -= 1;
            } else {
                open.to_come = 0;
            }
        }
    }

    fn keep(&mut self, line: Kept, found: Failure, rules: &Rules) {
        if let Some(open) = self.found.last_mut() {
            open.to_come = 0;
        }
        if self.found.len() == FINDINGS {
            // The least likely goes, the latest of those first; first causes stay.
            let least = self.found.iter().enumerate().min_by_key(|(at, have)| (have.score, std::cmp::Reverse(*at)));
            match least {
                Some((at, have)) if have.score < found.score => drop(self.found.remove(at)),
                _ => return,
            }
        }
        let from = self.recent.len().saturating_sub(found.before);
        let mut lines: Vec<Kept> = self.recent.range(from..).cloned().collect();
        lines.push(line);
        self.found.push(Finding {
            rule: rules.name(found.rule).to_owned(),
            score: found.score,
            wakes: found.wakes,
            hit: lines.len() - 1,
            lines,
            to_come: found.after,
        });
    }

    /// Blank lines explain nothing.
    fn remember(&mut self, offset: u64, line: u64, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        let mut kept = if self.recent.len() == RECENT { self.recent.pop_front() } else { None }
            .unwrap_or_else(|| Kept { offset, line, text: String::with_capacity(text.len()) });
        kept.text.clear();
        kept.text.push_str(text);
        (kept.offset, kept.line) = (offset, line);
        self.recent.push_back(kept);
    }
}

#[cfg(test)]
mod tests {
    use kernel::agent::ObserveRule;

    use super::*;
    use crate::rules::Limits;

    fn collect(packs: &[&str], text: &str) -> Collector {
        let packs = packs.iter().map(|pack| (*pack).to_owned()).collect();
        let rules = Rules::compile(&ObserveRule { packs, ..ObserveRule::default() }, Limits::default());
        let mut collector = Collector::default();
        let mut offset = 0;
        for (number, line) in text.lines().enumerate() {
            collector.line(offset, number as u64, line, rules.look(line).failure, &rules);
            offset += line.len() as u64 + 1;
        }
        collector
    }

    #[test]
    fn a_failure_comes_with_its_context_and_its_place() {
        let text = "a\nb\nc\nerror[E0308]: mismatched types\n --> src/lib.rs:3:5\n  |\n3 |     1u8\n  |     ^^^\n\nd";
        let evidence = collect(&["cargo"], text).take(2048);
        assert_eq!(evidence.len(), 1);
        assert_eq!(evidence[0].rule, "cargo.rustc_error");
        assert_eq!((evidence[0].line, evidence[0].offset), (4, 6));
        assert!(evidence[0].excerpt.starts_with("error[E0308]") && evidence[0].excerpt.contains("src/lib.rs:3:5"));
    }

    #[test]
    fn evidence_is_bounded_and_repetitions_are_told() {
        let mut text = String::new();
        for number in 0..2000 {
            text += &format!("step {number}\nerror: connection {number} refused by {}\n", "x".repeat(500));
        }
        let mut collector = collect(&[], &text);
        assert_eq!(collector.summary(), Summary { failures: 1, waking: 0, first_line: 2 });
        let evidence = collector.take(2048);
        assert!(evidence.iter().map(|evidence| evidence.excerpt.len()).sum::<usize>() <= 2048);
        assert!(evidence[0].excerpt.contains("connection 0 refused"));
        assert!(collector.take(2048).is_empty(), "told once");
        assert!(collector.found_any());
    }

    #[test]
    fn the_likelier_cause_comes_first_and_noise_is_left_out() {
        let words = ["alpha", "beta", "gamma", "delta"]
            .map(|word| format!("info: an error of {word} was mentioned\n1\n2\n3\n4\n"));
        let text = words.concat() + "main.c:3:5: error: expected ';'\nx\ny\nz\nu\nv\nw\nmake: *** [all] Error 1\n";
        let evidence = collect(&["gcc"], &text).take(2048);
        assert_eq!(evidence[0].rule, "gcc.compiler");
        assert!(evidence.iter().all(|evidence| evidence.rule != "generic.mentioned"), "{evidence:#?}");
    }

    #[test]
    fn a_flood_of_weak_findings_does_not_push_the_cause_out() {
        let mut text = String::from("thread 'main' panicked at src/main.rs:1:1:\nboom\n");
        for number in 0..200 {
            let word: String = number.to_string().chars().map(|digit| char::from(b'a' + digit as u8 - b'0')).collect();
            text += &format!("quiet\nquiet\nquiet\nquiet\nquiet\nquiet\nquiet\nquiet\nan error in {word}\n");
        }
        let mut collector = collect(&["cargo"], &text);
        let evidence = collector.take(2048);
        assert!(evidence[0].excerpt.contains("boom"));
        assert!(collector.found.len() <= FINDINGS && collector.recent.len() <= RECENT);
    }

    #[test]
    fn the_tail_stands_in() {
        let collector = collect(&[], "one\ntwo\n\nthree\n");
        let tail = collector.tail(2048, "tail").unwrap();
        assert_eq!((tail.excerpt.as_str(), tail.line, tail.offset), ("one\ntwo\nthree", 1, 0));
        assert!(Collector::default().tail(2048, "tail").is_none());
    }
}
