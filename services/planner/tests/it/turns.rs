//! Whole turns, over real NATS, Postgres and Redis: what is committed, asked again, tried again and given up.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{Json, Router, extract::Query, extract::State, routing::put};
use engine::{Engine, testing::TestStack};
use futures::StreamExt;
use kernel::{
    Cause, Command, Event, EventData, Role, RunId, RunState, Status, TenantId,
    command::{ByOperator, CreateRun},
    event::{Rule, RunCreated},
};
use planner::Config;
use serde_json::{Value, json};
use service::{Common, Drained, Running};

use crate::sim::{has, operator, outside};

/// How long anything may take.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A system of its own with a scenario, and runs in it.
pub struct World {
    pub stack: TestStack,
    pub ingress: Engine,
    pub folder: tempfile::TempDir,
    pub artifact_url: String,
    pub tenant: TenantId,
}

impl World {
    pub async fn with(scenario: &str) -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("scenarios")).unwrap();
        std::fs::write(folder.path().join("scenarios/demo.yaml"), format!("name: demo\nsteps:\n{scenario}")).unwrap();
        Self { stack, ingress, folder, artifact_url: "http://127.0.0.1:9".to_owned(), tenant: TenantId::default() }
    }

    pub fn planner(&self) -> Running {
        self.planner_with(|_| {})
    }

    pub fn planner_with(&self, change: impl FnOnce(&mut Config)) -> Running {
        let common = Common {
            agents_dir: self.folder.path().to_owned(),
            artifact_url: self.artifact_url.clone(),
            drain_seconds: 60,
            ..service::testing::common("planner", &self.stack)
        };
        let mut config = Config { common, pool_size: 3, model_retry_seconds: 3, ..Config::default() };
        change(&mut config);
        service::spawn("planner", config, planner::run).unwrap()
    }

    /// Starts a run of an agent that plays the scenario.
    async fn run(&self) -> RunId {
        self.run_of("name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo, nowhere.to_be]\n").await
    }

    pub async fn run_of(&self, yaml: &str) -> RunId {
        self.run_with(yaml, |_| {}).await
    }

    /// Starts a run of this agent on this input, with these labels.
    pub async fn run_on(&self, yaml: &str, input: kernel::Block, metadata: serde_json::Map<String, Value>) -> RunId {
        self.run_with(yaml, |created| (created.input, created.metadata) = (input, metadata)).await
    }

    pub async fn run_with(&self, yaml: &str, change: impl FnOnce(&mut RunCreated)) -> RunId {
        let agent = self.ingress.agents().put(&self.tenant, yaml, "ann").await.unwrap();
        let (objective, input) = (operator("Play to the end."), outside("{\"n\": 7}"));
        let mut created = RunCreated {
            acceptance: agent.spec.criteria(Vec::new()),
            limits: agent.spec.budget.clone(),
            sampled: true,
            ..RunCreated::new(self.tenant.clone(), agent.name, agent.digest, objective, input)
        };
        change(&mut created);
        let run = RunId::mint();
        let cause =
            Cause { traceparent: Some(format!("00-{}-00f067aa0ba902b7-01", run.trace_id())), ..Cause::default() };
        let create = Command::Create(Box::new(CreateRun { created, hold: None }));
        self.ingress.submit(run, create, "create", cause).await.unwrap();
        run
    }

    /// The run, as soon as it is as wanted.
    pub async fn until(&self, run: RunId, wanted: impl Fn(&RunState) -> bool) -> Arc<RunState> {
        let began = Instant::now();
        loop {
            let state = self.ingress.load(run).await.unwrap().unwrap();
            if wanted(&state) {
                return state;
            }
            assert!(began.elapsed() < DEADLINE, "not as wanted in time: {state:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn events(&self, run: RunId) -> Vec<Event> {
        let stored = self.ingress.reads().events(&self.tenant, run, 0, 1000).await.unwrap();
        stored.iter().map(|event| event.decode().unwrap()).collect()
    }

    pub async fn close(self, planners: Vec<Running>) {
        for planner in planners {
            assert_eq!(planner.stop().await.unwrap(), Drained::Clean);
        }
        self.stack.close().await.unwrap();
    }
}

fn turns(events: &[Event]) -> Vec<&kernel::event::TurnCompleted> {
    let mut turns = Vec::new();
    for event in events {
        if let EventData::TurnCompleted(turn) = &event.data {
            turns.push(turn);
        }
    }
    turns
}

fn rejections(events: &[Event]) -> Vec<&kernel::event::TurnRejected> {
    let mut rejections = Vec::new();
    for event in events {
        if let EventData::TurnRejected(turn) = &event.data {
            rejections.push(turn);
        }
    }
    rejections
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_answer_is_asked_again_and_the_good_one_committed() {
    let world = World::with(
        r#"
  - unless: could not be used
    text: I call it.
    calls: [{tool: test.echo, malformed: '{"text": '}, {tool: rm.rf, arguments: {}}]
  - when: {sees: 'not valid JSON[\s\S]*no tool `rm.rf`'}
    text: I call it again.
    calls: [{tool: test.echo, arguments: {text: "{{run_id}}"}}]
    usage: {input: 1000, cached: 200, output: 50}
"#,
    )
    .await;
    let planner = world.planner();
    let run = world.run().await;
    let state = world.until(run, |state| state.turn.is_none()).await;
    assert_eq!(state.spent.usage.model_calls, 2);
    let events = world.events(run).await;
    assert!(rejections(&events).is_empty(), "asking again is not giving up");
    let turn = turns(&events)[0];
    assert_eq!(turn.text.as_ref().unwrap().text, "I call it again.");
    assert_eq!(turn.model, "scripted:demo");
    assert!(turn.usage.input_tokens > 1000 && turn.usage.output_tokens > 50, "both calls are counted");
    assert_eq!(turn.trust, kernel::Trust::Untrusted, "the event from outside was seen");
    let tools = turn.manifest.sections.iter().find(|section| section.name == "tools").unwrap();
    assert!(tools.cut.as_ref().unwrap().contains("nowhere.to_be"), "what the catalogue lacks is noted");
    let call = state.calls.values().next().unwrap();
    assert_eq!(call.request.arguments, json!({"text": run.to_string()}));
    assert_eq!(call.request.trust, kernel::Trust::Untrusted);

    let stored = world.ingress.reads().events(&world.tenant, run, 0, 100).await.unwrap();
    let committed = stored.iter().find(|event| event.event_type == "turn.completed").unwrap();
    let opened = stored.iter().find(|event| event.event_type == "run.runnable").unwrap();
    assert_eq!((committed.cause.service.as_str(), committed.cause.seq), ("planner", Some(opened.seq)));
    assert!(committed.cause.traceparent.as_ref().unwrap().contains(&run.trace_id()), "in the run's own trace");
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_again_and_again_ends_the_run() {
    let world = World::with("  - calls: [{tool: test.echo, malformed: garbage}]\n").await;
    let planner = world.planner_with(|config| config.max_reasks = 1);
    let run = world.run().await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.status(), Status::Failed);
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::Unrecoverable);
    let events = world.events(run).await;
    let rejected = rejections(&events);
    assert_eq!(rejected.len(), 3);
    assert!(rejected.iter().all(|turn| turn.code == "invalid_output" && turn.usage.model_calls == 2));
    assert!(rejected[0].problems[0].contains("not valid JSON"), "{:?}", rejected[0].problems);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_that_may_pass_are_tried_again() {
    let world = World::with(
        r#"
  - {once: true, error: {status: 503}}
  - {once: true, error: {status: 429, retry_after: 100ms}}
  - calls: [{tool: complete, arguments: {summary: done}}]
"#,
    )
    .await;
    // The first is tried again at once; for the second there is no time left, so the doorbell rings again.
    for retry_seconds in [3, 0] {
        let planner = world.planner_with(|config| config.model_retry_seconds = retry_seconds);
        let run = world.run().await;
        let state = world.until(run, |state| state.ended).await;
        assert_eq!(state.status(), Status::Completed);
        assert_eq!(state.spent.turns, 1, "a try that failed is no turn");
        assert_eq!(planner.stop().await.unwrap(), Drained::Clean);
    }
    world.close(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_will_never_answer_ends_the_run_unless_another_does() {
    let world = World::with("  - error: {status: 401}\n").await;
    std::fs::write(world.folder.path().join("scenarios/other.yaml"), "name: other\nsteps:\n  - text: Here I am.\n")
        .unwrap();
    let planner = world.planner();
    let run = world.run().await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::Unrecoverable);
    assert!(state.ending.as_ref().unwrap().text.text.contains("401"), "{:?}", state.ending);
    assert_eq!(rejections(&world.events(run).await)[0].code, "provider");

    let yaml = "name: two\nmodel: ['scripted:demo', 'scripted:other']\ninstructions: Play.\n";
    let run = world.run_of(yaml).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "Here I am.");
    assert_eq!(turns(&world.events(run).await)[0].model, "scripted:other");

    let run = world.run_of("name: none\nmodel: scripted:not-there\ninstructions: Play.\n").await;
    let state = world.until(run, |state| state.ended).await;
    assert!(state.ending.as_ref().unwrap().text.text.contains("not-there"), "{:?}", state.ending);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_planners_on_one_turn_commit_one_outcome() {
    let world = World::with("  - {slow: 300ms, text: Slowly., calls: [{tool: test.echo, arguments: {}}]}\n").await;
    let mut planners = vec![world.planner(), world.planner()];
    for planner in &mut planners {
        planner.listening().await.unwrap();
    }
    let runs: Vec<_> = futures::future::join_all((0..10).map(|_| world.run())).await;
    // The doorbell of each turn rings once more: whoever hears it finds the turn taken or over.
    for run in &runs {
        let state = world.until(*run, |state| state.turns_opened == 1).await;
        let stored = world.ingress.reads().events(&world.tenant, *run, 0, 100).await.unwrap();
        let opened = stored.iter().find(|event| event.event_type == "run.runnable").unwrap();
        let subject = bus::subject::evt("run.runnable", &state.tenant, run);
        let again = bus::Outgoing::new(subject, opened.data.get().to_owned());
        world.stack.bus().publisher().publish(again).await.unwrap();
    }
    for run in &runs {
        world.until(*run, |state| state.turn.is_none()).await;
    }
    // What is still to be said about these turns has been said when both have ended in order.
    for planner in planners {
        assert_eq!(planner.stop().await.unwrap(), Drained::Clean);
    }
    for run in &runs {
        let events = world.events(*run).await;
        assert_eq!(turns(&events).len(), 1);
        assert!(rejections(&events).is_empty(), "nobody paid twice: the lease kept the other one off");
    }
    world.close(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_stops_its_model_call() {
    let world = World::with("  - {slow: 300s, text: This takes a long time and is never heard to its end.}\n").await;
    let planner = world.planner();
    let run = world.run().await;
    let mut live = world.stack.bus().subscribe(&bus::subject::live(&world.tenant, run)).await.unwrap();
    tokio::time::timeout(DEADLINE, live.next()).await.unwrap().unwrap();
    let cancel = Command::Cancel(ByOperator { by: "ann".to_owned(), reason: None });
    world.ingress.submit(run, cancel, "cancel", Cause::default()).await.unwrap();
    // Whatever is in flight holds the drain up beyond its limit, and it ends unclean.
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_shown_while_it_is_written_and_a_drain_waits_for_it() {
    let text = "Word by word, so that somebody can read along while the model is still at it.";
    let world = World::with(&format!("  - {{slow: 1s, text: \"{text}\"}}\n")).await;
    let mut live = world.stack.bus().subscribe("live.>").await.unwrap();
    let planner = world.planner();
    let run = world.run().await;
    let first = tokio::time::timeout(DEADLINE, live.next()).await.unwrap().unwrap();
    let draining = tokio::spawn(planner.stop());
    let mut said = String::new();
    let mut next = Some(first);
    let mut pieces = 0;
    while let Some(message) = next.take() {
        let delta: Value = message.json().unwrap();
        assert_eq!((&delta["turn"], &delta["block"], &delta["offset"]), (&json!(1), &json!(0), &json!(said.len())));
        assert_eq!(message.subject, bus::subject::live(&world.tenant, run));
        said.push_str(delta["text"].as_str().unwrap());
        pieces += 1;
        if said.len() < text.len() {
            next = tokio::time::timeout(DEADLINE, live.next()).await.unwrap();
        }
    }
    assert_eq!(said, text);
    assert!((2..=30).contains(&pieces), "gathered, but not all at once: {pieces}");
    assert_eq!(draining.await.unwrap().unwrap(), Drained::Clean);
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, text, "what was under way was committed");
    world.close(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_run_is_not_asked_about_until_it_goes_on() {
    let world = World::with("  - text: Done.\n").await;
    let run = world.run().await;
    let by = || ByOperator { by: "ann".to_owned(), reason: None };
    world.ingress.submit(run, Command::Pause(by()), "pause", Cause::default()).await.unwrap();
    let planner = world.planner();
    // Another run tells that the doorbell of the first was heard: they are taken in order.
    let other = world.run().await;
    world.until(other, |state| state.ended).await;
    let state = world.until(run, |_| true).await;
    assert_eq!((state.status(), state.spent.turns), (Status::Paused, 0));
    world.ingress.submit(run, Command::Resume(by()), "resume", Cause::default()).await.unwrap();
    world.until(run, |state| state.ended).await;
    world.close(vec![planner]).await;
}

pub type Stored = Arc<Mutex<Vec<(Value, String)>>>;

/// Keeps what it is given, as the artifact service does.
pub async fn artifact_service(stored: Stored) -> String {
    let keep = |State(stored): State<Stored>, Query(query): Query<Value>, body: String| async move {
        let artifact = json!({
            "artifact_id": kernel::ArtifactId::mint(), "name": query["name"], "version": 1, "digest": "d",
            "bytes": body.len(), "media_type": query["media_type"], "trust": query["trust"],
        });
        stored.lock().unwrap().push((query, body));
        Json(artifact)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/internal/artifacts", put(keep)).with_state(stored);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_kept_before_the_turn_is_committed() {
    let mut world = World::with(
        r#"
  - unless: could not be used
    calls:
      - {tool: create_artifact, arguments: {name: early.md, content: "not kept"}}
      - {tool: test.echo, arguments: {}}
      - {tool: complete, arguments: {summary: too early}}
  - calls:
      - {tool: create_artifact, arguments: {name: more data.json, content: "{}"}}
      - {tool: create_artifact, arguments: {name: report.md, content: "Report of {{run_id}}"}}
      - {tool: complete, arguments: {summary: See report.md.}}
"#,
    )
    .await;
    let stored = Stored::default();
    world.artifact_url = artifact_service(Arc::clone(&stored)).await;
    let planner = world.planner();
    let run = world.run().await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.status(), Status::Completed, "{:?}", state.ending);
    let kept = stored.lock().unwrap().clone();
    assert_eq!(kept.len(), 2, "nothing is kept for an answer that the rules refuse: {kept:?}");
    let (query, body) = &kept[1];
    assert_eq!(body, &format!("Report of {run}"));
    assert_eq!(query["run_id"], run.to_string());
    assert_eq!(
        (&query["media_type"], &query["trust"], &query["tenant"]),
        (&json!("text/markdown"), &json!("untrusted"), &json!("default"))
    );
    assert_eq!(state.artifacts.len(), 2);
    assert!(has(&world.events(run).await, "artifact.created"));
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_starts_another_with_no_more_than_it_has_itself() {
    let world = World::with(
        r#"
  - unless: 'could not be used'
    calls: [{tool: spawn_agent, arguments: {agent: stranger, task: look}}]
  - when: {sees: 'stranger'}
    text: I ask the one that I may ask.
    calls:
      - {tool: spawn_agent, arguments: {agent: helper, task: "look at {{run_id}}", budget: {turns: 3}, on_failure: retry}}
      - {tool: wait_for, arguments: {task: helper, why: "it looks"}}
"#,
    )
    .await;
    let helper = "name: helper\nmodel: scripted:demo\ninstructions: Help.\ntools: [test.echo, shell.run]\n";
    let helper = world.ingress.agents().put(&world.tenant, helper, "ann").await.unwrap();
    let planner = world.planner();
    let lead = "name: lead\nmodel: scripted:demo\ninstructions: Lead.\ntools: [test.echo]\nagents: [helper]\n";
    let run = world.run_of(lead).await;
    let state = world.until(run, |state| !state.children.is_empty()).await;
    let (call, child) = state.children.iter().next().unwrap();
    assert_eq!(child.spawn.agent_digest, helper.digest);
    assert_eq!(child.spawn.tools, ["test.echo"], "not the shell, which its parent has not");
    assert_eq!(child.spawn.task.text, format!("look at {run}"));
    assert_eq!(child.spawn.task.trust, kernel::Trust::Untrusted, "the event from outside was seen");
    assert_eq!((child.limits.turns, child.spawn.on_failure), (Some(3), kernel::child::OnFailure::Retry));
    assert!(state.wait.as_ref().unwrap().names_call(*call));
    world.close(vec![planner]).await;
}
