//! `POST /v1/triggers:test`: what an event would do, and why.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bus::{CloudEvent, CloudEventLimits};
use kernel::{RunId, WaitId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::cloudevents::{invalid_event, valid_source};
use crate::auth::Viewer;
use crate::body::JsonBody;
use crate::inbound::{Foreseen, Inbound};
use crate::problem::Problem;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct TriggersApi {
    pub inbound: Inbound,
    pub limits: CloudEventLimits,
}

pub(crate) fn router(api: TriggersApi) -> Router {
    Router::new().route("/triggers:test", post(test)).with_state(api)
}

/// An event to try.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerTestRequest {
    /// A CloudEvent in structured form. What it lacks of `id`, `source` and `specversion` is made up.
    #[schema(value_type = Object)]
    event: Value,
    /// The source that waits and triggers know; the event's own `source` if it is not given.
    #[serde(default)]
    source: Option<String>,
}

/// What the event would do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TriggerTestResponse {
    /// One for each trigger of each agent.
    triggers: Vec<TriggerVerdict>,
    /// One for each wait that is about the resource and of the type.
    waits: Vec<WaitVerdict>,
}

/// What a trigger would make of the event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TriggerVerdict {
    /// Name of the agent.
    pub agent: String,
    /// The types that the trigger is for.
    pub on: String,
    /// What would come of it.
    pub would: Would,
    /// Why, in words.
    pub why: String,
    /// What it is held back or counted by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What would come of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Would {
    /// A run starts at once.
    Start,
    /// A run starts later, perhaps with other events.
    HoldBack,
    /// A run that waits has it, so that none starts.
    Wake,
    /// It becomes a record in the log of a service.
    Record,
    /// Nothing.
    Nothing,
}

/// What a wait would make of the event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitVerdict {
    /// The run that waits.
    #[schema(value_type = uuid::Uuid)]
    pub run_id: RunId,
    /// Which wait.
    #[schema(value_type = uuid::Uuid)]
    pub wait_id: WaitId,
    /// Whether it would take the event.
    pub takes: bool,
    /// Why, in words.
    pub why: String,
}

/// Try an event
///
/// Says what would happen if it came in now, and why. Nothing is recorded.
#[utoipa::path(
    post, path = "/v1/triggers:test", tag = "events", request_body = TriggerTestRequest,
    responses((status = 200, description = "What the event would do", body = TriggerTestResponse)),
)]
pub(crate) async fn test(
    Viewer(principal): Viewer,
    State(api): State<TriggersApi>,
    JsonBody(request): JsonBody<TriggerTestRequest>,
) -> Result<Json<TriggerTestResponse>, Problem> {
    let TriggerTestRequest { mut event, source } = request;
    if let Some(event) = event.as_object_mut() {
        for (name, value) in [("specversion", "1.0"), ("id", "test"), ("source", "/test")] {
            event.entry(name).or_insert_with(|| value.into());
        }
    }
    let event = CloudEvent::from_json(event, &api.limits).map_err(|error| invalid_event(&error))?;
    let source = match &source {
        Some(source) => valid_source(source)?.to_owned(),
        None => event.source.clone(),
    };
    let Foreseen { triggers, waits } = api.inbound.foresee(&principal.tenant, &source, &event).await?;
    Ok(Json(TriggerTestResponse { triggers, waits }))
}
