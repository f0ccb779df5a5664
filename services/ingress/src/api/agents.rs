//! `/v1/agents`: agent definitions, versioned by content.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use engine::{AgentError, AgentFileError, AgentHead, AgentPast, AgentVersion, Agents};
use kernel::agent::AgentSpec;
use kernel::{TenantId, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::schema;
use crate::auth::{Admin, Viewer};
use crate::body::{RawBody, Segments, unless_known};
use crate::problem::Problem;

pub(crate) fn router(agents: Agents) -> Router {
    Router::new()
        .route("/agents", get(list))
        .route("/agents/{name}", get(show).put(put))
        .route("/agents/{name}/versions", get(versions))
        .with_state(agents)
}

/// All agents of the tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentPage {
    /// By name.
    items: Vec<AgentView>,
}

/// An agent, in the version that new runs start with.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentView {
    /// Its name.
    name: String,
    /// Digest of its definition: what a run keeps.
    digest: String,
    /// The definition.
    #[schema(value_type = schema::AgentSpec)]
    spec: AgentSpec,
    /// When this version became the one that new runs start with.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_at: Option<Timestamp>,
    /// Who did that.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_by: Option<String>,
}

/// The versions of an agent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionPage {
    /// The latest first, 200 at most.
    items: Vec<VersionView>,
}

/// A version of an agent: what runs keep that started with it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionView {
    /// Digest of its definition: `agent_digest` of a run.
    digest: String,
    /// When it was first put in.
    created_at: Timestamp,
    /// Whether new runs start with it.
    head: bool,
    /// The definition.
    #[schema(value_type = schema::AgentSpec)]
    spec: AgentSpec,
}

/// List agents
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents",
    responses((status = 200, description = "The agents, by name", body = AgentPage)),
)]
pub(crate) async fn list(Viewer(principal): Viewer, State(agents): State<Agents>) -> Result<Json<AgentPage>, Problem> {
    let agents = agents.list(&principal.tenant).await?;
    Ok(Json(AgentPage { items: agents.into_iter().map(AgentView::from).collect() }))
}

/// Look at an agent
#[utoipa::path(
    get, path = "/v1/agents/{name}", tag = "agents",
    params(
        ("name" = String, Path, description = "Which agent"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an earlier answer"),
    ),
    responses(
        (status = 200, description = "The agent", body = AgentView),
        (status = 304, description = "It is the same version as then"),
    ),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(agents): State<Agents>,
    Segments(name): Segments<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let agent = head(&agents, &principal.tenant, &name).await?.ok_or_else(|| unknown_agent(&name))?;
    // The same version may have been put in anew, by somebody else.
    let since = agent.changed_at.map(Timestamp::as_microsecond).unwrap_or_default();
    let tag = format!("\"{}-{since}\"", agent.digest);
    Ok(unless_known(&headers, &tag, Json(agent)))
}

/// List the versions of an agent
#[utoipa::path(
    get, path = "/v1/agents/{name}/versions", tag = "agents",
    params(("name" = String, Path, description = "Which agent")),
    responses((status = 200, description = "Its versions, the latest first", body = VersionPage)),
)]
pub(crate) async fn versions(
    Viewer(principal): Viewer,
    State(agents): State<Agents>,
    Segments(name): Segments<String>,
) -> Result<Json<VersionPage>, Problem> {
    let versions = agents.versions(&principal.tenant, &name).await?;
    if versions.is_empty() {
        return Err(unknown_agent(&name));
    }
    Ok(Json(VersionPage { items: versions.into_iter().map(VersionView::from).collect() }))
}

/// Put an agent in
///
/// Runs that are under way keep the version that they started with. The same definition again changes nothing.
#[utoipa::path(
    put, path = "/v1/agents/{name}", tag = "agents",
    params(("name" = String, Path, description = "Which agent: the name in the file")),
    request_body(content = String, content_type = "application/yaml", description = "The agent file"),
    responses((status = 200, description = "New runs start with this version", body = AgentView)),
)]
pub(crate) async fn put(
    Admin(principal): Admin,
    State(agents): State<Agents>,
    Segments(name): Segments<String>,
    RawBody(body): RawBody,
) -> Result<Json<AgentView>, Problem> {
    let yaml = std::str::from_utf8(&body).map_err(|error| {
        Problem::bad_request("not_utf8", format!("the file is not UTF-8 from byte {} on", error.valid_up_to()))
            .remedy("save it as UTF-8")
    })?;
    let spec = engine::parse(yaml).map_err(|error| invalid_file(&error))?;
    if spec.name != name {
        let detail = format!("the file is about `{}`, the path about `{name}`", spec.name);
        let problem = Problem::unprocessable("name_mismatch", detail);
        return Err(problem.field("name").remedy("use the same name in both"));
    }
    let stored = agents.put(&principal.tenant, yaml, &principal.name).await.map_err(|error| match error {
        AgentError::File(error) => invalid_file(&error),
        AgentError::Engine(error) => error.into(),
    });
    let version = stored?;
    Ok(Json(head(&agents, &principal.tenant, &version.name).await?.unwrap_or_else(|| AgentView::from(&version))))
}

/// The agent as it stands now.
async fn head(agents: &Agents, tenant: &TenantId, name: &str) -> Result<Option<AgentView>, Problem> {
    let heads = agents.list(tenant).await?;
    Ok(heads.into_iter().find(|head| head.version.name == name).map(AgentView::from))
}

fn unknown_agent(name: &str) -> Problem {
    Problem::not_found("unknown_agent", format!("there is no agent `{name}`"))
        .remedy("`GET /v1/agents` lists the agents, `PUT /v1/agents/{name}` makes one")
}

fn invalid_file(error: &AgentFileError) -> Problem {
    let problem = Problem::unprocessable("invalid_agent", error).remedy("mend the file at that place");
    match (error.line, error.column) {
        (Some(line), Some(column)) => problem.with("line", line).with("column", column),
        _ => problem,
    }
}

impl From<AgentPast> for VersionView {
    fn from(past: AgentPast) -> Self {
        let AgentPast { version: AgentVersion { digest, spec, .. }, created_at, is_head } = past;
        Self { digest, created_at, head: is_head, spec }
    }
}

impl From<AgentHead> for AgentView {
    fn from(head: AgentHead) -> Self {
        Self { changed_at: Some(head.changed_at), changed_by: Some(head.changed_by), ..Self::from(&*head.version) }
    }
}

impl From<&AgentVersion> for AgentView {
    fn from(version: &AgentVersion) -> Self {
        let AgentVersion { name, digest, spec } = version.clone();
        Self { name, digest, spec, changed_at: None, changed_by: None }
    }
}
