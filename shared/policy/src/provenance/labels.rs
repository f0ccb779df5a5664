//! What the author of a tool says about its arguments and results, in their JSON Schemas.

use serde_json::{Map, Value};

use crate::request::Trust;

/// Which arguments matter. In a tool's *input* schema.
const MATTERS: &str = "x-matters";
/// The words that name a value, by value. In a tool's *input* schema.
const WORDS: &str = "x-words";
/// What the remote system itself assigns or vouches for. In a tool's *output* schema.
const TRUST: &str = "x-trust";
/// Deeper schemas are not looked at; what is below is as if nothing was said about it.
const MAX_DEPTH: usize = 32;
/// Schemas that may describe one value. Where there are more, it matters.
const MAX_MEMBERS: usize = 64;
/// References that are not followed, and names that others refer by: what they say of a value is not known.
const UNKNOWN: [&str; 2] = ["$dynamicRef", "$recursiveRef"];
/// Schemas that say what a value is not, or what some of its parts are: no label in them says anything of a place.
const UNLABELLED: [&str; 2] = ["not", "contains"];

/// A label that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{place}`: {problem}")]
pub struct LabelError {
    /// JSON pointer into the schema.
    pub place: String,
    /// What is wrong, and the remedy.
    pub problem: String,
}

/// The labels of a tool. By default nothing is said: everything matters, and nobody vouches for results.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    input: Value,
    output: Option<Value>,
    /// Whether the input schema says of anything that it matters. If not, everything does.
    chosen: bool,
}

impl Labels {
    /// Of a tool with these schemas.
    ///
    /// # Errors
    /// A label that means nothing: it would be taken for protection that is not there.
    pub fn new(input: &Value, output: Option<&Value>) -> Result<Self, LabelError> {
        check(input, &mut String::new(), 0)?;
        if let Some(output) = output {
            check(output, &mut String::new(), 0)?;
        }
        let chosen = holds(input, MATTERS, 0);
        Ok(Self { input: input.clone(), output: output.cloned(), chosen })
    }

    /// Whether the tool's author says which arguments matter.
    #[must_use]
    pub const fn says_what_matters(&self) -> bool {
        self.chosen
    }

    /// The schema of results, if it labels anything.
    #[must_use]
    pub fn output(&self) -> Option<&Value> {
        self.output.as_ref().filter(|schema| holds(schema, TRUST, 0))
    }

    pub(super) fn root(&self) -> Place<'_> {
        Place::new(&self.input, [(&self.input, false)], !self.chosen)
    }
}

/// A place within the arguments, with all the schemas that may describe what stands there.
pub(super) struct Place<'a> {
    root: Option<&'a Value>,
    schemas: Vec<Member<'a>>,
    matters: bool,
}

/// One of the schemas of a place.
#[derive(Clone, Copy)]
struct Member<'a> {
    schema: &'a Map<String, Value>,
    /// It is one of several that a value may choose among.
    alternative: bool,
}

impl<'a> Place<'a> {
    /// A value that stands in no schema, such as a part of a text.
    pub const fn nowhere() -> Self {
        Self { root: None, schemas: Vec::new(), matters: true }
    }

