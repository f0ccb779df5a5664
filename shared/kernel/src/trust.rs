//! Trust is a type: every block of content carries where it came from, and what is derived from several blocks is
//! trusted no more than the least of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far content may be believed, lowest first, so that `min` joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// From outside: web pages, events, tool output, logs. Data, never an instruction.
    Untrusted,
    /// From a source that the operator named as trusted.
    Trusted,
    /// Written by the runtime itself, from its own facts.
    System,
    /// Written by an authenticated operator, or by the agent's file.
    Operator,
}

impl Trust {
    /// The trust of something derived from both: the lower one.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        self.min(other)
    }

    /// The trust of something derived from all of them. Derived from nothing, it is the runtime's own.
    #[must_use]
    pub fn join_all(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().min().unwrap_or(Self::System)
    }

    /// The name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted",
            Self::Trusted => "trusted",
            Self::System => "system",
            Self::Operator => "operator",
        }
    }
}

/// A piece of text with its provenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// The text itself.
    pub text: String,
    /// How far it may be believed.
    pub trust: Trust,
    /// Where it came from, such as `operator:ann`, `tool:shell.run/<call>`, `event:github/<id>`, `model:<name>`.
    pub source: String,
}

impl Block {
    /// A block from its parts.
    pub fn new(text: impl Into<String>, trust: Trust, source: impl Into<String>) -> Self {
        Self { text: text.into(), trust, source: source.into() }
    }

    /// The same block with its text cut to `max` bytes, at a character boundary, with a mark that says how much is gone.
    #[must_use]
    pub fn excerpt(mut self, max: usize) -> Self {
        self.text = excerpt(&self.text, max);
        self
    }
}

/// `text`, or its head and tail around a mark that says how many bytes were cut, so that at most about `max` bytes stay.
#[must_use]
pub fn excerpt(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let head = floor_boundary(text, max / 2);
    let tail = ceil_boundary(text, text.len() - max / 2);
    format!("{}\n[… {} bytes cut …]\n{}", &text[..head], tail - head, &text[tail..])
}

fn floor_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn join_takes_the_lowest() {
        assert_eq!(Trust::Operator.join(Trust::Untrusted), Trust::Untrusted);
        assert_eq!(Trust::join_all([Trust::Operator, Trust::System]), Trust::System);
        assert_eq!(Trust::join_all([]), Trust::System);
    }

    proptest! {
        #[test]
        fn excerpts_never_panic_and_are_bounded(text in "\\PC*", max in 0usize..64) {
            prop_assert!(excerpt(&text, max).len() <= text.len().max(max + 64));
        }
    }
}
