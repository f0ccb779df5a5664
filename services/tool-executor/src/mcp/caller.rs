//! Whoever a call is made for, and what a server says to them while it works on it.

use futures::future::BoxFuture;
use serde_json::Value;

/// A step that a server reports while it works on a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// How far it is.
    pub progress: f64,
    /// Of how much.
    pub total: Option<f64>,
    /// In the server's words.
    pub message: Option<String>,
}

/// What a server wants to know from a person while it works on a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// In the server's words.
    pub message: String,
    /// JSON Schema of the answer: an object of plain values.
    pub schema: Value,
}

impl Form {
    /// The answer as far as the schema itself gives one.
    #[must_use]
    pub fn defaults(&self) -> Value {
        let defaults = self.schema["properties"].as_object().into_iter().flatten();
        let defaults = defaults.filter_map(|(name, field)| Some((name.clone(), field.get("default")?.clone())));
        Value::Object(defaults.collect())
    }
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This.
    Given(Value),
    /// Nothing, and the server may go on without.
    Declined,
    /// Nothing: nobody was there to ask.
    Nobody,
}

/// Whoever a call is made for.
pub trait Caller: Send + Sync {
    /// Hears of a step.
    fn progress(&self, progress: Progress);
    /// Gets an answer.
    fn answer(&self, form: Form) -> BoxFuture<'_, Answer>;
}
