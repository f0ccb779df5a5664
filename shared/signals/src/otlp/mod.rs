//! OTLP over HTTP: logs and metrics, as protobuf and as JSON.

mod json;
mod protobuf;

use jiff::Timestamp;
use serde_json::Value;

use crate::record::Record;

/// The service of records that name none, as OpenTelemetry calls it.
const UNKNOWN: &str = "unknown_service";
/// Most bytes of the name of a service.
const SERVICE_BYTES: usize = 128;
/// The resource attributes that tell instances of a service apart, best first.
const COMPONENT: [&str; 5] = ["service.instance.id", "k8s.pod.name", "container.id", "host.name", "host.id"];

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `application/x-protobuf`.
    Protobuf,
    /// `application/json`.
    Json,
}

/// What a document holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `ExportLogsServiceRequest`.
    Logs,
    /// `ExportMetricsServiceRequest`. A data point becomes a record with its number under the metric's name.
    Metrics,
}

/// What came out of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decoded {
    /// The records, each with the service that it is of, in order.
    pub records: Vec<(String, Record)>,
    /// Records that could not be taken.
    pub rejected: u64,
    /// Why, of the first of them.
    pub why: Option<String>,
}

/// The document is none.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is not protobuf of this kind.
    #[error("the body is no OTLP protobuf: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// It is not JSON.
    #[error("the body is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is JSON and something else.
    #[error("the body is no OTLP JSON: it has no `{0}`")]
    NotOtlp(&'static str),
}

/// Reads a document.
///
/// # Errors
/// When it is none at all. Single records that can't be taken are counted.
pub fn decode(kind: Kind, encoding: Encoding, body: &[u8]) -> Result<Decoded, DecodeError> {
    match (encoding, kind) {
        (Encoding::Protobuf, Kind::Logs) => protobuf::logs(body),
        (Encoding::Protobuf, Kind::Metrics) => protobuf::metrics(body),
        (Encoding::Json, kind) => json::decode(kind, &serde_json::from_slice(body)?),
    }
}

/// The records of an OTLP JSON document of logs; none if it is no such thing.
pub(crate) fn from_document(body: &[u8]) -> Option<Vec<(String, Record)>> {
    // Cheap for the many messages that are something else.
    memchr::memmem::find(&body[..body.len().min(4096)], b"\"resource")?;
    let document: Value = serde_json::from_slice(body).ok()?;
    json::decode(Kind::Logs, &document).ok().map(|decoded| decoded.records)
}

/// A resource, as far as its records need it.
struct Origin {
    service: Result<String, String>,
    component: Option<String>,
}

impl Origin {
    fn new(mut attribute: impl FnMut(&str) -> Option<String>) -> Self {
        let service = attribute("service.name").filter(|name| !name.is_empty());
        let service = match service {
            Some(name) if name.len() > SERVICE_BYTES => {
                Err(format!("`service.name` is {} bytes, more than the {SERVICE_BYTES} that are taken", name.len()))
            }
            Some(name) => Ok(name),
            None => Ok(UNKNOWN.to_owned()),
        };
        let component = COMPONENT.iter().find_map(|name| attribute(name)).filter(|name| !name.is_empty());
        Self { service, component }
    }
}

impl Decoded {
    fn take(&mut self, origin: &Origin, mut record: Record) {
        match &origin.service {
            Ok(service) => {
                record.component = record.component.or_else(|| origin.component.clone());
                self.records.push((service.clone(), record));
            }
            Err(why) => self.reject(why.clone()),
        }
    }

    fn reject(&mut self, why: String) {
        self.rejected += 1;
        self.why.get_or_insert(why);
    }
}

