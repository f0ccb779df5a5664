//! Parents and children by example: what is set aside and given back, who wakes whom, who ends with whom.

use kernel::{
    Block, CallId, Command, Event, EventData, Rejection, RunId, Status, Trust,
    audit::{Families, RunAudit},
    budget::Limits,
    call::{Binding, CallRequest, Compensation},
    child::{MAX_CHILDREN, MAX_DEPTH, MAX_RETRIES, OnFailure, SpawnRequest, Step, next_step},
    command::*,
    event::Rule,
    state::FactKind,
    wait::Condition,
};
use serde_json::Value;

use crate::build::*;

fn spawn(run: &Run, name: &str) -> SpawnRequest {
    SpawnRequest {
        call_id: CallId::derive(run.id, name),
        agent: name.into(),
        agent_digest: "digest".into(),
        task: block("help"),
        tools: vec!["test.read".into()],
        limits: Limits::default(),
        on_failure: OnFailure::Continue,
        acceptance: Vec::new(),
        parallel_wake: Default::default(),
        debounce: Default::default(),
    }
}

/// A run and its children, and whoever keeps them in step.
struct Family {
    parent: Run,
    children: Vec<Run>,
}

impl Family {
    fn new(limits: Limits) -> Self {
        Self { parent: Run::started(limits), children: Vec::new() }
    }

    fn spawn(&mut self, change: impl Fn(&mut SpawnRequest), names: &[&str]) -> Vec<CallId> {
        let mut spawns: Vec<_> = names.iter().map(|name| spawn(&self.parent, name)).collect();
        spawns.iter_mut().for_each(&change);
        let ids = spawns.iter().map(|spawn| spawn.call_id).collect();
        let outcome = TurnOutcome { spawns, ..self.parent.outcome() };
        self.parent.commit(outcome);
        ids
    }

    fn step(&self, call: CallId) -> Option<Step> {
        let child = self.parent.state().children.get(&call)?.child_id;
        let child = self.children.iter().find(|run| run.id == child);
        next_step(self.parent.state(), call, child.map(Run::state), None)
    }

    /// Does what is to be done until there is nothing left. The names of the commands.
    fn tend(&mut self) -> Vec<&'static str> {
        let mut done = Vec::new();
        loop {
            let calls: Vec<_> = self.parent.state().children.keys().copied().collect();
            let Some(step) = calls.into_iter().find_map(|call| self.step(call)) else { return done };
            done.push(step.command.name());
            if step.run_id == self.parent.id {
                self.parent.must(step.command);
                continue;
            }
            if !self.children.iter().any(|run| run.id == step.run_id) {
                self.children.push(Run { id: step.run_id, now: self.parent.now, ..Run::new() });
            }
            let child = self.children.iter_mut().find(|run| run.id == step.run_id).unwrap();
            child.must(step.command);
        }
    }

    /// The child of a call that is still open.
    fn child(&mut self, call: CallId) -> &mut Run {
        let child = self.parent.state().children[&call].child_id;
        self.run(child)
    }

    /// Children are created in the order of their ids, which no test can foresee.
    fn run(&mut self, child: RunId) -> &mut Run {
        self.children.iter_mut().find(|run| run.id == child).unwrap()
    }

    /// The logs keep all the promises, each for itself and together.
    fn audit(&self) {
        let mut families = Families::default();
        for run in self.children.iter().chain([&self.parent]) {
            let mut audit = RunAudit::new(run.id);
            run.log.iter().for_each(|event| audit.push(event));
            audit.rest();
            let violations = audit.take_violations();
            assert!(violations.is_empty(), "{violations:?}");
            audit.tell(&mut families);
        }
        let violations = families.violations(true);
        assert!(violations.is_empty(), "{violations:?}");
    }
}

fn complete(run: &mut Run, answer: Block) {
    let end = Some(EndRequest::Complete(answer));
    run.commit(TurnOutcome { end, ..run.outcome() });
}

fn fail(run: &mut Run) {
    run.commit(TurnOutcome { end: Some(EndRequest::Fail(block("no"))), ..run.outcome() });
}

