//! `/v1/alerts` and `/v1/signals`: how well the watched services are, and what they said.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use engine::{Alert, Services, SignalGap};
use kernel::{CallId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::artifacts::ArtifactsApi;
use super::runs::page_size;
use crate::auth::Viewer;
use crate::body::{Params, Segments, id};
use crate::problem::Problem;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ServicesApi {
    pub services: Services,
    pub artifacts: ArtifactsApi,
}

pub(crate) fn router(api: ServicesApi) -> Router {
    Router::new()
        .route("/alerts", get(alerts))
        .route("/signals", get(signals))
        .route("/signals/gaps", get(gaps))
        .route("/signals/{call_id}", get(output))
        .with_state(api)
}

/// How many.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AlertParams {
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// How well a service is, by one rule of one agent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AlertView {
    /// Which service.
    service: String,
    /// The agent that watches it.
    agent: String,
    /// Its rule.
    rule: String,
    /// `firing` or `recovered`.
    state: String,
    /// Since when it was not well.
    since: Timestamp,
    /// When it last changed.
    changed_at: Timestamp,
    /// What was seen.
    what: String,
}

/// Alarms, firing ones first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AlertPage {
    /// They themselves.
    items: Vec<AlertView>,
}

/// List alarms
#[utoipa::path(
    get, path = "/v1/alerts", tag = "events", params(AlertParams),
    responses((status = 200, description = "The last alarm of each rule of each watched service", body = AlertPage)),
)]
pub(crate) async fn alerts(
    Viewer(principal): Viewer,
    State(api): State<ServicesApi>,
    Params(params): Params<AlertParams>,
) -> Result<Json<AlertPage>, Problem> {
    let alerts = api.services.alerts(&principal.tenant, page_size(params.limit)?).await?;
    let view = |alert: Alert| {
        let Alert { service, agent, rule, state, since, changed_at, what, .. } = alert;
        AlertView { service, agent, rule, state, since, changed_at, what }
    };
    Ok(Json(AlertPage { items: alerts.into_iter().map(view).collect() }))
}

/// Which gaps to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GapParams {
    /// Since when; all that are known, if it is not given.
    since: Option<Timestamp>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// Signals that are known to be missing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GapView {
    /// Which service's; nothing if nobody can say.
    service: Option<String>,
    /// Not before.
    from: Timestamp,
    /// Not after.
    to: Timestamp,
    /// At most so many messages, or records that were not looked at.
    messages: u64,
    /// Why.
    why: String,
}

/// Gaps, latest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GapPage {
    /// They themselves.
    items: Vec<GapView>,
}

/// List gaps in the signals
#[utoipa::path(
    get, path = "/v1/signals/gaps", tag = "events", params(GapParams),
    responses((status = 200, description = "What is known to be missing", body = GapPage)),
)]
pub(crate) async fn gaps(
    Viewer(principal): Viewer,
    State(api): State<ServicesApi>,
    Params(params): Params<GapParams>,
) -> Result<Json<GapPage>, Problem> {
    let since = params.since.unwrap_or(Timestamp::UNIX_EPOCH);
    let gaps = api.services.gaps(&principal.tenant, since, page_size(params.limit)?).await?;
    let view = |gap: SignalGap| {
        let SignalGap { service, from, to, messages, why, .. } = gap;
        GapView { service, from, to, messages, why }
    };
    Ok(Json(GapPage { items: gaps.into_iter().map(view).collect() }))
}

/// Which records of a service: around one that evidence names, or within a time.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by the artifact service; checked and described here")]
pub(crate) struct SignalParams {
    /// The service.
    service: String,
    /// The message that held the record: `offset` of the evidence.
    seq: Option<u64>,
    /// Its place in the message, from 1: `line` of the evidence.
    line: Option<u64>,
    /// When the message was stored: `at` of the evidence.
    at: Option<Timestamp>,
    /// Records on either side of it.
    #[param(maximum = 500, default = 20)]
    context: Option<u64>,
    /// Records of messages that were stored from then on; an hour before `to`, if it is not given.
    from: Option<Timestamp>,
    /// Until then; now, if it is not given.
    to: Option<Timestamp>,
    /// Only records with this text in them, such as an id.
    #[serde(rename = "match")]
    #[param(rename = "match")]
    text: Option<String>,
    /// Most records.
    #[param(maximum = 1000, default = 200)]
    limit: Option<u64>,
}

/// Read the log of a service
///
/// The records as they came in, from the archive: around the one that a piece of evidence names (`seq`, `line`, `at`), or those
/// within a time. What came in the last seconds may not be there yet.
#[utoipa::path(
    get, path = "/v1/signals", tag = "events", params(SignalParams),
    responses((status = 200, description = "The records", body = Object)),
)]
pub(crate) async fn signals(
    Viewer(principal): Viewer,
    State(api): State<ServicesApi>,
    Params(_params): Params<SignalParams>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    // The query names no tenant: it has no such parameter.
    let query = query.unwrap_or_default();
    api.artifacts.pass(&format!("/internal/signals?tenant={}&{query}", principal.tenant)).await
}

/// Which part of the output of a call.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "read by the artifact service; checked and described here")]
pub(crate) struct OutputParams {
    /// First byte.
    from: Option<u64>,
    /// Byte after the last.
    to: Option<u64>,
    /// Only the last so many bytes of those.
    tail: Option<u64>,
    /// A line instead, from 1.
    line: Option<u64>,
    /// Lines on either side of it.
    #[param(maximum = 2000, default = 20)]
    context: Option<u64>,
}

/// Read the raw output of a call
///
/// The bytes as the program wrote them: a range (`from`, `to`, `tail`), or lines around one (`line`, `context`). `Esc-Offset` says
/// where the answer begins, and `Esc-Gaps` what of it is missing.
#[utoipa::path(
    get, path = "/v1/signals/{call_id}", tag = "events",
    params(("call_id" = uuid::Uuid, Path, description = "Which call"), OutputParams),
    responses((status = 200, description = "The output", content_type = "application/octet-stream", body = Vec<u8>)),
)]
pub(crate) async fn output(
    Viewer(principal): Viewer,
    State(api): State<ServicesApi>,
    Segments(call): Segments<String>,
    Params(_params): Params<OutputParams>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let call_id: CallId = id(&call, "unknown_call")?;
    let query = query.unwrap_or_default();
    api.artifacts.pass(&format!("/internal/signals/{call_id}?tenant={}&{query}", principal.tenant)).await
}
