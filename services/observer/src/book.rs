//! Compiled rules by agent and tool: compiled once, whoever asks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use engine::{Agents, EngineError};
use kernel::RunState;

use crate::{
    rules::{Limits, Rules, rule_for},
    withhold::Gate,
};

/// Different sets of rules that are kept, a few megabytes each; beyond, the shelf is cleared and fills again with what is in
/// use.
const KEPT: usize = 48;
/// Agents and tools that are remembered with theirs.
const REMEMBERED: usize = 4096;

#[derive(Default)]
struct Shelf {
    /// By digest of the agent and name of the tool.
    of: HashMap<(String, String), Arc<Rules>>,
    /// By what they say: agents that say the same share them.
    alike: HashMap<String, Arc<Rules>>,
}

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
        if let Some(rules) = self.shelf().of.get(&key) {
            return Ok(Arc::clone(rules));
        }
        let version = self.agents.by_digest(&run.tenant, &run.agent, &run.agent_digest).await?;
        let rule = rule_for(version.as_ref().map(|version| &version.spec), tool);
        // What can't be written has no likes of it.
        let says = serde_json::to_string(&rule).unwrap_or_else(|_| format!("{key:?}"));
        let known = self.shelf().alike.get(&says).cloned();
        let rules = match known {
            Some(rules) => rules,
            None => {
                let rules = Arc::new(Rules::compile(&rule, self.limits));
                for problem in &rules.problems {
                    tracing::warn!(
                        agent = run.agent,
                        digest = run.agent_digest,
                        tool,
                        problem,
                        "a rule of an agent is not used as it is written"
                    );
                }
                rules
            }
        };
        self.shelf().put(key, says, &rules);
        Ok(rules)
    }

    /// Whether the run's agent names a model that may be asked where the rules are unsure.
    pub(crate) async fn is_advised(&self, run: &RunState) -> Result<bool, EngineError> {
        let version = self.agents.by_digest(&run.tenant, &run.agent, &run.agent_digest).await?;
        Ok(version.is_some_and(|version| version.spec.observer.is_some()))
    }

    /// The checks of the run's agent that want to see what came of a call.
    pub(crate) async fn gate(&self, run: &RunState) -> Result<Option<Gate>, EngineError> {
        let version = self.agents.by_digest(&run.tenant, &run.agent, &run.agent_digest).await?;
        Ok(version.and_then(|version| Gate::of(&version.spec.checks)))
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn put(&mut self, key: (String, String), says: String, rules: &Arc<Rules>) {
        if self.of.len() >= REMEMBERED || (self.alike.len() >= KEPT && !self.alike.contains_key(&says)) {
            self.of.clear();
            self.alike.clear();
        }
        self.of.insert(key, Arc::clone(rules));
        self.alike.insert(says, Arc::clone(rules));
    }
}
