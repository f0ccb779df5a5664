//! Keeping a run on its way: what makes it done, what it remembers, what happens at a limit.

use kernel::{
    ApprovalId, Block, CallId, Command, EventData, Rejection, RunId, Status, Trust, TurnId,
    acceptance::{AskedCheck, Check, CheckedCriterion, Criterion, CriterionVerdict, ToolCheck},
    audit::RunAudit,
    budget::{AtLimit, Limits, Usage},
    call::{ArtifactRef, CallResult, Verdict},
    child::ParentRef,
    command::{
        AddMessage, ByOperator, ChangeBudget, ChargeTurn, Compact, CompleteCall, CreateRun, EndRequest, ExpireApproval,
        Judge, NoteDrift, PlanChange, RejectTurn, ReviseRun, TurnOutcome,
    },
    context::Summary,
    drift::{DriftKind, Remedy},
    event::{PaidFor, PlanStep, Rule, RunCreated, StepStatus},
    tool::{CallKind, Effect},
};
use serde_json::json;

use crate::build::{self, Run, block, decision};

const CRITERION: &str = "the page answers";

fn with(change: impl FnOnce(&mut RunCreated)) -> Run {
    let mut created = build::created(Limits::default());
    change(&mut created);
    let mut run = Run::new();
    run.must(Command::Create(Box::new(CreateRun { created, hold: None })));
    run
}

impl Run {
    fn turn(&self) -> TurnId {
        self.state().turn.as_ref().unwrap().turn_id
    }

    /// A second reading of all that happened finds nothing wrong.
    fn audit(&self) {
        let mut audit = RunAudit::new(self.id);
        for event in &self.log {
            audit.push(event);
        }
        audit.rest();
        assert_eq!(audit.take_violations(), []);
    }
}

fn checked() -> Run {
    let tool = ToolCheck {
        tool: "test.get".into(),
        arguments: serde_json::from_value(json!({"url": "https://a.example"})).unwrap(),
        expect: None,
    };
    let criterion = Criterion::Checked(CheckedCriterion { text: CRITERION.into(), check: Check::Tool(tool) });
    with(|created| created.acceptance = vec![criterion, Criterion::Words("well done".into())])
}

/// `complete`, with the call that looks into the criterion.
fn says_done(run: &Run) -> (TurnOutcome, kernel::CallId) {
    let mut call = run.call("get", Effect::Read, CallKind::Call);
    call.arguments = json!({"url": "https://a.example"});
    let call_id = call.call_id;
    let checks = vec![AskedCheck { criterion: 0, call_id: Some(call_id) }];
    let end = Some(EndRequest::CompleteIf { summary: block("done"), checks });
    (TurnOutcome { calls: vec![call], end, ..run.outcome() }, call_id)
}

fn verdict(call_id: kernel::CallId, passed: bool) -> CriterionVerdict {
    let evidence = Block::new("HTTP 200", Trust::Operator, "tool:get");
    CriterionVerdict { criterion: 0, passed, how: "read back with `get`".into(), evidence, call_id: Some(call_id) }
}

fn judge(run: &Run, verdicts: Vec<CriterionVerdict>) -> Command {
    Command::Judge(Box::new(Judge { turn_id: run.turn(), verdicts, artifacts: Vec::new() }))
}

fn answered(call_id: kernel::CallId) -> Command {
    let block = Block::new("HTTP 200", Trust::Untrusted, "tool:get");
    Command::CompleteCall(CompleteCall {
        call_id,
        result: CallResult { block, value: None, artifact: None, duration_ms: 1 },
    })
}

#[test]
fn a_checked_run_is_complete_only_when_the_check_holds() {
    let mut run = checked();
    for end in [Some(EndRequest::Complete(block("done"))), None] {
        let said = TurnOutcome { end, text: Some(block("done")), ..run.outcome() };
        let refused = run.send(&Command::CommitTurn(Box::new(said)));
        assert!(matches!(refused, Err(Rejection::InvalidOutcome(_))), "{refused:?}");
    }
    let (outcome, call) = says_done(&run);
    assert_eq!(run.commit(outcome), ["turn.completed", "tool.requested", "acceptance.requested"]);
    assert_eq!(run.state().status(), Status::Waiting);
    assert_eq!(run.send(&answered(call)).unwrap(), ["tool.completed", "run.runnable"]);
    assert!(run.state().is_to_be_judged());
    let command = judge(&run, vec![verdict(call, true)]);
    assert_eq!(run.send(&command).unwrap(), ["acceptance.judged", "run.completed"]);
    assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::GoalVerified);
    run.audit();
}

