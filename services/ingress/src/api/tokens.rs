//! `/v1/tokens`: who gets in, beside the token file.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{delete, get};
use axum::{Extension, Json, Router};
use bus::Bus;
use engine::{ApiTokens, NewToken, TokenRow};
use kernel::units::{Duration, later};
use kernel::{TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::audit::Evidence;
use crate::auth::{Admin, Principal, Revocations, Role, is_persons, secret};
use crate::body::{JsonBody, Params, Segments};
use crate::problem::Problem;

/// How long a token lives if nothing is said.
const USUAL: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long it may live.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Longest name, in bytes.
const NAME_BYTES: usize = 80;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct TokensApi {
    pub tokens: ApiTokens,
    pub revocations: Revocations,
    pub bus: Bus,
}

pub(crate) fn router(api: TokensApi) -> Router {
    Router::new().route("/tokens", get(list).post(create)).route("/tokens/{token_id}", delete(revoke)).with_state(api)
}

/// Which tokens to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TokenParams {
    /// Also those that were revoked or are over.
    #[serde(default)]
    all: bool,
    /// Those of another tenant; only for admins of `default`.
    tenant: Option<String>,
}

impl TokenParams {
    /// Whose tokens it is about.
    fn tenant(&self, principal: &Principal) -> Result<TenantId, Problem> {
        let wanted = self.tenant.as_deref().map(str::parse::<TenantId>).transpose();
        tenant_of(principal, wanted.map_err(|error| Problem::bad_request("invalid_query", error).field("tenant"))?)
    }
}

/// A token to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenRequest {
    /// Whose it is: kept with all that is done with it.
    name: String,
    /// What it allows: `viewer`, `user`, `operator`, `admin` (each with those before it) or `publisher`.
    #[schema(value_type = Vec<String>)]
    roles: Vec<Role>,
    /// When it ends by itself, such as `30d`; 90 days if nothing is said, 366 days at most.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    expires_in: Option<Duration>,
    /// Another tenant's; only for admins of `default`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    tenant: Option<TenantId>,
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenView {
    /// Which one.
    token_id: Uuid,
    /// All that it can see.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// Whose it is.
    name: String,
    /// What it allows.
    roles: Vec<String>,
    /// When it was made.
    created_at: Timestamp,
    /// By whom.
    created_by: String,
    /// When it ends by itself.
    expires_at: Timestamp,
    /// The hour in which it was last used.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_by: Option<String>,
}

/// A new token: the only time that its secret is shown.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenCreated {
    /// The secret. It is kept nowhere here.
    token: String,
    #[serde(flatten)]
    view: TokenView,
}

/// Tokens, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenList {
    /// The tokens.
    items: Vec<TokenView>,
}

impl From<TokenRow> for TokenView {
    fn from(row: TokenRow) -> Self {
        Self {
            token_id: row.token_id,
            tenant: row.tenant,
            name: row.name,
            roles: row.roles,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
            revoked_by: row.revoked_by,
        }
    }
}

/// List API tokens
#[utoipa::path(
    get, path = "/v1/tokens", tag = "access", params(TokenParams),
    responses((status = 200, description = "Tokens, newest first; those of the token file are not among them", body = TokenList)),
)]
pub(crate) async fn list(
    Admin(principal): Admin,
    State(api): State<TokensApi>,
    Params(params): Params<TokenParams>,
) -> Result<Json<TokenList>, Problem> {
    let items = api.tokens.list(&params.tenant(&principal)?, params.all).await?;
    Ok(Json(TokenList { items: items.into_iter().map(TokenView::from).collect() }))
}

