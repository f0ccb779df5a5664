//! Limits and breakers that all executors share.

use kernel::event::EventData;
use kernel::{CallId, RunId, Trust};
use serde_json::json;
use tool_executor::Config;

use crate::house::House;
use crate::server::{Plan, Server};

/// A run of its own for a call, and whether that is put off by now or done.
async fn ask(house: &House, tool: &str, number: u64) -> (RunId, CallId) {
    let call = house.call(tool, json!({ "number": number }), Trust::Operator);
    let call_id = call.call_id;
    (house.run(vec![call]).await, call_id)
}

#[tokio::test]
async fn a_tenants_limit_holds_over_all_its_runs_tools_and_executors() {
    let server = Server::start().await;
    let tools =
        [("x.do", server.effect_tool("x.do", "60s", false)), ("y.do", server.effect_tool("y.do", "60s", false))];
    let house = House::new(&[], &tools, "{}").await;
    let config = || Config { rate_limits: vec!["tenant:default=3/1h".to_owned()], ..house.config() };
    let executors = vec![house.executor_with(config()), house.executor_with(config())];
    let mut runs = Vec::new();
    for number in 0..6 {
        runs.push(ask(&house, if number % 2 == 0 { "x.do" } else { "y.do" }, number).await.0);
    }
    let (mut done, mut put_off) = (0, 0);
    for run in runs {
        let ended = house.event(run, |events| {
            events.iter().find_map(|event| match event {
                EventData::ToolCompleted(_) => Some(None),
                EventData::ToolProgressed(progressed) => Some(progressed.reason.clone()),
                _ => None,
            })
        });
        match ended.await {
            None => done += 1,
            Some(reason) => {
                assert_eq!(reason, "rate_limited");
                put_off += 1;
            }
        }
    }
    assert_eq!((done, put_off, server.done().len()), (3, 3, 3));
    house.close(executors).await;
}

#[tokio::test]
async fn one_call_finds_out_whether_a_target_is_well_again() {
    let server = Server::start().await;
    let tool = server.effect_tool("x.do", "60s", false) + "retry: { attempts: 1 }\n";
    let house = House::new(&[], &[("x.do", tool)], "{}").await;
    let config = || Config { breaker_failures: 2, breaker_first_ms: 500, ..house.config() };
    let executors = vec![house.executor_with(config()), house.executor_with(config())];
    let once = async |number| {
        let (run, call) = ask(&house, "x.do", number).await;
        house.end_of(run, call).await.1
    };
    // Twice is too often. The next one waits, is let through, and finds that nothing is better; the one after finds that it is.
    server.plan(&[Plan::Unavailable, Plan::Unavailable, Plan::Unavailable]);
    assert_eq!((once(0).await, once(1).await), ("http_status".to_owned(), "http_status".to_owned()));
    assert_eq!((once(2).await, once(3).await), ("http_status".to_owned(), String::new()));
    assert_eq!(server.asked().len(), 4);
    // Closed: nobody waits any more.
    assert_eq!((once(4).await, once(5).await), (String::new(), String::new()));
    house.close(executors).await;
}

#[tokio::test]
async fn a_limit_that_makes_no_sense_is_a_fault_of_the_configuration() {
    let house = House::new(&[], &[], "{}").await;
    let executor = house.executor_with(Config { rate_limits: vec!["many".to_owned()], ..house.config() });
    executor.finished().await;
    let error = executor.stop().await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("rate_limits"), "{error}");
    house.close(Vec::new()).await;
}
