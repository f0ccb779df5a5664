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
    pub fn line(&mut self, line: &[u8]) -> Option<Mined> {
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
        Some(Mined { id: TemplateId(template.id), is_new })
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
        self.templates.push(Template { id, words, count: 0, passed: 0 });
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
pub(crate) struct Mixed(u64);

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mine(miner: &mut Miner, line: &str) -> Mined {
        miner.line(line.as_bytes()).unwrap()
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
        miner.learn([known.id]);
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
            miner.line(line.as_bytes());
        }
        assert!(miner.len() <= TEMPLATES && miner.forms.len() <= FORMS);
        let stored = serde_json::to_string(&miner).unwrap();
        assert!(stored.len() < 512 * 1024, "{}", stored.len());
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
            Miner::default().line(&line);
        }
    }
}
