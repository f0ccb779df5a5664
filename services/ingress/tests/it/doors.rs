//! A hand on runs: changed, forked, rolled back, many at once; dead letters; conversations; what an event would do.

use bus::Outgoing;
use kernel::{Role, RunId};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer, block, commit, eventually, merge_call, wait_for_event};

async fn send(door: &Door, method: Method, path: &str, role: &str, body: &Value) -> (StatusCode, Value) {
    answer(door.request(method, path, role).json(body).send().await.unwrap()).await
}

fn id_of(value: &Value) -> RunId {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_live_run_is_revised_by_an_operator_and_keeps_who_did_what() {
    let door = Door::open().await;
    door.put_agent("name: builder\nmodel: scripted:x\ninstructions: Build.\ntools: [shell.run, http.get]\n").await;
    let (_, run) = door.post("/v1/runs", &json!({"agent": "builder", "input": "build"})).await;
    let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
    let patch = json!({
        "objective": "build and test", "acceptance": ["the tests pass"], "tools": ["http.get"], "budget": {"turns": 7},
        "reason": "it was red",
    });
    let (status, problem) = send(&door, Method::PATCH, &path, "user", &patch).await;
    assert_eq!((status.as_u16(), &problem["code"]), (403, &json!("insufficient_role")));
    let (status, changed) = send(&door, Method::PATCH, &path, "operator", &patch).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    let shown = door.get(&path).await;
    assert_eq!(
        (&shown["objective"]["text"], &shown["budget"]["turns"]),
        (&json!("build and test"), &json!(7)),
        "{shown}"
    );
    assert_eq!(door.get("/v1/runs?q=and+test").await["items"][0]["objective"], "build and test", "lists show it too");
    let revised = door.events(id_of(&run["run_id"])).await;
    let revised = revised.iter().find(|event| event["type"] == "run.revised").unwrap();
    assert_eq!((&revised["data"]["by"], &revised["data"]["reason"]), (&json!("acme-operator"), &json!("it was red")));
    for (patch, code) in [
        (json!({}), "nothing_to_change"),
        (json!({"objective": " "}), "invalid_field"),
        (json!({"tools": ["github.merge"]}), "unknown_tool"),
        (json!({"objectives": "x"}), "unknown_field"),
    ] {
        let (status, problem) = send(&door, Method::PATCH, &path, "operator", &patch).await;
        assert_eq!((status.as_u16(), &problem["code"]), (422, &json!(code)), "{problem}");
    }
    door.close().await;
}

#[tokio::test]
async fn a_fork_takes_a_turn_anew_and_leaves_the_run_alone() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let run = door.run().await;
    commit(&planner, run, |state, outcome| {
        outcome.say = vec![block("I merge it")];
        outcome.calls = vec![merge_call(state)];
    })
    .await;
    let before = door.events(run).await;
    let path = format!("/v1/runs/{run}/fork");
    let request = json!({"turn": 1, "message": "look again"});
    let make = || door.request(Method::POST, &path, "user").header("idempotency-key", "fork-1").json(&request).send();
    let (status, fork) = answer(make().await.unwrap()).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{fork}");
    assert_eq!((&fork["origin"], &fork["turn"], &fork["effects"]), (&json!(run), &json!(1), &json!(false)));
    let again = make().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(answer(again).await.1["run_id"], fork["run_id"]);

    let shown = door.get(&format!("/v1/runs/{}", fork["run_id"].as_str().unwrap())).await;
    assert_eq!(shown["origin"], json!({"run_id": run, "turn": 1, "effects": false}));
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await.get("origin"), None);
    let forked = planner.load(id_of(&fork["run_id"])).await.unwrap().unwrap();
    assert!(forked.simulated && forked.turn.is_some());
    let facts: Vec<_> = forked.facts.iter().map(|fact| fact.block.text.as_str()).collect();
    assert!(facts.contains(&"go") && facts.contains(&"look again"), "{facts:?}");
    assert_eq!(door.events(run).await, before, "nothing of it reaches the run");

    // Its second turn saw the call that was under way.
    let (_, second) = send(&door, Method::POST, &path, "user", &json!({"turn": 2})).await;
    assert_eq!(second["code"], "unknown_turn", "{second}");
    for (path, body, status) in [
        (path.clone(), json!({"turn": 99}), 422),
        (path.clone(), json!({"message": ""}), 422),
        (format!("/v1/runs/{}/fork", RunId::mint()), json!({}), 404),
    ] {
        assert_eq!(send(&door, Method::POST, &path, "user", &body).await.0.as_u16(), status, "{body}");
    }
    let other = door.http.post(format!("{}{path}", door.url)).bearer_auth("other-admin").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::NOT_FOUND, "another tenant's run is none");
    door.close().await;
}

