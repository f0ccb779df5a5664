//! Looking for one value in all that a run has seen. The best place wins.

use serde_json::Number;

use super::Care;
use super::dates::{Wanted, is_edge_of_day};
use super::labels::Place;
use super::normal;
use super::numbers;
use super::references::{plain, references};
use super::sources::{Recorded, Sources, Text, name};
use crate::request::Trust;

/// Bytes that are looked through for the arguments of one call. What comes after counts as not found.
const MAX_READ: usize = 64 << 20;
/// Sums that are tried for the arguments of one call.
const MAX_SUMS: usize = 200_000;
/// Characters of a value that may stand in a text by chance.
pub(super) const SHORT: usize = 3;
/// Parts that a list in one text may have.
const MAX_PARTS: usize = 100;

/// Where a value was found.
#[derive(Clone, Debug)]
pub struct Found {
    pub trust: Trust,
    pub source: String,
    pub rule: String,
}

impl Found {
    fn new(trust: Trust, source: &str, rule: impl Into<String>) -> Self {
        Self { trust, source: source.to_owned(), rule: rule.into() }
    }

    fn nowhere(rule: &str) -> Self {
        Self::new(Trust::Untrusted, "nowhere", rule)
    }
}

/// What leaves no choice.
pub fn fixed() -> Found {
    Found::new(Trust::System, "tool", "the tool's file gives this value")
}

/// Looks for the values of one call.
pub struct Lookup<'a> {
    sources: &'a Sources,
    care: Care,
    /// What the value that is looked for is called.
    name: Option<String>,
    /// What may still be read.
    left: usize,
    sums: usize,
}

impl<'a> Lookup<'a> {
    pub fn new(sources: &'a Sources, care: Care) -> Self {
        Self { sources, care, name: None, left: MAX_READ, sums: MAX_SUMS }
    }

    /// Where the value stands that is looked for next.
    pub fn stands_at(&mut self, pointer: &str) {
        self.name = name(pointer);
    }

    /// A text as a whole.
    pub fn text(&mut self, value: &str, place: &Place<'_>) -> Found {
        if value.is_empty() {
            return Found::new(Trust::System, "runtime", "it is empty");
        }
        let Some(normal) = normal::value(value) else {
            return Found::nowhere("it holds characters that can't be seen, or that look like others");
        };
        let found = self.best(&normal, place).or_else(|| self.list(value, place));
        self.settle(found, &normal)
    }

    /// A number, by its value.
    pub fn number(&mut self, number: &Number) -> Found {
        let text = number.to_string();
        let Some(wanted) = numbers::exact(number) else { return self.settle(None, &text) };
        let named = believed(self.sources).find(|text| text.figures.iter().any(|figure| figure.micros == wanted));
        let named = named.map(|text| Found::new(text.trust, &text.source, "the number is named"));
        let figures = self.figures().filter(|(figure, _)| *figure == wanted).map(|(_, by)| by);
        let recorded = figures
            .chain(self.recorded(&text))
            .map(|by| Found::new(by.trust, &by.source, "the number is recorded there"));
        let found = named.into_iter().chain(recorded).max_by_key(|found| found.trust).or_else(|| self.sum(wanted));
        self.settle(found, &text)
    }

    /// What a text refers to, if it refers to something: worth the least of it.
    pub fn references(&mut self, value: &str) -> Option<Found> {
        let plain = plain(value);
        let (words, complete) = references(&plain);
        let found = words.into_iter().map(|word| {
            let found = self.text(word, &Place::nowhere());
            Found { rule: format!("of what it refers to, the least: {}", found.rule), ..found }
        });
        let lowest = found.min_by_key(|found| found.trust);
        if complete { lowest } else { Some(Found::nowhere("it refers to too many things to look for")) }
    }

    fn best(&mut self, value: &str, place: &Place<'_>) -> Option<Found> {
        let named = self.named(value).map(|text| Found::new(text.trust, &text.source, "it is named"));
        if named.as_ref().is_some_and(|found| found.trust == Trust::Operator) {
            return named;
        }
        let recorded = self.recorded(value).map(|by| Found::new(by.trust, &by.source, "it is recorded there"));
        let words = place.words(value).find_map(|word| {
            let text = self.named(&normal::value(word)?)?;
            Some(Found::new(text.trust, &text.source, format!("the tool's file says that {word:?} means it")))
        });
        let moment = self.moment(value);
        [named, words, moment, recorded].into_iter().flatten().max_by_key(|found| found.trust)
    }

