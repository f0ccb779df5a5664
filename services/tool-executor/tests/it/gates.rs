//! Checks of the operator's own: before a call begins, and before the model is told what came of it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bus::{BusError, subject};
use kernel::Trust;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::house::House;
use crate::server::Server;

/// An agent's file with these checks.
fn with(checks: &str) -> String {
    format!("{{}}\nchecks: [{checks}]")
}

/// Answers on NATS: no to whatever has this word in it. What it was asked is kept.
async fn desk(house: &House, word: &'static str, stop: &CancellationToken) -> Arc<Mutex<Vec<Value>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    let answer = move |question: Value| {
        let no = question["about"].to_string().contains(word);
        kept.lock().unwrap().push(question);
        async move { Ok(json!({"decision": if no { "deny" } else { "allow" }, "reason": "it is none of your business"})) }
    };
    house.stack.bus().serve_json(bus::ServeOptions::new("checks", "desk"), answer, stop.clone()).await.unwrap();
    house.stack.bus().flush().await.unwrap();
    asked
}

#[tokio::test]
async fn who_says_no_before_a_call_keeps_it_from_happening() {
    let allow = with("{name: gate, at: before_tool, responder: desk, timeout: 30s}");
    let house = House::new(&["test.echo", "file.write"], &[], &allow).await;
    let stop = CancellationToken::new();
    let asked = desk(&house, "forbidden", &stop).await;
    let executor = house.executor();
    let calls = vec![
        house.call("file.write", json!({"path": "forbidden.txt", "content": "x"}), Trust::Operator),
        house.call("test.echo", json!({"text": "fine"}), Trust::Operator),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    let (end, code, block) = house.end_of(run, ids[0]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "check"), "{}", block.text);
    assert!(block.text.contains("`gate`") && block.text.contains("none of your business"), "{}", block.text);
    assert_eq!(block.trust, Trust::System);
    assert!(!house.path("workspaces").join(run.to_string()).join("forbidden.txt").exists());
    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.completed");
    let asked = asked.lock().unwrap().clone();
    let about = |id: &kernel::CallId| {
        asked.iter().find(|question| question["about"]["call_id"] == json!(id)).expect("it was asked about").clone()
    };
    let question = about(&ids[0]);
    assert_eq!((&question["at"], &question["agent"]), (&json!("before_tool"), &json!("tester")));
    assert_eq!(question["run_id"], json!(run));
    assert_eq!(question["about"]["tool"], json!("file.write"));
    assert_eq!(question["about"]["arguments"]["path"], json!("forbidden.txt"));
    about(&ids[1]);
    stop.cancel();
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn who_says_no_after_a_call_keeps_the_model_from_its_result() {
    let allow = with("{name: censor, at: after_tool, responder: desk, timeout: 30s}");
    let house = House::new(&["test.echo"], &[], &allow).await;
    let stop = CancellationToken::new();
    let asked = desk(&house, "salary", &stop).await;
    let executor = house.executor();
    let calls = vec![
        house.call("test.echo", json!({"text": "her salary is 4711"}), Trust::Operator),
        house.call("test.echo", json!({"text": "fine"}), Trust::Operator),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    let (end, _, block) = house.end_of(run, ids[0]).await;
    assert_eq!(end, "tool.completed", "it has happened, and that is no secret");
    assert!(block.text.contains("withheld") && block.text.contains("`censor`"), "{}", block.text);
    let (end, _, block) = house.end_of(run, ids[1]).await;
    assert_eq!((end, block.text.as_str()), ("tool.completed", r#"{"text":"fine"}"#));
    let results = house.events(run).await.into_iter().filter(|event| event.type_name() == "tool.completed");
    let kept: String = results.map(|event| event.encode().unwrap()).collect();
    assert!(!kept.contains("4711"), "not in the log either: {kept}");
    assert_eq!(asked.lock().unwrap().len(), 2);
    assert!(asked.lock().unwrap().iter().all(|question| question["at"] == json!("after_tool")));
    stop.cancel();
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_a_failure_says_in_words_from_outside_is_kept_from_the_model_too() {
    let server = Server::start().await;
    let allow = format!(
        "{{ hosts: [\"{}\"] }}\nchecks: [{{name: censor, at: after_tool, responder: desk, timeout: 30s}}]",
        server.addr
    );
    let house = House::new(&["http.get"], &[], &allow).await;
    let stop = CancellationToken::new();
    let asked = desk(&house, "no such thing", &stop).await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("http.get", json!({ "url": server.url("/missing") }), Trust::Operator).await;
    let (end, code, block) = house.end_of(run, call_id).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "http_status"), "that it failed is no secret");
    assert!(block.text.contains("withheld") && !block.text.contains("no such thing"), "{}", block.text);
    let question = asked.lock().unwrap()[0].clone();
    assert_eq!((&question["at"], &question["about"]["value"]["code"]), (&json!("after_tool"), &json!("http_status")));
    stop.cancel();
    house.close(vec![executor]).await;
}

/// Asks as the observer does before it tells how an activity has ended. An executor that has just begun may not listen yet.
async fn may_tell(house: &House, question: &Value) -> Result<Value, u16> {
    loop {
        let subject = subject::svc("tool-executor", "check");
        let asked = house.stack.bus().request_json(&subject, question, Duration::from_secs(60)).await;
        match asked {
            Ok(checked) => return Ok(checked),
            Err(BusError::Refused { code, .. }) => return Err(code),
            Err(BusError::NoResponders { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn what_came_of_an_activity_is_asked_about_as_any_result() {
    let tool = "name: x.run\ndescription: Runs.\nkind: activity\neffect: write\ntimeout: 1m\n\
                input: { type: object, properties: { command: { type: string } }, required: [command] }\n\
                run: { builtin: shell.run }\n";
    let allow = "{ commands: [\"true\"] }\nchecks: [{name: censor, at: after_tool, responder: desk, timeout: 30s}]";
    let house = House::new(&["test.echo"], &[("x.run", tool.to_owned())], allow).await;
    let stop = CancellationToken::new();
    let asked = desk(&house, "salary", &stop).await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("x.run", json!({"command": "true"}), Trust::Operator).await;
    let (_, exit) = house.output(call_id).await;

    let question = |said: &str| {
        let evidence = json!({"excerpt": said, "offset": 0, "line": 1, "rule": "failure"});
        let observation =
            json!({"call_id": call_id, "phase": "failed", "changed": "It ended.", "evidence": [evidence]});
        json!({"tenant": "default", "run_id": run, "call_id": call_id, "observation": observation, "exit": exit})
    };
    let checked = may_tell(&house, &question("her salary is 4711")).await.unwrap();
    let withheld = checked["withheld"].as_str().unwrap();
    assert!(withheld.contains("`censor`") && withheld.contains("none of your business"), "{withheld}");
    let checked = may_tell(&house, &question("fine")).await.unwrap();
    assert_eq!(checked["withheld"], Value::Null);
    let seen = asked.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    let about = &seen[0]["about"];
    assert_eq!(
        (&seen[0]["at"], &about["tool"], &about["call_id"]),
        (&json!("after_tool"), &json!("x.run"), &json!(call_id))
    );
    assert_eq!((&about["result"]["trust"], &about["value"]["exit"]["code"]), (&json!("untrusted"), &json!(0)));
    assert!(about["result"]["text"].as_str().unwrap().contains("her salary is 4711"), "{about}");

    let mut elsewhere = question("fine");
    elsewhere["tenant"] = json!("other");
    assert_eq!(may_tell(&house, &elsewhere).await, Err(404));
    house.conclude(run, call_id, exit.clone()).await;
    assert_eq!(may_tell(&house, &question("fine")).await, Err(404), "it is not open any more");
    assert_eq!(asked.lock().unwrap().len(), 2, "nobody outside hears of what is no call of ours");
    stop.cancel();
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn nobody_who_answers_is_a_no_unless_the_file_says_otherwise() {
    for (default, end) in [("deny", "tool.denied"), ("allow", "tool.completed")] {
        let allow =
            with(&format!("{{name: gate, at: before_tool, responder: nobody, timeout: 300ms, default: {default}}}"));
        let house = House::new(&["test.echo"], &[], &allow).await;
        let executor = house.executor();
        let (run, call_id) = house.run_one("test.echo", json!({"text": "fine"}), Trust::Operator).await;
        let (ended, _, block) = house.end_of(run, call_id).await;
        assert_eq!(ended, end, "{}", block.text);
        house.close(vec![executor]).await;
    }
}
