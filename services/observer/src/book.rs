//! Compiled rules by agent and tool: compiled once, whoever asks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use engine::{Agents, EngineError};
use kernel::RunState;

use crate::rules::{Limits, Rules};

/// Sets of rules that are kept; beyond, the shelf is cleared and fills again with what is in use.
const KEPT: usize = 512;

/// By digest of the agent and name of the tool.
type Shelf = HashMap<(String, String), Arc<Rules>>;

/// The rules of all agents. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RuleBook {
    agents: Agents,
    limits: Limits,
    shelf: Arc<Mutex<Shelf>>,
}

impl RuleBook {
    pub(crate) fn new(agents: Agents, limits: Limits) -> Self {
        Self { agents, limits, shelf: Arc::default() }
    }

    /// The rules that the run's agent has for the output of `tool`.
    pub(crate) async fn rules(&self, run: &RunState, tool: &str) -> Result<Arc<Rules>, EngineError> {
        let key = (run.agent_digest.clone(), tool.to_owned());
        if let Some(rules) = self.shelf().get(&key) {
            return Ok(Arc::clone(rules));
        }
        let version = self.agents.by_digest(&run.tenant, &run.agent, &run.agent_digest).await?;
        let spec = version.as_ref().map(|version| &version.spec);
        let rules = Arc::new(Rules::for_tool(spec, tool, self.limits));
        for problem in &rules.problems {
            tracing::warn!(
                agent = run.agent,
                digest = run.agent_digest,
                tool,
                problem,
                "a rule of an agent is not used as it is written"
            );
        }
        let mut shelf = self.shelf();
        if shelf.len() >= KEPT {
            shelf.clear();
        }
        shelf.insert(key, Arc::clone(&rules));
        Ok(rules)
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
