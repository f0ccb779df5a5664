//! No sequence of commands reaches an illegal state.

use kernel::{
    ApprovalId, CallId, Command, Event, EventData, Rejection, RunState, Status, TimerId, apply,
    audit::Auditor,
    budget::{Limits, Usage},
    call::{Approval, Binding, CallFailure, Compensation, Exit, Observation, SignalCounts, Verdict},
    command::*,
    event::{ExternalRef, Finding, PaidFor},
    opinion::SecondOpinion,
    state::{MAX_FACTS, MAX_HISTORY},
    tool::{CallKind, Effect},
    wait::{Condition, ExternalPattern, WaitExpr},
};
use proptest::prelude::*;

use crate::build::*;

/// Something that a service or a person might do, with a number to pick what with.
#[derive(Clone, Copy, Debug)]
enum Step {
    Turn(TurnKind),
    StaleTurn,
    RejectTurn,
    ChargeTurn,
    Message,
    Pause,
    Resume,
    Cancel,
    Admit,
    Budget,
    Start,
    Complete,
    Fail,
    CancelCall,
    Deny,
    Ask,
    Approve,
    DenyApproval,
    Expire,
    Doubt,
    Reconcile(Finding),
    Observe(bool),
    Conclude(i32),
    Fire,
    PutOff(u16),
    AskModel,
    Compensate,
    External,
    Sleep(u16),
}

#[derive(Clone, Copy, Debug)]
enum TurnKind {
    Calls(u8),
    Activity,
    Timer,
    External,
    Question,
    WaitAll,
    Text,
    Complete,
    Fail,
    Nothing,
}

fn turn_kind() -> impl Strategy<Value = TurnKind> {
    prop_oneof![
        4 => (1u8..4).prop_map(TurnKind::Calls),
        2 => Just(TurnKind::Activity),
        2 => Just(TurnKind::Timer),
        2 => Just(TurnKind::External),
        2 => Just(TurnKind::Question),
        1 => Just(TurnKind::WaitAll),
        1 => Just(TurnKind::Text),
        1 => Just(TurnKind::Complete),
        1 => Just(TurnKind::Fail),
        1 => Just(TurnKind::Nothing),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let finding = prop_oneof![Just(Finding::Done), Just(Finding::NotDone), Just(Finding::Unknown)];
    prop_oneof![
        10 => turn_kind().prop_map(Step::Turn),
        1 => Just(Step::StaleTurn),
        1 => Just(Step::RejectTurn),
        1 => Just(Step::ChargeTurn),
        2 => Just(Step::Message),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::Cancel),
        1 => Just(Step::Admit),
        1 => Just(Step::Budget),
        5 => Just(Step::Start),
        5 => Just(Step::Complete),
        2 => Just(Step::Fail),
        1 => Just(Step::CancelCall),
        1 => Just(Step::Deny),
        2 => Just(Step::Ask),
        2 => Just(Step::Approve),
        1 => Just(Step::DenyApproval),
        1 => Just(Step::Expire),
        2 => Just(Step::Doubt),
        2 => finding.prop_map(Step::Reconcile),
        2 => any::<bool>().prop_map(Step::Observe),
        2 => (0i32..2).prop_map(Step::Conclude),
        2 => Just(Step::Fire),
        2 => (0u16..100).prop_map(Step::PutOff),
        1 => Just(Step::AskModel),
        3 => Just(Step::Compensate),
        2 => Just(Step::External),
        2 => (1u16..200).prop_map(Step::Sleep),
    ]
}

fn pick<T: Copy>(all: &[T], by: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[by % all.len()])
}

