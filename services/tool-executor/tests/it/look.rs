//! Looks at the world for the observer: what it may see, and what it may not do.

use std::time::Duration;

use bus::{BusError, subject};
use serde_json::{Value, json};

use crate::house::House;
use crate::server::Server;

/// Asks as the observer does. An executor that has just begun may not listen yet.
pub async fn look(house: &House, question: &Value) -> Result<Value, (u16, String)> {
    let subject = subject::svc("tool-executor", "verify");
    loop {
        let asked: Result<Value, BusError> =
            house.stack.bus().request_json(&subject, question, Duration::from_secs(20)).await;
        match asked {
            Ok(seen) => return Ok(seen),
            Err(BusError::Refused { code, message, .. }) => return Err((code, message)),
            Err(BusError::NoResponders { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn only_what_reads_and_needs_nobodys_yes_is_done() {
    let server = Server::start().await;
    server.answer("/orders/7", 200, json!({"state": "shipped"}).to_string());
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let house = House::new(&["http.get", "http.request", "file.read"], &[], &allow).await;
    let executor = house.executor();
    let question = |tool: &str, arguments: Value| json!({"tenant": "default", "agent": "tester", "tool": tool, "arguments": arguments, "purpose": "action 7"});

    let seen = look(&house, &question("http.get", json!({"url": server.url("/orders/7")}))).await.unwrap();
    assert_eq!((&seen["value"]["state"], &seen["text"]), (&json!("shipped"), &json!("{\"state\":\"shipped\"}")));
    assert_eq!(server.seen("/orders/7")[0]["idempotency-key"], "action 7");

    for (question, code, words) in [
        (question("http.request", json!({"url": server.url("/orders/7")})), 403, "only read"),
        (question("file.read", json!({"path": "a"})), 403, "workspace"),
        (question("http.get", json!({"url": "http://elsewhere.example/"})), 403, "unasked"),
        (question("http.get", json!({"nonsense": 1})), 403, "invalid_arguments"),
        (question("shell.run", json!({"command": "ls"})), 403, "no tool"),
        (json!({"tenant": "default", "agent": "nobody", "tool": "http.get", "purpose": "x"}), 404, "no agent"),
        (question("http.get", json!({"url": server.url("/missing")})), 502, ""),
    ] {
        let (have, said) = look(&house, &question).await.unwrap_err();
        assert_eq!(have, code, "{question} {said}");
        assert!(said.contains(words), "{question} {said}");
    }
    assert_eq!(server.seen("/orders/7").len(), 1, "what is refused does not go out");
    house.close(vec![executor]).await;
}
