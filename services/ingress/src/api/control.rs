//! Talking to, holding, ending and limiting a live run.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{patch, post};
use engine::{Engine, Reads, RunRow};
use kernel::budget::Limits;
use kernel::command::{AddMessage, ByOperator, ChangeBudget};
use kernel::units::Duration;
use kernel::{Block, Cause, Command, RunId, Seq, Trust};
use serde::{Deserialize, Deserializer, Serialize};
use service::telemetry::{Parent, Span, SpanSpec, TraceContext, Tracer, genai};
use utoipa::ToSchema;
use uuid::Uuid;

use super::runs::{claim, digest_of, idempotency_key, missing_text, release_refused, valid_limits};
use super::schema;
use crate::auth::{Operator, Principal, User};
use crate::body::{JsonBody, Segments, run_id};
use crate::problem::Problem;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ControlApi {
    pub engine: Engine,
    pub reads: Reads,
    pub tracer: Tracer,
}

pub(crate) fn router(api: ControlApi) -> Router {
    Router::new()
        .route("/runs/{run_id}/messages", post(message))
        .route("/runs/{run_id}/pause", post(pause))
        .route("/runs/{run_id}/resume", post(resume))
        .route("/runs/{run_id}/cancel", post(cancel))
        .route("/runs/{run_id}/budget", patch(change_budget))
        .route("/runs/{run_id}", patch(super::revise::revise))
        .route("/runs/{run_id}/declassify", post(super::vouching::declassify))
        .with_state(api)
}

/// Where a run stands after a change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunChanged {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Where it stands now.
    status: &'static str,
    /// Its last event.
    #[schema(value_type = u64)]
    seq: Seq,
}

/// Words for a live run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageRequest {
    /// What to say.
    text: String,
}

/// Why something is asked for.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReasonRequest {
    /// In words; kept with the run.
    reason: Option<String>,
}

/// New limits: those that are given replace the old ones, `null` takes one away, the others stay.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BudgetPatch {
    /// Turns.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    turns: Option<Option<u32>>,
    /// Tokens, in and out together: a number, or text such as `200k`.
    #[serde(deserialize_with = "given_count", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    tokens: Option<Option<u64>>,
    /// Money, in US dollars.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    cost_usd: Option<Option<f64>>,
    /// Time from creation to end, waits included, such as `3d`.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    wall: Option<Option<Duration>>,
    /// Requested tool calls.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    tool_calls: Option<Option<u32>>,
}

/// Tells `null` from nothing.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn given_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    kernel::units::count(deserializer).map(Some)
}

impl BudgetPatch {
    pub(super) fn apply(&self, limits: &Limits) -> Limits {
        Limits {
            turns: self.turns.unwrap_or(limits.turns),
            tokens: self.tokens.unwrap_or(limits.tokens),
            cost_usd: self.cost_usd.unwrap_or(limits.cost_usd),
            wall: self.wall.unwrap_or(limits.wall),
            tool_calls: self.tool_calls.unwrap_or(limits.tool_calls),
            at_limit: limits.at_limit,
        }
    }
}

/// Write into a live run
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/messages", tag = "control", request_body = MessageRequest,
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses((status = 202, description = "The run has it and will see it in its next turn", body = RunChanged)),
)]
pub(crate) async fn message(
    User(principal): User,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<MessageRequest>,
) -> Result<(StatusCode, Json<RunChanged>), Problem> {
    if request.text.trim().is_empty() {
        return Err(missing_text("text"));
    }
    let block = Block::new(&request.text, Trust::Operator, format!("operator:{}", principal.name));
    api.change(&principal, &run, &headers, &request, Command::AddMessage(AddMessage { block })).await
}

/// Hold a run
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/pause", tag = "control", request_body = Option<ReasonRequest>,
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 202, description = "No new turn starts until it is resumed", body = RunChanged)),
)]
pub(crate) async fn pause(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReasonRequest>,
) -> Result<(StatusCode, Json<RunChanged>), Problem> {
    let command = Command::Pause(by(&principal, &request));
    api.change(&principal, &run, &headers, &request, command).await
}

/// Let a held run go on
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/resume", tag = "control", request_body = Option<ReasonRequest>,
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 202, description = "The run goes on", body = RunChanged)),
)]
pub(crate) async fn resume(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReasonRequest>,
) -> Result<(StatusCode, Json<RunChanged>), Problem> {
    let command = Command::Resume(by(&principal, &request));
    api.change(&principal, &run, &headers, &request, command).await
}