#[test]
fn what_looks_into_a_criterion_is_what_its_author_named() {
    let mut run = checked();
    let (outcome, _) = says_done(&run);
    let mut other = outcome.clone();
    other.calls[0].arguments = json!({"url": "https://b.example"});
    let mut more = outcome.clone();
    more.calls.push(run.call("wipe", Effect::Destructive, CallKind::Call));
    let mut less = outcome.clone();
    less.end = Some(EndRequest::CompleteIf { summary: block("done"), checks: vec![] });
    for wrong in [other, more, less] {
        let refused = run.send(&Command::CommitTurn(Box::new(wrong)));
        assert!(matches!(refused, Err(Rejection::InvalidOutcome(_))), "{refused:?}");
    }
}

#[test]
fn who_says_it_is_done_too_often_fails_by_name() {
    let mut run = checked();
    for round in 1..=3 {
        let (outcome, call) = says_done(&run);
        run.commit(outcome);
        run.send(&answered(call)).unwrap();
        // A verdict that does not fit what became of the call is no verdict.
        let other = judge(&run, vec![]);
        assert!(run.send(&other).is_err());
        let command = judge(&run, vec![verdict(call, false)]);
        let events = run.send(&command).unwrap();
        assert_eq!(events[0], "acceptance.judged");
        if round < 3 {
            assert_eq!(run.state().status(), Status::Runnable);
            let told = run.state().facts.back().unwrap();
            assert!(told.title.contains("refused") && told.block.text.contains(CRITERION), "{told:?}");
            assert_eq!(told.block.trust, Trust::Untrusted, "the evidence is a stranger's word");
        }
    }
    assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::NotAccepted);
    run.audit();
}

#[test]
fn no_verdict_holds_over_a_call_that_failed() {
    let mut run = checked();
    let (outcome, call) = says_done(&run);
    run.commit(outcome);
    let reason = Block::new("no", Trust::System, "policy");
    let deny = kernel::command::DenyCall { call_id: call, code: "policy".into(), reason };
    run.send(&Command::DenyCall(deny)).unwrap();
    let lie = judge(&run, vec![verdict(call, true)]);
    assert!(matches!(run.send(&lie), Err(Rejection::InvalidOutcome(_))));
    let truth = judge(&run, vec![verdict(call, false)]);
    run.send(&truth).unwrap();
    assert_eq!(run.state().refusals, 1);
    run.audit();
}

#[test]
fn an_operator_who_writes_while_it_is_checked_is_heard_first() {
    let mut run = checked();
    let (outcome, call) = says_done(&run);
    run.commit(outcome);
    run.send(&answered(call)).unwrap();
    run.send(&Command::AddMessage(AddMessage { block: block("wait, one more thing") })).unwrap();
    let command = judge(&run, vec![verdict(call, true)]);
    assert_eq!(run.send(&command).unwrap(), ["acceptance.judged", "run.runnable"]);
    assert_eq!((run.state().refusals, run.state().ended), (0, false));
    run.audit();
}

#[test]
fn being_checked_takes_no_turn_from_the_budget() {
    let limits = Limits { turns: Some(1), ..Limits::default() };
    let mut run = checked();
    run.send(&Command::ChangeBudget(ChangeBudget { limits, by: "ann".into() })).unwrap();
    let (outcome, call) = says_done(&run);
    run.commit(outcome);
    run.send(&answered(call)).unwrap();
    let command = judge(&run, vec![verdict(call, true)]);
    run.send(&command).unwrap();
    assert_eq!(run.state().status(), Status::Completed);
    run.audit();
}

#[test]
fn who_was_held_while_it_was_checked_is_judged_all_the_same() {
    let limits = Limits { turns: Some(1), ..Limits::default() };
    let mut run = checked();
    run.send(&Command::ChangeBudget(ChangeBudget { limits, by: "ann".into() })).unwrap();
    let (outcome, call) = says_done(&run);
    run.commit(outcome);
    run.send(&answered(call)).unwrap();
    let by = || ByOperator { by: "ann".into(), reason: None };
    run.send(&Command::Pause(by())).unwrap();
    assert_eq!(run.send(&Command::Resume(by())).unwrap(), ["run.resumed", "run.runnable"]);
    let command = judge(&run, vec![verdict(call, true)]);
    run.send(&command).unwrap();
    assert_eq!(run.state().status(), Status::Completed);
    run.audit();
}

