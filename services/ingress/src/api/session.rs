//! `/v1/session`: who one is, and a token kept by the browser for pages that can't send headers.

use axum::http::header::{AUTHORIZATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use kernel::TenantId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::{Principal, bearer, session};

pub(crate) fn router() -> Router {
    Router::new().route("/session", get(show).post(open).delete(close))
}

/// Who calls.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Session {
    /// The name of the token.
    name: String,
    /// All that it can see.
    #[schema(value_type = String)]
    tenant: TenantId,
    /// What it may do: `publisher`, `viewer`, `user`, `operator`, `admin`.
    roles: Vec<&'static str>,
}

impl From<Principal> for Session {
    fn from(principal: Principal) -> Self {
        let roles = principal.roles.iter().map(|role| role.as_str()).collect();
        Self { name: principal.name, tenant: principal.tenant, roles }
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
pub(crate) async fn open(Extension(principal): Extension<Principal>, headers: HeaderMap) -> Response {
    let session = Json(Session::from(principal));
    match headers.get(AUTHORIZATION).and_then(bearer) {
        Some(token) => (AppendHeaders([(SET_COOKIE, session::kept(token, &headers))]), session).into_response(),
        // Already in a session, or nobody is asked for a token.
        None => session.into_response(),
    }
}

/// Forget the token.
#[utoipa::path(
    delete, path = "/v1/session", tag = "session", summary = "Close the session",
    responses((status = 204, description = "The browser forgets the token"))
)]
pub(crate) async fn close() -> impl IntoResponse {
    (StatusCode::NO_CONTENT, AppendHeaders([(SET_COOKIE, session::forgotten())]))
}
