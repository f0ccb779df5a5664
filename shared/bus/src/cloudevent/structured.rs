//! Structured mode: the whole event as one JSON object, or several as an array.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::attribute::{Attributes, invalid};
use super::clean::{check_depth, clean_nul};
use super::{CloudEvent, CloudEventError, CloudEventLimits, EVENT_MEDIA_TYPE, EventData};
use crate::message::{Headers, header};

impl CloudEvent {
    /// Reads an event in structured mode.
    pub fn decode_structured(body: &[u8], limits: &CloudEventLimits) -> Result<Self, CloudEventError> {
        Self::from_json(parse(body, limits)?, limits)
    }

    /// Reads a batch. Each event is read by itself: a bad one doesn't spoil the others.
    pub fn decode_batch(
        body: &[u8],
        limits: &CloudEventLimits,
    ) -> Result<Vec<Result<Self, CloudEventError>>, CloudEventError> {
        // The array is one level more than its events.
        let deeper = CloudEventLimits { max_depth: limits.max_depth.saturating_add(1), ..*limits };
        let Value::Array(events) = parse(body, &deeper)? else {
            let remedy = "send a batch as a JSON array, a single event as application/cloudevents+json";
            return Err(CloudEventError::WrongShape { expected: "an array of events", remedy });
        };
        if events.len() > limits.max_batch {
            return Err(CloudEventError::BatchTooLong { events: events.len(), limit: limits.max_batch });
        }
        Ok(events.into_iter().map(|event| Self::from_json(event, limits)).collect())
    }

    /// Reads an event from its JSON form.
    pub fn from_json(event: Value, limits: &CloudEventLimits) -> Result<Self, CloudEventError> {
        check_depth(&event, limits.max_depth)?;
        let Value::Object(mut event) = event else {
            let remedy = "send the event as a JSON object, or its attributes as ce-* headers";
            return Err(CloudEventError::WrongShape { expected: "a CloudEvent", remedy });
        };
        let data = take_data(&mut event)?;
        let mut attributes = Attributes::default();
        for (name, value) in event {
            attributes.take(&name, value, limits)?;
        }
        attributes.finish(data)
    }

    /// The event as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut event = Map::new();
        let mut set = |name: &str, value: Value| event.insert(name.to_owned(), value);
        set("specversion", json!("1.0"));
        set("id", json!(self.id));
        set("source", json!(self.source));
        set("type", json!(self.event_type));
        for (name, value) in
            [("subject", &self.subject), ("datacontenttype", &self.datacontenttype), ("dataschema", &self.dataschema)]
        {
            if let Some(value) = value {
                set(name, json!(value));
            }
        }
        if let Some(time) = &self.time {
            set("time", json!(time.to_string()));
        }
        for (name, value) in &self.extensions {
            set(name, value.clone());
        }
        match &self.data {
            EventData::None => None,
            EventData::Json(value) => set("data", value.clone()),
            EventData::Binary(bytes) => set("data_base64", json!(STANDARD.encode(bytes))),
        };
        Value::Object(event)
    }

    /// The event in structured mode: headers and body.
    pub fn to_structured(&self) -> (Headers, Bytes) {
        let headers = Headers::new().with(header::CONTENT_TYPE, EVENT_MEDIA_TYPE);
        (headers, Bytes::from(self.to_json().to_string()))
    }
}

fn parse(body: &[u8], limits: &CloudEventLimits) -> Result<Value, CloudEventError> {
    if body.len() > limits.max_bytes {
        return Err(CloudEventError::TooLarge { bytes: body.len(), limit: limits.max_bytes });
    }
    let value = serde_json::from_slice(body).map_err(|source| CloudEventError::NotJson { what: "body", source })?;
    check_depth(&value, limits.max_depth)?;
    Ok(value)
}

fn take_data(event: &mut Map<String, Value>) -> Result<EventData, CloudEventError> {
    let given = |value: Option<Value>| value.filter(|value| !value.is_null());
    match (given(event.remove("data")), given(event.remove("data_base64"))) {
        (None, None) => Ok(EventData::None),
        (Some(mut data), None) => {
            clean_nul(&mut data);
            Ok(EventData::Json(data))
        }
        (None, Some(Value::String(text))) => match STANDARD.decode(text) {
            Ok(bytes) => Ok(EventData::Binary(bytes.into())),
            Err(_) => Err(invalid("data_base64", "is not base64", "encode the data with the standard alphabet")),
        },
        (None, Some(_)) => Err(invalid("data_base64", "is not a string", "encode the data as base64")),
        (Some(_), Some(_)) => Err(invalid("data_base64", "stands beside `data`", "send one of them")),
    }
}
