//! `/v1/approvals`: what people are asked, and their answers.
//!
//! Deciding is the approval service's alone: this door only says who asks for it.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use bus::{Bus, BusError, subject};
use engine::{ApiTokens, ApprovalRow, Claim, IdempotencyKeys, Reads};
use kernel::call::{ArgumentOrigin, Endorsement, Verdict};
use kernel::{ApprovalId, Block, CallId, RunId, StandingId, TenantId, Timestamp, Trust};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};
use utoipa::{IntoParams, ToSchema};

use super::runs::{digest_of, idempotency_key, key_reused, known_word, page_size, release_refused};
use super::schema;
use crate::audit::Evidence;
use crate::auth::{Operator, Principal, Role, Viewer};
use crate::body::{JsonBody, Params, Segments, id};
use crate::problem::Problem;

/// How long a decision may take to be committed.
const DECIDE_WITHIN: Duration = Duration::from_secs(10);
/// What to make of it if somebody else has decided.
const FIRST_COUNTS: &str = "the first decision counts, unless it is the first yes of two people: one no ends that";

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct ApprovalsApi {
    pub reads: Reads,
    pub bus: Bus,
    pub idempotency: IdempotencyKeys,
    pub tokens: ApiTokens,
}

pub(crate) fn router(api: ApprovalsApi) -> Router {
    Router::new()
        .route("/approvals", get(list))
        .route("/approvals/{approval_id}", get(show).post(decide))
        .with_state(api)
}

/// Which approvals to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ApprovalParams {
    /// Only those in this state: `open`, `granted`, `denied` or `expired`.
    state: Option<String>,
    /// Most of them in one answer, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// Approvals, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalPage {
    /// The approvals.
    items: Vec<ApprovalView>,
    /// What to send as `cursor` for the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A question to a person, and the answer if there is one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalView {
    /// Which question.
    #[schema(value_type = uuid::Uuid)]
    approval_id: ApprovalId,
    /// `call` if it lets a tool call pass, `question` if the agent asks something.
    kind: &'static str,
    /// The run that asks.
    #[schema(value_type = uuid::Uuid)]
    run_id: RunId,
    /// The call that it lets pass.
    #[schema(value_type = Option<uuid::Uuid>)]
    call_id: Option<CallId>,
    /// Which tool, for a call.
    tool: Option<String>,
    /// What is asked.
    question: String,
    /// The arguments of the call, as they would be used.
    #[schema(value_type = Option<Object>)]
    arguments: Option<Box<RawValue>>,
    /// The lowest trust behind the arguments: `untrusted` if they may have been chosen by somebody outside.
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// The policies that ask, with their words.
    reasons: Vec<String>,
    /// Where the arguments come from: what decides and can be believed least comes first.
    #[schema(value_type = Vec<schema::ArgumentOrigin>)]
    origins: Vec<ArgumentOrigin>,
    /// What the model said when it asked for the call: its reason, in its own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Block>)]
    said: Option<Block>,
    /// What the model had before it, the latest last.
    #[schema(value_type = Vec<schema::Block>)]
    evidence: Vec<Block>,
    /// What happens if nobody answers in time: `deny`, and the agent is told that nobody answered.
    on_no_answer: &'static str,
    /// Whether a yes may be given to all calls of this shape at once.
    may_be_standing: bool,
    /// The standing approval that decided, in place of a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    standing_id: Option<StandingId>,
    /// How many different people have to say yes: 1, or 2. One no is enough.
    people_needed: u8,
    /// How many of them are still missing; 0 once it is decided.
    people_missing: u8,
    /// Who has said yes while another person had to, too.
    endorsements: Vec<EndorsementView>,
    /// `open`, `granted`, `denied` or `expired`.
    state: String,
    /// When it was asked.
    requested_at: Timestamp,
    /// When no answer becomes a no.
    expires_at: Timestamp,
    /// When it was decided.
    decided_at: Option<Timestamp>,
    /// Who decided.
    decided_by: Option<String>,
    /// What they wrote.
    reason: Option<String>,
}

/// The first yes to a question that takes two people.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndorsementView {
    /// Who.
    by: String,
    /// When.
    at: Timestamp,
    /// Of the arguments that they have agreed to. Whoever agrees to the same sends it as `as_endorsed`.
    digest: String,
    /// These arguments, if they have changed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    arguments: Option<Value>,
    /// What they wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<Endorsement> for EndorsementView {
    fn from(first: Endorsement) -> Self {
        let Endorsement { by, at, arguments, binding, reason, .. } = first;
        Self { by, at, digest: binding.arguments, arguments, reason }
    }
}

