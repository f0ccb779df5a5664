//! Attempts that fail: tried again, put off, left alone, undone.

use std::time::Duration;

use kernel::Trust;
use kernel::event::EventData;
use serde_json::json;

use crate::house::House;
use crate::server::{Plan, Server};

/// A tool that may be tried this often.
fn patient(server: &Server, retry: &str) -> String {
    server.effect_tool("x.do", "60s", true) + &format!("retry: {retry}\n")
}

#[tokio::test]
async fn an_effect_that_was_refused_for_now_is_put_off_and_done_once() {
    let server = Server::start().await;
    let tool = patient(&server, "{ attempts: 4, first: 10ms, most: 5s }");
    let house = House::new(&[], &[("x.do", tool)], "{}").await;
    let first = house.executor();
    server.plan(&[Plan::Busy, Plan::Busy]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    // Put off: nobody holds it, and nobody need live for it.
    house.event(run, |events| events.iter().any(|event| event.type_name() == "timer.set").then_some(())).await;
    first.stop().await.unwrap();
    let second = house.executor();
    let end = house.while_time_is_kept(run, house.end_of(run, call_id)).await;
    assert_eq!(end.0, "tool.completed");
    assert_eq!(house.attempts(run).await, ["retry http_status", "retry http_status"]);
    assert_eq!((house.count(run, "tool.started").await, house.count(run, "tool.due").await), (3, 2));
    assert_eq!((server.asked().len(), server.done().len()), (3, 1));
    house.close(vec![second]).await;
}

#[tokio::test]
async fn what_asks_for_more_patience_than_the_tool_has_is_told() {
    let server = Server::start().await;
    let tool = patient(&server, "{ attempts: 4, first: 10ms, most: 500ms }");
    let house = House::new(&[], &[("x.do", tool)], "{}").await;
    let executor = house.executor();
    // It asks for a second.
    server.plan(&[Plan::Busy]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let (end, code, _) = house.end_of(run, call_id).await;
    assert_eq!((end, code.as_str(), server.asked().len()), ("tool.failed", "http_status", 1));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_read_is_tried_again_at_once_and_every_attempt_is_in_the_log() {
    let server = Server::start().await;
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let house = House::new(&["http.get"], &[], &allow).await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("http.get", json!({"url": server.url("/flaky/log")}), Trust::Operator).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(house.attempts(run).await, ["retry http_status", "retry http_status"]);
    let events = house.events(run).await;
    let attempt = events.iter().find_map(|event| match event {
        EventData::ToolProgressed(progressed) => progressed.attempt.clone(),
        _ => None,
    });
    let attempt = attempt.unwrap();
    assert_eq!((attempt.number, attempt.target), (1, Some(server.addr.to_string())));
    assert!(attempt.said.contains("HTTP 503"), "{}", attempt.said);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_target_that_fails_is_left_alone_by_all_executors() {
    let server = Server::start().await;
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let look = format!(
        "name: x.look\ndescription: Looks.\neffect: read\nidempotent: true\nretry: {{ attempts: 1 }}\n\
         input: {{ type: object, properties: {{ n: {{ type: integer }} }} }}\n\
         run: {{ http: {{ method: GET, url: \"{}\", allow_private: true }} }}\n",
        server.url("/flaky/dead")
    );
    let house = House::new(&[], &[("x.look", look)], &allow).await;
    let config = || tool_executor::Config { breaker_failures: 2, breaker_first_ms: 60_000, ..house.config() };
    let executors = vec![house.executor_with(config()), house.executor_with(config())];
    let once = async |n: u64| {
        let (run, call_id) = house.run_one("x.look", json!({ "n": n }), Trust::Operator).await;
        house.end_of(run, call_id).await
    };
    for n in 0..2 {
        assert_eq!(once(n).await.1, "http_status");
    }
    let (end, code, block) = once(2).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "circuit_open"), "{}", block.text);
    assert_eq!(server.seen("/flaky/dead").len(), 2, "the third was not even tried");
    house.close(executors).await;
}

#[tokio::test]
async fn what_is_above_the_limit_waits_in_line() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let rates = vec!["tenant:*=100/1s".to_owned(), "tool:x.do=1/1h".to_owned()];
    let executor = house.executor_with(tool_executor::Config { rate_limits: rates, ..house.config() });
    let calls: Vec<_> = (0..2).map(|n| house.call("x.do", json!({ "number": n }), Trust::Operator)).collect();
    let run = house.run(calls).await;
    let until = house
        .event(run, |events| {
            let done = events.iter().any(|event| event.type_name() == "tool.completed");
            let later = events.iter().find_map(|event| match event {
                EventData::ToolProgressed(progressed) => Some((progressed.reason.clone(), progressed.put_off)),
                _ => None,
            });
            later.filter(|_| done)
        })
        .await;
    assert_eq!(until.0.as_deref(), Some("rate_limited"));
    let left = Duration::try_from(until.1.unwrap().duration_since(jiff::Timestamp::now())).unwrap();
    assert!(left > Duration::from_secs(3000), "{left:?}");
    assert_eq!((server.done().len(), house.attempts(run).await.len()), (1, 0), "waiting in line is no attempt");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_limit_that_is_none_is_refused_at_the_start() {
    let house = House::new(&["test.echo"], &[], "{}").await;
    let config = tool_executor::Config { rate_limits: vec!["tool:x".to_owned()], ..house.config() };
    let executor = house.executor_with(config);
    executor.finished().await;
    let error = executor.stop().await.unwrap_err();
    assert!(error.to_string().contains("rate_limits"), "{error}");
    house.close(Vec::new()).await;
}

/// How such an effect is undone: by a request that takes something from its answer. `labels` are what its output schema says
/// of that.
fn undone_at(url: &str, labels: &str) -> String {
    format!(
        "output: {{ type: object, properties: {{ id: {{ type: string{labels} }} }} }}\n\
         compensate: {{ http: {{ method: POST, url: \"{url}\", body: {{ undo: \"{{number}}\", was: \"{{result.id}}\" }}, allow_private: true }} }}\n"
    )
}

/// The calls whose effects are undone, in the order in which that was asked for.
fn undone(events: &[EventData]) -> Vec<kernel::CallId> {
    let undone = events.iter().filter_map(|event| match event {
        EventData::ToolRequested(requested) => match requested.call.compensation {
            kernel::call::Compensation::Of(of) => Some(of),
            _ => None,
        },
        _ => None,
    });
    undone.collect()
}

/// A run that has done two things, and is cancelled. Their calls, as they were done.
async fn done_and_cancelled(house: &House) -> (kernel::RunId, Vec<kernel::CallId>) {
    let one = house.call("x.do", json!({"number": 1}), Trust::Operator);
    let two = house.call("x.late", json!({"number": 2}), Trust::Operator);
    let run = house.run(vec![one, two]).await;
    let done = house
        .event(run, |events| {
            let done = events.iter().filter_map(|event| match event {
                EventData::ToolCompleted(done) => Some(done.call_id),
                _ => None,
            });
            Some(done.collect::<Vec<_>>()).filter(|done| done.len() == 2)
        })
        .await;
    house.cancel(run).await;
    (run, done)
}

async fn is_cancelled(house: &House, run: kernel::RunId) {
    house.event(run, |events| events.iter().any(|event| event.type_name() == "run.cancelled").then_some(())).await;
}

#[tokio::test]
async fn a_cancelled_run_undoes_what_it_did_newest_first() {
    let server = Server::start().await;
    let undo = undone_at(&server.url("/undo"), ", x-trust: system");
    let tools = [
        ("x.do", server.effect_tool("x.do", "60s", false) + &undo),
        ("x.late", server.effect_tool("x.late", "60s", false) + &undo),
    ];
    let house = House::new(&[], &tools, "{}").await;
    let executor = house.executor();
    let (run, done) = done_and_cancelled(&house).await;
    is_cancelled(&house, run).await;
    assert_eq!(undone(&house.events(run).await), [done[1], done[0]], "newest first");
    assert_eq!(house.count(run, "tool.started").await, 4, "each a call of its own");
    assert_eq!(house.count(run, "approval.requested").await, 0, "what may be done may be undone");
    assert_eq!(server.seen("/undo").len(), 2);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_undoes_an_effect_with_words_of_a_stranger_is_asked_about() {
    let server = Server::start().await;
    let undo = undone_at(&server.url("/undo"), "");
    let tools = [("x.do", server.effect_tool("x.do", "60s", false) + &undo)];
    let house = House::new(&[], &tools, "{}").await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    house.cancel(run).await;
    let asked = house.question(run, 1).await;
    assert!(asked.question.text.contains("`/result/id`: untrusted"), "{}", asked.question.text);
    assert!(!asked.question.text.contains("`/number`"), "that was let do: {}", asked.question.text);
    assert!(server.seen("/undo").is_empty());
    house.decide(run, asked.approval_id, None).await;
    is_cancelled(&house, run).await;
    assert_eq!(server.seen("/undo").len(), 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn an_executor_that_dies_while_it_undoes_leaves_the_rest_to_another() {
    let server = Server::start().await;
    let undo = undone_at(&server.url("/effect"), ", x-trust: system");
    let tools = [
        ("x.do", server.effect_tool("x.do", "60s", false) + &undo),
        ("x.late", server.effect_tool("x.late", "60s", false) + &undo),
    ];
    let house = House::new(&[], &tools, "{}").await;
    let first = house.executor();
    let one = house.call("x.do", json!({"number": 1}), Trust::Operator);
    let two = house.call("x.late", json!({"number": 2}), Trust::Operator);
    let (ids, run) = ([one.call_id, two.call_id], house.run(vec![one, two]).await);
    for id in ids {
        assert_eq!(house.end_of(run, id).await.0, "tool.completed");
    }
    server.plan(&[Plan::HappenAndHang]);
    house.cancel(run).await;
    house.event(run, |_| (server.asked().len() == 3).then_some(())).await;
    drop(first);
    let second = house.executor();
    house.while_ringing(run, is_cancelled(&house, run)).await;
    assert_eq!(undone(&house.events(run).await), [ids[1], ids[0]]);
    // Nobody knows of the one, so it is not done twice; the other is done.
    assert_eq!((house.count(run, "tool.reconciled").await, server.asked().len()), (1, 4));
    house.close(vec![second]).await;
}