/// Make an API token
#[utoipa::path(
    post, path = "/v1/tokens", tag = "access", request_body = TokenRequest,
    responses((status = 201, description = "The token, shown this once", body = TokenCreated)),
)]
pub(crate) async fn create(
    Admin(principal): Admin,
    State(api): State<TokensApi>,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Extension<Evidence>, Json<TokenCreated>), Problem> {
    let tenant = tenant_of(&principal, request.tenant.clone())?;
    let (name, expires_in) = checked(&request)?;
    let token = secret::mint();
    let new = NewToken {
        tenant,
        name,
        roles: request.roles.iter().map(|role| role.as_str().to_owned()).collect(),
        sha256: secret::hash(&token),
        expires_at: later(Timestamp::now(), expires_in),
        created_by: principal.name,
    };
    let row = api.tokens.create(&new).await?.ok_or_else(|| {
        Problem::conflict("name_taken", format!("there is a token `{}` already", new.name))
            .field("name")
            .remedy("choose another name, or revoke that one first (`GET /v1/tokens?all=true` shows it)")
    })?;
    tracing::info!(token_id = %row.token_id, name = row.name, tenant = %row.tenant, by = row.created_by, "an API token was made");
    let evidence = Evidence(json!({
        "token_id": row.token_id, "tenant": row.tenant, "name": row.name, "roles": row.roles, "expires_at": row.expires_at,
    }));
    Ok((StatusCode::CREATED, Extension(evidence), Json(TokenCreated { token, view: row.into() })))
}

/// Revoke an API token
///
/// Once this is answered, nobody gets in with it at any instance, and its open streams end.
#[utoipa::path(
    delete, path = "/v1/tokens/{token_id}", tag = "access",
    params(("token_id" = Uuid, Path, description = "Which token"), TokenParams),
    responses((status = 200, description = "It lets nobody in any more", body = TokenView)),
)]
pub(crate) async fn revoke(
    Admin(principal): Admin,
    State(api): State<TokensApi>,
    Segments(token_id): Segments<String>,
    Params(params): Params<TokenParams>,
) -> Result<(Extension<Evidence>, Json<TokenView>), Problem> {
    let unknown = || {
        let words = format!("there is no token `{}`", kernel::excerpt(&token_id, NAME_BYTES));
        Problem::not_found("unknown_token", words)
            .remedy("`GET /v1/tokens` lists them; the token file's are changed there")
    };
    let tenant = params.tenant(&principal)?;
    let id = token_id.parse::<Uuid>().map_err(|_| unknown())?;
    let row = api.tokens.revoke(&tenant, id, &principal.name).await?.ok_or_else(unknown)?;
    api.revocations.tell_all(&api.bus).await;
    tracing::warn!(token_id = %row.token_id, name = row.name, tenant = %row.tenant, by = principal.name, "an API token was revoked");
    let evidence =
        Evidence(json!({"token_id": row.token_id, "name": row.name, "tenant": row.tenant, "roles": row.roles}));
    Ok((Extension(evidence), Json(row.into())))
}

/// Whose tokens it is about: one's own tenant's, unless one runs the whole house.
fn tenant_of(principal: &Principal, wanted: Option<TenantId>) -> Result<TenantId, Problem> {
    match wanted {
        Some(other) if other != principal.tenant => {
            if principal.tenant == TenantId::default() {
                return Ok(other);
            }
            let words =
                format!("`{}` may not see to another tenant: that takes the role `admin` in `default`", principal.name);
            Err(Problem::new(StatusCode::FORBIDDEN, "insufficient_role", words)
                .field("tenant")
                .remedy("leave `tenant` out"))
        }
        _ => Ok(principal.tenant.clone()),
    }
}

fn checked(request: &TokenRequest) -> Result<(String, Duration), Problem> {
    let invalid = |field: &'static str, words: &str, remedy: &str| {
        Err(Problem::unprocessable("invalid_field", words).field(field).remedy(remedy))
    };
    let name = request.name.trim();
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
        return invalid(
            "name",
            "the name is empty, too long, or holds control characters",
            "name its holder in 1 to 80 bytes",
        );
    }
    if is_persons(name) {
        let words = "the name looks like that of a person whom an issuer knows";
        return invalid("name", words, "choose one that is no URL");
    }
    if request.roles.is_empty() {
        return invalid("roles", "a token without a role would be good for nothing", "give at least one role");
    }
    let expires_in = request.expires_in.unwrap_or(USUAL);
    if expires_in > LONGEST || expires_in.as_millis() == 0 {
        return invalid(
            "expires_in",
            "a token lives for more than nothing and 366 days at most",
            "give a time such as `90d`",
        );
    }
    Ok((name.to_owned(), expires_in))
}
