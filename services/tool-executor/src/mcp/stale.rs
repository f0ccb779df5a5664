//! Questions about tools that are no longer what was asked about: they are withdrawn before somebody answers them. What
//! slips through is found when the call is dispatched.

use std::collections::HashMap;

use engine::{Engine, EngineError, SubmitError};
use kernel::command::{Command, DenyCall};
use kernel::state::SCHEMA_CHANGED;
use kernel::{Block, Cause, TenantId, Trust};

use super::servers;

/// Open questions of a tenant that are looked at.
const MOST: u32 = 1000;

/// Ends the calls of a tenant that wait for a yes to a tool of `server` that is not as it was; `listed` has the digests of
/// those that are, by name.
pub(super) async fn withdraw(
    engine: &Engine,
    tenant: &TenantId,
    server: &str,
    listed: &HashMap<String, String>,
) -> Result<(), EngineError> {
    for asked in engine.reads().approvals(tenant, Some("open"), MOST).await? {
        let (Some(call_id), Some(tool)) = (asked.call_id, &asked.tool) else { continue };
        let is_ours = tool.split_once('.').is_some_and(|(of, _)| of == server);
        let now = listed.get(tool);
        if !is_ours || now == Some(&asked.binding.schema) {
            continue;
        }
        let words = if now.is_some() { servers::changed(tool) } else { servers::gone(tool) };
        let reason = Block::new(words, Trust::System, "runtime");
        let command = Command::DenyCall(DenyCall { call_id, code: SCHEMA_CHANGED.to_owned(), reason });
        let cause = Cause { service: "tool-executor".to_owned(), ..Cause::default() };
        let key = format!("{call_id}/withdraw/{}", asked.binding.schema);
        match engine.submit(asked.run_id, command, key, cause).await {
            Ok(_) => {
                tracing::info!(run_id = %asked.run_id, call = %call_id, tool, "a question about a changed tool is withdrawn")
            }
            // Somebody answered, or the run ended.
            Err(SubmitError::Rejected(_)) => {}
            Err(SubmitError::Engine(error)) => return Err(error),
        }
    }
    Ok(())
}
