//! What kinds of lines there are: templates, mined as they come, after Drain (He et al., ICWS 2017).
//!
//! A line is cut into words; words with digits are variable from the start, others become so when lines differ in them.
//! Lines of the same length in words and the same beginning are compared, and the nearest template takes the line in.
//! What is looked up for nearly every line is one hash of the line with its digits masked; only a line that differs in more
//! than digits from those before goes the long way. Memory is bounded, and all of it fits into a checkpoint.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Templates that are kept; beyond, the rarest quarter of them goes.
pub const TEMPLATES: usize = 1024;
/// Forms of lines that are remembered with their template.
const FORMS: usize = 8192;
/// Words of a line that count.
const WORDS: usize = 24;
/// Bytes of a word, and of a line, that count.
const WORD_BYTES: usize = 40;
const LINE_BYTES: usize = 512;
/// Templates that begin alike and are compared one by one.
const ALIKE: usize = 24;
/// Of a hundred words, so many must be the same.
const SIMILAR: usize = 55;
/// What stands for a variable word.
const ANY: &str = "<*>";
/// When nearly no line was seen before, only each eighth goes the long way.
const CROWDED: u32 = 1 << 10;
/// The time over which lines of a template are counted together.
const WINDOW_MS: i64 = 60_000;
/// A burst is so many lines in a window, and so many times what is usual.
const BURST: u32 = 100;
const BURST_TIMES: f32 = 10.0;
/// Windows before it is known what is usual.
const USUAL_AFTER: u32 = 3;
/// Intervals that are needed to call a line regular, and that it may stay away.
const REGULAR_AFTER: u32 = 8;
const MISSED: f32 = 5.0;
/// What comes more often than this is no heartbeat.
const HEARTBEAT_MS: f32 = 1000.0;

/// A template, by what it was when it was first seen; the same wherever it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TemplateId(pub u64);

/// What is known of a line's template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mined {
    /// Which.
    pub id: TemplateId,
    /// No line was like it before.
    pub is_new: bool,
    /// It comes far more often than usual, for the first time in this window.
    pub burst: Option<u32>,
}

/// A template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Template {
    id: u64,
    words: Vec<Box<str>>,
    count: u64,
    /// Things that ended well and had such lines.
    #[serde(default)]
    passed: u32,
    #[serde(default)]
    window: Window,
}

/// Lines over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Window {
    /// Its number since the epoch.
    number: i64,
    count: u32,
    /// Lines in a window, as a rule, and windows that this was learned from.
    usual: f32,
    windows: u32,
    /// When the last line came, the time between two as a rule, how much that differs, and how often it was learned.
    last_ms: i64,
    interval: f32,
    deviation: f32,
    intervals: u32,
    /// That it stayed away was told.
    missed: bool,
}

/// Mines the lines of one source.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Miner {
    templates: Vec<Template>,
    /// By number of words and first word.
    groups: HashMap<(usize, u64), Vec<u32>, BuildHasherDefault<Mixed>>,
    /// By form.
    forms: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    by_id: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    lines: u64,
    /// Things that ended well and were learned from.
    passed: u32,
    /// Lines in a row, nearly, whose form was not known.
    misses: u32,
    /// Templates have come or changed since this was last asked.
    changed: bool,
}

/// A miner as a checkpoint has it: forms come back by themselves.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Stored {
    templates: Vec<Template>,
    lines: u64,
    passed: u32,
}

impl Miner {
    /// Takes a line in.
    pub fn line(&mut self, line: &[u8], at: Timestamp) -> Option<Mined> {
        self.lines += 1;
        let line = trimmed(line);
        if line.is_empty() {
            return None;
        }
        let form = form(line);
        let (place, is_new) = match self.forms.get(&form) {
            Some(place) => {
                self.misses = self.misses.saturating_sub(1);
                (*place, false)
            }
            None => {
                self.misses = (self.misses + 1).min(2 * CROWDED);
                if self.misses > CROWDED && !self.lines.is_multiple_of(8) {
                    return None;
                }
                self.assign(line, form)
            }
        };
        let template = &mut self.templates[place as usize];
        template.count += 1;
        let burst = template.window.note(at.as_millisecond());
        Some(Mined { id: TemplateId(template.id), is_new, burst })
    }

