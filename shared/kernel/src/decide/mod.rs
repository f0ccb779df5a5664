//! The rules: which events a command leads to. Pure: the same state, command and time always give the same events.

mod approvals;
mod calls;
mod children;
mod control;
mod steering;
mod turns;
mod waits;

use jiff::Timestamp;

use crate::{
    apply::apply,
    command::Command,
    event::{
        ApprovalExpired, Ending, Event, EventData, Outcome, RunCancelRequested, RunCancelled, RunCompleted, RunFailed,
        RunRunnable, TimerCancelled, ToolCancelled, WaitCancelled, WaitSatisfied,
    },
    ids::{RunId, TimerId, TurnId},
    mutants::{Mutant, broken},
    rejection::Rejection,
    state::{FactKind, RunState},
    units::later,
    wait::WakeKind,
};

/// What a command leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The new events; none means there was nothing (left) to do.
    pub events: Vec<Event>,
    /// The state after them.
    pub state: RunState,
}

/// Decides `command` for the run `run_id` as it stands in `state` (none: it does not exist), at the time `now`.
///
/// # Errors
/// A [`Rejection`], with nothing changed.
pub fn decide(
    run_id: RunId,
    state: Option<&RunState>,
    command: &Command,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    let now = whole_micros(now);
    if let Command::Create(create) = command {
        return control::create(run_id, state, create, now);
    }
    if let Command::Fork(fork) = command {
        return control::fork(run_id, state, fork, now);
    }
    let state = state.ok_or(Rejection::NoSuchRun)?;
    if state.ended && !broken(Mutant::GoesOnAfterTheEnd) {
        return Err(Rejection::Ended(state.status()));
    }
    let mut decider = Decider::new(state, now);
    match command {
        Command::Create(_) | Command::Fork(_) => return Err(Rejection::RunExists),
        Command::Admit => decider.admit(),
        Command::CommitTurn(outcome) => decider.commit_turn(outcome),
        Command::RejectTurn(reject) => decider.reject_turn(reject),
        Command::ChargeTurn(charge) => decider.charge_turn(charge),
        Command::Judge(judge) => decider.judge(judge),
        Command::Compact(compact) => decider.compact(compact),
        Command::NoteDrift(note) => decider.note_drift(note),
        Command::AddMessage(message) => decider.add_message(message),
        Command::Pause(by) => decider.pause(by),
        Command::Resume(by) => decider.resume(by),
        Command::Cancel(by) => decider.cancel(by),
        Command::ChangeBudget(change) => decider.change_budget(change),
        Command::Revise(revise) => decider.revise(revise),
        Command::KeepArtifact(artifact) => decider.be_given(artifact),
        Command::Declassify(declassify) => decider.declassify(declassify),
        Command::DenyCall(deny) => decider.deny_call(deny),
        Command::AskApproval(approval) => decider.ask_approval(approval),
        Command::DecideApproval(decision) => decider.decide_approval(decision),
        Command::ExpireApproval(expire) => decider.expire_approval(expire),
        Command::StartCall(start) => decider.start_call(start),
        Command::ProgressCall(progress) => decider.progress_call(progress),
        Command::CompensateCall(compensate) => decider.compensate_call(compensate),
        Command::CompleteCall(complete) => decider.complete_call(complete),
        Command::FailCall(fail) => decider.fail_call(fail),
        Command::CancelCall(cancel) => decider.cancel_call(cancel),
        Command::DoubtCall(doubt) => decider.doubt_call(doubt),
        Command::ReconcileCall(reconcile) => decider.reconcile_call(reconcile),
        Command::Observe(observation) => decider.observe(observation),
        Command::ConcludeCall(conclude) => decider.conclude_call(conclude),
        Command::FireTimer(fire) => decider.fire_timer(fire),
        Command::DeliverExternal(deliver) => decider.deliver_external(deliver),
        Command::SettleChild(report) => decider.settle_child(report),
        Command::EndChild(by) => decider.end_child(by),
        Command::HoldChild(hold) => decider.hold_child(hold),
    }?;
    decider.settle();
    Ok(decider.into_decision())
}

/// A state that events are added to one by one, so that each rule sees what the ones before it led to.
struct Decider {
    state: RunState,
    events: Vec<Event>,
    now: Timestamp,
}

impl Decider {
    fn new(state: &RunState, now: Timestamp) -> Self {
        // Time within a run never goes back, whatever the clocks of the services say.
        let earliest = if broken(Mutant::TimeGoesBack) { now } else { state.updated_at };
        Self { state: state.clone(), events: Vec::new(), now: now.max(earliest) }
    }

