//! A push wakes an agent; it mends a failing build, a person approves, it merges once; one trace shows it all.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    forge::Forge,
    harness::{House, until},
    receiver::{Receiver, Seen},
};

/// A W3C trace context that the pushing system sends along.
const OUTSIDE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_goes_through_every_room_and_leaves_one_trace() {
    let forge = Forge::start().await;
    let (receiver, otlp) = Receiver::start().await;
    let house = House::start(forge.address, otlp).await;
    // A failure is told of with the end of its call, however long that takes to follow.
    house.apply("ci-keeper", "settle: 2s", "settle: 60s").await;

    push(&house).await;
    let run = until("the push starts a run", || async {
        house.get("/v1/runs?agent=ci-keeper").await["items"][0]["run_id"].as_str().map(str::to_owned)
    })
    .await;
    let approval = until("a person is asked", || async {
        house.get("/v1/approvals?state=open").await["items"][0].as_object().cloned()
    })
    .await;
    assert_eq!(approval["tool"], "github.merge");
    assert_eq!(forge.merges(), 0, "nothing happens before the yes");
    let approval = approval["approval_id"].as_str().unwrap();
    let (decided, body) = house.decide(None, approval, &json!({ "decision": "approve" })).await;
    assert!(decided.is_success(), "{body}");
    let status = until("the run ends", || async {
        let status = house.get(&format!("/v1/runs/{run}")).await["status"].as_str().unwrap().to_owned();
        ["completed", "failed", "cancelled"].contains(&status.as_str()).then_some(status)
    })
    .await;

    let events = house.events(&run).await;
    assert_eq!(status, "completed", "{:#?}", events.last());
    assert_eq!(forge.merges(), 1);
    check_story(&events);
    house.end().await;
    let trace: Vec<u8> = run.parse::<kernel::RunId>().unwrap().0.as_bytes().to_vec();
    check_trace(&receiver.of(&trace), &run);
}

async fn push(house: &House) {
    let data = json!({
        "ref": "refs/heads/discounts",
        "after": "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
        "repository": { "full_name": "acme/shop" },
        "pull_request": { "number": 7 },
    });
    let event = bus::Outgoing::json(bus::subject::in_("default", "github", "github.push"), &data)
        .unwrap()
        .header("ce-specversion", "1.0")
        .header("ce-id", "push-1")
        .header("ce-source", "https://forge.test/acme/shop")
        .header("ce-type", "github.push")
        .header("ce-subject", "acme/shop")
        .traceparent(OUTSIDE);
    house.stack.bus().publisher().publish(event).await.unwrap();
}

fn check_story(events: &[Value]) {
    let count = |event_type: &str| events.iter().filter(|event| event["type"] == event_type).count();
    let waking = events.iter().filter(|event| event["data"]["observation"]["decision"].is_string()).count();
    assert_eq!(waking, 1, "two thousand lines and one failure are one wake");
    for (event_type, times) in
        [("tool.failed", 1), ("approval.granted", 1), ("timer.fired", 1), ("artifact.created", 1), ("run.completed", 1)]
    {
        assert_eq!(count(event_type), times, "{event_type}");
    }
    let evidence = events.iter().find(|event| event["data"]["observation"]["decision"].is_string()).unwrap();
    assert!(evidence.to_string().contains("1695 != 1696"), "{evidence:#}");
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
}

fn check_trace(spans: &[Seen], run: &str) {
    let services: BTreeSet<&str> = spans.iter().map(|span| span.service.as_str()).collect();
    let all = ["approval", "artifact", "ingress", "observer", "planner", "scheduler", "tool-executor"];
    assert_eq!(services, BTreeSet::from(all), "{spans:#?}");

    let root_id = run.parse::<kernel::RunId>().unwrap().root_span_id();
    let roots: Vec<_> = spans.iter().filter(|span| span.parent.is_empty()).collect();
    assert_eq!(roots.len(), 1, "{roots:#?}");
    assert_eq!((roots[0].name.as_str(), roots[0].span_id.as_slice()), ("invoke_agent ci-keeper", root_id.as_slice()));
    assert_eq!(roots[0].links, 1, "the push is linked");

    let ids: BTreeSet<&[u8]> = spans.iter().map(|span| span.span_id.as_slice()).collect();
    let lost: Vec<_> =
        spans.iter().filter(|span| !span.parent.is_empty() && !ids.contains(span.parent.as_slice())).collect();
    assert!(lost.is_empty(), "spans without their parents: {lost:#?}");
    for (name, attribute) in [
        ("chat ", "gen_ai.request.model"),
        ("execute_tool ", "gen_ai.tool.name"),
        ("invoke_agent ", "gen_ai.agent.name"),
    ] {
        let named: Vec<_> = spans.iter().filter(|span| span.name.starts_with(name)).collect();
        assert!(!named.is_empty(), "no span `{name}`");
        assert!(named.iter().all(|span| span.attributes.iter().any(|each| each == attribute)), "{named:#?}");
    }
    // A model call that failed has none.
    let reasons = "gen_ai.response.finish_reasons".to_owned();
    let mut answered = spans.iter().filter(|span| span.attributes.contains(&reasons)).peekable();
    assert!(answered.peek().is_some() && answered.all(|span| span.lists.contains(&reasons)), "{spans:#?}");
}
