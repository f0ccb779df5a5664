//! `/v1/schedules`: what is to be done at times that come again.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use engine::{
    Agents, BackfillError, Cadence, Firing, FiringKind, FiringState, MAX_BACKFILL, Maker, PutScheduleError, Schedule,
    ScheduleFileError, Schedules, cadence_of, check_schedule,
};
use kernel::schedule::ScheduleSpec;
use kernel::{RunId, Status, Timestamp, Trust};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::page_size;
use super::schema;
use crate::auth::{Operator, Principal, Viewer};
use crate::body::{JsonBody, Params, RawBody, Segments};
use crate::problem::Problem;

/// Most coming times that are shown.
const MAX_NEXT: u32 = 1000;
/// Coming times that are shown unless asked.
const NEXT: u32 = 5;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct SchedulesApi {
    pub schedules: Schedules,
    pub agents: Agents,
}

pub(crate) fn router(api: SchedulesApi) -> Router {
    Router::new()
        .route("/schedules", get(list))
        .route("/schedules/{name}", get(show).put(put).delete(delete))
        .route("/schedules/{name}/firings", get(firings))
        .route("/schedules/{name}/pause", post(pause))
        .route("/schedules/{name}/resume", post(resume))
        .route("/schedules/{name}/backfill", post(backfill))
        .with_state(api)
}

/// All schedules of the tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePage {
    /// By name.
    items: Vec<ScheduleView>,
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    /// Its name.
    name: String,
    /// How often it was put in.
    revision: u64,
    /// Whether it is held.
    paused: bool,
    /// What it says.
    #[schema(value_type = schema::ScheduleSpec)]
    spec: ScheduleSpec,
    /// Who made it: `operator:<name>`, or `run:<id>` if an agent did.
    made_by: String,
    /// The agent that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// How far what it says may be believed.
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// When it was first put in.
    created_at: Timestamp,
    /// When it last changed.
    changed_at: Timestamp,
    /// Who did that.
    changed_by: String,
    /// When it fires next, jitter aside; empty if it never will, or is held.
    next: Vec<Timestamp>,
}

impl ScheduleView {
    fn new(schedule: Schedule, next: u32) -> Self {
        let now = Timestamp::now();
        let times = |cadence: Cadence| cadence.after(now).take(usize::try_from(next).unwrap_or(0)).collect();
        let next = if schedule.paused { Vec::new() } else { cadence_of(&schedule.spec).map(times).unwrap_or_default() };
        Self {
            name: schedule.spec.name.clone(),
            revision: schedule.revision,
            paused: schedule.paused,
            spec: schedule.spec,
            made_by: schedule.maker.by,
            agent: schedule.maker.agent,
            trust: schedule.maker.trust,
            created_at: schedule.created_at,
            changed_at: schedule.changed_at,
            changed_by: schedule.changed_by,
            next,
        }
    }
}

/// List schedules
#[utoipa::path(
    get, path = "/v1/schedules", tag = "schedules",
    responses((status = 200, description = "The schedules, by name, each with its next time", body = SchedulePage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<SchedulesApi>,
) -> Result<Json<SchedulePage>, Problem> {
    let schedules = api.schedules.list(&principal.tenant, None).await?;
    Ok(Json(SchedulePage { items: schedules.into_iter().map(|schedule| ScheduleView::new(schedule, 1)).collect() }))
}

/// What of a schedule to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// How many coming times, 0 to 1000.
    #[param(minimum = 0, maximum = 1000, default = 5)]
    next: Option<u32>,
}

/// Look at a schedule
#[utoipa::path(
    get, path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule"), ShowParams),
    responses((status = 200, description = "The schedule", body = ScheduleView)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
    Params(params): Params<ShowParams>,
) -> Result<Json<ScheduleView>, Problem> {
    let next = params.next.unwrap_or(NEXT);
    if next > MAX_NEXT {
        return Err(Problem::bad_request("invalid_query", format!("`next` is {next}"))
            .field("next")
            .remedy(format!("ask for {MAX_NEXT} at most")));
    }
    Ok(Json(ScheduleView::new(known(&api, &principal, &name).await?, next)))
}