fn nanos(nanos: u64) -> Option<Timestamp> {
    (nanos > 0).then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::{
        collector::{logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest},
        common::v1::{AnyValue, KeyValue, any_value},
        logs::v1::{LogRecord, ResourceLogs, ScopeLogs},
        metrics::v1::{
            AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
            ScopeMetrics, Sum, metric, number_data_point,
        },
        resource::v1::Resource,
    };
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::severity::Severity;

    fn text(text: &str) -> AnyValue {
        AnyValue { value: Some(any_value::Value::StringValue(text.into())) }
    }

    fn attribute(key: &str, value: any_value::Value) -> KeyValue {
        KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
    }

    fn resource(service: &str) -> Option<Resource> {
        let named = |key, value: &str| attribute(key, any_value::Value::StringValue(value.into()));
        let attributes = vec![named("service.name", service), named("k8s.pod.name", "orders-1")];
        Some(Resource { attributes, ..Resource::default() })
    }

    fn request(service: &str) -> ExportLogsServiceRequest {
        let record = LogRecord {
            time_unix_nano: 1_767_323_045_000_000_000,
            severity_number: 17,
            body: Some(text("no room")),
            attributes: vec![attribute("depth", any_value::Value::IntValue(7))],
            trace_id: vec![0xab; 16],
            ..LogRecord::default()
        };
        let scope_logs = vec![ScopeLogs { log_records: vec![record], ..ScopeLogs::default() }];
        let resource_logs = vec![ResourceLogs { resource: resource(service), scope_logs, ..ResourceLogs::default() }];
        ExportLogsServiceRequest { resource_logs }
    }

    #[test]
    fn protobuf_and_json_say_the_same() {
        let request = request("orders");
        let protobuf = decode(Kind::Logs, Encoding::Protobuf, &request.encode_to_vec()).unwrap();
        let json = serde_json::to_vec(&request).unwrap();
        assert_eq!(decode(Kind::Logs, Encoding::Json, &json).unwrap(), protobuf);
        let (service, record) = &protobuf.records[0];
        assert_eq!((service.as_str(), record.component.as_deref()), ("orders", Some("orders-1")));
        assert_eq!((record.severity, record.number("depth")), (Some(Severity::Error), Some(7.0)));
        assert_eq!(record.trace_id.as_deref(), Some("abababababababababababababababab"));
        assert_eq!(record.time.unwrap().to_string(), "2026-01-02T03:04:05Z");
    }

    #[test]
    fn what_cannot_be_taken_is_counted() {
        let decoded = decode(Kind::Logs, Encoding::Protobuf, &request(&"x".repeat(200)).encode_to_vec()).unwrap();
        assert_eq!((decoded.records.len(), decoded.rejected), (0, 1));
        assert!(decoded.why.unwrap().contains("service.name"));
        let json = br#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[7,{"body":{"stringValue":"a"}}]}]}]}"#;
        let decoded = decode(Kind::Logs, Encoding::Json, json).unwrap();
        assert_eq!((decoded.records.len(), decoded.rejected), (1, 1));
        assert_eq!(decoded.records[0].0, UNKNOWN);
        assert!(decode(Kind::Logs, Encoding::Json, b"{}").is_err());
        assert!(decode(Kind::Logs, Encoding::Protobuf, b"\xff\xff").is_err());
    }

    /// The records of one metric of `orders`, which come out the same of both encodings.
    fn points(name: &str, data: metric::Data) -> Vec<Record> {
        let metrics = vec![Metric { name: name.into(), data: Some(data), ..Metric::default() }];
        let scope_metrics = vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }];
        let resource_metrics =
            vec![ResourceMetrics { resource: resource("orders"), scope_metrics, ..ResourceMetrics::default() }];
        let request = ExportMetricsServiceRequest { resource_metrics };
        let protobuf = decode(Kind::Metrics, Encoding::Protobuf, &request.encode_to_vec()).unwrap();
        let json = serde_json::to_vec(&request).unwrap();
        assert_eq!(decode(Kind::Metrics, Encoding::Json, &json).unwrap(), protobuf);
        protobuf.records.into_iter().map(|(_, record)| record).collect()
    }

    fn number(value: i64, labels: Vec<KeyValue>) -> NumberDataPoint {
        let value = Some(number_data_point::Value::AsInt(value));
        let time_unix_nano = 1_767_323_045_000_000_000;
        NumberDataPoint { value, time_unix_nano, attributes: labels, ..NumberDataPoint::default() }
    }

    #[test]
    fn points_of_metrics_are_numbers_by_name() {
        let point = number(42, vec![attribute("status", any_value::Value::IntValue(500))]);
        let record = &points("queue.depth", metric::Data::Gauge(Gauge { data_points: vec![point] }))[0];
        assert_eq!(record.number("queue.depth"), Some(42.0));
        assert_eq!(record.labels().unwrap().collect::<Vec<_>>(), [("status", &Value::from(500))]);
        assert!(record.says("status", "500") && !record.says("status", "5"));
        assert_eq!(record.shown(), "queue.depth=42 status=500");
        // It is one also after it was brought to the bus and read there.
        let read = Record::from_line(&serde_json::to_vec(record).unwrap());
        assert_eq!(read.labels().map(Iterator::count), Some(1));
    }

    #[test]
    fn what_came_since_the_point_before_is_told_from_what_there_is_in_all() {
        use AggregationTemporality::{Cumulative, Delta, Unspecified};

        for (temporality, is_delta) in [(Delta, true), (Cumulative, false), (Unspecified, false)] {
            let aggregation_temporality = temporality as i32;
            // As many labels as are kept: our own words come first.
            let label = |n| attribute(&format!("a{n:02}"), any_value::Value::IntValue(n));
            let data_points = vec![number(3, (0..64).map(label).collect())];
            let sum = Sum { data_points, aggregation_temporality, is_monotonic: true };
            let point = HistogramDataPoint { count: 4, sum: Some(10.0), ..HistogramDataPoint::default() };
            let histogram = Histogram { data_points: vec![point], aggregation_temporality };
            let sum = points("n", metric::Data::Sum(sum)).remove(0);
            let histogram = points("n", metric::Data::Histogram(histogram)).remove(0);
            for read in [sum.clone(), Record::from_line(&serde_json::to_vec(&sum).unwrap())] {
                assert_eq!((read.number("n"), read.is_delta("n")), (Some(3.0), is_delta), "{temporality:?}");
                assert!(!read.is_delta("n.sum.of") && !read.is_delta("a00"));
            }
            assert!(!histogram.shown().contains("escapement"), "{}", histogram.shown());
            assert_eq!(histogram.labels().map(Iterator::count), Some(0));
            assert_eq!((histogram.is_delta("n.count"), histogram.is_delta("n.sum")), (is_delta, is_delta));
            assert!(!histogram.is_delta("n"), "a mean is one in any case");
        }
        let named = br#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"n","sum":
            {"aggregationTemporality":"AGGREGATION_TEMPORALITY_DELTA","dataPoints":[{"asInt":"3"}]}}]}]}]}"#;
        assert!(decode(Kind::Metrics, Encoding::Json, named).unwrap().records[0].1.is_delta("n"));
    }

    /// Few by default, many with `ESC_TEST_LONG=1`.
    fn cases() -> ProptestConfig {
        let long = std::env::var_os("ESC_TEST_LONG").is_some_and(|value| value == "1");
        ProptestConfig::with_cases(if long { 200_000 } else { 1000 })
    }

    /// A request that is right, with some of its bytes turned into others, cut, doubled or put elsewhere.
    fn broken(whole: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
        let size = whole.len();
        let change = (0..size, 0..size, any::<u8>(), 0..4_u8);
        proptest::collection::vec(change, 1..8).prop_map(move |changes| {
            let mut bytes = whole.clone();
            for (at, to, byte, how) in changes {
                let (at, to) = (at.min(bytes.len()), to.min(bytes.len()));
                match how {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes.insert(at, byte),
                    2 => bytes.extend_from_within(at.min(to)..at.max(to)),
                    _ => bytes.iter_mut().skip(at).take(1).for_each(|old| *old = byte),
                }
            }
            bytes
        })
    }

    fn survived(kind: Kind, encoding: Encoding, body: &[u8]) {
        let Ok(decoded) = decode(kind, encoding, body) else { return };
        for (service, record) in &decoded.records {
            assert!(service.len() <= SERVICE_BYTES && record.body.len() <= crate::MAX_BODY_BYTES);
            assert!(record.attributes.len() <= crate::MAX_ATTRIBUTES);
        }
        // A few bytes can't become many records.
        assert!(decoded.records.len() <= body.len());
    }

    proptest! {
        #![proptest_config(cases())]

        #[test]
        fn broken_requests_are_survived(
            protobuf in broken(request("orders").encode_to_vec()),
            json in broken(serde_json::to_vec(&request("orders")).unwrap()),
            noise in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for kind in [Kind::Logs, Kind::Metrics] {
                survived(kind, Encoding::Protobuf, &protobuf);
                survived(kind, Encoding::Json, &json);
                survived(kind, Encoding::Protobuf, &noise);
                survived(kind, Encoding::Json, &noise);
            }
            let _ = from_document(&json);
        }
    }

    #[test]
    fn depth_and_breadth_are_bounded() {
        let deep = |open: &str, close: &str, levels: usize| {
            let body = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{body}}}]}}]}}]}}"#)
        };
        for levels in [10, 100, 100_000] {
            survived(Kind::Logs, Encoding::Json, deep("[", "]", levels).as_bytes());
            survived(Kind::Logs, Encoding::Json, deep(r#"{"arrayValue":{"values":["#, "]}}", levels).as_bytes());
        }
        // The same in protobuf: a list within a list, and so on. Made by hand, as the types would be written as deep.
        for levels in [10, 100, 5000] {
            let value = (0..levels).fold(text("x").encode_to_vec(), |inner, _| field(5, field(1, inner)));
            let request = field(1, field(2, field(2, field(5, value))));
            survived(Kind::Logs, Encoding::Protobuf, &request);
        }
    }

    /// A field of protobuf that holds bytes.
    fn field(number: u8, content: Vec<u8>) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend(content);
        bytes
    }
}
