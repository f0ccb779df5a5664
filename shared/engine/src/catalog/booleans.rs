//! Words that some readers of YAML take for booleans and others for text: `on`, `no`, `y` and the like.
//!
//! In a JSON Schema such a word is nearly always meant as text (`required: [y]`, `enum: [on, off]`), and read as a boolean
//! it changes what the schema says without a word. So a tool file has to say which is meant.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Options, Spanned};

use crate::agents::AgentFileError;

/// A document as far as its booleans matter.
#[derive(Debug)]
enum Node {
    Boolean,
    Text(String),
    Other,
    List(Vec<Spanned<Node>>),
    Fields(Vec<Spanned<Node>>),
}

/// Refuses a document in which a word is a boolean by YAML 1.1 and a text by YAML 1.2.
///
/// # Errors
/// With line and column of the first.
pub(crate) fn check(yaml: &str) -> Result<(), AgentFileError> {
    let read = |strict_booleans: bool| {
        let options: Options = serde_saphyr::options! { with_snippet: false, strict_booleans: strict_booleans };
        serde_saphyr::from_str_with_options::<Spanned<Node>>(yaml, options)
    };
    // What can't be read at all has been told before this.
    let (Ok(old), Ok(new)) = (read(false), read(true)) else { return Ok(()) };
    match ambiguous(&old, &new) {
        None => Ok(()),
        Some((at, word)) => Err(AgentFileError {
            line: Some(at.line()),
            column: Some(at.column()),
            message: format!(
                "`{word}` is a boolean to some readers of YAML and a text to others: quote it (\"{word}\") if a text is \
                 meant, else write `true` or `false`"
            ),
        }),
    }
}

/// The first word on which the two readings differ, and where it stands.
fn ambiguous<'a>(old: &Spanned<Node>, new: &'a Spanned<Node>) -> Option<(serde_saphyr::Location, &'a str)> {
    match (&old.value, &new.value) {
        (Node::Boolean, Node::Text(word)) => Some((new.defined, word)),
        (Node::List(old), Node::List(new)) | (Node::Fields(old), Node::Fields(new)) => {
            old.iter().zip(new).find_map(|(old, new)| ambiguous(old, new))
        }
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode)
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Boolean)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Other)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        // A key is a text whatever it looks like: `properties: { n: ... }` means what it says.
        while let Some((_, node)) = fields.next_entry::<String, Spanned<Node>>()? {
            nodes.push(node);
        }
        Ok(Node::Fields(nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(yaml: &str) -> Option<(Option<u64>, Option<u64>)> {
        check(yaml).err().map(|error| (error.line, error.column))
    }

    #[test]
    fn words_that_are_read_differently_are_found_where_they_stand() {
        assert_eq!(place("a: 1\nb: { required: [x, y] }\n"), Some((Some(2), Some(20))));
        assert_eq!(place("a:\n  - enum:\n      - on\n"), Some((Some(3), Some(9))));
        for word in ["on", "Off", "YES", "no", "y", "N"] {
            let error = check(&format!("a: {word}\n")).unwrap_err().to_string();
            assert!(error.starts_with("line 1, column 4: ") && error.contains(&format!("\"{word}\"")), "{error}");
        }
    }

    #[test]
    fn what_is_plain_is_left_alone() {
        for yaml in [
            "a: true\nb: FALSE\n",
            "a: \"on\"\nb: 'no'\n",
            "n: { y: 1 }\n",
            "a: north\n",
            "a: null\nb: 1.5\n",
            "[1, x]",
        ] {
            assert_eq!(place(yaml), None, "{yaml}");
        }
    }
}