/// The command for a step, aimed at something that exists if there is anything.
fn command(run: &Run, step: Step, by: usize) -> Option<Command> {
    let state = run.state();
    let calls: Vec<CallId> = state.calls.keys().copied().collect();
    let call = pick(&calls, by).unwrap_or_else(|| CallId::derive(run.id, "no such call"));
    let approvals: Vec<ApprovalId> = state.approvals.keys().copied().collect();
    let approval_id = pick(&approvals, by).unwrap_or_else(|| ApprovalId::derive(run.id, "none"));
    let decide = |verdict| {
        let by = ["ann", "bob"][by % 2].to_owned();
        let decision = DecideApproval {
            approval_id,
            verdict,
            edited: None,
            reason: None,
            by,
            aliases: Vec::new(),
            standing: None,
        };
        Command::DecideApproval(decision)
    };
    Some(match step {
        Step::Turn(kind) => Command::CommitTurn(Box::new(turn(run, kind, by))),
        Step::StaleTurn => {
            let turn_id = kernel::TurnId::derive(run.id, "turn/0");
            Command::CommitTurn(Box::new(TurnOutcome { text: Some(block("late")), ..outcome(turn_id, 1) }))
        }
        Step::RejectTurn => Command::RejectTurn(RejectTurn {
            turn_id: run.outcome().turn_id,
            code: "invalid_output".into(),
            problems: vec!["bad".into()],
            usage: Default::default(),
            failures: Vec::new(),
        }),
        Step::ChargeTurn => Command::ChargeTurn(ChargeTurn {
            turn_id: run.outcome().turn_id,
            paid_for: PaidFor::Summary,
            reason: "the run has moved on".into(),
            usage: Usage { model_calls: 1, input_tokens: 10, ..Usage::default() },
            failures: Vec::new(),
        }),
        Step::Message => Command::AddMessage(AddMessage { block: block("hello") }),
        Step::Pause => Command::Pause(ann(None)),
        Step::Resume => Command::Resume(ann(None)),
        Step::Cancel => Command::Cancel(ann(None)),
        Step::Admit => Command::Admit,
        Step::Budget => Command::ChangeBudget(ChangeBudget {
            limits: Limits { turns: Some(50), tool_calls: Some(100), ..Limits::default() },
            by: "ann".into(),
        }),
        Step::Start => {
            let binding = Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() };
            Command::StartCall(StartCall { call_id: call, executor: "e".into(), binding })
        }
        Step::PutOff(seconds) => Command::ProgressCall(Box::new(ProgressCall {
            put_off: Some(at(run.now + i64::from(seconds))),
            starts: state.calls.get(&call).map_or(0, |call| call.attempts),
            reason: Some("retry".into()),
            ..ProgressCall::of(call)
        })),
        Step::AskModel => {
            Command::ProgressCall(Box::new(ProgressCall { asks: Some(block("more?")), ..ProgressCall::of(call) }))
        }
        Step::Compensate => {
            let undone = state.undo.back().map_or(call, |undo| undo.call_id);
            let mut request = run.call("revert", Effect::External, CallKind::Call);
            request.compensation = Compensation::Of(undone);
            Command::CompensateCall(Box::new(CompensateCall { request }))
        }
        Step::Complete => completed(call),
        Step::Fail => Command::FailCall(FailCall { call_id: call, failure: failure() }),
        Step::CancelCall => Command::CancelCall(CancelCall { call_id: call, reason: "stop".into() }),
        Step::Deny => Command::DenyCall(DenyCall { call_id: call, code: "policy".into(), reason: block("no") }),
        Step::Ask => {
            let question = approval(run, Some(call), &format!("{call}/{}", state.seq));
            Command::AskApproval(Box::new(Approval { two_people: by.is_multiple_of(3), ..question }))
        }
        Step::Approve => decide(Verdict::Approve),
        Step::DenyApproval => decide(Verdict::Deny),
        Step::Expire => Command::ExpireApproval(ExpireApproval { approval_id }),
        Step::Doubt => Command::DoubtCall(DoubtCall { call_id: call, reason: "gone".into() }),
        Step::Reconcile(finding) => Command::ReconcileCall(ReconcileCall {
            call_id: call,
            finding,
            as_of: at(run.now + 1),
            evidence: block("seen"),
            result: None,
        }),
        Step::Observe(wakes) => Command::Observe(observation(Some(call), wakes)),
        Step::Conclude(code) => Command::ConcludeCall(Box::new(ConcludeCall {
            call_id: call,
            exit: Exit { code: Some(code), signal: None, reason: "exited".into(), bytes: 1, lines: 1 },
            succeeded: code == 0,
            observation: observation(Some(call), code != 0),
            asked: (code == 0).then(opinion),
            duration_ms: 1,
        })),
        Step::Fire => {
            let timers: Vec<TimerId> = state.timers.keys().copied().collect();
            Command::FireTimer(FireTimer { timer_id: pick(&timers, by)? })
        }
        Step::External => external(state, by)?,
        Step::Sleep(_) => return None,
    })
}

