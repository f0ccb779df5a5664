//! Arguments as policies see them: one tag per value, named by its JSON pointer, each a record of the same shape.
//!
//! Cedar has neither floats nor null, and its records are closed. So a number is there as text, as `integer` if it is
//! whole, and as `decimal` if that is exact; a null is not there at all.

use std::collections::HashMap;

use cedar_policy::{EntityUid, RestrictedExpression};
use serde_json::{Number, Value};

use crate::request::{ArgumentProvenance, Trust};

/// Arguments nested deeper than this many levels are not judged, and so denied.
pub const MAX_DEPTH: usize = 64;
/// Arguments with more values (counting arrays and objects) are not judged, and so denied.
pub const MAX_VALUES: usize = 4096;
/// Arguments whose texts and pointers together are longer than this many bytes are not judged, and so denied.
pub const MAX_BYTES: usize = 4 << 20;

/// Arguments beyond a limit. Judging a part of them would let the rest pass unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Beyond {
    #[error("the arguments are nested deeper than {MAX_DEPTH} levels")]
    Depth,
    #[error("the arguments hold more than {MAX_VALUES} values")]
    Values,
    #[error("the arguments hold more than {MAX_BYTES} bytes of text")]
    Bytes,
}

/// A tag: the pointer and the record under it.
pub type Tag = (String, RestrictedExpression);

/// Turns `arguments` into tags. `uid` makes the entity of a trust.
pub fn tags(
    arguments: &Value,
    matters: &[ArgumentProvenance],
    uid: impl Fn(Trust) -> EntityUid,
) -> Result<Vec<Tag>, Beyond> {
    let mut tags = Vec::new();
    each(arguments, matters, |node, fields, origin| {
        tags.push((node.pointer, record(node.value, fields, origin, &uid)));
    })?;
    Ok(tags)
}

/// Whether arguments can be judged at all.
pub fn check(arguments: &Value) -> Result<(), Beyond> {
    each(arguments, &[], |_, _, _| {})
}

/// Visits every value that gets a tag, with its text and items and the entry of provenance that speaks for it.
fn each<'a>(
    arguments: &'a Value,
    matters: &'a [ArgumentProvenance],
    mut visit: impl FnMut(Node<'a>, (String, Vec<String>), Option<&'a ArgumentProvenance>),
) -> Result<(), Beyond> {
    let origins = Origins::new(matters);
    let mut walk =
        Walk { open: vec![Node { pointer: String::new(), value: arguments, depth: 0, above: None }], bytes: 0 };
    let mut visited = 0;
    while let Some(node) = walk.open.pop() {
        if node.value.is_null() {
            continue;
        }
        if visited == MAX_VALUES {
            return Err(Beyond::Values);
        }
        visited += 1;
        let origin = origins.of(&node);
        let fields = walk.fields(&node, origin.own)?;
        visit(node, fields, origin.lowest);
    }
    Ok(())
}

/// A value still to be looked at.
struct Node<'a> {
    pointer: String,
    value: &'a Value,
    depth: usize,
    /// The nearest entry of provenance above it.
    above: Option<&'a ArgumentProvenance>,
}

/// What is still to be looked at, and how much was copied so far.
struct Walk<'a> {
    open: Vec<Node<'a>>,
    bytes: usize,
}

impl<'a> Walk<'a> {
    /// The node's text and items; what is inside it is queued.
    fn fields(
        &mut self,
        node: &Node<'a>,
        above: Option<&'a ArgumentProvenance>,
    ) -> Result<(String, Vec<String>), Beyond> {
        let mut items = Vec::new();
        match node.value {
            Value::Array(values) => {
                self.room(node.depth, values.len())?;
                for (index, value) in values.iter().enumerate() {
                    // What is not plain leaves an empty text, so that no set of allowed texts contains it unseen.
                    let text = text(value).unwrap_or_default();
                    self.copied(text.len())?;
                    items.push(text);
                    self.queue(node, &index.to_string(), value, above)?;
                }
            }
            Value::Object(fields) => {
                self.room(node.depth, fields.len())?;
                for (key, value) in fields {
                    self.copied(key.len())?;
                    items.push(key.clone());
                    self.queue(node, key, value, above)?;
                }
            }
            plain => {
                let text = text(plain).unwrap_or_default();
                self.copied(text.len())?;
                return Ok((text, items));
            }
        }
        Ok((String::new(), items))
    }

