//! What decisions mean for the tables beside the log.
//!
//! `runs` changes with every commit and has its own arrays (see `append.rs`). What is here are the rarer rows, gathered for a
//! whole batch in one JSON document whose fields `append_side` reads.

use kernel::{
    ApprovalId, CallId, Event, EventData, RunId, RunState, TimerId, Timestamp, WaitId,
    call::{Approval, ArtifactRef, CallStatus, Endorsement},
    event::TimerPurpose,
    tool::CallKind,
    wait::{Condition, Wait},
};
use serde::Serialize;

/// The rarer rows of a batch. What is not there costs the statement nothing.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Side {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waits: Vec<WaitRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waits_gone: Vec<WaitGone>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timers: Vec<TimerRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timers_gone: Vec<TimerGone>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<CallRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls_gone: Vec<CallGone>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    approvals: Vec<ApprovalRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    endorsed: Vec<EndorsedRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decided: Vec<DecidedRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    artifacts: Vec<ArtifactRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<ChildRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children_gone: Vec<ChildGone>,
}

#[derive(Debug, Serialize)]
struct WaitRow {
    run_id: RunId,
    wait_id: WaitId,
    leaf: usize,
    tenant: String,
    kind: &'static str,
    resource_key: Option<String>,
    event_type: Option<String>,
    filter: Option<String>,
    exclusive: bool,
    due: Option<Timestamp>,
    deadline: Option<Timestamp>,
    why: String,
    since: Timestamp,
}

#[derive(Debug, Serialize)]
struct WaitGone {
    run_id: RunId,
    wait_id: WaitId,
}

#[derive(Debug, Serialize)]
struct TimerRow {
    timer_id: TimerId,
    run_id: RunId,
    due: Timestamp,
    purpose: TimerPurpose,
}

#[derive(Debug, Serialize)]
struct TimerGone {
    run_id: RunId,
    timer_id: TimerId,
}

#[derive(Debug, Serialize)]
struct CallRow {
    call_id: CallId,
    run_id: RunId,
    tenant: String,
    tool: String,
    activity: bool,
    status: &'static str,
    executor: String,
    started_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct CallGone {
    run_id: RunId,
    call_id: CallId,
}

#[derive(Debug, Serialize)]
struct ApprovalRow {
    approval_id: ApprovalId,
    run_id: RunId,
    tenant: String,
    call_id: Option<CallId>,
    tool: Option<String>,
    question: String,
    arguments: Option<serde_json::Value>,
    binding: kernel::call::Binding,
    trust: &'static str,
    reasons: Vec<String>,
    two_people: bool,
    #[serde(skip_serializing_if = "kernel::call::Shown::is_empty")]
    shown: kernel::call::Shown,
    requested_at: Timestamp,
    expires_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct EndorsedRow {
    run_id: RunId,
    approval_id: ApprovalId,
    endorsed: Endorsement,
}

#[derive(Debug, Serialize)]
struct DecidedRow {
    run_id: RunId,
    approval_id: ApprovalId,
    state: &'static str,
    decided_at: Timestamp,
    decided_by: Option<String>,
    decision: Option<String>,
    standing: Option<kernel::StandingId>,
}

#[derive(Debug, Serialize)]
struct ArtifactRow {
    run_id: RunId,
    tenant: String,
    created_at: Timestamp,
    #[serde(flatten)]
    artifact: ArtifactRef,
}

#[derive(Debug, Serialize)]
struct ChildRow {
    child_id: RunId,
    run_id: RunId,
    call_id: CallId,
    started_at: Timestamp,
}

#[derive(Debug, Serialize)]
struct ChildGone {
    run_id: RunId,
    child_id: RunId,
}

impl Side {
    /// Whether nothing rarer happened: the common case.
    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
            && self.waits_gone.is_empty()
            && self.timers.is_empty()
            && self.timers_gone.is_empty()
            && self.calls.is_empty()
            && self.calls_gone.is_empty()
            && self.approvals.is_empty()
            && self.endorsed.is_empty()
            && self.decided.is_empty()
            && self.artifacts.is_empty()
            && self.children.is_empty()
            && self.children_gone.is_empty()
    }