    /// Lines that were taken in.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// The templates that there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.templates.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }

    /// A template in words, with `<*>` for what varies.
    #[must_use]
    pub fn text(&self, id: TemplateId) -> Option<String> {
        let place = self.by_id.get(&id.0)?;
        Some(self.templates[*place as usize].words.join(" "))
    }

    /// Whether something that ended well had such lines.
    #[must_use]
    pub fn is_background(&self, id: TemplateId) -> bool {
        self.by_id.get(&id.0).is_some_and(|place| self.templates[*place as usize].passed > 0)
    }

    /// Things that ended well and were learned from: without any, nothing is known to be normal.
    #[must_use]
    pub const fn learned(&self) -> u32 {
        self.passed
    }

    /// Something that had lines of these templates ended well.
    pub fn learn(&mut self, seen: impl IntoIterator<Item = TemplateId>) {
        self.passed = self.passed.saturating_add(1);
        self.changed = true;
        for id in seen {
            if let Some(place) = self.by_id.get(&id.0) {
                let passed = &mut self.templates[*place as usize].passed;
                *passed = passed.saturating_add(1);
            }
        }
    }

    /// The templates whose lines came regularly and have stayed away, each told once until it comes again.
    pub fn vanished(&mut self, now: Timestamp) -> Vec<(TemplateId, u64)> {
        let now = now.as_millisecond();
        let missed = self.templates.iter_mut().filter(|template| template.window.is_missed(now));
        missed
            .map(|template| {
                template.window.missed = true;
                (TemplateId(template.id), u64::try_from(now - template.window.last_ms).unwrap_or(0))
            })
            .collect()
    }

    /// Whether anything worth keeping has changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Finds or makes the template of a line whose form is new.
    fn assign(&mut self, line: &[u8], form: u64) -> (u32, bool) {
        let words = words(line);
        let group = (words.len(), words.first().map_or(0, |word| hash(word.as_bytes())));
        let alike = self.groups.get(&group).map(Vec::as_slice).unwrap_or_default();
        let nearest = alike
            .iter()
            .map(|place| (similarity(&self.templates[*place as usize].words, &words), *place))
            .max_by_key(|(same, _)| *same)
            .filter(|(same, _)| same * 100 >= words.len() * SIMILAR || alike.len() >= ALIKE);
        let (place, is_new) = match nearest {
            Some((same, place)) => {
                if same < words.len() {
                    self.widen(place, &words);
                }
                (place, false)
            }
            None => (self.add(words, group), true),
        };
        if self.forms.len() >= FORMS {
            self.forms.clear();
        }
        self.forms.insert(form, place);
        (place, is_new)
    }

    fn widen(&mut self, place: u32, words: &[&str]) {
        let template = &mut self.templates[place as usize];
        for (have, word) in template.words.iter_mut().zip(words) {
            if **have != **word && **have != *ANY {
                *have = ANY.into();
                self.changed = true;
            }
        }
    }

    fn add(&mut self, words: Vec<&str>, group: (usize, u64)) -> u32 {
        if self.templates.len() >= TEMPLATES {
            self.forget();
        }
        let mut id = hash(words.join(" ").as_bytes());
        while self.by_id.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        let place = u32::try_from(self.templates.len()).unwrap_or(u32::MAX);
        let words = words.into_iter().map(Box::from).collect();
        self.templates.push(Template { id, words, count: 0, passed: 0, window: Window::default() });
        self.by_id.insert(id, place);
        self.groups.entry(group).or_default().push(place);
        self.changed = true;
        place
    }

    /// The rarest quarter of the templates goes; those that were seen where all went well go last.
    fn forget(&mut self) {
        self.templates.sort_by_key(|template| std::cmp::Reverse((template.passed > 0, template.count)));
        self.templates.truncate(TEMPLATES * 3 / 4);
        self.forms.clear();
        self.index();
    }

    fn index(&mut self) {
        self.by_id.clear();
        self.groups.clear();
        for (place, template) in (0_u32..).zip(&self.templates) {
            self.by_id.insert(template.id, place);
            let first = template.words.first().map_or(0, |word| hash(word.as_bytes()));
            self.groups.entry((template.words.len(), first)).or_default().push(place);
        }
    }
}

