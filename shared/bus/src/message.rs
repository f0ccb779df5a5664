//! What arrives: messages, their headers, and the delivery of a stored message to a consumer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use async_nats::header::{HeaderName, HeaderValue};
use bytes::Bytes;
use jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::ack::AckReply;
use crate::cloudevent::{CloudEvent, CloudEventError, CloudEventLimits};
use crate::error::BusError;
use crate::namespace::Namespace;

/// Names of the headers that this system writes and reads.
pub mod header {
    /// W3C trace context of whatever caused the message.
    pub const TRACEPARENT: &str = "traceparent";
    /// The W3C trace context of a CloudEvent, by its distributed tracing extension.
    pub const CE_TRACEPARENT: &str = "ce-traceparent";
    /// Identity for de-duplication by the server.
    pub const MSG_ID: &str = "Nats-Msg-Id";
    /// Media type of the body.
    pub const CONTENT_TYPE: &str = "Content-Type";
    /// Byte offset of a signal frame's body in the call's output.
    pub const OFFSET: &str = "Esc-Offset";
    /// Number of the first line in a signal frame, counted from 0.
    pub const LINE: &str = "Esc-Line";
    /// Which output a signal frame is from: `stdout`, `stderr` or `both`.
    pub const STREAM: &str = "Esc-Stream";
    /// When a signal frame was read, RFC 3339.
    pub const TIME: &str = "Esc-Time";
    /// The tool whose output a signal frame is.
    pub const TOOL: &str = "Esc-Tool";
    /// Digest of the agent definition that the run follows.
    pub const AGENT: &str = "Esc-Agent";
    /// How the activity ended, as JSON; only on the final frame.
    pub const EXIT: &str = "Esc-Exit";
    /// Why a message was dead-lettered.
    pub const DLQ_REASON: &str = "Esc-Dlq-Reason";
    /// The consumer that gave up.
    pub const DLQ_CONSUMER: &str = "Esc-Dlq-Consumer";
    /// How often the message had been delivered.
    pub const DLQ_ATTEMPTS: &str = "Esc-Dlq-Attempts";
    /// The subject that the message came on, without the namespace.
    pub const DLQ_SUBJECT: &str = "Esc-Dlq-Subject";
    /// When the consumer gave up, RFC 3339.
    pub const DLQ_TIME: &str = "Esc-Dlq-Time";
    /// The size in bytes of a body that was too large to be kept with its reason.
    pub const DLQ_OMITTED: &str = "Esc-Dlq-Omitted";
}

/// Message headers: names are case-sensitive, a name may have several values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(async_nats::HeaderMap);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first value under this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let name = HeaderName::try_from(name).ok()?;
        self.0.get(name).map(HeaderValue::as_str)
    }

    /// The first value under this name in any case.
    pub fn get_any_case(&self, name: &str) -> Option<&str> {
        self.get(name).or_else(|| self.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value))
    }

    /// Sets a header, replacing what was there. What can't stand in a header line is replaced: by `-` in the name, by a
    /// space in the value.
    pub fn insert(&mut self, name: &str, value: impl fmt::Display) {
        self.0.insert(clean_name(name), clean_value(value.to_string()));
    }

    /// The same headers with one more; see [`Headers::insert`].
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.insert(name, value);
        self
    }

    /// Every name with every value, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|(name, values)| values.iter().map(move |value| (name.as_ref(), value.as_str())))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The W3C `traceparent` of the message, or else of the CloudEvent in it, if there is a well-formed one.
    pub fn traceparent(&self) -> Option<&str> {
        let named = |name| self.get(name).filter(|text| is_traceparent(text));
        named(header::TRACEPARENT).or_else(|| named(header::CE_TRACEPARENT))
    }

    /// Sets the W3C `traceparent`; a malformed one is left out, since it would only mislead.
    pub fn set_traceparent(&mut self, traceparent: &str) {
        if is_traceparent(traceparent) {
            self.insert(header::TRACEPARENT, traceparent);
        }
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let mut kept = async_nats::HeaderMap::new();
        for (name, values) in self.0.iter().filter(|(name, _)| keep((*name).as_ref())) {
            for value in values {
                kept.append(name.clone(), value.clone());
            }
        }
        self.0 = kept;
    }

    pub(crate) fn into_inner(self) -> async_nats::HeaderMap {
        self.0
    }
}

impl From<async_nats::HeaderMap> for Headers {
    fn from(headers: async_nats::HeaderMap) -> Self {
        Self(headers)
    }
}

/// A message as it arrives.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where it was published, without the namespace.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub payload: Bytes,
}

impl Message {
    /// The W3C `traceparent`, if there is a well-formed one.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.traceparent()
    }

    /// The identity that the publisher gave it for de-duplication.
    pub fn msg_id(&self) -> Option<&str> {
        self.headers.get(header::MSG_ID)
    }

    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, BusError> {
        serde_json::from_slice(&self.payload)
            .map_err(|source| BusError::Decode { what: format!("the body of `{}`", self.subject), source })
    }

    /// The CloudEvent in it, in binary or structured mode, within the default limits.
    pub fn cloud_event(&self) -> Result<CloudEvent, CloudEventError> {
        CloudEvent::decode(&self.headers, &self.payload, &CloudEventLimits::default())
    }

    pub(crate) fn from_nats(message: async_nats::Message, namespace: &Namespace) -> Self {
        Self {
            subject: namespace.strip(&message.subject).to_owned(),
            headers: Headers(message.headers.unwrap_or_default()),
            payload: message.payload,
        }
    }
}