#[test]
fn a_turn_for_verdicts_does_not_become_one_for_a_model_beyond_the_budget() {
    let limits = Limits { turns: Some(1), at_limit: Some(AtLimit::Ask), ..Limits::default() };
    let mut run = checked();
    run.send(&Command::ChangeBudget(ChangeBudget { limits, by: "ann".into() })).unwrap();
    let (outcome, call) = says_done(&run);
    run.commit(outcome);
    run.send(&answered(call)).unwrap();
    let acceptance = Some(vec![Criterion::Words("it is nice".into())]);
    let revise = ReviseRun { acceptance, by: "ann".into(), ..ReviseRun::default() };
    let events = run.send(&Command::Revise(Box::new(revise))).unwrap();
    assert_eq!(events, ["run.revised", "message.added", "budget.exceeded"]);
    assert!(run.state().turn.is_none());
    run.audit();
}

fn asking(turns: u32) -> Run {
    with(|created| {
        created.limits = Limits { turns: Some(turns), at_limit: Some(AtLimit::Ask), ..Limits::default() };
    })
}

/// One turn that calls a tool, whose end asks for the next one.
fn one_turn(run: &mut Run) -> Vec<&'static str> {
    let call = run.call("get", Effect::Read, CallKind::Call);
    let call_id = call.call_id;
    run.commit(TurnOutcome { calls: vec![call], ..run.outcome() });
    run.send(&answered(call_id)).unwrap()
}

fn question(run: &Run) -> ApprovalId {
    *run.state().approvals.keys().next().unwrap()
}

fn decide(approval_id: ApprovalId, verdict: Verdict) -> Command {
    Command::DecideApproval(decision(approval_id, verdict, "ann"))
}

#[test]
fn at_a_limit_a_run_stops_and_asks_and_goes_on_with_a_yes() {
    let mut run = asking(1);
    assert_eq!(one_turn(&mut run), ["tool.completed", "budget.exceeded"]);
    assert_eq!(run.state().status(), Status::Waiting);
    let asked = question(&run);
    assert_eq!(run.send(&decide(asked, Verdict::Approve)).unwrap(), ["approval.granted", "run.runnable"]);
    assert_eq!(run.state().limits.turns, Some(2));
    assert_eq!(one_turn(&mut run), ["tool.completed", "budget.exceeded"], "and asks again at the next");
    run.audit();
}

#[test]
fn nobody_gives_a_child_more_than_its_parent_has_set_aside() {
    let mut run = with(|created| {
        created.limits = Limits { turns: Some(1), at_limit: Some(AtLimit::Ask), ..Limits::default() };
        let (run_id, call_id, lineage) = (RunId::mint(), CallId::mint(), vec!["a".into()]);
        let parent = ParentRef { run_id, call_id, depth: 1, lineage, simulated: false };
        created.parent = Some(Box::new(parent));
    });
    assert_eq!(one_turn(&mut run), ["tool.completed", "budget.exceeded", "run.failed"]);
    assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::MaxTurns);
    run.audit();
}

#[test]
fn without_a_yes_it_ends_by_its_limit() {
    for expires in [false, true] {
        let mut run = asking(1);
        one_turn(&mut run);
        let approval_id = question(&run);
        let command = if expires {
            run.now += 25 * 3600;
            Command::ExpireApproval(ExpireApproval { approval_id })
        } else {
            decide(approval_id, Verdict::Deny)
        };
        run.send(&command).unwrap();
        assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::MaxTurns);
        run.audit();
    }
}

#[test]
fn a_yes_at_the_end_of_its_time_sets_a_new_end() {
    let wall = Some(kernel::units::Duration::from_secs(100));
    let mut run = with(|created| {
        created.limits = Limits { wall, at_limit: Some(AtLimit::Ask), ..Limits::default() };
    });
    let fire = |run: &mut Run| {
        let (timer_id, due) = run.state().timers.iter().map(|(id, timer)| (*id, timer.due)).next().unwrap();
        run.now = due.as_second() - build::at(0).as_second() + 1;
        run.must(Command::FireTimer(kernel::command::FireTimer { timer_id }))
    };
    assert_eq!(fire(&mut run), ["timer.fired", "budget.exceeded"]);
    let asked = question(&run);
    let granted = run.send(&decide(asked, Verdict::Approve)).unwrap();
    assert_eq!(granted[..2], ["approval.granted", "timer.set"], "{granted:?}");
    assert_eq!(fire(&mut run), ["timer.fired", "budget.exceeded"], "and its time ends once more");
    run.audit();
}

