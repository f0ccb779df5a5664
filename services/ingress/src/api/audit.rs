//! `/v1/audit`: who did what, when, from where, on what evidence.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use engine::{AuditEntry, AuditFilter, AuditRow, AuditTrail};
use kernel::{TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::runs::page_size;
use crate::auth::Operator;
use crate::body::Params;
use crate::problem::Problem;

pub(crate) fn router(trail: AuditTrail) -> Router {
    Router::new().route("/audit", get(list)).route("/audit/events", get(export)).with_state(trail)
}

/// Which entries to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParams {
    /// Only those of this person or program.
    actor: Option<String>,
    /// Only this act, such as `approvals.decide`.
    action: Option<String>,
    /// Not older than this.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Older than this.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// Something that somebody did, or was refused.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditView {
    /// Which entry.
    id: Uuid,
    /// When.
    at: Timestamp,
    /// Who: the name of the token, or of the person (their issuer, `#`, and what it calls them).
    actor: String,
    /// What the token allowed.
    roles: Vec<String>,
    /// Which token, if it is not one of the token file.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_id: Option<Uuid>,
    /// What, such as `approvals.decide`.
    action: String,
    /// To what: the path of the call.
    resource: String,
    /// `done`, or the code of the problem that refused it.
    outcome: String,
    /// The address that the connection came from; none for what the runtime does in somebody's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// What proxies say of where it came from before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded: Option<String>,
    /// What the program calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    /// What it was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    evidence: Option<Value>,
}

/// Entries, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The entries.
    items: Vec<AuditView>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// An entry as a CloudEvent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditEvent {
    /// `1.0`.
    specversion: &'static str,
    /// Which entry.
    id: Uuid,
    /// `/escapement/<tenant>/audit`.
    source: String,
    /// `escapement.audit.` and the act.
    #[serde(rename = "type")]
    kind: String,
    /// To what.
    subject: String,
    /// When.
    time: Timestamp,
    /// `application/json`.
    datacontenttype: &'static str,
    /// Where it stands in the trail: later entries have larger ones.
    sequence: String,
    /// The entry.
    data: AuditView,
}

/// Entries as CloudEvents, in the order in which they were made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditEvents {
    /// The events.
    items: Vec<AuditEvent>,
    /// Where to go on: with it, also later, come those that were made since.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Show the audit trail
#[utoipa::path(
    get, path = "/v1/audit", tag = "access", params(AuditParams),
    responses((status = 200, description = "What was done and refused, newest first", body = AuditPage)),
)]
pub(crate) async fn list(
    Operator(principal): Operator,
    State(trail): State<AuditTrail>,
    Params(params): Params<AuditParams>,
) -> Result<Json<AuditPage>, Problem> {
    let (filter, place, limit) = params.read()?;
    let rows = trail.latest(&principal.tenant, &filter, place, limit).await?;
    let next = rows.last().filter(|_| rows.len() == limit as usize).map(|row| row.position.to_string());
    Ok(Json(AuditPage { items: rows.into_iter().map(|row| row.entry.into()).collect(), next }))
}

/// Export the audit trail
#[utoipa::path(
    get, path = "/v1/audit/events", tag = "access", params(AuditParams),
    responses((status = 200, description = "The same as CloudEvents, oldest first", body = AuditEvents)),
)]
pub(crate) async fn export(
    Operator(principal): Operator,
    State(trail): State<AuditTrail>,
    Params(params): Params<AuditParams>,
) -> Result<Json<AuditEvents>, Problem> {
    let (filter, place, limit) = params.read()?;
    let rows = trail.from(&principal.tenant, &filter, place, limit).await?;
    let next = rows.last().map(|row| row.position.to_string()).or(params.cursor);
    Ok(Json(AuditEvents { items: rows.into_iter().map(|row| event(&principal.tenant, row)).collect(), next }))
}

impl AuditParams {
    fn read(&self) -> Result<(AuditFilter, Option<i64>, u32), Problem> {
        let place = self.cursor.as_deref().map(str::parse::<i64>).transpose();
        let place = place.map_err(|_| {
            Problem::bad_request("invalid_cursor", "this is not a cursor of the audit trail")
                .field("cursor")
                .remedy("pass on `next` of the page before, or leave it out to begin anew")
        })?;
        let plain = |word: &Option<String>| word.clone().map(|word| word.replace('\0', ""));
        let (actor, action) = (plain(&self.actor), plain(&self.action));
        let filter = AuditFilter { actor, action, since: self.since, until: self.until };
        Ok((filter, place, page_size(self.limit)?))
    }
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        Self {
            id: entry.id,
            at: entry.at,
            actor: entry.actor,
            roles: entry.roles,
            token_id: entry.token_id,
            action: entry.action,
            resource: entry.resource,
            outcome: entry.outcome,
            address: entry.address,
            forwarded: entry.forwarded,
            user_agent: entry.user_agent,
            evidence: entry.evidence,
        }
    }
}

fn event(tenant: &TenantId, AuditRow { position, entry }: AuditRow) -> AuditEvent {
    AuditEvent {
        specversion: "1.0",
        id: entry.id,
        source: format!("/escapement/{tenant}/audit"),
        kind: format!("escapement.audit.{}", entry.action),
        subject: entry.resource.clone(),
        time: entry.at,
        datacontenttype: "application/json",
        // Of one width, so that they can be compared as text, as the extension wants.
        sequence: format!("{position:020}"),
        data: entry.into(),
    }
}
