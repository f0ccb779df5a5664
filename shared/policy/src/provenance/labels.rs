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
        Place { schema: Some(&self.input), matters: !self.chosen }
    }
}

/// A place within the arguments.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    schema: Option<&'a Value>,
    matters: bool,
}

impl<'a> Place<'a> {
    /// A value that stands in no schema, such as a part of a text.
    pub const fn nowhere() -> Self {
        Self { schema: None, matters: true }
    }

    pub fn matters(self) -> bool {
        self.matters || self.schema.and_then(|schema| schema.get(MATTERS)).and_then(Value::as_bool) == Some(true)
    }

    pub fn names(self, key: &str) -> bool {
        self.schema.and_then(|schema| schema.get("properties")).and_then(|fields| fields.get(key)).is_some()
    }

    pub fn field(self, key: &str) -> Self {
        let properties = self.schema.and_then(|schema| schema.get("properties"));
        let schema = properties.and_then(|fields| fields.get(key));
        self.at(schema.or_else(|| self.schema?.get("additionalProperties")))
    }

    pub fn item(self, index: usize) -> Self {
        let tuple = self.schema.and_then(|schema| schema.get("prefixItems")).and_then(|items| items.get(index));
        self.at(tuple.or_else(|| self.schema?.get("items")))
    }

    /// What a schema does not describe (also by way of `$ref` or `anyOf`, which are not followed) matters.
    fn at(self, schema: Option<&'a Value>) -> Self {
        let described = schema.filter(|schema| schema.is_object());
        Self { schema: described, matters: self.matters() || described.is_none() }
    }

    /// Whether the tool's own file leaves no choice, or gives this value where none is given.
    pub fn is_fixed(self, value: &Value) -> bool {
        let schema = |name| self.schema.and_then(|schema| schema.get(name));
        schema("const") == Some(value) || schema("default") == Some(value)
    }

    /// The words that stand for this value.
    pub fn words(self, value: &str) -> impl Iterator<Item = &'a str> {
        let words = self.schema.and_then(|schema| schema.get(WORDS)).and_then(|words| words.get(value));
        words.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }
}

/// What an output schema says of a place in a result.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    schema: Option<&'a Value>,
    trust: Option<Trust>,
}

impl<'a> Output<'a> {
    pub fn new(schema: &'a Value) -> Self {
        Self { schema: Some(schema), trust: None }.labelled()
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

/// The schemas right below one, with the pointers to them.
fn children(fields: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let one = ["items", "additionalProperties"].into_iter();
    let one = one.filter_map(|name| Some((name.to_owned(), fields.get(name)?)));
    let properties = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
    let properties = properties.map(|(name, schema)| (format!("properties/{name}"), schema));
    let tuple = fields.get("prefixItems").and_then(Value::as_array).into_iter().flatten().enumerate();
    one.chain(properties).chain(tuple.map(|(index, schema)| (format!("prefixItems/{index}"), schema)))
}
