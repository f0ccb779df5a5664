//! `POST /v1/runs:cancel`, `/v1/runs:pause` and `/v1/runs:resume`: many runs at once.

use axum::extract::State;
use axum::routing::post;
use axum::{Extension, Json, Router};
use engine::{RunFilter, RunRow};
use futures::{StreamExt as _, stream};
use kernel::command::ByOperator;
use kernel::{Command, RunId, Status, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::control::ControlApi;
use super::runs::{known_word, wake_kind};
use crate::audit::Noted;
use crate::auth::{Operator, Principal};
use crate::body::{JsonBody, object};
use crate::problem::Problem;

/// Most runs of one request.
const MOST: u32 = 10_000;
/// Runs of one request, unless it says how many.
const USUAL: u32 = 1000;
/// Runs that are changed at once.
const AT_ONCE: usize = 32;
/// Named runs that the audit trail lists one by one: of more, it has the first and how many there were.
const LISTED: usize = 100;

pub(crate) fn router(api: ControlApi) -> Router {
    Router::new()
        .route("/runs:cancel", post(cancel))
        .route("/runs:pause", post(pause))
        .route("/runs:resume", post(resume))
        .with_state(api)
}

/// Which runs, and what for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkRequest {
    /// Which runs: all conditions must hold. `{}` is all of them.
    #[serde(deserialize_with = "object")]
    filter: BulkFilter,
    /// In words; kept with each run.
    #[serde(default)]
    reason: Option<String>,
    /// Whether nothing is to be changed: the answer then says which runs would be.
    #[serde(default)]
    dry_run: bool,
    /// Most runs, newest first; `more` of the answer says whether there are others.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    limit: Option<u32>,
}

/// Conditions on runs.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BulkFilter {
    /// Only these.
    #[schema(value_type = Option<Vec<uuid::Uuid>>, max_items = 10000)]
    run_ids: Option<Vec<RunId>>,
    /// Only those that stand here.
    status: Option<String>,
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those that wait for this kind of wake.
    wake: Option<String>,
    /// Only those with this text in their objective, or whose id begins with it.
    q: Option<String>,
    /// Only those created at this time or later.
    since: Option<Timestamp>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BulkResponse {
    /// Whether nothing was changed.
    dry_run: bool,
    /// Runs that are meant, newest first, as far as they can be changed so.
    #[schema(value_type = Vec<uuid::Uuid>)]
    runs: Vec<RunId>,
    /// How many of them were changed.
    changed: u64,
    /// Those that could not be.
    failed: Vec<BulkFailure>,
    /// Whether there are more than `limit`.
    more: bool,
}

/// A run that could not be changed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BulkFailure {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Why: a stable word.
    code: String,
    /// Why, in words.
    detail: String,
}

/// End many runs
#[utoipa::path(
    post, path = "/v1/runs:cancel", tag = "control", request_body = BulkRequest,
    responses((status = 200, description = "What came of it", body = BulkResponse)),
)]
pub(crate) async fn cancel(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Extension(noted): Extension<Noted>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Json<BulkResponse>, Problem> {
    let may = |status: Status| !status.is_terminal() && status != Status::Cancelling;
    many(&api, &principal, &noted, request, may, Command::Cancel).await
}

/// Hold many runs
#[utoipa::path(
    post, path = "/v1/runs:pause", tag = "control", request_body = BulkRequest,
    responses((status = 200, description = "What came of it", body = BulkResponse)),
)]
pub(crate) async fn pause(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Extension(noted): Extension<Noted>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Json<BulkResponse>, Problem> {
    let may = |status: Status| !status.is_terminal() && !matches!(status, Status::Cancelling | Status::Paused);
    many(&api, &principal, &noted, request, may, Command::Pause).await
}

/// Let many held runs go on
#[utoipa::path(
    post, path = "/v1/runs:resume", tag = "control", request_body = BulkRequest,
    responses((status = 200, description = "What came of it", body = BulkResponse)),
)]
pub(crate) async fn resume(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Extension(noted): Extension<Noted>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> Result<Json<BulkResponse>, Problem> {
    many(&api, &principal, &noted, request, |status| status == Status::Paused, Command::Resume).await
}

async fn many(
    api: &ControlApi,
    principal: &Principal,
    noted: &Noted,
    request: BulkRequest,
    may: impl Fn(Status) -> bool,
    command: fn(ByOperator) -> Command,
) -> Result<Json<BulkResponse>, Problem> {
    let BulkRequest { filter, reason, dry_run, limit } = request;
    let limit = limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::unprocessable("invalid_field", format!("a limit of {limit} is out of bounds"))
            .field("limit")
            .remedy(format!("ask for 1 to {MOST}, and again while `more` is true")));
    }
    noted.note("filter", filter.noted());
    noted.note("dry_run", dry_run);
    noted.note("limit", limit);
    noted.note("reason", reason.clone());
    noted.note("changed", 0);
    noted.note("failed", 0);
    let (rows, more) = found(api, principal, filter, limit, may).await?;
    noted.note("found", rows.len());
    noted.note("more", more);
    let mut response = BulkResponse {
        dry_run,
        runs: rows.iter().map(|row| row.run_id).collect(),
        changed: 0,
        failed: Vec::new(),
        more,
    };
    if !dry_run {
        let changes = rows.iter().map(|row| {
            let by = ByOperator { by: principal.name.clone(), reason: reason.clone() };
            async { (row.run_id, api.submit(principal, row, command(by), None).await) }
        });
        let changes: Vec<_> = changes.collect();
        let mut changes = stream::iter(changes).buffer_unordered(AT_ONCE);
        while let Some((run_id, outcome)) = changes.next().await {
            match outcome {
                Ok(_) => response.changed += 1,
                Err(problem) => response.failed.push(BulkFailure {
                    run_id,
                    code: problem.code().to_owned(),
                    detail: problem.detail().to_owned(),
                }),
            }
            noted.note("changed", response.changed);
            noted.note("failed", response.failed.len());
        }
    }
    Ok(Json(response))
}