#[test]
fn time_that_ran_out_while_it_stood_still_ends_it_when_it_goes_on() {
    let wall = Some(kernel::units::Duration::from_secs(100));
    let limits = Limits { wall, turns: Some(1), at_limit: Some(AtLimit::Ask), ..Limits::default() };
    let fire = |run: &mut Run| {
        let (timer_id, due) = run.state().timers.iter().map(|(id, timer)| (*id, timer.due)).next().unwrap();
        run.now = run.now.max(due.as_second() - build::at(0).as_second() + 1);
        run.must(Command::FireTimer(kernel::command::FireTimer { timer_id }))
    };
    let mut run = with(|created| created.limits = limits.clone());
    one_turn(&mut run);
    let asked = question(&run);
    assert_eq!(fire(&mut run), ["timer.fired"], "one question at a time");
    let granted = run.send(&decide(asked, Verdict::Approve)).unwrap();
    assert_eq!(granted, ["approval.granted", "timer.set", "run.runnable"]);
    assert_eq!(fire(&mut run), ["timer.fired", "budget.exceeded"]);
    let more = Limits { turns: Some(9), at_limit: None, ..limits };
    let changed = run.send(&Command::ChangeBudget(ChangeBudget { limits: more, by: "ann".into() })).unwrap();
    assert!(changed.contains(&"timer.set"), "nobody gave it more time: {changed:?}");
    assert_eq!(fire(&mut run), ["timer.fired", "budget.exceeded"]);
    run.audit();
}

#[test]
fn a_larger_budget_lets_it_go_on_without_the_question() {
    let mut run = asking(1);
    one_turn(&mut run);
    let limits = Limits { turns: Some(5), ..Limits::default() };
    let events = run.send(&Command::ChangeBudget(ChangeBudget { limits, by: "ann".into() })).unwrap();
    assert_eq!(events, ["budget.changed", "approval.expired", "run.runnable"]);
    assert_eq!(run.state().limits.at_limit, Some(AtLimit::Ask), "what happens at a limit was not spoken of");
    run.audit();
}

fn compact(run: &Run, after: u64) -> Compact {
    let body = Block::new("it was long", Trust::Operator, "model:m");
    Compact {
        turn_id: run.turn(),
        strategy: "model".into(),
        reason: "history".into(),
        before_tokens: 100,
        after_tokens: after,
        usage: Usage { model_calls: 1, input_tokens: 100, output_tokens: 9, ..Usage::default() },
        kept: run.state().standing(),
        summary: Some(Summary { body, upto: run.state().seq, entries: 3 }),
        handoff: None,
        not_reset: None,
    }
}

#[test]
fn a_summary_takes_the_place_of_history_and_keeps_what_matters() {
    let mut run = with(|_| {});
    one_turn(&mut run);
    let before = run.state().standing();
    let command = compact(&run, 10);
    assert_eq!(run.send(&Command::Compact(Box::new(command.clone()))).unwrap(), ["context.compacted"]);
    assert!(run.state().history.is_empty() && !run.state().facts.is_empty(), "what no turn has seen stays");
    assert_eq!(run.state().standing(), before);
    let summary = run.state().summary.as_ref().unwrap();
    assert_eq!(summary.body.trust, Trust::Untrusted, "whatever the planner says of it");
    assert_eq!((run.state().spent.turns, run.state().spent.usage.model_calls), (1, 2));
    for (what, wrong) in [
        ("no shorter", Compact { after_tokens: 100, ..compact(&run, 10) }),
        (
            "another plan",
            Compact { kept: kernel::context::Standing { plan_revision: 9, ..before }, ..compact(&run, 10) },
        ),
    ] {
        let refused = run.send(&Command::Compact(Box::new(wrong)));
        assert!(matches!(refused, Err(Rejection::InvalidOutcome(_))), "{what}: {refused:?}");
    }
    run.send(&Command::Compact(Box::new(Compact { summary: None, ..compact(&run, 200) }))).unwrap();
    assert!(run.state().compaction_stopped.is_some());
    run.audit();
}

