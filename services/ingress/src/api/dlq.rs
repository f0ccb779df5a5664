//! `GET /v1/dlq` and `POST /v1/dlq:redrive`: what could not be handled, with the reason.

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use bus::{Bus, BusError, DeadLetter, DlqFilter};
use kernel::{TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

use super::runs::page_size;
use crate::audit::Noted;
use crate::auth::{Admin, Principal};
use crate::body::{JsonBody, Params, object};
use crate::problem::Problem;

/// Letters that are read at once.
const PAGE: usize = 256;
/// Most letters of one redrive.
const MOST: u64 = 10_000;
/// Named letters that the audit trail lists one by one: of more, it has the first and how many there were.
const LISTED: usize = 100;
/// Most bytes of a letter's body that are shown.
const BODY_BYTES: usize = 16 * 1024;

pub(crate) fn router(bus: Bus) -> Router {
    Router::new().route("/dlq", get(list)).route("/dlq:redrive", post(redrive)).with_state(bus)
}

/// Which dead letters to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DlqParams {
    /// Only what this consumer gave up on.
    consumer: Option<String>,
    /// Only messages whose subject falls under this pattern, as in `in.acme.>`.
    subject: Option<String>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<u64>,
}

/// Dead letters, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DlqResponse {
    /// The letters.
    items: Vec<DeadLetterView>,
    /// What to send as `cursor` for the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// A message that a consumer gave up on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetterView {
    /// Its number among the dead letters.
    seq: u64,
    /// The consumer that gave up.
    consumer: String,
    /// The subject that the message came on.
    subject: String,
    /// Why.
    reason: String,
    /// How often it had been delivered.
    attempts: u64,
    /// When the consumer gave up.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    /// Its headers.
    #[schema(value_type = Object)]
    headers: Map<String, Value>,
    /// Its body as text, shortened if it is long.
    body: String,
    /// The size in bytes of a body that was too large to be kept; such a letter can't be redriven.
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted_bytes: Option<u64>,
}

/// Which dead letters to publish again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedriveRequest {
    /// Which: all conditions must hold. `{}` is all of them.
    #[serde(deserialize_with = "object")]
    filter: RedriveFilter,
    /// Whether nothing is to be published: the answer then says which would be.
    #[serde(default)]
    dry_run: bool,
    /// Most letters, oldest first.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 10000, default = 10000)]
    limit: Option<u64>,
}

/// Conditions on dead letters.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedriveFilter {
    /// Only these numbers.
    seqs: Option<Vec<u64>>,
    /// Only what this consumer gave up on.
    consumer: Option<String>,
    /// Only messages whose subject falls under this pattern.
    subject: Option<String>,
}

/// What came of a redrive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedriveResponse {
    /// Whether nothing was published.
    dry_run: bool,
    /// The letters that are meant.
    seqs: Vec<u64>,
    /// Published again, and removed from the dead letters.
    redriven: u64,
    /// Not kept whole, or refused; still among the dead letters.
    failed: u64,
}

/// List dead letters
///
/// Those of the caller's tenant; for an admin of the tenant `default`, all of them.
#[utoipa::path(
    get, path = "/v1/dlq", tag = "control", params(DlqParams),
    responses((status = 200, description = "Dead letters, oldest first", body = DlqResponse)),
)]
pub(crate) async fn list(
    Admin(principal): Admin,
    State(bus): State<Bus>,
    Params(params): Params<DlqParams>,
) -> Result<Json<DlqResponse>, Problem> {
    let most = usize::try_from(page_size(params.limit)?).unwrap_or(usize::MAX);
    if params.cursor.is_some_and(is_no_number) {
        let problem = Problem::bad_request("invalid_cursor", "the cursor is none").field("cursor");
        return Err(problem.remedy("send `next` of the page before"));
    }
    let filter = DlqFilter { consumer: params.consumer, subject: params.subject, ..DlqFilter::default() };
    let (items, next) = found(&bus, &principal, &filter, most, params.cursor, DeadLetterView::from).await?;
    Ok(Json(DlqResponse { items, next }))
}

