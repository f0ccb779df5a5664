//! Publishing as an outside system would: a CloudEvent on NATS.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use bus::{CloudEvent, Outgoing, header, subject};
use jiff::Timestamp;
use kernel::TenantId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{json_of, migrate, settings, story};
use crate::{
    api::Api,
    args::PublishArgs,
    error::CliError,
    out::Out,
    style::Paint,
    views::{rows, text},
};

/// How long an event may take to start a run that is followed.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// How often that is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// How far the clock of the API may be behind this one.
const SKEW: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// Publishes one event and waits until the server has it. With an API, the run that it starts is followed.
pub async fn run(api: Option<&Api>, args: &PublishArgs, out: &Out) -> Result<(), CliError> {
    let begun = Timestamp::now().checked_sub(SKEW).unwrap_or(Timestamp::MIN);
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
    let Some(api) = api else {
        let next = "what comes of it: esc runs, esc waits; if nothing does, esc triggers test says why";
        out.say(out.style().paint(Paint::Dim, next));
        return Ok(());
    };
    let run = started(api, &args.source, &id, begun).await?;
    story::follow(api, &run, 0, out).await
}

/// The run that the event has started, once it has.
async fn started(api: &Api, source: &str, id: &str, since: Timestamp) -> Result<String, CliError> {
    let deadline = Instant::now() + STARTS_WITHIN;
    let query = [("since", Some(since.to_string())), ("limit", Some("100".to_owned()))];
    let mut seen = HashSet::new();
    loop {
        let page: Value = api.get("/v1/runs", &query).await?;
        for run in rows(&page).iter().map(|row| text(row, &["run_id"])) {
            if !seen.insert(run.to_owned()) {
                continue;
            }
            let first: Value = api.get(&format!("/v1/runs/{run}/events"), &[("limit", Some("1".to_owned()))]).await?;
            let created = rows(&first).first().cloned().unwrap_or_default();
            let trigger = |name: &str| text(&created, &["data", "trigger", name]);
            if trigger("id") == id && trigger("source") == source {
                return Ok(run.to_owned());
            }
        }
        if Instant::now() > deadline {
            let waited = STARTS_WITHIN.as_secs();
            return Err(CliError::failed(format!(
                "it has started no run within {waited} s: `esc triggers test` says why, `esc waits` what runs wait for instead"
            )));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The event in binary mode. What the door would refuse is refused here, where the mistake can be seen.
fn message(args: &PublishArgs, id: &str, data: &serde_json::Value) -> Result<Outgoing, CliError> {
    let tenant = args.tenant.parse::<TenantId>().map_err(|error| CliError::usage(format!("--tenant: {error}")))?;
    let subject = subject::in_(tenant.as_str(), &args.source, &args.event_type);
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
            follow: false,
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
        let stranger = PublishArgs { tenant: "A B".into(), ..args("github.push") };
        let error = message(&stranger, "1", &json!({})).unwrap_err().to_string();
        assert!(error.contains("--tenant") && error.contains("a-z"), "{error}");
    }
}
