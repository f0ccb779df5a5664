//! `memory.search` and `knowledge.search`: what other runs remember, and the documents that an agent knows.

use engine::{Agents, Circle, Engine, Knowledge, Memories};
use kernel::{RunState, Trust};
use serde_json::{Value, json};

use super::{Invocation, number, required};
use crate::outcome::{Content, Happened, ToolError};

/// What is found at most, and unless asked.
const MOST: u64 = 20;
const USUAL: u64 = 5;

/// Looks things up. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Recall {
    engine: Engine,
    agents: Agents,
    memories: Memories,
    knowledge: Knowledge,
}

impl Recall {
    pub fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            agents: engine.agents(),
            memories: engine.memories(),
            knowledge: engine.knowledge(),
        }
    }

    /// What the runs of this agent, those for the same user and those of the tenant remember. What comes of untrusted data
    /// stays that, whoever asks for it.
    pub async fn memories(&self, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        let state = self.state(invocation).await?;
        let user = state.metadata.get("user").and_then(Value::as_str).filter(|user| !user.is_empty());
        let circle = Circle { agent: &state.agent, user };
        let found = self
            .memories
            .recall(&state.tenant, circle, required(invocation, "query")?, true, limit(invocation))
            .await
            .map_err(unavailable)?;
        let trust = Trust::join_all(found.iter().map(|memory| memory.block.trust.min(Trust::Trusted)));
        let shown = found.iter().map(|memory| {
            json!({
                "memory_id": memory.memory_id, "scope": memory.place.scope, "key": memory.place.key,
                "text": memory.block.text, "trust": memory.block.trust, "written_at": memory.written_at,
                "written_by": memory.written_by,
            })
        });
        Ok(content(shown.collect(), trust))
    }

    /// Passages of the collections that the agent's file names, and of no others.
    pub async fn knowledge(&self, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        let state = self.state(invocation).await?;
        let version = self.agents.by_digest(&state.tenant, &state.agent, &state.agent_digest).await;
        let mut collections =
            version.map_err(unavailable)?.map(|version| version.spec.knowledge.clone()).unwrap_or_default();
        if let Some(wanted) = super::text(invocation, "collection") {
            if !collections.iter().any(|name| name == wanted) {
                let there = if collections.is_empty() { "none".to_owned() } else { collections.join(", ") };
                let words = format!(
                    "`collection`: your agent's file names no `{}`; it names: {there}",
                    kernel::excerpt(wanted, 80)
                );
                return Err(ToolError::final_("invalid_arguments", words));
            }
            collections.retain(|name| name == wanted);
        }
        if collections.is_empty() {
            return Err(ToolError::final_("no_knowledge", "your agent's file names no collection under `knowledge`"));
        }
        let found = self
            .knowledge
            .search(&state.tenant, &collections, required(invocation, "query")?, limit(invocation))
            .await
            .map_err(unavailable)?;
        let trust = Trust::join_all(found.iter().map(|passage| passage.block.trust.min(Trust::Trusted)));
        let shown = found.iter().map(|passage| {
            json!({
                "collection": passage.collection, "document": passage.name, "passage": passage.ordinal,
                "digest": passage.digest, "heading": passage.heading, "text": passage.block.text,
            })
        });
        Ok(content(shown.collect(), trust))
    }

    async fn state(&self, invocation: Invocation<'_>) -> Result<std::sync::Arc<RunState>, ToolError> {
        let state = self.engine.load(invocation.run).await.map_err(unavailable)?;
        state.ok_or_else(|| ToolError::final_("no_such_run", "the run is gone"))
    }
}

fn limit(invocation: Invocation<'_>) -> u32 {
    u32::try_from(number(invocation, "limit").unwrap_or(USUAL).clamp(1, MOST)).unwrap_or(5)
}

fn content(found: Vec<Value>, trust: Trust) -> Content {
    let head = if found.is_empty() { Some("Nothing was found.".to_owned()) } else { None };
    let value = Value::Array(found);
    let mut content = Content::own(value.to_string(), value);
    "application/json".clone_into(&mut content.media_type);
    content.head = head;
    content.trust = trust;
    content
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unavailable(error: engine::EngineError) -> ToolError {
    ToolError::transient("store", error.to_string(), Happened::No)
}
