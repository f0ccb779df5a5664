//! `GET /v1/conversations/{id}`: runs that share history with one user.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use engine::{Reads, RunFilter};
use kernel::ConversationId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::{RunSummary, listed, page_size};
use crate::auth::Viewer;
use crate::body::{Params, Segments, id};
use crate::problem::Problem;
use crate::snapshot::Snapshots;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ConversationsApi {
    pub reads: Reads,
    pub snapshots: Snapshots,
}

pub(crate) fn router(api: ConversationsApi) -> Router {
    Router::new().route("/conversations/{conversation_id}", get(show)).with_state(api)
}

/// How much of it to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ConversationParams {
    /// Most runs in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// A conversation: its runs, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConversationView {
    /// Which conversation.
    #[schema(value_type = uuid::Uuid)]
    conversation_id: ConversationId,
    /// Its runs.
    items: Vec<RunSummary>,
    /// What to send as `cursor` for the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Look at a conversation
#[utoipa::path(
    get, path = "/v1/conversations/{conversation_id}", tag = "runs",
    params(("conversation_id" = uuid::Uuid, Path, description = "Which conversation"), ConversationParams),
    responses((status = 200, description = "Its runs, newest first", body = ConversationView)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<ConversationsApi>,
    Segments(conversation): Segments<String>,
    Params(params): Params<ConversationParams>,
) -> Result<Json<ConversationView>, Problem> {
    let conversation_id: ConversationId = id(&conversation, "unknown_conversation")?;
    let is_first = params.cursor.is_none();
    let filter = RunFilter {
        conversation: Some(conversation_id),
        limit: page_size(params.limit)?,
        cursor: params.cursor,
        ..RunFilter::default()
    };
    let (items, next) = listed(&api.reads, &api.snapshots, &principal.tenant, &filter).await?;
    if items.is_empty() && is_first {
        return Err(Problem::not_found("unknown_conversation", format!("there is no conversation `{conversation}`"))
            .remedy("a conversation begins with the first run that names it as `conversation_id`"));
    }
    Ok(Json(ConversationView { conversation_id, items, next }))
}
