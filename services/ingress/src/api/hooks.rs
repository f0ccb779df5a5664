//! `POST /v1/hooks/{source}`: signed webhooks, answered when their event is committed.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{ConnectInfo, FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bus::{CloudEvent, CloudEventLimits};
use kernel::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::cloudevents::{invalid_event, refusal};
use crate::body::{RawBody, Segments};
use crate::hooks::{Delivered, Hook, Hooks, Unreadable, Unsigned, delivered, verify};
use crate::inbound::{Accepted, Inbound};
use crate::pacing::{Pacing, Strangers};
use crate::problem::Problem;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct HooksApi {
    pub hooks: Hooks,
    pub inbound: Inbound,
    pub limits: CloudEventLimits,
    /// Of each hook, for what is signed.
    pub pacing: Pacing,
    /// Of each address, for what is not.
    pub strangers: Strangers,
}

/// Open to everybody: a delivery shows by its signature where it comes from.
pub(crate) fn router(api: HooksApi) -> Router {
    Router::new().route("/hooks/{source}", post(receive)).with_state(api)
}

/// A delivery that is in the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeliveredResponse {
    /// The event's own id: the sender's name for the delivery.
    id: String,
    /// What happened, as triggers and waits name it.
    #[serde(rename = "type")]
    event_type: String,
    /// What it happened to.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Its place among all events from outside.
    position: i64,
    /// Whether it had come before; then nothing happened.
    duplicate: bool,
}

/// Deliver a webhook
///
/// For GitHub, GitLab, Stripe, Slack, Standard Webhooks, and whoever signs with HMAC-SHA256. No token: the signature counts. The
/// answer comes when the event is committed, whatever it leads to; the same delivery again is harmless.
#[utoipa::path(
    post, path = "/v1/hooks/{source}", tag = "events", security(()),
    params(("source" = String, Path, description = "Name of the hook, as its file says")),
    request_body(content = Object, content_type = "application/json", description = "As the sender has it"),
    responses(
        (status = 200, description = "The answer to Slack's question whether this is the right place", body = Object),
        (status = 202, description = "The event is in the log", body = DeliveredResponse),
    ),
)]
pub(crate) async fn receive(
    State(api): State<HooksApi>,
    Segments(name): Segments<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
) -> Result<Response, Problem> {
    let address = peer.ip();
    let too_many = api.strangers.owes(address);
    let headers = request.headers().clone();
    let body = RawBody::from_request(request, &()).await.inspect_err(|_| api.strangers.count(address, 0));
    let RawBody(body) = body?;
    // An address may be shared, with all customers of a forge or all behind a proxy: what is signed passes in any case. But what
    // comes from where too much was not is looked at one by one, so that it keeps no more than one core busy.
    let turn = if too_many.is_some() { Some(api.strangers.turn().await) } else { None };
    let hook = match api.signed(&name, &headers, &body) {
        Ok(hook) => hook,
        Err(unbelieved) => {
            api.strangers.count(address, body.len());
            return Err(too_many.unwrap_or(unbelieved));
        }
    };
    drop(turn);
    // Of a hook only what is signed with its secret takes: nobody else can use up what its sender may.
    let caller = format!("/hooks/{name}");
    Ok(api.pacing.answer(&caller, async { api.take_in(&hook, &headers, &body).await.into_response() }).await)
}

impl HooksApi {
    /// The hook, if somebody who knows its secret has sent this.
    fn signed(&self, name: &str, headers: &HeaderMap, body: &[u8]) -> Result<Arc<Hook>, Problem> {
        let hook = self.hooks.get(name).ok_or_else(|| unknown_hook(name))?;
        if let Some(missing) = &hook.missing {
            tracing::error!(hook = hook.name, secret = missing.0, "a delivery can't be checked: {missing}");
            let words = format!("the hook `{name}` has no secret to check deliveries with");
            return Err(
                Problem::unavailable("hook_without_secret", words).remedy("whoever runs this server has to set it")
            );
        }
        verify(&hook, headers, body, Timestamp::now()).map_err(|error| unsigned(&hook, &error))?;
        Ok(hook)
    }

    /// Makes an event of what is believed.
    async fn take_in(&self, hook: &Hook, headers: &HeaderMap, body: &[u8]) -> Result<Response, Problem> {
        let event = match delivered(hook, headers, body, &self.limits).map_err(|error| unreadable(&error))? {
            Delivered::Event(event) => event,
            Delivered::Challenge(challenge) => {
                return Ok(Json(serde_json::json!({ "challenge": challenge })).into_response());
            }
        };
        let traceparent = super::cloudevents::traceparent(headers);
        let accepted = self.inbound.accept_later(&hook.tenant, &hook.source, &event, traceparent).await;
        let Accepted { position, duplicate } = accepted.map_err(refusal)?;
        let outcome = if duplicate { "duplicate" } else { "new" };
        metrics::counter!("ingress_webhooks_total", "hook" => hook.name.clone(), "outcome" => outcome).increment(1);
        let CloudEvent { id, event_type, subject, .. } = *event;
        let body = DeliveredResponse { id, event_type, subject, position, duplicate };
        Ok((StatusCode::ACCEPTED, Json(body)).into_response())
    }
}

fn unknown_hook(name: &str) -> Problem {
    Problem::not_found("unknown_hook", format!("there is no hook `{name}`"))
        .remedy("a hook is a file in `hooks/` of the agents' folder (ESC_AGENTS_DIR)")
}

fn unsigned(hook: &Hook, error: &Unsigned) -> Problem {
    metrics::counter!("ingress_webhooks_total", "hook" => hook.name.clone(), "outcome" => "refused").increment(1);
    tracing::warn!(hook = hook.name, %error, "a delivery is not believed");
    let (code, remedy) = match error {
        Unsigned::Missing(_) => {
            ("missing_signature", "set the secret at the sender, so that it signs what it delivers")
        }
        Unsigned::Malformed(_) => ("malformed_signature", "send the signature as the scheme of this hook has it"),
        Unsigned::Wrong(_) => {
            ("invalid_signature", "set the same secret at the sender and here, and sign the body as it is sent")
        }
        Unsigned::Stale { .. } => {
            ("stale_signature", "deliver at once, set the clocks right, or raise `tolerance` of the hook")
        }
    };
    let problem = Problem::new(StatusCode::UNAUTHORIZED, code, error).remedy(remedy);
    match error {
        Unsigned::Missing(header) | Unsigned::Malformed(header) | Unsigned::Wrong(header) => problem.field(header),
        Unsigned::Stale { .. } => problem,
    }
}

fn unreadable(error: &Unreadable) -> Problem {
    match error {
        Unreadable::Event(event) => invalid_event(event),
        Unreadable::NotJson(json) => Problem::bad_request("malformed_json", error)
            .with("line", json.line())
            .with("column", json.column())
            .remedy("set the sender's content type to `application/json`"),
        Unreadable::NoPayload => Problem::bad_request("malformed_form", error).field("payload"),
        Unreadable::NoEvent(header) => Problem::bad_request("missing_event", error).field(*header),
        Unreadable::Mapping { name, .. } => {
            Problem::unprocessable("unmappable", error).field(format!("map.{name}")).remedy("mend the file of the hook")
        }
    }
}
