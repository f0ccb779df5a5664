//! Turns, what asks for them, and what they may cost.

use std::collections::{BTreeMap, HashSet};

use super::{Report, calls::Calls, calls::End, is_end, rules, waits::Waits};
use crate::{
    agent::ParallelWake,
    budget::{LimitName, Limits, Spent, Usage, microusd},
    event::{BudgetExceeded, Event, EventData, RunRunnable, Speaker, SubagentStarted, TurnCompleted},
    ids::{ApprovalId, CallId, Seq, TurnId},
    units::Duration,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    open: Option<TurnId>,
    opened: u32,
    committed: HashSet<TurnId>,
    /// The last event that asks for a turn by itself and that no committed turn has seen.
    cause: Option<Seq>,
    /// Ended calls that no committed turn has seen.
    results: Vec<Unseen>,
    parallel_wake: ParallelWake,
    limits: Limits,
    /// What the run spent itself, and what its ended children did.
    own: Spent,
    children: Spent,
    /// What is set aside for the open ones.
    set_aside: BTreeMap<CallId, Limits>,
    /// The limit at which the run has stopped, and the question whether it goes on.
    parked: Option<(LimitName, ApprovalId)>,
    /// It was said that it does not.
    refused: bool,
    /// What looks into whether the run is done, while that is open: the calls of it.
    checks: Option<Vec<CallId>>,
    given: Limits,
    created: Option<jiff::Timestamp>,
    /// Whether the turn before was rejected: it is tried once more, with what there is.
    repeats: bool,
}

#[derive(Clone, Copy, Debug)]
struct Unseen {
    seq: Seq,
    call: CallId,
    failed: bool,
}

impl Turns {
    pub(super) fn see(&mut self, event: &Event, calls: &Calls, report: &mut Report) {
        match &event.data {
            EventData::RunCreated(created) => {
                self.limits = created.limits.clone();
                self.given = created.limits.clone();
                self.created = Some(event.at);
                self.parallel_wake = created.parallel_wake;
            }
            EventData::BudgetChanged(changed) => {
                self.limits = changed.limits.clone();
                let fits = leaves_a_turn(&self.limits, &self.spent());
                self.parked = self.parked.filter(|(limit, _)| *limit != LimitName::Wall && !fits);
            }
            EventData::BudgetExceeded(exceeded) => self.reach(exceeded),
            EventData::AcceptanceRequested(requested) => {
                self.checks = Some(requested.checks.iter().filter_map(|asked| asked.call_id).collect());
            }
            EventData::AcceptanceJudged(judged) => {
                self.checks = None;
                if !judged.accepted {
                    self.open = None;
                    self.repeats = true;
                }
            }
            EventData::RunRevised(_) => self.checks = None,
            EventData::ContextCompacted(compacted) => self.own.add(&compacted.usage),
            EventData::ContextReset(reset) => self.own.add(&reset.usage),
            EventData::TurnCharged(charged) => self.own.add(&charged.usage),
            EventData::RunRunnable(opened) => self.open(event, opened, report),
            EventData::TurnCompleted(turn) => self.commit(event, turn, report),
            EventData::TurnRejected(turn) => {
                self.spend(&turn.usage);
                self.repeats |= self.open == Some(turn.turn_id);
                self.open = self.open.filter(|open| *open != turn.turn_id);
            }
            EventData::RunCancelRequested(_) => self.open = None,
            EventData::MessageAdded(message) if message.role == Speaker::Operator => self.cause = Some(event.seq),
            EventData::WaitSatisfied(_) | EventData::WaitExpired(_) => self.cause = Some(event.seq),
            EventData::ObservationRecorded(recorded) => {
                if let Some(asked) = &recorded.asked {
                    self.own.add(&asked.usage);
                }
                if recorded.observation.decision.is_some() {
                    self.cause = Some(event.seq);
                }
            }
            EventData::ApprovalGranted(granted) => {
                self.let_go(event, granted.approval_id);
                self.answered(event, calls.is_question(granted.approval_id));
            }
            EventData::ApprovalDenied(denied) => {
                self.refuse(denied.approval_id);
                self.answered(event, calls.is_question(denied.approval_id));
            }
            EventData::ApprovalExpired(expired) => {
                self.refuse(expired.approval_id);
                self.answered(event, calls.is_question(expired.approval_id));
            }
            EventData::ToolProgressed(progressed) if progressed.asks.is_some() => self.cause = Some(event.seq),
            EventData::ToolRequested(requested) if !requested.call.is_compensation() => {
                self.own.tool_calls += 1;
                let (most, spent) = (self.limits.tool_calls, self.committed().tool_calls);
                let kept = most.is_none_or(|most| spent <= most);
                report.expect(kept, event, rules::BUDGET, || format!("call {spent} of {most:?}"));
            }
            EventData::SubagentStarted(started) => self.set_aside(event, started, report),
            EventData::SubagentCompleted(done) => self.give_back(done.call_id, &done.spent),
            EventData::SubagentFailed(failed) => self.give_back(failed.call_id, &failed.spent),
            EventData::SubagentCancelled(cancelled) => self.give_back(cancelled.call_id, &cancelled.spent),
            data if is_end(data) => self.open = None,
            _ => {}
        }
        if let Some((call, _)) = End::of(&event.data)
            && let Some(checks) = &mut self.checks
        {
            checks.retain(|check| *check != call);
        }
        if let Some((call, end)) = End::of(&event.data)
            && calls.is_open(call)
        {
            self.results.push(Unseen { seq: event.seq, call, failed: end != End::Completed });
        }
    }

