//! What agents watch, compiled: once for each version of an agent's file.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use engine::{AgentWatch, Agents, EngineError};
use kernel::{
    TenantId,
    observe::{Anomaly, WakeWhen},
    units,
    watch::{ActionRule, HealthRule, VerifyStep, Watch},
};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use crate::rules::{Rules, usual};

/// Compiled watches that are kept; beyond, the shelf is cleared and fills again with what is in use.
const KEPT: usize = 512;
/// Most memory that one pattern, and all of one rule together, may compile to. The engine has looked at them before.
const PATTERN_BYTES: usize = 1 << 20;
const SET_BYTES: usize = 16 << 20;

/// What one agent watches of a service, ready for use.
#[derive(Debug)]
pub struct CompiledWatch {
    /// The agent.
    pub agent: String,
    /// Which of its watches.
    pub index: usize,
    /// As its file has it.
    pub watch: Watch,
    /// Patterns of the rules about lines, in the order of the rules.
    pub lines: Vec<Option<Regex>>,
    /// What its lines mean.
    pub rules: Option<Arc<Rules>>,
    /// A number for what the file says about that: another one, once it says something else.
    pub says: u64,
    /// What actions lead to.
    pub actions: Option<CompiledAction>,
}

/// What a line of an action says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Says {
    /// It took effect.
    pub success: bool,
    /// It failed.
    pub failure: bool,
    /// It has come so far: the place of the stage, from 0.
    pub stage: Option<usize>,
}

/// What actions on a service lead to, ready for use.
#[derive(Debug)]
pub struct CompiledAction {
    set: RegexSet,
    success: usize,
    failure: usize,
    /// Names of the stages, in order.
    pub stages: Vec<String>,
    /// When it is given up on.
    pub within: Duration,
    /// After so long without a line nothing more is expected.
    pub quiet: Duration,
    /// How long a sign waits for others.
    pub settle: Duration,
    /// Whether any line is known to mean success.
    pub knows_success: bool,
    /// How conclusions are cross-checked.
    pub verify: Vec<VerifyStep>,
}

impl Default for CompiledAction {
    fn default() -> Self {
        Self::new(&ActionRule::default())
    }
}

impl CompiledAction {
    /// Compiles a rule.
    #[must_use]
    pub fn new(rule: &ActionRule) -> Self {
        let stages = rule.stages.iter().map(|stage| &stage.pattern);
        let patterns = rule.success.iter().chain(&rule.failure).chain(stages);
        let set = RegexSetBuilder::new(patterns).size_limit(SET_BYTES).build().unwrap_or_else(|error| {
            tracing::error!(%error, "the patterns of an action can't be used together");
            RegexSet::empty()
        });
        let or = |span: Option<units::Duration>, usual| span.map_or(Duration::from_secs(usual), units::Duration::std);
        Self {
            set,
            success: rule.success.len(),
            failure: rule.failure.len(),
            stages: rule.stages.iter().map(|stage| stage.name.clone()).collect(),
            within: or(rule.within, 60),
            quiet: or(rule.quiet, 10),
            settle: or(rule.settle, 2),
            knows_success: !rule.success.is_empty(),
            verify: rule.verify.clone(),
        }
    }

    /// What a line says.
    #[must_use]
    pub fn look(&self, text: &str) -> Says {
        let mut says = Says::default();
        for at in self.set.matches(text) {
            match at.checked_sub(self.success) {
                None => says.success = true,
                Some(at) if at < self.failure => says.failure = true,
                Some(at) => says.stage = says.stage.max(Some(at - self.failure)),
            }
        }
        says
    }
}

impl CompiledWatch {
    /// Compiles what an agent watches.
    #[must_use]
    pub fn new(agent: &str, index: usize, watch: &Watch) -> Self {
        let rules = watch.observe.as_ref().map(|rule| Arc::new(Rules::for_service(rule)));
        Self::with(agent, index, watch, rules)
    }

