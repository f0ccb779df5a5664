//! Committing and refusing what a turn came to.

use super::Decider;
use crate::{
    budget::LimitName,
    call::ArtifactRef,
    child::are_within,
    command::{ChargeTurn, EndRequest, PlanChange, RejectTurn, TurnOutcome, WaitRequest},
    event::{
        AcceptanceRequested, ApprovalRequested, ArtifactCreated, ArtifactUpdated, Ending, MemoryDeleted, MemoryWritten,
        MessageAdded, Outcome, PlanUpdated, Rule, RunWaiting, SkillOpened, Speaker, TimerPurpose, TimerSet,
        ToolRequested, TurnCharged, TurnCompleted, TurnRejected, WaitCancelled, WaitRegistered,
    },
    ids::WaitId,
    memory::{MAX_MEMORIES, MAX_SKILLS, MemoryChange, MemoryScope},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::{MAX_OPEN_CALLS, MAX_OPEN_QUESTIONS},
    trust::{Block, Trust},
    units::{Duration, later},
    wait::{Condition, Wait, WaitExpr},
};

/// Turns refused in a row that end a run.
const MAX_REJECTED_IN_ROW: u32 = 3;

impl Decider {
    pub(super) fn commit_turn(&mut self, outcome: &TurnOutcome) -> Result<(), Rejection> {
        if !self.state.is_open_turn(outcome.turn_id) && !broken(Mutant::CommitsAnyTurn) {
            return self.record_superseded(outcome);
        }
        let problems = self.problems(outcome);
        if !problems.is_empty() {
            return Err(Rejection::InvalidOutcome(problems));
        }
        // Whatever the planner says: a turn, and all that it makes, is believed no more than anything it may have seen.
        let most = if broken(Mutant::BelievesThePlanner) { Trust::Operator } else { self.state.lowest_trust };
        let outcome = &outcome.believed(most);
        let overtaken = self.has_fresh_message(outcome.based_on);
        self.emit_turn(outcome, overtaken);
        outcome.artifacts.iter().for_each(|artifact| self.keep_artifact(artifact));
        if let Some(PlanChange { steps, reason }) = outcome.plan.clone() {
            self.emit(PlanUpdated { steps, revision: self.state.plan_revision + 1, reason });
        }
        for block in &outcome.say {
            self.emit(MessageAdded { role: Speaker::Agent, block: block.clone() });
        }
        self.keep_for_later(outcome);
        if overtaken {
            // The operator wrote meanwhile: nothing new starts, and the next turn decides again.
            return Ok(());
        }
        for call in &outcome.calls {
            self.emit(ToolRequested { call: call.clone(), turn_id: outcome.turn_id });
        }
        self.spawn_children(outcome);
        self.register_wait(outcome);
        if let Some(EndRequest::CompleteIf { summary, checks }) = &outcome.end {
            let (turn_id, summary, checks) = (outcome.turn_id, summary.clone(), checks.clone());
            self.emit(AcceptanceRequested { turn_id, summary, checks });
            return Ok(());
        }
        match self.ending_of(outcome) {
            Some(ending) => self.begin_end(ending),
            None => self.say_waiting(outcome),
        }
        Ok(())
    }

    fn emit_turn(&mut self, outcome: &TurnOutcome, overtaken: bool) {
        let number = self.state.turn.as_ref().map_or(0, |turn| turn.number);
        let agents = outcome.spawns.iter().map(|spawn| format!("agent:{}", spawn.agent));
        let calls = outcome.calls.iter().map(|call| call.tool.clone()).chain(agents);
        self.emit(TurnCompleted {
            turn_id: outcome.turn_id,
            number,
            based_on: outcome.based_on,
            model: outcome.model.clone(),
            text: outcome.text.clone(),
            usage: outcome.usage,
            trust: outcome.trust,
            manifest: outcome.manifest.clone(),
            finish_reason: outcome.finish_reason.clone(),
            model_ms: outcome.model_ms,
            failures: outcome.failures.clone(),
            dropped_calls: if overtaken { calls.collect() } else { Vec::new() },
        });
    }

