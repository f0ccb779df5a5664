//! `/v1/runs`: starting, listing, looking at runs.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::{Claim, IdempotencyKeys, Reads, RunFilter, RunRow};
use kernel::agent::Criterion;
use kernel::budget::Limits;
use kernel::report::Report;
use kernel::wait::WakeKind;
use kernel::{Block, ConversationId, RunId, Seq, Status, TenantId, Timestamp, Trust};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::schema;
use crate::auth::{Principal, User, Viewer};
use crate::body::{JsonBody, Params, Segments, run_id, unless_known};
use crate::problem::Problem;
use crate::runs::{NewRun, Runs};
use crate::snapshot::{RUNNING, RunSnapshot, RunUsage, Snapshots};

/// Longest `Idempotency-Key`, in bytes.
const KEY_BYTES: usize = 255;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct RunsApi {
    pub runs: Runs,
    pub reads: Reads,
    pub snapshots: Snapshots,
    pub idempotency: IdempotencyKeys,
}

pub(crate) fn router(api: RunsApi) -> Router {
    Router::new()
        .route("/runs", get(list).post(create))
        .route("/runs/{run_id}", get(show))
        .route("/runs/{run_id}/report", get(report))
        .with_state(api)
}

/// A run to start.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateRunRequest {
    /// Name of the agent.
    agent: String,
    /// What it starts with: text, or any JSON.
    input: Value,
    /// The conversation to go on with.
    #[serde(default)]
    #[schema(value_type = Option<uuid::Uuid>)]
    conversation_id: Option<ConversationId>,
    /// What is to be reached; the input, if it is not given.
    #[serde(default)]
    objective: Option<String>,
    /// How it is known that the objective is reached; the agent's own criteria, if none are given.
    #[serde(default)]
    #[schema(value_type = Vec<schema::Criterion>)]
    acceptance: Vec<Criterion>,
    /// What it may spend. The agent's own limits hold all the same.
    #[serde(default)]
    #[schema(value_type = schema::Limits)]
    budget: Limits,
    /// Labels of your own.
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

/// A run that was started.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunCreatedResponse {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Where it stands.
    status: &'static str,
    /// Where it can be followed as server-sent events.
    stream_url: String,
}

/// Start a run
///
/// With an `Idempotency-Key`, asking again gives the run that the first request made.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", request_body = CreateRunRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless")),
    responses((status = 202, description = "The run exists", body = RunCreatedResponse)),
)]
pub(crate) async fn create(
    User(principal): User,
    State(api): State<RunsApi>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<CreateRunRequest>,
) -> Result<Response, Problem> {
    let agent = api.runs.agents().head(&principal.tenant, &request.agent).await?;
    let agent = agent.ok_or_else(|| unknown_agent(&request.agent).field("agent"))?;
    let key = idempotency_key(&headers)?.map(|key| Ok::<_, Problem>((key, digest_of(&request)?))).transpose()?;
    let traceparent = super::cloudevents::traceparent(&headers);
    // What is wrong with it is said before its key is taken: mended, it may come again under the same.
    let mut new = request.into_new_run(RunId::mint(), &principal, traceparent)?;
    let mut replayed = false;
    if let Some((key, digest)) = key {
        (new.run_id, replayed) = claim(&api.idempotency, &principal, key, &digest, new.run_id).await?;
    }
    // Also when it is a replay: whoever was first may have died before it got here, and the second time changes nothing.
    let committed = api.runs.create(new, &agent.spec, &agent.digest).await?;
    let run_id = committed.state.run_id;
    let body = RunCreatedResponse {
        run_id,
        status: committed.state.status().as_str(),
        stream_url: format!("/v1/runs/{run_id}/stream"),
    };
    let mut response = (StatusCode::ACCEPTED, [("location", format!("/v1/runs/{run_id}"))], Json(body)).into_response();
    if replayed {
        response.headers_mut().insert("idempotent-replayed", axum::http::HeaderValue::from_static("true"));
    }
    Ok(response)
}

pub(crate) fn unknown_agent(name: &str) -> Problem {
    Problem::unprocessable("unknown_agent", format!("there is no agent `{name}`"))
        .remedy("`GET /v1/agents` lists the agents, `PUT /v1/agents/{name}` makes one")
}

/// The header's value, if there is one and it can be kept.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=KEY_BYTES).contains(&key.len()) => Ok(Some(key)),
        _ => Err(Problem::bad_request("invalid_idempotency_key", "the key is empty, too long, or no plain text")
            .field("Idempotency-Key")
            .remedy("send 1 to 255 printable ASCII characters, such as a UUID")),
    }
}

/// What was asked, so that the same key with another request is noticed.
pub(super) fn digest_of<T: Serialize>(request: &T) -> Result<String, Problem> {
    let canonical = serde_json::to_vec(request).map_err(|error| Problem::internal(&error))?;
    Ok(hex::encode(Sha256::digest(&canonical)))
}

