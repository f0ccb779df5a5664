//! `POST /v1/runs/{id}/fork` and `/rollback`: a run that goes on from a turn of another one.

use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bus::subject;
use engine::{Engine, ForkPoint, IdempotencyKeys};
use futures::StreamExt as _;
use kernel::budget::Limits;
use kernel::command::ByOperator;
use kernel::event::RunForked;
use kernel::state::{Fact, FactKind, Undo};
use kernel::{Block, Cause, Command, RunId, RunState, Trust};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::runs::{claim, digest_of, idempotency_key, missing_text, valid_limits};
use super::schema;
use crate::auth::{Operator, Principal, User};
use crate::body::{JsonBody, Segments, run_id};
use crate::problem::Problem;
use crate::runs::{NewFork, Runs};

/// How long a rollback waits for the run to end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ForksApi {
    pub engine: Engine,
    pub runs: Runs,
    pub idempotency: IdempotencyKeys,
}

pub(crate) fn router(api: ForksApi) -> Router {
    Router::new()
        .route("/runs/{run_id}/fork", post(fork))
        .route("/runs/{run_id}/rollback", post(roll_back))
        .with_state(api)
}

/// A fork to make.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ForkRequest {
    /// The number of the turn that is taken anew, from 1; the last one unless given.
    turn: Option<u32>,
    /// Whether its calls may change anything outside. If not, a call that the run made after that turn has the result that is
    /// on record, and any other that could be seen outside is not made.
    effects: bool,
    /// What the operator says to its first turn.
    message: Option<String>,
    /// What it may spend, in place of what the run may.
    #[schema(value_type = schema::Limits)]
    budget: Option<Limits>,
}

/// A run to go back.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RollbackRequest {
    /// The number of the turn that is taken anew, from 1.
    turn: u32,
    /// What the operator says to its first turn.
    #[serde(default)]
    message: Option<String>,
    /// Why; kept with the run that is ended.
    #[serde(default)]
    reason: Option<String>,
}

/// A run that goes on from another one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForkedResponse {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Where it stands.
    status: &'static str,
    /// Where it can be followed as server-sent events.
    stream_url: String,
    /// The run that it goes on from.
    #[schema(value_type = uuid::Uuid)]
    origin: RunId,
    /// The turn that it takes anew.
    turn: u32,
    /// Whether its calls may change anything outside.
    effects: bool,
}

/// Fork a run
///
/// A new run that knows what this one knew before one of its turns, and takes that turn anew. The run itself is not touched. What
/// was under way then comes along with how it ended. Unless `effects` allows them, effects stop at the door: results that are
/// on record are given again, and no other call that could be seen outside is made.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/fork", tag = "control", request_body = Option<ForkRequest>,
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses((status = 202, description = "The fork exists", body = ForkedResponse)),
)]
pub(crate) async fn fork(
    User(principal): User,
    State(api): State<ForksApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ForkRequest>,
) -> Result<Response, Problem> {
    let id = run_id(&run)?;
    let state = api.known(&principal, id).await?;
    let turn = request.turn.unwrap_or(state.turns_opened);
    let key = idempotency_key(&headers)?;
    // What is wrong with it is said before its key is taken: mended, it may come again under the same.
    valid_message(request.message.as_deref())?;
    if let Some(limits) = &request.budget {
        valid_limits(limits, "budget")?;
    }
    let point = api.point(&principal, id, turn).await?;
    let (fork, replayed) = api.claimed(&principal, key, &(id, &request)).await?;
    let wanted = Wanted { fork, turn, effects: request.effects, message: request.message, limits: request.budget };
    let response = api.make(&principal, id, point, wanted).await?;
    Ok(forked(&response, replayed))
}

/// Roll a run back
///
/// Ends the run, which undoes what it has done since that turn and can be undone, and starts a new one that takes the turn anew,
/// with effects. If ending takes longer than a few seconds, the answer says so: asking again once the run has ended goes on.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/rollback", tag = "control", request_body = RollbackRequest,
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses(
        (status = 202, description = "The run that goes on exists", body = ForkedResponse),
        (status = 409, description = "The run is still ending, or would undo what it did before that turn"),
    ),
)]
pub(crate) async fn roll_back(
    Operator(principal): Operator,
    State(api): State<ForksApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RollbackRequest>,
) -> Result<Response, Problem> {
    let id = run_id(&run)?;
    let state = api.known(&principal, id).await?;
    // The run is ended for good: whatever may be wrong with the request is said before.
    valid_message(request.message.as_deref())?;
    let key = idempotency_key(&headers)?;
    let point = api.point(&principal, id, request.turn).await?;
    if let Some(kept) = state.undo.iter().find(|undo| point.state.undo.contains(undo)).filter(|_| !state.ended) {
        return Err(would_undo_more(kept));
    }
    let (fork, replayed) = api.claimed(&principal, key, &(id, &request)).await?;
    if !state.ended {
        api.end(&principal, &state, request.reason.clone()).await?;
    }
    // Once more: what was under way at that turn comes along with how it ended, which may have been just now.
    let point = api.point(&principal, id, request.turn).await?;
    let wanted = Wanted { fork, turn: request.turn, effects: true, message: request.message, limits: None };
    let response = api.make(&principal, id, point, wanted).await?;
    Ok(forked(&response, replayed))
}

