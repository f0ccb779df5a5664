//! Starting runs, looking at them, and a hand on them.

use std::time::Duration;

use kernel::command::EndRequest;
use kernel::{Role, RunId};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer, block, commit};

#[tokio::test]
async fn a_run_is_started_and_can_be_looked_at() {
    let door = Door::open().await;
    let conversation = kernel::ConversationId::mint();
    let body = json!({
        "agent": "helper", "input": {"pull": 7}, "objective": "review it", "acceptance": ["it is reviewed"],
        "budget": {"turns": 20, "cost_usd": 0.5, "tokens": "200k", "wall": "3d"},
        "conversation_id": conversation, "metadata": {"team": "blue"},
    });
    let request = door.request(Method::POST, "/v1/runs", "user").json(&body);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let response = request.header("traceparent", parent).send().await.unwrap();
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let (status, created) = answer(response).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{created}");
    assert_eq!(created["status"], "runnable");
    let run: RunId = created["run_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(created["stream_url"], format!("/v1/runs/{run}/stream"));
    assert_eq!(location, format!("/v1/runs/{run}"));

    let shown = door.get(&location).await;
    assert_eq!(shown["status"], "runnable");
    assert_eq!(shown["objective"], json!({"text": "review it", "trust": "operator", "source": "operator:acme-user"}));
    // Of each limit the stricter one: the agent has turns 10 and 2 dollars.
    let budget = json!({"turns": 10, "tokens": 200_000, "cost_usd": 0.5, "wall": "3d", "at_limit": "ask"});
    assert_eq!(shown["budget"], budget);
    assert_eq!(shown["acceptance"], json!(["it is reviewed"]));
    assert_eq!(shown["metadata"], json!({"team": "blue"}));
    assert_eq!(shown["conversation_id"], json!(conversation));
    assert_eq!(shown["trace_id"], run.trace_id());
    assert_eq!((&shown["turn"]["number"], &shown["turn"]["running"]), (&json!(1), &json!(false)));
    assert_eq!(shown["usage"]["turns"], 0);

    let first = &door.events(run).await[0];
    assert_eq!(first["type"], "run.created");
    assert_eq!(first["event_id"], format!("{run}-1"));
    assert_eq!(first["data"]["input"]["text"], "{\n  \"pull\": 7\n}");
    assert_eq!(first["cause"]["operator"], "acme-user");
    let root = format!("00-{}-{}-01", run.trace_id(), hex::encode(run.root_span_id()));
    assert_eq!(first["cause"]["traceparent"], root, "what follows hangs under the run's root span");
    door.close().await;
}

#[tokio::test]
async fn asking_again_with_the_same_key_gives_the_same_run() {
    let door = Door::open().await;
    let start = |key: &str, input: &str| {
        let body = json!({"agent": "helper", "input": input});
        let request = door.request(Method::POST, "/v1/runs", "user").header("idempotency-key", key).json(&body);
        async move { request.send().await.unwrap() }
    };
    // All at once: one is first, and all hear the same.
    let answers = futures::future::join_all((0..8).map(|_| start("k1", "go"))).await;
    let mut runs = Vec::new();
    let mut replayed = 0;
    for response in answers {
        replayed += usize::from(response.headers().contains_key("idempotent-replayed"));
        let (status, body) = answer(response).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        runs.push(body["run_id"].clone());
    }
    runs.dedup();
    assert_eq!((runs.len(), replayed), (1, 7));
    assert_eq!(door.get("/v1/runs").await["items"].as_array().unwrap().len(), 1);

    let (status, problem) = answer(start("k1", "something else").await).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(problem["field"], "Idempotency-Key");
    let (status, problem) = answer(start(&"k".repeat(300), "go").await).await;
    assert_eq!((status.as_u16(), &problem["code"]), (400, &json!("invalid_idempotency_key")));
    let (_, other) = answer(start("k2", "go").await).await;
    assert_ne!(other["run_id"], runs[0]);
    door.close().await;
}

#[tokio::test]
async fn runs_are_listed_in_pages_and_by_filter() {
    let door = Door::open().await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(door.run().await.to_string());
    }
    runs.reverse();
    let mut seen = Vec::new();
    let mut path = "/v1/runs?limit=2".to_owned();
    loop {
        let page = door.get(&path).await;
        seen.extend(page["items"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/runs?limit=2&cursor={next}");
    }
    assert_eq!(seen, runs, "newest first, none twice, none left out");

    let planner = door.engine(Role::Planner).await;
    let first: RunId = runs[0].parse().unwrap();
    commit(&planner, first, |_, outcome| outcome.end = Some(EndRequest::Complete(block("done")))).await;
    for (query, count) in
        [("status=completed", 1), ("status=runnable", 4), ("q=GO", 5), ("q=nothing", 0), ("wake=timer", 0)]
    {
        let page = door.get(&format!("/v1/runs?{query}")).await;
        assert_eq!(page["items"].as_array().unwrap().len(), count, "{query}: {page}");
    }
    door.close().await;
}

#[tokio::test]
async fn a_run_is_running_while_a_planner_holds_its_turn() {
    let door = Door::open().await;
    let run = door.run().await;
    let planner = door.engine(Role::Planner).await;
    let turn = planner.load(run).await.unwrap().unwrap().turn.clone().unwrap().turn_id;
    let lease =
        planner.leases().acquire(&format!("turn/{turn}"), "test", Duration::from_secs(60)).await.unwrap().unwrap();
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!((&shown["status"], &shown["turn"]["running"]), (&json!("running"), &json!(true)));
    assert_eq!(door.get("/v1/runs?status=running").await["items"][0]["run_id"], json!(run));
    lease.release().await;
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await["status"], "runnable");
    assert_eq!(door.get("/v1/runs?status=running").await["items"], json!([]));
    door.close().await;
}

#[tokio::test]
async fn more_runs_than_may_be_under_way_queue() {
    let door = Door::open_with(|config| config.max_running = 1).await;
    door.run().await;
    let second = door.run().await;
    let shown = door.get(&format!("/v1/runs/{second}")).await;
    assert_eq!(shown["status"], "queued");
    door.close().await;
}

#[tokio::test]
async fn an_operator_has_a_hand_on_a_live_run() {
    let door = Door::open().await;
    let run = door.run().await;
    let path = |verb: &str| format!("/v1/runs/{run}/{verb}");

    let (status, body) = door.post(&path("messages"), &json!({"text": "also this"})).await;
    assert_eq!((status, &body["status"]), (StatusCode::ACCEPTED, &json!("runnable")));
    let (_, body) = door.post(&path("pause"), &json!({"reason": "lunch"})).await;
    assert_eq!(body["status"], "paused");
    let (status, problem) = door.post(&path("messages"), &json!({"text": " "})).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("text")));
    let (_, body) = door.post(&path("resume"), &json!({})).await;
    assert_eq!(body["status"], "runnable");
    let (status, problem) = door.post(&path("resume"), &json!({})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("run_not_paused")));

    let patch = door.request(Method::PATCH, &path("budget"), "operator").json(&json!({"turns": 3, "cost_usd": null}));
    let (_, limits) = answer(patch.send().await.unwrap()).await;
    let wanted = json!({"turns": 3, "at_limit": "ask"});
    assert_eq!((&limits, &door.get(&format!("/v1/runs/{run}")).await["budget"]), (&wanted, &wanted));

    let (_, body) = door.post(&path("cancel"), &json!({"reason": "changed my mind"})).await;
    assert_eq!(body["status"], "cancelled");
    let (status, problem) = door.post(&path("messages"), &json!({"text": "hello?"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("run_ended")));
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown["ending"]["text"]["text"], "changed my mind");
    let types: Vec<Value> = door.events(run).await.iter().map(|event| event["type"].clone()).collect();
    for wanted in ["message.added", "run.paused", "run.resumed", "budget.changed", "run.cancelled"] {
        assert!(types.contains(&json!(wanted)), "{wanted} in {types:?}");
    }
    door.close().await;
}