    /// What the schemas say of a value. One that none describes matters, and so does one that may be described by what can't be
    /// looked up.
    fn new(root: &'a Value, described: impl IntoIterator<Item = (&'a Value, bool)>, matters: bool) -> Self {
        let mut place = Self { root: Some(root), schemas: Vec::new(), matters };
        let mut complete = true;
        for (schema, alternative) in described {
            complete &= place.describe(schema, alternative);
        }
        let marked = place.schemas.iter().any(|member| member.schema.get(MATTERS) == Some(&Value::Bool(true)));
        place.matters |= marked || !complete || place.schemas.is_empty();
        place
    }

    /// Adds a schema with those that it refers to; whether all of them could be looked up.
    fn describe(&mut self, schema: &'a Value, alternative: bool) -> bool {
        let mut open = vec![(schema, alternative)];
        while let Some((schema, alternative)) = open.pop() {
            // `false` admits nothing, and `true` everything: neither describes it.
            let Some(fields) = schema.as_object() else {
                if *schema == Value::Bool(false) {
                    continue;
                }
                return false;
            };
            let known = self.schemas.iter_mut().find(|member| std::ptr::eq(member.schema, fields));
            if let Some(known) = known {
                known.alternative |= alternative;
                continue;
            }
            if self.schemas.len() >= MAX_MEMBERS || UNKNOWN.iter().any(|keyword| fields.contains_key(*keyword)) {
                return false;
            }
            self.schemas.push(Member { schema: fields, alternative });
            if let Some(reference) = fields.get("$ref") {
                let Some(found) = self.root.and_then(|root| resolve(root, reference)) else { return false };
                open.push((found, alternative));
            }
            let all = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
            open.extend(all.map(|schema| (schema, alternative)));
            let some = ["anyOf", "oneOf"].iter().filter_map(|name| fields.get(*name)?.as_array()).flatten();
            let cases = ["if", "then", "else"].iter().filter_map(|name| fields.get(*name));
            open.extend(some.chain(cases.filter(|schema| schema.is_object())).map(|schema| (schema, true)));
        }
        true
    }

    pub const fn matters(&self) -> bool {
        self.matters
    }

    pub fn names(&self, key: &str) -> bool {
        self.below(|schema| schema.get("properties")?.get(key)).next().is_some()
    }

    /// What stands under a key. Patterns of keys are not read: a key that is not named by itself, and that no schema of all
    /// other keys covers, is described by nothing.
    pub fn field(&self, key: &str) -> Self {
        if self.names(key) {
            return self.at(self.below(|schema| schema.get("properties")?.get(key)));
        }
        self.at(self.below(|schema| schema.get("additionalProperties")))
    }

    /// The key itself, if no schema names it: it was chosen like a value.
    pub fn key(&self, key: &str) -> Option<Self> {
        if self.names(key) {
            return None;
        }
        let marked = self.below(|schema| schema.get("propertyNames")).any(|(schema, _)| holds(schema, MATTERS, 0));
        Some(Self { matters: self.matters || marked || self.field(key).matters, ..Self::nowhere() })
    }

    pub fn item(&self, index: usize) -> Self {
        let tuple = || self.below(|schema| schema.get("prefixItems")?.get(index));
        if tuple().next().is_some() { self.at(tuple()) } else { self.at(self.below(|schema| schema.get("items"))) }
    }

    fn below<'s>(
        &'s self,
        find: impl Fn(&'a Map<String, Value>) -> Option<&'a Value> + 's,
    ) -> impl Iterator<Item = (&'a Value, bool)> + 's {
        self.schemas.iter().filter_map(move |member| Some((find(member.schema)?, member.alternative)))
    }

    fn at(&self, described: impl Iterator<Item = (&'a Value, bool)>) -> Self {
        self.root.map_or_else(Self::nowhere, |root| Self::new(root, described, self.matters))
    }

    /// Whether the tool's own file leaves no choice, or gives this value where none is given.
    pub fn is_fixed(&self, value: &Value) -> bool {
        let fixed = self.schemas.iter().filter(|member| !member.alternative);
        fixed.flat_map(|member| ["const", "default"].map(|name| member.schema.get(name))).flatten().any(|v| v == value)
    }

    /// The words that stand for this value.
    pub fn words<'s>(&'s self, value: &'s str) -> impl Iterator<Item = &'a str> + 's {
        let words = self.schemas.iter().filter_map(move |member| member.schema.get(WORDS)?.get(value)?.as_array());
        words.flatten().filter_map(Value::as_str)
    }
}

/// What a reference within the same document points at.
fn resolve<'a>(root: &'a Value, reference: &Value) -> Option<&'a Value> {
    let pointer = reference.as_str()?.strip_prefix('#')?;
    // A pointer that is written in percent signs is not read: then it is as if nothing were there.
    (!pointer.contains('%')).then(|| root.pointer(pointer))?
}

/// What an output schema says of a place in a result.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    schema: Option<&'a Value>,
    trust: Option<Trust>,
}

impl<'a> Output<'a> {
    pub fn new(schema: Option<&'a Value>) -> Self {
        Self { schema, trust: None }.labelled()
    }

    /// Whether the schema says something of this place by its name.
    pub const fn is_named(self) -> bool {
        self.schema.is_some()
    }