    fn queue(
        &mut self,
        node: &Node<'a>,
        key: &str,
        value: &'a Value,
        above: Option<&'a ArgumentProvenance>,
    ) -> Result<(), Beyond> {
        self.copied(node.pointer.len() + key.len() + 1)?;
        let mut pointer = String::with_capacity(node.pointer.len() + key.len() + 1);
        pointer.push_str(&node.pointer);
        pointer.push('/');
        for character in key.chars() {
            match character {
                '~' => pointer.push_str("~0"),
                '/' => pointer.push_str("~1"),
                other => pointer.push(other),
            }
        }
        self.open.push(Node { pointer, value, depth: node.depth + 1, above });
        Ok(())
    }

    fn room(&self, depth: usize, more: usize) -> Result<(), Beyond> {
        if depth >= MAX_DEPTH && more > 0 {
            return Err(Beyond::Depth);
        }
        if self.open.len().saturating_add(more) > MAX_VALUES {
            return Err(Beyond::Values);
        }
        Ok(())
    }

    fn copied(&mut self, bytes: usize) -> Result<(), Beyond> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_BYTES { Err(Beyond::Bytes) } else { Ok(()) }
    }
}

/// Provenance by pointer. An entry speaks for what is below it; a container is worth the lowest of what is in it.
struct Origins<'a> {
    own: HashMap<&'a str, &'a ArgumentProvenance>,
    within: HashMap<&'a str, &'a ArgumentProvenance>,
}

/// What is known of one value.
struct Origin<'a> {
    /// The entry that speaks for what is below.
    own: Option<&'a ArgumentProvenance>,
    /// The entry with the lowest trust at, above or below the value.
    lowest: Option<&'a ArgumentProvenance>,
}

impl<'a> Origins<'a> {
    fn new(matters: &'a [ArgumentProvenance]) -> Self {
        let mut origins = Self { own: HashMap::new(), within: HashMap::new() };
        for entry in matters {
            lower(&mut origins.own, &entry.pointer, entry);
            let mut pointer = entry.pointer.as_str();
            lower(&mut origins.within, pointer, entry);
            while let Some((above, _)) = pointer.rsplit_once('/') {
                lower(&mut origins.within, above, entry);
                pointer = above;
            }
        }
        origins
    }

    fn of(&self, node: &Node<'a>) -> Origin<'a> {
        let own = self.own.get(node.pointer.as_str()).copied().or(node.above);
        let within = self.within.get(node.pointer.as_str()).copied();
        Origin { own, lowest: own.into_iter().chain(within).min_by_key(|entry| entry.trust) }
    }
}

fn lower<'a>(entries: &mut HashMap<&'a str, &'a ArgumentProvenance>, pointer: &'a str, entry: &'a ArgumentProvenance) {
    let kept = entries.entry(pointer).or_insert(entry);
    if entry.trust < kept.trust {
        *kept = entry;
    }
}