#[tokio::test]
async fn an_operator_vouches_for_what_an_event_holds_and_for_nothing_else() {
    let door = Door::open().await;
    let run = door.run().await;
    let path = format!("/v1/runs/{run}/declassify");
    let created = door.events(run).await.remove(0);
    let text = created["data"]["input"]["text"].as_str().unwrap().to_owned();
    let vouch = |text: &str, from: u64| json!({"text": text, "from": from, "reason": "I know it"});

    let refused = door.request(Method::POST, &path, "user").json(&vouch(&text, 1)).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    for (body, code) in [(vouch("not in it", 1), "text_not_there"), (vouch(&text, 900), "text_not_there")] {
        let (status, problem) = door.post(&path, &body).await;
        assert_eq!((status.as_u16(), &problem["code"]), (422, &json!(code)), "{body}");
    }
    let (status, problem) = door.post(&path, &json!({"text": text, "from": 1, "reason": " "})).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("reason")));

    let (status, changed) = door.post(&path, &vouch(&text, 1)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{changed}");
    let events = door.events(run).await;
    let event = events.iter().find(|event| event["type"] == "trust.declassified").unwrap();
    assert_eq!((&event["data"]["text"], &event["data"]["trust"]), (&json!(text), &json!("trusted")));
    assert_eq!(
        (&event["data"]["by"], &event["cause"]["operator"]),
        (&event["cause"]["operator"], &event["data"]["by"])
    );
    door.close().await;
}