#[test]
fn children_share_what_is_left_and_give_back_what_they_do_not_need() {
    let limits = Limits { turns: Some(10), tokens: Some(1015), tool_calls: Some(30), ..Limits::default() };
    let mut family = Family::new(limits);
    let ids = family.spawn(|_| {}, &["a", "b"]);
    // The turn itself took a turn and 15 tokens; the rest is for three.
    for call in &ids {
        let given = &family.parent.state().children[call].limits;
        assert_eq!((given.turns, given.tokens, given.tool_calls), (Some(3), Some(333), Some(10)));
    }
    assert_eq!(family.tend(), ["create", "create"]);
    assert_eq!(family.child(ids[0]).state().status(), Status::Runnable);
    let answer = family.child(ids[0]).state().objective.clone();
    complete(family.child(ids[0]), answer);
    assert_eq!(family.tend(), ["settle_child"]);
    let state = family.parent.state();
    assert_eq!((state.children_spent.turns, state.children_spent.usage.tokens()), (1, 15));
    assert_eq!(state.status(), Status::Waiting, "the other is still at work");
    complete(family.child(ids[1]), block("done"));
    family.tend();
    assert_eq!(family.parent.state().status(), Status::Runnable);
    assert_eq!(family.parent.state().left(at(0)).turns, Some(7), "three turns in all");
    let told: Vec<_> = family.parent.state().facts.iter().filter(|fact| fact.kind == FactKind::Result).collect();
    assert_eq!(told[1].title, "The agent `b` completed");
    family.audit();
}

#[test]
fn a_parent_that_has_set_everything_aside_waits_for_what_comes_back() {
    let mut family = Family::new(Limits { turns: Some(5), ..Limits::default() });
    let ids = family.spawn(|spawn| spawn.limits.turns = Some(100), &["a"]);
    assert_eq!(family.parent.state().children[&ids[0]].limits.turns, Some(4));
    family.tend();
    assert_eq!(family.parent.must(said("hurry")), ["message.added"], "no turn is left for that now");
    complete(family.child(ids[0]), block("done"));
    family.tend();
    assert_eq!(family.parent.state().status(), Status::Runnable);
    assert!(family.parent.state().facts.iter().any(|fact| fact.kind == FactKind::Message));
    family.audit();
}

#[test]
fn an_answer_is_believed_no_more_than_what_its_author_saw() {
    let mut family = Family::new(Limits::default());
    let ids = family.spawn(|_| {}, &["a"]);
    family.tend();
    let child = family.child(ids[0]);
    let calls = child.request(vec![child.call("read", kernel::tool::Effect::Read, kernel::tool::CallKind::Call)]);
    child.must(completed(calls[0]));
    complete(child, block("all is well"));
    family.tend();
    let told = family.parent.state().facts.back().unwrap();
    assert_eq!((told.block.text.as_str(), told.block.trust), ("all is well", Trust::Untrusted));
    assert_eq!(family.parent.state().lowest_trust, Trust::Untrusted);
    family.audit();
}

#[test]
fn a_wait_names_a_child_by_its_call() {
    let mut family = Family::new(Limits::default());
    let request = spawn(&family.parent, "a");
    let call = request.call_id;
    let on = Condition::TaskResult { call_id: call }.into();
    let wait = WaitRequest { on, why: "it helps".into(), assumes: None, expects: None, deadline: None };
    let outcome = TurnOutcome { spawns: vec![request], wait: Some(wait), ..family.parent.outcome() };
    family.parent.commit(outcome);
    family.tend();
    complete(family.child(call), block("done"));
    family.tend();
    assert!(family.parent.log.iter().any(|event| matches!(event.data, EventData::WaitSatisfied(_))));
    assert_eq!(family.parent.state().status(), Status::Runnable);
    family.audit();
}

#[test]
fn a_child_that_fails_is_told_of_or_ends_its_parent_or_is_tried_again() {
    let mut family = Family::new(Limits::default());
    let ids = family.spawn(|_| {}, &["a"]);
    family.tend();
    fail(family.child(ids[0]));
    family.tend();
    assert_eq!(family.parent.state().facts.back().map(|fact| fact.kind), Some(FactKind::Failure));
    assert_eq!(family.parent.state().status(), Status::Runnable);
    family.audit();

    let mut family = Family::new(Limits::default());
    let ids = family.spawn(|spawn| spawn.on_failure = OnFailure::Fail, &["a", "b"]);
    family.tend();
    fail(family.child(ids[0]));
    // The other is ended, and then it is over.
    assert_eq!(family.tend(), ["settle_child", "end_child", "settle_child"]);
    let ending = family.parent.state().ending.clone().unwrap();
    assert_eq!((family.parent.state().status(), ending.rule), (Status::Failed, Rule::ChildFailed));
    family.audit();

    let mut family = Family::new(Limits { turns: Some(20), ..Limits::default() });
    let ids = family.spawn(|spawn| spawn.on_failure = OnFailure::Retry, &["a"]);
    family.tend();
    for attempt in 1..=MAX_RETRIES {
        fail(family.child(ids[0]));
        assert_eq!(family.tend(), ["settle_child", "create"]);
        assert_eq!(family.parent.state().children[&ids[0]].attempt, attempt + 1);
        assert_eq!(family.parent.state().status(), Status::Waiting, "its model is left asleep");
    }
    fail(family.child(ids[0]));
    family.tend();
    assert_eq!(family.parent.state().status(), Status::Runnable);
    assert_eq!(family.parent.state().children_spent.turns, MAX_RETRIES + 1);
    family.audit();
}