#[tokio::test]
async fn a_rollback_ends_the_run_and_goes_on_with_effects() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let run = door.run().await;
    commit(&planner, run, |_, outcome| outcome.wait = Some(wait_for_event("main", None, false))).await;
    let path = format!("/v1/runs/{run}/rollback");
    let (status, problem) = send(&door, Method::POST, &path, "operator", &json!({"turn": 1, "message": " "})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await["status"], "waiting", "what is refused ends nothing");
    let (status, next) = send(&door, Method::POST, &path, "operator", &json!({"turn": 1, "reason": "wrong way"})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{next}");
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await["status"], "cancelled");
    let state = planner.load(id_of(&next["run_id"])).await.unwrap().unwrap();
    assert!(!state.simulated && state.origin.unwrap().run_id == run);
    let (status, _) = send(&door, Method::POST, &path, "user", &json!({"turn": 1})).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    door.close().await;
}

#[tokio::test]
async fn many_runs_are_held_resumed_and_ended_and_first_only_listed() {
    let door = Door::open().await;
    let runs = [door.run().await, door.run().await, door.run().await];
    let (status, listed) = door.post("/v1/runs:cancel", &json!({"filter": {"agent": "helper"}, "dry_run": true})).await;
    assert_eq!((status, listed["runs"].as_array().unwrap().len(), &listed["changed"]), (StatusCode::OK, 3, &json!(0)));
    let (_, held) = door.post("/v1/runs:pause", &json!({"filter": {"run_ids": [runs[0], runs[1]]}})).await;
    assert_eq!(held["changed"], 2, "{held}");
    let (_, let_go) = door.post("/v1/runs:resume", &json!({"filter": {}, "limit": 1})).await;
    assert_eq!((&let_go["changed"], &let_go["more"]), (&json!(1), &json!(true)), "{let_go}");
    let (_, ended) = door.post("/v1/runs:cancel", &json!({"filter": {}, "reason": "all of them"})).await;
    assert_eq!(ended["changed"], 3, "{ended}");
    let (_, none) = door.post("/v1/runs:cancel", &json!({"filter": {}})).await;
    assert_eq!(none["runs"], json!([]));
    for (body, code) in [
        (json!({}), "missing_field"),
        (json!({"filter": []}), "invalid_field"),
        (json!({"filter": {"status": "gone"}}), "invalid_query"),
        (json!({"filter": {}, "limit": 0}), "invalid_field"),
        (json!({"filter": {"run_ids": [RunId::mint()]}}), "unknown_run"),
    ] {
        let (_, problem) = door.post("/v1/runs:cancel", &body).await;
        assert_eq!(problem["code"], code, "{body}: {problem}");
    }
    let (status, _) = send(&door, Method::POST, "/v1/runs:cancel", "user", &json!({"filter": {}})).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    door.close().await;
}

#[tokio::test]
async fn dead_letters_are_listed_to_their_tenant_and_published_again() {
    let door = Door::open().await;
    for (tenant, body) in [("acme", "{"), ("other", "{"), ("acme", "[]")] {
        let message = Outgoing::new(format!("in.{tenant}.forge.push"), body);
        door.bus().publisher().publish(message).await.unwrap();
    }
    let mine = eventually("the letters", || async {
        let page = answer(door.request(Method::GET, "/v1/dlq", "admin").send().await.unwrap()).await.1;
        (page["items"].as_array()?.len() == 2).then_some(page)
    })
    .await;
    assert_eq!(mine["items"][0]["body"], "{");
    assert!(mine["items"][0]["reason"].as_str().unwrap().contains("JSON"), "{mine}");
    let redrive = json!({"filter": {"consumer": "ingress"}, "dry_run": true});
    let (_, listed) = send(&door, Method::POST, "/v1/dlq:redrive", "admin", &redrive).await;
    assert_eq!((listed["seqs"].as_array().unwrap().len(), &listed["redriven"]), (2, &json!(0)));
    let seq = listed["seqs"][0].clone();
    let (_, done) = send(&door, Method::POST, "/v1/dlq:redrive", "admin", &json!({"filter": {"seqs": [seq]}})).await;
    assert_eq!((&done["redriven"], &done["failed"]), (&json!(1), &json!(0)), "{done}");
    let (status, _) = send(&door, Method::POST, "/v1/dlq:redrive", "operator", &redrive).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    door.close().await;
}

#[tokio::test]
async fn a_conversation_shows_its_runs() {
    let door = Door::open().await;
    let conversation = RunId::mint();
    for input in ["one", "two"] {
        door.post("/v1/runs", &json!({"agent": "helper", "input": input, "conversation_id": conversation})).await;
    }
    door.run().await;
    let path = format!("/v1/conversations/{conversation}");
    let shown = door.get(&format!("{path}?limit=1")).await;
    assert_eq!((&shown["items"][0]["objective"], shown["items"].as_array().unwrap().len()), (&json!("two"), 1));
    let rest = door.get(&format!("{path}?cursor={}", shown["next"].as_str().unwrap())).await;
    assert_eq!((&rest["items"][0]["objective"], &rest["next"]), (&json!("one"), &Value::Null));
    let unknown = door.request(Method::GET, &format!("/v1/conversations/{}", RunId::mint()), "viewer").send().await;
    assert_eq!(answer(unknown.unwrap()).await.1["code"], "unknown_conversation");
    door.close().await;
}