/// A decision.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionRequest {
    /// `approve` or `deny`.
    decision: Decision,
    /// The arguments as they should be instead; only with `approve`.
    #[serde(default)]
    arguments: Option<Value>,
    /// `digest` of the endorsement to agree to, whatever its arguments; only with `approve`, and without `arguments`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    as_endorsed: Option<String>,
    /// In words. The agent sees it.
    #[serde(default)]
    reason: Option<String>,
    /// Whether all calls of this shape are allowed from now on: of this agent as it is, of this tool as it is, to the same
    /// places. Only with `approve`, and not for what destroys, pays or moves things.
    #[serde(default)]
    always: bool,
}

impl DecisionRequest {
    /// Whether what is asked for goes together.
    fn check(&self) -> Result<(), Problem> {
        let (is_no, wrong) = (self.decision == Decision::Deny, Problem::unprocessable);
        if self.always && (is_no || self.arguments.is_some() || self.as_endorsed.is_some()) {
            return Err(wrong("invalid_field", "`always` goes with a yes to the arguments as shown")
                .field("always")
                .remedy("leave `always` out, or approve without `arguments` and `as_endorsed`"));
        }
        if self.arguments.is_some() && is_no {
            return Err(wrong("invalid_field", "a denied call has no arguments")
                .field("arguments")
                .remedy("leave `arguments` out, or approve"));
        }
        if self.as_endorsed.is_some() && (is_no || self.arguments.is_some()) {
            return Err(wrong("invalid_field", "`as_endorsed` goes with a yes, and in place of `arguments`")
                .field("as_endorsed")
                .remedy("leave `as_endorsed` out, or approve without `arguments`"));
        }
        Ok(())
    }
}

/// What may be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    /// Yes.
    Approve,
    /// No.
    Deny,
}

impl Decision {
    /// The state of an approval that was decided so.
    const fn state(self) -> &'static str {
        match self {
            Self::Approve => "granted",
            Self::Deny => "denied",
        }
    }
}

impl From<Decision> for Verdict {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Approve => Self::Approve,
            Decision::Deny => Self::Deny,
        }
    }
}

/// What the approval service is asked.
#[derive(Debug, Serialize)]
struct DecideQuestion<'a> {
    tenant: &'a TenantId,
    approval_id: ApprovalId,
    decision: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_endorsed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    by: &'a str,
    /// Names that may be the same person's, where two have to agree. Always said: none means that there are none.
    aliases: Vec<String>,
    roles: &'a [Role],
    /// The same for every repetition of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    always: bool,
}

/// List approvals
#[utoipa::path(
    get, path = "/v1/approvals", tag = "approvals", params(ApprovalParams),
    responses((status = 200, description = "A page of approvals, newest first", body = ApprovalPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<ApprovalsApi>,
    Params(params): Params<ApprovalParams>,
) -> Result<Json<ApprovalPage>, Problem> {
    let states = ["open", "granted", "denied", "expired"];
    let state = params.state.as_deref().map(|word| known_word(word, "state", states.into_iter().map(|s| (s, s))));
    let (limit, cursor) = (page_size(params.limit)?, params.cursor.as_deref());
    let page = api.reads.approval_page(&principal.tenant, state.transpose()?, limit, cursor).await?;
    Ok(Json(ApprovalPage { items: page.items.into_iter().map(ApprovalView::from).collect(), next: page.next }))
}

/// Look at an approval
#[utoipa::path(
    get, path = "/v1/approvals/{approval_id}", tag = "approvals",
    params(("approval_id" = uuid::Uuid, Path, description = "Which approval")),
    responses((status = 200, description = "The question, and the answer if there is one", body = ApprovalView)),
)]
pub(crate) async fn show(
    Viewer(principal): Viewer,
    State(api): State<ApprovalsApi>,
    Segments(approval): Segments<String>,
) -> Result<Json<ApprovalView>, Problem> {
    let approval_id = id(&approval, "unknown_approval")?;
    api.find(&principal.tenant, approval_id).await.map(|row| Json(row.into()))
}

