//! One name for one JSON value, whatever the order of its keys: an approval is bound to the digest of what was approved.

use std::io::{self, Write};

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// SHA-256, in hexadecimal, of the canonical form of `value`.
///
/// The canonical form has no white space, keys sorted by their bytes, and whole numbers without fraction or exponent
/// (`1.0` is `1`, `1e16` is `10000000000000000`, `-0.0` is `0`), so that a value keeps its digest through databases that
/// rewrite numbers. Never recursive: any depth is fine.
#[must_use]
pub fn digest(value: &Value) -> String {
    let mut sink = Sink(Sha256::new());
    let mut open = vec![Part::Value(value)];
    while let Some(part) = open.pop() {
        match part {
            Part::Mark(mark) => sink.0.update(mark),
            Part::Key(key) => sink.string(key),
            Part::Value(Value::Null) => sink.0.update("null"),
            Part::Value(Value::Bool(true)) => sink.0.update("true"),
            Part::Value(Value::Bool(false)) => sink.0.update("false"),
            Part::Value(Value::Number(number)) => sink.0.update(canonical(number)),
            Part::Value(Value::String(text)) => sink.string(text),
            Part::Value(Value::Array(items)) => {
                sink.0.update("[");
                open.push(Part::Mark("]"));
                for (index, item) in items.iter().enumerate().rev() {
                    open.push(Part::Value(item));
                    if index > 0 {
                        open.push(Part::Mark(","));
                    }
                }
            }
            Part::Value(Value::Object(fields)) => {
                sink.0.update("{");
                open.push(Part::Mark("}"));
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_unstable_by_key(|(key, _)| key.as_bytes());
                for (index, (key, field)) in fields.into_iter().enumerate().rev() {
                    open.push(Part::Value(field));
                    open.push(Part::Mark(":"));
                    open.push(Part::Key(key));
                    if index > 0 {
                        open.push(Part::Mark(","));
                    }
                }
            }
        }
    }
    hex::encode(sink.0.finalize())
}

/// What is still to be written.
enum Part<'a> {
    Mark(&'static str),
    Key(&'a str),
    Value(&'a Value),
}

/// Writes into the hash.
struct Sink(Sha256);

impl Sink {
    #[expect(clippy::expect_used, reason = "a string always serialises, and hashing never fails")]
    fn string(&mut self, text: &str) {
        serde_json::to_writer(&mut *self, text).expect("a string serialises");
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whole floats up to this size are written with all their digits; their `Display` is exact.
const WHOLE: f64 = 1e21;

fn canonical(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && float == 0.0 => "0".to_owned(),
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_known_value_keeps_its_digest() {
        // sha256 of {"a":[1,true,null,"x\n"],"b":{}}
        let value = json!({"b": {}, "a": [1.0, true, null, "x\n"]});
        let text = r#"{"a":[1,true,null,"x\n"],"b":{}}"#;
        assert_eq!(digest(&value), hex::encode(Sha256::digest(text)));
    }

    #[test]
    fn numbers_have_one_form() {
        for (left, right) in [("1", "1.0"), ("1e16", "10000000000000000"), ("-0.0", "0"), ("1e-7", "0.0000001")] {
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(digest(&parse(left)), digest(&parse(right)), "{left} and {right}");
        }
        assert_ne!(digest(&json!(1)), digest(&json!("1")));
        assert_ne!(digest(&json!(1)), digest(&json!(1.5)));
        assert_ne!(digest(&json!(u64::MAX)), digest(&json!(u64::MAX - 1)));
    }

    #[test]
    fn different_shapes_differ() {
        let values = [json!([[], []]), json!([[[]]]), json!([]), json!({}), json!([{}]), json!({"": ""}), json!(null)];
        let digests: std::collections::BTreeSet<_> = values.iter().map(digest).collect();
        assert_eq!(digests.len(), values.len());
    }
}