/// End a run
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/cancel", tag = "control", request_body = Option<ReasonRequest>,
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 202, description = "The run ends as soon as nothing it has started is under way", body = RunChanged)),
)]
pub(crate) async fn cancel(
    User(principal): User,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReasonRequest>,
) -> Result<(StatusCode, Json<RunChanged>), Problem> {
    let command = Command::Cancel(by(&principal, &request));
    api.change(&principal, &run, &headers, &request, command).await
}

/// Change what a run may spend
#[utoipa::path(
    patch, path = "/v1/runs/{run_id}/budget", tag = "control", request_body = BudgetPatch,
    params(("run_id" = uuid::Uuid, Path, description = "Which run")),
    responses((status = 200, description = "The limits from now on", body = schema::Limits)),
)]
pub(crate) async fn change_budget(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(patch): JsonBody<BudgetPatch>,
) -> Result<Json<Limits>, Problem> {
    let id = run_id(&run)?;
    let state = api.engine.load(id).await?.filter(|state| state.tenant == principal.tenant);
    let limits = patch.apply(&state.ok_or_else(|| Problem::unknown_run(id))?.limits);
    valid_limits(&limits, "budget")?;
    let change = Command::ChangeBudget(ChangeBudget { limits: limits.clone(), by: principal.name.clone() });
    let _changed = api.change(&principal, &run, &headers, &patch, change).await?;
    Ok(Json(limits))
}

fn by(principal: &Principal, request: &ReasonRequest) -> ByOperator {
    ByOperator { by: principal.name.clone(), reason: request.reason.clone() }
}

impl ControlApi {
    /// Submits a person's command for a run of their tenant. `asked` is what they sent: with something else in it, a key that was
    /// used is refused. A request that the run refuses leaves its key for the mended one.
    pub(super) async fn change<T: Serialize + Sync>(
        &self,
        principal: &Principal,
        run: &str,
        headers: &HeaderMap,
        asked: &T,
        command: Command,
    ) -> Result<(StatusCode, Json<RunChanged>), Problem> {
        let id = run_id(run)?;
        let known = self.reads.run(&principal.tenant, id).await?.ok_or_else(|| Problem::unknown_run(id))?;
        let Some(key) = idempotency_key(headers)? else {
            return Ok((StatusCode::ACCEPTED, Json(self.submit(principal, &known, command, None).await?)));
        };
        let keys = self.engine.idempotency();
        // Each run, and each thing that is done to it, has keys of its own.
        let claimed = (format!("{id}/{}/{key}", command.name()), digest_of(asked)?);
        claim(&keys, principal, &claimed.0, &claimed.1, id).await?;
        // The log, too, tells requests apart: a late repetition of a refused one is not taken for the mended one.
        let delivery = format!("{key}/{}", claimed.1);
        let changed = self.submit(principal, &known, command, Some(&delivery)).await;
        if let Err(problem) = &changed {
            release_refused(&keys, principal, &claimed, problem).await;
        }
        Ok((StatusCode::ACCEPTED, Json(changed?)))
    }

    /// Submits a person's command for a run that was found to be of their tenant.
    pub(super) async fn submit(
        &self,
        principal: &Principal,
        known: &RunRow,
        command: Command,
        key: Option<&str>,
    ) -> Result<RunChanged, Problem> {
        let id = known.run_id;
        let key = match key {
            Some(key) => format!("api/{}/{key}", command.name()),
            None => format!("api/{}", Uuid::now_v7()),
        };
        let span = self.span(id, command.name(), known.sampled);
        let cause = Cause {
            service: "ingress".into(),
            seq: None,
            traceparent: Some(span.traceparent()),
            operator: Some(principal.name.clone()),
        };
        let committed = self.engine.submit(id, command, key, cause).await?;
        let (status, seq) = (committed.state.status().as_str(), committed.state.seq);
        Ok(RunChanged { run_id: id, status, seq })
    }

    fn span(&self, run: RunId, what: &'static str, sampled: bool) -> Span {
        let parent = Parent::Span(TraceContext::of_run(run, sampled));
        self.tracer.span(SpanSpec::new(format!("operator {what}"), parent).attribute(genai::RUN_ID, run.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_stays_and_null_takes_away() {
        let limits = Limits { turns: Some(10), cost_usd: Some(2.0), ..Limits::default() };
        let patch: BudgetPatch = serde_json::from_str(r#"{"turns": null, "tokens": "2k"}"#).unwrap();
        let changed = patch.apply(&limits);
        assert_eq!((changed.turns, changed.tokens, changed.cost_usd), (None, Some(2000), Some(2.0)));
        assert!(serde_json::from_str::<BudgetPatch>(r#"{"turn": 1}"#).is_err());
    }
}
