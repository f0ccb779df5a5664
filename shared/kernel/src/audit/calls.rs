//! The life of each tool call, and the questions that hold it.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;

use super::{Report, family::ended_call, family::is_simulated, rules};
use crate::{
    call::{Approval, Binding, CallRequest, Compensation},
    event::{
        ApprovalEndorsed, ApprovalGranted, Event, EventData, Finding, Outcome, SubagentStarted, TimerPurpose,
        ToolProgressed, ToolReconciled, ToolStarted,
    },
    ids::{ApprovalId, CallId, RunId},
    tool::needs_start,
    trust::Trust,
    units::{Duration, later},
};

/// How a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    Failed,
    Denied,
    Cancelled,
    Unknown,
}

impl End {
    /// The call that an event ends, and how.
    pub(super) fn of(data: &EventData) -> Option<(CallId, Self)> {
        match data {
            EventData::ToolCompleted(done) => Some((done.call_id, Self::Completed)),
            EventData::ToolFailed(failed) => Some((failed.call_id, Self::Failed)),
            EventData::ToolDenied(denied) => Some((denied.call_id, Self::Denied)),
            EventData::ToolCancelled(cancelled) => Some((cancelled.call_id, Self::Cancelled)),
            EventData::ToolReconciled(reconciled) if reconciled.finding == Finding::Unknown => {
                Some((reconciled.call_id, Self::Unknown))
            }
            EventData::SubagentCompleted(done) => Some((done.call_id, Self::Completed)),
            EventData::SubagentFailed(failed) if !failed.again => Some((failed.call_id, Self::Failed)),
            EventData::SubagentCancelled(cancelled) => Some((cancelled.call_id, Self::Cancelled)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    open: BTreeMap<CallId, Trace>,
    /// Open calls that children answer.
    children: BTreeMap<CallId, RunId>,
    /// A call whose child failed and that another takes over.
    retried: Option<CallId>,
    ended: HashSet<CallId>,
    /// Whether it may have no effects, being a fork or below one.
    simulated: bool,
    questions: BTreeMap<ApprovalId, Question>,
    asked: HashSet<ApprovalId>,
    /// Effects that have happened and can be undone, oldest first, with how far their calls may be believed.
    done: Vec<(CallId, Trust)>,
    /// Whether the run is ending, or has ended, without success.
    unsuccessful: bool,
    /// Calls put off until then, whose timer is not set yet.
    without_timer: Vec<Timestamp>,
}

/// An open call.
#[derive(Clone, Debug)]
struct Trace {
    request: CallRequest,
    progress: Progress,
    /// What stands between it and its start.
    permit: Permit,
    attempts: u32,
    started_at: Option<Timestamp>,
    put_off: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unstarted,
    Started,
    InDoubt,
    /// Known to have happened: its end follows in the same commit.
    FoundDone,
}

#[derive(Clone, Debug)]
enum Permit {
    NotAsked,
    Asked,
    Granted(Binding),
    Refused,
}

/// An open question.
#[derive(Clone, Debug)]
struct Question {
    call: Option<CallId>,
    /// Whether the run itself asks.
    of_run: bool,
    binding: Binding,
    expires_at: Timestamp,
    /// Whether it takes two people, and the first of them.
    two_people: bool,
    first: Option<ApprovalEndorsed>,
}

impl Trace {
    fn may_have_happened(&self) -> bool {
        self.progress != Progress::Unstarted
    }
}

impl Question {
    /// Whether a yes is bound to what was shown, or to what the operator made of the arguments.
    fn is_bound(&self, edited: bool, bound: &Binding) -> bool {
        let shown = &self.binding;
        (edited || shown.arguments == bound.arguments) && shown.schema == bound.schema && shown.policy == bound.policy
    }

    /// Whether as many people have agreed as it takes, to the same.
    fn is_agreed(&self, granted: &ApprovalGranted) -> bool {
        let ApprovalGranted { by, aliases, binding, standing, endorsed_by, .. } = granted;
        match &self.first {
            None => !self.two_people && endorsed_by.is_none(),
            Some(first) => {
                let other = first.by != *by && !first.aliases.contains(by) && !aliases.contains(&first.by);
                other && standing.is_none() && first.binding == *binding && *endorsed_by == Some(first.by.clone())
            }
        }
    }
}

impl Calls {
    pub(super) fn see(&mut self, event: &Event, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => self.simulated = is_simulated(created),
            EventData::RunForked(forked) => self.simulated = !forked.effects,
            EventData::ToolRequested(requested) => self.request(event, &requested.call, report),
            EventData::ToolStarted(started) => self.start(event, started, report),
            EventData::ToolProgressed(progressed) => self.progress(event, progressed, report),
            EventData::ToolDue(due) => self.due(event, due.call_id, report),
            EventData::TimerSet(set) if set.purpose == TimerPurpose::Retry => {
                self.without_timer.retain(|until| *until != set.due);
            }
            EventData::RunCancelRequested(requested) => {
                self.unsuccessful = requested.ending.outcome != Outcome::Completed;
            }
            EventData::RunFailed(_) | EventData::RunCancelled(_) => {
                let left = &self.done;
                report.expect(left.is_empty(), event, rules::COMPENSATED, || format!("not undone: {left:?}"));
            }
            EventData::ToolInDoubt(doubt) => {
                let started = self.open.get_mut(&doubt.call_id).filter(|call| call.may_have_happened());
                let known = started.map(|call| call.progress = Progress::InDoubt).is_some();
                report.expect(known, event, rules::ONE_END, || format!("call {} is not started", doubt.call_id));
            }
            EventData::ToolReconciled(reconciled) => self.reconcile(event, reconciled, report),
            EventData::SubagentStarted(started) => self.start_child(event, started, report),
            EventData::ApprovalRequested(requested) => self.ask(event, &requested.approval, report),
            EventData::BudgetExceeded(exceeded) => {
                if let Some(ask) = &exceeded.ask {
                    self.ask(event, ask, report);
                }
            }
            EventData::ApprovalEndorsed(endorsed) => self.endorse(event, endorsed, report),
            EventData::ApprovalGranted(granted) => self.grant(event, granted, report),
            EventData::ApprovalDenied(denied) => {
                self.decide(event, denied.approval_id, true, report);
            }
            EventData::ApprovalExpired(expired) => {
                let question = self.decide(event, expired.approval_id, false, report);
                let early = question.filter(|question| expired.reason == "no_answer" && event.at < question.expires_at);
                report.expect(early.is_none(), event, rules::DECIDED_ONCE, || format!("{early:?} has time left"));
            }
            _ => {}
        }
        if let Some((call, child)) = ended_call(&event.data) {
            let open = self.children.remove(&call) == Some(child);
            report.expect(open, event, rules::ONE_END, || format!("child {child} of call {call} is not open"));
            match End::of(&event.data) {
                Some(_) => _ = self.ended.insert(call),
                None => self.retried = Some(call),
            }
        } else if let Some((call, end)) = End::of(&event.data) {
            self.end(event, call, end, report);
        }
    }

    fn start_child(&mut self, event: &Event, started: &SubagentStarted, report: &mut Report) {
        let call = started.spawn.call_id;
        let again = self.retried.take() == Some(call) && started.attempt > 1;
        let new = !self.is_open(call) && !self.ended.contains(&call) && (again || started.attempt == 1);
        report.expect(new, event, rules::REQUESTED_ONCE, || format!("call {call} was requested before"));
        self.children.insert(call, started.child_id);
    }

    fn request(&mut self, event: &Event, request: &CallRequest, report: &mut Report) {
        let call_id = request.call_id;
        let new = !self.is_open(call_id) && !self.ended.contains(&call_id);
        report.expect(new, event, rules::REQUESTED_ONCE, || format!("call {call_id} was requested before"));
        if let Compensation::Of(undone) = request.compensation {
            let newest = self.done.pop().is_some_and(|(done, _)| done == undone);
            let in_turn = newest && self.unsuccessful && !self.any_open();
            report.expect(in_turn, event, rules::COMPENSATED, || format!("{undone} is not to be undone now"));
        }
        let trace = Trace {
            request: request.clone(),
            progress: Progress::Unstarted,
            permit: Permit::NotAsked,
            attempts: 0,
            started_at: None,
            put_off: None,
        };
        self.open.insert(call_id, trace);
    }

    fn start(&mut self, event: &Event, started: &ToolStarted, report: &mut Report) {
        let call_id = started.call_id;
        let Some(call) = self.open.get_mut(&call_id) else {
            return report.add(Some(event.seq), rules::ONE_END, format!("call {call_id} is not open"));
        };
        let once = !call.may_have_happened() || call.request.idempotent;
        report.expect(once, event, rules::STARTS_ONCE, || format!("call {call_id} is {:?}", call.progress));
        call.attempts += 1;
        let counted = started.attempt == call.attempts;
        report.expect(counted, event, rules::STARTS_ONCE, || format!("attempt {} was expected", call.attempts));
        let granted = match &call.permit {
            Permit::NotAsked => true,
            Permit::Granted(binding) => *binding == started.binding,
            Permit::Asked | Permit::Refused => false,
        };
        report.expect(granted, event, rules::AS_GRANTED, || format!("call {call_id} stands at {:?}", call.permit));
        call.progress = Progress::Started;
        call.started_at = Some(event.at);
        call.put_off = None;
    }

    fn progress(&mut self, event: &Event, progressed: &ToolProgressed, report: &mut Report) {
        let call_id = progressed.call_id;
        let found = progressed.handle.is_some() && progressed.put_off.is_none();
        let known = |call: &&mut Trace| match call.progress {
            Progress::Unstarted | Progress::Started => true,
            Progress::InDoubt => found,
            Progress::FoundDone => false,
        };
        let Some(call) = self.open.get_mut(&call_id).filter(known) else {
            return report.add(Some(event.seq), rules::ONE_END, format!("call {call_id} can't be known to go on"));
        };
        if call.progress == Progress::InDoubt {
            call.progress = Progress::Started;
        }
        if let Some(until) = progressed.put_off {
            // Whoever was at it says so: nothing of it is under way.
            call.progress = Progress::Unstarted;
            call.put_off = Some(until);
            self.without_timer.push(until);
        }
    }

    fn due(&mut self, event: &Event, call_id: CallId, report: &mut Report) {
        let put_off = self.open.get_mut(&call_id).and_then(|call| call.put_off.take());
        let in_time = put_off.is_some_and(|until| until <= event.at);
        report.expect(in_time, event, rules::PUT_OFF, || format!("call {call_id} is put off until {put_off:?}"));
    }

    fn reconcile(&mut self, event: &Event, reconciled: &ToolReconciled, report: &mut Report) {
        let call_id = reconciled.call_id;
        let Some(call) = self.open.get_mut(&call_id).filter(|call| call.progress == Progress::InDoubt) else {
            return report.add(Some(event.seq), rules::RECONCILED, format!("call {call_id} is not in doubt"));
        };
        match reconciled.finding {
            Finding::Unknown => {}
            Finding::Done => call.progress = Progress::FoundDone,
            Finding::NotDone => {
                // The margin of the rules, written out once more.
                let over =
                    later(later(call.started_at.unwrap_or(event.at), call.request.timeout), Duration::from_secs(5));
                let looked = reconciled.as_of.unwrap_or(event.at).min(event.at);
                report.expect(over <= looked, event, rules::RECONCILED, || format!("\"not done\" before {over}"));
                call.progress = Progress::Unstarted;
            }
        }
    }

    fn ask(&mut self, event: &Event, approval: &Approval, report: &mut Report) {
        let id = approval.approval_id;
        report.expect(self.asked.insert(id), event, rules::DECIDED_ONCE, || format!("{id} was asked before"));
        if let Some(call) = approval.call_id {
            match self.open.get_mut(&call) {
                Some(trace) => {
                    trace.permit = Permit::Asked;
                    trace.put_off = None;
                }
                None => report.add(Some(event.seq), rules::ONE_END, format!("call {call} is not open")),
            }
        }
        let question = Question {
            call: approval.call_id,
            of_run: approval.is_question(),
            binding: approval.binding.clone(),
            expires_at: approval.expires_at,
            two_people: approval.two_people,
            first: None,
        };
        self.questions.insert(id, question);
    }

    fn decide(&mut self, event: &Event, id: ApprovalId, by_person: bool, report: &mut Report) -> Option<Question> {
        let question = self.questions.remove(&id);
        let in_time = question.as_ref().is_some_and(|question| !by_person || event.at < question.expires_at);
        report.expect(in_time, event, rules::DECIDED_ONCE, || format!("{id} is not to be decided (any more)"));
        let call = question.as_ref().and_then(|question| self.open.get_mut(&question.call?));
        if let Some(call) = call {
            call.permit = Permit::Refused;
        }
        question
    }

    /// The first of two people says yes: to an open question that takes two, once, in time.
    fn endorse(&mut self, event: &Event, endorsed: &ApprovalEndorsed, report: &mut Report) {
        let id = endorsed.approval_id;
        let open = self.questions.get_mut(&id).filter(|question| event.at < question.expires_at);
        let Some(question) = open else {
            return report.add(Some(event.seq), rules::DECIDED_ONCE, format!("{id} is not to be decided (any more)"));
        };
        let first = question.two_people && question.first.is_none();
        report.expect(first, event, rules::TWO_PEOPLE, || format!("{id} takes no first of two people"));
        let bound = question.is_bound(endorsed.arguments.is_some(), &endorsed.binding);
        report.expect(bound, event, rules::BOUND, || format!("{question:?}, and {:?} endorsed", endorsed.binding));
        question.first = Some(endorsed.clone());
    }

    fn grant(&mut self, event: &Event, granted: &ApprovalGranted, report: &mut Report) {
        let id = granted.approval_id;
        let Some(question) = self.decide(event, id, true, report) else { return };
        let bound = &granted.binding;
        let same = question.is_bound(granted.arguments.is_some(), bound);
        report.expect(same, event, rules::BOUND, || format!("{:?} was shown, {bound:?} granted", question.binding));
        let first = &question.first;
        let agreed = question.is_agreed(granted);
        report
            .expect(agreed, event, rules::TWO_PEOPLE, || format!("{id} is granted by {}, after {first:?}", granted.by));
        if let Some(call) = question.call.and_then(|call| self.open.get_mut(&call)) {
            call.permit = Permit::Granted(bound.clone());
        }
    }

    fn end(&mut self, event: &Event, call_id: CallId, end: End, report: &mut Report) {
        let Some(call) = self.open.remove(&call_id) else {
            return report.add(Some(event.seq), rules::ONE_END, format!("call {call_id} is not open, now {end:?}"));
        };
        self.ended.insert(call_id);
        let CallRequest { kind, effect, idempotent, compensation, trust, .. } = call.request;
        let started = call.may_have_happened();
        if end == End::Completed && compensation == Compensation::Declared && !self.simulated {
            self.done.push((call_id, trust));
        }
        match end {
            End::Completed | End::Failed => {
                let recorded = self.simulated && end == End::Completed;
                let ready = started || recorded || !needs_start(kind, effect, idempotent);
                report.expect(ready, event, rules::STARTED_FIRST, || format!("call {call_id} never started"));
                let allowed = started || matches!(call.permit, Permit::NotAsked | Permit::Granted(_));
                report.expect(allowed, event, rules::AS_GRANTED, || format!("call {call_id}: {:?}", call.permit));
            }
            End::Denied => {
                report.expect(!started, event, rules::DENIED_UNSTARTED, || format!("{call_id}: {:?}", call.progress));
            }
            End::Cancelled | End::Unknown => {}
        }
    }

    pub(super) fn is_open(&self, call: CallId) -> bool {
        self.open.contains_key(&call) || self.children.contains_key(&call)
    }

    pub(super) fn open(&self) -> impl Iterator<Item = CallId> {
        self.open.keys().chain(self.children.keys()).copied()
    }

    /// Whether the child that answers the call is among these.
    pub(super) fn is_child_among(&self, call: CallId, children: &[RunId]) -> bool {
        self.children.get(&call).is_some_and(|child| children.contains(child))
    }

    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty() || !self.children.is_empty()
    }

    /// Open calls of which nothing has happened, and which an ending stops.
    pub(super) fn unstarted(&self) -> impl Iterator<Item = CallId> {
        let stops = |call: &Trace| !call.may_have_happened() && !call.request.is_compensation();
        self.open.iter().filter(move |(_, call)| stops(call)).map(|(call, _)| *call)
    }

    pub(super) fn is_compensation(&self, call: CallId) -> bool {
        self.open.get(&call).is_some_and(|call| call.request.is_compensation())
    }

    /// Whether effects have to be undone before the run ends.
    pub(super) fn owes_compensation(&self) -> bool {
        self.unsuccessful && !self.done.is_empty()
    }

    /// How far the newest effect that is not undone may be believed.
    pub(super) fn trust_to_undo(&self) -> Option<Trust> {
        self.done.last().map(|(_, trust)| *trust)
    }

    pub(super) fn trust(&self, call: CallId) -> Option<Trust> {
        self.open.get(&call).map(|call| call.request.trust)
    }

    pub(super) fn any_question(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Whether this is an open question of the run itself: not about a call, and not a tool's own.
    pub(super) fn is_question(&self, approval: ApprovalId) -> bool {
        self.questions.get(&approval).is_some_and(|question| question.of_run)
    }

    pub(super) fn rest(&self, report: &mut Report) {
        report.expect_now(self.retried.is_none(), rules::ONE_END, || format!("no child takes over {:?}", self.retried));
        for (id, call) in &self.open {
            let ends = call.progress != Progress::FoundDone;
            report.expect_now(ends, rules::ONE_END, || format!("call {id} is known to be done, and still open"));
            let ends = !matches!(call.permit, Permit::Refused);
            report.expect_now(ends, rules::ONE_END, || format!("call {id} was refused, and still open"));
        }
        let untimed = &self.without_timer;
        report.expect_now(untimed.is_empty(), rules::PUT_OFF, || format!("no timer is set for {untimed:?}"));
    }

    /// Of a run that is not held: only what waits for a person may be open. That a person is asked for ever is not a fault
    /// of the runtime, that nobody says no in time is.
    pub(super) fn settled(&self, at: Timestamp, report: &mut Report) {
        let wanted =
            |call: &Trace| !matches!(call.permit, Permit::Asked) && call.put_off.is_none_or(|until| until <= at);
        for (id, call) in self.open.iter().filter(|(_, call)| wanted(call)) {
            report.add(None, rules::SETTLED, format!("nobody is at call {id} ({:?})", call.progress));
        }
        for (id, question) in self.questions.iter().filter(|(_, question)| question.expires_at <= at) {
            report.add(None, rules::SETTLED, format!("question {id} expired at {}, and is open", question.expires_at));
        }
    }
}
