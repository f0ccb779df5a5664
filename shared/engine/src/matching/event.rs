//! An event as the variables of an expression.

use std::{collections::HashMap, sync::Arc};

use cel::{Value, objects::Key};
use serde_json::Value as Json;

/// What an expression may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    Id,
    Source,
    Type,
    Subject,
    Time,
    Data,
}

impl Variable {
    const ALL: [Self; 6] = [Self::Id, Self::Source, Self::Type, Self::Subject, Self::Time, Self::Data];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variable| variable.name() == name)
    }

    /// Its name, in the expression and in the event.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Source => "source",
            Self::Type => "type",
            Self::Subject => "subject",
            Self::Time => "time",
            Self::Data => "data",
        }
    }

    /// Its value in an event; null when the event has none.
    pub(super) fn of(self, event: &Json) -> Value {
        event.get(self.name()).map_or(Value::Null, value)
    }
}

/// How large the variables are: a unit for every value, and one for every 64 bytes of text.
pub(super) fn size(event: &Json, of: &[Variable]) -> f64 {
    of.iter().filter_map(|variable| event.get(variable.name())).map(weigh).sum::<f64>() + 1.0
}

fn weigh(json: &Json) -> f64 {
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => 1.0,
        Json::String(text) => weigh_text(text),
        Json::Array(items) => 1.0 + items.iter().map(weigh).sum::<f64>(),
        Json::Object(fields) => 1.0 + fields.iter().map(|(key, field)| weigh_text(key) + weigh(field)).sum::<f64>(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a weight, not a count")]
pub(super) fn weigh_text(text: &str) -> f64 {
    1.0 + text.len() as f64 / 64.0
}

/// JSON has one kind of number: whole ones become `int`, so that they compare with what people write.
fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Value::Int(int),
            (None, Some(uint)) => Value::UInt(uint),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        Json::Object(fields) => {
            let fields: HashMap<Key, Value> =
                fields.iter().map(|(key, field)| (Key::from(key.clone()), value(field))).collect();
            Value::Map(fields.into())
        }
    }
}
