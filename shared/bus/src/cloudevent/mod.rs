//! CloudEvents 1.0: the event, its limits, and what can be wrong with one.
//!
//! Everything that comes from outside passes here, so nothing in here trusts its input: sizes and depth are bounded, no
//! input panics, and what the database could not store is cleaned.

mod attribute;
mod binary;
mod clean;
mod structured;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

pub use self::clean::clean_nul;
use crate::message::{Headers, header, is_traceparent};

/// The media type of an event in structured mode.
pub const EVENT_MEDIA_TYPE: &str = "application/cloudevents+json";
/// The media type of several events in one body.
pub const BATCH_MEDIA_TYPE: &str = "application/cloudevents-batch+json";

/// A CloudEvent.
#[derive(Clone, Debug, PartialEq)]
pub struct CloudEvent {
    /// Unique within its source.
    pub id: String,
    /// Where it happened, a URI reference.
    pub source: String,
    /// What happened, as in `github.push`; the attribute `type`.
    pub event_type: String,
    /// What it happened to, within the source.
    pub subject: Option<String>,
    /// When it happened.
    pub time: Option<Timestamp>,
    /// The media type of the data.
    pub datacontenttype: Option<String>,
    /// The schema of the data, a URI.
    pub dataschema: Option<String>,
    /// Further attributes: strings, booleans and 32-bit integers. In binary mode all are strings.
    pub extensions: BTreeMap<String, Value>,
    /// The data.
    pub data: EventData,
}

/// The data of an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EventData {
    /// None.
    #[default]
    None,
    /// JSON, or text as a JSON string.
    Json(Value),
    /// Anything else.
    Binary(Bytes),
}

/// How much one event may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloudEventLimits {
    /// The body, in bytes.
    pub max_bytes: usize,
    /// Arrays and objects within each other.
    pub max_depth: usize,
    /// Extension attributes.
    pub max_extensions: usize,
    /// One attribute's value, in bytes.
    pub max_attribute_bytes: usize,
    /// Events in a batch.
    pub max_batch: usize,
}

impl Default for CloudEventLimits {
    fn default() -> Self {
        Self {
            max_bytes: 1024 * 1024,
            max_depth: 64,
            max_extensions: 64,
            max_attribute_bytes: 8 * 1024,
            max_batch: 1000,
        }
    }
}

/// Why a message is no CloudEvent of this system, with the remedy in its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloudEventError {
    /// A required attribute is not there.
    #[error("attribute `{attribute}` is missing: {remedy}")]
    MissingAttribute {
        /// Its name.
        attribute: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// An attribute is there, but not as it must be.
    #[error("attribute `{attribute}` {problem}: {remedy}")]
    InvalidAttribute {
        /// Its name.
        attribute: String,
        /// What is wrong, as a verb phrase.
        problem: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// There are too many extension attributes.
    #[error("the event has more than {limit} extension attributes: move them into the data")]
    TooManyExtensions {
        /// The most that is taken.
        limit: usize,
    },
    /// The body is too large.
    #[error(
        "the event is {bytes} bytes, more than the {limit} that are taken: put large content elsewhere and send a link"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// Arrays and objects are too deep within each other.
    #[error("the event is nested deeper than {limit} levels: flatten the data")]
    TooDeep {
        /// The deepest that is taken.
        limit: usize,
    },
    /// The body should be JSON and is not.
    #[error("the {what} is not valid JSON ({source}): send valid JSON, or say in the content type what it is")]
    NotJson {
        /// Which part.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The body is JSON of another shape.
    #[error("the body is not {expected}: {remedy}")]
    WrongShape {
        /// What it should be.
        expected: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The event format is not JSON.
    #[error(
        "content type `{content_type}` is not supported: send application/cloudevents+json, or ce-* headers with any body"
    )]
    UnsupportedFormat {
        /// What was declared.
        content_type: String,
    },
    /// A batch was sent where one event is taken.
    #[error("a batch is not taken here: send one event per message")]
    UnexpectedBatch,
    /// The batch holds too many events.
    #[error("the batch holds {events} events, more than the {limit} that are taken: split it")]
    BatchTooLong {
        /// How many it holds.
        events: usize,
        /// The most that is taken.
        limit: usize,
    },
}

impl CloudEventError {
    /// The attribute that is missing or wrong.
    pub fn attribute(&self) -> Option<&str> {
        match self {
            Self::MissingAttribute { attribute, .. } => Some(attribute),
            Self::InvalidAttribute { attribute, .. } => Some(attribute),
            _ => None,
        }
    }
}

impl CloudEvent {
    /// An event with the required attributes and nothing else.
    pub fn new(id: impl Into<String>, source: impl Into<String>, event_type: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            source: source.into(),
            event_type: event_type.into(),
            subject: None,
            time: None,
            datacontenttype: None,
            dataschema: None,
            extensions: BTreeMap::new(),
            data: EventData::None,
        }
    }

    /// The same event with JSON data.
    #[must_use]
    pub fn with_json(mut self, data: Value) -> Self {
        self.datacontenttype = Some("application/json".to_owned());
        self.data = EventData::Json(data);
        self
    }

    /// Reads one event, in whichever mode it was sent: structured if the content type says so, binary if there are
    /// `ce-*` headers, structured JSON if there is neither, as NATS publishers without headers send.
    pub fn decode(headers: &Headers, body: &Bytes, limits: &CloudEventLimits) -> Result<Self, CloudEventError> {
        let content_type = headers.get_any_case(header::CONTENT_TYPE).unwrap_or_default();
        let media_type = media_type(content_type);
        if body.len() > limits.max_bytes {
            return Err(CloudEventError::TooLarge { bytes: body.len(), limit: limits.max_bytes });
        }
        match media_type.as_str() {
            BATCH_MEDIA_TYPE => Err(CloudEventError::UnexpectedBatch),
            EVENT_MEDIA_TYPE => Self::decode_structured(body, limits),
            other if other.starts_with("application/cloudevents") => {
                Err(CloudEventError::UnsupportedFormat { content_type: content_type.to_owned() })
            }
            _ if binary::is_binary(headers) => Self::decode_binary(headers, body, limits),
            _ => Self::decode_structured(body, limits),
        }
    }

    /// The data as JSON, if it is.
    pub fn json(&self) -> Option<&Value> {
        match &self.data {
            EventData::Json(value) => Some(value),
            EventData::None | EventData::Binary(_) => None,
        }
    }

    /// The W3C trace context that the publisher sent along, if it is well-formed.
    pub fn traceparent(&self) -> Option<&str> {
        self.extensions.get("traceparent")?.as_str().filter(|text| is_traceparent(text))
    }
}

/// The media type in a content type, in lower case and without parameters.
fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Whether data of this content type is JSON. Without one it is, by the specification.
fn is_json(content_type: Option<&str>) -> bool {
    let Some(content_type) = content_type else { return true };
    let media_type = media_type(content_type);
    media_type.ends_with("/json") || media_type.ends_with("+json")
}

/// Whether data of this content type is text.
fn is_text(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|content_type| media_type(content_type).starts_with("text/"))
}