    /// What outlives the turn, or the run.
    fn keep_for_later(&mut self, outcome: &TurnOutcome) {
        let (turn_id, simulated) = (outcome.turn_id, self.state.simulated);
        // What a run remembers that is only tried out would change the runs that are not.
        for change in outcome.memories.iter().filter(|_| !simulated) {
            let memory_id = change.place().id(&self.state.tenant);
            match change.clone() {
                MemoryChange::Write { place, block, expires_at } => {
                    self.emit(MemoryWritten { memory_id, place, block, expires_at, turn_id });
                }
                MemoryChange::Delete { place } => self.emit(MemoryDeleted { memory_id, place, turn_id }),
            }
        }
        for skill in &outcome.skills {
            self.emit(SkillOpened { skill: skill.clone(), turn_id });
        }
    }

    pub(super) fn keep_artifact(&mut self, artifact: &ArtifactRef) {
        let artifact = artifact.clone();
        if artifact.version == 1 {
            self.emit(ArtifactCreated { artifact });
        } else {
            self.emit(ArtifactUpdated { artifact });
        }
    }

    /// The turn is over already (somebody was faster, or the run was ended): what it cost is kept all the same.
    fn record_superseded(&mut self, outcome: &TurnOutcome) -> Result<(), Rejection> {
        self.emit(TurnRejected {
            turn_id: outcome.turn_id,
            code: "superseded".to_owned(),
            problems: Vec::new(),
            usage: outcome.usage,
            failures: outcome.failures.clone(),
        });
        Ok(())
    }

    /// What is wrong with an outcome, in words for the model.
    fn problems(&self, outcome: &TurnOutcome) -> Vec<String> {
        let mut problems = Vec::new();
        if outcome.based_on > self.state.seq && !broken(Mutant::SeesTheFuture) {
            problems.push("the outcome is about a state that the run never had: look again".to_owned());
        }
        let ends = outcome.end.is_some();
        let asks = !outcome.calls.is_empty() || !outcome.spawns.is_empty();
        let checked = matches!(outcome.end, Some(EndRequest::CompleteIf { .. }));
        if ends && ((asks && !checked) || outcome.wait.is_some() || outcome.question.is_some()) {
            problems.push("`complete` and `fail` cannot stand beside tool calls, waits or questions".to_owned());
        }
        let completes = checked || matches!(outcome.end, Some(EndRequest::Complete(_)));
        problems.extend(self.acceptance_problems(outcome));
        if completes && !self.state.calls.is_empty() {
            let open: Vec<_> = self.state.calls.values().map(|call| call.request.tool.as_str()).collect();
            problems.push(format!("calls are still open ({}): wait for them before `complete`", open.join(", ")));
        }
        if completes && !self.state.children.is_empty() {
            let open: Vec<_> = self.state.children.values().map(|child| child.spawn.agent.as_str()).collect();
            problems.push(format!("agents are still at work ({}): wait for them before `complete`", open.join(", ")));
        }
        for call in &outcome.calls {
            let tool = std::slice::from_ref(&call.tool);
            if !are_within(tool, self.state.tools.as_ref()) && !broken(Mutant::ChildHasMoreTools) {
                problems.push(format!("this run may not use the tool `{}`", call.tool));
            }
        }
        problems.extend(self.spawn_problems(outcome));
        let allowed = self.state.committed().allows_calls(&self.state.limits, outcome.calls.len());
        if !allowed && !broken(Mutant::CallsBeyondBudget) {
            problems.push("the budget of tool calls is used up: complete or fail".to_owned());
        }
        if self.state.calls.len() + outcome.calls.len() > MAX_OPEN_CALLS {
            problems.push(format!("{MAX_OPEN_CALLS} calls may be open at a time: wait for some of them first"));
        }
        if outcome.question.is_some() && self.state.open_questions() >= MAX_OPEN_QUESTIONS {
            problems
                .push(format!("{MAX_OPEN_QUESTIONS} questions are open: wait for an answer instead of asking more"));
        }
        problems.extend(self.memory_problems(outcome));
        problems.extend(outcome.wait.as_ref().and_then(|wait| wait.on.problem()));
        let spawned = outcome.spawns.iter().map(|spawn| spawn.call_id);
        let mut seen: Vec<_> = outcome.calls.iter().map(|call| call.call_id).chain(spawned).collect();
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() < all || seen.iter().any(|call| self.state.is_open_call(*call)) {
            problems.push("two calls have the same id".to_owned());
        }
        if self.does_nothing(outcome) && !broken(Mutant::SleepsOnNothing) {
            problems.push("call a tool, wait for something, ask the operator, or complete".to_owned());
        }
        problems
    }

