//! `/v1/freeze`: the kill switch.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Json, Router};
use bus::{Bus, Headers, subject};
use engine::{Freeze, FreezeScope, Freezes, UnderWay};
use kernel::{CallId, RunId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::audit::Evidence;
use crate::auth::{Operator, Principal, Role, Viewer};
use crate::body::JsonBody;
use crate::problem::Problem;

/// How long the answer waits for executors to hear of a freeze: what they had started in the log before it, and not begun, they
/// leave.
const HEARD: Duration = Duration::from_millis(100);
/// Activities that one message names.
const STOPPED_AT_ONCE: usize = 500;
/// Longest reason, in bytes.
const REASON_BYTES: usize = 2000;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct FreezeApi {
    pub freezes: Freezes,
    pub bus: Bus,
}

pub(crate) fn router(api: FreezeApi) -> Router {
    Router::new().route("/freeze", get(list).put(put)).with_state(api)
}

/// A change of the kill switch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FreezeRequest {
    /// Where nothing is to start: `all` (every tenant's runs), `tenant` (all runs of the caller's), `agent:<name>` (its runs and
    /// all below them) or `tool:<name>`.
    scope: String,
    /// Whether nothing starts there from now on.
    on: bool,
    /// Why, in words.
    #[serde(default)]
    reason: Option<String>,
    /// What becomes of calls that are under way there: they are listed and go on (`list`), or the activities among them are
    /// ended, children of their processes included (`stop`).
    #[serde(default)]
    running: Running,
}

/// What becomes of what is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Running {
    /// It is listed, and goes on.
    #[default]
    List,
    /// Activities are ended.
    Stop,
}

/// A scope as it stands, and what is still under way in it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FreezeChanged {
    #[serde(flatten)]
    freeze: FreezeView,
    /// Calls that had begun before, the longest first, 1000 at most; nothing if the freeze was lifted.
    running: Vec<RunningCall>,
}

/// A call whose effect is under way.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunningCall {
    /// Which call.
    #[schema(value_type = uuid::Uuid)]
    call_id: CallId,
    /// Of which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Which tool.
    tool: String,
    /// When it began.
    started_at: Timestamp,
    /// Whether it is being ended. What is not an activity can't be: its request is out already.
    stopping: bool,
}

/// A scope of the kill switch as it stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FreezeView {
    /// Where.
    scope: String,
    /// Whether nothing starts there.
    on: bool,
    /// Its number: of two changes of one scope the higher one counts.
    version: i64,
    /// Who changed it last.
    by: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When.
    at: Timestamp,
}

/// What is frozen.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FreezeList {
    /// By scope; nothing is frozen if it is empty.
    items: Vec<FreezeView>,
}

impl From<Freeze> for FreezeView {
    fn from(freeze: Freeze) -> Self {
        let Freeze { version, scope, on, by, reason, at } = freeze;
        Self { scope: scope.to_string(), on, version, by, reason, at }
    }
}

/// Show what is frozen
#[utoipa::path(
    get, path = "/v1/freeze", tag = "control",
    responses((status = 200, description = "What is frozen for the caller's runs", body = FreezeList)),
)]
pub(crate) async fn list(Viewer(principal): Viewer, State(api): State<FreezeApi>) -> Result<Json<FreezeList>, Problem> {
    let items = api.freezes.in_force(&principal.tenant).await?;
    Ok(Json(FreezeList { items: items.into_iter().map(FreezeView::from).collect() }))
}

