//! `/v1/waits`: the board of everything suspended, and on what.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use engine::{Reads, WaitRow};
use kernel::wait::WakeKind;
use kernel::{RunId, Timestamp, WaitId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::{page_size, wake_kind};
use super::schema;
use crate::auth::Viewer;
use crate::body::Params;
use crate::problem::Problem;

pub(crate) fn router(reads: Reads) -> Router {
    Router::new().route("/waits", get(list)).with_state(reads)
}

/// Which waits to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Only this kind of wake: `timer`, `task_result`, `external` or `operator_input`.
    kind: Option<String>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// What runs wait for, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitPage {
    /// The waits, one row a condition.
    items: Vec<WaitView>,
    /// What to send as `cursor` for the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// One thing that a run waits for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitView {
    /// Which run.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// Name of its agent.
    agent: String,
    /// What kind of wake it would be.
    #[schema(value_type = schema::WakeKind)]
    kind: WakeKind,
    /// Why the run pauses; nothing where it only awaits its open calls or questions.
    why: Option<String>,
    /// Since when.
    since: Timestamp,
    /// When the timer is due.
    due: Option<Timestamp>,
    /// When the wait gives up.
    deadline: Option<Timestamp>,
    /// The registered wait.
    #[schema(value_type = Option<uuid::Uuid>)]
    wait_id: Option<WaitId>,
    /// Which condition of it, from 0.
    leaf: Option<u32>,
    /// `<source>:<subject>` of the outside event.
    resource_key: Option<String>,
    /// Type of the outside event; a `*` at the end stands for any rest.
    event_type: Option<String>,
    /// CEL that the outside event must meet.
    #[serde(rename = "where")]
    filter: Option<String>,
    /// Whether only one waiting run may have the event.
    exclusive: bool,
}

/// List waits
#[utoipa::path(
    get, path = "/v1/waits", tag = "runs", params(WaitParams),
    responses((status = 200, description = "A page of what runs wait for, newest first", body = WaitPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(reads): State<Reads>,
    Params(params): Params<WaitParams>,
) -> Result<Json<WaitPage>, Problem> {
    let kind = params.kind.as_deref().map(wake_kind).transpose()?;
    let page = reads.waits(&principal.tenant, kind, page_size(params.limit)?, params.cursor.as_deref()).await?;
    Ok(Json(WaitPage { items: page.items.into_iter().map(WaitView::from).collect(), next: page.next }))
}

impl From<WaitRow> for WaitView {
    fn from(row: WaitRow) -> Self {
        Self {
            run_id: row.run_id,
            agent: row.agent,
            kind: row.kind,
            why: row.why,
            since: row.since,
            due: row.due,
            deadline: row.deadline,
            wait_id: row.wait_id,
            leaf: row.leaf,
            resource_key: row.resource_key,
            event_type: row.event_type,
            filter: row.filter,
            exclusive: row.exclusive,
        }
    }
}