/// Put a schedule in
///
/// YAML or JSON. The same name again changes it: a firing that was decided stays, and if the times change, the new ones
/// count from now on. What it says is an instruction of whoever puts it in.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule")),
    request_body(content(
        (schema::ScheduleSpec = "application/json"),
        (String = "application/yaml"),
    ), description = "What it says"),
    responses((status = 200, description = "It is in force", body = ScheduleView)),
)]
pub(crate) async fn put(
    Operator(principal): Operator,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
    RawBody(body): RawBody,
) -> Result<Json<ScheduleView>, Problem> {
    let spec = read(&name, &body)?;
    let sound = check_schedule(spec, Timestamp::now()).map_err(invalid)?;
    if let Some(run) = &sound.spec.start
        && api.agents.head(&principal.tenant, &run.agent).await?.is_none()
    {
        return Err(super::runs::unknown_agent(&run.agent).field("start.agent"));
    }
    let maker = Maker { by: format!("operator:{}", principal.name), agent: None, trust: Trust::Operator };
    let stored = api.schedules.put(&principal.tenant, &sound, &maker, u32::MAX).await;
    let stored = stored.map_err(|error| match error {
        PutScheduleError::Engine(error) => error.into(),
        error => Problem::conflict("schedule_taken", error),
    })?;
    Ok(Json(ScheduleView::new(stored, NEXT)))
}

/// The schedule in a body, under the name of the path.
fn read(name: &str, body: &[u8]) -> Result<ScheduleSpec, Problem> {
    let text = std::str::from_utf8(body).map_err(|error| {
        Problem::bad_request("not_utf8", format!("the body is not UTF-8 from byte {} on", error.valid_up_to()))
            .remedy("send it as UTF-8")
    })?;
    let mut spec = engine::read_schedule(text).map_err(invalid)?;
    if spec.name.is_empty() {
        name.clone_into(&mut spec.name);
    }
    if spec.name != name {
        let detail = format!("the body is about `{}`, the path about `{name}`", spec.name);
        return Err(Problem::unprocessable("name_mismatch", detail).field("name").remedy("use the same name in both"));
    }
    Ok(spec)
}

fn invalid(error: ScheduleFileError) -> Problem {
    let problem = Problem::unprocessable("invalid_schedule", error.message).remedy(error.remedy);
    let problem = match error.place {
        Some((line, column)) => problem.with("line", line).with("column", column),
        None => problem,
    };
    match error.field {
        Some(field) => problem.field(field),
        None => problem,
    }
}

/// Delete a schedule
///
/// With what is remembered of its times. Runs that it started go on.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule")),
    responses((status = 204, description = "It is gone")),
)]
pub(crate) async fn delete(
    Operator(principal): Operator,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
) -> Result<StatusCode, Problem> {
    let deleted = api.schedules.delete(&principal.tenant, &name, None).await?;
    if deleted { Ok(StatusCode::NO_CONTENT) } else { Err(unknown(&name)) }
}

/// Hold a schedule
///
/// It does not fire until it is resumed. What passes meanwhile is not made up for; it can be filled in.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule")),
    responses((status = 200, description = "It is held", body = ScheduleView)),
)]
pub(crate) async fn pause(
    Operator(principal): Operator,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
) -> Result<Json<ScheduleView>, Problem> {
    hold(&api, &principal, &name, true).await
}

/// Let a held schedule go on
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule")),
    responses((status = 200, description = "It fires again", body = ScheduleView)),
)]
pub(crate) async fn resume(
    Operator(principal): Operator,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
) -> Result<Json<ScheduleView>, Problem> {
    hold(&api, &principal, &name, false).await
}

async fn hold(
    api: &SchedulesApi,
    principal: &Principal,
    name: &str,
    paused: bool,
) -> Result<Json<ScheduleView>, Problem> {
    let by = format!("operator:{}", principal.name);
    let held = api.schedules.hold(&principal.tenant, name, paused, &by).await?;
    held.map(|schedule| Json(ScheduleView::new(schedule, NEXT))).ok_or_else(|| unknown(name))
}

/// Which times to fill in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackfillRequest {
    /// The first of them, at the earliest.
    from: Timestamp,
    /// The last of them, at the latest; not in the future.
    to: Timestamp,
    /// Start the runs side by side, not one after the other.
    #[serde(default)]
    at_once: bool,
}

/// What is filled in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackfillResponse {
    /// Times that are fired now.
    noted: u64,
    /// Times that were fired before, or are being; they are left alone.
    known: u64,
}