    fn memory_problems(&self, outcome: &TurnOutcome) -> Vec<String> {
        let mut problems = Vec::new();
        if outcome.memories.len() > MAX_MEMORIES {
            problems.push(format!("one answer remembers and forgets at most {MAX_MEMORIES} things"));
        }
        let mut places: Vec<_> = outcome.memories.iter().map(MemoryChange::place).collect();
        let all = places.len();
        places.sort_unstable();
        places.dedup();
        if places.len() < all {
            problems.push("one answer changes the same memory twice".to_owned());
        }
        // What every run of the tenant sees must not be written by whoever can get a text before one of them.
        let is_fooled = self.state.lowest_trust.join(outcome.trust) < Trust::Trusted;
        let for_all = outcome.memories.iter().any(|change| change.place().scope == MemoryScope::Tenant);
        if for_all && is_fooled && !broken(Mutant::PoisonsTheTenant) {
            let words = "you have seen untrusted data: remember and forget in the scope `agent` or `user`, not for all of the tenant";
            problems.push(words.to_owned());
        }
        let opened = outcome.skills.iter().filter(|skill| !self.state.skills.contains_key(&skill.name)).count();
        if self.state.skills.len() + opened > MAX_SKILLS {
            problems.push(format!("a run opens at most {MAX_SKILLS} skills"));
        }
        problems
    }

    fn does_nothing(&self, outcome: &TurnOutcome) -> bool {
        let asks = !outcome.calls.is_empty() || !outcome.spawns.is_empty();
        let asks = asks || outcome.wait.is_some() || outcome.question.is_some();
        !asks && outcome.end.is_none() && outcome.text.is_none() && !self.sleeps_on_something()
    }

    /// Whether something that was asked for earlier will wake the run.
    pub(super) fn sleeps_on_something(&self) -> bool {
        let of_others = !self.state.calls.is_empty() || !self.state.children.is_empty();
        of_others || self.state.wait.is_some() || !self.state.approvals.is_empty()
    }

    fn ending_of(&self, outcome: &TurnOutcome) -> Option<Ending> {
        match &outcome.end {
            Some(EndRequest::Complete(text)) => {
                Some(Ending { outcome: Outcome::Completed, rule: Rule::GoalMet, text: text.clone() })
            }
            Some(EndRequest::Fail(text)) => {
                Some(Ending { outcome: Outcome::Failed, rule: Rule::GaveUp, text: text.clone() })
            }
            Some(EndRequest::CompleteIf { .. }) => None,
            None => {
                let pending = self.state.wake.is_some() || self.state.results_complete();
                let text = outcome.text.clone().filter(|_| !self.sleeps_on_something() && !pending)?;
                Some(Ending { outcome: Outcome::Completed, rule: Rule::FinalAnswer, text })
            }
        }
    }

    fn register_wait(&mut self, outcome: &TurnOutcome) {
        let wait_id = WaitId::derive(self.state.run_id, &format!("wait/{}", outcome.turn_id));
        let Some(mut wait) = requested_wait(outcome, wait_id) else { return };
        if let Some(question) = &outcome.question {
            self.emit(ApprovalRequested { approval: question.clone() });
        }
        if let Some(old) = self.state.wait.as_ref().map(|old| old.wait_id) {
            self.emit(WaitCancelled { wait_id: old, reason: "replaced".to_owned() });
            self.cancel_wait_timers();
        }
        // A call that is named but no longer open ended while the turn was under way.
        let seq = self.state.seq;
        let state = &self.state;
        wait.on.meet(seq, &mut |_, on| match on {
            Condition::TaskResult { call_id } => !state.is_open_call(*call_id) && !broken(Mutant::WaitsForTheEnded),
            _ => false,
        });
        let timers: Vec<_> = wait.on.leaves().into_iter().filter_map(timer_of).collect();
        let deadline = wait.deadline.map(|due| (wait.deadline_timer(self.state.run_id), due));
        self.emit(WaitRegistered { wait });
        for (timer_id, due) in timers {
            self.emit(TimerSet { timer_id, due, purpose: TimerPurpose::Wait });
        }
        if let Some((timer_id, due)) = deadline {
            self.emit(TimerSet { timer_id, due, purpose: TimerPurpose::Deadline });
        }
    }

