//! Folding events into state. Total: no event can fail, since `decide` made it from a state that allowed it.

mod calls;
mod steering;
mod waits;

use crate::{
    call::ArtifactRef,
    event::{Ending, Event, EventData, RunCreated, RunRevised, Speaker, TurnCompleted, TurnRejected},
    fork::SIMULATED,
    ids::{CallId, RunId, TimerId},
    mutants::{Mutant, broken},
    state::{Entry, Fact, FactKind, MAX_REMEMBERED, RunState, Wake},
    trust::{Block, Trust},
    wait::{Condition, WakeKind},
};

/// An event of a run that comes before `run.created`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log of run {run_id} starts with `{event_type}` instead of `run.created`")]
pub struct HeadlessLog {
    /// Which run.
    pub run_id: RunId,
    /// What came first.
    pub event_type: &'static str,
}

/// The state after `event`, from the state before it (none before the first).
///
/// # Errors
/// [`HeadlessLog`] if there is no state yet and the event does not make one.
pub fn apply(state: Option<RunState>, run_id: RunId, event: &Event) -> Result<RunState, HeadlessLog> {
    match (state, &event.data) {
        (None, EventData::RunCreated(created)) => Ok(created_state(run_id, event, created)),
        (None, other) => Err(HeadlessLog { run_id, event_type: other.type_name() }),
        (Some(mut state), _) => {
            state.fold(event);
            Ok(state)
        }
    }
}

fn created_state(run_id: RunId, event: &Event, created: &RunCreated) -> RunState {
    let mut state = RunState {
        run_id,
        tenant: created.tenant.clone(),
        seq: event.seq,
        created_at: event.at,
        updated_at: event.at,
        agent: created.agent.clone(),
        agent_digest: created.agent_digest.clone(),
        objective: created.objective.clone(),
        acceptance: created.acceptance.clone(),
        conversation_id: created.conversation_id,
        metadata: created.metadata.clone(),
        sampled: created.sampled,
        trigger: created.trigger.clone(),
        parent: created.parent.as_deref().cloned(),
        roles: created.roles.clone(),
        tools: created.tools.as_ref().map(|tools| tools.iter().cloned().collect()),
        origin: None,
        simulated: created.parent.as_ref().is_some_and(|parent| parent.simulated),
        revision: 0,
        parallel_wake: created.parallel_wake,
        debounce: created.debounce,
        limits: created.limits.clone(),
        spent: Default::default(),
        children_spent: Default::default(),
        given: created.limits.clone(),
        lowest_trust: created.objective.trust,
        queued: true,
        paused: false,
        held_by_operator: false,
        held_by_parent: false,
        ending: None,
        ended: false,
        turn: None,
        turns_opened: 0,
        rejected_in_row: 0,
        wake: None,
        facts: Default::default(),
        facts_omitted: 0,
        history: Default::default(),
        tools_at: None,
        summary: None,
        history_lost: 0,
        compactions: 0,
        compaction_stopped: None,
        last_reset: 0,
        resets_failed: 0,
        reset_tried: 0,
        recent: Default::default(),
        plan_idle: 0,
        plan_scope: 0,
        drift: None,
        verification: None,
        verdicts: Vec::new(),
        refusals: 0,
        judged: 0,
        parked: None,
        plan: Vec::new(),
        plan_revision: 0,
        undo: Default::default(),
        calls: Default::default(),
        children: Default::default(),
        wait: None,
        wait_since: None,
        last_wait: None,
        timers: Default::default(),
        approvals: Default::default(),
        endorsed: Default::default(),
        decided: Default::default(),
        artifacts: Default::default(),
        skills: Default::default(),
        consumed: Default::default(),
        waits_from: Default::default(),
    };
    state.fact(event, FactKind::Input, "The run was started with this input", created.input.clone(), None);
    if state.simulated {
        let block = Block::new(SIMULATED, Trust::System, "runtime");
        state.fact(event, FactKind::Notice, "This run is part of a fork", block, None);
    }
    if let Some(trigger) = &created.trigger {
        state.consumed.insert(trigger.resource_key.clone(), trigger.position);
    }
    state
}

