//! Log records over OTLP, as stock senders send them, and actions on services.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bus::{OrderedOptions, OrderedPull, PARTITIONS, Subject};
use flate2::{Compression, write::GzEncoder};
use opentelemetry_proto::tonic::{
    collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse},
    common::v1::{AnyValue, KeyValue, any_value},
    logs::v1::{LogRecord, ResourceLogs, ScopeLogs},
    resource::v1::Resource,
};
use prost::Message as _;
use reqwest::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use signals::Record;

use crate::harness::{Door, PATIENCE, answer, eventually, json_of};

const PROTOBUF: &str = "application/x-protobuf";

fn text(text: &str) -> Option<AnyValue> {
    Some(AnyValue { value: Some(any_value::Value::StringValue(text.into())) })
}

fn export(service: &str, bodies: &[&str]) -> ExportLogsServiceRequest {
    let named = KeyValue { key: "service.name".into(), value: text(service), ..KeyValue::default() };
    let record = |body: &&str| LogRecord { body: text(body), severity_number: 17, ..LogRecord::default() };
    let log_records = bodies.iter().map(record).collect();
    let resource_logs = vec![ResourceLogs {
        resource: Some(Resource { attributes: vec![named], ..Resource::default() }),
        scope_logs: vec![ScopeLogs { log_records, ..ScopeLogs::default() }],
        ..ResourceLogs::default()
    }];
    ExportLogsServiceRequest { resource_logs }
}

async fn send(door: &Door, role: &str, media_type: &str, packed: bool, body: Vec<u8>) -> Response {
    let request = door.request(Method::POST, "/v1/logs", role).header(header::CONTENT_TYPE, media_type);
    let request = if packed { request.header(header::CONTENT_ENCODING, "gzip") } else { request };
    request.body(body).send().await.unwrap()
}

fn pack(body: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(body).unwrap();
    packed.finish().unwrap()
}

