//! The life of a tool call, from dispatch to its one end.

use super::Decider;
use crate::{
    apply::retry_timer,
    call::{Call, CallFailure, CallRequest, CallResult, CallStatus, Compensation, Exit, Observation},
    command::{
        CancelCall, CompensateCall, CompleteCall, ConcludeCall, DenyCall, DoubtCall, FailCall, ProgressCall,
        ReconcileCall, StartCall,
    },
    event::{
        Finding, ObservationRecorded, TimerPurpose, TimerSet, ToolCancelled, ToolCompleted, ToolDenied, ToolFailed,
        ToolInDoubt, ToolProgressed, ToolReconciled, ToolRequested, ToolStarted,
    },
    ids::CallId,
    mutants::{Mutant, broken},
    rejection::Rejection,
    trust::{Block, Trust},
    units::{Duration, later},
};

/// On top of a call's time-out, before "it has not happened" is believed: the effect may still be on its way.
pub const DOUBT_MARGIN: Duration = Duration::from_secs(5);

impl Decider {
    fn call(&self, call_id: CallId) -> Result<&Call, Rejection> {
        self.state.calls.get(&call_id).ok_or(Rejection::CallNotOpen(call_id))
    }

    fn unstarted(&self, call_id: CallId) -> Result<&Call, Rejection> {
        let call = self.call(call_id)?;
        if call.is_started() && !broken(Mutant::DeniesTheStarted) {
            Err(Rejection::CallStatus(call_id, call.status))
        } else {
            Ok(call)
        }
    }

    pub(super) fn deny_call(&mut self, deny: &DenyCall) -> Result<(), Rejection> {
        self.unstarted(deny.call_id)?;
        self.emit(ToolDenied { call_id: deny.call_id, code: deny.code.clone(), reason: deny.reason.clone() });
        Ok(())
    }

    pub(super) fn start_call(&mut self, start: &StartCall) -> Result<(), Rejection> {
        let compensates = self.is_compensation(start.call_id);
        if !compensates && !broken(Mutant::StartsWhileEnding) {
            self.refuse_if_ending()?;
        }
        if self.state.paused && !compensates && !broken(Mutant::StartsWhileHeld) {
            return Err(Rejection::Paused);
        }
        if self.state.simulated {
            return Err(Rejection::Simulated);
        }
        let call = self.call(start.call_id)?;
        let may_start = match call.status {
            CallStatus::Requested | CallStatus::Approved => true,
            // Its first executor is gone; doing it again is the same as doing it once.
            CallStatus::Started | CallStatus::InDoubt => call.request.idempotent || broken(Mutant::RepeatsBlindly),
            CallStatus::AwaitingApproval => broken(Mutant::StartsUnapproved),
        };
        if !may_start {
            return Err(Rejection::CallStatus(start.call_id, call.status));
        }
        let differs = call.grant.as_ref().is_some_and(|grant| grant.binding != start.binding);
        if differs && !broken(Mutant::StartsOtherwise) {
            return Err(Rejection::GrantMismatch(start.call_id));
        }
        let started = ToolStarted {
            call_id: start.call_id,
            attempt: call.attempts + 1,
            executor: start.executor.clone(),
            idempotency_key: call.idempotency_key(),
            binding: start.binding.clone(),
        };
        self.emit(started);
        Ok(())
    }

    /// Whether a call undoes another one's effect: that may be done while the run is ending, whoever held it before.
    pub(super) fn is_compensation(&self, call_id: CallId) -> bool {
        self.state.calls.get(&call_id).is_some_and(|call| call.request.is_compensation())
    }

    /// An attempt that failed, a place outside where it goes on, a question: the call stays open. One that is put off is
    /// nobody's until its timer fires.
    pub(super) fn progress_call(&mut self, progress: &ProgressCall) -> Result<(), Rejection> {
        let call_id = progress.call_id;
        let call = self.call(call_id)?;
        let found = call.status == CallStatus::InDoubt && progress.handle.is_some() && progress.put_off.is_none();
        if !found && !matches!(call.status, CallStatus::Requested | CallStatus::Approved | CallStatus::Started) {
            return Err(Rejection::CallStatus(call_id, call.status));
        }
        if progress.put_off.is_some() {
            if progress.starts != call.attempts && !broken(Mutant::PutsOffAnothersStart) {
                return Err(Rejection::CallStatus(call_id, call.status));
            }
            if !call.request.is_compensation() {
                self.refuse_if_ending()?;
            }
        }
        let ProgressCall { attempt, put_off, reason, handle, asks, .. } = progress.clone();
        self.emit(ToolProgressed { call_id, attempt, put_off, reason, handle, asks });
        if let Some(due) = put_off.filter(|_| !broken(Mutant::PutsOffForEver)) {
            let timer_id = retry_timer(self.state.run_id, call_id, self.state.seq);
            self.emit(TimerSet { timer_id, due, purpose: TimerPurpose::Retry });
        }
        Ok(())
    }

    /// Asks for the call that undoes the newest effect which is not undone. It is believed no more than what the run has seen.
    pub(super) fn compensate_call(&mut self, compensate: &CompensateCall) -> Result<(), Rejection> {
        let request = &compensate.request;
        let undone = match request.compensation {
            Compensation::Of(undone) => undone,
            Compensation::None | Compensation::Declared => return Err(Rejection::NothingToCompensate(request.call_id)),
        };
        if self.state.to_compensate() != Some(undone) {
            return Err(Rejection::NothingToCompensate(undone));
        }
        let undone_trust = self.state.undo.back().map_or(Trust::Untrusted, |undo| undo.trust);
        let trust = request.trust.join(self.state.lowest_trust).join(undone_trust);
        // It belongs to no turn: the runtime asks for it, by the id that it would have.
        let turn_id = crate::TurnId::derive(self.state.run_id, &format!("compensation/{undone}"));
        self.emit(ToolRequested { call: CallRequest { trust, ..request.clone() }, turn_id });
        Ok(())
    }

