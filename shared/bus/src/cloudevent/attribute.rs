//! The attributes of an event, collected one by one and checked as a whole.

use jiff::Timestamp;
use serde_json::Value;

use super::clean::clean_text;
use super::{CloudEvent, CloudEventError, CloudEventLimits, EventData};

const SPEC_VERSION: &str = "1.0";

/// An event in the making: the attributes seen so far.
#[derive(Default)]
pub(super) struct Attributes {
    specversion: Option<String>,
    id: Option<String>,
    source: Option<String>,
    event_type: Option<String>,
    subject: Option<String>,
    time: Option<Timestamp>,
    datacontenttype: Option<String>,
    dataschema: Option<String>,
    extensions: std::collections::BTreeMap<String, Value>,
}

impl Attributes {
    /// Takes one attribute. A JSON null counts as absent; giving one twice is refused.
    pub(super) fn take(&mut self, name: &str, value: Value, limits: &CloudEventLimits) -> Result<(), CloudEventError> {
        if value.is_null() {
            return Ok(());
        }
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
            return Err(invalid(name, "has a name that is not allowed", "use only lower-case letters and digits"));
        }
        let slot = match name {
            "specversion" => &mut self.specversion,
            "id" => &mut self.id,
            "source" => &mut self.source,
            "type" => &mut self.event_type,
            "subject" => &mut self.subject,
            "datacontenttype" => &mut self.datacontenttype,
            "dataschema" => &mut self.dataschema,
            "time" => {
                let time = rfc3339(&text(name, value, limits)?)?;
                return once(name, self.time.replace(time).is_some());
            }
            _ => {
                let value = extension(name, value, limits)?;
                once(name, self.extensions.insert(name.to_owned(), value).is_some())?;
                if self.extensions.len() > limits.max_extensions {
                    return Err(CloudEventError::TooManyExtensions { limit: limits.max_extensions });
                }
                return Ok(());
            }
        };
        once(name, slot.replace(text(name, value, limits)?).is_some())
    }

    /// The media type that the data was declared to have.
    pub(super) fn content_type(&self) -> Option<&str> {
        self.datacontenttype.as_deref()
    }

    /// The event, if every required attribute is there.
    pub(super) fn finish(self, data: EventData) -> Result<CloudEvent, CloudEventError> {
        let version = self.specversion.ok_or(missing("specversion", "set it to 1.0"))?;
        if version != SPEC_VERSION {
            return Err(invalid("specversion", "is another version", "send CloudEvents 1.0"));
        }
        Ok(CloudEvent {
            id: self.id.ok_or(missing("id", "give every event of a source an id of its own"))?,
            source: self.source.ok_or(missing("source", "say which system the event is from, as a URI reference"))?,
            event_type: self.event_type.ok_or(missing("type", "say what happened, as in github.push"))?,
            subject: self.subject,
            time: self.time,
            datacontenttype: self.datacontenttype,
            dataschema: self.dataschema,
            extensions: self.extensions,
            data,
        })
    }
}

fn missing(attribute: &'static str, remedy: &'static str) -> CloudEventError {
    CloudEventError::MissingAttribute { attribute, remedy }
}

pub(super) fn invalid(attribute: &str, problem: &'static str, remedy: &'static str) -> CloudEventError {
    // The name may be anything that came from outside, and goes into logs and dead letters.
    let attribute = attribute.chars().take(64).collect();
    CloudEventError::InvalidAttribute { attribute, problem, remedy }
}

fn once(name: &str, seen: bool) -> Result<(), CloudEventError> {
    if seen { Err(invalid(name, "is given twice", "send it once")) } else { Ok(()) }
}

fn text(name: &str, value: Value, limits: &CloudEventLimits) -> Result<String, CloudEventError> {
    let Value::String(mut text) = value else {
        return Err(invalid(name, "is not a string", "send it as a string"));
    };
    if text.is_empty() {
        return Err(invalid(name, "is empty", "fill it in, or leave it out if it is optional"));
    }
    if text.len() > limits.max_attribute_bytes {
        return Err(invalid(name, "is too long", "move long content into the data"));
    }
    clean_text(&mut text);
    Ok(text)
}

/// Extensions may be booleans and integers, too, and empty.
fn extension(name: &str, value: Value, limits: &CloudEventLimits) -> Result<Value, CloudEventError> {
    match value {
        Value::String(text) if text.is_empty() => Ok(Value::String(text)),
        Value::String(_) => text(name, value, limits).map(Value::String),
        Value::Bool(_) => Ok(value),
        Value::Number(ref number) if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) => Ok(value),
        _ => Err(invalid(name, "is neither string, boolean nor 32-bit integer", "send it as a string, or in the data")),
    }
}

/// Strictly RFC 3339: the parser behind it would take more.
fn rfc3339(text: &str) -> Result<Timestamp, CloudEventError> {
    let error = || invalid("time", "is not an RFC 3339 time", "send it as in 2026-01-31T12:00:00Z");
    if is_rfc3339(text.as_bytes()) { text.parse().map_err(|_| error()) } else { Err(error()) }
}

fn is_rfc3339(text: &[u8]) -> bool {
    let shaped = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && text.iter().zip(shape).all(|(have, want)| match want {
                b'0' => have.is_ascii_digit(),
                want => have.eq_ignore_ascii_case(want),
            })
    };
    let Some((date_time, rest)) = text.split_at_checked(19) else { return false };
    let rest = match rest {
        [b'.', fraction @ ..] => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 { return false } else { &fraction[digits..] }
        }
        rest => rest,
    };
    shaped(date_time, b"0000-00-00T00:00:00")
        && (shaped(rest, b"Z") || shaped(rest, b"+00:00") || shaped(rest, b"-00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_rfc_3339_and_nothing_else() {
        for good in [
            "2026-01-31T12:00:00Z",
            "2026-01-31t12:00:00z",
            "2026-01-31T12:00:00.123456789+05:30",
            "2026-01-31T12:00:00-00:00",
        ] {
            assert!(rfc3339(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-01-31 12:00:00Z",
            "2026-13-31T12:00:00Z",
            "2026-01-31T12:00:00.Z",
            "2026-01-31T12:00:00+0530",
            "2026-01-31T12:00:00Z[UTC]",
            "1769860800",
        ] {
            assert!(rfc3339(bad).is_err(), "{bad}");
        }
    }
}