fn turn(run: &Run, kind: TurnKind, by: usize) -> TurnOutcome {
    let blank = run.outcome();
    let effects = [Effect::Read, Effect::Write, Effect::External, Effect::Payment];
    let wait = |on| Some(WaitRequest { on, why: "w".into(), assumes: None, expects: None, deadline: None });
    let timer = || Condition::Timer {
        timer_id: TimerId::derive(run.id, &format!("timer/{}", run.state().seq)),
        due: at(run.now + 20),
    };
    let pattern = || ExternalPattern {
        source: "forge".into(),
        event_type: "merged".into(),
        subject: "1".into(),
        filter: None,
        exclusive: false,
        verify: None,
    };
    match kind {
        TurnKind::Calls(count) => {
            let names = (0..count).map(|index| format!("call-{index}"));
            let call = |name: String| {
                let mut call = run.call(&name, effects[by % effects.len()], CallKind::Call);
                call.compensation = if by.is_multiple_of(3) { Compensation::Declared } else { Compensation::None };
                call
            };
            let calls = names.map(call).collect();
            TurnOutcome { calls, ..blank }
        }
        TurnKind::Activity => {
            TurnOutcome { calls: vec![run.call("build", Effect::Write, CallKind::Activity)], ..blank }
        }
        TurnKind::Timer => TurnOutcome { wait: wait(timer().into()), ..blank },
        TurnKind::External => {
            let mut request = wait(Condition::External(pattern()).into()).unwrap();
            request.deadline = Some(at(run.now + 40));
            TurnOutcome { wait: Some(request), ..blank }
        }
        TurnKind::Question => {
            let question = approval(run, None, &format!("question/{}", run.state().seq));
            TurnOutcome { question: Some(question), ..blank }
        }
        TurnKind::WaitAll => {
            let call = run.call("read", Effect::Read, CallKind::Call);
            let on = WaitExpr::All(vec![Condition::TaskResult { call_id: call.call_id }.into(), timer().into()]);
            TurnOutcome { calls: vec![call], wait: wait(on), ..blank }
        }
        TurnKind::Text => TurnOutcome { text: Some(block("so it is")), ..blank },
        TurnKind::Complete => TurnOutcome { end: Some(EndRequest::Complete(block("done"))), ..blank },
        TurnKind::Fail => TurnOutcome { end: Some(EndRequest::Fail(block("no way"))), ..blank },
        TurnKind::Nothing => blank,
    }
}

fn external(state: &RunState, by: usize) -> Option<Command> {
    let wait = state.wait.as_ref()?;
    Some(Command::DeliverExternal(Box::new(DeliverExternal {
        external: ExternalRef {
            position: i64::try_from(by).unwrap(),
            source: "forge".into(),
            id: by.to_string(),
            event_type: "merged".into(),
            resource_key: "forge:1".into(),
            traceparent: None,
        },
        wait_id: wait.wait_id,
        leaf: u16::try_from(by % 3).unwrap(),
        block: block("merged"),
    })))
}

fn failure() -> CallFailure {
    CallFailure { block: block("broken"), code: "broken".into(), duration_ms: 1 }
}

fn observation(call_id: Option<CallId>, wakes: bool) -> Observation {
    Observation {
        call_id,
        phase: "progress".into(),
        changed: "more".into(),
        anomaly: wakes,
        decision: wakes.then(|| "look".into()),
        evidence: Vec::new(),
        missing: None,
        counts: SignalCounts::default(),
    }
}