    /// Adds what `events` mean, which led from `before` to `after`.
    pub(crate) fn add(&mut self, before: Option<&RunState>, after: &RunState, events: &[Event]) {
        for event in events {
            self.add_event(before, after, event);
        }
        // What came and went within one commit was never there.
        let run = after.run_id;
        let (waits, timers) = (&mut self.waits, &mut self.timers);
        let (gone_waits, gone_timers) = (&self.waits_gone, &self.timers_gone);
        waits.retain(|row| row.run_id != run || !gone_waits.iter().any(|gone| gone.wait_id == row.wait_id));
        timers.retain(|row| row.run_id != run || !gone_timers.iter().any(|gone| gone.timer_id == row.timer_id));
    }

    fn add_event(&mut self, before: Option<&RunState>, after: &RunState, event: &Event) {
        let run_id = after.run_id;
        let at = event.at;
        match &event.data {
            EventData::WaitRegistered(registered) => self.add_wait(after, &registered.wait, at),
            EventData::WaitSatisfied(gone) => self.waits_gone.push(WaitGone { run_id, wait_id: gone.wait_id }),
            EventData::WaitExpired(gone) => self.waits_gone.push(WaitGone { run_id, wait_id: gone.wait_id }),
            EventData::WaitCancelled(gone) => self.waits_gone.push(WaitGone { run_id, wait_id: gone.wait_id }),
            EventData::TimerSet(set) => {
                self.timers.push(TimerRow { timer_id: set.timer_id, run_id, due: set.due, purpose: set.purpose });
            }
            EventData::TimerFired(fired) => self.timers_gone.push(TimerGone { run_id, timer_id: fired.timer_id }),
            EventData::TimerCancelled(cancelled) => {
                let gone = cancelled.timer_ids.iter().map(|timer_id| TimerGone { run_id, timer_id: *timer_id });
                self.timers_gone.extend(gone);
            }
            EventData::ToolStarted(started) => self.add_call(after, started.call_id, at),
            EventData::ToolInDoubt(doubt) => self.add_call(after, doubt.call_id, at),
            EventData::ToolProgressed(progressed) if progressed.put_off.is_some() => {
                self.end_call(before, run_id, progressed.call_id);
            }
            EventData::ToolProgressed(progressed) if progressed.handle.is_some() => {
                // It may have been in doubt.
                self.refresh_call(after, progressed.call_id, at);
            }
            EventData::ToolReconciled(reconciled) => self.end_call(before, run_id, reconciled.call_id),
            EventData::ToolCompleted(done) => {
                self.end_call(before, run_id, done.call_id);
                if let Some(artifact) = &done.result.artifact {
                    self.add_artifact(after, artifact, at);
                }
            }
            EventData::ToolFailed(failed) => self.end_call(before, run_id, failed.call_id),
            EventData::ToolCancelled(cancelled) => self.end_call(before, run_id, cancelled.call_id),
            EventData::SubagentStarted(started) => {
                let (child_id, call_id) = (started.child_id, started.spawn.call_id);
                self.children.push(ChildRow { child_id, run_id, call_id, started_at: at });
            }
            EventData::SubagentCompleted(done) => self.end_child(run_id, done.child_id),
            EventData::SubagentFailed(failed) => self.end_child(run_id, failed.child_id),
            EventData::SubagentCancelled(cancelled) => self.end_child(run_id, cancelled.child_id),
            EventData::ApprovalRequested(requested) => self.add_approval(after, &requested.approval, at),
            EventData::BudgetExceeded(exceeded) => {
                if let Some(ask) = &exceeded.ask {
                    self.add_approval(after, ask, at);
                }
            }
            EventData::ApprovalEndorsed(endorsed) => {
                let (approval_id, endorsed) = (endorsed.approval_id, endorsed.endorsement(at));
                self.endorsed.push(EndorsedRow { run_id, approval_id, endorsed });
            }
            EventData::ApprovalGranted(granted) => {
                self.decide(run_id, granted.approval_id, "granted", at, Some(&granted.by), granted.reason.as_ref());
                if let Some(decided) = self.decided.last_mut() {
                    decided.standing = granted.standing;
                }
            }
            EventData::ApprovalDenied(denied) => {
                self.decide(run_id, denied.approval_id, "denied", at, Some(&denied.by), denied.reason.as_ref());
            }
            EventData::ApprovalExpired(expired) => {
                self.decide(run_id, expired.approval_id, "expired", at, None, Some(&expired.reason));
            }
            EventData::ArtifactCreated(created) => self.add_artifact(after, &created.artifact, at),
            EventData::ArtifactUpdated(updated) => self.add_artifact(after, &updated.artifact, at),
            _ => {}
        }
    }