#[tokio::test]
async fn a_repeated_message_is_written_once() {
    let door = Door::open().await;
    let run = door.run().await;
    for _ in 0..3 {
        let request = door.request(Method::POST, &format!("/v1/runs/{run}/messages"), "user");
        let request = request.header("idempotency-key", "m1").json(&json!({"text": "once"}));
        assert_eq!(request.send().await.unwrap().status(), StatusCode::ACCEPTED);
    }
    let messages = door.events(run).await.into_iter().filter(|event| event["type"] == "message.added").count();
    assert_eq!(messages, 1);
    door.close().await;
}

#[tokio::test]
async fn a_request_that_was_refused_leaves_its_key_for_the_mended_one() {
    let door = Door::open().await;
    let send = async |path: &str, body: &Value| {
        let request = door.request(Method::POST, path, "user").header("idempotency-key", "once");
        answer(request.json(body).send().await.unwrap()).await
    };
    let (status, problem) = send("/v1/runs", &json!({"agent": "helper", "input": " "})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("invalid_field")));
    let (status, run) = send("/v1/runs", &json!({"agent": "helper", "input": "go"})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{run}");
    let run: RunId = run["run_id"].as_str().unwrap().parse().unwrap();
    let fork = async |body: &Value| {
        let request = door.request(Method::POST, &format!("/v1/runs/{run}/fork"), "user");
        answer(request.header("idempotency-key", "fork").json(body).send().await.unwrap()).await
    };
    for wrong in [json!({"turn": 9}), json!({"message": " "}), json!({"budget": {"cost_usd": -1}})] {
        assert_eq!(fork(&wrong).await.0.as_u16(), 422, "{wrong}");
    }
    let (status, problem) = fork(&json!({"turn": 1})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{problem}");
    door.close().await;
}

#[tokio::test]
async fn what_a_run_refused_leaves_its_key_for_the_mended_request() {
    let door = Door::open().await;
    let run = door.run().await;
    let resume = async |reason: &str| {
        let request = door.request(Method::POST, &format!("/v1/runs/{run}/resume"), "operator");
        answer(request.header("idempotency-key", "k").json(&json!({"reason": reason})).send().await.unwrap()).await
    };
    let (status, problem) = resume("too early").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("run_not_paused")), "{problem}");
    assert_eq!(door.post(&format!("/v1/runs/{run}/pause"), &json!({})).await.0, StatusCode::ACCEPTED);
    for _ in 0..2 {
        let (status, resumed) = resume("in time").await;
        assert_eq!(status, StatusCode::ACCEPTED, "{resumed}");
    }
    let (status, problem) = resume("too early").await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("idempotency_key_reused")), "{problem}");
    door.close().await;
}

#[tokio::test]
async fn another_message_under_a_used_key_is_refused_and_not_lost() {
    let door = Door::open().await;
    let run = door.run().await;
    let send = async |method: Method, path: &str, body: &Value| {
        let request = door.request(method, &format!("/v1/runs/{run}{path}"), "operator");
        answer(request.header("idempotency-key", "k").json(body).send().await.unwrap()).await
    };
    for _ in 0..2 {
        let (status, told) = send(Method::POST, "/messages", &json!({"text": "first"})).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{told}");
    }
    let (status, problem) = send(Method::POST, "/messages", &json!({"text": "second"})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("idempotency_key_reused")), "{problem}");
    // What is done is of its own, and so are other fields of it: `null` is not nothing.
    for (body, status) in
        [(json!({"turns": 9}), 200), (json!({"turns": 9}), 200), (json!({"turns": 9, "wall": null}), 422)]
    {
        assert_eq!(send(Method::PATCH, "/budget", &body).await.0.as_u16(), status, "{body}");
    }
    let said = door.events(run).await.iter().filter(|event| event["type"] == "message.added").count();
    assert_eq!(said, 1);
    door.close().await;
}

#[tokio::test]
async fn a_run_links_to_its_trace_where_traces_can_be_looked_at() {
    let door = Door::open_with(|config| config.trace_url = "https://traces.example/t/{trace_id}?v=1".into()).await;
    let run = door.run().await;
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown["trace_url"], format!("https://traces.example/t/{}?v=1", run.trace_id()));
    door.close().await;
    let door = Door::open_with(|config| {
        config.trace_url = "https://traces.example/t/{trace_id}".into();
        config.trace_ratio = 0.0;
    })
    .await;
    let run = door.run().await;
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await.get("trace_url"), None, "its spans are nowhere");
    door.close().await;
}
