//! What a run has seen, as far as values can come from it.

use std::collections::{HashMap, HashSet};

use jiff::civil::Date;
use serde_json::Value;

use super::dates::Moments;
use super::labels::{Labels, Output};
use super::lookup::SHORT;
use super::normal;
use super::numbers::{self, Figure};
use crate::arguments::MAX_VALUES;
use crate::request::Trust;

/// Bytes of text that are kept of what is believed, and as many of what is not. What is beyond is as if it had not been seen:
/// a value that is only there is asked about.
pub const MAX_SOURCE_BYTES: usize = 1 << 20;
/// Values of results that are kept.
const MAX_RECORDED: usize = 50_000;
/// Numbers of results that sums are tried with.
const MAX_FIGURES: usize = 2000;
/// Deeper values of results are not looked at.
const MAX_DEPTH: usize = 64;

/// What a run has seen. Feed it in the order of the log.
#[derive(Debug, Default)]
pub struct Sources {
    pub(super) texts: Vec<Text>,
    /// By what is recorded, and of a number by the name that it is recorded under, too.
    pub(super) recorded: HashMap<(Option<String>, String), Recorded>,
    /// Numbers, with the names that they are recorded under; none if a person gave one for whatever it is.
    pub(super) figures: Vec<(i128, Option<String>, Recorded)>,
    /// Not all of what strangers said is kept, so that nobody knows what they speak of.
    pub(super) overflowed: bool,
    believed: usize,
    doubted: usize,
}

/// A text that values may be named in.
#[derive(Debug)]
pub(super) struct Text {
    pub trust: Trust,
    pub source: String,
    pub normal: String,
    /// In small letters.
    pub folded: String,
    pub figures: Vec<Figure>,
    pub moments: Moments,
}

/// Who vouches for a value.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub trust: Trust,
    pub source: String,
}

impl Sources {
    /// Somebody's words. `today` is when they were written.
    pub fn text(&mut self, text: &str, trust: Trust, source: impl Into<String>, today: Option<Date>) {
        let believed = trust > Trust::Untrusted;
        let used = if believed { &mut self.believed } else { &mut self.doubted };
        let room = MAX_SOURCE_BYTES.saturating_sub(*used);
        self.overflowed |= !believed && text.len() > room;
        let text = cut(text, room);
        if text.is_empty() {
            return;
        }
        *used += text.len();
        let normal = normal::text(text);
        let normal = if trust == Trust::Operator { normal::sentences(&normal) } else { normal };
        let folded = normal.to_lowercase();
        let (figures, moments) =
            if believed { (numbers::figures(&normal), Moments::read(&folded, today)) } else { Default::default() };
        self.texts.push(Text { trust, source: source.into(), normal, folded, figures, moments });
    }

    /// Not all that was seen is fed in: nobody knows what strangers said in the rest.
    pub const fn incomplete(&mut self) {
        self.overflowed = true;
    }

    /// What a tool gave back, with what its author says about it. `arguments` are those of the call: what a tool only gives
    /// back as it was given is vouched for by nobody. What is not vouched for is worth `trust`.
    pub fn result(&mut self, value: &Value, labels: &Labels, arguments: &Value, trust: Trust, source: &str) {
        let given = Given::new(arguments);
        // Text by text and not as JSON, where `\n` and quotes would stick to the words.
        let mut words = String::new();
        let mut open = vec![(value, Output::new(labels.output()), String::new(), 0)];
        while let Some((value, output, pointer, depth)) = open.pop() {
            if depth > MAX_DEPTH || self.recorded.len() >= MAX_RECORDED {
                self.overflowed = true;
                break;
            }
            let place = |key: &str| format!("{pointer}/{key}");
            match value {
                Value::Array(items) => {
                    let items = items.iter().enumerate();
                    open.extend(items.map(|(at, item)| (item, output.item(), place(&at.to_string()), depth + 1)));
                }
                Value::Object(fields) => {
                    for (key, field) in fields {
                        let below = output.field(key);
                        if !below.is_named() {
                            words.push_str(key);
                            words.push('\n');
                        }
                        open.push((field, below, place(key), depth + 1));
                    }
                }
                leaf => match output.trust().filter(|trust| *trust > Trust::Untrusted) {
                    Some(trust) if !given.holds(leaf) => {
                        self.record(leaf, name(&pointer), trust, format!("{source}#{pointer}"));
                    }
                    Some(_) => {}
                    None => {
                        words.push_str(&leaf.as_str().map_or_else(|| leaf.to_string(), str::to_owned));
                        words.push('\n');
                    }
                },
            }
        }
        self.text(&words, trust, source, None);
    }