    fn into_decision(self) -> Decision {
        Decision { events: self.events, state: self.state }
    }

    fn emit(&mut self, data: impl Into<EventData>) {
        let seq = self.state.seq + if broken(Mutant::SkipsSeqs) { 2 } else { 1 };
        let event = Event { seq, at: self.now, data: data.into() };
        self.state.fold(&event);
        self.events.push(event);
    }

    fn refuse_if_ending(&self) -> Result<(), Rejection> {
        if self.state.ending.is_some() { Err(Rejection::Ending) } else { Ok(()) }
    }

    /// What follows from where the run stands now: the end, a satisfied wait, a turn.
    fn settle(&mut self) {
        if self.state.ended {
            return;
        }
        self.close_moot_approvals();
        self.drop_moot_retries();
        if let Some(ending) = self.state.ending.clone() {
            self.finish_when_quiet(ending);
            return;
        }
        self.end_if_refused();
        if self.state.ending.is_some() {
            return;
        }
        self.satisfy_wait();
        if self.state.turn.is_some() || self.state.paused || self.state.queued {
            return;
        }
        if self.state.is_to_be_judged() {
            // Nothing is asked of a model in that turn, so no limit is in its way.
            self.announce_turn(Some(WakeKind::TaskResult), None);
            return;
        }
        if self.state.is_starved() && !broken(Mutant::SpendsWhatIsSetAside) {
            // What is left is its children's: the wake stays, and the turn opens when one of them gives something back.
            return;
        }
        if let Some(wake) = self.state.wake {
            self.open_turn(Some(wake.kind), None);
        } else if self.state.results_complete() && !broken(Mutant::ResultsWakeNobody) {
            self.open_turn(Some(WakeKind::TaskResult), None);
        }
    }

    /// A question about a call that has ended needs no answer any more.
    fn close_moot_approvals(&mut self) {
        let calls = &self.state.calls;
        let moot = |approval: &crate::call::Approval| approval.call_id.is_some_and(|call| !calls.contains_key(&call));
        let moot: Vec<_> =
            self.state.approvals.values().filter(|each| moot(each)).map(|each| each.approval_id).collect();
        for approval_id in moot {
            self.emit(ApprovalExpired { approval_id, reason: "the call has ended".to_owned() });
        }
    }

    /// A call that has ended, or goes on already, needs no timer any more.
    fn drop_moot_retries(&mut self) {
        use crate::event::TimerPurpose;
        let wanted = |id: &TimerId| {
            self.state.calls.values().any(|call| call.put_off.is_some_and(|put_off| put_off.timer_id == *id))
        };
        let retries = self.state.timers.iter().filter(|(_, timer)| timer.purpose == TimerPurpose::Retry);
        let timer_ids: Vec<_> = retries.map(|(id, _)| *id).filter(|id| !wanted(id)).collect();
        if !timer_ids.is_empty() {
            self.emit(TimerCancelled { timer_ids });
        }
    }

    fn satisfy_wait(&mut self) {
        let met = self.state.wait.as_ref().filter(|wait| wait.on.is_met() && !broken(Mutant::NeverSatisfied));
        let Some(wait) = met else { return };
        let wait_id = wait.wait_id;
        let met = wait.on.leaves().into_iter().filter_map(|leaf| Some((leaf.met_by?, leaf.condition.wake_kind())));
        let Some((by, kind)) = met.max_by_key(|(seq, _)| *seq) else { return };
        self.emit(WaitSatisfied { wait_id, by, kind });
        self.cancel_wait_timers();
    }

    /// Opens the next turn, unless the budget forbids it.
    fn open_turn(&mut self, wake: Option<WakeKind>, not_before: Option<Timestamp>) {
        if self.state.is_to_be_judged() {
            self.announce_turn(wake, not_before);
            return;
        }
        if self.state.parked.is_some() {
            return;
        }
        let exceeded = self.state.settled().forbids_turn(&self.state.limits);
        if let Some(limit) = exceeded.filter(|_| !broken(Mutant::TurnsBeyondBudget)) {
            self.reach_limit(limit, "The budget is used up.");
            return;
        }
        self.announce_turn(wake, not_before);
    }