/// Decide an approval
///
/// The first decision counts; a later one is answered with 409 and what was decided. Where two people have to agree, the first
/// yes is answered with 202 and leaves the question open: another person has to approve the same arguments. One no decides.
#[utoipa::path(
    post, path = "/v1/approvals/{approval_id}", tag = "approvals", request_body = DecisionRequest,
    params(
        ("approval_id" = uuid::Uuid, Path, description = "Which approval"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses(
        (status = 200, description = "The decision is in the log", body = ApprovalView),
        (status = 202, description = "The yes is in the log, and one more person is needed", body = ApprovalView),
        (status = 409, description = "It was decided before, or has expired; or (`already_endorsed`) it takes somebody else's yes, \
          or (`endorsed_otherwise`) another has agreed to other arguments, or (`not_endorsed`) nobody to any. `approval` says how it stands",
         body = crate::problem::ProblemDetails, content_type = "application/problem+json"),
    ),
)]
pub(crate) async fn decide(
    Operator(principal): Operator,
    State(api): State<ApprovalsApi>,
    Segments(approval): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<DecisionRequest>,
) -> Result<(StatusCode, Extension<Evidence>, Json<ApprovalView>), Problem> {
    let approval_id = id(&approval, "unknown_approval")?;
    request.check()?;
    // Also keeps what other tenants ask unknown here.
    let row = api.find(&principal.tenant, approval_id).await?;
    if request.always && row.two_people {
        let why = "two people have to agree to each such call: nobody can allow all of them at once";
        return Err(Problem::unprocessable("invalid_field", why)
            .field("always")
            .remedy("leave `always` out")
            .with("approval", view(row)?));
    }
    // Whether it takes two the log says, and not the row: every service may write that.
    let is_yes = request.decision == Decision::Approve;
    let aliases = if is_yes { api.aliases(&principal).await? } else { Vec::new() };
    let key = idempotency_key(&headers)?;
    let claimed = match key {
        Some(key) => Some(api.claim(&principal, row, key, digest_of(&request)?).await?),
        None => None,
    };
    let (decision, always) = (request.decision, request.always);
    let edited = request.arguments.is_some();
    let decided = match api.ask(&principal, aliases, approval_id, request, key).await {
        Ok(decided) => decided,
        Err(problem) => {
            if let Some(claimed) = &claimed {
                release_refused(&api.idempotency, &principal, claimed, &problem).await;
            }
            return Err(problem);
        }
    };
    let is_first_of_two = decided["state"] == "endorsed";
    let row = api.find(&principal.tenant, approval_id).await?;
    if is_yes && !matches!(row.state.as_str(), "open" | "granted") && (is_first_of_two || decided["state"] == row.state)
    {
        let detail = format!("the yes was taken, and right after it approval {approval_id} was {}", row.state);
        return Err(Problem::conflict("already_decided", detail).remedy(FIRST_COUNTS).with("approval", view(row)?));
    }
    // Whoever repeats a request is told what came of it; another answer under its key was not taken.
    if row.state != decision.state() && !is_first_of_two {
        return Err(key_reused().with("approval", view(row)?));
    }
    let evidence = Evidence(json!({
        "decision": if is_yes { "approve" } else { "deny" }, "edited": edited, "always": always, "agreed": decided["digest"],
        "state": if is_first_of_two { "endorsed" } else { decision.state() },
        "people_needed": people_needed(&row), "endorsed_by": row.endorsed.as_ref().map(|first| &first.by),
        "run_id": row.run_id, "tool": row.tool, "trust": row.trust, "reasons": row.reasons, "binding": row.binding,
        "shape": row.shown.shape, "origins": row.shown.origins.len(), "evidence": row.shown.evidence.len(),
    }));
    let status = if row.state == "open" { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, Extension(evidence), Json(row.into())))
}

impl ApprovalsApi {
    /// Names that may be this person's, too: whoever made a token has had it in hand.
    async fn aliases(&self, principal: &Principal) -> Result<Vec<String>, Problem> {
        let Some(token_id) = principal.token_id else { return Ok(Vec::new()) };
        let makers = self.tokens.makers(&principal.tenant, token_id).await?;
        Ok(makers.into_iter().filter(|name| *name != principal.name).collect())
    }

    async fn find(&self, tenant: &TenantId, approval_id: ApprovalId) -> Result<ApprovalRow, Problem> {
        self.reads.approval(tenant, approval_id).await?.ok_or_else(|| {
            Problem::not_found("unknown_approval", format!("there is no approval `{approval_id}`"))
                .remedy("`GET /v1/approvals` lists them")
        })
    }

    /// Takes a key for one person's answer to one question, and gives what it was taken with; refused if it was used with
    /// another answer, be it only with other arguments.
    async fn claim(
        &self,
        by: &Principal,
        row: ApprovalRow,
        key: &str,
        digest: String,
    ) -> Result<(String, String), Problem> {
        let key = format!("{}/decide/{}/{key}", row.approval_id, by.name);
        match self.idempotency.claim(&by.tenant, &key, &digest, row.run_id).await? {
            Claim::Claimed | Claim::Replay(_) => Ok((key, digest)),
            Claim::Mismatch => Err(key_reused().with("approval", view(row)?)),
        }
    }