impl RunState {
    pub(crate) fn fold(&mut self, event: &Event) {
        self.seq = event.seq;
        self.updated_at = event.at;
        match &event.data {
            EventData::RunCreated(_) | EventData::RunWaiting(_) => {}
            EventData::RunCancelRequested(requested) => {
                self.ending = Some(requested.ending.clone());
                self.queued = false;
                self.turn = None;
            }
            EventData::RunQueued(_) => self.queued = true,
            EventData::RunRunnable(opened) => self.open_turn(event.seq, opened),
            EventData::RunPaused(paused) => self.hold(paused.by_parent, true),
            EventData::RunResumed(resumed) => self.hold(resumed.by_parent, false),
            EventData::RunCompleted(end) => self.end(&end.ending),
            EventData::RunFailed(end) => self.end(&end.ending),
            EventData::RunCancelled(end) => self.end(&end.ending),
            EventData::MessageAdded(message) => match message.role {
                Speaker::Operator => {
                    self.fact(event, FactKind::Message, "The operator writes", message.block.clone(), None);
                    self.meet(event, &mut |_, on| matches!(on, Condition::OperatorInput { approval_id: None }));
                    if !broken(Mutant::MessageWakesNobody) {
                        self.wake(event, WakeKind::OperatorInput);
                    }
                }
                Speaker::Agent => self.entry(event, "You told the operator", message.block.clone()),
            },
            EventData::ArtifactCreated(created) => self.keep_artifact(created.artifact.clone()),
            EventData::ArtifactUpdated(updated) => self.keep_artifact(updated.artifact.clone()),
            // Whoever judges arguments reads it in the log.
            EventData::TrustDeclassified(_) => {}
            // Memories are kept beside the log: what a later turn is told of them comes in with that turn.
            EventData::MemoryWritten(_) | EventData::MemoryDeleted(_) => {}
            EventData::SkillOpened(opened) => {
                self.skills.insert(opened.skill.name.clone(), opened.skill.digest.clone());
            }
            EventData::BudgetExceeded(_)
            | EventData::BudgetChanged(_)
            | EventData::PlanUpdated(_)
            | EventData::AcceptanceRequested(_)
            | EventData::AcceptanceJudged(_)
            | EventData::ContextCompacted(_)
            | EventData::ContextReset(_)
            | EventData::DriftNoticed(_) => self.fold_steering(event),
            EventData::ExternalMatched(matched) => {
                let external = &matched.external;
                self.consume(external);
                let title = format!("Event `{}` from `{}`", external.event_type, external.source);
                self.fact(event, FactKind::External, title, matched.block.clone(), None);
                self.meet(event, &mut |leaf, _| leaf == usize::from(matched.leaf));
            }
            EventData::RunForked(forked) => self.fold_fork(event, forked),
            EventData::RunRevised(revised) => self.fold_revision(revised),
            EventData::TurnCompleted(turn) => self.fold_turn(event, turn),
            EventData::TurnRejected(turn) => self.fold_rejection(event, turn),
            EventData::TurnCharged(charged) => self.spent.add(&charged.usage),
            _ => self.fold_call(event),
        }
    }

    fn fold_revision(&mut self, revised: &RunRevised) {
        self.revision = revised.revision;
        if let Some(objective) = &revised.objective {
            self.lowest_trust = self.lowest_trust.join(objective.trust);
            self.objective = objective.clone();
        }
        if let Some(acceptance) = &revised.acceptance {
            self.acceptance.clone_from(acceptance);
            self.verdicts.clear();
            // What was being looked into was something else.
            self.verification = None;
        }
        if let Some(tools) = &revised.tools {
            self.tools = Some(tools.iter().cloned().collect());
        }
    }

    fn fold_turn(&mut self, event: &Event, turn: &TurnCompleted) {
        self.spent.turns += 1;
        self.spent.add(&turn.usage);
        self.rejected_in_row = 0;
        // Whatever was being looked into: the run goes on instead.
        self.verification = None;
        // Also what came in beside the log, such as a memory: what the turn made of it stays for the turns after it.
        self.lowest_trust = self.lowest_trust.join(turn.trust);
        self.turn = None;
        if self.wake.is_some_and(|wake| wake.seq <= turn.based_on || broken(Mutant::TurnSwallowsWakes)) {
            self.wake = None;
        }
        self.facts_omitted = 0;
        let was_seen = |fact: &Fact| fact.seq <= turn.based_on || broken(Mutant::TurnSwallowsFacts);
        let seen = self.facts.iter().take_while(|fact| was_seen(fact)).count();
        for fact in self.facts.drain(..seen).collect::<Vec<_>>() {
            self.push_history(Entry { seq: fact.seq, at: fact.at, title: fact.title, block: fact.block });
        }
        if let Some(text) = &turn.text {
            self.entry(event, "You said", text.clone());
        }
    }

    fn fold_rejection(&mut self, event: &Event, turn: &TurnRejected) {
        self.spent.turns += 1;
        self.spent.add(&turn.usage);
        if !self.is_open_turn(turn.turn_id) {
            return;
        }
        self.turn = None;
        self.rejected_in_row += 1;
        // They repeat what the model wrote, which is believed no more than what it had seen, and is never an instruction.
        let trust = self.lowest_trust.join(Trust::Trusted);
        let block = Block::new(turn.problems.join("\n"), trust, "model");
        self.fact(event, FactKind::Notice, "Your last answer could not be used", block, None);
    }

    fn hold(&mut self, by_parent: bool, held: bool) {
        if by_parent {
            self.held_by_parent = held;
        } else {
            self.held_by_operator = held;
        }
        self.paused = self.held_by_parent || self.held_by_operator;
    }

    fn keep_artifact(&mut self, artifact: ArtifactRef) {
        self.artifacts.retain(|kept| kept.artifact_id != artifact.artifact_id);
        if self.artifacts.len() == MAX_REMEMBERED {
            self.artifacts.pop_front();
        }
        self.lowest_trust = self.lowest_trust.join(artifact.trust);
        self.artifacts.push_back(artifact);
    }

    fn end(&mut self, ending: &Ending) {
        self.ending = Some(ending.clone());
        self.ended = true;
        self.queued = false;
        self.turn = None;
    }

    fn fact(&mut self, event: &Event, kind: FactKind, title: impl Into<String>, block: Block, call_id: Option<CallId>) {
        self.push_fact(Fact { seq: event.seq, at: event.at, kind, title: title.into(), block, call_id });
    }

    fn entry(&mut self, event: &Event, title: impl Into<String>, block: Block) {
        self.push_history(Entry { seq: event.seq, at: event.at, title: title.into(), block });
    }

    fn wake(&mut self, event: &Event, kind: WakeKind) {
        self.wake = Some(Wake { seq: event.seq, kind });
    }
}

/// The timer of a call that the event `seq` puts off.
pub(crate) fn retry_timer(run: RunId, call: CallId, seq: crate::Seq) -> TimerId {
    TimerId::derive(run, &format!("retry/{call}/{seq}"))
}
