//! `activity.send`: input for a command of the same run that takes it.

use kernel::CallId;
use serde_json::json;

use super::{Invocation, required, text};
use crate::activity::{self, Piece};
use crate::outcome::{Content, Happened, ToolError};
use crate::workspace::Workspace;

/// Keeps `text` (with a line break, unless `raw`) for the command of `call_id`; `end` ends its input.
pub(super) async fn send(workspace: Workspace, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let call: CallId = required(invocation, "call_id")?
        .parse()
        .map_err(|_| ToolError::final_("invalid_arguments", "`call_id` is not the id of a call"))?;
    let flag = |name: &str| invocation.arguments.get(name).and_then(serde_json::Value::as_bool).unwrap_or(false);
    let mut line = text(invocation, "text").unwrap_or_default().to_owned();
    let end = flag("end");
    if line.is_empty() && !end {
        return Err(ToolError::final_(
            "invalid_arguments",
            "`text` is empty and `end` is not set: there is nothing to send",
        ));
    }
    if !line.is_empty() && !flag("raw") {
        line.push('\n');
    }
    let piece = Piece { sender: invocation.call, text: line, end };
    let sent = tokio::task::spawn_blocking(move || activity::send(&workspace, call, &piece)).await;
    let sent = sent.map_err(|error| ToolError::transient("io", error.to_string(), Happened::No))?;
    match sent {
        Ok(true) => Ok(Content::own("sent", json!({ "sent": true }))),
        Ok(false) => Err(ToolError::final_(
            "not_found",
            "no activity of this run that takes input has this id: it must run, and must have been started with `input: true`",
        )),
        Err(error) => Err(ToolError::transient("io", error.to_string(), Happened::No)),
    }
}
