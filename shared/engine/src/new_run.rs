//! What a new run is to be, for whoever may start one.

use kernel::{
    Block, ConversationId, RunId, TenantId,
    agent::{AgentSpec, Criterion},
    budget::Limits,
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
    /// Labels.
    pub metadata: Map<String, Value>,
    /// The outside event behind it.
    pub trigger: Option<ExternalRef>,
}

impl NewRun {
    /// What is recorded of a run of this agent.
    #[must_use]
    pub fn created(self, agent: &AgentSpec, digest: &str, sampled: bool) -> RunCreated {
        let acceptance = if self.acceptance.is_empty() { agent.acceptance.clone() } else { self.acceptance };
        RunCreated {
            tenant: self.tenant,
            agent: agent.name.clone(),
            agent_digest: digest.to_owned(),
            objective: self.objective,
            input: self.input,
            acceptance,
            limits: stricter(&agent.budget, &self.limits),
            conversation_id: self.conversation_id,
            metadata: self.metadata,
            parallel_wake: agent.parallel_wake,
            debounce: agent.debounce,
            sampled,
            trigger: self.trigger,
        }
    }
}

/// Of each limit the lower one.
#[must_use]
pub fn stricter(a: &Limits, b: &Limits) -> Limits {
    fn lower<T: PartialOrd + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b < a { b } else { a }),
            (a, b) => a.or(b),
        }
    }
    Limits {
        turns: lower(a.turns, b.turns),
        tokens: lower(a.tokens, b.tokens),
        cost_usd: lower(a.cost_usd, b.cost_usd),
        wall: lower(a.wall, b.wall),
        tool_calls: lower(a.tool_calls, b.tool_calls),
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
    fn the_lower_limit_holds() {
        let agent = Limits { turns: Some(10), cost_usd: Some(2.0), ..Limits::default() };
        let asked = Limits { turns: Some(20), cost_usd: Some(0.5), tokens: Some(100), ..Limits::default() };
        let both = stricter(&agent, &asked);
        assert_eq!((both.turns, both.cost_usd, both.tokens, both.tool_calls), (Some(10), Some(0.5), Some(100), None));
    }

    #[test]
    fn the_ratio_is_kept_at_its_ends() {
        let runs: Vec<RunId> = (0..1000).map(|_| RunId::mint()).collect();
        assert!(runs.iter().all(|run| is_sampled(*run, 1.0)));
        assert!(!runs.iter().any(|run| is_sampled(*run, 0.0)));
        let half = runs.iter().filter(|run| is_sampled(**run, 0.5)).count();
        assert!((350..650).contains(&half), "{half}");
    }
}