/// The run that a request with this key is about: `run_id`, or the one of the first time. And whether it is a repetition.
pub(super) async fn claim(
    keys: &IdempotencyKeys,
    principal: &Principal,
    key: &str,
    digest: &str,
    run_id: RunId,
) -> Result<(RunId, bool), Problem> {
    match keys.claim(&principal.tenant, key, digest, run_id).await? {
        Claim::Claimed => Ok((run_id, false)),
        Claim::Replay(run_id) => Ok((run_id, true)),
        Claim::Mismatch => Err(key_reused()),
    }
}

/// Gives the key of a request back if it was refused: mended, it may come again under the same.
pub(super) async fn release_refused(
    keys: &IdempotencyKeys,
    principal: &Principal,
    (key, digest): &(String, String),
    problem: &Problem,
) {
    if !problem.is_refusal() {
        return;
    }
    if let Err(error) = keys.release(&principal.tenant, key, digest).await {
        tracing::warn!(error = &error as &dyn std::error::Error, "the key of a refused request is not given back");
    }
}

/// The answer to another request under a key that was used.
pub(super) fn key_reused() -> Problem {
    Problem::unprocessable("idempotency_key_reused", "the key was used before, with another request")
        .field("Idempotency-Key")
        .remedy("use a new key for a new request")
}

impl CreateRunRequest {
    fn into_new_run(self, run_id: RunId, by: &Principal, traceparent: Option<&str>) -> Result<NewRun, Problem> {
        valid_limits(&self.budget, "budget")?;
        let source = format!("operator:{}", by.name);
        let input = match &self.input {
            Value::Null => return Err(missing_text("input")),
            Value::String(text) => text.clone(),
            json => serde_json::to_string_pretty(json).map_err(|error| Problem::internal(&error))?,
        };
        let objective = self.objective.unwrap_or_else(|| input.clone());
        if objective.trim().is_empty() {
            return Err(missing_text(if input.trim().is_empty() { "input" } else { "objective" }));
        }
        Ok(NewRun {
            run_id,
            tenant: by.tenant.clone(),
            objective: Block::new(objective, Trust::Operator, source.clone()),
            input: Block::new(input, Trust::Operator, source),
            acceptance: self.acceptance,
            limits: self.budget,
            conversation_id: self.conversation_id,
            metadata: self.metadata,
            trigger: None,
            operator: Some(by.name.clone()),
            roles: by.role_names(),
            traceparent: traceparent.map(str::to_owned),
        })
    }
}

/// The answer to a text that says nothing.
pub(crate) fn missing_text(field: &'static str) -> Problem {
    Problem::unprocessable("invalid_field", format!("`{field}` is empty")).field(field).remedy("say something in it")
}

/// Limits that can be kept.
pub(crate) fn valid_limits(limits: &Limits, within: &str) -> Result<(), Problem> {
    match limits.cost_usd {
        Some(cost) if !(cost.is_finite() && cost >= 0.0) => {
            Err(Problem::unprocessable("invalid_field", format!("a cost of {cost} can't be kept"))
                .field(format!("{within}.cost_usd"))
                .remedy("give an amount in US dollars, 0 or more"))
        }
        _ => Ok(()),
    }
}

/// Which runs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only those that stand here; `running` are those at which a planner is just now.
    status: Option<String>,
    /// Only those of this agent.
    agent: Option<String>,
    /// Only those that wait for this kind of wake: `timer`, `task_result`, `external` or `operator_input`.
    wake: Option<String>,
    /// Only those with this text in their objective, or whose id begins with it.
    q: Option<String>,
    /// Only those created at this time (RFC 3339) or later.
    since: Option<Timestamp>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// A page of runs, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunPage {
    /// The runs.
    items: Vec<RunSummary>,
    /// What to send as `cursor` for the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A run in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunSummary {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Name of its agent.
    agent: String,
    /// Where it stands.
    status: &'static str,
    /// The rule by which it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// What is to be reached.
    objective: String,
    /// Its last event.
    #[schema(value_type = u64)]
    seq: Seq,
    /// The W3C trace id of everything that it caused.
    trace_id: String,
    /// When it was created.
    created_at: Timestamp,
    /// When it last changed.
    updated_at: Timestamp,
    /// What may wake it, when it waits.
    #[schema(value_type = Vec<schema::WakeKind>)]
    wake_kinds: Vec<WakeKind>,
    /// Since when it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_since: Option<Timestamp>,
    /// The conversation it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    conversation_id: Option<ConversationId>,
    /// The user's labels.
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
    /// What it has spent.
    usage: RunUsage,
}

