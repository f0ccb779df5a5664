//! The HTTP API: one module per resource, each with the state that its handlers use and no more.

pub(crate) mod actions;
pub(crate) mod agents;
pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod audit;
pub(crate) mod bulk;
pub(crate) mod cloudevents;
pub(crate) mod control;
pub(crate) mod conversations;
pub(crate) mod costs;
pub(crate) mod dlq;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod forks;
pub(crate) mod freeze;
pub(crate) mod hooks;
pub(crate) mod logs;
pub(crate) mod memory;
pub(crate) mod openapi;
pub(crate) mod revise;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod schema;
pub(crate) mod services;
pub(crate) mod session;
pub(crate) mod standing;
pub(crate) mod tokens;
pub(crate) mod triggers;
mod turn;
pub(crate) mod vouching;
pub(crate) mod waits;
mod why;

use std::time::Instant;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, OriginalUri, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio_util::task::TaskTracker;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::audit::{self as trail, Audit};
use crate::auth::{Auth, authenticate};
use crate::pacing::{Pacing, pace};
use crate::problem::Problem;

/// Puts the routes of `resources` below `/v1`, behind authentication, and `open` ones, which keep their own pace, and the pages
/// beside them.
///
/// `requests` tells whether any request is still being answered.
pub(crate) fn router(
    resources: impl IntoIterator<Item = Router>,
    open: Router,
    pacing: Pacing,
    auth: Auth,
    audit: Audit,
    limit: usize,
    requests: TaskTracker,
) -> Router {
    let v1 = resources
        .into_iter()
        .fold(Router::new(), Router::merge)
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(audit, trail::record))
        .layer(from_fn_with_state(pacing, pace))
        .layer(from_fn_with_state(auth, authenticate))
        .merge(open.method_not_allowed_fallback(wrong_method));
    // What is no page of the console runs nothing, is framed by nobody, and is no other site's to load.
    let header = |name, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    let nosniff = header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    let inert = header(header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    let own = header(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    let quiet = header(header::REFERRER_POLICY, "no-referrer");
    Router::new()
        .nest("/v1", v1)
        .merge(openapi::router())
        .merge(crate::console::router())
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(limit))
        .layer((nosniff, inert, own, quiet))
        .layer(from_fn_with_state(requests, measure))
}

async fn unknown_path(OriginalUri(uri): OriginalUri) -> Problem {
    Problem::not_found("unknown_path", format!("there is nothing at `{}`", uri.path()))
        .remedy("`/openapi.json` lists what there is")
}

async fn wrong_method(method: Method, OriginalUri(uri): OriginalUri) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("`{method}` can't be used on `{}`", uri.path()),
    )
    .remedy("the header `Allow` lists what can")
}

/// Counts and times requests. A stream counts until its head is sent.
async fn measure(State(requests): State<TaskTracker>, request: Request, next: Next) -> Response {
    let _open = requests.token();
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = known_method(request.method());
    let response = next.run(request).await;
    let status = response.status().as_u16().to_string();
    metrics::histogram!("ingress_request_seconds", "route" => route.clone()).record(begun.elapsed());
    metrics::counter!("ingress_requests_total", "route" => route, "method" => method, "status" => status).increment(1);
    response
}

/// A method as metrics have it. A stranger may send any word for one, and each would be kept as a series of its own.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::PATCH => "PATCH",
        Method::TRACE => "TRACE",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stranger_makes_up_a_series() {
        for name in ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "PATCH", "TRACE"] {
            assert_eq!(known_method(&name.parse().unwrap()), name);
        }
        for name in ["get", "PROPFIND", "X-1"] {
            assert_eq!(known_method(&name.parse().unwrap()), "other");
        }
    }
}
