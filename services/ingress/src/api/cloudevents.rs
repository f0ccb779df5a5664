//! `POST /v1/events`: CloudEvents over HTTP, answered when they are committed.

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bus::{BATCH_MEDIA_TYPE, CloudEvent, CloudEventError, CloudEventLimits, Headers};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Publisher;
use crate::body::{Params, RawBody};
use crate::inbound::{AcceptError, Accepted, Inbound};
use crate::problem::Problem;

/// Longest source token, in bytes.
const SOURCE_BYTES: usize = 255;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct EventsInApi {
    pub inbound: Inbound,
    pub limits: CloudEventLimits,
}

pub(crate) fn router(api: EventsInApi) -> Router {
    Router::new().route("/events", post(publish)).with_state(api)
}

/// Where the events come from.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PublishParams {
    /// The source that waits and triggers know, such as `github`; the event's own `source` if it is not given.
    source: Option<String>,
}

/// What became of the events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishedResponse {
    /// One for each event, in order.
    accepted: Vec<AcceptedEvent>,
}

/// An event that is in the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AcceptedEvent {
    /// Its own id.
    id: String,
    /// Its place among all events from outside.
    position: i64,
    /// Whether it had come before; then nothing happened.
    duplicate: bool,
}

/// Hand in events
///
/// CloudEvents 1.0 in binary mode (`ce-*` headers), in structured mode (`application/cloudevents+json`), or several in a
/// batch (`application/cloudevents-batch+json`). They are taken all or, if one is malformed, none. The answer comes when they
/// are committed; the same event again is harmless.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", params(PublishParams),
    request_body(content = Object, content_type = "application/cloudevents+json", description = "The event, or its data"),
    responses((status = 202, description = "The events are in the log", body = PublishedResponse)),
)]
pub(crate) async fn publish(
    Publisher(principal): Publisher,
    State(api): State<EventsInApi>,
    Params(params): Params<PublishParams>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<(StatusCode, Json<PublishedResponse>), Problem> {
    let source = params.source.as_deref().map(valid_source).transpose()?;
    let headers = bus_headers(&headers);
    let events = decode(&headers, &body, &api.limits)?;
    for (index, event) in events.iter().enumerate() {
        let checked = Inbound::check(source.unwrap_or(&event.source), event);
        checked.map_err(|error| refusal(error).with("index", index))?;
    }
    let mut accepted = Vec::new();
    for event in events {
        let source = source.unwrap_or(&event.source);
        let traceparent = event.traceparent().or_else(|| headers.traceparent());
        let taken = api.inbound.accept(&principal.tenant, source, &event, traceparent).await.map_err(refusal)?;
        let Accepted { position, duplicate } = taken;
        accepted.push(AcceptedEvent { id: event.id.clone(), position, duplicate });
    }
    Ok((StatusCode::ACCEPTED, Json(PublishedResponse { accepted })))
}

/// A source that can be kept.
pub(super) fn valid_source(source: &str) -> Result<&str, Problem> {
    let fits = (1..=SOURCE_BYTES).contains(&source.len()) && !source.chars().any(char::is_control);
    fits.then_some(source).ok_or_else(|| {
        Problem::bad_request("invalid_query", "the source is empty, too long, or has control characters")
            .field("source")
            .remedy("give a short name, such as `github`")
    })
}

/// What the CloudEvents binding for HTTP says in headers.
fn bus_headers(headers: &HeaderMap) -> Headers {
    let mut kept = Headers::new();
    if let Some(traceparent) = traceparent(headers) {
        kept.set_traceparent(traceparent);
    }
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        match name.as_str() {
            "content-type" => kept.insert(bus::header::CONTENT_TYPE, value),
            name if name.starts_with("ce-") => kept.insert(name, value),
            _ => {}
        }
    }
    kept
}

/// The W3C trace context of a caller: one header with one value, well-formed. Anything else counts as none.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(bus::header::TRACEPARENT).iter();
    let value = values.next()?.to_str().ok()?;
    (values.next().is_none() && bus::is_traceparent(value)).then_some(value)
}

fn decode(headers: &Headers, body: &Bytes, limits: &CloudEventLimits) -> Result<Vec<CloudEvent>, Problem> {
    let media_type = headers.get(bus::header::CONTENT_TYPE).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case(BATCH_MEDIA_TYPE) {
        return CloudEvent::decode(headers, body, limits)
            .map(|event| vec![event])
            .map_err(|error| invalid_event(&error));
    }
    let events = CloudEvent::decode_batch(body, limits).map_err(|error| invalid_event(&error))?;
    let numbered = events.into_iter().enumerate();
    numbered.map(|(index, event)| event.map_err(|error| invalid_event(&error).with("index", index))).collect()
}

/// What is wrong with an event.
pub(super) fn invalid_event(error: &CloudEventError) -> Problem {
    let problem = match error {
        CloudEventError::NotJson { source, .. } => {
            Problem::bad_request("malformed_json", error).with("line", source.line()).with("column", source.column())
        }
        CloudEventError::TooLarge { .. } => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", error),
        CloudEventError::UnsupportedFormat { .. } => {
            Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", error).field("Content-Type")
        }
        _ => Problem::unprocessable("invalid_event", error),
    };
    match error.attribute() {
        Some(attribute) => problem.field(attribute),
        None => problem,
    }
}

/// Why an event was not taken.
pub(super) fn refusal(error: AcceptError) -> Problem {
    match error {
        AcceptError::KeyTooLong(words) => {
            Problem::unprocessable("invalid_event", words).field("subject").remedy("shorten the subject")
        }
        AcceptError::Reserved => Problem::unprocessable("invalid_event", AcceptError::Reserved)
            .field("source")
            .remedy("name the system that the event comes from"),
        AcceptError::Store(error) => error.into(),
    }
}
