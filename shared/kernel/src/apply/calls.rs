//! What becomes of calls, of child runs, and of what is seen of them, folded.

use super::retry_timer;
use crate::{
    budget::Spent,
    call::{Call, CallStatus, Compensation, PutOff},
    child::Child,
    event::{
        Event, EventData, Finding, ObservationRecorded, Rule, SubagentCancelled, SubagentStarted, ToolFailed,
        ToolProgressed, ToolRequested, ToolStarted,
    },
    ids::CallId,
    mutants::{Mutant, broken},
    state::{Fact, FactKind, MAX_UNDO, RunState, SCHEMA_CHANGED, TITLE_BYTES, Undo},
    trust::{Block, Trust, excerpt},
    wait::{Condition, WakeKind},
};

impl RunState {
    pub(super) fn fold_call(&mut self, event: &Event) {
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
        self.calls.insert(request.call_id, Call::requested(request, requested.turn_id, event.seq));
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
        match attempt {
            Some(attempt) if attempt.dry_run => call.failed_dry_runs += 1,
            Some(_) => call.failed_attempts += 1,
            None => {}
        }
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
}