/// Throw the kill switch, or lift it
///
/// Once this is answered with `on`, no tool call with an effect starts in the scope, in whichever executor. Calls that wait
/// then go on when it is lifted. What had begun is listed, and goes on unless `running` is `stop`.
#[utoipa::path(
    put, path = "/v1/freeze", tag = "control", request_body = FreezeRequest,
    responses((status = 200, description = "So it is from now on", body = FreezeChanged)),
)]
pub(crate) async fn put(
    Operator(principal): Operator,
    State(api): State<FreezeApi>,
    JsonBody(request): JsonBody<FreezeRequest>,
) -> Result<(Extension<Evidence>, Json<FreezeChanged>), Problem> {
    let scope: FreezeScope = request.scope.parse().map_err(|error: engine::NotAScope| {
        Problem::bad_request("invalid_scope", error)
            .field("scope")
            .remedy("`all`, `tenant`, `agent:<name>` or `tool:<name>`")
    })?;
    if scope == FreezeScope::All {
        may_freeze_all(&principal)?;
    }
    let reason = request.reason.as_deref().filter(|reason| !reason.trim().is_empty());
    if reason.is_some_and(|reason| reason.len() > REASON_BYTES || reason.contains('\0')) {
        let words = format!("`reason` may have {REASON_BYTES} bytes, none of them NUL");
        return Err(Problem::bad_request("invalid_reason", words).field("reason"));
    }
    let freeze = api.freezes.set(&principal.tenant, &scope, request.on, &principal.name, reason).await?;
    tracing::warn!(scope = %scope, on = freeze.on, by = freeze.by, version = freeze.version, "the kill switch was changed");
    metrics::counter!("ingress_freezes_total", "on" => freeze.on.to_string()).increment(1);
    let running = if freeze.on { api.stop_all(&principal.tenant, &freeze, request.running).await? } else { Vec::new() };
    let evidence = Evidence(json!({
        "scope": freeze.scope, "on": freeze.on, "version": freeze.version, "reason": freeze.reason,
        "running": running.len(), "stopping": running.iter().filter(|call| call.stopping).count(),
    }));
    Ok((Extension(evidence), Json(FreezeChanged { freeze: freeze.into(), running })))
}

/// That is for those who run the whole house.
fn may_freeze_all(principal: &Principal) -> Result<(), Problem> {
    if principal.tenant == TenantId::default() && principal.roles.contains(&Role::Admin) {
        return Ok(());
    }
    let words = format!("`{}` may not freeze other tenants: that takes the role `admin` in `default`", principal.name);
    Err(Problem::new(StatusCode::FORBIDDEN, "insufficient_role", words)
        .field("scope")
        .remedy("freeze `tenant`, which is all that is yours"))
}

impl FreezeApi {
    /// Has the executors leave what they have in hand, and end what is under way if that is wanted.
    async fn stop_all(&self, tenant: &TenantId, freeze: &Freeze, what: Running) -> Result<Vec<RunningCall>, Problem> {
        let stops = |call: &UnderWay| what == Running::Stop && call.activity;
        // What the executors had in hand is let be before anything is listed: they are told at once.
        self.tell(freeze, Vec::new()).await;
        tokio::time::sleep(HEARD).await;
        let calls = self.freezes.under_way(tenant, &freeze.scope).await?;
        let ended: Vec<CallId> = calls.iter().filter(|call| stops(call)).map(|call| call.call_id).collect();
        for some in ended.chunks(STOPPED_AT_ONCE) {
            self.tell(freeze, some.to_vec()).await;
        }
        let view = |call: UnderWay| RunningCall {
            stopping: stops(&call),
            call_id: call.call_id,
            run_id: call.run_id,
            tool: call.tool,
            started_at: call.started_at,
        };
        Ok(calls.into_iter().map(view).collect())
    }

    /// Tells the executors, so that what they have in hand stops as well. The log refuses new starts whether they hear it or
    /// not.
    async fn tell(&self, freeze: &Freeze, stop: Vec<CallId>) {
        let subject = subject::svc("tool-executor", "freeze");
        let body = json!({ "version": freeze.version, "stop": stop }).to_string();
        if let Err(error) = self.bus.publish_core(&subject, Headers::new(), body).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "executors were not told of a freeze; the log tells them"
            );
        }
    }
}