#[tokio::test]
async fn what_an_event_would_do_is_told_and_nothing_is_done() {
    let door = Door::open().await;
    door.put_agent(
        "name: keeper\nmodel: scripted:x\ninstructions: Keep.\ntriggers:\n  - on: build.*\n    where: data.ok\n    \
         start: { input: look }\n  - on: build.done\n    debounce: 30s\n    start: { input: later }\n",
    )
    .await;
    let planner = door.engine(Role::Planner).await;
    let run = door.run().await;
    commit(&planner, run, |_, outcome| outcome.wait = Some(wait_for_event("main", Some("!data.ok"), false))).await;
    let event = json!({"type": "build.done", "subject": "main", "data": {"ok": true}});
    let request = json!({"event": event, "source": "ci"});
    let (status, told) = send(&door, Method::POST, "/v1/triggers:test", "viewer", &request).await;
    assert_eq!(status, StatusCode::OK, "{told}");
    let would: Vec<_> =
        told["triggers"].as_array().unwrap().iter().map(|each| each["would"].as_str().unwrap()).collect();
    assert_eq!(would, ["start", "hold_back"]);
    assert_eq!(told["triggers"][1]["key"], "main");
    assert!(told["triggers"][1]["why"].as_str().unwrap().contains("30s after the last event"), "{told}");
    assert_eq!((&told["waits"][0]["run_id"], &told["waits"][0]["takes"]), (&json!(run), &json!(false)));
    assert!(door.get("/v1/runs?agent=keeper").await["items"].as_array().unwrap().is_empty());
    let (status, problem) = send(&door, Method::POST, "/v1/triggers:test", "viewer", &json!({"event": {}})).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("type")));
    door.close().await;
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let door = Door::open().await;
    let run = door.run().await;
    for path in [format!("/v1/runs/{run}"), "/v1/agents/helper".to_owned()] {
        let first = door.request(Method::GET, &path, "viewer").send().await.unwrap();
        let tag = first.headers()["etag"].clone();
        let again = door.request(Method::GET, &path, "viewer").header("if-none-match", &tag).send().await.unwrap();
        assert_eq!((again.status(), &again.headers()["etag"]), (StatusCode::NOT_MODIFIED, &tag));
        assert!(again.bytes().await.unwrap().is_empty());
        let other = door.request(Method::GET, &path, "viewer").header("if-none-match", "\"x\"").send().await.unwrap();
        assert_eq!(other.status(), StatusCode::OK);
    }
    let path = format!("/v1/runs/{run}");
    let tag = door.request(Method::GET, &path, "viewer").send().await.unwrap().headers()["etag"].clone();
    door.post(&format!("{path}/messages"), &json!({"text": "hello"})).await;
    let changed = door.request(Method::GET, &path, "viewer").header("if-none-match", &tag).send().await.unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
    door.close().await;
}

#[tokio::test]
async fn a_caller_who_asks_too_often_is_told_when_to_come_again() {
    // So few that also a slow machine asks too often.
    let door = Door::open_with(|config| config.requests_per_second = 1).await;
    let mut refused = None;
    for _ in 0..200 {
        let response = door.request(Method::GET, "/v1/runs", "viewer").send().await.unwrap();
        assert!(response.headers().contains_key("ratelimit") && response.headers().contains_key("ratelimit-policy"));
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.expect("a limit");
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(answer(refused).await.1["code"], "too_many_requests");
    let other = door.request(Method::GET, "/v1/runs", "user").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::OK, "another caller has its own");
    door.close().await;
}

#[tokio::test]
async fn a_trace_of_the_caller_is_kept_if_it_is_one() {
    let door = Door::open().await;
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let ingress = door.engine(Role::Ingress).await;
    let cases = [
        (vec![PARENT], Some(PARENT)),
        (
            vec!["cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes"],
            Some("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes"),
        ),
        (vec!["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"], None),
        (vec!["00-00000000000000000000000000000000-00f067aa0ba902b7-01"], None),
        (vec!["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"], None),
        (vec![PARENT, PARENT], None),
        (vec!["nonsense"], None),
    ];
    for (index, (sent, kept)) in cases.into_iter().enumerate() {
        let event = bus::CloudEvent::new(format!("t{index}"), "ci", "build.done").with_json(json!({}));
        let mut request = door.request(Method::POST, "/v1/events?source=ci", "publisher");
        for value in &sent {
            request = request.header("traceparent", *value);
        }
        let request = request.header("content-type", "application/cloudevents+json").body(event.to_json().to_string());
        assert_eq!(request.send().await.unwrap().status(), StatusCode::ACCEPTED);
        let known = ingress.externals().record(&"acme".parse().unwrap(), "ci", &event, None).await.unwrap();
        assert_eq!(known.external.traceparent.as_deref(), kept, "{sent:?}");
    }
    door.close().await;
}