fn valid_message(message: Option<&str>) -> Result<(), Problem> {
    if message.is_some_and(|text| text.trim().is_empty()) { Err(missing_text("message")) } else { Ok(()) }
}

fn would_undo_more(kept: &Undo) -> Problem {
    let words = format!("ending the run would also undo the call {}, which it made before that turn", kept.call_id);
    Problem::conflict("undoes_more", words)
        .field("turn")
        .remedy("roll back to an earlier turn, or fork the run with `effects` and end it by hand")
}

fn forked(response: &ForkedResponse, replayed: bool) -> Response {
    let location = format!("/v1/runs/{}", response.run_id);
    let mut answer = (StatusCode::ACCEPTED, [("location", location)], Json(response)).into_response();
    if replayed {
        answer.headers_mut().insert("idempotent-replayed", axum::http::HeaderValue::from_static("true"));
    }
    answer
}

/// A fork to be.
struct Wanted {
    fork: RunId,
    turn: u32,
    effects: bool,
    message: Option<String>,
    limits: Option<Limits>,
}

impl ForksApi {
    async fn known(&self, principal: &Principal, run: RunId) -> Result<std::sync::Arc<RunState>, Problem> {
        let state = self.engine.load(run).await?.filter(|state| state.tenant == principal.tenant);
        state.ok_or_else(|| Problem::unknown_run(run))
    }

    async fn point(&self, principal: &Principal, run: RunId, turn: u32) -> Result<ForkPoint, Problem> {
        let point = self.engine.forks().point(&principal.tenant, run, turn).await?;
        point.ok_or_else(|| {
            Problem::unprocessable("unknown_turn", format!("the run has had no turn `{turn}`"))
                .field("turn")
                .remedy("turns are numbered from 1; the snapshot's `usage.turns` says how many there were")
        })
    }

    /// The run that this request makes or has made, and whether it is a repetition.
    async fn claimed<T: Serialize + Sync>(
        &self,
        principal: &Principal,
        key: Option<&str>,
        request: &T,
    ) -> Result<(RunId, bool), Problem> {
        match key {
            Some(key) => claim(&self.idempotency, principal, key, &digest_of(request)?, RunId::mint()).await,
            None => Ok((RunId::mint(), false)),
        }
    }

    async fn make(
        &self,
        principal: &Principal,
        origin: RunId,
        point: ForkPoint,
        wanted: Wanted,
    ) -> Result<ForkedResponse, Problem> {
        let Wanted { fork, turn, effects, message, limits } = wanted;
        let ForkPoint { origin: from, mut created, state, mut carried } = point;
        if let Some(text) = message {
            let block = Block::new(text, Trust::Operator, format!("operator:{}", principal.name));
            let title = "The operator writes".to_owned();
            let (seq, at) = (state.seq, state.updated_at);
            carried.facts.push(Fact { seq, at, kind: FactKind::Message, title, block, call_id: None });
        }
        created.objective.clone_from(&state.objective);
        created.acceptance.clone_from(&state.acceptance);
        created.tools = state.tools.as_ref().map(|tools| tools.iter().cloned().collect());
        created.limits = limits.unwrap_or_else(|| state.limits.clone());
        created.parent = None;
        created.roles = principal.role_names();
        created.metadata.insert("forked_from".to_owned(), origin.to_string().into());
        let forked = RunForked { origin: from, effects, carried };
        let new = NewFork { run_id: fork, created, forked, operator: principal.name.clone() };
        let committed = self.runs.fork(new).await?;
        let run_id = committed.state.run_id;
        let status = committed.state.status().as_str();
        // Of one that was made before, as it was made.
        let turn = committed.state.origin.map_or(turn, |origin| origin.turn);
        let stream_url = format!("/v1/runs/{run_id}/stream");
        Ok(ForkedResponse { run_id, status, stream_url, origin, turn, effects })
    }

    /// Ends a run, and waits until it has ended.
    async fn end(&self, principal: &Principal, state: &RunState, reason: Option<String>) -> Result<(), Problem> {
        let run = state.run_id;
        let unavailable = |_| Problem::unavailable("bus_unavailable", "the message bus can't be reached at the moment");
        let bells = self.engine.bus().subscribe(&subject::evt_of_run(&state.tenant, run)).await;
        let mut bells = bells.map_err(unavailable)?;
        let reason = reason.unwrap_or_else(|| "rolled back".to_owned());
        let command = Command::Cancel(ByOperator { by: principal.name.clone(), reason: Some(reason) });
        let cause = Cause { service: "ingress".into(), operator: Some(principal.name.clone()), ..Cause::default() };
        let committed = self.engine.submit(run, command, format!("rollback/{}", state.seq), cause).await?;
        if committed.state.ended {
            return Ok(());
        }
        let ended = async {
            while bells.next().await.is_some() {
                if self.engine.load(run).await?.is_some_and(|state| state.ended) {
                    return Ok::<_, Problem>(true);
                }
            }
            Ok(false)
        };
        match tokio::time::timeout(ENDS_WITHIN, ended).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(problem)) => Err(problem),
            Ok(Ok(false)) | Err(_) => {
                Err(Problem::conflict("run_ending", "the run is still ending: what it did is being undone")
                    .remedy("ask for the same again when it has ended"))
            }
        }
    }
}
