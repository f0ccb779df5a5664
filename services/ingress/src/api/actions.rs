//! `/v1/actions`: who did what to which service, and what came of it.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use bus::{Outgoing, Publisher as BusPublisher, subject};
use engine::{ActionRow, Actions, Reads, RecordedAction};
use kernel::action::{Action, ActionConclusion};
use kernel::{ActionId, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::runs::{idempotency_key, page_size};
use super::schema;
use crate::auth::{Principal, Publisher, Role, Viewer};
use crate::body::{JsonBody, Params, Segments, id};
use crate::problem::Problem;

/// Most bytes of the name of a service or an actor.
const NAME_BYTES: usize = 128;
/// Most bytes of what was done and of what is expected.
const WORDS_BYTES: usize = 1000;
/// Bytes of an id: a shorter one would stand in lines by chance.
const ID_BYTES: std::ops::RangeInclusive<usize> = 4..=200;
/// Most instances that are named.
const COMPONENTS: usize = 32;
/// How far from now an action may be.
const PAST: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
const FUTURE: std::time::Duration = std::time::Duration::from_secs(300);

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ActionsApi {
    pub actions: Actions,
    pub reads: Reads,
    pub publisher: BusPublisher,
}

pub(crate) fn router(api: ActionsApi) -> Router {
    Router::new().route("/actions", get(list).post(record)).route("/actions/{action_id}", get(show)).with_state(api)
}

/// An action on a service. The more of its ids are given, the surer are its lines told from those of others.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionRequest {
    /// The service, as its records name it.
    service: String,
    /// What was done, in words or as a request line.
    what: String,
    /// Who did it; whose token this is, if it is not given.
    #[serde(default)]
    actor: Option<String>,
    /// What it should lead to, in words.
    #[serde(default)]
    expects: Option<String>,
    /// The id of the request, as it stands in the logs.
    #[serde(default)]
    request_id: Option<String>,
    /// The id of the session.
    #[serde(default)]
    session_id: Option<String>,
    /// The trace of the request.
    #[serde(default)]
    trace_id: Option<String>,
    /// Instances of the service that it went to.
    #[serde(default)]
    components: Vec<String>,
    /// When it was done; now, if it is not given.
    #[serde(default)]
    at: Option<Timestamp>,
    /// The run that asks what came of it: its model is woken with the conclusion. Takes the role `user`.
    #[serde(default)]
    #[schema(value_type = Option<uuid::Uuid>)]
    run_id: Option<RunId>,
}

/// An action that was recorded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActionRecorded {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    action_id: ActionId,
    /// Whether it was there before.
    duplicate: bool,
}

/// An action and what came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActionView {
    /// The action.
    #[serde(flatten)]
    #[schema(value_type = schema::Action)]
    action: Action,
    /// `open` while evidence is gathered, then `decided`, then `told`.
    state: &'static str,
    /// The trace that its first lines turned out to belong to, if it named none itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted_trace_id: Option<String>,
    /// When it was recorded.
    recorded_at: Timestamp,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::ActionConclusion>)]
    conclusion: Option<ActionConclusion>,
    /// When that was concluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    concluded_at: Option<Timestamp>,
}

/// Actions, latest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActionPage {
    /// They themselves.
    items: Vec<ActionView>,
}

/// Which actions to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ActionParams {
    /// Only on this service.
    service: Option<String>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Record an action
///
/// Opens an observation window: the lines of the action are gathered from the logs of the service and of those behind it, until
/// it is clear what came of it. With an `Idempotency-Key`, recording the same again changes nothing.
#[utoipa::path(
    post, path = "/v1/actions", tag = "events", request_body = ActionRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless")),
    responses((status = 202, description = "It is recorded, and looked after", body = ActionRecorded)),
)]
pub(crate) async fn record(
    Publisher(principal): Publisher,
    State(api): State<ActionsApi>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ActionRequest>,
) -> Result<(StatusCode, Json<ActionRecorded>), Problem> {
    let canonical = serde_json::to_vec(&request).map_err(|error| Problem::internal(&error))?;
    let digest = hex::encode(Sha256::digest(&canonical));
    let action = request.into_action(&principal)?;
    if let Some(run_id) = action.run_id {
        if !principal.may(Role::User) {
            let words = format!("`{}` may not speak to runs: it takes the role `user`", principal.name);
            return Err(Problem::new(StatusCode::FORBIDDEN, "insufficient_role", words).field("run_id"));
        }
        let run = api.reads.run(&principal.tenant, run_id).await?;
        run.ok_or_else(|| Problem::unknown_run(run_id).field("run_id"))?;
    }
    let key = idempotency_key(&headers)?.map_or_else(|| action.action_id.to_string(), str::to_owned);
    let recorded = api.actions.record(&action, &key, &digest).await?;
    let (action_id, duplicate) = match recorded {
        RecordedAction::New(id) => (id, false),
        RecordedAction::Known(id) => (id, true),
        RecordedAction::Mismatch => {
            return Err(Problem::conflict("idempotency_mismatch", "this key was used for another action")
                .field("Idempotency-Key")
                .remedy("use a new key for a new action"));
        }
        RecordedAction::Full => {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_actions",
                "too many actions are looked after already",
            )
            .remedy("wait until some of them are concluded"));
        }
    };
    if !duplicate {
        metrics::counter!("ingress_actions_total").increment(1);
        announce(&api.publisher, &action).await;
    }
    Ok((StatusCode::ACCEPTED, Json(ActionRecorded { action_id, duplicate })))
}