    /// Compiles what an agent watches, but for what its lines mean.
    fn with(agent: &str, index: usize, watch: &Watch, rules: Option<Arc<Rules>>) -> Self {
        let pattern = |rule: &HealthRule| {
            let pattern = &rule.lines.as_ref()?.pattern;
            let built = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
            built.inspect_err(|error| tracing::error!(agent, rule = rule.name, %error, "a rule can't be used")).ok()
        };
        let lines = watch.health.iter().map(pattern).collect();
        let actions = watch.actions.as_ref().map(CompiledAction::new);
        for problem in rules.iter().flat_map(|rules| &rules.problems) {
            tracing::warn!(
                agent,
                service = watch.service,
                problem,
                "a rule about a service is not used as it is written"
            );
        }
        let mut says = DefaultHasher::new();
        // What can't be written has no other way to differ.
        serde_json::to_string(&watch.observe).unwrap_or_default().hash(&mut says);
        let says = says.finish();
        Self { agent: agent.to_owned(), index, watch: watch.clone(), lines, rules, says, actions }
    }

    /// When something that is noticed wakes.
    pub(crate) fn wake(&self, anomaly: Anomaly, rule: &str) -> WakeWhen {
        self.rules.as_ref().map_or_else(|| usual(anomaly), |rules| rules.wake(anomaly, rule))
    }

    /// The time that a threshold looks at, in milliseconds.
    pub(crate) fn within(&self, threshold: &str) -> i64 {
        let mut thresholds = self.watch.observe.iter().flat_map(|rule| &rule.thresholds);
        let within = thresholds.find(|known| known.id == threshold).map(|known| known.within.as_millis());
        within.and_then(|within| i64::try_from(within).ok()).unwrap_or(0)
    }
}

/// By digest of the agent's definition and place in it.
type Shelf = HashMap<(String, usize), Arc<CompiledWatch>>;

/// What all agents watch. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WatchBook {
    agents: Agents,
    shelf: Arc<Mutex<Shelf>>,
}

impl WatchBook {
    pub(crate) fn new(agents: Agents) -> Self {
        Self { agents, shelf: Arc::default() }
    }

    /// What the agents of a tenant watch, as their files are now (or were within the last second).
    pub(crate) async fn of(&self, tenant: &TenantId) -> Result<Vec<Arc<CompiledWatch>>, EngineError> {
        let watches = self.agents.watches(tenant).await?;
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        if shelf.len() + watches.len() > KEPT {
            shelf.clear();
        }
        let compiled = |each: &AgentWatch| {
            let watch = each.watch()?;
            let key = (each.agent.digest.clone(), each.index);
            if let Some(known) = shelf.get(&key) {
                return Some(Arc::clone(known));
            }
            // Watches that say the same of lines share what is large of it.
            let alike = shelf.values().find(|known| known.watch.observe == watch.observe);
            let compiled = match alike.and_then(|known| known.rules.clone()) {
                Some(rules) => CompiledWatch::with(&each.agent.name, each.index, watch, Some(rules)),
                None => CompiledWatch::new(&each.agent.name, each.index, watch),
            };
            Some(Arc::clone(shelf.entry(key).or_insert_with(|| Arc::new(compiled))))
        };
        Ok(watches.iter().filter_map(compiled).collect())
    }
}

#[cfg(test)]
mod tests {
    use kernel::watch::ActionStage;

    use super::*;

    #[test]
    fn a_line_says_what_its_patterns_mean() {
        let stage = |name: &str| ActionStage { name: name.into(), pattern: name.into() };
        let rule = ActionRule {
            success: vec!["shipped".into()],
            failure: vec!["rejected".into(), "no stock".into()],
            stages: vec![stage("accepted"), stage("packed")],
            ..ActionRule::default()
        };
        let action = CompiledAction::new(&rule);
        assert_eq!(action.look("order shipped"), Says { success: true, ..Says::default() });
        assert!(action.look("no stock").failure);
        assert_eq!(action.look("accepted and packed").stage, Some(1));
        assert_eq!(action.look("nothing"), Says::default());
        assert_eq!((action.within, action.settle), (Duration::from_secs(60), Duration::from_secs(2)));
    }
}
