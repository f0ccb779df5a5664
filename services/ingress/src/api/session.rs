//! `/v1/session`: who one is, and a token kept by the browser for pages that can't send headers.

use axum::http::header::{AUTHORIZATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use kernel::{TenantId, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::{Principal, bearer, session};
use crate::problem::Problem;

pub(crate) fn router() -> Router {
    Router::new().route("/session", get(show).post(open).delete(close))
}

/// Who calls.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Session {
    /// The name of the token, or of the person: their issuer, `#`, and what it calls them.
    name: String,
    /// What to call the person, if their issuer says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    display: Option<String>,
    /// All that it can see.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// What it may do: `publisher`, `viewer`, `user`, `operator`, `admin`.
    roles: Vec<&'static str>,
    /// When the token ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

impl From<Principal> for Session {
    fn from(principal: Principal) -> Self {
        let roles = principal.roles.iter().map(|role| role.as_str()).collect();
        let Principal { name, display, tenant, until, .. } = principal;
        Self { name, display, tenant, roles, expires_at: until }
    }
}

/// Say who one is.
#[utoipa::path(
    get, path = "/v1/session", tag = "session", summary = "Say who one is",
    responses((status = 200, description = "Whose token it is", body = Session))
)]
pub(crate) async fn show(Extension(principal): Extension<Principal>) -> Json<Session> {
    Json(principal.into())
}

/// Keep the token of the header in a cookie that no script can read.
#[utoipa::path(
    post, path = "/v1/session", tag = "session", summary = "Open a session",
    responses((status = 200, description = "The token of the header is kept in a cookie", body = Session))
)]
pub(crate) async fn open(Extension(principal): Extension<Principal>, headers: HeaderMap) -> Result<Response, Problem> {
    let good_for = principal.left();
    let session = Json(Session::from(principal));
    let Some(token) = headers.get(AUTHORIZATION).and_then(bearer) else {
        // Already in a session, or nobody is asked for a token.
        return Ok(session.into_response());
    };
    let cookie = session::kept(token, good_for, &headers).ok_or_else(|| {
        Problem::unprocessable("token_too_long", "the token is good, but longer than a browser keeps in a cookie")
            .field("Authorization")
            .remedy("have the provider put less into it (fewer groups), or sign in with an API token")
    })?;
    Ok((AppendHeaders([(SET_COOKIE, cookie)]), session).into_response())
}

/// Forget the token.
#[utoipa::path(
    delete, path = "/v1/session", tag = "session", summary = "Close the session",
    responses((status = 204, description = "The browser forgets the token"))
)]
pub(crate) async fn close() -> impl IntoResponse {
    (StatusCode::NO_CONTENT, AppendHeaders([(SET_COOKIE, session::forgotten())]))
}
