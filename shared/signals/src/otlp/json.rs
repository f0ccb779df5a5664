//! OTLP as JSON: camel case, 64-bit numbers as text or as numbers, ids in hex.

use serde_json::{Map, Value, json};

use super::{DecodeError, Decoded, Kind, Origin, nanos};
use crate::{record::Record, severity::Severity};

pub(super) fn decode(kind: Kind, document: &Value) -> Result<Decoded, DecodeError> {
    let (resources, scopes, items) = match kind {
        Kind::Logs => ("resourceLogs", "scopeLogs", "logRecords"),
        Kind::Metrics => ("resourceMetrics", "scopeMetrics", "metrics"),
    };
    let resources = document.get(resources).and_then(Value::as_array).ok_or(DecodeError::NotOtlp(resources))?;
    let mut decoded = Decoded::default();
    for resource in resources {
        let origin = origin(&resource["resource"]["attributes"]);
        for item in list(&resource[scopes]).iter().flat_map(|scope| list(&scope[items])) {
            match (item, kind) {
                (Value::Object(log), Kind::Logs) => decoded.take(&origin, record(log)),
                (Value::Object(metric), Kind::Metrics) => {
                    points(metric).into_iter().for_each(|record| decoded.take(&origin, record));
                }
                _ => decoded.reject(format!("an entry of `{items}` is no object")),
            }
        }
    }
    Ok(decoded)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn origin(attributes: &Value) -> Origin {
    let attributes = list(attributes);
    Origin::new(|name| {
        let found = attributes.iter().find(|attribute| attribute["key"] == name)?;
        found["value"]["stringValue"].as_str().map(str::to_owned)
    })
}

fn record(log: &Map<String, Value>) -> Record {
    let time = |name: &str| log.get(name).and_then(unsigned).and_then(nanos);
    let mut record =
        Record { time: time("timeUnixNano").or_else(|| time("observedTimeUnixNano")), ..Record::default() };
    let number = log.get("severityNumber").and_then(severity);
    record.severity = number.or_else(|| log.get("severityText")?.as_str()?.parse().ok());
    let id = |name: &str| {
        let id = log.get(name)?.as_str()?;
        id.bytes().any(|byte| byte != b'0').then(|| id.to_ascii_lowercase())
    };
    (record.trace_id, record.span_id) = (id("traceId"), id("spanId"));
    match log.get("body").map(value) {
        Some(Value::String(text)) => record.set_body(text.trim_end()),
        Some(Value::Object(fields)) => fields.into_iter().for_each(|(name, value)| record.add(&name, value, 0)),
        Some(Value::Null) | None => {}
        Some(other) => record.set_body(&other.to_string()),
    }
    attributes(&mut record, log.get("attributes"));
    if let Some(name) = log.get("eventName").and_then(Value::as_str).filter(|name| !name.is_empty()) {
        record.add("event.name", Value::String(name.to_owned()), 0);
    }
    record
}

/// A number, or the name of one such as `SEVERITY_NUMBER_ERROR2`.
fn severity(value: &Value) -> Option<Severity> {
    match value {
        Value::Number(number) => Severity::from_number(number.as_i64()?),
        Value::String(name) => name.strip_prefix("SEVERITY_NUMBER_")?.parse().ok(),
        _ => None,
    }
}

fn points(metric: &Map<String, Value>) -> Vec<Record> {
    let name = metric.get("name").and_then(Value::as_str).unwrap_or_default();
    let of = |kind: &str| {
        let data = metric.get(kind).unwrap_or(&Value::Null);
        let is_delta = is_delta(&data["aggregationTemporality"]);
        list(&data["dataPoints"]).iter().map(move |point| (point, is_delta))
    };
    let numbers = of("gauge").chain(of("sum")).map(|(point, is_delta)| {
        let mut record = Record { time: unsigned(&point["timeUnixNano"]).and_then(nanos), ..Record::default() };
        let number = point["asDouble"].as_f64().map(|number| json!(number));
        let number = number.or_else(|| signed(&point["asInt"]).map(|number| json!(number)));
        record.set_point(name, is_delta);
        record.add(name, number.unwrap_or(Value::Null), 0);
        attributes(&mut record, point.get("attributes"));
        record
    });
    let histograms = of("histogram").map(|(point, is_delta)| {
        let mut record = Record { time: unsigned(&point["timeUnixNano"]).and_then(nanos), ..Record::default() };
        let (count, sum) = (unsigned(&point["count"]).unwrap_or(0), point["sum"].as_f64());
        record.set_point(name, is_delta);
        record.add(&format!("{name}.count"), json!(count), 0);
        record.add(&format!("{name}.sum"), json!(sum), 0);
        if let (Some(sum), true) = (sum, count > 0) {
            record.add(name, json!(sum / count as f64), 0);
        }
        attributes(&mut record, point.get("attributes"));
        record
    });
    numbers.chain(histograms).collect()
}

/// Whether a temporality is delta, as a number or by its name.
fn is_delta(temporality: &Value) -> bool {
    temporality.as_i64() == Some(1) || temporality.as_str() == Some("AGGREGATION_TEMPORALITY_DELTA")
}

fn attributes(record: &mut Record, attributes: Option<&Value>) {
    for attribute in attributes.map(list).unwrap_or_default() {
        if let Some(key) = attribute["key"].as_str() {
            record.add(key, value(&attribute["value"]), 0);
        }
    }
}

fn value(any: &Value) -> Value {
    let Some((kind, content)) = any.as_object().and_then(|any| any.iter().next()) else { return Value::Null };
    match kind.as_str() {
        "intValue" => signed(content).map_or(Value::Null, |number| json!(number)),
        "arrayValue" => list(&content["values"]).iter().map(value).collect(),
        "kvlistValue" => {
            let entries = list(&content["values"]).iter();
            entries
                .map(|entry| (entry["key"].as_str().unwrap_or_default().to_owned(), value(&entry["value"])))
                .collect()
        }
        "stringValue" | "boolValue" | "doubleValue" | "bytesValue" => content.clone(),
        _ => Value::Null,
    }
}

fn unsigned(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn signed(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}
