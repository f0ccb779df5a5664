//! Checks of the operator's own: before a call begins, and before the model is told what came of it.

use std::sync::{Arc, Mutex};

use kernel::Trust;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::house::House;

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
    let allow = with("{name: gate, at: before_tool, responder: desk}");
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
    let allow = with("{name: censor, at: after_tool, responder: desk}");
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
async fn nobody_who_answers_is_a_no_unless_the_file_says_otherwise() {
    for (default, end) in [("deny", "tool.denied"), ("allow", "tool.completed")] {
        let allow =
            with(&format!("{{name: gate, at: before_tool, responder: nobody, timeout: 300ms, default: {default}}}"));
        let house = House::new(&["test.echo"], &[], &allow).await;
        let executor = house.executor();
        let call = house.call("test.echo", json!({"text": "fine"}), Trust::Operator);
        let call_id = call.call_id;
        let run = house.run(vec![call]).await;
        let (ended, _, block) = house.end_of(run, call_id).await;
        assert_eq!(ended, end, "{}", block.text);
        house.close(vec![executor]).await;
    }
}
