//! `/v1/standing-approvals`: what people allowed once and for all.

use axum::extract::State;
use axum::routing::{delete, get};
use axum::{Extension, Json, Router};
use engine::{StandingApprovals, StandingRow};
use kernel::{ApprovalId, RunId, StandingId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::audit::Evidence;
use crate::auth::{Operator, Viewer};
use crate::body::{Params, Segments, id};
use crate::problem::Problem;

pub(crate) fn router(standing: StandingApprovals) -> Router {
    Router::new()
        .route("/standing-approvals", get(list))
        .route("/standing-approvals/{standing_id}", delete(revoke))
        .with_state(standing)
}

/// Which to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StandingParams {
    /// Also those that were revoked.
    #[serde(default)]
    all: bool,
}

/// A person's yes to all calls of one shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StandingView {
    /// Which one.
    #[schema(value_type = uuid::Uuid)]
    standing_id: StandingId,
    /// The agent that it is for.
    agent: String,
    /// Its definition, by digest: a changed one asks again.
    agent_digest: String,
    /// The tool that it is for.
    tool: String,
    /// Its declaration, by digest: a changed one asks again.
    schema_digest: String,
    /// The shape of the arguments, by digest: what decides in them by its value, the rest by its kind.
    shape: String,
    /// The policies that it answers; another one that asks, asks.
    reasons: Vec<String>,
    /// The arguments that it was given for.
    #[schema(value_type = Object)]
    arguments: Box<RawValue>,
    /// The decision that it was given with.
    #[schema(value_type = uuid::Uuid)]
    approval_id: ApprovalId,
    /// The run that had asked.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// What the person wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// The person.
    given_by: String,
    /// When.
    given_at: Timestamp,
    /// How often it decided.
    uses: u64,
    /// When it last did.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_by: Option<String>,
}

/// Standing approvals, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StandingList {
    /// They.
    items: Vec<StandingView>,
}

impl From<StandingRow> for StandingView {
    fn from(row: StandingRow) -> Self {
        Self {
            standing_id: row.standing_id,
            agent: row.agent,
            agent_digest: row.agent_digest,
            tool: row.tool,
            schema_digest: row.schema_digest,
            shape: row.shape,
            reasons: row.reasons,
            arguments: row.arguments,
            approval_id: row.approval_id,
            run_id: row.run_id,
            note: row.note,
            given_by: row.given_by,
            given_at: row.given_at,
            uses: row.uses,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
            revoked_by: row.revoked_by,
        }
    }
}

/// List what is allowed once and for all
#[utoipa::path(
    get, path = "/v1/standing-approvals", tag = "approvals", params(StandingParams),
    responses((status = 200, description = "Standing approvals, newest first", body = StandingList)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(standing): State<StandingApprovals>,
    Params(params): Params<StandingParams>,
) -> Result<Json<StandingList>, Problem> {
    let items = standing.list(&principal.tenant, params.all).await?;
    Ok(Json(StandingList { items: items.into_iter().map(StandingView::from).collect() }))
}

/// Revoke a standing approval
///
/// Once this is answered, no call is let pass by it any more, also none that it was let pass by and that has not begun.
#[utoipa::path(
    delete, path = "/v1/standing-approvals/{standing_id}", tag = "approvals",
    params(("standing_id" = uuid::Uuid, Path, description = "Which one")),
    responses((status = 200, description = "People are asked again from now on", body = StandingView)),
)]
pub(crate) async fn revoke(
    Operator(principal): Operator,
    State(standing): State<StandingApprovals>,
    Segments(standing_id): Segments<String>,
) -> Result<(Extension<Evidence>, Json<StandingView>), Problem> {
    let standing_id: StandingId = id(&standing_id, "unknown_standing_approval")?;
    let row = standing.revoke(&principal.tenant, standing_id, &principal.name).await?.ok_or_else(|| {
        Problem::not_found("unknown_standing_approval", format!("there is no standing approval `{standing_id}`"))
            .remedy("`GET /v1/standing-approvals` lists them")
    })?;
    let evidence = Evidence(json!({
        "standing_id": row.standing_id, "agent": row.agent, "tool": row.tool, "shape": row.shape, "given_by": row.given_by,
    }));
    Ok((Extension(evidence), Json(row.into())))
}
