//! Activities that go on elsewhere: jobs behind HTTP.

use kernel::Trust;
use kernel::event::EventData;
use serde_json::json;

use crate::house::House;
use crate::server::{Plan, Server};

fn config(house: &House) -> tool_executor::Config {
    tool_executor::Config { poll_shortest_ms: 50, poll_longest_seconds: 1, ..house.config() }
}

#[tokio::test]
async fn a_job_elsewhere_goes_on_by_itself_and_is_taken_up_by_another_executor() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.job", server.job_tool("x.job", false))], "{}").await;
    let first = house.executor_with(config(&house));
    let (run, call_id) = house.run_one("x.job", json!({"number": 1}), Trust::Operator).await;
    let handle = house
        .event(run, |events| {
            events.iter().find_map(|event| match event {
                EventData::ToolProgressed(progressed) => progressed.handle.clone(),
                _ => None,
            })
        })
        .await;
    assert_eq!(handle, json!({"id": 0}));
    drop(first);
    server.set_job(0, "running");
    let second = house.executor_with(config(&house));
    // If the first one died before it followed the job, nothing but the scheduler's bell tells of it.
    house.while_ringing(run, house.frame(call_id, "running: ")).await;
    server.set_job(0, "passed");
    let (output, exit) = house.output(call_id).await;
    let output = String::from_utf8(output).unwrap();
    assert!(output.contains("running: ") && output.contains("passed: "), "{output}");
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!((server.jobs().len(), house.count(run, "tool.started").await), (1, 1));
    house.conclude(run, call_id, exit).await;
    assert_eq!(house.count(run, "tool.completed").await, 1);
    house.close(vec![second]).await;
}

#[tokio::test]
async fn a_job_of_an_ending_run_is_ended_where_it_is() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.job", server.job_tool("x.job", false))], "{}").await;
    let executor = house.executor_with(config(&house));
    let (run, call_id) = house.run_one("x.job", json!({"number": 1}), Trust::Operator).await;
    house.frame(call_id, "queued: ").await;
    house.cancel(run).await;
    let (_, exit) = house.output(call_id).await;
    assert_eq!((exit.reason.as_str(), server.jobs()), ("cancelled", vec!["cancelled".to_owned()]));
    house.conclude(run, call_id, exit).await;
    assert_eq!(house.count(run, "run.cancelled").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_start_without_an_answer_is_found_by_its_key() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.job", server.job_tool("x.job", false))], "{}").await;
    let first = house.executor_with(config(&house));
    server.plan(&[Plan::HappenAndHang]);
    let (run, call_id) = house.run_one("x.job", json!({"number": 1}), Trust::Operator).await;
    while server.jobs().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // As a crash would: the job has begun, and nobody knows.
    drop(first);
    server.set_job(0, "passed");
    let second = house.executor_with(config(&house));
    // Its message may come again while the lease is not let go of yet.
    let (_, exit) = house.while_ringing(run, house.output(call_id)).await;
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!((server.jobs().len(), house.count(run, "tool.in_doubt").await), (1, 1));
    house.close(vec![second]).await;
}

#[tokio::test]
async fn an_event_about_a_job_has_it_asked_at_once_and_is_not_believed() {
    let server = Server::start().await;
    let tool =
        server.job_tool("x.job", false).replace("state: /state", "state: /state, callback: \"ci:jobs/{result.id}\"");
    let house = House::new(&[], &[("x.job", tool)], "{}").await;
    // Nobody would ask in time.
    let hours = tool_executor::Config { poll_shortest_ms: 7_200_000, poll_longest_seconds: 7200, ..house.config() };
    let executor = house.executor_with(hours);
    let (run, call_id) = house.run_one("x.job", json!({"number": 1}), Trust::Operator).await;
    house.frame(call_id, "queued: ").await;
    let tell = async |tenant: &str, resource: &str| {
        let body = json!({ "tenant": tenant, "resource": resource }).to_string();
        let subject = bus::subject::svc("tool-executor", "happened");
        house.stack.bus().publish_core(&subject, bus::Headers::new(), body).await.unwrap();
    };
    // It says that it is done, and is not; then it is, and others hear of it.
    tell("default", "ci:jobs/0").await;
    server.set_job(0, "running");
    tell("default", "ci:jobs/0").await;
    house.frame(call_id, "running: ").await;
    server.set_job(0, "passed");
    tell("other", "ci:jobs/0").await;
    tell("default", "ci:jobs/1").await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(house.frames(call_id).iter().all(|frame| !frame.payload.starts_with(b"passed: ")));
    tell("default", "ci:jobs/0").await;
    let (_, exit) = house.output(call_id).await;
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(house.count(run, "tool.started").await, 1);
    house.close(vec![executor]).await;
}
