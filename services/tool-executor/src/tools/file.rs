//! `file.read` and `file.write`, inside the run's workspace.

use serde_json::json;

use super::{Invocation, number, required};
use crate::outcome::{Content, Happened, ToolError};
use crate::workspace::{Workspace, WorkspaceError};

/// `path`, and of a text file the lines from `from_line` (from 1) on, at most `lines`.
pub(super) async fn read(workspace: Workspace, cap: u64, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let path = required(invocation, "path")?.to_owned();
    let bytes = blocking(move || workspace.read(&path, cap)).await?;
    let (from, most) = (number(invocation, "from_line"), number(invocation, "lines"));
    if from.is_none() && most.is_none() {
        return Ok(Content::outside(bytes, ""));
    }
    let skip = usize::try_from(from.unwrap_or(1).saturating_sub(1)).unwrap_or(usize::MAX);
    let take = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').skip(skip).take(take);
    Ok(Content::outside(lines.collect::<Vec<_>>().concat(), ""))
}

/// `content` into `path`, as a whole.
pub(super) async fn write(workspace: Workspace, cap: u64, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let path = required(invocation, "path")?.to_owned();
    let content = required(invocation, "content")?.to_owned();
    let bytes = content.len();
    let changed = blocking(move || workspace.write(&path, content.as_bytes(), cap)).await?;
    let words = if changed { format!("{bytes} bytes written") } else { format!("unchanged, {bytes} bytes") };
    Ok(Content::own(words, json!({ "bytes": bytes, "changed": changed })))
}

/// File systems block, and those of a network may do so for long.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, ToolError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ToolError::transient("io", error.to_string(), Happened::No))?.map_err(Into::into)
}
