//! Waits, timers, and the answers of people, folded.

use std::collections::BTreeMap;

use crate::{
    call::{Approval, CallStatus, Grant},
    event::{ApprovalGranted, Event, EventData, ExternalRef, TimerPurpose},
    ids::ApprovalId,
    mutants::{Mutant, broken},
    state::{FactKind, MAX_CONSUMED, RunState, Timer},
    trust::{Block, Trust},
    wait::{Condition, Leaf, Wait, WakeKind},
};

impl RunState {
    pub(super) fn fold_wait(&mut self, event: &Event) {
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
            EventData::ApprovalEndorsed(endorsed) => {
                self.endorsed.insert(endorsed.approval_id, endorsed.endorsement(event.at));
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

    fn fold_grant(&mut self, event: &Event, granted: &ApprovalGranted) {
        let call_id = self.approvals.get(&granted.approval_id).and_then(|approval| approval.call_id);
        if let Some(call) = call_id.and_then(|call| self.calls.get_mut(&call)) {
            call.status = CallStatus::Approved;
            // What was agreed to is tried out anew, however often it took until it could be asked about.
            call.failed_dry_runs = 0;
            if let Some(arguments) = &granted.arguments {
                call.request.arguments = arguments.clone();
            }
            call.grant = Some(Grant {
                approval_id: granted.approval_id,
                binding: granted.binding.clone(),
                standing: granted.standing,
                endorsed_by: granted.endorsed_by.clone(),
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
    fn fold_answer(&mut self, event: &Event, id: ApprovalId, verdict: &str, title: &str, block: Block) {
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

    pub(super) fn meet(&mut self, event: &Event, meets: &mut dyn FnMut(usize, &Condition) -> bool) {
        if let Some(wait) = &mut self.wait {
            wait.on.meet(event.seq, meets);
        }
    }

    pub(super) fn consume(&mut self, external: &ExternalRef) {
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
}
