use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMITS: CloudEventLimits =
    CloudEventLimits { max_bytes: 64 * 1024, max_depth: 8, max_extensions: 4, max_attribute_bytes: 256, max_batch: 3 };

fn binary(pairs: &[(&str, &str)], body: &'static [u8]) -> Result<CloudEvent, CloudEventError> {
    let headers = pairs.iter().fold(Headers::new(), |headers, (name, value)| headers.with(name, value));
    CloudEvent::decode(&headers, &Bytes::from_static(body), &LIMITS)
}

fn structured(event: &Value) -> Result<CloudEvent, CloudEventError> {
    CloudEvent::decode(&Headers::new(), &Bytes::from(event.to_string()), &LIMITS)
}

fn push() -> Value {
    json!({"specversion": "1.0", "id": "1", "source": "github", "type": "github.push"})
}

fn push_with(name: &str, value: Value) -> Value {
    let mut event = push();
    event[name] = value;
    event
}

const REQUIRED: [(&str, &str); 4] =
    [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "github"), ("ce-type", "github.push")];

#[test]
fn reads_binary_mode_in_any_case_with_extensions_and_json() {
    let pairs = [
        ("CE-SpecVersion", "1.0"),
        ("Ce-Id", "1"),
        ("ce-source", "github"),
        ("ce-type", "github.push"),
        ("ce-time", "2026-01-31T12:00:00Z"),
        ("ce-subject", "caf%C3%A9%20100%"),
        ("ce-priority", "7"),
        ("content-type", "Application/JSON; charset=utf-8"),
        ("Unrelated", "x"),
    ];
    let event = binary(&pairs, br#"{"ref":"refs/heads/main"}"#).unwrap();
    assert_eq!(event.subject.as_deref(), Some("café 100%"));
    assert_eq!(event.extensions["priority"], json!("7"));
    assert_eq!(event.extensions.len(), 1);
    assert_eq!(event.json(), Some(&json!({"ref": "refs/heads/main"})));
    assert_eq!(event.time.unwrap().to_string(), "2026-01-31T12:00:00Z");
}

#[test]
fn reads_structured_mode_with_and_without_a_content_type() {
    let event = push_with("data", json!({"a": 1}));
    let plain = structured(&event).unwrap();
    let headers = Headers::new().with("Content-Type", "application/cloudevents+json; charset=UTF-8");
    let declared = CloudEvent::decode(&headers, &Bytes::from(event.to_string()), &LIMITS).unwrap();
    assert_eq!(plain, declared);
    assert_eq!(plain.json(), Some(&json!({"a": 1})));
}

#[test]
fn data_comes_in_many_shapes() {
    let text = binary(&[&REQUIRED[..], &[("Content-Type", "text/plain")]].concat(), b"hello").unwrap();
    assert_eq!(text.data, EventData::Json(json!("hello")));
    let bytes = binary(&[&REQUIRED[..], &[("Content-Type", "image/png")]].concat(), b"\x89PNG").unwrap();
    assert_eq!(bytes.data, EventData::Binary(Bytes::from_static(b"\x89PNG")));
    let undeclared = binary(&REQUIRED, b"not json").unwrap();
    assert_eq!(undeclared.data, EventData::Binary(Bytes::from_static(b"not json")));
    assert_eq!(binary(&REQUIRED, b"").unwrap().data, EventData::None);
    let base64 = structured(&push_with("data_base64", json!("iVBO"))).unwrap();
    assert_eq!(base64.data, EventData::Binary(Bytes::from_static(b"\x89PN")));
    assert_eq!(structured(&push_with("data", Value::Null)).unwrap().data, EventData::None);
}

#[test]
fn names_the_attribute_and_the_remedy() {
    for name in ["specversion", "id", "source", "type"] {
        let mut event = push();
        event.as_object_mut().unwrap().remove(name);
        let error = structured(&event).unwrap_err();
        assert_eq!(error.attribute(), Some(name));
        assert!(error.to_string().contains("is missing: "), "{error}");

        let error = structured(&push_with(name, json!(""))).unwrap_err();
        assert_eq!(error.attribute(), Some(name), "{error}");
        let error = structured(&push_with(name, json!(1))).unwrap_err();
        assert_eq!(error.attribute(), Some(name), "{error}");
    }
    for (name, value) in [
        ("specversion", json!("0.3")),
        ("time", json!("yesterday")),
        ("Big", json!("x")),
        ("under_score", json!("x")),
        ("ext", json!({"no": "objects"})),
        ("ext", json!(1.5)),
        ("ext", json!(3_000_000_000_u64)),
        ("subject", json!("x".repeat(300))),
        ("data_base64", json!("%%%")),
        ("data_base64", json!(1)),
    ] {
        let error = structured(&push_with(name, value)).unwrap_err();
        assert_eq!(error.attribute(), Some(name), "{error}");
    }
    let mut both = push_with("data", json!(1));
    both["data_base64"] = json!("AA==");
    assert_eq!(structured(&both).unwrap_err().attribute(), Some("data_base64"));
}

#[test]
fn refuses_an_attribute_given_twice() {
    let pairs = [&REQUIRED[..], &[("CE-ID", "2")]].concat();
    assert_eq!(binary(&pairs, b"").unwrap_err().attribute(), Some("id"));
}

#[test]
fn bounds_size_depth_and_number() {
    let large = push_with("data", json!("x".repeat(65 * 1024)));
    assert!(matches!(structured(&large), Err(CloudEventError::TooLarge { .. })));
    let deep = push_with("data", json!([[[[[[[[1]]]]]]]]));
    assert!(matches!(structured(&deep), Err(CloudEventError::TooDeep { limit: 8 })));
    let mut many = push();
    (0..5).for_each(|n| many[format!("ext{n}")] = json!(true));
    assert!(matches!(structured(&many), Err(CloudEventError::TooManyExtensions { limit: 4 })));
    let batch = json!([push(), push(), push(), push()]).to_string();
    assert!(matches!(
        CloudEvent::decode_batch(batch.as_bytes(), &LIMITS),
        Err(CloudEventError::BatchTooLong { events: 4, limit: 3 })
    ));
    let bottomless = "[".repeat(50_000);
    assert!(matches!(
        CloudEvent::decode_structured(bottomless.as_bytes(), &LIMITS),
        Err(CloudEventError::NotJson { .. })
    ));
}

#[test]
fn a_batch_keeps_its_good_events() {
    let batch = json!([push(), {"id": "2"}, 7]).to_string();
    let events = CloudEvent::decode_batch(batch.as_bytes(), &LIMITS).unwrap();
    assert!(events[0].is_ok() && events[1].is_err() && events[2].is_err());
    assert!(CloudEvent::decode_batch(b"{}", &LIMITS).is_err());
}

#[test]
fn says_what_it_takes() {
    let headers = |content_type| Headers::new().with("Content-Type", content_type);
    let body = Bytes::from_static(b"[]");
    assert!(matches!(
        CloudEvent::decode(&headers(BATCH_MEDIA_TYPE), &body, &LIMITS),
        Err(CloudEventError::UnexpectedBatch)
    ));
    assert!(matches!(
        CloudEvent::decode(&headers("application/cloudevents+avro"), &body, &LIMITS),
        Err(CloudEventError::UnsupportedFormat { .. })
    ));
    assert!(matches!(CloudEvent::decode(&Headers::new(), &body, &LIMITS), Err(CloudEventError::WrongShape { .. })));
    let pairs = [&REQUIRED[..], &[("Content-Type", "application/json")]].concat();
    assert!(matches!(binary(&pairs, b"{"), Err(CloudEventError::NotJson { what: "data", .. })));
}

#[test]
fn cleans_nul_everywhere() {
    let mut event = push_with("data", json!({"k\0": "v\0"}));
    event["subject"] = json!("a\0b");
    let event = structured(&event).unwrap();
    assert_eq!(event.subject.as_deref(), Some("a\u{FFFD}b"));
    assert_eq!(event.json(), Some(&json!({"k\u{FFFD}": "v\u{FFFD}"})));
    let pairs = [&REQUIRED[..], &[("ce-subject", "a%00b")]].concat();
    assert_eq!(binary(&pairs, b"").unwrap().subject.as_deref(), Some("a\u{FFFD}b"));
}

#[test]
fn shows_a_well_formed_trace_context_only() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(structured(&push_with("traceparent", json!(parent))).unwrap().traceparent(), Some(parent));
    assert_eq!(structured(&push_with("traceparent", json!("x"))).unwrap().traceparent(), None);
}

