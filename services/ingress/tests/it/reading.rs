//! Events, turns, causes and waits, as callers read them.

use kernel::call::{Binding, CallResult};
use kernel::command::{CompleteCall, EndRequest, StartCall};
use kernel::slice::{Manifest, Section};
use kernel::{Command, Role, Trust};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Door, answer, block, cause, commit, merge_call, wait_for_event};

#[tokio::test]
async fn events_are_read_in_pages() {
    let door = Door::open().await;
    let run = door.run().await;
    for number in 0..6 {
        door.post(&format!("/v1/runs/{run}/messages"), &json!({"text": format!("{number}")})).await;
    }
    let all = door.events(run).await;
    let (mut seen, mut after) = (Vec::new(), json!(0));
    while after != Value::Null {
        let page = door.get(&format!("/v1/runs/{run}/events?after={after}&limit=3")).await;
        seen.extend(page["items"].as_array().unwrap().clone());
        after = page["next"].clone();
    }
    assert_eq!(seen, all);
    assert_eq!(
        all.iter().map(|event| event["seq"].as_u64().unwrap()).collect::<Vec<_>>(),
        (1..=all.len() as u64).collect::<Vec<_>>()
    );
    door.close().await;
}

#[tokio::test]
async fn a_turn_tells_what_it_saw_said_did_and_cost() {
    let door = Door::open().await;
    let run = door.run().await;
    let planner = door.engine(Role::Planner).await;
    let open = door.get(&format!("/v1/runs/{run}/turns/1")).await;
    assert_eq!((&open["status"], &open["saw"], &open["committed"]), (&json!("open"), &Value::Null, &json!([])));

    let manifest = Manifest {
        sections: vec![Section {
            name: "facts".into(),
            trust: Trust::Operator,
            seqs: vec![1],
            sources: Vec::new(),
            tokens: 7,
            cut: None,
        }],
        tokens: 7,
        budget: 100,
        counted_by: None,
        digests: vec!["d".into()],
    };
    commit(&planner, run, |_, outcome| {
        outcome.manifest = manifest;
        outcome.text = Some(block("I look into it."));
        outcome.wait = Some(wait_for_event("main", None, false));
    })
    .await;
    door.post(&format!("/v1/runs/{run}/messages"), &json!({"text": "hurry"})).await;
    commit(&planner, run, |_, outcome| outcome.end = Some(EndRequest::Complete(block("done")))).await;

    let turn = door.get(&format!("/v1/runs/{run}/turns/1")).await;
    assert_eq!(turn["status"], "completed");
    assert_eq!(turn["saw"]["manifest"]["sections"][0]["tokens"], 7);
    assert_eq!(
        (&turn["answered"]["model"], &turn["answered"]["text"]["text"]),
        (&json!("scripted:helper"), &json!("I look into it."))
    );
    assert_eq!(turn["cost"]["input_tokens"], 100);
    let committed: Vec<_> = turn["committed"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(committed, ["turn.completed", "message.added", "wait.registered", "run.waiting"]);
    let second = door.get(&format!("/v1/runs/{run}/turns/2")).await;
    assert_eq!(second["wake"], "operator_input");
    assert_eq!(second["committed"].as_array().unwrap().last().unwrap()["type"], "run.completed");

    for number in ["0", "3", "x", "-1"] {
        let response =
            door.request(Method::GET, &format!("/v1/runs/{run}/turns/{number}"), "viewer").send().await.unwrap();
        let (status, problem) = answer(response).await;
        assert_eq!((status.as_u16(), &problem["code"]), (404, &json!("unknown_turn")), "{number}");
    }
    door.close().await;
}

#[tokio::test]
async fn an_effect_is_followed_back_to_what_came_from_outside() {
    let door = Door::open().await;
    door.put_agent(
        "
name: reviewer
model: scripted:reviewer
instructions: Review.
triggers:
  - { on: pull.opened, start: { input: Review it } }
",
    )
    .await;
    let event = json!({"specversion": "1.0", "id": "e1", "source": "s", "type": "pull.opened", "subject": "7"});
    door.post("/v1/events?source=forge", &event).await;
    let run: kernel::RunId = crate::harness::eventually("the triggered run", || async {
        door.get("/v1/runs?agent=reviewer").await["items"][0]["run_id"].as_str().map(|id| id.parse().unwrap())
    })
    .await;

    let (planner, executor) = (door.engine(Role::Planner).await, door.engine(Role::ToolExecutor).await);
    let committed = commit(&planner, run, |state, outcome| outcome.calls = vec![merge_call(state)]).await;
    let requested = committed.events.iter().find(|event| event.data.type_name() == "tool.requested").unwrap().seq;
    let call_id = *committed.state.calls.keys().next().unwrap();
    let start = StartCall { call_id, executor: "x".into(), binding: Binding::default() };
    let started =
        executor.submit(run, Command::StartCall(start), "start", cause("tool-executor", requested)).await.unwrap();
    let result = CallResult { block: block("merged"), value: None, artifact: None, duration_ms: 1 };
    let complete = Command::CompleteCall(CompleteCall { call_id, result });
    executor.submit(run, complete, "complete", cause("tool-executor", started.state.seq)).await.unwrap();
    let ended = commit(&planner, run, |_, outcome| outcome.end = Some(EndRequest::Complete(block("reviewed")))).await;

    let why = door.get(&format!("/v1/runs/{run}/why/{run}-{}", ended.state.seq)).await;
    let chain: Vec<&str> = why["chain"].as_array().unwrap().iter().map(|link| link["type"].as_str().unwrap()).collect();
    let story = [
        "run.completed",
        "turn.completed",
        "run.runnable",
        "tool.completed",
        "tool.started",
        "tool.requested",
        "turn.completed",
        "run.runnable",
        "run.created",
    ];
    assert_eq!(chain, story, "{why:#}");
    assert_eq!(why["origins"].as_array().unwrap().len(), 1);
    assert_eq!((&why["origins"][0]["kind"], &why["origins"][0]["event"]["id"]), (&json!("event"), &json!("e1")));
    assert_eq!(why["truncated"], false);

    for event in ["0", "99", "x", &format!("{}-1", kernel::RunId::mint())] {
        let response =
            door.request(Method::GET, &format!("/v1/runs/{run}/why/{event}"), "viewer").send().await.unwrap();
        assert_eq!(answer(response).await.1["code"], "unknown_event", "{event}");
    }
    door.close().await;
}

#[tokio::test]
async fn what_runs_wait_for_is_on_the_board() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let (waiting, calling) = (door.run().await, door.run().await);
    commit(&planner, waiting, |_, outcome| outcome.wait = Some(wait_for_event("main", Some("data.ok"), false))).await;
    commit(&planner, calling, |state, outcome| outcome.calls = vec![merge_call(state)]).await;

    let board = door.get("/v1/waits?kind=external").await;
    let wait = &board["items"][0];
    assert_eq!(
        (&wait["run_id"], &wait["agent"], &wait["why"]),
        (&json!(waiting), &json!("helper"), &json!("the build"))
    );
    assert_eq!((&wait["resource_key"], &wait["where"]), (&json!("ci:main"), &json!("data.ok")));
    let all = door.get("/v1/waits").await;
    let kinds: Vec<_> = all["items"].as_array().unwrap().iter().map(|wait| wait["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"external") && kinds.contains(&"task_result"), "{kinds:?}");

    let shown = door.get(&format!("/v1/runs/{calling}")).await;
    assert_eq!(shown["status"], "waiting");
    assert_eq!(
        (&shown["waits"][0]["kind"], &shown["waits"][0]["tool"]),
        (&json!("task_result"), &json!("forge.merge"))
    );
    let shown = door.get(&format!("/v1/runs/{waiting}")).await;
    assert_eq!(
        (&shown["waits"][0]["why"], &shown["waits"][0]["condition"]["kind"]),
        (&json!("the build"), &json!("external"))
    );
    door.close().await;
}
