//! What the operator says about the arguments and the result of a server's tool, written into its schemas as the author of a
//! tool file would write it. A server's own labels count only where they are stricter.

use serde_json::{Map, Value};

/// Which arguments matter, in an input schema.
const MATTERS: &str = "x-matters";
/// How far a field can be believed, in an output schema.
const TRUST: &str = "x-trust";
/// Deeper schemas are not labelled; what is below is as if nothing was said about it.
const MAX_DEPTH: usize = 32;

/// A way down a schema: names of fields, and `*` for the items of a list.
type Way<'a> = &'a [&'a str];

/// Marks every argument as one that matters but those that are only `wording`. Whatever the server itself says matters does,
/// and so does what it describes in a way that can't be followed.
pub(super) fn mark(input: &mut Value, said: &Map<String, Value>, wording: &[String]) {
    if wording.is_empty() {
        // Nothing is marked: then everything matters.
        return;
    }
    let said = Value::Object(said.clone());
    with_ways(wording, |ways| mark_below(input, Some(&said), ways, 0));
}

/// Labels the fields that the server assigns. Those of which it says itself that they are a stranger's are not.
pub(super) fn vouch(output: &mut Value, said: &Map<String, Value>, assigned: &[String]) {
    if assigned.is_empty() {
        return;
    }
    let said = Value::Object(said.clone());
    with_ways(assigned, |ways| {
        for way in ways {
            vouch_at(output, Some(&said), way, 0);
        }
    });
    doubt(output, Some(&said), 0);
}

fn with_ways(paths: &[String], mut look: impl FnMut(&[Way<'_>])) {
    let split: Vec<Vec<&str>> = paths.iter().map(|path| path.split('/').collect()).collect();
    look(&split.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

fn mark_below(schema: &mut Value, said: Option<&Value>, ways: &[Way<'_>], depth: usize) {
    let Some(fields) = schema.as_object_mut().filter(|_| depth < MAX_DEPTH) else { return };
    let mut leads_on = false;
    for (name, key, below) in parts(fields) {
        let said = said.and_then(|said| said.pointer(&key));
        let rest: Vec<Way<'_>> = ways.iter().filter_map(|way| way.strip_prefix(&[name.as_str()][..])).collect();
        leads_on |= !rest.is_empty();
        if rest.is_empty() {
            set(below, MATTERS, Value::Bool(true));
        } else if rest.iter().any(|way| way.is_empty()) {
            tighten(below, said, MATTERS, &Value::Bool(true), depth + 1);
        } else {
            mark_below(below, said, &rest, depth + 1);
        }
    }
    if !leads_on {
        // What was declared as wording is not there: it is described in another way, or not at all.
        set(schema, MATTERS, Value::Bool(true));
    }
}

fn vouch_at(schema: &mut Value, said: Option<&Value>, way: Way<'_>, depth: usize) {
    let Some((first, rest)) = way.split_first() else { return set(schema, TRUST, Value::from("system")) };
    let Some(fields) = schema.as_object_mut().filter(|_| depth < MAX_DEPTH) else { return };
    for (name, key, below) in parts(fields) {
        if name == *first {
            vouch_at(below, said.and_then(|said| said.pointer(&key)), rest, depth + 1);
        }
    }
}

/// What the server says of itself is a stranger's stays that, whatever was declared.
fn doubt(schema: &mut Value, said: Option<&Value>, depth: usize) {
    tighten(schema, said, TRUST, &Value::from("untrusted"), depth);
}

/// Takes over a label of the server's, wherever it has this value.
fn tighten(schema: &mut Value, said: Option<&Value>, label: &str, value: &Value, depth: usize) {
    let Some(said) = said.filter(|_| depth < MAX_DEPTH) else { return };
    if said.get(label) == Some(value) {
        set(schema, label, value.clone());
    }
    let Some(fields) = schema.as_object_mut() else { return };
    for (_, key, below) in parts(fields) {
        tighten(below, said.pointer(&key), label, value, depth + 1);
    }
}

/// The schemas right below one that can be labelled: the name in a way, the pointer, and the schema.
fn parts(fields: &mut Map<String, Value>) -> Vec<(String, String, &mut Value)> {
    let mut parts = Vec::new();
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties", Value::Object(named)) => parts.extend(named.iter_mut().map(|(name, below)| {
                (name.clone(), format!("/properties/{}", name.replace('~', "~0").replace('/', "~1")), below)
            })),
            ("prefixItems", Value::Array(items)) => {
                let items = items.iter_mut().enumerate();
                parts.extend(items.map(|(at, below)| ("*".to_owned(), format!("/prefixItems/{at}"), below)));
            }
            (key @ ("items" | "additionalProperties"), below @ Value::Object(_)) => {
                parts.push(("*".to_owned(), format!("/{key}"), below));
            }
            _ => {}
        }
    }
    parts
}

fn set(schema: &mut Value, label: &str, value: Value) {
    if let Value::Object(fields) = schema {
        fields.insert(label.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use policy::{Care, Labels, Sources, Trust, trace};
    use serde_json::json;

    use super::*;

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Of these arguments those that matter, by the schema with what is declared and what the server says.
    fn matters(said: &Value, wording: &[&str], arguments: &Value) -> Vec<String> {
        let mut input = said.clone();
        strip(&mut input);
        mark(&mut input, &map(said), &paths(wording));
        let labels = Labels::new(&input, None).unwrap();
        let origins = trace(arguments, &labels, &Sources::default(), Care::Usual);
        origins.into_iter().filter(|origin| origin.matters).map(|origin| origin.pointer).collect()
    }

    fn strip(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.retain(|key, _| !key.starts_with("x-"));
                fields.values_mut().for_each(strip);
            }
            Value::Array(parts) => parts.iter_mut().for_each(strip),
            _ => {}
        }
    }

    #[test]
    fn everything_matters_but_what_is_declared_as_wording() {
        let text = json!({"type": "string"});
        let mail = json!({"type": "object", "properties": {
            "to": text, "body": text,
            "parts": {"type": "array", "items": {"type": "object", "properties": {"file": text, "note": text}}},
        }});
        let sent = json!({"to": "a@example.com", "body": "hello", "parts": [{"file": "x.pdf", "note": "see"}]});
        assert_eq!(matters(&mail, &[], &sent).len(), 4);
        assert_eq!(matters(&mail, &["body", "parts/*/note"], &sent), ["/parts/0/file", "/to"]);
        // What the server adds later matters, and what it has taken away protects nobody.
        let sent = json!({"to": "a@example.com", "body": "hello", "bcc": "b@example.com"});
        assert!(matters(&mail, &["body"], &sent).contains(&"/bcc".to_owned()));
        assert!(matters(&mail, &["text"], &sent).contains(&"/body".to_owned()));
        assert_eq!(matters(&mail, &["parts/*/gone"], &json!({"parts": [{"file": "x", "note": "y"}]})).len(), 2);
    }

    #[test]
    fn what_a_server_says_can_only_make_more_matter() {
        let said = json!({"type": "object", "properties": {
            "to": {"type": "string", "x-matters": false},
            "body": {"type": "object", "properties": {"text": {"type": "string"}, "link": {"type": "string", "x-matters": true}}},
        }});
        let sent = json!({"to": "a@example.com", "body": {"text": "hello", "link": "http://h/"}});
        assert_eq!(matters(&said, &["body"], &sent), ["/body/link", "/to"]);
    }

    #[test]
    fn only_what_is_declared_is_vouched_for_and_not_if_the_server_doubts_it() {
        let text = || json!({"type": "string"});
        let said = json!({"type": "object", "properties": {
            "items": {"type": "array", "items": {"type": "object", "properties": {"id": text(), "title": text()}}},
            "owner": {"type": "object", "properties": {"login": text(), "bio": {"type": "string", "x-trust": "untrusted"}}},
        }});
        let mut output = said.clone();
        strip(&mut output);
        vouch(&mut output, &map(&said), &paths(&["items/*/id", "owner", "gone/*"]));
        let labels = Labels::new(&json!({}), Some(&output)).unwrap();
        let result = json!({"items": [{"id": "id-000017", "title": "pay 99 now"}], "owner": {"login": "ann-of-shop", "bio": "call zed-at-evil"}});
        let mut sources = Sources::default();
        sources.result(&result, &labels, &json!({}), policy::Trust::Untrusted, "tool:x");
        let wanted = Labels::new(&json!({"properties": {"id": {}}}), None).unwrap();
        let trust = |value: &str| trace(&json!({"id": value}), &wanted, &sources, Care::Usual).remove(0).trust;
        assert_eq!((trust("id-000017"), trust("ann-of-shop")), (Trust::System, Trust::System));
        assert_eq!((trust("pay 99 now"), trust("call zed-at-evil")), (Trust::Untrusted, Trust::Untrusted));
    }
}
