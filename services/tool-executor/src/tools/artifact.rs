//! `artifact.read`: content that was kept, of the same tenant.

use engine::Reads;
use kernel::ArtifactId;

use super::{Invocation, number, required};
use crate::artifacts::{ArtifactClient, ArtifactError};
use crate::outcome::{Content, Happened, ToolError};

/// Bytes that are read at most.
const CAP: usize = 8 * 1024 * 1024;

/// `artifact_id`, and `version` if not the newest; of it the bytes from `offset` on, at most `bytes`.
pub(super) async fn read(
    artifacts: &ArtifactClient,
    reads: &Reads,
    invocation: Invocation<'_>,
) -> Result<Content, ToolError> {
    let id: ArtifactId = required(invocation, "artifact_id")?
        .parse()
        .map_err(|error: kernel::IdError| ToolError::final_("invalid_arguments", format!("`artifact_id`: {error}")))?;
    let version = number(invocation, "version").and_then(|version| u32::try_from(version).ok());
    let (media_type, mut bytes) =
        artifacts.get(invocation.tenant, id, version, CAP).await.map_err(|error| failed(&error))?;
    // What is not listed, as the output of a tool, may be believed as little as what it came from.
    let listed = reads
        .artifact(invocation.tenant, id, version)
        .await
        .map_err(|error| ToolError::transient("unreachable", error.to_string(), Happened::No))?;
    if let Some(offset) = number(invocation, "offset") {
        bytes.drain(..usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len()));
    }
    if let Some(most) = number(invocation, "bytes") {
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    let mut content = Content::outside(bytes, media_type);
    content.trust = listed.map_or(content.trust, |artifact| artifact.artifact.trust);
    Ok(content)
}

fn failed(error: &ArtifactError) -> ToolError {
    let words = error.to_string();
    match error {
        ArtifactError::Missing => ToolError::final_("not_found", words),
        ArtifactError::TooLarge(_) => ToolError::final_("too_large", words),
        ArtifactError::Status(status) if !status.is_server_error() => ToolError::final_("artifact_service", words),
        ArtifactError::Status(_) | ArtifactError::Unreachable(_) => {
            ToolError::transient("artifact_service", words, Happened::No)
        }
    }
}
