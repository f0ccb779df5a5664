//! What a new run is to be, for whoever may start one.

use kernel::{
    Block, ConversationId, RunId, TenantId,
    agent::{AgentSpec, Criterion},
    budget::{AtLimit, Limits},
    event::{ExternalRef, RunCreated},
};
use serde_json::{Map, Value};

/// A run to be, before its agent's file is added.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Whose.
    pub tenant: TenantId,
    /// What is to be reached: a person's words, or the agent file's.
    pub objective: Block,
    /// What it starts with.
    pub input: Block,
    /// How it is known that the objective is reached; the agent's own criteria if there are none here.
    pub acceptance: Vec<Criterion>,
    /// What it may spend, if that is less than the agent's own limits.
    pub limits: Limits,
    /// The conversation that it goes on with.
    pub conversation_id: Option<ConversationId>,
    /// The roles of whoever starts it; none if nobody does.
    pub roles: Vec<String>,
    /// Labels.
    pub metadata: Map<String, Value>,
    /// The outside event behind it.
    pub trigger: Option<ExternalRef>,
}

impl NewRun {
    /// What is recorded of a run of this agent.
    #[must_use]
    pub fn created(self, agent: &AgentSpec, digest: &str, sampled: bool) -> RunCreated {
        let acceptance = agent.criteria(self.acceptance);
        // Somebody started it, so somebody can be asked; a child's parent goes by what it has set aside.
        let asks = Limits { at_limit: Some(AtLimit::Ask), ..Limits::default() };
        RunCreated {
            acceptance,
            limits: agent.budget.stricter(&self.limits).or(&asks),
            conversation_id: self.conversation_id,
            metadata: self.metadata,
            parallel_wake: agent.parallel_wake,
            debounce: agent.debounce,
            sampled,
            trigger: self.trigger,
            roles: self.roles,
            ..RunCreated::new(self.tenant, &agent.name, digest, self.objective, self.input)
        }
    }
}

/// Whether the spans of a run are exported: by its id, so that who asks twice hears the same.
#[must_use]
pub fn is_sampled(run: RunId, ratio: f64) -> bool {
    let mut tail = [0; 4];
    tail.copy_from_slice(&run.0.as_bytes()[12..]);
    f64::from(u32::from_be_bytes(tail)) < ratio * 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_kept_at_its_ends() {
        let runs: Vec<RunId> = (0..1000).map(|_| RunId::mint()).collect();
        assert!(runs.iter().all(|run| is_sampled(*run, 1.0)));
        assert!(!runs.iter().any(|run| is_sampled(*run, 0.0)));
        let half = runs.iter().filter(|run| is_sampled(**run, 0.5)).count();
        assert!((350..650).contains(&half), "{half}");
    }
}
