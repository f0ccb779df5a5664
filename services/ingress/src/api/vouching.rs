//! Vouching for a text from outside: an operator's act, for one text in one run, with a reason that stays in the log.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use kernel::command::Declassify;
use kernel::{Command, Seq};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::control::{ControlApi, RunChanged};
use super::runs::missing_text;
use crate::auth::Operator;
use crate::body::{JsonBody, Segments, run_id};
use crate::problem::Problem;

/// What is to be believed, and why.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VouchRequest {
    /// The text, word for word, such as an address that a web page named. At most 4 KiB.
    text: String,
    /// The event (its `seq`) that it came in with.
    #[schema(value_type = u64)]
    from: Seq,
    /// Why it may be believed.
    reason: String,
}

/// Vouch for a text from outside
///
/// Arguments of later calls that hold this text are judged as if a trusted source had named it. All else that came in with it
/// stays as it was, and so does what the run has seen.
#[utoipa::path(
    post, path = "/v1/runs/{run_id}/declassify", tag = "control", request_body = VouchRequest,
    params(
        ("run_id" = uuid::Uuid, Path, description = "Which run"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes repeating the request harmless"),
    ),
    responses((status = 202, description = "It is believed from now on", body = RunChanged)),
)]
pub(crate) async fn declassify(
    Operator(principal): Operator,
    State(api): State<ControlApi>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<VouchRequest>,
) -> Result<(StatusCode, Json<RunChanged>), Problem> {
    let VouchRequest { text, from, reason } = &request;
    let from = *from;
    for (name, value) in [("text", text), ("reason", reason)] {
        if value.trim().is_empty() {
            return Err(missing_text(name));
        }
    }
    let id = run_id(&run)?;
    let events = api.reads.events(&principal.tenant, id, from.saturating_sub(1), 1).await?;
    let event = events.first().filter(|event| event.seq == from);
    let data = event.and_then(|event| serde_json::from_str::<Value>(event.data.get()).ok());
    // Whoever vouches has seen it: a slip of the pen would otherwise let through what nobody looked at.
    if !data.is_some_and(|data| holds(&data, text)) {
        let words = format!("event {from} of the run does not hold this text");
        return Err(Problem::unprocessable("text_not_there", &words)
            .remedy("give the `seq` of an event that holds it, word for word: `GET /v1/runs/{id}/events`"));
    }
    let by = principal.name.clone();
    let command = Command::Declassify(Declassify { text: text.clone(), from, by, reason: reason.clone() });
    api.change(&principal, &run, &headers, &request, command).await
}

/// Whether one of the texts of a document holds it. Never recursive: any depth is fine.
fn holds(document: &Value, text: &str) -> bool {
    let mut open = vec![document];
    while let Some(value) = open.pop() {
        match value {
            Value::String(leaf) if leaf.contains(text) => return true,
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.values()),
            _ => {}
        }
    }
    false
}
