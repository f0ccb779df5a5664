//! Where the arguments of a call come from: for each value, the place that it was found at and the rule that found it.
//!
//! The model is not asked. What it wrote is looked for in what the run has seen: an operator's words, the agent's file,
//! results of tools. A value is worth the best place that holds *all* of it; a value that is found nowhere, or only in
//! what strangers wrote, is untrusted. So the mistakes that this can make go one way: asking a person once too often.
//!
//! Every rule must be safe by itself, that is, no rule may turn a value that a stranger chose into one that an operator
//! chose. The rules and why each is safe are listed in `infra/policies/README.md`.

mod dates;
mod labels;
mod lookup;
mod normal;
mod numbers;
mod references;
mod shape;
mod sources;

pub use labels::{LabelError, Labels};
pub use shape::shape;
pub use sources::{MAX_SOURCE_BYTES, Sources};

use serde_json::Value;

use crate::arguments::{MAX_DEPTH, MAX_VALUES};
use crate::request::{ArgumentProvenance, Trust};
use labels::Place;
use lookup::Lookup;

/// Where one value of the arguments comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// JSON pointer into the arguments.
    pub pointer: String,
    /// The highest trust of the places that hold all of it.
    pub trust: Trust,
    /// That place, such as `operator:ann` or `tool:mail.read/<call>#/items/0/id`; `nowhere` if it was not found.
    pub source: String,
    /// How it was found, in words for a person.
    pub rule: String,
    /// Whether it decides: it is marked with `x-matters`, nothing in the tool's schema is, or it refers to something.
    pub matters: bool,
}

impl Origin {
    /// As policies are told, if it decides.
    #[must_use]
    pub fn deciding(&self) -> Option<ArgumentProvenance> {
        let (pointer, source) = (self.pointer.clone(), self.source.clone());
        self.matters.then_some(ArgumentProvenance { pointer, trust: self.trust, source })
    }
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// A value that the runtime or a trusted source vouches for is that, even if a stranger speaks of it too.
    Usual,
    /// A value that a stranger speaks of is untrusted unless an operator named it, and it is long enough not to be named by
    /// chance: for what can't be undone.
    Strict,
}

/// The origin of every value in `arguments`, ordered by pointer. Time and memory are bounded: what would take too long to
/// look for counts as not found.
#[must_use]
pub fn trace(arguments: &Value, labels: &Labels, sources: &Sources, care: Care) -> Vec<Origin> {
    let mut walk = Walk { lookup: Lookup::new(sources, care), origins: Vec::new() };
    let complete = walk.value(arguments, &labels.root(), &mut String::new(), 0);
    walk.end(complete)
}

/// The same for values that no schema of arguments describes, each with the pointer that says where it stands. All of them decide.
#[must_use]
pub fn trace_values(values: &[(String, Value)], sources: &Sources, care: Care) -> Vec<Origin> {
    let mut walk = Walk { lookup: Lookup::new(sources, care), origins: Vec::new() };
    let complete = values.iter().all(|(pointer, value)| walk.value(value, &Place::nowhere(), &mut pointer.clone(), 0));
    walk.end(complete)
}

/// What arguments are called that say where to go.
const PLACES: [&str; 9] = ["url", "uri", "href", "link", "host", "hostname", "domain", "website", "endpoint"];
/// Links that are looked for in the arguments of one call.
const MAX_LINKS: usize = 200;

/// Where the arguments of a call lead, each link with the pointer to where it stands: what a tool that only reads could carry
/// something away with. `None`: to more places than are looked for.
#[must_use]
pub fn links(arguments: &Value) -> Option<Vec<(String, Value)>> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), arguments)];
    while let Some((pointer, value)) = open.pop() {
        let place = |key: &str| format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
        match value {
            Value::Array(items) => {
                open.extend(items.iter().enumerate().map(|(at, item)| (place(&at.to_string()), item)));
            }
            Value::Object(fields) => {
                let keys =
                    fields.keys().flat_map(|key| led(key, false).into_iter().map(|link| (pointer.clone(), link)));
                found.extend(keys.take(MAX_LINKS + 1));
                open.extend(fields.iter().map(|(key, field)| (place(key), field)));
            }
            Value::String(text) => {
                let named = sources::name(&pointer).is_some_and(|name| PLACES.contains(&name.as_str()));
                found.extend(led(text, named).into_iter().map(|link| (pointer.clone(), link)));
            }
            _ => {}
        }
        if found.len() > MAX_LINKS || open.len() > MAX_VALUES {
            return None;
        }
    }
    Some(found)
}

fn led(text: &str, named: bool) -> Vec<Value> {
    references::links(&references::plain(text), named).into_iter().map(|link| Value::String(link.to_owned())).collect()
}

struct Walk<'a> {
    lookup: Lookup<'a>,
    origins: Vec<Origin>,
}

impl Walk<'_> {
    /// All that was found, in order.
    fn end(self, complete: bool) -> Vec<Origin> {
        let mut origins = self.origins;
        if !complete {
            origins.push(Origin {
                pointer: String::new(),
                trust: Trust::Untrusted,
                source: "nowhere".to_owned(),
                rule: "there are too many values to look for".to_owned(),
                matters: true,
            });
        }
        origins.sort_by(|left, right| left.pointer.cmp(&right.pointer));
        origins
    }

    /// Whether all was looked at.
    fn value(&mut self, value: &Value, place: &Place<'_>, pointer: &mut String, depth: usize) -> bool {
        if depth > MAX_DEPTH || self.origins.len() >= MAX_VALUES {
            return false;
        }
        match value {
            Value::Null => true,
            Value::Array(items) => items
                .iter()
                .enumerate()
                .all(|(index, item)| self.below(&index.to_string(), item, &place.item(index), pointer, depth)),
            Value::Object(fields) => fields.iter().all(|(key, field)| {
                // A key that the schema does not name was chosen like a value.
                if let Some(chosen) = place.key(key) {
                    self.leaf(&Value::String(key.clone()), &chosen, pointer);
                }
                self.below(key, field, &place.field(key), pointer, depth)
            }),
            leaf => {
                self.leaf(leaf, place, pointer);
                true
            }
        }
    }

    fn below(&mut self, key: &str, value: &Value, place: &Place<'_>, pointer: &mut String, depth: usize) -> bool {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
        let complete = self.value(value, place, pointer, depth + 1);
        pointer.truncate(length);
        complete
    }

    fn leaf(&mut self, value: &Value, place: &Place<'_>, pointer: &str) {
        self.lookup.stands_at(pointer);
        let marked = place.matters();
        let found = match value {
            _ if place.is_fixed(value) => Some(lookup::fixed()),
            Value::String(text) if marked => Some(self.lookup.text(text, place)),
            Value::String(text) => self.lookup.references(text),
            Value::Number(number) if marked => Some(self.lookup.number(number)),
            Value::Number(number) => self.lookup.references(&number.to_string()),
            Value::Bool(flag) if marked => Some(self.lookup.text(&flag.to_string(), place)),
            _ => None,
        };
        // What does not decide is shown all the same.
        let (found, matters) = match found {
            Some(found) => (found, true),
            None => match value {
                Value::String(text) => (self.lookup.text(text, place), false),
                Value::Number(number) => (self.lookup.number(number), false),
                _ => return,
            },
        };
        let lookup::Found { trust, source, rule } = found;
        self.origins.push(Origin { pointer: pointer.to_owned(), trust, source, rule, matters });
    }
}

#[cfg(test)]
mod tests;
