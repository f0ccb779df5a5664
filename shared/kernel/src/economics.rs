//! What waking cost and what it saved: a fold over the events of a run.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    budget::Usage,
    call::SignalCounts,
    command::TurnOutcome,
    event::{Event, EventData, PaidFor, Speaker},
    ids::{ApprovalId, CallId},
    state::RunState,
    wait::{Condition, Wait, WaitExpr, WakeKind},
};

/// What waking cost and saved. What only serves to go on folding is no part of its written form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Economics {
    /// Raw lines that were read for the run: output of its calls, and logs behind actions that it asked about.
    pub signals: u64,
    /// Their bytes, as far as they are known.
    pub signal_bytes: u64,
    /// Observations recorded.
    pub observations: u64,
    /// Of those, the ones that needed a decision.
    pub decisions: u64,
    /// Facts that asked for a wake: results, observations that need a decision, outside events, timers, people.
    pub wake_requests: u64,
    /// Wakes, by kind.
    pub wakes: BTreeMap<String, u64>,
    /// Wakes in all.
    pub wakes_total: u64,
    /// Requests that were gathered into another one's wake.
    pub coalesced: u64,
    /// What was noticed and woke nobody.
    pub suppressed: u64,
    /// Wakes whose turn changed nothing: no call, no word, no plan, no artifact, no other wait, no end.
    pub false_wakes: u64,
    /// Turns committed.
    pub turns: u64,
    /// Tokens in and out, also of turns that were refused.
    pub tokens: u64,
    /// What each of the planner's controls did and cost, by its name: `compaction`, `reset`, `drift`, `evaluator`; and under `observer`
    /// the model that is asked for second opinions.
    pub controls: BTreeMap<String, ControlCost>,
    /// Tokens for each wake; none before the first.
    pub tokens_per_wake: Option<u64>,
    /// What it cost, in millionths of a dollar.
    pub cost_microusd: u64,
    /// The last event that is counted.
    pub seq: u64,
    #[serde(skip)]
    progress: Progress,
}

/// What a control did, and what that cost: what people need to know who think of switching it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ControlCost {
    /// How often it acted.
    pub times: u64,
    /// How often that changed something: a summary that was shorter, a `complete` that was refused.
    pub effective: u64,
    /// Tokens that it took, those of evaluators included.
    pub tokens: u64,
    /// Millionths of a dollar.
    pub cost_microusd: u64,
}

/// What is needed to go on folding.
#[derive(Clone, Debug, Default, PartialEq)]
struct Progress {
    /// The counts of an observation are since the start of its call.
    counts: BTreeMap<CallId, SignalCounts>,
    /// Questions that hold a call back: their answer wakes nobody by itself.
    about_calls: BTreeSet<ApprovalId>,
    /// The call whose end was observed just now: one cause, one request.
    concluding: Option<CallId>,
    /// Calls that look into criteria.
    checks: BTreeSet<CallId>,
    /// The open turn was opened by a wake.
    woken: bool,
    /// The last committed turn, if it was woken for: whether it has changed anything.
    turn: Option<bool>,
    /// The wait before that turn.
    wait: Option<Wait>,
}