    /// Says that a turn is open.
    fn announce_turn(&mut self, wake: Option<WakeKind>, not_before: Option<Timestamp>) {
        let number = self.state.turns_opened + 1;
        let turn_id = TurnId::derive(self.state.run_id, &format!("turn/{number}"));
        let gathers = matches!(wake, Some(WakeKind::TaskResult | WakeKind::External));
        let debounce = self.state.debounce;
        let debounced = (gathers && debounce.as_millis() > 0).then(|| later(self.now, debounce));
        self.emit(RunRunnable { turn_id, number, wake, not_before: not_before.max(debounced) });
    }

    /// Ends the run, or begins to: nothing new starts, and the end comes when no effect is under way and no child open.
    fn begin_end(&mut self, ending: Ending) {
        if let Some(wait_id) = self.state.wait.as_ref().map(|wait| wait.wait_id) {
            self.emit(WaitCancelled { wait_id, reason: "the run is ending".to_owned() });
        }
        if !broken(Mutant::LeavesTimers) {
            self.cancel_timers(|_| true);
        }
        let questions = self.state.approvals.keys().filter(|_| !broken(Mutant::LeavesQuestions));
        for approval_id in questions.copied().collect::<Vec<_>>() {
            self.emit(ApprovalExpired { approval_id, reason: "the run is ending".to_owned() });
        }
        self.cancel_unstarted_calls("the run is ending");
        let open_calls: Vec<_> = self.state.started_calls().map(|call| call.request.call_id).collect();
        let undoes = ending.outcome != Outcome::Completed && !self.state.undo.is_empty();
        let undoes = undoes && !broken(Mutant::EndsUncompensated);
        let open_children: Vec<_> = self.state.children.values().map(|child| child.child_id).collect();
        let childless = open_children.is_empty() || broken(Mutant::EndsOverOpenChildren);
        if (open_calls.is_empty() && childless && !undoes) || broken(Mutant::EndsOverOpenCalls) {
            self.emit_end(ending);
        } else {
            self.emit(RunCancelRequested { ending, open_calls, open_children });
        }
    }

    fn finish_when_quiet(&mut self, ending: Ending) {
        self.cancel_unstarted_calls("the run is ending");
        let undoes = self.state.owes_compensation() && !broken(Mutant::EndsUncompensated);
        if self.state.calls.is_empty() && self.state.children.is_empty() && !undoes {
            self.emit_end(ending);
        }
    }

    fn emit_end(&mut self, ending: Ending) {
        let parent = self.state.parent.as_ref().map(|parent| parent.run_id);
        match ending.outcome {
            Outcome::Completed => self.emit(RunCompleted { ending, parent }),
            Outcome::Failed => self.emit(RunFailed { ending, parent }),
            Outcome::Cancelled => self.emit(RunCancelled { ending, parent }),
        }
    }

    fn cancel_unstarted_calls(&mut self, reason: &str) {
        let unstarted =
            self.state.calls.values().filter(|call| !call.is_started() && !broken(Mutant::EndingSparesUnstarted));
        let unstarted = unstarted.filter(|call| !call.request.is_compensation());
        for call_id in unstarted.map(|call| call.request.call_id).collect::<Vec<_>>() {
            self.emit(ToolCancelled { call_id, reason: reason.to_owned(), started: false });
        }
    }

    fn cancel_wait_timers(&mut self) {
        use crate::event::TimerPurpose;
        self.cancel_timers(|purpose| matches!(purpose, TimerPurpose::Wait | TimerPurpose::Deadline));
    }

    fn cancel_timers(&mut self, which: impl Fn(crate::event::TimerPurpose) -> bool) {
        let timers = self.state.timers.iter().filter(|(_, timer)| which(timer.purpose));
        let timer_ids: Vec<TimerId> = timers.map(|(id, _)| *id).collect();
        if !timer_ids.is_empty() {
            self.emit(TimerCancelled { timer_ids });
        }
    }

    /// Whether an operator wrote after the slice at `based_on` was built.
    fn has_fresh_message(&self, based_on: crate::Seq) -> bool {
        self.state.facts.iter().any(|fact| fact.kind == FactKind::Message && fact.seq > based_on)
    }
}

/// The log keeps no finer time: a state folded from it is the state that was decided.
fn whole_micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// The first event of a run makes its state.
fn begin(run_id: RunId, data: EventData, now: Timestamp) -> Result<Decider, Rejection> {
    let event = Event { seq: 1, at: now, data };
    let state = apply(None, run_id, &event).map_err(|_| Rejection::NoSuchRun)?;
    Ok(Decider { state, events: vec![event], now })
}
