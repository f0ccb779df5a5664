//! `/v1/runs/{id}/events`, `/stream`, `/turns/{n}` and `/why/{event}`: what happened in a run, and because of what.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use engine::Reads;
use kernel::economics::Economics;
use kernel::{RunId, Seq, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::event::{EventView, seq_of};
use super::runs::page_size;
use super::schema;
use super::turn::{self, TurnView};
use super::why::{self, Why};
use crate::auth::Viewer;
use crate::body::{Params, Segments, run_id};
use crate::packing;
use crate::problem::Problem;
use crate::stream::{Resume, StreamSnapshot, Streams, last_event_id};

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct EventsApi {
    pub reads: Reads,
    pub streams: Streams,
}

pub(crate) fn router(api: EventsApi) -> Router {
    Router::new()
        .route("/runs/{run_id}/events", get(list))
        .route("/runs/{run_id}/stream", get(stream))
        .route("/runs/{run_id}/economics", get(economics))
        .route("/runs/{run_id}/turns/{number}", get(show_turn))
        .route("/runs/{run_id}/why/{event_id}", get(explain))
        .with_state(api)
}

/// Which events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParams {
    /// Only those behind this one.
    #[param(default = 0, value_type = Option<u64>)]
    #[serde(default)]
    after: Seq,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Committed events in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventPage {
    /// The events.
    items: Vec<EventView>,
    /// What to send as `after` for the next page; absent if there was none just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    next: Option<Seq>,
}

/// List the events of a run
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/events", tag = "events",
    params(("run_id" = uuid::Uuid, Path, description = "Which run"), EventParams),
    responses((status = 200, description = "Committed events, in order", body = EventPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<EventsApi>,
    Segments(run): Segments<String>,
    Params(params): Params<EventParams>,
) -> Result<Json<EventPage>, Problem> {
    let run = known_run(&api.reads, &principal.tenant, &run).await?;
    let limit = page_size(params.limit)?;
    let events = api.reads.events(&principal.tenant, run, params.after, limit).await?;
    let full = u32::try_from(events.len()).is_ok_and(|read| read == limit);
    let next = events.last().filter(|_| full).map(|event| event.seq);
    Ok(Json(EventPage { items: events.into_iter().map(EventView::from).collect(), next }))
}

/// What waking cost and saved
///
/// Signals in, observations out, wakes by kind, how many were asked for and gathered into others, what woke nobody, wakes whose
/// turn changed nothing, and tokens for each wake: over all events of the run, up to `seq`.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/economics", tag = "events",
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 200, description = "The figures", body = schema::Economics)),
)]
pub(crate) async fn economics(
    Viewer(principal): Viewer,
    State(api): State<EventsApi>,
    Segments(run): Segments<String>,
) -> Result<Json<Economics>, Problem> {
    let run = known_run(&api.reads, &principal.tenant, &run).await?;
    let mut economics = Economics::default();
    loop {
        let events = api.reads.events(&principal.tenant, run, economics.seq, engine::MAX_ROWS).await?;
        let is_last = u32::try_from(events.len()).is_ok_and(|read| read < engine::MAX_ROWS);
        for stored in &events {
            match stored.decode() {
                Ok(event) => economics.add(&event),
                // A newer version wrote it: it counts for nothing here, and the others go on.
                Err(error) => {
                    tracing::warn!(%run, seq = stored.seq, %error, "an event is not counted");
                    economics.seq = stored.seq;
                }
            }
        }
        if is_last {
            return Ok(Json(economics));
        }
    }
}

/// How to open a stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamParams {
    /// As the header `Last-Event-ID`, for those who can't set one: the last event that was received, 0 for all of them.
    last_event_id: Option<String>,
}

/// Follow a run
///
/// Server-sent events: `snapshot` (the run as it stands, with what the open turn has written so far), then every committed
/// event in order (`id` is its number, `event` its type), with `delta`s of the model's text in between. A comment keeps a
/// quiet stream alive. Whoever takes gzip gets it, piece by piece. After the run's last event the stream ends; before that, `resume` says that another one should be
/// opened. Coming back behind the last event of an ended run gives 204.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/stream", tag = "events",
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was received"),
        StreamParams,
    ),
    responses(
        (status = 200, description = "The stream", content_type = "text/event-stream", body = String),
        (status = 204, description = "The run has ended and there is nothing behind that event"),
    ),
)]
pub(crate) async fn stream(
    Viewer(principal): Viewer,
    State(api): State<EventsApi>,
    Segments(run): Segments<String>,
    Params(params): Params<StreamParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = last_event_id(&headers, params.last_event_id.as_deref())?;
    let run = known_run(&api.reads, &principal.tenant, &run).await?;
    let response = api.streams.open(&principal.tenant, run, last).await?;
    let packs = response.status().is_success() && packing::takes_gzip(&headers);
    Ok(if packs { packing::packed(response) } else { response })
}

/// Look at a turn
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/turns/{number}", tag = "events",
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("number" = u32, Path, description = "Which turn, from 1"),
    ),
    responses((
        status = 200,
        description = "What the model saw, what it answered, what was committed, what it cost",
        body = TurnView,
    )),
)]
pub(crate) async fn show_turn(
    Viewer(principal): Viewer,
    State(api): State<EventsApi>,
    Segments((run, number)): Segments<(String, String)>,
) -> Result<Json<TurnView>, Problem> {
    let run = known_run(&api.reads, &principal.tenant, &run).await?;
    let found = match number.parse() {
        Ok(number) => turn::find(&api.reads, &principal.tenant, run, number).await?,
        Err(_) => None,
    };
    found.map(Json).ok_or_else(|| {
        Problem::not_found("unknown_turn", format!("the run has had no turn `{number}`"))
            .remedy("turns are numbered from 1; the snapshot's `usage.turns` says how many there were")
    })
}

/// Explain an event
///
/// The chain of causes from an event back to what came from outside.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/why/{event_id}", tag = "events",
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("event_id" = String, Path, description = "Which event: `<run>-<seq>`, or the number alone"),
    ),
    responses((status = 200, description = "The causes, nearest first", body = Why)),
)]
pub(crate) async fn explain(
    Viewer(principal): Viewer,
    State(api): State<EventsApi>,
    Segments((run, event)): Segments<(String, String)>,
) -> Result<Json<Why>, Problem> {
    let run = known_run(&api.reads, &principal.tenant, &run).await?;
    let found = match seq_of(run, &event) {
        Some(seq) => why::explain(&api.reads, &principal.tenant, run, seq).await?,
        None => None,
    };
    found.map(Json).ok_or_else(|| {
        Problem::not_found("unknown_event", format!("the run has no event `{event}`"))
            .remedy("`GET /v1/runs/{id}/events` lists the events")
    })
}

/// A run of this tenant.
pub(crate) async fn known_run(reads: &Reads, tenant: &TenantId, segment: &str) -> Result<RunId, Problem> {
    let run = run_id(segment)?;
    match reads.run(tenant, run).await? {
        Some(_) => Ok(run),
        None => Err(Problem::unknown_run(run)),
    }
}

/// The data of the events of a stream, for the API description.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only described")]
pub(crate) struct StreamEvents {
    /// `event: snapshot`
    snapshot: StreamSnapshot,
    /// `event: <type>`
    committed: EventView,
    /// `event: resume`
    resume: Resume,
}
