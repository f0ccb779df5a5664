//! One failure that lines show, and how likely it is the cause.

use std::hash::{DefaultHasher, Hash, Hasher};

use kernel::call::Evidence;
use serde::{Deserialize, Serialize};

use super::trace::Part;
use crate::{
    rules::{Failure, OWN_SCORE},
    text,
};

/// Most bytes and lines of what is kept of one.
const KEPT_BYTES: usize = 900;
const KEPT_LINES: usize = 24;
/// What comes so often is part of how things are.
const OFTEN: u32 = 4;
/// A likely cause this near before a sign of failure makes the sign needless; without one, what led to it is shown.
const LIKELY: i32 = 62;
const NEAR: u64 = 25;
/// What is said just before the first sign of failure, whatever it looks like.
const LEADS: Rank = 70;

/// What a line of a new kind is called, and how likely it is a cause.
pub(super) const NOVEL: &str = "new kind of line";
const NOVEL_SCORE: u8 = 42;

/// Lines of frames that are kept of a stack trace: the last ones, nearest to what went wrong; and those after which it is none.
const FRAMES: usize = 4;
const TRACE_LINES: u32 = 600;
/// How likely what a stack trace ends in is the cause, and the lines that still belong to it.
const RAISED_SCORE: u8 = 87;
const AFTER_RAISED: usize = 3;
/// What stands for frames that are left out.
const LEFT_OUT: &str = "  \u{2026}";
/// Most bytes of findings that touch each other and are shown as one.
const JOINED_BYTES: usize = 1300;

/// How likely a finding is the cause.
pub(crate) type Rank = i32;

/// A visible line and where it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) offset: u64,
    pub(crate) line: u64,
    pub(crate) text: String,
}

/// A failure that a line shows, with its context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) rule: String,
    /// The same for what is the same but for its numbers.
    pub(super) key: u64,
    pub(super) score: u8,
    pub(super) wakes: bool,
    pub(super) is_consequence: bool,
    pub(super) lines: Vec<Kept>,
    /// Place of the line in `lines`.
    pub(super) hit: usize,
    /// Lines that still belong to it.
    pub(super) to_come: usize,
    /// How often it came.
    pub(super) times: u32,
    /// A sign of failure came soon after it.
    pub(super) led: bool,
    pub(super) quoted: bool,
    pub(super) is_background: bool,
    /// What failed has passed since.
    pub(super) recovered: bool,
    /// Frames of the stack trace that it is in, so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<u32>,
}

impl Finding {
    pub(super) fn line(&self) -> &Kept {
        &self.lines[self.hit.min(self.lines.len() - 1)]
    }