/// Fill in past times
///
/// Fires the times of a range that were not fired, each once, in order: runs start one after the other unless `at_once`.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/backfill", tag = "schedules", request_body = BackfillRequest,
    params(("name" = String, Path, description = "Which schedule")),
    responses((status = 202, description = "They are being fired", body = BackfillResponse)),
)]
pub(crate) async fn backfill(
    Operator(principal): Operator,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
    JsonBody(request): JsonBody<BackfillRequest>,
) -> Result<(StatusCode, Json<BackfillResponse>), Problem> {
    let problem = |field: &str, detail: &str, remedy: &str| {
        Problem::unprocessable("invalid_range", detail).field(field).remedy(remedy)
    };
    if request.to > Timestamp::now() {
        return Err(problem("to", "it lies in the future", "give a time that has passed: what comes is fired anyway"));
    }
    if request.from > request.to {
        return Err(problem("from", "it lies after `to`", "give the earlier time as `from`"));
    }
    let range = (request.from, request.to);
    let filled = api.schedules.backfill(&principal.tenant, &name, range, request.at_once).await;
    let filled = filled.map_err(|error| match error {
        BackfillError::Unknown(name) => unknown(&name),
        BackfillError::TooMany => Problem::unprocessable("invalid_range", error)
            .field("from")
            .remedy(format!("fill in at most {MAX_BACKFILL} times at once")),
        BackfillError::Schedule(error) => invalid(error),
        BackfillError::Engine(error) => error.into(),
    })?;
    Ok((StatusCode::ACCEPTED, Json(BackfillResponse { noted: filled.noted, known: filled.known })))
}

/// Which firings to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FiringParams {
    /// Only those for times before this one: `next` of the page before.
    before: Option<Timestamp>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
}

/// What became of the times of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FiringPage {
    /// The latest first.
    items: Vec<FiringView>,
    /// What to send as `before` for the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<Timestamp>,
}

/// What became of one time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FiringView {
    /// The time.
    fire_at: Timestamp,
    /// That and its jitter.
    due: Timestamp,
    /// `regular`, `made_up` (no scheduler was there in time) or `backfill` (somebody asked for it).
    #[schema(value_type = String)]
    kind: FiringKind,
    /// `waiting`, `starting`, `started`, `ended`, `published`, `skipped`, `missed` or `failed`.
    #[schema(value_type = String)]
    state: FiringState,
    /// The run that it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    run_id: Option<RunId>,
    /// Where that stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    run_status: Option<Status>,
    /// Why it did not take place.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// When it was noted.
    decided_at: Timestamp,
}

impl From<Firing> for FiringView {
    fn from(firing: Firing) -> Self {
        Self {
            fire_at: firing.fire_at,
            due: firing.due,
            kind: firing.kind,
            state: firing.state,
            run_id: firing.run_id,
            run_status: firing.run_status,
            note: firing.note,
            decided_at: firing.decided_at,
        }
    }
}

/// List what became of the times of a schedule
#[utoipa::path(
    get, path = "/v1/schedules/{name}/firings", tag = "schedules",
    params(("name" = String, Path, description = "Which schedule"), FiringParams),
    responses((status = 200, description = "Its times, the latest first", body = FiringPage)),
)]
pub(crate) async fn firings(
    Viewer(principal): Viewer,
    State(api): State<SchedulesApi>,
    Segments(name): Segments<String>,
    Params(params): Params<FiringParams>,
) -> Result<Json<FiringPage>, Problem> {
    let limit = page_size(params.limit)?;
    let schedule = known(&api, &principal, &name).await?;
    let firings = api.schedules.firings(schedule.schedule_id, params.before, limit).await?;
    let full = u32::try_from(firings.len()).is_ok_and(|read| read == limit);
    let next = firings.last().filter(|_| full).map(|firing| firing.fire_at);
    Ok(Json(FiringPage { items: firings.into_iter().map(FiringView::from).collect(), next }))
}

async fn known(api: &SchedulesApi, principal: &Principal, name: &str) -> Result<Schedule, Problem> {
    api.schedules.get(&principal.tenant, name).await?.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Problem {
    Problem::not_found("unknown_schedule", format!("there is no schedule `{name}`"))
        .remedy("`GET /v1/schedules` lists the schedules, `PUT /v1/schedules/{name}` makes one")
}
