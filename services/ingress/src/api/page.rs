//! `/` and `/openapi.json`: what this is, for people and for programs.

use axum::Router;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use axum::routing::get;

const PAGE: &str = include_str!("page.html");

pub(crate) fn router() -> Router {
    Router::new().route("/", get(page)).route("/openapi.json", get(description))
}

async fn page() -> impl IntoResponse {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(PAGE))
}

async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], super::openapi::text())
}