    pub(super) fn last_line(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.line)
    }

    pub(super) const fn is_own(&self) -> bool {
        self.score == OWN_SCORE
    }

    /// Whether the lines of a stack trace are expected.
    pub(super) const fn in_trace(&self) -> bool {
        self.trace.is_some()
    }

    pub(super) const fn begin_trace(&mut self) {
        self.trace = Some(0);
    }

    /// Takes a line within a stack trace: of its frames the last ones are kept, and what it ends in is what counts. `said`: what
    /// the rules say of the line, and the rule's name.
    pub(super) fn trace(&mut self, line: Kept, part: Part, said: Option<(&str, Failure)>) {
        let frames = self.trace.unwrap_or_default();
        match part {
            Part::Blank => {}
            Part::Frame if frames < TRACE_LINES => {
                self.trace = Some(frames + 1);
                self.lines.push(line);
                if frames as usize >= FRAMES {
                    self.leave_out(self.lines.len().saturating_sub(FRAMES + 1));
                }
            }
            Part::Frame => (self.trace, self.to_come) = (None, 0),
            Part::End => {
                (self.trace, self.to_come) = (None, AFTER_RAISED);
                self.lines.push(line);
                self.end_trace(said);
            }
        }
    }

    /// The frame at this place goes; a mark stands for it and those that went before it.
    fn leave_out(&mut self, place: usize) {
        let is_marked = place.checked_sub(1).is_some_and(|before| self.lines[before].text == LEFT_OUT);
        if is_marked {
            self.lines.remove(place);
        } else {
            self.lines[place].text = LEFT_OUT.to_owned();
        }
    }

    fn end_trace(&mut self, said: Option<(&str, Failure)>) {
        if let Some((_, said)) = said.filter(|(_, said)| said.is_consequence) {
            // It only passes on that something else failed. What that was stands elsewhere, or else before it.
            self.is_consequence |= self.score < RAISED_SCORE;
            self.wakes |= said.wakes();
            self.hit = self.lines.len() - 1;
            return;
        }
        let score = said.map_or(RAISED_SCORE, |(_, said)| said.score.max(RAISED_SCORE));
        if score > self.score && !self.is_own() {
            self.score = score;
            self.hit = self.lines.len() - 1;
            self.is_consequence = false;
            if let Some((rule, said)) = said {
                self.rule = rule.to_owned();
                self.wakes |= said.wakes();
            }
        }
    }

    fn touches(&self, other: &Self) -> bool {
        let lines = |finding: &Self| {
            let first = finding.lines.first().map_or(0, |line| line.line);
            (first, finding.last_line().max(first))
        };
        let ((from, to), (other_from, other_to)) = (lines(self), lines(other));
        other_from <= to + 1 && from <= other_to + 1
    }

    /// Takes the lines of another one, each once; its own line stays the one that counts.
    fn join(&mut self, other: Self) {
        let own = self.line().offset;
        self.lines.extend(other.lines);
        self.lines.sort_by_key(|line| line.offset);
        self.lines.dedup_by_key(|line| line.offset);
        self.hit = self.lines.iter().position(|line| line.offset == own).unwrap_or(0);
    }

    /// Most bytes of it that are worth showing.
    pub(super) fn most(&self) -> usize {
        self.bytes().min(JOINED_BYTES)
    }

    fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.text.len() + 1).sum()
    }

    pub(super) fn has_room(&self) -> bool {
        self.lines.len() < KEPT_LINES && self.bytes() < KEPT_BYTES
    }

    /// By itself.
    fn rank(&self) -> Rank {
        let mut rank = Rank::from(self.score);
        if self.is_own() {
            return rank - if self.recovered { 60 } else { 0 };
        }
        rank += if self.led { 8 } else { 0 };
        rank -= if self.times >= OFTEN && self.score < 80 { 20 } else { 0 };
        rank -= if self.quoted { 25 } else { 0 };
        rank -= if self.is_background { 40 } else { 0 };
        rank - if self.recovered { 60 } else { 0 }
    }

    /// The line that was hit and as much around it as fits and is not shown yet, nearest first.
    pub(super) fn excerpt(&self, max: usize, shown: &mut Vec<u64>) -> Evidence {
        let own = text::window(&self.line().text, 0, max);
        let (mut from, mut to, mut left) = (self.hit, self.hit, max.saturating_sub(own.len()));
        let is_new = |line: &&Kept| !shown.contains(&line.offset);
        loop {
            let need = |line: &Kept| line.text.len() + 1;
            let before = from.checked_sub(1).map(|at| &self.lines[at]).filter(is_new).map(need);
            let after = self.lines.get(to + 1).filter(is_new).map(need);
            let (before, after) = (before.filter(|need| *need <= left), after.filter(|need| *need <= left));
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
        let evidence = Evidence {
            excerpt: texts.join("\n"),
            offset: first.offset,
            line: first.line + 1,
            rule: self.rule.clone(),
            ..Evidence::default()
        };
        shown.extend(self.lines[from..=to].iter().map(|line| line.offset));
        evidence
    }
}