/// Any JSON of a few levels.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i32>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn any_event() -> impl Strategy<Value = CloudEvent> {
    let data = prop_oneof![
        Just((None, EventData::None)),
        any_json().prop_map(|value| (Some("application/json".to_owned()), EventData::Json(value))),
        proptest::collection::vec(any::<u8>(), 1..64)
            .prop_map(|bytes| (Some("application/octet-stream".to_owned()), EventData::Binary(bytes.into()))),
    ];
    let extensions = proptest::collection::btree_map("x[a-z0-9]{0,8}", ".{0,20}".prop_map(Value::String), 0..4);
    let optional = proptest::option::of(".{1,20}");
    // Up to the year 9999, which is as far as RFC 3339 goes.
    let time = proptest::option::of(0_i64..253_402_300_799);
    (".{1,20}", ".{1,20}", ".{1,20}", optional.clone(), optional, time, extensions, data).prop_map(
        |(id, source, event_type, subject, dataschema, time, extensions, (datacontenttype, data))| CloudEvent {
            subject,
            time: time.map(|second| jiff::Timestamp::from_second(second).unwrap()),
            datacontenttype,
            dataschema,
            extensions,
            data,
            ..CloudEvent::new(id, source, event_type)
        },
    )
}

/// What is left of an event after the door: no NUL, and null data is no data.
fn through_the_door(mut event: CloudEvent) -> CloudEvent {
    let clean = |text: &mut String| {
        clean::clean_text(text);
    };
    clean(&mut event.id);
    clean(&mut event.source);
    clean(&mut event.event_type);
    event.subject.as_mut().map(clean);
    event.dataschema.as_mut().map(clean);
    event.extensions.values_mut().for_each(|value| {
        clean_nul(value);
    });
    if let EventData::Json(value) = &mut event.data {
        clean_nul(value);
    }
    event
}

