//! Binary mode: attributes in `ce-*` headers, the body is the data.

use bytes::Bytes;
use serde_json::Value;

use super::attribute::{Attributes, invalid};
use super::clean::{check_depth, clean_nul};
use super::{CloudEvent, CloudEventError, CloudEventLimits, EventData, is_json, is_text};
use crate::message::{Headers, header};

const PREFIX: &str = "ce-";

impl CloudEvent {
    /// Reads an event in binary mode. Header names are taken in any case.
    pub fn decode_binary(headers: &Headers, body: &Bytes, limits: &CloudEventLimits) -> Result<Self, CloudEventError> {
        if body.len() > limits.max_bytes {
            return Err(CloudEventError::TooLarge { bytes: body.len(), limit: limits.max_bytes });
        }
        let mut attributes = Attributes::default();
        for (name, value) in headers.iter() {
            if let Some(attribute) = attribute_name(name) {
                let attribute = attribute.to_ascii_lowercase();
                let value = percent_decode(value)
                    .ok_or_else(|| invalid(&attribute, "is not UTF-8 once percent-decoded", "percent-encode UTF-8"))?;
                attributes.take(&attribute, Value::String(value), limits)?;
            }
        }
        if let Some(content_type) = headers.get_any_case(header::CONTENT_TYPE)
            && attributes.content_type().is_none()
        {
            attributes.take("datacontenttype", Value::String(content_type.to_owned()), limits)?;
        }
        let data = decode_data(attributes.content_type(), body, limits)?;
        attributes.finish(data)
    }

    /// The event in binary mode: headers and body.
    pub fn to_binary(&self) -> (Headers, Bytes) {
        let mut headers = Headers::new();
        let mut set = |name: &str, value: &str| headers.insert(&format!("{PREFIX}{name}"), percent_encode(value));
        set("specversion", "1.0");
        set("id", &self.id);
        set("source", &self.source);
        set("type", &self.event_type);
        if let Some(subject) = &self.subject {
            set("subject", subject);
        }
        if let Some(time) = &self.time {
            set("time", &time.to_string());
        }
        if let Some(schema) = &self.dataschema {
            set("dataschema", schema);
        }
        for (name, value) in &self.extensions {
            match value {
                Value::String(text) => set(name, text),
                other => set(name, &other.to_string()),
            }
        }
        if let Some(content_type) = &self.datacontenttype {
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        (headers, self.body())
    }

    fn body(&self) -> Bytes {
        let content_type = self.datacontenttype.as_deref();
        match &self.data {
            EventData::None => Bytes::new(),
            EventData::Binary(bytes) => bytes.clone(),
            EventData::Json(Value::String(text)) if !is_json(content_type) => Bytes::from(text.clone()),
            EventData::Json(value) => Bytes::from(value.to_string()),
        }
    }
}

/// Whether the headers hold an event's attributes.
pub(super) fn is_binary(headers: &Headers) -> bool {
    headers.iter().any(|(name, _)| attribute_name(name).is_some())
}

fn attribute_name(header: &str) -> Option<&str> {
    let (prefix, name) = header.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then_some(name)
}

fn decode_data(
    content_type: Option<&str>,
    body: &Bytes,
    limits: &CloudEventLimits,
) -> Result<EventData, CloudEventError> {
    if body.is_empty() {
        return Ok(EventData::None);
    }
    let mut value = if is_json(content_type) {
        match serde_json::from_slice(body) {
            Ok(value) => value,
            // Nobody said that it is JSON.
            Err(_) if content_type.is_none() => return Ok(EventData::Binary(body.clone())),
            Err(source) => return Err(CloudEventError::NotJson { what: "data", source }),
        }
    } else {
        match std::str::from_utf8(body) {
            Ok(text) if is_text(content_type) => Value::String(text.to_owned()),
            _ => return Ok(EventData::Binary(body.clone())),
        }
    };
    check_depth(&value, limits.max_depth)?;
    clean_nul(&mut value);
    Ok(EventData::Json(value))
}

/// As the HTTP and NATS bindings ask: printable ASCII stays, except space, quote and percent.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii_graphic() && !matches!(letter, '"' | '%') {
            encoded.push(letter);
        } else {
            for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String can't fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// A `%` without two hex digits stands for itself, since many publishers don't encode.
fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    crate::subject::percent_decode(text)
}