    async fn ask(
        &self,
        by: &Principal,
        aliases: Vec<String>,
        approval_id: ApprovalId,
        request: DecisionRequest,
        request_id: Option<&str>,
    ) -> Result<Value, Problem> {
        let question = DecideQuestion {
            tenant: &by.tenant,
            approval_id,
            decision: request.decision.into(),
            arguments: request.arguments,
            as_endorsed: request.as_endorsed,
            reason: request.reason,
            always: request.always,
            by: &by.name,
            aliases,
            roles: &by.roles,
            request_id,
        };
        match self.bus.request_json::<_, Value>(&subject::svc("approval", "decide"), &question, DECIDE_WITHIN).await {
            Ok(decided) => Ok(decided),
            Err(BusError::Refused { code, message, .. }) => {
                Err(self.refused(&by.tenant, approval_id, code, &message).await?)
            }
            Err(error @ (BusError::NoResponders { .. } | BusError::RequestTimedOut { .. })) => {
                tracing::warn!(%error, "the approval service does not answer");
                Err(Problem::unavailable("approval_unavailable", "the approval service does not answer at the moment"))
            }
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "can't ask the approval service");
                Err(Problem::unavailable("bus_unavailable", "the message bus can't be reached at the moment"))
            }
            Err(error) => Err(Problem::internal(&error)),
        }
    }

    /// What the approval service's refusal means here. Its words begin with a stable one.
    async fn refused(
        &self,
        tenant: &TenantId,
        approval: ApprovalId,
        code: u16,
        words: &str,
    ) -> Result<Problem, Problem> {
        let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let stable = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        let (word, detail) = match words.split_once(": ").filter(|(word, _)| stable(word)) {
            Some((word, detail)) => (Some(word.to_owned()), detail),
            None => (None, words),
        };
        let remedy = match word.as_deref() {
            Some("already_endorsed") => "let somebody else approve it, or deny it",
            Some("endorsed_otherwise") => {
                "send `approval.endorsements[0].digest` as `as_endorsed` to agree to what is there, or deny it"
            }
            Some("not_endorsed") => "leave `as_endorsed` out",
            _ => FIRST_COUNTS,
        };
        let coded = |otherwise: &'static str| word.map_or(Cow::Borrowed(otherwise), Cow::Owned);
        Ok(match status {
            StatusCode::CONFLICT | StatusCode::GONE => {
                let row = self.find(tenant, approval).await?;
                Problem::conflict(coded("already_decided"), detail).remedy(remedy).with("approval", view(row)?)
            }
            StatusCode::NOT_FOUND => Problem::not_found("unknown_approval", detail),
            StatusCode::FORBIDDEN => Problem::new(status, coded("insufficient_role"), detail),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_decision", detail)
                    .remedy("see the tool's schema for its arguments")
            }
            _ => {
                tracing::warn!(%status, words, "the approval service failed");
                Problem::unavailable("approval_unavailable", "the approval service could not do it at the moment")
            }
        })
    }
}

/// An approval as it stands, beside what went wrong.
fn view(row: ApprovalRow) -> Result<Value, Problem> {
    serde_json::to_value(ApprovalView::from(row)).map_err(|error| Problem::internal(&error))
}

/// How many different people have to say yes.
const fn people_needed(row: &ApprovalRow) -> u8 {
    if row.two_people { 2 } else { 1 }
}

impl From<ApprovalRow> for ApprovalView {
    fn from(row: ApprovalRow) -> Self {
        let people_needed = people_needed(&row);
        let missing = people_needed - u8::from(row.endorsed.is_some());
        Self {
            people_needed,
            people_missing: if row.state == "open" { missing } else { 0 },
            endorsements: row.endorsed.into_iter().map(EndorsementView::from).collect(),
            approval_id: row.approval_id,
            kind: if row.call_id.is_some() { "call" } else { "question" },
            run_id: row.run_id,
            call_id: row.call_id,
            tool: row.tool,
            question: row.question,
            arguments: row.arguments,
            trust: row.trust,
            reasons: row.reasons,
            may_be_standing: row.shown.shape.is_some(),
            origins: row.shown.origins,
            said: row.shown.said,
            evidence: row.shown.evidence,
            on_no_answer: "deny",
            standing_id: row.standing,
            state: row.state,
            requested_at: row.requested_at,
            expires_at: row.expires_at,
            decided_at: row.decided_at,
            decided_by: row.decided_by,
            reason: row.decision,
        }
    }
}