    fn answered(&mut self, event: &Event, is_question: bool) {
        if is_question {
            self.cause = Some(event.seq);
        }
    }

    fn reach(&mut self, exceeded: &BudgetExceeded) {
        if let Some(ask) = &exceeded.ask {
            self.parked = Some((exceeded.limit, ask.approval_id));
            if exceeded.limit != LimitName::Wall {
                self.open = None;
            }
        }
    }

    /// As much again, by an operator's word.
    fn let_go(&mut self, event: &Event, approval: ApprovalId) {
        if let Some((limit, _)) = self.parked.filter(|(_, asked)| *asked == approval) {
            self.parked = None;
            let age = self.created.map_or(0, |created| event.at.duration_since(created).as_millis());
            let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            self.limits = self.limits.with_more(limit, &self.given, age);
        }
    }

    fn refuse(&mut self, approval: ApprovalId) {
        self.refused |= self.parked.is_some_and(|(_, asked)| asked == approval);
    }

    fn open(&mut self, event: &Event, opened: &RunRunnable, report: &mut Report) {
        self.opened += 1;
        let number = self.opened;
        report.expect(opened.number == number, event, rules::TURN_NUMBER, || format!("turn {number} was expected"));
        // One that is opened again, since it was rejected or held, may go on with what is set aside since.
        let again = std::mem::take(&mut self.repeats) || self.open.is_some();
        let settled = self.spent();
        // One in which nothing is asked of a model, since it is to be said whether the run is done, costs nothing.
        let judges = self.checks.as_ref().is_some_and(Vec::is_empty);
        let within = judges
            || leaves_a_turn(&self.limits, &settled)
                && (self.set_aside.is_empty() || again || leaves_a_turn(&self.limits, &self.committed()));
        report.expect(within, event, rules::BUDGET, || format!("a turn opens beyond the limits {:?}", self.limits));
        self.open = Some(opened.turn_id);
    }

