//! `signals.read`: the raw lines behind an observation, of the same tenant.

use kernel::CallId;
use serde_json::Value;

use super::{Invocation, text};
use crate::artifacts::{ArtifactClient, ArtifactError};
use crate::outcome::{Content, Happened, ToolError};

/// What a service's log may be asked for, and the output of a call.
const OF_SERVICE: [&str; 9] = ["service", "seq", "line", "at", "context", "from", "to", "match", "limit"];
const OF_CALL: [&str; 2] = ["line", "context"];
/// Bytes that are read at most.
const CAP: usize = 2 * 1024 * 1024;

/// Lines of a service's log, or of a call's output.
pub(super) async fn read(artifacts: &ArtifactClient, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let wrong = |words: String| ToolError::final_("invalid_arguments", words);
    let (path, names) = match (text(invocation, "call_id"), text(invocation, "service")) {
        (Some(id), None) => {
            let call: CallId = id.parse().map_err(|error: kernel::IdError| wrong(format!("`call_id`: {error}")))?;
            (format!("internal/signals/{call}"), &OF_CALL[..])
        }
        (None, Some(_)) => ("internal/signals".to_owned(), &OF_SERVICE[..]),
        _ => return Err(wrong("give either `service` or `call_id`".to_owned())),
    };
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let wanted = names.iter().filter_map(|name| Some((*name, shown(invocation.arguments.get(*name)?))));
    let wanted: Vec<(&str, String)> = wanted.collect();
    let (media_type, bytes) =
        artifacts.signals(invocation.tenant, &path, &wanted, CAP).await.map_err(|error| failed(&error))?;
    Ok(Content::outside(bytes, media_type))
}

fn failed(error: &ArtifactError) -> ToolError {
    match error {
        ArtifactError::Missing => {
            ToolError::final_("not_found", "nothing is archived there; the last seconds may follow")
        }
        ArtifactError::TooLarge(_) => ToolError::final_("too_large", error.to_string()),
        ArtifactError::Status(status) if !status.is_server_error() => {
            ToolError::final_("invalid_arguments", error.to_string())
        }
        ArtifactError::Status(_) | ArtifactError::Unreachable(_) => {
            ToolError::transient("artifact_service", error.to_string(), Happened::No)
        }
    }
}
