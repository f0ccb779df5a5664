//! The description of the API, made from the handlers and from the kernel's own schemas.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::{
    actions, agents, approvals, artifacts, audit, bulk, cloudevents, control, conversations, costs, dlq, events, forks,
    freeze, hooks, logs, memory, revise, runs, schedules, schema, services, session, standing, tokens, triggers,
    vouching, waits,
};
use crate::problem::{MEDIA_TYPE, ProblemDetails};

/// All that the handlers say of themselves.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Escapement",
        description = "The public door of an event-driven runtime for long-lived agents. Errors are RFC 9457 problem details \
                       with a stable `code`.",
    ),
    paths(
        runs::create, runs::list, runs::show, runs::report,
        events::list, events::economics, events::stream, events::show_turn, events::explain,
        revise::revise, forks::fork, forks::roll_back, bulk::cancel, bulk::pause, bulk::resume,
        conversations::show, dlq::list, dlq::redrive, hooks::receive, triggers::test,
        control::message, control::pause, control::resume, control::cancel, control::change_budget, vouching::declassify,
        freeze::list, freeze::put,
        waits::list,
        approvals::list, approvals::show, approvals::decide,
        standing::list, standing::revoke,
        tokens::list, tokens::create, tokens::revoke,
        audit::list, audit::export,
        artifacts::upload, artifacts::show, artifacts::content,
        cloudevents::publish,
        logs::logs, logs::metrics,
        costs::show, memory::list, memory::keep, memory::forget, memory::documents, memory::add, memory::drop_document, memory::skills,
        actions::list, actions::record, actions::show,
        services::alerts, services::signals, services::gaps, services::output,
        agents::list, agents::show, agents::versions, agents::put,
        session::show, session::open, session::close,
        schedules::list, schedules::show, schedules::put, schedules::delete, schedules::firings, schedules::pause,
        schedules::resume, schedules::backfill,
    ),
    components(schemas(ProblemDetails, events::StreamEvents)),
    tags(
        (name = "runs", description = "Runs, and what they wait for"),
        (name = "events", description = "What happened, because of what, and what comes in from outside"),
        (name = "control", description = "A hand on a live run"),
        (name = "approvals", description = "What people are asked"),
        (name = "artifacts", description = "What runs have made"),
        (name = "agents", description = "Agent definitions"),
        (name = "memory", description = "What outlives runs: memories, documents, skills"),
        (name = "access", description = "Who gets in, and who did what"),
        (name = "session", description = "Who calls, and sessions of browsers"),
        (name = "schedules", description = "What is to be done at times that come again"),
    ),
)]
struct Api;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    // A document of strings and numbers always serialises.
    serde_json::to_string_pretty(&document()).unwrap_or_default() + "\n"
});

/// `/openapi.json`, open to everybody.
pub(crate) fn router() -> Router {
    Router::new().route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], text()) }))
}

/// The OpenAPI 3.1 description of the API as text: what `/openapi.json` serves and `schemas/openapi.json` keeps.
#[must_use]
pub fn text() -> &'static str {
    &TEXT
}

/// The document as JSON, sorted by name, so that it changes only when the API does.
fn document() -> Value {
    let mut document = serde_json::to_value(Api::openapi()).unwrap_or_default();
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    let definitions = schema::definitions();
    let components = &mut document["components"];
    components["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    if let Some(schemas) = components["schemas"].as_object_mut() {
        schemas.extend(definitions);
    }
    document["security"] = json!([{ "token": [] }]);
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut).for_each(add_problems);
    }
    sorted(document)
}

/// What every call may answer when it fails.
fn add_problems(operation: &mut Value) {
    let problem = |description: &str| {
        json!({
            "description": description,
            "content": { MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/ProblemDetails" } } },
        })
    };
    let responses = &mut operation["responses"];
    responses["401"] = problem("No token, or one that is not known here");
    responses["403"] = problem("The token lacks the role that this takes");
    responses["default"] = problem("What went wrong; `code` says which case it is");
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.into_iter().collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().map(|(name, value)| (name, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}
