//! Children: started by a turn, held and ended with their parent, settled when they have ended.

use jiff::Timestamp;

use super::Decider;
use crate::{
    budget::{Limits, Spent},
    child::{Child, MAX_CHILDREN, MAX_DEPTH, MAX_RETRIES, OnFailure, SpawnRequest, are_within},
    command::{ByParent, ChildReport, HoldChild, TurnOutcome},
    event::{
        Ending, Outcome, Rule, RunPaused, RunResumed, SubagentCancelled, SubagentCompleted, SubagentFailed,
        SubagentStarted,
    },
    ids::{RunId, TurnId},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::RunState,
    trust::{Block, Trust},
};

impl Decider {
    /// What is wrong with the children that an outcome asks for.
    pub(super) fn spawn_problems(&self, outcome: &TurnOutcome) -> Vec<String> {
        let spawns = &outcome.spawns;
        let mut problems = Vec::new();
        if spawns.is_empty() {
            return problems;
        }
        if self.state.depth() >= MAX_DEPTH && !broken(Mutant::SpawnsTooDeep) {
            problems.push(format!("this run is {MAX_DEPTH} below the first one: it can start no agents"));
        }
        if self.state.children.len() + spawns.len() > MAX_CHILDREN {
            problems.push(format!("{MAX_CHILDREN} agents may be at work at a time: wait for some of them first"));
        }
        let tools = self.state.tools.as_ref();
        for spawn in spawns {
            if !are_within(&spawn.tools, tools) && !broken(Mutant::ChildHasMoreTools) {
                problems.push(format!("the agent `{}` may have no tools that this run has not", spawn.agent));
            }
        }
        // What the turn itself costs and asks for comes first.
        let calls = u32::try_from(outcome.calls.len()).unwrap_or(u32::MAX);
        let turn = Spent { turns: 1, tool_calls: calls, usage: outcome.usage };
        if let Err(problem) = carve(&self.state, &turn, spawns, self.now) {
            problems.push(problem);
        }
        problems
    }

    /// Starts the children of a turn, each with a part of what is left.
    pub(super) fn spawn_children(&mut self, outcome: &TurnOutcome) {
        let limits = carve(&self.state, &Spent::default(), &outcome.spawns, self.now).unwrap_or_default();
        for (spawn, limits) in outcome.spawns.iter().zip(limits) {
            self.start_child(spawn, outcome.turn_id, 1, limits);
        }
    }

    fn start_child(&mut self, spawn: &SpawnRequest, turn_id: TurnId, attempt: u32, limits: Limits) {
        let child_id = RunId::child(self.state.run_id, spawn.call_id, attempt);
        self.emit(SubagentStarted { spawn: spawn.clone(), turn_id, child_id, attempt, limits });
    }

    /// Takes back what an ended child did not need, and what it came to. The second time there is nothing to do.
    pub(super) fn settle_child(&mut self, report: &ChildReport) -> Result<(), Rejection> {
        let call_id = report.call_id;
        let known = self.state.children.get(&call_id).filter(|child| child.child_id == report.child_id);
        let Some(child) = known.cloned() else { return Ok(()) };
        let ChildReport { child_id, outcome, rule, answer, spent, .. } = report.clone();
        match outcome {
            Outcome::Completed => {
                self.emit(SubagentCompleted { call_id, child_id, result: answer, spent, rule: Some(rule) });
            }
            Outcome::Cancelled => self.emit(SubagentCancelled { call_id, child_id, reason: answer.clone(), spent }),
            Outcome::Failed => {
                let limits = self.limits_of_another(&child, &spent);
                let again = limits.is_some();
                self.emit(SubagentFailed { call_id, child_id, reason: answer.clone(), rule, spent, again });
                if let Some(limits) = limits {
                    self.start_child(&child.spawn, child.turn_id, child.attempt + 1, limits);
                    return Ok(());
                }
            }
        }
        let failed = outcome != Outcome::Completed;
        if failed && child.spawn.on_failure == OnFailure::Fail && self.state.ending.is_none() {
            let words = format!("The agent `{}` did not do what it was started for.", child.spawn.agent);
            let text = Block::new(words, Trust::System, "runtime");
            self.begin_end(Ending { outcome: Outcome::Failed, rule: Rule::ChildFailed, text });
        }
        Ok(())
    }

    /// What another try may spend, if there is to be one.
    fn limits_of_another(&self, failed: &Child, spent: &Spent) -> Option<Limits> {
        let wanted = failed.spawn.on_failure == OnFailure::Retry && failed.attempt <= MAX_RETRIES;
        if !wanted || self.state.ending.is_some() {
            return None;
        }
        // As it will be once the failed one is settled.
        let mut after = self.state.clone();
        after.children.remove(&failed.spawn.call_id);
        carve(&after, spent, std::slice::from_ref(&failed.spawn), self.now).ok()?.pop()
    }

    pub(super) fn end_child(&mut self, by: &ByParent) -> Result<(), Rejection> {
        self.expect_parent(by.parent)?;
        if self.state.ending.is_none() {
            let text = Block::new(&by.reason, Trust::System, "runtime");
            self.begin_end(Ending { outcome: Outcome::Cancelled, rule: Rule::ParentEnded, text });
        }
        Ok(())
    }

    pub(super) fn hold_child(&mut self, hold: &HoldChild) -> Result<(), Rejection> {
        self.expect_parent(hold.parent)?;
        self.refuse_if_ending()?;
        if hold.hold == self.state.held_by_parent {
            return Ok(());
        }
        let by = format!("run:{}", hold.parent);
        if hold.hold {
            self.emit(RunPaused { by, by_parent: true });
        } else {
            self.emit(RunResumed { by, by_parent: true });
            self.say_again();
        }
        Ok(())
    }

    fn expect_parent(&self, parent: RunId) -> Result<(), Rejection> {
        let is_it = self.state.parent.as_ref().is_some_and(|known| known.run_id == parent);
        if is_it { Ok(()) } else { Err(Rejection::NotTheParent(parent)) }
    }
}

/// What each of `spawns` may spend, out of what `parent` has left once it has spent `more`. Those that say how much they want
/// are given that, or what is there; the others share what is there with each other and with the parent.
fn carve(parent: &RunState, more: &Spent, spawns: &[SpawnRequest], now: Timestamp) -> Result<Vec<Limits>, String> {
    let mut left = parent.left(now).without(more);
    let mut carved = Vec::with_capacity(spawns.len());
    for (number, spawn) in spawns.iter().enumerate() {
        let shares = u32::try_from(spawns.len() - number + 1).unwrap_or(u32::MAX);
        let limits = if broken(Mutant::CarvesTooMuch) {
            spawn.limits.clone()
        } else {
            spawn.limits.or(&left.divided(shares)).stricter(&left)
        };
        if let Some(limit) = limits.nothing_left() {
            return Err(format!("there is too little left of the budget ({limit}) for the agent `{}`", spawn.agent));
        }
        left = left.without(&limits.as_spent());
        carved.push(limits);
    }
    Ok(carved)
}