    /// Who vouches for the value: of a number, under the name that it is wanted for.
    fn recorded(&self, value: &str) -> Option<&'a Recorded> {
        let recorded = &self.sources.recorded;
        let name = self.name.clone().filter(|_| numbers::is_number(value));
        let of = |name| recorded.get(&(name, value.to_owned()));
        let named = name.is_some().then(|| of(name)).flatten();
        named.into_iter().chain(of(None)).max_by_key(|by| by.trust)
    }

    /// Recorded numbers that may be what is wanted here.
    fn figures(&self) -> impl Iterator<Item = (i128, &'a Recorded)> {
        let fits = |of: &Option<String>| of.is_none() || *of == self.name;
        self.sources.figures.iter().filter(move |(_, of, _)| fits(of)).map(|(figure, _, by)| (*figure, by))
    }

    /// The most trusted text that holds the value.
    fn named(&mut self, value: &str) -> Option<&'a Text> {
        let sources = self.sources;
        believed(sources).find(|text| self.holds(text, value))
    }

    fn holds(&mut self, text: &Text, value: &str) -> bool {
        let Some(left) = self.left.checked_sub(text.normal.len()) else { return false };
        self.left = left;
        let bare = normal::bare(value);
        if normal::is_caseless(bare) {
            normal::holds(&text.folded, &bare.to_lowercase())
        } else {
            normal::holds(&text.normal, bare)
        }
    }

    /// A date or time that follows from what was said.
    fn moment(&self, value: &str) -> Option<Found> {
        let wanted = Wanted::read(value)?;
        let day =
            wanted.date.map(|date| believed(self.sources).find_map(|text| Some((text, text.moments.names_day(date)?))));
        let time = wanted.time.map(|time| {
            let named = believed(self.sources).find_map(|text| Some((text, text.moments.names_time(time)?)));
            // The edges of a day that was named say no more than the day does.
            named.or_else(|| day.flatten().filter(|_| is_edge_of_day(time)))
        });
        let parts = [day, time].into_iter().flatten().collect::<Option<Vec<_>>>()?;
        let (text, _) = parts.iter().min_by_key(|(text, _)| text.trust)?;
        let mut rules: Vec<_> = parts.iter().map(|(_, rule)| *rule).collect();
        rules.dedup();
        Some(Found::new(text.trust, &text.source, rules.join(" and ")))
    }

    /// A list in one text: worth the least of its parts.
    fn list(&mut self, value: &str, place: &Place<'_>) -> Option<Found> {
        let parts: Vec<_> = value.split([',', ';', '\n']).map(str::trim).filter(|part| !part.is_empty()).collect();
        if !(2..=MAX_PARTS).contains(&parts.len()) {
            return None;
        }
        let found: Option<Vec<_>> = parts.into_iter().map(|part| self.best(&normal::value(part)?, place)).collect();
        let lowest = found?.into_iter().min_by_key(|found| found.trust)?;
        Some(Found { rule: format!("each part of the list is known; of the least: {}", lowest.rule), ..lowest })
    }

    fn sum(&mut self, wanted: i128) -> Option<Found> {
        let figures: Vec<_> = self.figures().collect();
        for text in believed(self.sources).filter(|text| text.trust == Trust::Operator) {
            for (figure, by) in &figures {
                self.sums = self.sums.checked_sub(text.figures.len() + 1)?;
                if let Some(rule) = numbers::derive(wanted, *figure, &text.figures) {
                    return Some(Found::new(by.trust.min(text.trust), &by.source, rule));
                }
            }
        }
        None
    }

    /// What was found, or where else the value stands.
    fn settle(&mut self, found: Option<Found>, value: &str) -> Found {
        let doubt = match (&found, self.care) {
            (Some(found), Care::Usual) => found.trust == Trust::Untrusted,
            // A short value is easily found in an operator's words without being meant there.
            (Some(found), Care::Strict) => found.trust < Trust::Operator || value.chars().count() <= SHORT,
            (None, _) => true,
        };
        let sources = self.sources;
        let stranger = doubt
            .then(|| {
                sources.texts.iter().filter(|text| text.trust == Trust::Untrusted).find(|text| self.holds(text, value))
            })
            .flatten();
        match (stranger, found) {
            (None, Some(found)) if doubt && found.trust > Trust::Untrusted && sources.overflowed => Found {
                rule: format!("{}, but not all that untrusted data says is known", found.rule),
                ..Found::nowhere("")
            },
            (Some(text), Some(_)) => Found::new(Trust::Untrusted, &text.source, "untrusted data speaks of it too"),
            (Some(text), None) => Found::new(Trust::Untrusted, &text.source, "only untrusted data holds it"),
            (None, Some(found)) => found,
            (None, None) => Found::nowhere("it was found nowhere: the model made it up or wrote it differently"),
        }
    }
}

/// Texts that a value may be believed for, the most trusted first.
fn believed(sources: &Sources) -> impl Iterator<Item = &Text> {
    let of = |trust: Trust| sources.texts.iter().filter(move |text| text.trust == trust);
    of(Trust::Operator).chain(of(Trust::System)).chain(of(Trust::Trusted))
}
