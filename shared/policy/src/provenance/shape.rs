//! The shape of a call: what two calls have in common that a person may allow once and for all.
//!
//! Whatever decides is in it by its value: what the tool's author marked, what no schema describes, and what a text refers to
//! (addresses, links, numbers of accounts). The rest is in it by its kind. So a call of the same shape goes to the same
//! place and for the same amount; only its wording differs.

use serde_json::{Map, Value, json};

use super::labels::{Labels, Place};
use super::references::{plain, references};
use crate::arguments::{MAX_DEPTH, MAX_VALUES};

/// The digest of the shape of these arguments; none if they are more than can be looked at.
#[must_use]
pub fn shape(arguments: &Value, labels: &Labels) -> Option<String> {
    let mut left = MAX_VALUES;
    outline(arguments, &labels.root(), 0, &mut left).map(|outline| crate::digest(&outline))
}

fn outline(value: &Value, place: &Place<'_>, depth: usize, left: &mut usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    *left = left.checked_sub(1)?;
    Some(match value {
        Value::Array(items) => {
            let items = items.iter().enumerate();
            let items = items.map(|(index, item)| outline(item, &place.item(index), depth + 1, left));
            json!({ "items": items.collect::<Option<Vec<_>>>()? })
        }
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, field)| Some((key.clone(), outline(field, &place.field(key), depth + 1, left)?)));
            json!({ "fields": fields.collect::<Option<Map<_, _>>>()? })
        }
        _ if place.matters() => json!({ "is": value }),
        Value::String(text) => match references(&plain(text)) {
            (found, true) => json!({ "kind": "text", "refers": found }),
            (_, false) => json!({ "is": value }),
        },
        // A number of something refers to it.
        Value::Number(number) if !references(&number.to_string()).0.is_empty() => json!({ "is": value }),
        Value::Number(_) => json!({ "kind": "number" }),
        Value::Bool(_) => json!({ "kind": "flag" }),
        Value::Null => json!({ "kind": "nothing" }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Labels {
        let schema = json!({"type": "object", "properties": {
            "to": {"type": "array", "items": {"type": "string", "x-matters": true}},
            "amount": {"type": "number", "x-matters": true},
            "body": {"type": "string"},
        }});
        Labels::new(&schema, None).unwrap()
    }

    fn of(arguments: &Value) -> String {
        shape(arguments, &labels()).unwrap()
    }

    #[test]
    fn the_wording_is_free_and_what_decides_is_not() {
        let one = json!({"to": ["ann@example.com"], "amount": 5, "body": "Hello."});
        assert_eq!(of(&one), of(&json!({"to": ["ann@example.com"], "amount": 5.0, "body": "Good day!"})));
        for other in [
            json!({"to": ["bob@example.com"], "amount": 5, "body": "Hello."}),
            json!({"to": ["ann@example.com", "bob@example.com"], "amount": 5, "body": "Hello."}),
            json!({"to": ["ann@example.com"], "amount": 6, "body": "Hello."}),
            json!({"to": ["ann@example.com"], "amount": "5", "body": "Hello."}),
            json!({"to": ["ann@example.com"], "amount": 5, "body": "See https://evil.example/x."}),
            json!({"to": ["ann@example.com"], "amount": 5, "body": ["Hello."]}),
            json!({"to": ["ann@example.com"], "amount": 5, "body": "Hello.", "bcc": "x"}),
            json!({"to": ["ann@example.com"], "amount": 5}),
        ] {
            assert_ne!(of(&one), of(&other), "{other}");
        }
    }

    #[test]
    fn what_nobody_described_is_taken_by_its_value() {
        let labels = Labels::new(&json!({"type": "object"}), None).unwrap();
        let of = |value: Value| shape(&value, &labels).unwrap();
        assert_eq!(of(json!({"a": "x"})), of(json!({"a": "x"})));
        assert_ne!(of(json!({"a": "x"})), of(json!({"a": "y"})));
    }

    #[test]
    fn what_is_too_much_has_no_shape() {
        let mut deep = json!(1);
        for _ in 0..=MAX_DEPTH {
            deep = json!([deep]);
        }
        assert_eq!(shape(&deep, &labels()), None);
        assert_eq!(shape(&json!(vec![1; MAX_VALUES]), &labels()), None);
    }
}
