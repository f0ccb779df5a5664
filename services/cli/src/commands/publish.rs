//! Publishing as an outside system would: a CloudEvent on NATS.

use bus::{CloudEvent, Outgoing, header, subject};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::{json_of, migrate, settings};
use crate::{args::PublishArgs, error::CliError, out::Out};

/// Publishes one event and waits until the server has it.
pub async fn run(args: &PublishArgs, out: &Out) -> Result<(), CliError> {
    let data = json_of(&args.data, "the data")?;
    let id = args.id.clone().unwrap_or_else(|| Uuid::now_v7().to_string());
    let message = message(args, &id, &data)?;
    let settings = settings()?;
    let bus = migrate::connect(&settings).await?;
    let subject = message.subject.clone();
    let ack = bus.publisher().publish(message).await?;
    bus.flush().await?;
    out.say(format!("published {id} on {subject}"));
    out.value(&json!({"id": id, "subject": subject, "stream_seq": ack.stream_seq, "duplicate": ack.duplicate}));
    Ok(())
}

/// The event in binary mode. What the door would refuse is refused here, where the mistake can be seen.
fn message(args: &PublishArgs, id: &str, data: &serde_json::Value) -> Result<Outgoing, CliError> {
    let subject = subject::in_(&args.tenant, &args.source, &args.event_type);
    let mut message = Outgoing::json(subject, data)?
        .header("ce-specversion", "1.0")
        .header("ce-id", id)
        .header("ce-source", format!("/{}", args.source))
        .header("ce-type", &args.event_type)
        .header("ce-time", Timestamp::now())
        .header(header::MSG_ID, format!("{}/{id}", args.source));
    if let Some(about) = &args.subject {
        message = message.header("ce-subject", about);
    }
    let limits = bus::CloudEventLimits::default();
    CloudEvent::decode(&message.headers, &message.payload, &limits)
        .map_err(|error| CliError::usage(error.to_string()))?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(event_type: &str) -> PublishArgs {
        PublishArgs {
            source: "github".into(),
            event_type: event_type.into(),
            data: "{}".into(),
            subject: Some("acme/widget".into()),
            id: None,
            tenant: "default".into(),
        }
    }

    #[test]
    fn what_is_published_is_a_cloud_event() {
        let message = message(&args("github.push"), "1", &json!({"ref": "refs/heads/main"})).unwrap();
        assert_eq!(message.subject, "in.default.github.github.push");
        let event = CloudEvent::decode(&message.headers, &message.payload, &bus::CloudEventLimits::default()).unwrap();
        assert_eq!((event.id.as_str(), event.event_type.as_str()), ("1", "github.push"));
        assert_eq!(event.subject.as_deref(), Some("acme/widget"));
        assert_eq!(event.json().unwrap()["ref"], "refs/heads/main");
    }

    #[test]
    fn what_the_door_would_refuse_is_refused_here() {
        assert!(message(&args(""), "1", &json!({})).is_err());
        assert!(message(&args("github.push"), "", &json!({})).is_err());
    }
}