proptest! {
    #[test]
    fn binary_mode_reads_back(event in any_event()) {
        let (headers, body) = event.to_binary();
        let read = CloudEvent::decode(&headers, &body, &CloudEventLimits::default()).unwrap();
        prop_assert_eq!(read, through_the_door(event));
    }

    #[test]
    fn structured_mode_reads_back(event in any_event()) {
        let (headers, body) = event.to_structured();
        let read = CloudEvent::decode(&headers, &body, &CloudEventLimits::default()).unwrap();
        let mut want = through_the_door(event);
        if want.data == EventData::Json(Value::Null) {
            want.data = EventData::None;
        }
        prop_assert_eq!(read, want);
    }

    #[test]
    fn no_bytes_panic(
        pairs in proptest::collection::vec(("(ce-)?.{0,12}", ".{0,24}"), 0..6),
        content_type in proptest::option::of("(application/(cloudevents)?(-batch)?(\\+json|json)?|text/plain|.{0,12})"),
        body in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        let mut headers = pairs.iter().fold(Headers::new(), |headers, (name, value)| headers.with(name, value));
        if let Some(content_type) = content_type {
            headers.insert("Content-Type", content_type);
        }
        let body = Bytes::from(body);
        let _ = CloudEvent::decode(&headers, &body, &LIMITS);
        let _ = CloudEvent::decode_binary(&headers, &body, &LIMITS);
        let _ = CloudEvent::decode_batch(&body, &LIMITS);
    }

    #[test]
    fn no_json_panics_and_none_brings_nul_in(value in any_json(), name in "data|subject|x[a-z]{0,3}|time") {
        let event = push_with(&name, value);
        if let Ok(event) = CloudEvent::from_json(event.clone(), &LIMITS) {
            prop_assert!(!event.to_json().to_string().contains("\\u0000"));
        }
        let _ = CloudEvent::decode_batch(json!([event]).to_string().as_bytes(), &LIMITS);
    }
}