/// How likely each is the cause, given the others.
pub(super) fn ranks(found: &[Finding]) -> Vec<Rank> {
    let alone: Vec<Rank> = found.iter().map(Finding::rank).collect();
    let mut signs = 0;
    found
        .iter()
        .zip(&alone)
        .map(|(finding, rank)| {
            if !finding.is_consequence || finding.hit == 0 {
                return *rank;
            }
            let line = finding.line().line;
            let explains = |(other, rank): (&Finding, &Rank)| {
                !other.is_consequence
                    && *rank >= LIKELY
                    && (line.saturating_sub(NEAR)..=line).contains(&other.line().line)
            };
            if found.iter().zip(&alone).any(explains) {
                return *rank;
            }
            // What led to the first sign of failure is worth more than what led to those after it.
            signs += 1;
            (LEADS - 4 * signs + 4).max(*rank)
        })
        .collect()
}

/// With their ranks.
pub(super) fn ranked(found: Vec<Finding>) -> Vec<(Rank, Finding)> {
    ranks(&found).into_iter().zip(found).collect()
}

/// Those that touch each other as one, with the rank of the likelier; they come with the likeliest first. What is noise beside
/// another stays by itself.
pub(super) fn joined(ranked: Vec<(Rank, Finding)>, noise: Rank) -> Vec<(Rank, Finding)> {
    let mut joined: Vec<(Rank, Finding)> = Vec::new();
    for (rank, finding) in ranked {
        let fits = |(have, other): &&mut (Rank, Finding)| {
            rank + noise >= *have && other.touches(&finding) && other.bytes() + finding.bytes() <= JOINED_BYTES
        };
        match joined.iter_mut().find(fits) {
            Some((_, other)) => other.join(finding),
            None => joined.push((rank, finding)),
        }
    }
    joined
}

/// The last lines as a finding; the last one is what counts.
pub(super) fn tail(lines: Vec<Kept>, rule: &str) -> Finding {
    plain(lines, rule, 0, 0)
}

/// A line of a kind that was never there when all went well; it is the last of these.
pub(super) fn novel(lines: Vec<Kept>) -> Finding {
    plain(lines, NOVEL, NOVEL_SCORE, 2)
}

fn plain(lines: Vec<Kept>, rule: &str, score: u8, to_come: usize) -> Finding {
    Finding {
        rule: rule.to_owned(),
        key: 0,
        score,
        wakes: false,
        is_consequence: false,
        hit: lines.len().saturating_sub(1),
        lines,
        to_come,
        times: 1,
        led: false,
        quoted: false,
        is_background: false,
        recovered: false,
        trace: None,
    }
}

/// The same for lines that differ in numbers alone.
pub(super) fn key(rule: usize, text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (rule, text::normal(text)).hash(&mut hasher);
    hasher.finish()
}

/// The name of the test that a line is about: `a::b`, `tests/x.py::test_y`, `TestName`.
pub(super) fn test_name(text: &str) -> Option<&str> {
    let is_name = |word: &&str| word.contains("::") || word.starts_with("Test") || word.contains("test_");
    let edge = |letter: char| !letter.is_alphanumeric() && letter != '_';
    text.split_whitespace().map(|word| word.trim_matches(edge)).find(is_name)
}

/// Whether `name` stands in `line` as a whole.
pub(super) fn names(line: &[u8], name: &str) -> bool {
    let Some(at) = memchr::memmem::find(line, name.as_bytes()) else { return false };
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'[' | b':' | b'.' | b'-' | b'/');
    !line.get(at + name.len()).is_some_and(goes_on)
}

/// Whether a line says that what it is about went well.
pub(super) fn says_passed(line: &[u8]) -> bool {
    let has = |word: &str| memchr::memmem::find(line, word.as_bytes()).is_some();
    let well = ["PASS", " ok", "passed", "succe", "\u{2713}", "\u{2714}", "RECOVERED"].into_iter().any(has);
    well && !has("FAILED") && !has("not ok")
}