/// List runs
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", params(ListParams),
    responses((status = 200, description = "A page of runs, newest first", body = RunPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<RunsApi>,
    Params(params): Params<ListParams>,
) -> Result<Json<RunPage>, Problem> {
    let only_running = params.status.as_deref() == Some(RUNNING);
    let filter = params.into_filter()?;
    let (mut items, next) = listed(&api.reads, &api.snapshots, &principal.tenant, &filter).await?;
    items.retain(|run| !only_running || run.status == RUNNING);
    Ok(Json(RunPage { items, next }))
}

/// A page of runs as they are shown, and where the next one begins.
pub(super) async fn listed(
    reads: &Reads,
    snapshots: &Snapshots,
    tenant: &TenantId,
    filter: &RunFilter,
) -> Result<(Vec<RunSummary>, Option<String>), Problem> {
    let page = reads.runs(tenant, filter).await?;
    let stands: Vec<_> = page.items.iter().map(|run| (run.status, run.turn_id)).collect();
    let shown = snapshots.shown(&stands).await;
    let items = page.items.into_iter().zip(shown).map(|(run, status)| RunSummary::new(run, status));
    Ok((items.collect(), page.next))
}

impl ListParams {
    fn into_filter(self) -> Result<RunFilter, Problem> {
        let status = match self.status.as_deref() {
            None => None,
            Some(RUNNING) => Some(Status::Runnable),
            Some(word) => {
                Some(known_word(word, "status", Status::ALL.into_iter().map(|status| (status.as_str(), status)))?)
            }
        };
        Ok(RunFilter {
            status,
            agent: self.agent,
            wake: self.wake.as_deref().map(wake_kind).transpose()?,
            q: self.q.filter(|text| !text.is_empty()),
            since: self.since,
            limit: page_size(self.limit)?,
            cursor: self.cursor,
            conversation: None,
        })
    }
}

/// A kind of wake by its name in a query.
pub(crate) fn wake_kind(word: &str) -> Result<WakeKind, Problem> {
    let kinds = [WakeKind::Timer, WakeKind::TaskResult, WakeKind::External, WakeKind::OperatorInput];
    known_word(word, "wake", kinds.into_iter().map(|kind| (kind.as_str(), kind)))
}

/// One of a set of words, or a problem that lists them.
pub(crate) fn known_word<T>(
    word: &str,
    field: &'static str,
    known: impl Iterator<Item = (&'static str, T)> + Clone,
) -> Result<T, Problem> {
    let words: Vec<_> = known.clone().map(|(name, _)| name).collect();
    known.into_iter().find(|(name, _)| *name == word).map(|(_, value)| value).ok_or_else(|| {
        Problem::bad_request("invalid_query", format!("`{word}` is no {field}"))
            .field(field)
            .remedy(format!("use one of {}", words.join(", ")))
    })
}

/// A limit within bounds.
pub(crate) fn page_size(limit: Option<u32>) -> Result<u32, Problem> {
    match limit {
        None => Ok(50),
        Some(limit @ 1..=engine::MAX_ROWS) => Ok(limit),
        Some(limit) => Err(Problem::bad_request("invalid_query", format!("a limit of {limit} is out of bounds"))
            .field("limit")
            .remedy(format!("ask for 1 to {}, and page on", engine::MAX_ROWS))),
    }
}

impl RunSummary {
    fn new(run: RunRow, status: &'static str) -> Self {
        Self {
            run_id: run.run_id,
            agent: run.agent,
            status,
            rule: run.rule,
            objective: run.objective,
            seq: run.seq,
            trace_id: run.run_id.trace_id(),
            created_at: run.created_at,
            updated_at: run.updated_at,
            wake_kinds: run.wake_kinds,
            waiting_since: run.waiting_since,
            conversation_id: run.conversation_id,
            metadata: run.metadata,
            usage: run.spent.into(),
        }
    }
}

/// Look at a run
#[utoipa::path(
    get, path = "/v1/runs/{run_id}", tag = "runs",
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an earlier answer"),
    ),
    responses(
        (status = 200, description = "The run as it stands, never older than the log", body = RunSnapshot),
        (status = 304, description = "It stands as it did then"),
    ),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<RunsApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let snapshot = api.snapshots.of(&principal.tenant, run_id(&run)?).await?;
    let tag = format!("W/\"{}-{}\"", snapshot.seq, snapshot.status);
    Ok(unless_known(&headers, &tag, Json(snapshot)))
}

/// What a run hands over
///
/// What was asked, what was done, how each criterion was verified and by what, what is left, and what it cost; also of a run that
/// failed or was cancelled. A run that was verified has the same as the artifacts `delivery-report.md` and `.json`.
#[utoipa::path(
    get, path = "/v1/runs/{run_id}/report", tag = "runs",
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 200, description = "The report", body = schema::Report)),
)]
pub(crate) async fn report(
    Viewer(principal): Viewer,
    State(api): State<RunsApi>,
    Segments(run): Segments<String>,
) -> Result<Json<Report>, Problem> {
    Ok(Json(api.snapshots.report(&principal.tenant, run_id(&run)?).await?))
}