/// What is on the stream of signals: subjects and records. It may be seen a moment after it was published.
async fn records(door: &Door, count: usize) -> Vec<(String, Record)> {
    let (bus, mut found, begun) = (door.bus(), Vec::new(), Instant::now());
    let mut pulls: Vec<Option<OrderedPull>> = (0..PARTITIONS).map(|_| None).collect();
    loop {
        let mut is_all_read = true;
        for (partition, pull) in pulls.iter_mut().enumerate() {
            let name = format!("observer-{partition}");
            // How it stands may not be told in time: then it is asked again.
            let status = bus.consumer_status(&name).await.ok();
            if status.is_some_and(|status| status.pending + status.unacknowledged == 0) {
                continue;
            }
            is_all_read = false;
            if status.is_none() {
                continue;
            }
            let pull = match pull {
                Some(pull) => pull,
                None => pull.insert(bus.ordered_pull(&name, OrderedOptions::default()).await.unwrap()),
            };
            // It may be that only an acknowledgement is still on its way.
            let Ok(batch) = tokio::time::timeout(Duration::from_millis(100), pull.next()).await else { continue };
            let batch = batch.unwrap();
            for delivery in &batch {
                let lines = signals::lines(&delivery.payload);
                found.extend(lines.iter().map(|line| (delivery.subject.clone(), Record::from_line(line))));
            }
            pull.ack_through(batch.last().unwrap().stream_seq).await.unwrap();
        }
        if found.len() >= count && is_all_read || begun.elapsed() > PATIENCE {
            assert_eq!(found.len(), count, "{found:?}");
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn records_come_in_as_stock_senders_send_them() {
    let door = Door::open().await;
    let plain = export("orders", &["no room"]).encode_to_vec();
    let answered = send(&door, "publisher", PROTOBUF, false, plain.clone()).await;
    assert_eq!(
        (answered.status(), &answered.headers()[header::CONTENT_TYPE]),
        (StatusCode::OK, &PROTOBUF.parse().unwrap())
    );
    let body = ExportLogsServiceResponse::decode(answered.bytes().await.unwrap()).unwrap();
    assert_eq!(body.partial_success, None);
    // A sender that did not hear the answer sends the same again.
    send(&door, "publisher", PROTOBUF, false, plain).await.error_for_status().unwrap();
    let packed = pack(&export("orders", &["packed", "twice"]).encode_to_vec());
    send(&door, "publisher", PROTOBUF, true, packed).await.error_for_status().unwrap();
    let json = serde_json::to_vec(&export("ship.ping", &["as json"])).unwrap();
    let answered = json_of(send(&door, "publisher", "application/json; charset=utf-8", true, pack(&json)).await).await;
    assert_eq!(answered, json!({}));

    let found = records(&door, 4).await;
    let mut said: Vec<_> = found.iter().map(|(subject, record)| (subject.as_str(), record.body.as_str())).collect();
    said.sort_unstable();
    let orders = bus::subject::log("acme", "orders");
    let shipping = bus::subject::log("acme", "ship.ping");
    assert_eq!(said, [(orders.as_str(), "no room"), (&orders, "packed"), (&orders, "twice"), (&shipping, "as json")]);
    assert!(matches!(Subject::parse(&shipping).unwrap(), Subject::Log { service, .. } if service == "ship.ping"));
    assert!(found.iter().all(|(_, record)| record.is_fault()));
    door.close().await;
}

#[tokio::test]
async fn what_is_not_taken_is_told_as_otlp_has_it() {
    let door = Door::open_with(|config| {
        config.log_body_limit_bytes = 10_000;
        config.log_records_per_second = 10;
    })
    .await;
    // Some of it.
    let json = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [7, {"body": {"stringValue": "a"}}]}]}]});
    let answered = json_of(send(&door, "user", "application/json", false, json.to_string().into()).await).await;
    assert_eq!(answered["partialSuccess"]["rejectedLogRecords"], "1");
    let long = export(&"x".repeat(200), &["a", "b"]).encode_to_vec();
    let answered = send(&door, "publisher", PROTOBUF, false, long).await;
    let partial = ExportLogsServiceResponse::decode(answered.bytes().await.unwrap()).unwrap().partial_success.unwrap();
    assert!(partial.rejected_log_records == 2 && partial.error_message.contains("service.name"), "{partial:?}");
    // All of it.
    for (status, media_type, packed, body) in [
        (StatusCode::BAD_REQUEST, PROTOBUF, false, b"\xff\xff".to_vec()),
        (StatusCode::BAD_REQUEST, PROTOBUF, true, b"no gzip".to_vec()),
        (StatusCode::BAD_REQUEST, "application/json", false, b"{}".to_vec()),
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, "text/plain", false, b"hello".to_vec()),
        (StatusCode::PAYLOAD_TOO_LARGE, PROTOBUF, false, vec![0; 20_000]),
        (StatusCode::PAYLOAD_TOO_LARGE, PROTOBUF, true, pack(&vec![0; 1_000_000])),
    ] {
        assert_eq!(send(&door, "publisher", media_type, packed, body).await.status(), status);
    }
    let (status, _) = answer(send(&door, "viewer", "application/json", false, b"{}".to_vec()).await).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    // A service that says too much waits, and others do not.
    let bodies = vec!["spam"; 21];
    let first = send(&door, "publisher", PROTOBUF, false, export("noisy", &bodies[..20]).encode_to_vec()).await;
    assert_eq!(first.status(), StatusCode::OK);
    // Two seconds later there is room for as many again: on a slow machine once more, but not again and again.
    let second = eventually("an answer other than yes", || async {
        let second = send(&door, "publisher", PROTOBUF, false, export("noisy", &bodies).encode_to_vec()).await;
        (second.status() != StatusCode::OK).then_some(second)
    })
    .await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(second.headers()[header::RETRY_AFTER].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(&second.headers()[header::CONTENT_TYPE], PROTOBUF);
    let quiet = send(&door, "publisher", PROTOBUF, false, export("quiet", &["a"]).encode_to_vec()).await;
    assert_eq!(quiet.status(), StatusCode::OK);
    door.close().await;
}

#[tokio::test]
async fn an_event_that_is_a_signal_becomes_a_record() {
    let door = Door::open().await;
    door.put_agent(
        "name: watcher\nmodel: scripted:none\ninstructions: Watch.\ntriggers:\n  - { on: 'probe.*', signal: disks }\n",
    )
    .await;
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "probe", "type": "probe.disk", "data": {"used": 91, "msg": "nearly full"},
    });
    let request = door
        .request(Method::POST, "/v1/events", "publisher")
        .header(header::CONTENT_TYPE, "application/cloudevents+json");
    json_of(request.body(event.to_string()).send().await.unwrap()).await;
    let (subject, record) = records(&door, 1).await.remove(0);
    assert_eq!((subject, record.body.as_str()), (bus::subject::log("acme", "disks"), "nearly full"));
    assert_eq!((record.number("used"), record.attributes["event.type"].as_str()), (Some(91.0), Some("probe.disk")));
    assert!(door.get("/v1/runs").await["items"].as_array().unwrap().is_empty(), "it starts nothing");
    door.close().await;
}

