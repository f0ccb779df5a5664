//! An answer while it arrives, whichever way it is written.

use std::collections::{BTreeMap, BTreeSet};

use kernel::budget::Usage;
use serde_json::{Map, Value};

use crate::models::{Arguments, Finish, ModelCall};

/// Most bytes of an answer, all of its parts together.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// What a place within arguments takes at least, in memory.
const PLACE_BYTES: usize = 64;
/// Most calls of an answer that are kept.
const MAX_CALLS: usize = 256;
/// Most tokens that a server is believed to have counted.
const MOST_TOKENS: u64 = 1 << 40;

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// The model as the provider names it.
    pub model: Option<String>,
    /// The provider's name for the answer.
    pub response_id: Option<String>,
    pub text: String,
    pub reasoning: String,
    /// Why the model, or its provider, will not answer.
    pub refusal: Option<String>,
    pub calls: Vec<DraftCall>,
    pub usage: Option<Usage>,
    pub finish: Option<Finish>,
    /// Kinds of content that are nothing to the runtime, such as searches that the provider made by itself.
    pub others: Vec<String>,
    /// Whether the provider said that this is all.
    pub is_over: bool,
    /// The answer began anew: what was shown of it does not count.
    pub restarted: bool,
    /// Events that were not understood.
    pub garbled: usize,
    /// Whether one of those was the end.
    pub lost_end: bool,
    /// What has begun and not ended, by the provider's number or name.
    pub open: Vec<String>,
    /// Where in the text a part began that came in pieces, by the same.
    pub begun: BTreeMap<String, usize>,
    /// Answers before this one in the same stream.
    pub answers: usize,
    /// What else came in pieces, by the same: its whole at the end says nothing new.
    pub streamed: BTreeSet<String>,
}

/// A call while it arrives.
#[derive(Debug, Default)]
pub(super) struct DraftCall {
    /// What its later pieces are addressed to.
    pub key: String,
    pub id: Option<String>,
    pub name: String,
    /// Arguments as text, in pieces.
    pub text: String,
    /// Arguments as JSON, whole or place by place.
    pub json: Option<Value>,
    /// Places of it that were made one by one.
    pub places: usize,
}

impl Draft {
    /// The call whose pieces are addressed so; a new one if there is none.
    pub(super) fn call(&mut self, key: &str) -> &mut DraftCall {
        let found = self.calls.iter().rposition(|call| call.key == key);
        let at = found.unwrap_or_else(|| {
            self.calls.push(DraftCall { key: key.to_owned(), ..DraftCall::default() });
            self.calls.len() - 1
        });
        &mut self.calls[at]
    }

    /// Notes content that is nothing to the runtime.
    pub(super) fn other(&mut self, kind: &str) {
        if self.others.len() < 64 {
            self.others.push(kernel::excerpt(kind, 64));
        }
    }

    /// A kind of content begins to arrive, or is whole.
    pub(super) fn opens(&mut self, name: impl Into<String>) {
        self.open.push(name.into());
    }

    pub(super) fn closes(&mut self, name: &str) {
        self.open.retain(|open| open != name);
    }

    /// Whether it has grown beyond all measure.
    pub(super) fn is_too_large(&self) -> bool {
        let calls: usize = self.calls.iter().map(DraftCall::bytes).sum();
        self.calls.len() > MAX_CALLS || self.text.len() + self.reasoning.len() + calls > ANSWER_BYTES
    }

    /// Whether all that began has come to its end: a provider that then says nothing more has said all.
    pub(super) fn is_settled(&self) -> bool {
        self.open.is_empty() && (!self.text.is_empty() || !self.calls.is_empty())
    }
}

impl DraftCall {
    fn bytes(&self) -> usize {
        self.text.len() + self.name.len() + self.places * PLACE_BYTES
    }

    /// Whether it alone has grown beyond all measure.
    pub(super) fn is_too_large(&self) -> bool {
        self.bytes() > ANSWER_BYTES
    }

    /// Arguments that are given whole, as a value or as text that should be JSON.
    pub(super) fn set(&mut self, arguments: &Value) {
        match arguments {
            Value::Null => {}
            Value::String(text) => {
                text.clone_into(&mut self.text);
                self.json = None;
            }
            value => self.json = Some(value.clone()),
        }
    }

    pub(super) fn finish(self) -> ModelCall {
        let text = self.text.trim();
        let arguments = match self.json {
            // Text in pieces is the later word: a value beside it was the empty beginning.
            Some(value) if text.is_empty() => Arguments::Json(value),
            // No arguments at all are an empty text.
            None if text.is_empty() => Arguments::Json(Value::Object(Map::new())),
            _ => match serde_json::from_str(text) {
                Ok(Value::String(inner)) => written_twice(inner),
                Ok(value) => Arguments::Json(value),
                Err(_) => Arguments::Malformed(self.text),
            },
        };
        ModelCall { id: self.id.filter(|id| !id.is_empty()), name: self.name, arguments }
    }
}

/// Some servers write JSON as a text within JSON.
fn written_twice(inner: String) -> Arguments {
    match serde_json::from_str(&inner) {
        Ok(value @ Value::Object(_)) => Arguments::Json(value),
        _ => Arguments::Malformed(inner),
    }
}

/// A count of tokens: no larger than any can be, so that some of them can be added up.
pub(super) fn count(value: &Value) -> u64 {
    let said = value.as_u64().or_else(|| value.as_f64().filter(|number| *number > 0.0).map(whole)).unwrap_or(0);
    said.min(MOST_TOKENS)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// The text of a field, none if it is missing, empty or something else.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The entries of a field that is a list.
pub(super) fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}