/// Tells whoever listens. The observer looks by itself, so that this getting lost costs nothing.
async fn announce(publisher: &BusPublisher, action: &Action) {
    let Action { action_id, tenant, at, .. } = action;
    let subject = subject::evt("action.recorded", tenant, action_id);
    let published = match Outgoing::json(subject, action) {
        Ok(message) => {
            let message = message
                .header("ce-specversion", "1.0")
                .header("ce-id", action_id)
                .header("ce-source", format!("/escapement/{tenant}"))
                .header("ce-type", "action.recorded")
                .header("ce-subject", &action.service)
                .header("ce-time", at)
                .msg_id(action_id);
            publisher.publish(message).await.map(drop)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = published {
        tracing::warn!(%action_id, %error, "an action is recorded and was not announced");
    }
}

/// List actions
#[utoipa::path(
    get, path = "/v1/actions", tag = "events", params(ActionParams),
    responses((status = 200, description = "The latest actions", body = ActionPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<ActionsApi>,
    Params(params): Params<ActionParams>,
) -> Result<Json<ActionPage>, Problem> {
    let limit = page_size(params.limit)?;
    let rows = api.actions.latest(&principal.tenant, params.service.as_deref(), limit).await?;
    Ok(Json(ActionPage { items: rows.into_iter().map(ActionView::from).collect() }))
}

/// Look at an action
#[utoipa::path(
    get, path = "/v1/actions/{action_id}", tag = "events",
    params(("action_id" = uuid::Uuid, Path, description = "Which action")),
    responses((status = 200, description = "The action, and what came of it", body = ActionView)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<ActionsApi>,
    Segments(action): Segments<String>,
) -> Result<Json<ActionView>, Problem> {
    let action_id: ActionId = id(&action, "unknown_action")?;
    let row = api.actions.get(&principal.tenant, action_id).await?;
    let row = row.ok_or_else(|| {
        Problem::not_found("unknown_action", format!("there is no action `{action_id}`"))
            .remedy("`GET /v1/actions` lists them")
    })?;
    Ok(Json(row.into()))
}

impl From<ActionRow> for ActionView {
    fn from(row: ActionRow) -> Self {
        Self {
            action: row.action,
            state: row.state.as_str(),
            adopted_trace_id: row.adopted,
            recorded_at: row.opened_at,
            conclusion: row.conclusion,
            concluded_at: row.decided_at,
        }
    }
}

impl ActionRequest {
    fn into_action(self, principal: &Principal) -> Result<Action, Problem> {
        let now = Timestamp::now();
        let at = self.at.unwrap_or(now);
        let is_near = now.checked_sub(PAST).is_ok_and(|first| at >= first)
            && now.checked_add(FUTURE).is_ok_and(|last| at <= last);
        if !is_near {
            return Err(wrong("at", "it is more than a day ago, or has not happened yet"));
        }
        let within = |field: &'static str, text: &str, most: usize| {
            let fits = (1..=most).contains(&text.trim().len()) && !text.contains('\0');
            if fits { Ok(()) } else { Err(wrong(field, &format!("it must have 1 to {most} bytes"))) }
        };
        within("service", &self.service, NAME_BYTES)?;
        within("what", &self.what, WORDS_BYTES)?;
        self.actor.iter().try_for_each(|actor| within("actor", actor, NAME_BYTES))?;
        self.expects.iter().try_for_each(|expects| within("expects", expects, WORDS_BYTES))?;
        if self.components.len() > COMPONENTS {
            return Err(wrong("components", &format!("they are more than {COMPONENTS}")));
        }
        self.components.iter().try_for_each(|component| within("components", component, NAME_BYTES))?;
        for (field, value) in
            [("request_id", &self.request_id), ("session_id", &self.session_id), ("trace_id", &self.trace_id)]
        {
            let fits = |id: &String| ID_BYTES.contains(&id.len()) && id.chars().all(|letter| letter.is_ascii_graphic());
            if value.as_ref().is_some_and(|id| !fits(id)) {
                return Err(wrong(field, "an id has 4 to 200 printable ASCII characters without spaces"));
            }
        }
        Ok(Action {
            action_id: ActionId::mint(),
            tenant: principal.tenant.clone(),
            service: self.service,
            actor: self.actor.unwrap_or_else(|| principal.name.clone()),
            what: self.what,
            expects: self.expects,
            request_id: self.request_id,
            session_id: self.session_id,
            trace_id: self.trace_id.map(|id| id.to_ascii_lowercase()),
            components: self.components,
            at,
            run_id: self.run_id,
            call_id: None,
            recorded_by: principal.name.clone(),
        })
    }
}

fn wrong(field: &'static str, words: &str) -> Problem {
    Problem::unprocessable("invalid_field", format!("`{field}`: {words}")).field(field)
}