    /// A value that somebody vouches for, as a whole. A number is one under its name: a count is no amount.
    fn record(&mut self, leaf: &Value, name: Option<String>, trust: Trust, source: String) {
        let recorded = Recorded { trust, source };
        let text = match leaf {
            Value::String(text) => normal::value(text),
            Value::Number(number) => {
                let known = |figure: &i128| {
                    self.figures.iter().any(|(other, of, by)| other == figure && *of == name && by.trust >= trust)
                };
                let room = self.figures.len() < MAX_FIGURES;
                if let Some(figure) = numbers::exact(number).filter(|figure| room && !known(figure)) {
                    self.figures.push((figure, name.clone(), recorded.clone()));
                }
                Some(number.to_string())
            }
            _ => None,
        };
        if let Some(text) = text {
            let name = name.filter(|_| numbers::is_number(&text));
            let kept = self.recorded.entry((name, text)).or_insert_with(|| recorded.clone());
            if kept.trust < recorded.trust {
                *kept = recorded;
            }
        }
    }

    /// The arguments of a call as an operator edited them. What the operator left as it was stays what it was: a yes to one
    /// call is no yes to the next that uses the same values.
    pub fn edited(&mut self, before: &Value, after: &Value, source: &str) {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        leaves(before, 0, &mut old);
        leaves(after, 0, &mut new);
        let old: HashSet<_> = old.into_iter().map(plain).collect();
        for value in new.into_iter().filter(|value| !old.contains(&plain(value))) {
            self.record(value, None, Trust::Operator, source.to_owned());
        }
    }
}

/// What a call was given, and so may only be given back.
struct Given {
    whole: HashSet<String>,
    /// One after the other; none if it is too much to be looked through again and again.
    texts: Option<String>,
}

impl Given {
    fn new(arguments: &Value) -> Self {
        let mut values = Vec::new();
        leaves(arguments, 0, &mut values);
        let whole: HashSet<_> = values.into_iter().map(plain).collect();
        let bytes: usize = whole.iter().map(|text| text.len() + 1).sum();
        let texts = (bytes <= MAX_GIVEN).then(|| whole.iter().flat_map(|text| [text.as_str(), "\n"]).collect());
        Self { whole, texts }
    }

    /// Also as a part of what was given, or written a little otherwise: a tool that trims a name, or takes an address out of a
    /// query, gives it back all the same.
    fn holds(&self, value: &Value) -> bool {
        let value = plain(value);
        let Some(texts) = &self.texts else { return true };
        self.whole.contains(&value) || (value.chars().count() > SHORT && texts.contains(&value))
    }
}

/// Bytes of arguments that a result is compared with. Of a call that was given more, nothing is vouched for.
const MAX_GIVEN: usize = 16 << 10;

/// A plain value in one form.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => normal::text(text).to_lowercase(),
        // `10.0` is `10`.
        Value::Number(number) => numbers::exact(number)
            .filter(|micros| micros % 1_000_000 == 0)
            .map_or_else(|| number.to_string(), |micros| (micros / 1_000_000).to_string()),
        other => other.to_string(),
    }
}

/// What the value at a pointer is called: `id` of `/0/file_ids/3`, of `/id_` and of `/eventId`.
pub(super) fn name(pointer: &str) -> Option<String> {
    let last = pointer.rsplit('/').find(|part| !part.is_empty() && !part.bytes().all(|byte| byte.is_ascii_digit()))?;
    let word = last.rsplit(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty()).unwrap_or(last);
    // A capital letter behind a small one begins a word.
    let letters = word.char_indices().zip(word.chars().skip(1));
    let humps = letters.filter(|((_, before), c)| before.is_lowercase() && c.is_uppercase());
    let hump = humps.last().map_or(0, |((at, before), _)| at + before.len_utf8());
    let word = word[hump..].to_lowercase();
    let one = word.strip_suffix('s').filter(|one| !one.is_empty() && !one.ends_with('s'));
    Some(one.map_or_else(|| word.clone(), str::to_owned))
}

/// At most `room` bytes of a text, without a word that is cut in two: half an address may be another address.
fn cut(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let whole = text[..end].rfind(char::is_whitespace).unwrap_or_default();
    &text[..whole]
}

/// The values of arguments. Those with more than are taken are not judged, and so denied.
fn leaves<'a>(value: &'a Value, depth: usize, into: &mut Vec<&'a Value>) {
    if depth > MAX_DEPTH || into.len() >= MAX_VALUES {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| leaves(item, depth + 1, into)),
        Value::Object(fields) => fields.values().for_each(|field| leaves(field, depth + 1, into)),
        Value::Null => {}
        leaf => into.push(leaf),
    }
}