impl From<Stored> for Miner {
    fn from(mut stored: Stored) -> Self {
        stored.templates.truncate(TEMPLATES);
        let Stored { templates, lines, passed } = stored;
        let mut miner = Self { templates, lines, passed, ..Self::default() };
        miner.index();
        miner
    }
}

impl From<Miner> for Stored {
    fn from(miner: Miner) -> Self {
        Self { templates: miner.templates, lines: miner.lines, passed: miner.passed }
    }
}

impl Window {
    /// Counts a line, and says when it is one of a burst.
    fn note(&mut self, now: i64) -> Option<u32> {
        self.learn_interval(now);
        let number = now.div_euclid(WINDOW_MS);
        if number != self.number {
            if self.number > 0 {
                let passed = number.saturating_sub(self.number).clamp(1, 60);
                for window in 0..passed {
                    let count = if window == 0 { self.count as f32 } else { 0.0 };
                    self.usual = if self.windows == 0 { count } else { self.usual.mul_add(0.7, 0.3 * count) };
                    self.windows = self.windows.saturating_add(1);
                }
            }
            (self.number, self.count) = (number, 0);
        }
        self.count = self.count.saturating_add(1);
        let limit = (self.usual.max(1.0) * BURST_TIMES).max(BURST as f32);
        (self.windows >= USUAL_AFTER && self.count as f32 == limit.ceil()).then_some(self.count)
    }

    fn learn_interval(&mut self, now: i64) {
        let interval = now.saturating_sub(self.last_ms) as f32;
        if self.last_ms > 0 && interval > 0.0 && !self.missed {
            if self.intervals == 0 {
                self.interval = interval;
            } else {
                self.deviation = self.deviation.mul_add(0.8, 0.2 * (interval - self.interval).abs());
                self.interval = self.interval.mul_add(0.8, 0.2 * interval);
            }
            self.intervals = self.intervals.saturating_add(1);
        }
        self.last_ms = self.last_ms.max(now);
        self.missed = false;
    }