/// The runs that are meant and can be changed so, and whether there are more.
async fn found(
    api: &ControlApi,
    principal: &Principal,
    filter: BulkFilter,
    limit: u32,
    may: impl Fn(Status) -> bool,
) -> Result<(Vec<RunRow>, bool), Problem> {
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    if let Some(ids) = &filter.run_ids {
        if ids.len() > most {
            return Err(Problem::unprocessable(
                "invalid_field",
                format!("{} runs are named, and {most} may be", ids.len()),
            )
            .field("filter.run_ids")
            .remedy("name fewer, or raise `limit`"));
        }
        for id in ids {
            let row = api.reads.run(&principal.tenant, *id).await?.ok_or_else(|| Problem::unknown_run(id))?;
            rows.push(row);
        }
    }
    let named: Option<Vec<RunId>> = filter.run_ids.clone();
    let wanted = filter.into_filter()?;
    if named.is_some() {
        rows.retain(|row| may(row.status) && meets(row, &wanted));
        return Ok((rows, false));
    }
    let mut wanted = RunFilter { limit: engine::MAX_ROWS, ..wanted };
    loop {
        let page = api.reads.runs(&principal.tenant, &wanted).await?;
        rows.extend(page.items.into_iter().filter(|row| may(row.status)));
        if rows.len() > most {
            rows.truncate(most);
            return Ok((rows, true));
        }
        wanted.cursor = page.next;
        if wanted.cursor.is_none() {
            return Ok((rows, false));
        }
    }
}

/// What the database would say of a run that is named.
fn meets(row: &RunRow, wanted: &RunFilter) -> bool {
    wanted.status.is_none_or(|status| row.status == status)
        && wanted.agent.as_ref().is_none_or(|agent| row.agent == *agent)
        && wanted.wake.is_none_or(|wake| row.wake_kinds.contains(&wake))
        && wanted.q.as_ref().is_none_or(|text| {
            let text = text.to_lowercase();
            row.objective.to_lowercase().contains(&text) || row.run_id.to_string().starts_with(&text)
        })
        && wanted.since.is_none_or(|since| row.created_at >= since)
}

impl BulkFilter {
    /// The conditions as they were asked for, in a size that can be kept.
    fn noted(&self) -> Value {
        let mut kept = json!(self);
        if let Some(conditions) = kept.as_object_mut() {
            conditions.retain(|_, value| !value.is_null());
        }
        if let Some(ids) = self.run_ids.as_ref().filter(|ids| ids.len() > LISTED) {
            kept["run_ids"] = json!(ids[..LISTED]);
            kept["run_ids_in_all"] = ids.len().into();
        }
        kept
    }

    fn into_filter(self) -> Result<RunFilter, Problem> {
        let statuses = Status::ALL.into_iter().map(|status| (status.as_str(), status));
        Ok(RunFilter {
            status: self.status.as_deref().map(|word| known_word(word, "status", statuses)).transpose()?,
            agent: self.agent,
            wake: self.wake.as_deref().map(wake_kind).transpose()?,
            q: self.q.filter(|text| !text.is_empty()),
            since: self.since,
            ..RunFilter::default()
        })
    }
}