    fn add_wait(&mut self, state: &RunState, wait: &Wait, since: Timestamp) {
        for (leaf, condition) in wait.on.leaves().into_iter().map(|leaf| &leaf.condition).enumerate() {
            let external = match condition {
                Condition::External(pattern) => Some(pattern),
                _ => None,
            };
            let due = match condition {
                Condition::Timer { due, .. } => Some(*due),
                Condition::External(pattern) if pattern.verify.is_some() => Some(since),
                _ => None,
            };
            self.waits.push(WaitRow {
                run_id: state.run_id,
                wait_id: wait.wait_id,
                leaf,
                tenant: state.tenant.to_string(),
                kind: condition.wake_kind().as_str(),
                resource_key: external.map(kernel::wait::ExternalPattern::resource_key),
                event_type: external.map(|pattern| pattern.event_type.clone()),
                filter: external.and_then(|pattern| pattern.filter.clone()),
                exclusive: external.is_some_and(|pattern| pattern.exclusive),
                due,
                deadline: wait.deadline,
                why: wait.why.clone(),
                since,
            });
        }
    }

    fn add_call(&mut self, state: &RunState, call_id: CallId, at: Timestamp) {
        let Some(call) = state.calls.get(&call_id) else { return };
        self.calls.retain(|row| row.call_id != call_id);
        self.calls.push(CallRow {
            call_id,
            run_id: state.run_id,
            tenant: state.tenant.to_string(),
            tool: call.request.tool.clone(),
            activity: call.request.kind == CallKind::Activity,
            status: if call.status == CallStatus::InDoubt { "in_doubt" } else { "started" },
            executor: call.executor.clone().unwrap_or_default(),
            started_at: call.started_at.unwrap_or(at),
        });
    }

    fn refresh_call(&mut self, state: &RunState, call_id: CallId, at: Timestamp) {
        if state.calls.get(&call_id).is_some_and(kernel::call::Call::is_started) {
            self.add_call(state, call_id, at);
        }
    }

    fn end_call(&mut self, before: Option<&RunState>, run_id: RunId, call_id: CallId) {
        if before.and_then(|state| state.calls.get(&call_id)).is_some_and(kernel::call::Call::is_started) {
            self.calls_gone.push(CallGone { run_id, call_id });
        }
    }

    fn end_child(&mut self, run_id: RunId, child_id: RunId) {
        self.children_gone.push(ChildGone { run_id, child_id });
    }

    fn add_approval(&mut self, state: &RunState, approval: &Approval, at: Timestamp) {
        let approval = approval.clone();
        self.approvals.push(ApprovalRow {
            approval_id: approval.approval_id,
            run_id: state.run_id,
            tenant: state.tenant.to_string(),
            call_id: approval.call_id,
            tool: approval.tool,
            question: approval.question.text,
            arguments: approval.arguments,
            binding: approval.binding,
            trust: approval.trust.as_str(),
            reasons: approval.reasons,
            two_people: approval.two_people,
            shown: approval.shown,
            requested_at: at,
            expires_at: approval.expires_at,
        });
    }

    fn decide(
        &mut self,
        run_id: RunId,
        approval_id: ApprovalId,
        state: &'static str,
        decided_at: Timestamp,
        by: Option<&String>,
        reason: Option<&String>,
    ) {
        let (decided_by, decision) = (by.cloned(), reason.cloned());
        self.decided.push(DecidedRow { run_id, approval_id, state, decided_at, decided_by, decision, standing: None });
    }

    fn add_artifact(&mut self, state: &RunState, artifact: &ArtifactRef, at: Timestamp) {
        self.artifacts.push(ArtifactRow {
            run_id: state.run_id,
            tenant: state.tenant.to_string(),
            created_at: at,
            artifact: artifact.clone(),
        });
    }
}
