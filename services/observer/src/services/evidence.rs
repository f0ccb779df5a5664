//! Lines of services' logs as evidence: short, and with the place where the whole stands.

use jiff::Timestamp;
use kernel::call::Evidence;
use serde::{Deserialize, Serialize};
use signals::Record;

use crate::text;

/// Most bytes of a line that is kept as evidence.
const LINE_BYTES: usize = 320;

/// A line, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The message that held it.
    pub seq: u64,
    /// Its place there, from 0.
    pub index: u32,
    /// When that message was stored.
    pub at: Timestamp,
    /// When the service said it, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// As a person would read it.
    pub text: String,
}

impl Line {
    /// A record as a line.
    #[must_use]
    pub fn new(record: &Record, seq: u64, index: u32, at: Timestamp) -> Self {
        let shown = record.shown();
        let visible = text::visible(shown.as_bytes());
        let text = text::window(visible.trim(), 0, LINE_BYTES).into_owned();
        Self { seq, index, at, time: record.time, text }
    }

    /// When it was said, as far as that is known.
    #[must_use]
    pub fn said_at(&self) -> Timestamp {
        self.time.unwrap_or(self.at)
    }

    /// As evidence, cut to `max` bytes.
    #[must_use]
    pub fn evidence(&self, service: &str, rule: &str, max: usize) -> Evidence {
        Evidence {
            excerpt: text::window(&self.text, 0, max).into_owned(),
            offset: self.seq,
            line: u64::from(self.index) + 1,
            rule: rule.to_owned(),
            service: Some(service.to_owned()),
            at: Some(self.at),
        }
    }
}