#[test]
fn the_end_of_a_run_waits_for_its_children() {
    let mut family = Family::new(Limits::default());
    let ids = family.spawn(|_| {}, &["a", "b"]);
    family.tend();
    let children: Vec<_> = ids.iter().map(|call| family.child(*call).id).collect();
    complete(family.child(ids[1]), block("done just now"));
    let cancelled = family.parent.must(Command::Cancel(ann(None)));
    assert_eq!(cancelled, ["run.cancel_requested"]);
    assert_eq!(family.parent.state().status(), Status::Cancelling);
    assert!(family.tend().contains(&"end_child"));
    assert_eq!(family.parent.state().status(), Status::Cancelled);
    assert_eq!(family.run(children[0]).state().ending.as_ref().unwrap().rule, Rule::ParentEnded);
    assert_eq!(family.run(children[1]).state().status(), Status::Completed, "it was faster");
    family.audit();
}

#[test]
fn a_child_that_does_not_exist_yet_is_created_only_to_be_ended() {
    let mut family = Family::new(Limits::default());
    family.spawn(|_| {}, &["a"]);
    family.parent.must(Command::Cancel(ann(None)));
    assert_eq!(family.tend(), ["create", "end_child", "settle_child"]);
    assert_eq!((family.children[0].state().turns_opened, family.parent.state().status()), (0, Status::Cancelled));
    family.audit();
}

/// What a child is still about may rest on what its parent did.
#[test]
fn effects_are_undone_when_no_child_is_at_work_any_more() {
    let mut family = Family::new(Limits::default());
    let parent = &mut family.parent;
    let call = parent.call("merge", kernel::tool::Effect::External, kernel::tool::CallKind::Call);
    let merge = CallRequest { compensation: Compensation::Declared, idempotent: true, ..call };
    let ids = parent.request(vec![merge]);
    let binding = Binding { arguments: "a".into(), schema: "s".into(), policy: "p".into() };
    parent.must(Command::StartCall(StartCall { call_id: ids[0], executor: "e".into(), binding }));
    parent.must(completed(ids[0]));
    family.spawn(|_| {}, &["a"]);
    family.tend();
    family.parent.must(Command::Cancel(ann(None)));
    assert_eq!(family.parent.state().to_compensate(), None);
    family.tend();
    assert_eq!(family.parent.state().to_compensate(), Some(ids[0]));
    assert_eq!(family.parent.state().status(), Status::Cancelling);
}

#[test]
fn children_are_held_with_their_parent_and_by_people() {
    let mut family = Family::new(Limits::default());
    let ids = family.spawn(|_| {}, &["a", "b"]);
    family.tend();
    family.child(ids[0]).must(Command::Pause(ann(None)));
    family.parent.must(Command::Pause(ann(None)));
    assert_eq!(family.tend(), ["hold_child", "hold_child"]);
    let parent = family.parent.id;
    let refused = family.child(ids[1]).send(&Command::Resume(ann(None)));
    assert_eq!(refused, Err(Rejection::HeldByParent(parent)));
    family.parent.must(Command::Resume(ann(None)));
    assert_eq!(family.tend(), ["hold_child", "hold_child"]);
    assert_eq!(family.child(ids[0]).state().status(), Status::Paused, "a person holds it still");
    assert_eq!(family.child(ids[1]).state().status(), Status::Runnable);
    assert_eq!(family.child(ids[0]).must(Command::Resume(ann(None))), ["run.resumed", "run.runnable"]);
    family.audit();

    // A held parent begins nothing.
    let mut family = Family::new(Limits::default());
    family.spawn(|_| {}, &["a"]);
    family.parent.must(Command::Pause(ann(None)));
    assert!(family.tend().is_empty());
    family.parent.must(Command::Resume(ann(None)));
    assert_eq!(family.tend(), ["create"]);
}

