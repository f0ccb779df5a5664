//! One name for one definition, whatever the order of its keys.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of the canonical JSON of `value`, hex: no white space, keys sorted by their bytes.
pub(crate) fn digest(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn write(value: &Value, into: &mut String) {
    match value {
        Value::Array(items) => {
            into.push('[');
            for (index, item) in items.iter().enumerate() {
                into.push_str(if index > 0 { "," } else { "" });
                write(item, into);
            }
            into.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| key.as_bytes());
            into.push('{');
            for (index, (key, field)) in fields.into_iter().enumerate() {
                into.push_str(if index > 0 { "," } else { "" });
                let _ = write!(into, "{}:", Value::from(key.as_str()));
                write(field, into);
            }
            into.push('}');
        }
        scalar => {
            let _ = write!(into, "{scalar}");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_of_keys_does_not_matter_and_everything_else_does() {
        let value = json!({"b": [1, {"y": null, "x": "\"é\n"}], "a": true});
        assert_eq!(digest(&value), digest(&json!({"a": true, "b": [1, {"x": "\"é\n", "y": null}]})));
        assert_ne!(digest(&value), digest(&json!({"a": true, "b": [{"x": "\"é\n", "y": null}, 1]})));
        assert_eq!(digest(&json!({})).len(), 64);
    }
}
