//! `PATCH /v1/runs/{id}`: what a live run is to reach, and with what.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use engine::AgentVersion;
use kernel::agent::Criterion;
use kernel::command::ReviseRun;
use kernel::{Block, Command, RunState, Trust};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::control::{BudgetPatch, ControlApi, RunChanged};
use super::runs::{missing_text, valid_limits};
use super::schema;
use crate::auth::Operator;
use crate::body::{JsonBody, Segments, run_id};
use crate::problem::Problem;

/// What is to be different. What is not given stays as it is.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunPatch {
    /// What is to be reached.
    objective: Option<String>,
    /// How it is known that it was reached, all of it: a text, or what checks it.
    #[schema(value_type = Option<Vec<schema::Criterion>>)]
    acceptance: Option<Vec<Criterion>>,
    /// The only tools that it may use, of those that its agent's file names.
    tools: Option<Vec<String>>,
    /// What it may spend.
    budget: Option<BudgetPatch>,
    /// Why; the model is told.
    reason: Option<String>,
}

/// Change a live run
///
/// The model is told, and looks again before anything that it wanted to begin. Each revision is an event of the run:
/// `run.revised`, with who made it.
#[utoipa::path(
    patch, path = "/v1/runs/{run_id}", tag = "control", request_body = RunPatch,
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses((status = 200, description = "So it is from now on", body = RunChanged)),
)]
pub(crate) async fn revise(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(patch): JsonBody<RunPatch>,
) -> Result<Json<RunChanged>, Problem> {
    let id = run_id(&run)?;
    let state = api.engine.load(id).await?.filter(|state| state.tenant == principal.tenant);
    let state = state.ok_or_else(|| Problem::unknown_run(id))?;
    if let Some(tools) = &patch.tools {
        let agents = api.engine.agents();
        let agent = agents.by_digest(&state.tenant, &state.agent, &state.agent_digest).await?;
        valid_tools(tools, &state, agent.as_deref())?;
    }
    let command = patch.command(&state, &principal.name)?;
    let (_, changed) = api.change(&principal, &run, &headers, &patch, command).await?;
    Ok(changed)
}

/// An operator may take tools away, and give back what the agent's file names: no more than that.
fn valid_tools(tools: &[String], state: &RunState, agent: Option<&AgentVersion>) -> Result<(), Problem> {
    let named = agent.map_or(&[][..], |agent| &agent.spec.tools);
    let of_server = |tool: &str, all: &str| {
        all.strip_suffix(".*").is_some_and(|server| tool.strip_prefix(server).is_some_and(|rest| rest.starts_with('.')))
    };
    let is_named = |tool: &&String| named.iter().any(|name| name == *tool || of_server(tool, name));
    match tools.iter().position(|tool| !is_named(&tool)) {
        None => Ok(()),
        Some(index) => {
            let words = format!("the agent `{}` has no tool `{}`", state.agent, tools[index]);
            Err(Problem::unprocessable("unknown_tool", words)
                .field(format!("tools[{index}]"))
                .remedy("name tools of the agent's file, or start a run of another agent"))
        }
    }
}

impl RunPatch {
    fn command(&self, state: &RunState, by: &str) -> Result<Command, Problem> {
        let Self { objective, acceptance, tools, budget, reason } = self;
        if objective.is_none() && acceptance.is_none() && tools.is_none() && budget.is_none() {
            return Err(Problem::unprocessable("nothing_to_change", "the request changes nothing")
                .remedy("give `objective`, `acceptance`, `tools` or `budget`"));
        }
        if objective.as_ref().is_some_and(|text| text.trim().is_empty()) {
            return Err(missing_text("objective"));
        }
        let limits = budget.as_ref().map(|patch| patch.apply(&state.limits));
        if let Some(limits) = &limits {
            valid_limits(limits, "budget")?;
        }
        let block = |text: &String| Block::new(text, Trust::Operator, format!("operator:{by}"));
        Ok(Command::Revise(Box::new(ReviseRun {
            objective: objective.as_ref().map(block),
            acceptance: acceptance.clone(),
            tools: tools.clone(),
            limits,
            by: by.to_owned(),
            reason: reason.clone(),
        })))
    }
}
