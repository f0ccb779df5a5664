//! The prefix that lets several systems share one server, as tests do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What every subject, stream and consumer name is prefixed with; empty in production.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(String);

/// The text can't be a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a namespace: use at most 32 letters, digits and hyphens, or nothing at all")]
pub struct InvalidNamespace(String);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_LEN: usize = 32;

    /// Checks the text. No underscores: they set the namespace apart in stream names, so `a_` + `b` would meet `a` + `_b`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidNamespace> {
        let text = text.into();
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain && text.len() <= Self::MAX_LEN { Ok(Self(text)) } else { Err(InvalidNamespace(text)) }
    }

    /// No prefix at all.
    pub fn production() -> Self {
        Self::default()
    }

    /// Whether there is no prefix.
    pub fn is_production(&self) -> bool {
        self.0.is_empty()
    }

    /// The namespace itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A subject as the server sees it: `ns.evt.run.runnable...`.
    pub fn subject(&self, subject: &str) -> String {
        if self.0.is_empty() { subject.to_owned() } else { format!("{}.{subject}", self.0) }
    }

    /// A stream, consumer or service name as the server sees it: `ns_EVENTS`.
    pub fn name(&self, name: &str) -> String {
        if self.0.is_empty() { name.to_owned() } else { format!("{}_{name}", self.0) }
    }

    /// The subject without this namespace; unchanged when it is not in it.
    pub(crate) fn strip<'a>(&self, subject: &'a str) -> &'a str {
        if self.0.is_empty() {
            return subject;
        }
        subject.strip_prefix(self.0.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or(subject)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Namespace {
    type Error = InvalidNamespace;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(text)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.0
    }
}

impl std::str::FromStr for Namespace {
    type Err = InvalidNamespace;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_strips() {
        let test = Namespace::new("t1").unwrap();
        assert_eq!(test.subject("evt.>"), "t1.evt.>");
        assert_eq!(test.name("EVENTS"), "t1_EVENTS");
        assert_eq!(test.strip("t1.evt.a"), "evt.a");
        assert_eq!(test.strip("t12.evt.a"), "t12.evt.a");
        assert_eq!(Namespace::production().subject("evt.>"), "evt.>");
        assert_eq!(Namespace::production().strip("evt.a"), "evt.a");
    }

    #[test]
    fn refuses_what_would_break_names_apart() {
        for text in ["a_b", "a.b", "a b", "*", ">", "ü", &"x".repeat(33)] {
            assert!(Namespace::new(text).is_err(), "{text}");
        }
    }
}