impl Economics {
    /// Counts an event; events come in order.
    pub fn add(&mut self, event: &Event) {
        self.seq = event.seq;
        let concluding = self.progress.concluding.take();
        match &event.data {
            EventData::RunRunnable(runnable) => {
                self.close_turn();
                self.progress.woken = runnable.wake.is_some();
                if let Some(kind) = runnable.wake {
                    *self.wakes.entry(kind.as_str().to_owned()).or_default() += 1;
                    self.wakes_total += 1;
                }
            }
            EventData::TurnCompleted(turn) => {
                self.close_turn();
                self.turns += 1;
                self.spend(&turn.usage);
                self.progress.turn = self.progress.woken.then_some(false);
            }
            EventData::TurnRejected(turn) => self.spend(&turn.usage),
            EventData::TurnCharged(charged) => match charged.paid_for {
                PaidFor::Answer => self.spend(&charged.usage),
                PaidFor::Summary => self.compacted("", &charged.usage, false),
            },
            EventData::ContextCompacted(compacted) => {
                self.compacted(&compacted.reason, &compacted.usage, compacted.summary.is_some());
            }
            EventData::ContextReset(reset) => self.compacted(&reset.reason, &reset.usage, true),
            EventData::DriftNoticed(_) => self.control("drift", 1, 1, &Usage::default()),
            EventData::AcceptanceRequested(requested) => {
                self.progress.checks.extend(requested.checks.iter().filter_map(|asked| asked.call_id));
                self.change();
            }
            EventData::AcceptanceJudged(judged) => {
                self.control("evaluator", 1, u64::from(!judged.accepted), &Usage::default());
            }
            EventData::SubagentCompleted(done) => self.evaluated(done.call_id, &done.spent.usage),
            EventData::SubagentFailed(failed) => self.evaluated(failed.call_id, &failed.spent.usage),
            EventData::ToolRequested(_)
            | EventData::PlanUpdated(_)
            | EventData::ArtifactCreated(_)
            | EventData::ArtifactUpdated(_)
            | EventData::RunCompleted(_)
            | EventData::RunFailed(_)
            | EventData::RunCancelRequested(_) => self.change(),
            EventData::MessageAdded(added) => match added.role {
                Speaker::Agent => self.change(),
                Speaker::Operator => self.wake_requests += 1,
            },
            EventData::ApprovalRequested(requested) => match requested.approval.call_id {
                Some(_) => drop(self.progress.about_calls.insert(requested.approval.approval_id)),
                None => self.change(),
            },
            EventData::WaitRegistered(registered) => {
                let before = self.progress.wait.replace(registered.wait.clone());
                if before.is_none_or(|before| !is_same(&before.on, &registered.wait.on)) {
                    self.change();
                }
            }
            _ => self.ask(event, concluding),
        }
        self.settle();
    }

    /// A summary is the cost of the control that wanted it.
    fn compacted(&mut self, reason: &str, usage: &Usage, shrinks: bool) {
        self.spend(usage);
        match reason {
            // That it acted is counted by what it noticed.
            "drift" | "drift_reset" => self.control("drift", 0, 0, usage),
            "reset" => self.control("reset", 1, u64::from(shrinks), usage),
            _ => self.control("compaction", 1, u64::from(shrinks), usage),
        }
    }

    /// An agent that looked into criteria has ended: its cost is its own run's, and is shown here as the control's.
    fn evaluated(&mut self, call: CallId, usage: &Usage) {
        if self.progress.checks.remove(&call) {
            self.control("evaluator", 0, 0, usage);
        }
    }

    fn control(&mut self, name: &str, times: u64, effective: u64, usage: &Usage) {
        let control = self.controls.entry(name.to_owned()).or_default();
        control.times += times;
        control.effective += effective;
        control.tokens += usage.tokens();
        control.cost_microusd += usage.cost_microusd;
    }

    /// Facts that ask for a wake.
    fn ask(&mut self, event: &Event, concluding: Option<CallId>) {
        let ended = match &event.data {
            EventData::ToolCompleted(ended) => Some(ended.call_id),
            EventData::ToolFailed(ended) => Some(ended.call_id),
            EventData::ToolDenied(ended) => Some(ended.call_id),
            EventData::ToolCancelled(ended) => Some(ended.call_id),
            _ => None,
        };
        let asks = match &event.data {
            EventData::ObservationRecorded(recorded) => {
                let observation = &recorded.observation;
                self.observations += 1;
                if let Some(asked) = &recorded.asked {
                    self.spend(&asked.usage);
                    self.control("observer", 1, u64::from(asked.objects()), &asked.usage);
                }
                let needs = observation.decision.is_some();
                self.decisions += u64::from(needs);
                self.count(observation.call_id, observation.counts);
                self.suppressed += u64::from(!needs);
                self.progress.concluding = observation.call_id.filter(|_| needs);
                needs
            }
            EventData::ExternalMatched(_) | EventData::TimerFired(_) => true,
            EventData::ApprovalGranted(granted) => !self.progress.about_calls.contains(&granted.approval_id),
            EventData::ApprovalDenied(denied) => !self.progress.about_calls.contains(&denied.approval_id),
            _ => ended.is_some_and(|call| concluding != Some(call)),
        };
        self.wake_requests += u64::from(asks);
    }

