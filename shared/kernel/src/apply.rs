//! Folding events into state. Total: no event can fail, since `decide` made it from a state that allowed it.

mod steering;

use std::collections::BTreeMap;

use crate::{
    budget::Spent,
    call::{Approval, Call, CallStatus, Compensation, Grant, PutOff},
    child::Child,
    event::{
        ApprovalGranted, Ending, Event, EventData, ExternalRef, Finding, ObservationRecorded, Rule, RunCreated,
        RunRevised, Speaker, SubagentCancelled, SubagentStarted, TimerPurpose, ToolFailed, ToolProgressed,
        ToolRequested, ToolStarted, TurnCompleted, TurnRejected,
    },
    fork::SIMULATED,
    ids::{CallId, RunId, TimerId},
    mutants::{Mutant, broken},
    state::{Entry, Fact, FactKind, MAX_CONSUMED, MAX_UNDO, RunState, SCHEMA_CHANGED, TITLE_BYTES, Timer, Undo, Wake},
    trust::{Block, Trust, excerpt},
    wait::{Condition, Leaf, Wait, WakeKind},
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
            _ => self.fold_call_or_wait(event),
        }
    }

    fn fold_call_or_wait(&mut self, event: &Event) {
        match &event.data {
            EventData::ToolRequested(requested) => self.fold_request(event, requested),
            EventData::ToolStarted(started) => self.fold_start(event, started),
            EventData::ToolProgressed(progressed) => self.fold_progress(event, progressed),
            EventData::ToolDue(due) => {
                if let Some(call) = self.calls.get_mut(&due.call_id) {
                    call.put_off = None;
                }
            }
            EventData::ToolDenied(denied) => {
                self.see_tools(event, &denied.code);
                let block = denied.reason.clone();
                self.close_call(event, denied.call_id, FactKind::Failure, "was denied", block);
            }
            EventData::ToolCompleted(done) => {
                self.remember_to_undo(done.call_id);
                self.close_call(event, done.call_id, FactKind::Result, "completed", done.result.block.clone());
            }
            EventData::ToolFailed(ToolFailed { call_id, failure, .. }) => {
                self.see_tools(event, &failure.code);
                self.close_call(event, *call_id, FactKind::Failure, "failed", failure.block.clone());
            }
            EventData::ToolCancelled(cancelled) => {
                let block = Block::new(&cancelled.reason, Trust::System, "runtime");
                self.close_call(event, cancelled.call_id, FactKind::Failure, "was cancelled", block);
            }
            EventData::ToolInDoubt(doubt) => {
                if let Some(call) = self.calls.get_mut(&doubt.call_id) {
                    call.status = CallStatus::InDoubt;
                }
            }
            EventData::ToolReconciled(reconciled) => match reconciled.finding {
                Finding::Done => {}
                Finding::NotDone => {
                    if let Some(call) = self.calls.get_mut(&reconciled.call_id) {
                        call.status = if call.grant.is_some() { CallStatus::Approved } else { CallStatus::Requested };
                    }
                }
                Finding::Unknown => {
                    let title = "has an unknown outcome: it may or may not have happened, and is not repeated";
                    self.close_call(event, reconciled.call_id, FactKind::Failure, title, reconciled.evidence.clone());
                }
            },
            EventData::ObservationRecorded(recorded) => self.fold_observation(event, recorded),
            EventData::SubagentStarted(started) => self.fold_child(event, started),
            EventData::SubagentCompleted(done) => {
                // An evaluator says yes by completing; words alone say nothing.
                let says_yes = matches!(done.rule, Some(Rule::GoalMet | Rule::GoalVerified));
                if let Some(verification) = &mut self.verification {
                    verification.end_call(done.call_id, says_yes);
                }
                self.close_child(event, done.call_id, &done.spent, FactKind::Result, "completed", &done.result);
            }
            EventData::SubagentFailed(failed) if failed.again => {
                self.children_spent = self.children_spent.plus(&failed.spent);
                self.children.remove(&failed.call_id);
                self.lowest_trust = self.lowest_trust.join(failed.reason.trust);
            }
            EventData::SubagentFailed(failed) => {
                self.close_child(event, failed.call_id, &failed.spent, FactKind::Failure, "failed", &failed.reason);
            }
            EventData::SubagentCancelled(cancelled) => {
                let SubagentCancelled { call_id, spent, reason, .. } = cancelled;
                self.close_child(event, *call_id, spent, FactKind::Failure, "was cancelled", reason);
            }
            _ => self.fold_wait(event),
        }
    }

    fn fold_wait(&mut self, event: &Event) {
        match &event.data {
            EventData::WaitRegistered(registered) => {
                self.wait = Some(registered.wait.clone());
                self.wait_since = Some(event.at);
                self.last_wait = self.wait.clone();
                self.waits_from = self.consumed_of(&registered.wait);
            }
            EventData::WaitSatisfied(satisfied) => {
                self.wait = None;
                self.wake(event, satisfied.kind);
            }
            EventData::WaitExpired(_) => {
                self.wait = None;
                let block = Block::new("What was waited for did not happen in time.", Trust::System, "runtime");
                self.fact(event, FactKind::Timer, "The wait's deadline came", block, None);
                self.wake(event, WakeKind::Timer);
            }
            EventData::WaitCancelled(_) => self.wait = None,
            EventData::TimerSet(set) => {
                self.timers.insert(set.timer_id, Timer { due: set.due, purpose: set.purpose });
            }
            EventData::TimerFired(fired) => {
                let timer = self.timers.remove(&fired.timer_id);
                if timer.is_some_and(|timer| timer.purpose == TimerPurpose::Wait) {
                    let block = Block::new(format!("It was due at {}.", fired.due), Trust::System, "runtime");
                    self.fact(event, FactKind::Timer, "A timer fired", block, None);
                }
                let id = fired.timer_id;
                self.meet(event, &mut |_, on| matches!(on, Condition::Timer { timer_id, .. } if *timer_id == id));
            }
            EventData::TimerCancelled(cancelled) => {
                for timer in &cancelled.timer_ids {
                    self.timers.remove(timer);
                }
            }
            EventData::ApprovalRequested(requested) => {
                let approval = &requested.approval;
                self.lowest_trust = self.lowest_trust.join(approval.trust).join(approval.question.trust);
                let kept = Approval { shown: Default::default(), ..approval.clone() };
                self.approvals.insert(approval.approval_id, kept);
                if let Some(call) = approval.call_id.and_then(|call| self.calls.get_mut(&call)) {
                    call.status = CallStatus::AwaitingApproval;
                    call.put_off = None;
                    call.approval_id = Some(approval.approval_id);
                    call.grant = None;
                }
            }
            EventData::ApprovalGranted(granted) => self.fold_grant(event, granted),
            EventData::ApprovalDenied(denied) => {
                let words = denied.reason.as_deref().unwrap_or("no reason given");
                let block = Block::new(words, Trust::Operator, format!("operator:{}", denied.by));
                self.fold_answer(event, denied.approval_id, "denied", "The operator said no", block);
            }
            EventData::ApprovalExpired(expired) => {
                let block = Block::new(&expired.reason, Trust::System, "runtime");
                self.fold_answer(event, expired.approval_id, "expired", "Nobody answered the question", block);
            }
            _ => {}
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

    fn fold_request(&mut self, event: &Event, requested: &ToolRequested) {
        let request = requested.call.clone();
        match request.compensation {
            Compensation::Of(undone) => self.undo.retain(|undo| undo.call_id != undone),
            Compensation::None | Compensation::Declared => self.spent.tool_calls += 1,
        }
        let who = if request.is_compensation() { "The runtime undoes an effect with" } else { "You called" };
        let title = format!("{who} `{}`", request.tool);
        self.entry(event, title, Block::new(request.arguments.to_string(), request.trust, "model"));
        if !request.is_compensation() {
            self.remember_asked(event, request.call_id, &request.tool, &request.arguments);
        }
        self.calls.insert(
            request.call_id,
            Call {
                request,
                turn_id: requested.turn_id,
                asked: event.seq,
                status: CallStatus::Requested,
                attempts: 0,
                started_at: None,
                executor: None,
                approval_id: None,
                grant: None,
                failed_attempts: 0,
                put_off: None,
                handle: None,
            },
        );
    }

    fn fold_start(&mut self, event: &Event, started: &ToolStarted) {
        if let Some(call) = self.calls.get_mut(&started.call_id) {
            call.status = CallStatus::Started;
            call.attempts = started.attempt;
            call.started_at = Some(event.at);
            call.executor = Some(started.executor.clone());
            call.put_off = None;
        }
    }

    fn fold_progress(&mut self, event: &Event, progressed: &ToolProgressed) {
        let ToolProgressed { call_id, attempt, put_off, handle, asks, .. } = progressed;
        let run_id = self.run_id;
        let Some(call) = self.calls.get_mut(call_id) else { return };
        call.failed_attempts += u32::from(attempt.is_some());
        if let Some(until) = put_off {
            call.status = if call.grant.is_some() { CallStatus::Approved } else { CallStatus::Requested };
            call.put_off = Some(PutOff { timer_id: retry_timer(run_id, *call_id, event.seq), until: *until });
        }
        if handle.is_some() {
            call.handle.clone_from(handle);
            if call.status == CallStatus::InDoubt {
                // It was found where it goes on.
                call.status = CallStatus::Started;
            }
        }
        if let Some(asks) = asks {
            let title = format!("`{}` asks for something", call.request.tool);
            self.fact(event, FactKind::Observation, title, asks.clone(), Some(*call_id));
            if !broken(Mutant::ObservationWakesNobody) {
                self.wake(event, WakeKind::TaskResult);
            }
        }
    }

    fn remember_to_undo(&mut self, call_id: CallId) {
        let Some(request) = self.calls.get(&call_id).map(|call| &call.request) else { return };
        // Nothing that a simulated run records has happened because of it.
        if request.compensation == Compensation::Declared && !self.simulated {
            let undo = Undo { call_id, trust: request.trust };
            if self.undo.len() == MAX_UNDO {
                self.undo.pop_front();
            }
            self.undo.push_back(undo);
        }
    }

    fn fold_observation(&mut self, event: &Event, recorded: &ObservationRecorded) {
        let observation = &recorded.observation;
        if let Some(asked) = &recorded.asked {
            self.spent.add(&asked.usage);
        }
        let source = observation.call_id.map_or_else(|| "observer".to_owned(), |call| format!("observer/{call}"));
        let title = match &observation.decision {
            Some(why) => format!("Observation ({}): {why}", observation.phase),
            None => format!("Observation ({})", observation.phase),
        };
        let block = Block::new(observation.text(), Trust::Untrusted, source);
        if observation.decision.is_some() {
            self.fact(event, FactKind::Observation, title, block, observation.call_id);
            if !broken(Mutant::ObservationWakesNobody) {
                self.wake(event, WakeKind::TaskResult);
            }
        } else {
            // Normal progress is folded: only the latest of a call is kept, so that a flood stays one fact.
            let kept_title = excerpt(&title, TITLE_BYTES);
            let same = |fact: &Fact| fact.title == kept_title && fact.call_id == observation.call_id;
            self.facts.retain(|fact| !same(fact));
            self.fact(event, FactKind::Observation, title, block, observation.call_id);
        }
    }

    fn fold_grant(&mut self, event: &Event, granted: &ApprovalGranted) {
        let call_id = self.approvals.get(&granted.approval_id).and_then(|approval| approval.call_id);
        if let Some(call) = call_id.and_then(|call| self.calls.get_mut(&call)) {
            call.status = CallStatus::Approved;
            if let Some(arguments) = &granted.arguments {
                call.request.arguments = arguments.clone();
            }
            call.grant = Some(Grant {
                approval_id: granted.approval_id,
                binding: granted.binding.clone(),
                standing: granted.standing,
            });
            self.remember_decided(granted.approval_id, "approved");
        } else {
            let words = granted.reason.as_deref().unwrap_or("Yes.");
            let block = Block::new(words, Trust::Operator, format!("operator:{}", granted.by));
            self.fold_answer(event, granted.approval_id, "approved", "The operator said yes", block);
        }
    }

    /// An answer to a question is a fact; an answer about a call is not, the end of the call will be. Neither is an answer that
    /// a tool asked for while it was at work: it goes to the tool.
    fn fold_answer(&mut self, event: &Event, id: crate::ApprovalId, verdict: &str, title: &str, block: Block) {
        let is_question = self.approvals.get(&id).is_some_and(Approval::is_question);
        self.fold_limit_answer(event, id, verdict == "approved");
        self.remember_decided(id, verdict);
        if is_question {
            self.fact(event, FactKind::Decision, title, block, None);
            self.meet(
                event,
                &mut |_, on| matches!(on, Condition::OperatorInput { approval_id } if *approval_id == Some(id)),
            );
            // Like a message: what a person says is heard, also when the wait that asked has been replaced.
            if !broken(Mutant::AnswerWakesNobody) {
                self.wake(event, WakeKind::OperatorInput);
            }
        }
    }

    fn close_call(&mut self, event: &Event, call_id: CallId, kind: FactKind, how: &str, block: Block) {
        let stays = broken(Mutant::EndsTwice);
        let ended = if stays { self.calls.get(&call_id).cloned() } else { self.calls.remove(&call_id) };
        if let Some(call) = ended {
            let title = format!("`{}` {how}", call.request.tool);
            self.note_end(call_id, kind == FactKind::Result, &block);
            self.fact(event, kind, title, block, Some(call_id));
            self.meet_end(event, call_id);
        }
    }

    /// Being told that a tool has changed is what moves a run on to the tools as they are then.
    fn see_tools(&mut self, event: &Event, code: &str) {
        if code == SCHEMA_CHANGED {
            self.tools_at = Some(event.at);
        }
    }

    fn hold(&mut self, by_parent: bool, held: bool) {
        if by_parent {
            self.held_by_parent = held;
        } else {
            self.held_by_operator = held;
        }
        self.paused = self.held_by_parent || self.held_by_operator;
    }

    fn fold_child(&mut self, event: &Event, started: &SubagentStarted) {
        let SubagentStarted { spawn, turn_id, child_id, attempt, limits } = started.clone();
        if attempt == 1 {
            self.entry(event, format!("You started the agent `{}`", spawn.agent), spawn.task.clone());
        }
        self.children.insert(spawn.call_id, Child { spawn, turn_id, child_id, attempt, limits });
    }

    fn close_child(&mut self, event: &Event, call: CallId, spent: &Spent, kind: FactKind, how: &str, block: &Block) {
        self.children_spent = self.children_spent.plus(spent);
        let stays = broken(Mutant::SettlesTwice);
        let ended = if stays { self.children.get(&call).cloned() } else { self.children.remove(&call) };
        if let Some(verification) = self.verification.as_mut().filter(|_| kind == FactKind::Failure) {
            verification.end_call(call, false);
        }
        if let Some(child) = ended {
            let title = format!("The agent `{}` {how}", child.spawn.agent);
            self.fact(event, kind, title, block.clone(), Some(call));
            self.meet_end(event, call);
        }
    }

    /// A call, or a child, has ended.
    fn meet_end(&mut self, event: &Event, call: CallId) {
        self.meet(event, &mut |_, on| match on {
            Condition::TaskResult { call_id } => *call_id == call && !broken(Mutant::EndMeetsNoWait),
            _ => false,
        });
    }

    fn meet(&mut self, event: &Event, meets: &mut dyn FnMut(usize, &Condition) -> bool) {
        if let Some(wait) = &mut self.wait {
            wait.on.meet(event.seq, meets);
        }
    }

    fn consume(&mut self, external: &ExternalRef) {
        let last = self.consumed.entry(external.resource_key.clone()).or_insert(external.position);
        *last = (*last).max(external.position);
        if self.consumed.len() > MAX_CONSUMED
            && let Some(oldest) = self.consumed.iter().min_by_key(|(_, position)| **position)
        {
            let oldest = oldest.0.clone();
            self.consumed.remove(&oldest);
        }
    }

    /// What was consumed of the keys that a wait names.
    fn consumed_of(&self, wait: &Wait) -> BTreeMap<String, i64> {
        let key = |leaf: &Leaf| match &leaf.condition {
            Condition::External(pattern) => Some(pattern.resource_key()),
            _ => None,
        };
        let consumed = |key: String| self.consumed.get(&key).map(|position| (key, *position));
        wait.on.leaves().into_iter().filter_map(key).filter_map(consumed).collect()
    }

    fn keep_artifact(&mut self, artifact: crate::call::ArtifactRef) {
        self.artifacts.retain(|kept| kept.artifact_id != artifact.artifact_id);
        if self.artifacts.len() == crate::state::MAX_REMEMBERED {
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
