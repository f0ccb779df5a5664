//! Effects of which nobody knows whether they happened.

use std::time::Duration;

use kernel::Trust;
use kernel::event::EventData;
use serde_json::json;
use tool_executor::Config;

use crate::house::House;
use crate::server::{Plan, Server};

async fn house(server: &Server, probe: bool) -> House {
    House::new(&[], &[("x.do", server.effect_tool("x.do", "5s", probe))], "{}").await
}

#[tokio::test]
async fn a_lost_answer_is_read_back() {
    let server = Server::start().await;
    let house = house(&server, true).await;
    let executor = house.executor();
    server.plan(&[Plan::HappenAndHang]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let (end, _, block) = house.end_of(run, call_id).await;
    assert_eq!(end, "tool.completed");
    assert!(block.text.contains("It has happened") && block.text.contains("\"count\":1"), "{}", block.text);
    assert_eq!((house.count(run, "tool.in_doubt").await, house.count(run, "tool.reconciled").await), (1, 1));
    assert_eq!(server.done().len(), 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_has_not_happened_is_done_again_with_the_same_key_and_not_before_it_is_certain() {
    let server = Server::start().await;
    let house = house(&server, true).await;
    let executor = house.executor();
    server.plan(&[Plan::Hang]);
    let call = house.call("x.do", json!({"number": 1}), Trust::Operator);
    let call_id = call.call_id;
    let began = std::time::Instant::now();
    let run = house.run(vec![call]).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    // Its time-out, and the margin on top of it.
    assert!(began.elapsed() > Duration::from_secs(9), "{:?}", began.elapsed());
    assert_eq!(server.asked(), [call_id.to_string(), call_id.to_string()]);
    assert_eq!(server.done().len(), 1);
    assert_eq!(house.count(run, "tool.started").await, 2);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn without_a_read_back_the_outcome_is_unknown_and_nothing_is_repeated() {
    let server = Server::start().await;
    let house = house(&server, false).await;
    let executor = house.executor();
    server.plan(&[Plan::Hang]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let (end, finding, _) = house.end_of(run, call_id).await;
    assert_eq!((end, finding.as_str()), ("tool.reconciled", "unknown"));
    assert_eq!(server.asked().len(), 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_is_recorded_too_late_to_begin_is_not_sent_and_looked_into() {
    let server = Server::start().await;
    let house = house(&server, true).await;
    let executor = house.executor_with(Config { begin_within: Duration::ZERO, ..house.config() });
    let (run, _) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let told = |events: &[EventData]| events.iter().any(|event| event.type_name() == "tool.in_doubt").then_some(());
    house.event(run, told).await;
    assert!(server.asked().is_empty());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn an_executor_that_dies_between_effect_and_record_leaves_it_to_another() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.do", server.effect_tool("x.do", "30s", true))], "{}").await;
    let first = house.executor();
    server.plan(&[Plan::HappenAndHang]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    house.started(run).await;
    while server.done().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(first);
    let second = house.executor();
    // Its message may come again while the lease is not let go of yet.
    let (end, ..) = house.while_ringing(run, house.end_of(run, call_id)).await;
    assert_eq!(end, "tool.completed");
    assert_eq!((server.asked().len(), house.count(run, "tool.reconciled").await), (1, 1));
    house.close(vec![second]).await;
}

#[tokio::test]
async fn an_answer_that_says_no_is_believed_unless_it_can_be_read_back() {
    let server = Server::start().await;
    let house = house(&server, false).await;
    let executor = house.executor();
    server.plan(&[Plan::Unavailable]);
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let (end, code, block) = house.end_of(run, call_id).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "http_status"));
    assert!(block.text.contains("may have been carried out"), "{}", block.text);
    assert_eq!(server.asked().len(), 1, "an effect is never tried twice blindly");
    house.close(vec![executor]).await;
}