/// The text of a plain value; none for null, arrays and objects.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn record(
    value: &Value,
    (text, items): (String, Vec<String>),
    origin: Option<&ArgumentProvenance>,
    uid: &impl Fn(Trust) -> EntityUid,
) -> RestrictedExpression {
    let mut fields = Vec::with_capacity(6);
    let kind = match value {
        Value::Null => "null",
        Value::Bool(flag) => {
            fields.push(("boolean", RestrictedExpression::new_bool(*flag)));
            "boolean"
        }
        Value::Number(number) => {
            fields.extend(integer(number).map(|long| ("integer", RestrictedExpression::new_long(long))));
            fields.extend(decimal(number).map(|text| ("decimal", RestrictedExpression::new_decimal(text))));
            "number"
        }
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    fields.push(("kind", RestrictedExpression::new_string(kind.to_owned())));
    fields.push(("text", RestrictedExpression::new_string(text)));
    let items = items.into_iter().map(RestrictedExpression::new_string);
    fields.push(("items", RestrictedExpression::new_set(items)));
    if let Some(origin) = origin {
        fields.push(("trust", RestrictedExpression::new_entity_uid(uid(origin.trust))));
        fields.push(("source", RestrictedExpression::new_string(origin.source.clone())));
    }
    record_of(fields)
}

/// A record of differently named fields.
#[expect(clippy::expect_used, reason = "the only error is a field named twice; all names are literals of the callers")]
pub fn record_of(fields: Vec<(&'static str, RestrictedExpression)>) -> RestrictedExpression {
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
    RestrictedExpression::new_record(fields).expect("no field is named twice")
}

/// The number as a whole one, also if it is written `2.0`.
fn integer(number: &Number) -> Option<i64> {
    if let Some(long) = number.as_i64() {
        return Some(long);
    }
    let float = number.as_f64()?;
    // Beyond 2^53 a float no longer says which whole number was meant.
    #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53 fits")]
    (float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0).then_some(float as i64)
}

/// The largest whole part of a Cedar decimal, which is an `i64` in ten-thousandths.
const MAX_DECIMAL: i64 = i64::MAX / 10_000;

/// The number in the form of a Cedar decimal (one to four places), if that is exact.
fn decimal(number: &Number) -> Option<String> {
    if let Some(long) = integer(number) {
        return (long.unsigned_abs() < MAX_DECIMAL.unsigned_abs()).then(|| format!("{long}.0"));
    }
    let text = number.to_string();
    let (whole, places) = text.split_once('.')?;
    let exact = (1..=4).contains(&places.len()) && places.bytes().all(|digit| digit.is_ascii_digit());
    let size = whole.trim_start_matches('-').parse::<i64>().ok()?;
    (exact && size < MAX_DECIMAL).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn number(value: &Value) -> (Option<i64>, Option<String>) {
        let Value::Number(number) = value else { panic!("{value} is not a number") };
        (integer(number), decimal(number))
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!([inner]))
    }

    fn count(value: &Value) -> Result<usize, Beyond> {
        let kind: cedar_policy::EntityTypeName = "Trust".parse().unwrap();
        let uid =
            |trust: Trust| EntityUid::from_type_name_and_id(kind.clone(), cedar_policy::EntityId::new(trust.as_str()));
        tags(value, &[], uid).map(|tags| tags.len())
    }

    #[test]
    fn numbers_are_exact_or_absent() {
        assert_eq!(number(&json!(7)), (Some(7), Some("7.0".into())));
        assert_eq!(number(&json!(2.0)), (Some(2), Some("2.0".into())));
        assert_eq!(number(&json!(-12.5)), (None, Some("-12.5".into())));
        assert_eq!(number(&json!(0.12345)), (None, None));
        assert_eq!(number(&json!(1e300)), (None, None));
        assert_eq!(number(&json!(u64::MAX)), (None, None));
        assert_eq!(number(&json!(i64::MIN)), (Some(i64::MIN), None));
    }

    #[test]
    fn nulls_have_no_tag_and_limits_hold() {
        assert_eq!(count(&json!({"a": null, "b": 1})), Ok(2));
        assert_eq!(count(&nested(MAX_DEPTH)), Ok(MAX_DEPTH + 1));
        assert_eq!(count(&nested(MAX_DEPTH + 1)), Err(Beyond::Depth));
        assert_eq!(count(&json!(vec![1; MAX_VALUES - 1])), Ok(MAX_VALUES));
        assert_eq!(count(&json!(vec![1; MAX_VALUES])), Err(Beyond::Values));
        assert_eq!(count(&json!(vec![vec![1; 3]; MAX_VALUES / 2])), Err(Beyond::Values));
        assert_eq!(count(&json!("x".repeat(MAX_BYTES + 1))), Err(Beyond::Bytes));
    }
}
