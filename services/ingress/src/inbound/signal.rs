//! Events that an agent's file marks as signals: they become records among a service's logs.

use bus::{Outgoing, Publisher, header, subject};
use engine::{EngineError, RecordedExternal, SubmitError};
use serde_json::{Map, Value};
use signals::Record;

/// Publishes the record of an event. `name` makes it the same when it is published again.
pub(super) async fn publish(
    publisher: &Publisher,
    recorded: &RecordedExternal,
    service: &str,
    name: &str,
) -> Result<(), SubmitError> {
    let payload = serde_json::to_vec(&record(recorded))
        .map_err(|source| EngineError::Json { what: "the record of an event", source })?;
    let message = Outgoing::new(subject::log(&recorded.tenant, service), payload)
        .header(header::CONTENT_TYPE, "application/x-ndjson")
        .msg_id(format!("signal/{name}"));
    let published = publisher.publish(message).await;
    published.map_err(|source| EngineError::Bus { operation: "publishing a signal", source: Box::new(source) })?;
    metrics::counter!("ingress_signals_total").increment(1);
    Ok(())
}

/// What the event says: its data as the record's own fields, beside the event's type and id.
fn record(recorded: &RecordedExternal) -> Record {
    let attribute = |name: &str| recorded.event.get(name).cloned();
    let mut fields = match attribute("data") {
        Some(Value::Object(data)) => data,
        Some(Value::Null) | None => Map::new(),
        Some(other) => Map::from_iter([("data".to_owned(), other)]),
    };
    let external = &recorded.external;
    fields.insert("event.type".to_owned(), external.event_type.clone().into());
    fields.insert("event.id".to_owned(), external.id.clone().into());
    let mut record = Record::from_object(fields);
    if record.body.is_empty() {
        record.body.clone_from(&external.event_type);
    }
    if record.time.is_none() {
        let time = attribute("time").and_then(|time| time.as_str()?.parse().ok());
        record.time = Some(time.unwrap_or(recorded.received_at));
    }
    record
}
