//! What the API answers, as far as it is shown. Fields that a later server adds are passed over.

use jiff::Timestamp;
use kernel::{Cause, DecodeError, EventData};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A committed event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventView {
    /// Its number within the run.
    pub seq: u64,
    /// Its type, such as `run.created`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of its content.
    pub version: u16,
    /// When it was decided.
    pub at: Timestamp,
    /// What led to it.
    #[serde(default)]
    pub cause: Cause,
    /// Its content.
    pub data: Value,
}

impl EventView {
    /// What it says.
    pub fn decode(&self) -> Result<EventData, DecodeError> {
        EventData::decode(&self.event_type, self.version, &self.data.to_string())
    }

    /// Whether nothing can follow it.
    pub fn is_terminal(&self) -> bool {
        matches!(self.event_type.as_str(), "run.completed" | "run.failed" | "run.cancelled")
    }

    /// Whether the run that it ended has not reached its objective.
    pub fn is_failure(&self) -> bool {
        matches!(self.event_type.as_str(), "run.failed" | "run.cancelled")
    }
}

/// A text of `value`, by the names that lead to it; empty if there is none.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    path.iter().try_fold(value, |value, name| value.get(name)).and_then(Value::as_str).unwrap_or_default()
}

/// Rows of a list, whether it comes bare or as a page.
pub fn rows(value: &Value) -> &[Value] {
    let rows = value.as_array().or_else(|| value.get("items").and_then(Value::as_array));
    rows.map(Vec::as_slice).unwrap_or_default()
}
