//! How runs end: by which rule, whatever their models do. And what keeps long ones on their way.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use engine::{Engine, testing::TestStack};
use kernel::{
    Block, Cause, Command, EventData, Role, RunId, RunState, Status, TenantId, Trust,
    acceptance::CriterionVerdict,
    call::{CallFailure, CallResult, CallStatus, Verdict},
    command::{ByOperator, CompleteCall, DecideApproval, FailCall},
    event::Rule,
};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::turns::{Stored, World, artifact_service};

/// What a tool answers to its arguments.
pub type Answer = fn(&Value) -> Result<String, String>;

/// Carries out the calls of runs, keeps their children in step, and says no to whatever the runtime asks people.
pub struct House {
    task: JoinHandle<()>,
}

impl House {
    pub async fn of(stack: &TestStack, runs: Arc<Mutex<Vec<RunId>>>, answer: Answer) -> Self {
        let executor = stack.engine(Role::ToolExecutor).await.unwrap();
        let scheduler = stack.engine(Role::Scheduler).await.unwrap();
        let approval = stack.engine(Role::Approval).await.unwrap();
        let task = tokio::spawn(async move {
            loop {
                let all = runs.lock().unwrap().clone();
                for run in all {
                    let Ok(Some(state)) = executor.load(run).await else { continue };
                    carry_out(&executor, &state, answer).await;
                    refuse(&approval, &state).await;
                    tend(&scheduler, &state, &runs).await;
                }
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        });
        Self { task }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry_out(executor: &Engine, state: &RunState, answer: Answer) {
    for call in state.calls.values().filter(|call| call.status == CallStatus::Requested) {
        let call_id = call.request.call_id;
        let block = |text: String| Block::new(text, Trust::Untrusted, "tool:test.echo");
        let command = match answer(&call.request.arguments) {
            Ok(text) => {
                let result = CallResult { block: block(text), value: None, artifact: None, duration_ms: 1 };
                Command::CompleteCall(CompleteCall { call_id, result })
            }
            Err(text) => {
                let failure = CallFailure { block: block(text), code: "http_status".to_owned(), duration_ms: 1 };
                Command::FailCall(FailCall { call_id, failure })
            }
        };
        let _ = executor.submit(state.run_id, command, format!("end/{call_id}"), Cause::default()).await;
    }
}

async fn refuse(approval: &Engine, state: &RunState) {
    for approval_id in state.approvals.keys().copied() {
        let (edited, reason, standing) = (None, Some("no".to_owned()), None);
        let (verdict, by) = (Verdict::Deny, "ann".to_owned());
        let decide = Command::DecideApproval(DecideApproval {
            approval_id,
            verdict,
            edited,
            reason,
            by,
            aliases: Vec::new(),
            standing,
        });
        let _ = approval.submit(state.run_id, decide, format!("decide/{approval_id}"), Cause::default()).await;
    }
}

async fn tend(scheduler: &Engine, state: &RunState, runs: &Mutex<Vec<RunId>>) {
    for (call, child) in &state.children {
        let known = scheduler.load(child.child_id).await.unwrap();
        if known.is_none() {
            runs.lock().unwrap().push(child.child_id);
        }
        if let Some(step) = kernel::child::next_step(state, *call, known.as_deref(), None) {
            let _ = scheduler.submit(step.run_id, step.command, step.key, Cause::default()).await;
        }
    }
}

pub fn echo(arguments: &Value) -> Result<String, String> {
    match arguments["text"].as_str().unwrap_or_default() {
        "fail" => Err("it does not work".to_owned()),
        "ask for the code" => Ok("the code is K-4711".to_owned()),
        text => Ok(format!("echo of {text}")),
    }
}

/// A model that goes wrong in one way, and the rule that ends its run.
struct Case {
    name: &'static str,
    /// Keys of the agent's file beside name, model and tools.
    agent: &'static str,
    steps: &'static str,
    rule: Rule,
}

const fn case(name: &'static str, agent: &'static str, steps: &'static str, rule: Rule) -> Case {
    Case { name, agent, steps, rule }
}

const LOOP: &str = r"
  - calls: [{tool: test.echo, arguments: {text: again}}]
";

const CASES: [Case; 14] = [
    case("words", "", "\n  - text: So it is.\n", Rule::FinalAnswer),
    case("done", "", "\n  - calls: [{tool: complete, arguments: {summary: done}}]\n", Rule::GoalMet),
    case("gives-up", "", "\n  - calls: [{tool: fail, arguments: {reason: no way}}]\n", Rule::GaveUp),
    case(
        "verified",
        "acceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: fine}, expect: {pattern: fine}}}}]",
        "\n  - calls: [{tool: complete, arguments: {summary: done}}]\n",
        Rule::GoalVerified,
    ),
    case(
        "verified-in-words-alone",
        "acceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: fine}}}}]",
        "\n  - text: It is done.\n",
        Rule::GoalVerified,
    ),
    case(
        "lies",
        "acceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: fail}}}}]",
        "\n  - calls: [{tool: complete, arguments: {summary: done}}]\n",
        Rule::NotAccepted,
    ),
    case(
        "lies-and-nobody-looks",
        "controls: {evaluator: off}\nacceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: fail}}}}]",
        "\n  - calls: [{tool: complete, arguments: {summary: done}}]\n",
        Rule::GoalMet,
    ),
    case(
        "lies-about-a-result",
        "acceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: x}, expect: {pattern: merged}}}}]",
        "\n  - calls: [{tool: complete, arguments: {summary: done}}]\n",
        Rule::NotAccepted,
    ),
    case("loops", "budget: {turns: 60}", LOOP, Rule::NoProgress),
    case("loops-unwatched", "controls: {drift: off}\nbudget: {turns: 8}", LOOP, Rule::MaxTurns),
    case(
        "spends",
        "budget: {tokens: 1000}",
        "\n  - usage: {input: 900, output: 200}\n    calls: [{tool: test.echo, arguments: {text: \"{{turn}}\"}}]\n",
        Rule::MaxTokens,
    ),
    case(
        "calls",
        "budget: {tool_calls: 2}",
        "\n  - calls: [{tool: test.echo, arguments: {text: \"{{turn}}\"}}]\n",
        Rule::MaxToolCalls,
    ),
    case("invents-tools", "", "\n  - calls: [{tool: rocket.launch, arguments: {}}]\n", Rule::Unrecoverable),
    case("babbles", "", "\n  - calls: [{tool: test.echo, malformed: '{\"text\": '}]\n", Rule::Unrecoverable),
];

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_model_does_its_run_ends_by_a_named_rule() {
    let mut world = World::with(LOOP).await;
    let stored = Stored::default();
    world.artifact_url = artifact_service(Arc::clone(&stored)).await;
    for case in &CASES {
        let (name, steps) = (case.name, case.steps);
        let path = world.folder.path().join(format!("scenarios/{name}.yaml"));
        std::fs::write(path, format!("name: {name}\nsteps:{steps}")).unwrap();
    }
    let planner = world.planner();
    let mut runs = Vec::new();
    for case in &CASES {
        let Case { name, agent, .. } = case;
        let yaml = format!("name: {name}\nmodel: scripted:{name}\ninstructions: Play.\ntools: [test.echo]\n{agent}\n");
        runs.push(world.run_of(&yaml).await);
    }
    let house = House::of(&world.stack, Arc::new(Mutex::new(runs.clone())), echo).await;
    for (case, run) in CASES.iter().zip(&runs) {
        let state = world.until(*run, |state| state.ended).await;
        let ending = state.ending.as_ref().unwrap();
        assert_eq!(ending.rule, case.rule, "{}: {}", case.name, ending.text.text);
        if case.rule == Rule::NoProgress {
            let remedies = remedies(&world, *run).await;
            assert_eq!(remedies, ["remind", "replan", "block", "reset", "ask"], "each once, from cheap to dear");
        }
    }
    let kept = stored.lock().unwrap().clone();
    let names: Vec<_> = kept.iter().map(|(query, _)| query["name"].as_str().unwrap().to_owned()).collect();
    let reports: Vec<_> = kept.iter().filter(|(query, _)| query["name"] == "delivery-report.md").collect();
    assert_eq!(reports.len(), 2, "one for each run that was verified: {names:?}");
    assert!(
        reports.iter().all(|(_, body)| body.contains("| it answers | holds | read back with `test.echo`")),
        "{reports:?}"
    );
    assert!(names.contains(&"handoff.json".to_owned()), "{names:?}");
    drop(house);
    world.close(vec![planner]).await;
}

async fn remedies(world: &World, run: RunId) -> Vec<&'static str> {
    let events = world.events(run).await;
    let noticed = events.iter().filter_map(|event| match &event.data {
        EventData::DriftNoticed(noticed) => Some(noticed.remedy.as_str()),
        _ => None,
    });
    noticed.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_long_ago_is_known_in_the_end() {
    let world = World::with(
        r#"
  - when: {sees: 'code is (?P<code>K-\d+)'}
    calls: [{tool: write_summary, arguments: {facts: ["the code is {{code}}"], progress: ["some echoes"]}}]
  - when: {turn: 3}
    calls: [{tool: test.echo, arguments: {text: ask for the code}}]
  - when: {turn: 40, sees: 'code is (?P<code>K-\d+)'}
    calls: [{tool: complete, arguments: {summary: "the code was {{code}}"}}]
  - when: {turn: "40.."}
    calls: [{tool: fail, arguments: {reason: "the code is not known any more"}}]
  - calls: [{tool: test.echo, arguments: {text: "turn {{turn}}"}}]
"#,
    )
    .await;
    let planner = world.planner();
    let run = world.run_of("name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\n").await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "the code was K-4711");
    let summary = state.summary.as_ref().unwrap();
    assert_eq!(summary.body.trust, Trust::Untrusted, "what a stranger said is not made true by being summarised");
    assert_eq!(state.history_lost, 0, "nothing fell out before it was summarised");
    let mut compactions = 0;
    for event in world.events(run).await {
        let EventData::ContextCompacted(compacted) = &event.data else { continue };
        compactions += 1;
        assert_eq!(compacted.strategy, "model");
        assert!(compacted.after_tokens < compacted.before_tokens && compacted.usage.model_calls > 0, "{compacted:?}");
    }
    assert!(compactions >= 4, "{compactions}");
    drop(house);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_writes_no_summary_loses_no_run() {
    let world = World::with(
        r#"
  - when: {turn: "20.."}
    calls: [{tool: complete, arguments: {summary: done}}]
  - calls: [{tool: test.echo, arguments: {text: "turn {{turn}}"}}]
"#,
    )
    .await;
    let planner = world.planner();
    let run = world.run_of("name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\n").await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::GoalMet);
    assert!(state.summary.as_ref().unwrap().body.text.contains("You called `test.echo`"), "{:?}", state.summary);
    drop(house);
    world.close(vec![planner]).await;
}

/// An agent that does the work and one that looks into it.
const EVALUATED: &str = "name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\nevaluator: judge\n\
                         acceptance: [the page answers]\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_evaluator_looks_for_itself_and_decides() {
    let world = World::with(
        r#"
  - when: {sees: 'complete. was refused'}
    calls: [{tool: test.echo, arguments: {text: mend it}}]
    once: true
  - calls: [{tool: complete, arguments: {summary: "it answers, believe me"}}]
"#,
    )
    .await;
    let judge = r#"name: judge
steps:
  - when: {turn: 1}
    calls: [{tool: test.echo, arguments: {text: look}}]
  - when: {sees: 'echo of look'}
    calls: [{tool: fail, arguments: {reason: "the page answers 500"}}]
"#;
    std::fs::write(world.folder.path().join("scenarios/judge.yaml"), judge).unwrap();
    let yaml = "name: judge\nmodel: scripted:judge\ninstructions: Judge.\ntools: [test.echo, shell.run]\n";
    world.ingress.agents().put(&world.tenant, yaml, "ann").await.unwrap();
    let planner = world.planner();
    let run = world.run_of(EVALUATED).await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::NotAccepted, "the evaluator never said yes");
    let [CriterionVerdict { passed, how, evidence, .. }] = &state.verdicts[..] else { panic!("{:?}", state.verdicts) };
    assert!(!passed && how.contains("judge") && evidence.text.contains("500"), "{:?}", state.verdicts);
    assert_eq!(evidence.trust, Trust::Untrusted);
    drop(house);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_ended_while_it_is_checked_ends() {
    let world = World::with("\n  - calls: [{tool: complete, arguments: {summary: done}}]\n").await;
    let planner = world.planner();
    let yaml = "name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\n\
                acceptance: [{text: it answers, check: {tool: {tool: test.echo, arguments: {text: fine}}}}]\n";
    let run = world.run_of(yaml).await;
    world.until(run, |state| state.verification.is_some()).await;
    let by = ByOperator { by: "ann".to_owned(), reason: None };
    world.ingress.submit(run, Command::Cancel(by), "cancel", Cause::default()).await.unwrap();
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::Cancelled);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_of_the_operators_own_are_heard_before_a_commit_and_at_the_end() {
    let world = World::with(
        r#"
  - when: {sees: 'says no: say please'}
    calls: [{tool: complete, arguments: {summary: "done, please"}}]
  - calls: [{tool: complete, arguments: {summary: done}}]
"#,
    )
    .await;
    let stop = tokio_util::sync::CancellationToken::new();
    let answer = |question: Value| async move {
        let said = question["about"]["end"]["complete"]["text"].as_str().unwrap_or_default().contains("please");
        let decision = if question["at"] == "before_commit" || said { "allow" } else { "deny" };
        Ok(serde_json::json!({"decision": decision, "reason": "say please"}))
    };
    world.stack.bus().serve_json(bus::ServeOptions::new("checks", "desk"), answer, stop.clone()).await.unwrap();
    world.stack.bus().flush().await.unwrap();
    let planner = world.planner();
    let yaml = |checks: &str| {
        format!("name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\nchecks: [{checks}]\n")
    };
    let polite = yaml("{name: a, at: at_end, responder: desk}, {name: b, at: before_commit, responder: desk}");
    let run = world.run_of(&polite).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "done, please");
    assert_eq!(state.spent.usage.model_calls, 2, "asked again with the reason");
    let barred = world.run_of(&yaml("{name: c, at: before_model, responder: desk}")).await;
    let state = world.until(barred, |state| state.ended).await;
    let ending = state.ending.as_ref().unwrap();
    assert_eq!((ending.rule, state.spent.usage.model_calls), (Rule::Safety, 0), "{}", ending.text.text);
    stop.cancel();
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_takes_all_places() {
    let world = World::with(
        r"
  - when: {sees: quick}
    calls: [{tool: complete, arguments: {summary: quick}}]
  - slow: 120s
    text: slow
",
    )
    .await;
    let planner = world.planner_with(|config| {
        config.concurrency = 3;
        config.max_turns_per_tenant = 2;
    });
    let yaml = "name: demo\nmodel: scripted:demo\ninstructions: Play.\n";
    for _ in 0..4 {
        world.run_of(yaml).await;
    }
    let mut other = World { tenant: "other".parse().unwrap(), ..world };
    let run = other.run_on(yaml, Block::new("quick", Trust::Operator, "operator:ann"), Default::default()).await;
    let state = other.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "quick");
    let slow = other.ingress.reads().runs(&TenantId::default(), &engine::RunFilter::default()).await.unwrap().items;
    assert!(
        slow.iter().all(|row| row.status == Status::Runnable),
        "it came before the slow turns of somebody else: {slow:?}"
    );
    other.tenant = Default::default();
    let cancel = || Command::Cancel(ByOperator { by: "ann".to_owned(), reason: None });
    for row in other.ingress.reads().runs(&other.tenant, &engine::RunFilter::default()).await.unwrap().items {
        // The run that was quick has ended, and so may others have.
        let _ = other.ingress.submit(row.run_id, cancel(), "cancel", Cause::default()).await;
    }
    other.close(vec![planner]).await;
}