/// Publish dead letters again
#[utoipa::path(
    post, path = "/v1/dlq:redrive", tag = "control", request_body = RedriveRequest,
    responses((status = 200, description = "What came of it", body = RedriveResponse)),
)]
pub(crate) async fn redrive(
    Admin(principal): Admin,
    State(bus): State<Bus>,
    Extension(noted): Extension<Noted>,
    JsonBody(request): JsonBody<RedriveRequest>,
) -> Result<Json<RedriveResponse>, Problem> {
    let RedriveRequest { filter: RedriveFilter { seqs, consumer, subject }, dry_run, limit } = request;
    if seqs.iter().flatten().copied().any(is_no_number) {
        let problem = Problem::unprocessable("invalid_field", "there are no such numbers of dead letters");
        return Err(problem.field("filter.seqs").remedy("`GET /v1/dlq` lists them"));
    }
    let limit = limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        return Err(Problem::unprocessable("invalid_field", format!("a limit of {limit} is out of bounds"))
            .field("limit")
            .remedy(format!("ask for 1 to {MOST}, and again while there are some")));
    }
    let listed = seqs.as_deref().map(|seqs| &seqs[..seqs.len().min(LISTED)]);
    let in_all = seqs.as_ref().map(Vec::len);
    noted.note("filter", json!({ "consumer": consumer, "subject": subject, "seqs": listed, "seqs_in_all": in_all }));
    noted.note("dry_run", dry_run);
    noted.note("limit", limit);
    let filter = DlqFilter { consumer, subject, seqs, limit: None };
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let (seqs, _) = found(&bus, &principal, &filter, most, None, |letter| letter.seq).await?;
    noted.note("found", seqs.len());
    let mut response = RedriveResponse { dry_run, seqs, redriven: 0, failed: 0 };
    if !dry_run && !response.seqs.is_empty() {
        let meant = DlqFilter { seqs: Some(response.seqs.clone()), ..DlqFilter::default() };
        let done = bus.dlq_redrive(&meant).await.map_err(|error| unreadable(&error))?;
        tracing::info!(
            by = principal.name,
            redriven = done.redriven,
            failed = done.failed,
            "dead letters were redriven"
        );
        (response.redriven, response.failed) = (done.redriven, done.failed);
    }
    noted.note("redriven", response.redriven);
    noted.note("failed", response.failed);
    Ok(Json(response))
}

/// Larger than the description of the API knows numbers.
fn is_no_number(seq: u64) -> bool {
    i64::try_from(seq).is_err()
}

/// Letters of the caller from a cursor on, and where the next page begins. Of each only what is wanted is kept: whole, thousands
/// of them may be larger than memory.
async fn found<T>(
    bus: &Bus,
    principal: &Principal,
    filter: &DlqFilter,
    most: usize,
    mut cursor: Option<u64>,
    wanted: impl Fn(DeadLetter) -> T,
) -> Result<(Vec<T>, Option<u64>), Problem> {
    let mut found = Vec::new();
    loop {
        let page = bus.dlq_list(PAGE, cursor).await.map_err(|error| unreadable(&error))?;
        for letter in page.letters {
            if found.len() == most {
                return Ok((found, Some(letter.seq)));
            }
            if is_of(&letter, &principal.tenant) && filter.takes(&letter) {
                found.push(wanted(letter));
            }
        }
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok((found, None));
        }
    }
}

/// Whether a tenant may see a letter: one about it, or any for who runs the whole house.
fn is_of(letter: &DeadLetter, tenant: &TenantId) -> bool {
    *tenant == TenantId::default()
        || bus::Subject::parse(&letter.subject).ok().and_then(tenant_of).as_deref() == Some(tenant.as_str())
}

fn tenant_of(subject: bus::Subject) -> Option<String> {
    match subject {
        bus::Subject::Inbound { tenant, .. } | bus::Subject::Log { tenant, .. } => Some(tenant),
        bus::Subject::Signal { tenant, .. } | bus::Subject::Event { tenant, .. } => Some(tenant),
        _ => None,
    }
}

fn unreadable(error: &BusError) -> Problem {
    tracing::warn!(error = error as &dyn std::error::Error, "the dead letters can't be had");
    Problem::unavailable("bus_unavailable", "the dead letters can't be reached at the moment")
}

impl From<DeadLetter> for DeadLetterView {
    fn from(letter: DeadLetter) -> Self {
        let headers = letter.headers.iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        Self {
            seq: letter.seq,
            consumer: letter.consumer,
            subject: letter.subject,
            reason: letter.reason,
            attempts: letter.attempts,
            at: letter.at,
            headers,
            body: kernel::excerpt(&String::from_utf8_lossy(&letter.payload), BODY_BYTES),
            omitted_bytes: letter.omitted,
        }
    }
}