/// Somebody was asked about how a call went: that costs, without a turn.
fn opinion() -> SecondOpinion {
    let usage = Usage { model_calls: 1, input_tokens: 3, output_tokens: 1, ..Usage::default() };
    SecondOpinion { usage, ..SecondOpinion::none("garbled") }
}

/// What must hold after every commit.
fn check(run: &Run, before: Status, events: &[Event]) {
    let state = run.state();
    let status = state.status();
    assert!(before.may_become(status), "{before:?} -> {status:?} by {events:?}");
    assert!(state.facts.len() <= MAX_FACTS && state.history.len() <= MAX_HISTORY);
    if status == Status::Waiting {
        let sources = !state.calls.is_empty() || !state.approvals.is_empty() || state.wait.is_some();
        assert!(sources, "a run that sleeps on nothing sleeps for ever: {events:?}");
        assert!(state.wake.is_none(), "a wake was lost");
        assert!(!state.results_complete(), "results were lost");
        assert!(state.wait.as_ref().is_none_or(|wait| !wait.on.is_met()), "a satisfied wait sleeps on");
    }
    if status == Status::Cancelling {
        let undoes = state.owes_compensation() || state.calls.values().any(|call| call.request.is_compensation());
        assert!(undoes || state.started_calls().count() > 0, "nothing is left to wait for");
    }
    let end = events.iter().position(|event| {
        matches!(event.data, EventData::RunCompleted(_) | EventData::RunFailed(_) | EventData::RunCancelled(_))
    });
    assert!(end.is_none_or(|end| end + 1 == events.len()), "something follows the end");
    if status.is_terminal() {
        assert!(
            state.calls.is_empty() && state.wait.is_none() && state.timers.is_empty() && state.approvals.is_empty()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_commands_reaches_an_illegal_state(
        hold in any::<bool>(),
        turns in 3u32..40,
        steps in prop::collection::vec((step(), any::<u16>()), 1..120),
    ) {
        let mut run = Run::new();
        let limits = Limits { turns: Some(turns), tool_calls: Some(60), ..Limits::default() };
        let hold = hold.then(|| "the tenant is busy".to_owned());
        run.must(Command::Create(Box::new(CreateRun { created: created(limits), hold })));
        for (step, by) in steps {
            if let Step::Sleep(seconds) = step {
                run.now += i64::from(seconds);
            }
            let Some(command) = command(&run, step, usize::from(by)) else { continue };
            let (before, length) = (run.state().clone(), run.log.len());
            let result = run.send(&command);
            if before.ended {
                prop_assert_eq!(result, Err(Rejection::Ended(before.status())));
                continue;
            }
            let events = run.log[length..].to_vec();
            let folded = events.iter().fold(before.clone(), |state, event| apply(Some(state), run.id, event).unwrap());
            prop_assert_eq!(&folded, run.state(), "decide and apply disagree");
            check(&run, before.status(), &events);
        }
        prop_assert_eq!(Auditor::new(None).run(run.id, &run.log), []);
        let replayed = run.log.iter().fold(None, |state, event| Some(apply(state, run.id, event).unwrap()));
        prop_assert_eq!(replayed.as_ref(), run.state.as_ref());
        let stored = serde_json::to_string(run.state()).unwrap();
        prop_assert_eq!(&serde_json::from_str::<RunState>(&stored).unwrap(), run.state());
        for event in &run.log {
            let data = event.data.encode().unwrap();
            let read = EventData::decode(event.data.type_name(), event.data.version(), &data).unwrap();
            prop_assert_eq!(&read, &event.data);
        }
    }

    #[test]
    fn stored_bytes_never_panic(name in "\\PC*", version in any::<u16>(), data in "\\PC*") {
        let _ = EventData::decode(&name, version, &data);
        for known in EventData::TYPES {
            let _ = EventData::decode(known, version, &data);
        }
    }
}