#[tokio::test]
async fn an_action_is_recorded_once_and_by_those_who_may() {
    let door = Door::open().await;
    let body = json!({"service": "orders", "what": "POST /orders", "request_id": "r-77881", "expects": "a new order"});
    let post = async |role: &str, key: &str, body: &Value| {
        let request = door.request(Method::POST, "/v1/actions", role).header("Idempotency-Key", key);
        answer(request.json(body).send().await.unwrap()).await
    };
    let (status, first) = post("publisher", "k1", &body).await;
    assert_eq!((status, &first["duplicate"]), (StatusCode::ACCEPTED, &json!(false)), "{first}");
    let (_, again) = post("publisher", "k1", &body).await;
    assert_eq!((&again["action_id"], &again["duplicate"]), (&first["action_id"], &json!(true)));
    let (status, _) = post("publisher", "k1", &json!({"service": "orders", "what": "DELETE"})).await;
    assert_eq!(status, StatusCode::CONFLICT);

    let shown = door.get(&format!("/v1/actions/{}", first["action_id"].as_str().unwrap())).await;
    assert_eq!((&shown["state"], &shown["actor"]), (&json!("open"), &json!("acme-publisher")));
    assert_eq!(door.get("/v1/actions?service=orders").await["items"].as_array().unwrap().len(), 1);
    let path = format!("{}/v1/actions/{}", door.url, first["action_id"].as_str().unwrap());
    let other = door.http.get(path).bearer_auth("other-viewer").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::NOT_FOUND, "another tenant sees nothing of it");

    let run = door.run().await;
    let asking = json!({"service": "orders", "what": "POST", "run_id": run});
    assert_eq!(post("publisher", "k2", &asking).await.0, StatusCode::FORBIDDEN, "it may not wake runs");
    assert_eq!(post("user", "k3", &asking).await.0, StatusCode::ACCEPTED);
    for (field, value) in [
        ("service", json!("")),
        ("what", json!("x".repeat(2000))),
        ("request_id", json!("r 1")),
        ("trace_id", json!("ab")),
        ("at", json!("2020-01-01T00:00:00Z")),
    ] {
        let mut wrong = body.clone();
        wrong[field] = value;
        let (status, problem) = post("publisher", "k4", &wrong).await;
        assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!(field)), "{problem}");
    }
    door.close().await;
}

#[tokio::test]
async fn nobody_outside_speaks_as_the_observer() {
    let door = Door::open().await;
    door.put_agent(
        "name: keeper\nmodel: scripted:none\ninstructions: Keep.\nwatch:\n  - service: orders\n    \
         health: [{ name: silence, silence: 60s }]\n    start: { input: Look after it. }\n",
    )
    .await;
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "observer", "type": "observer.health.firing", "subject": "orders",
        "data": {"agent": "keeper", "watch": 0},
    });
    for path in ["/v1/events", "/v1/events?source=observer"] {
        let request =
            door.request(Method::POST, path, "admin").header(header::CONTENT_TYPE, "application/cloudevents+json");
        let (status, problem) = answer(request.body(event.to_string()).send().await.unwrap()).await;
        assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("source")), "{problem}");
    }
    // On NATS it is a bell at most, and what it says is not read; under another name it is no alarm.
    let message = bus::Outgoing::json(bus::subject::in_("acme", "observer", "observer.health.firing"), &event).unwrap();
    door.bus().publisher().publish(message.header("Content-Type", "application/cloudevents+json")).await.unwrap();
    let request = door.request(Method::POST, "/v1/events?source=probe", "admin");
    let request = request.header(header::CONTENT_TYPE, "application/cloudevents+json");
    json_of(request.body(event.to_string()).send().await.unwrap()).await;
    eventually("both are dealt with", || async {
        let status = door.bus().consumer_status("ingress").await.ok()?;
        (status.pending + status.unacknowledged == 0).then_some(())
    })
    .await;
    assert!(door.get("/v1/runs").await["items"].as_array().unwrap().is_empty());
    // The observer itself is heard.
    let observer = door.engine(kernel::Role::Observer).await;
    let mut real = bus::CloudEvent::new("a1", "urn:escapement:observer", "observer.health.firing")
        .with_json(json!({"agent": "keeper", "watch": 0, "what": "it is silent"}));
    real.subject = Some("orders".into());
    let tenant = "acme".parse().unwrap();
    observer.externals().record(&tenant, engine::OBSERVER, &real, None).await.unwrap();
    let bell = bus::Outgoing::new(bus::subject::in_("acme", "observer", "observer.health.firing"), "{}");
    door.bus().publisher().publish(bell).await.unwrap();
    let run = eventually("the run", || async {
        door.get("/v1/runs?agent=keeper").await["items"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(run["objective"], "Look after it.");
    door.close().await;
}
