//! OTLP as protobuf.

use opentelemetry_proto::tonic::{
    collector::{logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest},
    common::v1::{AnyValue, KeyValue, any_value},
    logs::v1::LogRecord,
    metrics::v1::{AggregationTemporality, Metric, NumberDataPoint, metric, number_data_point},
    resource::v1::Resource,
};
use prost::Message as _;
use serde_json::{Value, json};

use super::{DecodeError, Decoded, Origin, nanos};
use crate::{record::Record, severity::Severity};

pub(super) fn logs(body: &[u8]) -> Result<Decoded, DecodeError> {
    let request = ExportLogsServiceRequest::decode(body)?;
    let mut decoded = Decoded::default();
    for resource in request.resource_logs {
        let origin = origin(resource.resource.as_ref());
        for record in resource.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
            decoded.take(&origin, log(record));
        }
    }
    Ok(decoded)
}

pub(super) fn metrics(body: &[u8]) -> Result<Decoded, DecodeError> {
    let request = ExportMetricsServiceRequest::decode(body)?;
    let mut decoded = Decoded::default();
    for resource in request.resource_metrics {
        let origin = origin(resource.resource.as_ref());
        for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
            points(metric).into_iter().for_each(|record| decoded.take(&origin, record));
        }
    }
    Ok(decoded)
}

fn origin(resource: Option<&Resource>) -> Origin {
    let attributes = resource.map(|resource| resource.attributes.as_slice()).unwrap_or_default();
    Origin::new(|name| match &attributes.iter().find(|attribute| attribute.key == name)?.value.as_ref()?.value {
        Some(any_value::Value::StringValue(text)) => Some(text.clone()),
        _ => None,
    })
}

fn log(log: LogRecord) -> Record {
    let mut record =
        Record { time: nanos(log.time_unix_nano).or_else(|| nanos(log.observed_time_unix_nano)), ..Record::default() };
    record.severity = Severity::from_number(log.severity_number.into()).or_else(|| log.severity_text.parse().ok());
    let id = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0).then(|| hex::encode(bytes));
    (record.trace_id, record.span_id) = (id(&log.trace_id), id(&log.span_id));
    match log.body.map(value) {
        Some(Value::String(text)) => record.set_body(text.trim_end()),
        Some(Value::Object(fields)) => fields.into_iter().for_each(|(name, value)| record.add(&name, value, 0)),
        Some(Value::Null) | None => {}
        Some(other) => record.set_body(&other.to_string()),
    }
    attributes(&mut record, log.attributes);
    if !log.event_name.is_empty() {
        record.add("event.name", Value::String(log.event_name), 0);
    }
    record
}

fn points(metric: Metric) -> Vec<Record> {
    let name = metric.name;
    let is_delta = |temporality: i32| temporality == AggregationTemporality::Delta as i32;
    match metric.data {
        Some(metric::Data::Gauge(gauge)) => {
            gauge.data_points.into_iter().map(|each| point(&name, false, each)).collect()
        }
        Some(metric::Data::Sum(sum)) => {
            let is_delta = is_delta(sum.aggregation_temporality);
            sum.data_points.into_iter().map(|each| point(&name, is_delta, each)).collect()
        }
        Some(metric::Data::Histogram(histogram)) => {
            let is_delta = is_delta(histogram.aggregation_temporality);
            let points = histogram.data_points.into_iter();
            points
                .map(|each| {
                    let mut record = Record { time: nanos(each.time_unix_nano), ..Record::default() };
                    record.set_point(&name, is_delta);
                    record.add(&format!("{name}.count"), json!(each.count), 0);
                    record.add(&format!("{name}.sum"), json!(each.sum), 0);
                    if let (Some(sum), true) = (each.sum, each.count > 0) {
                        record.add(&name, json!(sum / each.count as f64), 0);
                    }
                    attributes(&mut record, each.attributes);
                    record
                })
                .collect()
        }
        // Exponential histograms and summaries hold no number that a threshold could be set on.
        _ => Vec::new(),
    }
}

fn point(name: &str, is_delta: bool, point: NumberDataPoint) -> Record {
    let mut record = Record { time: nanos(point.time_unix_nano), ..Record::default() };
    record.set_point(name, is_delta);
    match point.value {
        Some(number_data_point::Value::AsDouble(number)) => record.add(name, json!(number), 0),
        Some(number_data_point::Value::AsInt(number)) => record.add(name, json!(number), 0),
        None => {}
    }
    attributes(&mut record, point.attributes);
    record
}

fn attributes(record: &mut Record, attributes: Vec<KeyValue>) {
    for attribute in attributes {
        if let Some(any) = attribute.value {
            record.add(&attribute.key, value(any), 0);
        }
    }
}

fn value(any: AnyValue) -> Value {
    match any.value {
        Some(any_value::Value::StringValue(text)) => Value::String(text),
        Some(any_value::Value::BoolValue(flag)) => Value::Bool(flag),
        Some(any_value::Value::IntValue(number)) => json!(number),
        Some(any_value::Value::DoubleValue(number)) => json!(number),
        Some(any_value::Value::BytesValue(bytes)) => Value::String(hex::encode(bytes)),
        Some(any_value::Value::ArrayValue(array)) => array.values.into_iter().map(value).collect(),
        Some(any_value::Value::KvlistValue(list)) => {
            list.values.into_iter().map(|entry| (entry.key, entry.value.map_or(Value::Null, value))).collect()
        }
        _ => Value::Null,
    }
}
