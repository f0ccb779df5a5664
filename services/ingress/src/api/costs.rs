//! `/v1/costs`: what runs have cost.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use engine::{AgentCost, Reads};
use kernel::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Viewer;
use crate::body::Params;
use crate::problem::Problem;

pub(crate) fn router(reads: Reads) -> Router {
    Router::new().route("/costs", get(show)).with_state(reads)
}

/// Which runs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CostParams {
    /// Only runs created at this time or later.
    since: Option<Timestamp>,
}

/// What the runs of an agent have cost.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CostView {
    /// The agent.
    agent: String,
    /// Its runs.
    runs: u64,
    /// Their turns.
    turns: u64,
    /// Their calls to models.
    model_calls: u64,
    /// Tokens sent.
    input_tokens: u64,
    /// Of those, tokens that providers had cached.
    cached_tokens: u64,
    /// Tokens received.
    output_tokens: u64,
    /// What that cost, in US dollars. Models whose price is not known count as nothing.
    cost_usd: f64,
}

/// What the tenant's runs have cost.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CostPage {
    /// By agent, the dearest first.
    items: Vec<CostView>,
    /// All of them together, in US dollars.
    cost_usd: f64,
}

/// Show what runs have cost
#[utoipa::path(
    get, path = "/v1/costs", tag = "runs", params(CostParams),
    responses((status = 200, description = "The costs of the tenant's runs, by agent", body = CostPage)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(reads): State<Reads>,
    Params(params): Params<CostParams>,
) -> Result<Json<CostPage>, Problem> {
    let costs = reads.costs(&principal.tenant, params.since).await?;
    let sum = costs.iter().map(|cost| cost.cost_microusd).sum();
    Ok(Json(CostPage { items: costs.into_iter().map(CostView::from).collect(), cost_usd: usd(sum) }))
}

impl From<AgentCost> for CostView {
    fn from(cost: AgentCost) -> Self {
        let AgentCost { agent, runs, turns, model_calls, input_tokens, cached_tokens, output_tokens, cost_microusd } =
            cost;
        Self {
            agent,
            runs,
            turns,
            model_calls,
            input_tokens,
            cached_tokens,
            output_tokens,
            cost_usd: usd(cost_microusd),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sums of money that are shown")]
fn usd(microusd: u64) -> f64 {
    microusd as f64 / 1e6
}