    fn commit(&mut self, event: &Event, turn: &TurnCompleted, report: &mut Report) {
        let turn_id = turn.turn_id;
        let first = self.committed.insert(turn_id);
        report.expect(first, event, rules::ONE_OUTCOME, || format!("turn {turn_id} was committed before"));
        let is_open = self.open == Some(turn_id);
        report.expect(is_open, event, rules::OPEN_TURN, || format!("turn {turn_id} is not the open one"));
        let seen = turn.based_on < event.seq;
        report.expect(seen, event, rules::BASED_ON, || format!("based on event {}", turn.based_on));
        self.spend(&turn.usage);
        self.open = None;
        self.checks = None;
        self.cause = self.cause.filter(|cause| *cause > turn.based_on);
        self.results.retain(|result| result.seq > turn.based_on);
    }

    fn spend(&mut self, usage: &Usage) {
        self.own.turns += 1;
        self.own.add(usage);
    }

    /// What the run and its ended children spent.
    pub(super) fn spent(&self) -> Spent {
        self.own.plus(&self.children)
    }

    fn committed(&self) -> Spent {
        self.set_aside.values().fold(self.spent(), |sum, limits| sum.plus(&limits.as_spent()))
    }

    /// What is set aside was there, also if a limit was passed by the turn before.
    fn set_aside(&mut self, event: &Event, started: &SubagentStarted, report: &mut Report) {
        let given = &started.limits;
        let left = self.limits.without(&self.committed());
        let within = given.stricter(&left) == Limits { wall: given.stricter(&left).wall, ..given.clone() };
        report.expect(within, event, rules::BUDGET, || format!("{given:?} is set aside of {left:?}"));
        self.set_aside.insert(started.spawn.call_id, given.clone());
    }

    fn give_back(&mut self, call: CallId, spent: &Spent) {
        self.set_aside.remove(&call);
        self.children = self.children.plus(spent);
    }

    /// Of a run that is neither held nor ending, between two commits.
    pub(super) fn rest(&self, calls: &Calls, waits: &Waits, report: &mut Report) {
        report.expect_now(!self.refused, rules::BUDGET_ENDS, || "nobody let it go on, and it goes on".to_owned());
        if self.open.is_some() || self.parked.is_some() {
            return;
        }
        // With nothing left but what is set aside for children, the next turn waits for one of them to end.
        if !self.set_aside.is_empty() && !leaves_a_turn(&self.limits, &self.committed()) {
            return;
        }
        report.expect_now(self.cause.is_none(), rules::NO_LOST_WAKE, || {
            format!("event {:?} asks for a turn, and none is open", self.cause)
        });
        report.expect_now(!waits.is_met(), rules::NO_LOST_WAKE, || "a met wait sleeps on".to_owned());
        report.expect_now(!self.results_complete(calls, waits), rules::NO_LOST_WAKE, || {
            format!("results ask for a turn, and none is open: {:?}", self.results)
        });
        let sleeps_on = waits.is_waiting() || calls.any_open() || calls.any_question();
        report.expect_now(sleeps_on, rules::SLEEPS_ON, || "nothing can wake the run".to_owned());
    }

    /// Results that no wait names ask for a turn when the last of them is there, or at the first failure.
    fn results_complete(&self, calls: &Calls, waits: &Waits) -> bool {
        let mut unnamed = self.results.iter().filter(|result| !waits.names(result.call)).peekable();
        let any = unnamed.peek().is_some();
        let failed = unnamed.any(|result| result.failed);
        let all = !calls.open().any(|call| !waits.names(call));
        any && (all || (failed && self.parallel_wake == ParallelWake::FirstFailure))
    }

    pub(super) fn settled(&self, report: &mut Report) {
        report.expect_now(self.open.is_none(), rules::SETTLED, || format!("nobody took turn {:?}", self.open));
    }
}

/// Whether a turn may begin after so much was spent.
fn leaves_a_turn(limits: &Limits, spent: &Spent) -> bool {
    let tokens = spent.usage.input_tokens.saturating_add(spent.usage.output_tokens);
    limits.turns.is_none_or(|most| spent.turns < most)
        && limits.tokens.is_none_or(|most| tokens < most)
        && limits.cost_usd.is_none_or(|most| spent.usage.cost_microusd < microusd(most))
}