    /// A call that needs `tool.started` may only end well or badly after it; an unapproved one not at all.
    fn endable(&self, call_id: CallId) -> Result<&Call, Rejection> {
        let call = self.call(call_id)?;
        let ready = match call.status {
            CallStatus::Started | CallStatus::InDoubt => true,
            CallStatus::Requested | CallStatus::Approved => !call.needs_start() || broken(Mutant::EndsUnstarted),
            CallStatus::AwaitingApproval => false,
        };
        if ready { Ok(call) } else { Err(Rejection::CallStatus(call_id, call.status)) }
    }

    pub(super) fn complete_call(&mut self, complete: &CompleteCall) -> Result<(), Rejection> {
        let call = self.call(complete.call_id)?;
        // Of a simulated run: as it is on record.
        if !(self.state.simulated && call.status == CallStatus::Requested) {
            self.endable(complete.call_id)?;
        }
        self.emit(ToolCompleted { call_id: complete.call_id, result: complete.result.clone(), exit: None });
        Ok(())
    }

    pub(super) fn fail_call(&mut self, fail: &FailCall) -> Result<(), Rejection> {
        self.endable(fail.call_id)?;
        self.emit(ToolFailed { call_id: fail.call_id, failure: fail.failure.clone(), exit: None });
        Ok(())
    }

    pub(super) fn cancel_call(&mut self, cancel: &CancelCall) -> Result<(), Rejection> {
        let started = self.call(cancel.call_id)?.is_started();
        self.emit(ToolCancelled { call_id: cancel.call_id, reason: cancel.reason.clone(), started });
        Ok(())
    }

    pub(super) fn doubt_call(&mut self, doubt: &DoubtCall) -> Result<(), Rejection> {
        let status = self.call(doubt.call_id)?.status;
        match status {
            CallStatus::Started => {
                self.emit(ToolInDoubt { call_id: doubt.call_id, reason: doubt.reason.clone() });
                Ok(())
            }
            CallStatus::InDoubt => Ok(()),
            _ => Err(Rejection::CallStatus(doubt.call_id, status)),
        }
    }

    pub(super) fn reconcile_call(&mut self, reconcile: &ReconcileCall) -> Result<(), Rejection> {
        let call_id = reconcile.call_id;
        let call = self.call(call_id)?;
        if call.status != CallStatus::InDoubt {
            return Err(Rejection::CallStatus(call_id, call.status));
        }
        // Who looked may have been held up since: what counts is when it was looked, not when it is told.
        let looked = if broken(Mutant::BelievesOldNews) { self.now } else { reconcile.as_of.min(self.now) };
        if reconcile.finding == Finding::NotDone {
            let started = call.started_at.unwrap_or(self.now);
            let settled = later(later(started, call.request.timeout), DOUBT_MARGIN);
            if looked < settled && !broken(Mutant::BelievesTooEarly) {
                return Err(Rejection::TooEarly(call_id, settled));
            }
        }
        let as_of = Some(reconcile.as_of.min(self.now));
        let (finding, evidence) = (reconcile.finding, reconcile.evidence.clone());
        self.emit(ToolReconciled { call_id, finding, as_of, evidence });
        if reconcile.finding == Finding::Done && !broken(Mutant::FindsWithoutEnd) {
            let result = reconcile.result.clone().unwrap_or_else(|| CallResult {
                block: reconcile.evidence.clone(),
                value: None,
                artifact: None,
                duration_ms: 0,
            });
            self.emit(ToolCompleted { call_id, result, exit: None });
        }
        Ok(())
    }

    pub(super) fn observe(&mut self, observation: &Observation) -> Result<(), Rejection> {
        if let Some(call_id) = observation.call_id {
            self.call(call_id)?;
        }
        self.emit(ObservationRecorded { observation: observation.clone(), asked: None });
        Ok(())
    }

    pub(super) fn conclude_call(&mut self, conclude: &ConcludeCall) -> Result<(), Rejection> {
        let call_id = conclude.call_id;
        let call = self.call(call_id)?;
        if !call.is_started() {
            return Err(Rejection::CallStatus(call_id, call.status));
        }
        let exit = conclude.exit.clone();
        let block = Block::new(describe(&exit), Trust::System, format!("tool:{}/{call_id}", call.request.tool));
        let asked = conclude.asked.clone();
        self.emit(ObservationRecorded { observation: conclude.observation.clone(), asked });
        let duration_ms = conclude.duration_ms;
        if conclude.succeeded {
            let result = CallResult { block, value: None, artifact: None, duration_ms };
            self.emit(ToolCompleted { call_id, result, exit: Some(exit) });
        } else if exit.reason == "cancelled" {
            self.emit(ToolCancelled { call_id, reason: describe(&exit), started: true });
        } else {
            let code = if exit.reason == "exited" { "exit_status".to_owned() } else { exit.reason.clone() };
            self.emit(ToolFailed { call_id, failure: CallFailure { block, code, duration_ms }, exit: Some(exit) });
        }
        Ok(())
    }
}

fn describe(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let why = match exit.reason.as_str() {
        "exited" => String::new(),
        reason => format!(" ({reason})"),
    };
    format!("{how}{why} after {} lines ({} bytes) of output", exit.lines, exit.bytes)
}