    fn say_waiting(&mut self, outcome: &TurnOutcome) {
        let asked = outcome.wait.is_some() || outcome.question.is_some();
        let kinds = self.state.wake_kinds();
        let until = self.state.wait.as_ref().and_then(|wait| wait.deadline);
        if asked && self.state.wait.as_ref().is_some_and(|wait| !wait.on.is_met()) {
            self.emit(RunWaiting { kinds: kinds.into_iter().collect(), until });
        }
    }

    pub(super) fn reject_turn(&mut self, reject: &RejectTurn) -> Result<(), Rejection> {
        if !self.state.is_open_turn(reject.turn_id) {
            return Err(Rejection::StaleTurn(reject.turn_id));
        }
        self.emit(TurnRejected {
            turn_id: reject.turn_id,
            code: reject.code.clone(),
            problems: reject.problems.clone(),
            usage: reject.usage,
            failures: reject.failures.clone(),
        });
        let rule = match reject.code.as_str() {
            "no_progress" => Some(Rule::NoProgress),
            "safety" => Some(Rule::Safety),
            "provider" => Some(Rule::Unrecoverable),
            _ => (self.state.rejected_in_row >= MAX_REJECTED_IN_ROW).then_some(Rule::Unrecoverable),
        };
        let out_of_calls = !self.state.committed().allows_calls(&self.state.limits, 1);
        if rule == Some(Rule::Unrecoverable) && reject.code != "provider" && out_of_calls {
            // It goes on asking for what it has used up.
            self.reach_limit(LimitName::ToolCalls, "The budget of tool calls is used up.");
        } else if let Some(rule) = rule {
            // They repeat what models wrote and providers said.
            let trust = self.state.lowest_trust.join(Trust::Trusted);
            let text = Block::new(reject.problems.join("\n"), trust, "runtime");
            self.begin_end(Ending { outcome: Outcome::Failed, rule, text });
        } else {
            let wait = Duration::from_secs(1 << self.state.rejected_in_row.min(6));
            self.open_turn(None, Some(later(self.now, wait)));
        }
        Ok(())
    }

    /// What was paid for is kept, whatever became of the turn meanwhile. One that is open stays so, unless that was the last of
    /// the budget; of a held run this comes out when it goes on.
    pub(super) fn charge_turn(&mut self, charge: &ChargeTurn) -> Result<(), Rejection> {
        let ChargeTurn { turn_id, paid_for, reason, usage, failures } = charge.clone();
        self.emit(TurnCharged { turn_id, paid_for, reason, usage, failures });
        let asks_a_model = self.state.turn.is_some() && !self.state.is_to_be_judged();
        let goes_on = asks_a_model && self.state.ending.is_none() && !self.state.paused;
        if goes_on && self.state.settled().forbids_turn(&self.state.limits).is_some() {
            self.open_turn(None, None);
        }
        Ok(())
    }
}

fn requested_wait(outcome: &TurnOutcome, wait_id: WaitId) -> Option<Wait> {
    let answer = outcome
        .question
        .as_ref()
        .map(|question| WaitExpr::from(Condition::OperatorInput { approval_id: Some(question.approval_id) }));
    let (on, request) = match (&outcome.wait, answer) {
        (Some(request), Some(answer)) => (WaitExpr::Any(vec![request.on.clone(), answer]), Some(request)),
        (Some(request), None) => (request.on.clone(), Some(request)),
        (None, Some(answer)) => (answer, None),
        (None, None) => return None,
    };
    let blank = WaitRequest {
        on: on.clone(),
        why: "the operator was asked".to_owned(),
        assumes: None,
        expects: None,
        deadline: None,
    };
    let request = request.unwrap_or(&blank);
    Some(Wait {
        wait_id,
        on,
        why: request.why.clone(),
        assumes: request.assumes.clone(),
        expects: request.expects.clone(),
        deadline: request.deadline,
    })
}

fn timer_of(leaf: &crate::wait::Leaf) -> Option<(crate::TimerId, jiff::Timestamp)> {
    match leaf.condition {
        Condition::Timer { timer_id, due } => Some((timer_id, due)),
        _ => None,
    }
}