fn refused(run: &mut Run, spawns: Vec<SpawnRequest>) -> String {
    let outcome = TurnOutcome { spawns, ..run.outcome() };
    match run.send(&Command::CommitTurn(Box::new(outcome))) {
        Err(Rejection::InvalidOutcome(problems)) => problems.join("\n"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_run_has_not_it_cannot_hand_on() {
    let mut family = Family::new(Limits { turns: Some(1), ..Limits::default() });
    let one = spawn(&family.parent, "a");
    assert!(refused(&mut family.parent, vec![one]).contains("too little left of the budget (turns)"));

    let mut family = Family::new(Limits::default());
    let many = (0..=MAX_CHILDREN).map(|number| spawn(&family.parent, &format!("a{number}"))).collect();
    assert!(refused(&mut family.parent, many).contains("64 agents"));
    let ids = family.spawn(|_| {}, &["a"]);
    family.tend();
    let child = family.child(ids[0]);
    let greedy = SpawnRequest { tools: vec!["test.read".into(), "test.wipe".into()], ..spawn(child, "b") };
    assert!(refused(child, vec![greedy]).contains("no tools that this run has not"));
    let wipe = child.call("wipe", kernel::tool::Effect::Destructive, kernel::tool::CallKind::Call);
    let outcome = TurnOutcome { calls: vec![wipe], ..child.outcome() };
    let refused_call = child.send(&Command::CommitTurn(Box::new(outcome)));
    assert!(matches!(refused_call, Err(Rejection::InvalidOutcome(_))), "{refused_call:?}");
}

#[test]
fn children_do_not_have_children_without_end() {
    let mut run = Run::started(Limits::default());
    for depth in 0..MAX_DEPTH {
        let request = spawn(&run, "next");
        let call = request.call_id;
        let outcome = TurnOutcome { spawns: vec![request], ..run.outcome() };
        run.commit(outcome);
        let step = next_step(run.state(), call, None, None).unwrap();
        let mut next = Run { id: step.run_id, ..Run::new() };
        next.must(step.command);
        assert_eq!(next.state().depth(), depth + 1);
        run = next;
    }
    assert_eq!(run.state().parent.as_ref().unwrap().lineage, ["tester", "next", "next", "next"]);
    let deeper = spawn(&run, "next");
    assert!(refused(&mut run, vec![deeper]).contains("it can start no agents"));
}

#[test]
fn what_is_told_twice_or_of_another_changes_nothing() {
    let mut family = Family::new(Limits { turns: Some(10), ..Limits::default() });
    let ids = family.spawn(|_| {}, &["a"]);
    family.tend();
    complete(family.child(ids[0]), block("done"));
    let step = family.step(ids[0]).unwrap();
    let Command::SettleChild(report) = &step.command else { panic!("{step:?}") };
    let others = ChildReport { child_id: RunId::mint(), ..(**report).clone() };
    assert!(family.parent.must(Command::SettleChild(Box::new(others))).is_empty());
    family.tend();
    assert!(family.parent.must(step.command).is_empty());
    let child = &mut family.children[0];
    assert!(matches!(child.send(&Command::Cancel(ann(None))), Err(Rejection::Ended(_))));

    let mut family = Family::new(Limits { turns: Some(10), ..Limits::default() });
    let ids = family.spawn(|_| {}, &["a"]);
    family.tend();
    let parent = family.parent.id;
    let child = family.child(ids[0]);
    let stranger = ByParent { parent: RunId::mint(), reason: "no".into() };
    assert!(matches!(child.send(&Command::EndChild(stranger)), Err(Rejection::NotTheParent(_))));
    let more = ChangeBudget { limits: Limits { turns: Some(9), ..Limits::default() }, by: "ann".into() };
    assert_eq!(child.send(&Command::ChangeBudget(more)), Err(Rejection::BeyondParent(parent)));
    let less = ChangeBudget { limits: Limits { turns: Some(2), ..Limits::default() }, by: "ann".into() };
    assert_eq!(child.must(Command::ChangeBudget(less)), ["budget.changed"]);
}

/// Events about families as they were first written: never edited, only added to.
const OLDEST: &str = include_str!("../golden/family-v1.jsonl");

#[test]
fn the_oldest_family_loads_and_is_written_as_it_was() {
    let (run, mut state) = (RunId::mint(), None);
    for (line, seq) in OLDEST.lines().zip(1..) {
        let row: Value = serde_json::from_str(line).unwrap();
        let data = EventData::decode(row["type"].as_str().unwrap(), 1, &row["data"].to_string()).unwrap();
        let written: Value = serde_json::from_str(&data.encode().unwrap()).unwrap();
        assert_eq!(written, row["data"], "{}", data.type_name());
        let event = Event { seq, at: at(0), data };
        state = Some(kernel::apply(state, run, &event).unwrap());
    }
    let state = state.unwrap();
    assert!(state.ended && state.children.is_empty() && state.held_by_parent);
    assert_eq!((state.depth(), state.children_spent.turns), (1, 4));
}
