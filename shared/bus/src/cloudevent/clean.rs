//! NUL characters out of strings: Postgres can hold them neither in text nor in JSON.

use serde_json::Value;

use super::CloudEventError;

const NUL: char = '\0';
/// What stands where a NUL was, so that it shows that something was there.
const REPLACEMENT: &str = "\u{FFFD}";

/// Replaces every NUL in strings and keys by U+FFFD; tells whether there was one.
pub fn clean_nul(value: &mut Value) -> bool {
    let mut found = false;
    let mut open = vec![value];
    // Not recursive: a value that was not read from text may be of any depth.
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => found |= clean_text(text),
            Value::Array(items) => open.extend(items),
            Value::Object(map) => {
                if map.keys().any(|key| key.contains(NUL)) {
                    found = true;
                    *map = std::mem::take(map).into_iter().map(|(key, value)| (cleaned(key), value)).collect();
                }
                open.extend(map.values_mut());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    found
}

/// Replaces every NUL in a text; tells whether there was one.
pub(super) fn clean_text(text: &mut String) -> bool {
    let found = text.contains(NUL);
    if found {
        *text = text.replace(NUL, REPLACEMENT);
    }
    found
}

/// Checks that arrays and objects are no deeper within each other than this.
pub(super) fn check_depth(value: &Value, limit: usize) -> Result<(), CloudEventError> {
    let mut open = vec![(value, 0)];
    while let Some((value, depth)) = open.pop() {
        match value {
            Value::Array(_) | Value::Object(_) if depth >= limit => return Err(CloudEventError::TooDeep { limit }),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

fn cleaned(mut text: String) -> String {
    clean_text(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cleans_strings_and_keys_at_any_depth() {
        let mut value = json!({"a\0": ["x\0y", {"b": "\0"}], "c": 1});
        assert!(clean_nul(&mut value));
        assert_eq!(value, json!({"a\u{FFFD}": ["x\u{FFFD}y", {"b": "\u{FFFD}"}], "c": 1}));
        assert!(!clean_nul(&mut value));
    }

    #[test]
    fn survives_any_depth() {
        let mut value = Value::Null;
        for _ in 0..10_000 {
            value = Value::Array(vec![value]);
        }
        assert!(!clean_nul(&mut value));
        assert!(check_depth(&value, 64).is_err());
        // Dropping such a value is recursive; take it apart by hand.
        while let Value::Array(mut items) = value {
            value = items.pop().unwrap();
        }
    }

    #[test]
    fn depth_counts_containers() {
        assert!(check_depth(&json!(1), 0).is_ok());
        assert!(check_depth(&json!([1]), 0).is_err());
        assert!(check_depth(&json!([[1]]), 2).is_ok());
        assert!(check_depth(&json!([[[1]]]), 2).is_err());
    }
}
