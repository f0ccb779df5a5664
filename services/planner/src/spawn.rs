//! `spawn_agent`: from what a model asks for to a child run that the rules can judge.

use engine::{Agents, EngineError};
use kernel::{
    Block, CallId, RunState,
    agent::AgentSpec,
    budget::Limits,
    child::{OnFailure, SpawnRequest, allows},
};

/// A child as a model asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpawnDraft {
    /// Derived from the turn and the place in it.
    pub call_id: CallId,
    /// Name of the agent.
    pub agent: String,
    /// What it is to do.
    pub task: Block,
    /// What it may spend, as far as the model said.
    pub budget: Limits,
    /// What becomes of this run if it fails.
    pub on_failure: OnFailure,
}

/// The tools that a run may use: its agent's, and of a child's no others than its parent's.
#[must_use]
pub fn tools_of(state: &RunState, agent: &AgentSpec) -> Vec<String> {
    agent.tools.iter().filter(|tool| state.may_use(tool)).cloned().collect()
}

/// The children that the drafts stand for, or what is wrong with them, in words for the model.
///
/// # Errors
/// When the store does not answer.
pub async fn resolve(
    agents: &Agents,
    state: &RunState,
    agent: &AgentSpec,
    drafts: &[SpawnDraft],
) -> Result<Result<Vec<SpawnRequest>, Vec<String>>, EngineError> {
    let mine = tools_of(state, agent).into_iter().collect();
    let (mut spawns, mut problems) = (Vec::with_capacity(drafts.len()), Vec::new());
    let room = usize::try_from(agent.max_children()).unwrap_or(usize::MAX);
    if state.children.len() + drafts.len() > room {
        problems.push(format!("`spawn_agent`: {room} agents may be at work at a time: wait for some of them first"));
    }
    for draft in drafts {
        // New children start with what the name stands for now, as any run does.
        let Some(version) = agents.head(&state.tenant, &draft.agent).await? else {
            problems.push(format!("`spawn_agent`: the agent `{}` is not defined here", draft.agent));
            continue;
        };
        let spec = &version.spec;
        spawns.push(SpawnRequest {
            call_id: draft.call_id,
            agent: spec.name.clone(),
            agent_digest: version.digest.clone(),
            task: draft.task.clone(),
            tools: spec.tools.iter().filter(|tool| allows(&mine, tool)).cloned().collect(),
            limits: spec.budget.stricter(&draft.budget),
            on_failure: draft.on_failure,
            acceptance: spec.criteria(Vec::new()),
            parallel_wake: spec.parallel_wake,
            debounce: spec.debounce,
        });
    }
    Ok(if problems.is_empty() { Ok(spawns) } else { Err(problems) })
}