    fn is_missed(&self, now: i64) -> bool {
        !self.missed
            && self.intervals >= REGULAR_AFTER
            && self.interval >= HEARTBEAT_MS
            && self.deviation < self.interval * 0.3
            && now.saturating_sub(self.last_ms) as f32 > self.interval * MISSED
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    let line = &line[..line.len().min(LINE_BYTES)];
    line.trim_ascii()
}

/// A hash of a line with each digit masked: eight bytes at a time.
fn form(line: &[u8]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mask = |chunk: u64| {
        // Bytes from 0x30 to 0x39 have bit 7 set in `digit`, exactly, for bytes below 0x80.
        let low = chunk & !HIGH;
        let at_least = low + ONES * (0x80 - 0x30);
        let beyond = low + ONES * (0x80 - 0x3a);
        let digit = at_least & !beyond & !chunk & HIGH;
        let bytes = (digit >> 7) * 0xff;
        (chunk & !bytes) | (bytes & (ONES * u64::from(b'#')))
    };
    let mut mixed = line.len() as u64 / 8;
    let (chunks, rest) = line.as_chunks::<8>();
    for chunk in chunks {
        mixed = (mixed ^ mask(u64::from_le_bytes(*chunk))).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    let mut last = [0_u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    (mixed ^ mask(u64::from_le_bytes(last))).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mixed >> 32
}

/// The words of a line, those with digits masked.
fn words(line: &[u8]) -> Vec<&str> {
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).take(WORDS);
    words
        .map(|word| {
            let is_variable = word.len() > WORD_BYTES || word.iter().any(u8::is_ascii_digit);
            if is_variable { ANY } else { std::str::from_utf8(word).unwrap_or(ANY) }
        })
        .collect()
}

fn similarity(template: &[Box<str>], words: &[&str]) -> usize {
    template.iter().zip(words).filter(|(have, word)| &***have == **word || &***have == ANY).count()
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// For keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| (hash.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x517c_c1b7_2722_0a95));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// Which templates something has had, with how often: bounded, and small in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seen(std::collections::BTreeMap<TemplateId, u32>);

impl Seen {
    /// Counts a line of this template, and says how many there are now. Beyond the bound, new ones count as one.
    pub fn add(&mut self, id: TemplateId) -> u32 {
        if let Some(count) = self.0.get_mut(&id) {
            *count = count.saturating_add(1);
            return *count;
        }
        if self.0.len() < TEMPLATES / 2 {
            self.0.insert(id, 1);
        }
        1
    }

    /// How often it came.
    #[must_use]
    pub fn count(&self, id: TemplateId) -> u32 {
        self.0.get(&id).copied().unwrap_or(0)
    }

    /// All of them.
    pub fn ids(&self) -> impl Iterator<Item = TemplateId> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    fn mine(miner: &mut Miner, line: &str) -> Mined {
        miner.line(line.as_bytes(), at(1000)).unwrap()
    }

    #[test]
    fn lines_of_a_kind_have_one_template() {
        let mut miner = Miner::default();
        let first = mine(&mut miner, "connected to host alpha after 12 ms");
        assert!(first.is_new);
        for line in ["connected to host beta after 3 ms", "connected to host gamma after 1234 ms"] {
            assert_eq!(mine(&mut miner, line), Mined { is_new: false, ..first });
        }
        let other = mine(&mut miner, "lost the connection to host alpha");
        assert!(other.is_new && other.id != first.id);
        assert_eq!(miner.text(first.id).unwrap(), "connected to host <*> after <*> ms");
        assert_eq!(miner.len(), 2);
    }

    #[test]
    fn what_went_well_is_background_and_what_is_new_is_not() {
        let mut miner = Miner::default();
        let known = mine(&mut miner, "Failed to upload report 7: access denied");
        let mut seen = Seen::default();
        seen.add(known.id);
        miner.learn(seen.ids());
        let again = mine(&mut miner, "Failed to upload report 912: access denied");
        let new = mine(&mut miner, "assertion failed: left == right");
        assert!(miner.is_background(again.id) && !miner.is_background(new.id));
        assert_eq!(miner.learned(), 1);
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let mut miner = Miner::default();
        for number in 0..60_000_u32 {
            let word = |shift: u32| char::from(b'a' + ((number >> shift) % 26) as u8);
            let line =
                format!("{}{}{} word{} {}", word(0), word(5), word(10), word(3), "x ".repeat(number as usize % 20));
            miner.line(line.as_bytes(), at(i64::from(number)));
        }
        assert!(miner.len() <= TEMPLATES && miner.forms.len() <= FORMS);
        let stored = serde_json::to_string(&miner).unwrap();
        assert!(stored.len() < 512 * 1024, "{}", stored.len());
    }

    #[test]
    fn bursts_and_vanished_heartbeats_are_noticed() {
        let mut miner = Miner::default();
        let mut bursts = Vec::new();
        for minute in 0..10_i64 {
            let lines = if minute == 8 { 500 } else { 5 };
            for line in 0..lines {
                let now = at(1 + minute * 60_000 + line * 60_000 / lines);
                bursts.extend(miner.line(b"request failed", now).unwrap().burst.map(|count| (minute, count)));
            }
        }
        assert_eq!(bursts, [(8, 100)]);
        let mut miner = Miner::default();
        for beat in 0..20 {
            miner.line(format!("still alive, beat {beat}").as_bytes(), at(1 + beat * 5000));
        }
        assert!(miner.vanished(at(1 + 19 * 5000 + 20_000)).is_empty());
        assert_eq!(miner.vanished(at(1 + 19 * 5000 + 26_000)).len(), 1);
        assert!(miner.vanished(at(1 + 19 * 5000 + 99_000)).is_empty(), "told once");
    }

    #[test]
    fn a_checkpoint_keeps_what_was_learned() {
        let mut miner = Miner::default();
        let known = mine(&mut miner, "warning: it is slow today");
        miner.learn([known.id]);
        let mut again: Miner = serde_json::from_str(&serde_json::to_string(&miner).unwrap()).unwrap();
        let found = mine(&mut again, "warning: it is slow today");
        assert_eq!((found.id, found.is_new), (known.id, false));
        assert!(again.is_background(found.id));
    }

    proptest! {
        #[test]
        fn digits_make_no_difference_and_anything_is_survived(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let masked: Vec<u8> = line.iter().map(|byte| if byte.is_ascii_digit() { b'7' } else { *byte }).collect();
            prop_assert_eq!(form(&line), form(&masked));
            Miner::default().line(&line, at(1));
        }
    }
}