    fn count(&mut self, call: Option<CallId>, counts: SignalCounts) {
        let before = match call {
            Some(call) => self.progress.counts.insert(call, counts).unwrap_or_default(),
            None => SignalCounts::default(),
        };
        self.signals += counts.lines.saturating_sub(before.lines);
        self.signal_bytes += counts.bytes.saturating_sub(before.bytes);
        self.suppressed += counts.suppressed.saturating_sub(before.suppressed);
    }

    fn change(&mut self) {
        if let Some(changed) = &mut self.progress.turn {
            *changed = true;
        }
    }

    /// The next turn begins: what the last one did is known.
    fn close_turn(&mut self) {
        if self.progress.turn.take() == Some(false) {
            self.false_wakes += 1;
        }
    }

    fn spend(&mut self, usage: &Usage) {
        self.tokens += usage.input_tokens + usage.output_tokens;
        self.cost_microusd += usage.cost_microusd;
    }

    fn settle(&mut self) {
        self.coalesced = self.wake_requests.saturating_sub(self.wakes_total);
        self.tokens_per_wake = self.tokens.checked_div(self.wakes_total);
    }
}

/// Whether a turn that was woken for would change nothing by this outcome: a false wake.
#[must_use]
pub fn changes_nothing(state: &RunState, outcome: &TurnOutcome) -> bool {
    let is_woken = state.turn.as_ref().is_some_and(|turn| turn.wake.is_some());
    let does_nothing = outcome.calls.is_empty()
        && outcome.say.is_empty()
        && outcome.plan.is_none()
        && outcome.question.is_none()
        && outcome.artifacts.is_empty()
        && outcome.end.is_none();
    let waits_as_before = match (&outcome.wait, &state.last_wait) {
        (Some(wait), Some(before)) => is_same(&wait.on, &before.on),
        (Some(_), None) => false,
        // Words alone are the final answer.
        (None, _) => outcome.text.is_none(),
    };
    is_woken && does_nothing && waits_as_before
}