#[test]
fn a_new_beginning_that_fails_is_counted_until_one_succeeds() {
    let mut run = with(|_| {});
    one_turn(&mut run);
    let failed = Compact { not_reset: Some("the handoff was not stored".into()), ..compact(&run, 10) };
    assert_eq!(run.send(&Command::Compact(Box::new(failed))).unwrap(), ["context.compacted"]);
    assert_eq!((run.state().resets_failed, run.state().reset_tried), (1, 2));
    let handoff = ArtifactRef {
        artifact_id: kernel::ArtifactId::derive(run.id, "handoff"),
        name: "handoff.json".into(),
        version: 1,
        digest: "d".into(),
        bytes: 2,
        media_type: "application/json".into(),
        trust: Trust::Untrusted,
    };
    let kept = Compact { handoff: Some(handoff), ..compact(&run, 10) };
    assert_eq!(run.send(&Command::Compact(Box::new(kept))).unwrap(), ["artifact.created", "context.reset"]);
    assert_eq!((run.state().resets_failed, run.state().last_reset), (0, 2));
    run.audit();
}

fn charge(turn_id: TurnId, tokens: u64) -> Command {
    Command::ChargeTurn(ChargeTurn {
        turn_id,
        paid_for: PaidFor::Answer,
        reason: "no model answers".into(),
        usage: Usage { model_calls: 1, input_tokens: tokens, cost_microusd: 7, ..Usage::default() },
        failures: Vec::new(),
    })
}

#[test]
fn what_was_paid_for_nothing_is_kept_and_ends_no_turn() {
    let mut run = with(|created| created.limits = Limits { tokens: Some(100), ..Limits::default() });
    let turn = run.turn();
    assert_eq!(run.send(&charge(turn, 60)).unwrap(), ["turn.charged"]);
    assert_eq!((run.state().spent.usage.input_tokens, run.state().spent.turns), (60, 0));
    assert!(run.state().is_open_turn(turn), "it is taken again");
    run.must(Command::Pause(build::ann(None)));
    assert_eq!(run.send(&charge(turn, 60)).unwrap(), ["turn.charged"], "of a held run, also beyond its limit");
    let events = run.must(Command::Resume(build::ann(None)));
    assert_eq!(events, ["run.resumed", "budget.exceeded", "run.failed"]);
    assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::MaxTokens);
    assert!(matches!(run.send(&charge(turn, 1)), Err(Rejection::Ended(_))), "its account is closed");
    run.audit();
}

#[test]
fn what_was_paid_for_a_turn_that_is_over_counts_for_the_one_that_is_open() {
    let ask = Limits { tokens: Some(100), at_limit: Some(AtLimit::Ask), ..Limits::default() };
    let mut run = with(|created| created.limits = ask);
    let first = run.turn();
    one_turn(&mut run);
    assert_ne!(run.turn(), first);
    assert_eq!(run.send(&charge(first, 200)).unwrap(), ["turn.charged", "budget.exceeded"]);
    assert!(run.state().turn.is_none() && run.state().parked.is_some());
    let asked = question(&run);
    assert_eq!(run.send(&decide(asked, Verdict::Approve)).unwrap()[0], "approval.granted");
    run.audit();
}

#[test]
fn a_plan_says_why_it_changed() {
    let mut run = with(|_| {});
    let steps = vec![PlanStep { title: "look".into(), status: StepStatus::Pending }];
    let plan = Some(PlanChange { steps, reason: Some("the first way is closed".into()) });
    let text = Some(block("so be it"));
    run.commit(TurnOutcome { plan, text, ..run.outcome() });
    let updated = run.log.iter().find_map(|event| match &event.data {
        EventData::PlanUpdated(updated) => Some(updated),
        _ => None,
    });
    let updated = updated.unwrap();
    assert_eq!((updated.revision, updated.reason.as_deref()), (1, Some("the first way is closed")));
    assert_eq!(run.state().plan_revision, 1);
}

#[test]
fn going_in_circles_is_told_and_can_end_a_run_by_name() {
    let mut run = with(|_| {});
    let note = NoteDrift {
        turn_id: run.turn(),
        kind: DriftKind::RepeatedCalls,
        remedy: Remedy::Remind,
        detail: "`get` three times".into(),
        asked: None,
    };
    assert_eq!(run.send(&Command::NoteDrift(note)).unwrap(), ["drift.noticed"]);
    assert!(run.state().facts.back().unwrap().title.contains("circles"));
    let (turn_id, code) = (run.turn(), "no_progress".to_owned());
    let reject =
        RejectTurn { turn_id, code, problems: vec!["in circles".into()], usage: Usage::default(), failures: vec![] };
    run.send(&Command::RejectTurn(reject)).unwrap();
    assert_eq!(run.state().ending.as_ref().unwrap().rule, Rule::NoProgress);
    run.audit();
}
