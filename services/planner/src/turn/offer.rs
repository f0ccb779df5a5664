//! What a run is offered: the verbs, its agent's tools, and those of MCP servers that it holds on to.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use kernel::{RunState, agent::AgentSpec};

use super::{TurnError, Turns};
use crate::{
    spawn,
    toolbox::{CatalogueTool, Toolbox},
};

/// Agents whose toolboxes are kept.
const MAX_TOOLBOXES: usize = 256;

impl Turns {
    /// What the run is offered. The tools of MCP servers are those that it holds on to, whatever has become of them since. A
    /// child may have fewer tools than its agent's file names, and one that is far down starts no others.
    pub(super) async fn toolbox(&self, state: &RunState, agent: &AgentSpec) -> Result<Arc<Toolbox>, TurnError> {
        let mut remote = self.remote_tools(state, agent).await?;
        remote.retain(|tool| state.may_use(&tool.spec.name));
        let names = spawn::tools_of(state, agent);
        let agents: &[String] = if state.depth() < kernel::child::MAX_DEPTH { &agent.agents } else { &[] };
        let of_child = match &state.tools {
            Some(_) => format!("{}/{}", agents.len(), names.join(",")),
            None => String::new(),
        };
        let first = format!("{}/{of_child}", state.agent_digest);
        let key = remote.iter().fold(first, |key, tool| format!("{key}/{}", tool.digest));
        if let Some(toolbox) = self.kept_toolboxes().get(&key) {
            return Ok(Arc::clone(toolbox));
        }
        let own = |name: &String| {
            let (spec, digest) = (self.catalog.get(name)?, self.catalog.digest(name)?);
            Some(CatalogueTool { spec, digest: digest.to_owned() })
        };
        let mut tools: Vec<CatalogueTool> = names.iter().filter_map(own).collect();
        tools.extend(remote.into_iter().map(|tool| CatalogueTool { spec: tool.spec, digest: tool.digest }));
        let toolbox = Arc::new(Toolbox::new(&names, agents, tools)?.with_skills(&agent.skills)?);
        if !toolbox.missing().is_empty() {
            tracing::warn!(agent = agent.name, missing = ?toolbox.missing(), "an agent names tools that do not exist here");
        }
        let mut kept = self.kept_toolboxes();
        if kept.len() >= MAX_TOOLBOXES {
            kept.clear();
        }
        kept.insert(key, Arc::clone(&toolbox));
        Ok(toolbox)
    }

    /// What the agent names that is no tool of our own.
    async fn remote_tools(&self, state: &RunState, agent: &AgentSpec) -> Result<Vec<engine::McpTool>, TurnError> {
        let (mut names, mut servers) = (Vec::new(), Vec::new());
        for name in agent.tools.iter().filter(|name| self.catalog.get(name).is_none()) {
            match name.strip_suffix(".*") {
                Some(server) => servers.push(server),
                None => names.push(name.as_str()),
            }
        }
        if names.is_empty() && servers.is_empty() {
            return Ok(Vec::new());
        }
        let mut offered = self.engine.mcp().as_of(&names, &servers, state.tools_as_of()).await?;
        // What is recorded is what some tenant was offered: not each server is for each tenant, or still declared.
        offered.retain(|tool| self.catalog.servers().serve(&state.tenant, &tool.spec));
        Ok(offered)
    }

    fn kept_toolboxes(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Toolbox>>> {
        self.toolboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