/// Whether one wait is for the same as another: timers begin anew each time, and count by being there.
fn is_same(one: &WaitExpr, other: &WaitExpr) -> bool {
    let conditions = |on: &WaitExpr| -> Vec<Option<Condition>> {
        let of = |condition: &Condition| match condition.wake_kind() {
            WakeKind::Timer => None,
            _ => Some(condition.clone()),
        };
        on.leaves().into_iter().map(|leaf| of(&leaf.condition)).collect()
    };
    conditions(one) == conditions(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Block, RunId, TimerId, Timestamp, Trust, TurnId, WaitId,
        call::{CallResult, Observation},
        context::Standing,
        drift::{DriftKind, Remedy},
        event::{
            AcceptanceJudged, ContextCompacted, DriftNoticed, MessageAdded, ObservationRecorded, RunRunnable,
            TimerFired, ToolCompleted, TurnCompleted, WaitRegistered,
        },
        slice::Manifest,
    };

    fn turn(tokens: u64) -> EventData {
        TurnCompleted {
            turn_id: TurnId::mint(),
            number: 1,
            based_on: 0,
            model: "m".into(),
            text: None,
            usage: Usage { input_tokens: tokens, ..Usage::default() },
            trust: Trust::System,
            manifest: Manifest::default(),
            finish_reason: None,
            model_ms: 0,
            failures: Vec::new(),
            dropped_calls: Vec::new(),
        }
        .into()
    }

    fn runnable(wake: Option<WakeKind>) -> EventData {
        RunRunnable { turn_id: TurnId::mint(), number: 1, wake, not_before: None }.into()
    }

    fn observed(call: CallId, lines: u64, decision: bool) -> EventData {
        let observation = Observation {
            call_id: Some(call),
            phase: "progress".into(),
            changed: String::new(),
            anomaly: false,
            decision: decision.then(|| "look".to_owned()),
            evidence: Vec::new(),
            missing: None,
            counts: SignalCounts { lines, suppressed: lines / 10, ..SignalCounts::default() },
        };
        ObservationRecorded { observation, asked: None }.into()
    }

    fn ended(call: CallId) -> EventData {
        let block = Block::new("ok", Trust::System, "t");
        ToolCompleted {
            call_id: call,
            result: CallResult { block, value: None, artifact: None, duration_ms: 0 },
            exit: None,
        }
        .into()
    }

    fn waits(due: i64) -> EventData {
        let due = Timestamp::from_second(due).unwrap();
        let on = WaitExpr::from(Condition::Timer { timer_id: TimerId::mint(), due });
        let wait = Wait { wait_id: WaitId::mint(), on, why: "w".into(), assumes: None, expects: None, deadline: None };
        WaitRegistered { wait }.into()
    }

    fn fold(events: Vec<EventData>) -> Economics {
        let mut economics = Economics::default();
        for (seq, data) in (1..).zip(events) {
            economics.add(&Event { seq, at: Timestamp::UNIX_EPOCH, data });
        }
        economics
    }

    #[test]
    fn signals_are_counted_once_and_requests_coalesce() {
        let run = RunId::mint();
        let (one, two) = (CallId::derive(run, "1"), CallId::derive(run, "2"));
        let economics = fold(vec![
            runnable(None),
            turn(100),
            observed(one, 1000, false),
            observed(one, 5000, true),
            ended(one),
            ended(two),
            runnable(Some(WakeKind::TaskResult)),
            turn(50),
        ]);
        assert_eq!((economics.signals, economics.observations, economics.decisions), (5000, 2, 1));
        // The end of the first call is what its observation is about; the second one is gathered.
        assert_eq!((economics.wake_requests, economics.wakes_total, economics.coalesced), (2, 1, 1));
        assert_eq!((economics.suppressed, economics.tokens_per_wake), (501, Some(150)));
    }

    fn compacted(reason: &str, tokens: u64) -> EventData {
        let kept = Standing {
            objective: Block::new("o", Trust::Operator, "t"),
            acceptance: Vec::new(),
            plan: Vec::new(),
            plan_revision: 0,
            wait: None,
            calls: Default::default(),
            children: Default::default(),
            questions: Default::default(),
            trust: Trust::Operator,
        };
        ContextCompacted {
            turn_id: TurnId::mint(),
            strategy: "model".into(),
            reason: reason.into(),
            before_tokens: 2,
            after_tokens: 2,
            usage: Usage { input_tokens: tokens, cost_microusd: tokens * 10, ..Usage::default() },
            kept,
            summary: None,
            not_reset: None,
        }
        .into()
    }

    #[test]
    fn each_control_is_shown_what_it_cost() {
        let noticed = DriftNoticed {
            turn_id: TurnId::mint(),
            kind: DriftKind::RepeatedCalls,
            remedy: Remedy::Replan,
            detail: String::new(),
            asked: None,
        };
        let judged = AcceptanceJudged { verdicts: Vec::new(), accepted: false, number: 1 };
        let economics = fold(vec![
            compacted("history", 100),
            compacted("drift", 20),
            noticed.into(),
            compacted("reset", 3),
            judged.into(),
        ]);
        let cost = |name: &str| {
            let control = economics.controls[name];
            (control.times, control.tokens, control.cost_microusd)
        };
        assert_eq!((cost("compaction"), cost("reset")), ((1, 100, 1000), (1, 3, 30)));
        assert_eq!(
            (cost("drift"), cost("evaluator")),
            ((1, 20, 200), (1, 0, 0)),
            "a summary for re-planning is drift's"
        );
        assert_eq!(economics.tokens, 123, "and all of it is the run's");
    }

    #[test]
    fn a_wake_that_changes_nothing_is_a_false_one() {
        let fired = || TimerFired { timer_id: TimerId::mint(), due: Timestamp::UNIX_EPOCH }.into();
        let said = MessageAdded { role: Speaker::Agent, block: Block::new("hm", Trust::System, "m") };
        let economics = fold(vec![
            runnable(None),
            turn(10),
            waits(1),
            fired(),
            runnable(Some(WakeKind::Timer)),
            turn(10),
            waits(2),
            fired(),
            runnable(Some(WakeKind::Timer)),
            turn(10),
            said.into(),
            waits(3),
            fired(),
            runnable(Some(WakeKind::Timer)),
        ]);
        assert_eq!((economics.wakes_total, economics.false_wakes), (3, 1));
    }
}