    fn labelled(self) -> Self {
        let own = self.schema.and_then(|schema| schema.get(TRUST)).and_then(Value::as_str).and_then(trust);
        Self { trust: own.or(self.trust), ..self }
    }

    /// `None`: nothing is said, so it is as the result as a whole.
    pub const fn trust(self) -> Option<Trust> {
        self.trust
    }

    pub fn field(self, key: &str) -> Self {
        let schema = self.schema.and_then(|schema| schema.get("properties")?.get(key));
        let schema = schema.or_else(|| self.schema?.get("additionalProperties"));
        Self { schema, ..self }.labelled()
    }

    pub fn item(self) -> Self {
        Self { schema: self.schema.and_then(|schema| schema.get("items")), ..self }.labelled()
    }
}

/// A tool's author vouches for what a system assigns, or for a source. Nobody's words become an operator's that way.
fn trust(name: &str) -> Option<Trust> {
    match name {
        "system" => Some(Trust::System),
        "trusted" => Some(Trust::Trusted),
        "untrusted" => Some(Trust::Untrusted),
        _ => None,
    }
}

fn check(schema: &Value, place: &mut String, depth: usize) -> Result<(), LabelError> {
    let Some(fields) = schema.as_object().filter(|_| depth < MAX_DEPTH) else { return Ok(()) };
    let wrong =
        |name: &str, problem: &str| Err(LabelError { place: format!("{place}/{name}"), problem: problem.to_owned() });
    if fields.get(MATTERS).is_some_and(|label| !label.is_boolean()) {
        return wrong(MATTERS, "write true, or leave it out");
    }
    if fields.get(TRUST).is_some_and(|label| label.as_str().and_then(trust).is_none()) {
        return wrong(TRUST, "use system, trusted or untrusted");
    }
    if fields.get(WORDS).is_some_and(|label| !are_words(label)) {
        return wrong(WORDS, "give for each value the list of words that stand for it, such as {r: [read]}");
    }
    let unlabelled = UNLABELLED.iter().filter(|name| fields.get(**name).is_some_and(says_something));
    if let Some(name) = unlabelled.into_iter().next() {
        return wrong(name, "a label in here means nothing: put it beside");
    }
    for (key, below) in children(fields) {
        let length = place.len();
        place.push('/');
        place.push_str(&key);
        check(below, place, depth + 1)?;
        place.truncate(length);
    }
    Ok(())
}

fn are_words(label: &Value) -> bool {
    let word = |word: &Value| word.as_str().is_some_and(|word| !word.trim().is_empty());
    let words = |words: &Value| words.as_array().is_some_and(|words| words.iter().all(word));
    label.as_object().is_some_and(|label| label.values().all(words))
}

fn holds(schema: &Value, label: &str, depth: usize) -> bool {
    let Some(fields) = schema.as_object().filter(|_| depth < MAX_DEPTH) else { return false };
    fields.get(label).is_some_and(|label| *label != Value::Bool(false))
        || children(fields).any(|(_, below)| holds(below, label, depth + 1))
}

fn says_something(schema: &Value) -> bool {
    [MATTERS, WORDS, TRUST].iter().any(|label| holds(schema, label, 0))
}

/// Keywords that hold one schema, several by name, and several in order.
const ONE: [&str; 10] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
    "if",
    "then",
    "else",
    "contentSchema",
];
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTED: [&str; 5] = ["items", "prefixItems", "allOf", "anyOf", "oneOf"];

/// The schemas right below one, with the pointers to them.
fn children(fields: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let one = ONE.into_iter().filter_map(|name| Some((name.to_owned(), fields.get(name)?)));
    let named = NAMED.into_iter().filter_map(|name| Some((name, fields.get(name)?.as_object()?)));
    let named =
        named.flat_map(|(name, below)| below.iter().map(move |(key, schema)| (format!("{name}/{key}"), schema)));
    let listed = LISTED.into_iter().filter_map(|name| Some((name, fields.get(name)?.as_array()?)));
    let listed = listed
        .flat_map(|(name, below)| below.iter().enumerate().map(move |(at, schema)| (format!("{name}/{at}"), schema)));
    one.chain(named).chain(listed)
}