/// One delivery of a stored message to a consumer. Cheap to clone; reads like the [`Message`] it holds.
#[derive(Clone, Debug)]
pub struct Delivery {
    message: Arc<Message>,
    /// Its number in the stream, from 1.
    pub stream_seq: u64,
    /// How often it has been delivered by now, from 1.
    pub delivered: u64,
    /// When the server stored it.
    pub published_at: Timestamp,
    /// How many messages the server still held for this consumer behind this one.
    pub pending: u64,
    /// The partition of a signal, from 0.
    pub partition: Option<u8>,
    pub(crate) consumer_seq: u64,
    pub(crate) reply: async_nats::Subject,
}

impl Delivery {
    /// Reads what the server says about the delivery in its reply subject; `None` if this is no stored message.
    pub(crate) fn from_nats(mut message: async_nats::Message, namespace: &Namespace) -> Option<Self> {
        let reply = message.reply.take()?;
        let about = AckReply::parse(&reply)?;
        let mut message = Message::from_nats(message, namespace);
        let partition = unpartition(&mut message.subject);
        Some(Self {
            message: Arc::new(message),
            stream_seq: about.stream_seq,
            delivered: about.delivered,
            published_at: about.published_at,
            pending: about.pending,
            partition,
            consumer_seq: about.consumer_seq,
            reply,
        })
    }
}

impl Deref for Delivery {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

/// Whether the text is a `traceparent` by the W3C's version 00, or a later version that begins like it.
pub fn is_traceparent(text: &str) -> bool {
    let lower_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let nonzero = |part: &str| part.bytes().any(|byte| byte != b'0');
    let mut parts = text.split('-');
    let (Some(version), Some(trace), Some(span), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let shaped = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    let ends = version != "00" || parts.next().is_none();
    shaped
        && ends
        && version != "ff"
        && [version, trace, span, flags].into_iter().all(lower_hex)
        && nonzero(trace)
        && nonzero(span)
}

/// Signals are stored under `sigp.<partition>.<original subject>`; shows the original one.
fn unpartition(subject: &mut String) -> Option<u8> {
    let (partition, original) = subject.strip_prefix(crate::topology::PARTITIONED)?.split_once('.')?;
    let partition = partition.parse().ok()?;
    *subject = original.to_owned();
    Some(partition)
}

fn clean_name(name: &str) -> HeaderName {
    HeaderName::try_from(name).unwrap_or_else(|_| {
        let clean: String =
            name.chars().map(|letter| if letter.is_ascii_graphic() && letter != ':' { letter } else { '-' }).collect();
        HeaderName::try_from(clean).unwrap_or_else(|_| HeaderName::from_static("-"))
    })
}

fn clean_value(value: String) -> HeaderValue {
    if value.contains(['\r', '\n']) {
        HeaderValue::from(value.replace(['\r', '\n'], " "))
    } else {
        HeaderValue::from(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn knows_a_traceparent() {
        assert!(is_traceparent(PARENT));
        assert!(is_traceparent(&format!("cc{}-what-comes", &PARENT[2..])));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
        let mut headers = Headers::new();
        headers.set_traceparent("nonsense");
        assert!(headers.is_empty());
        headers.set_traceparent(PARENT);
        assert_eq!(headers.traceparent(), Some(PARENT));
    }

    #[test]
    fn shows_the_original_subject_of_a_signal() {
        let mut subject = "sigp.3.sig.default.r.c".to_owned();
        assert_eq!(unpartition(&mut subject), Some(3));
        assert_eq!(subject, "sig.default.r.c");
        let mut other = "evt.run.runnable.default.r".to_owned();
        assert_eq!(unpartition(&mut other), None);
        assert_eq!(other, "evt.run.runnable.default.r");
    }

    #[test]
    fn finds_names_in_any_case_when_asked_to() {
        let headers = Headers::new().with("CE-Id", "1").with("ce-type", "t");
        assert_eq!(headers.get("ce-id"), None);
        assert_eq!(headers.get_any_case("ce-id"), Some("1"));
        assert_eq!(headers.get_any_case("ce-type"), Some("t"));
    }

    proptest! {
        #[test]
        fn no_header_can_forge_another(name in ".*", value in ".*") {
            let headers = Headers::new().with(&name, &value);
            for (name, value) in headers.iter() {
                prop_assert!(name.chars().all(|letter| letter.is_ascii_graphic() && letter != ':'));
                prop_assert!(!value.contains(['\r', '\n']));
            }
        }

        #[test]
        fn traceparent_never_panics(text in ".*") {
            let _ = is_traceparent(&text);
        }
    }
}
