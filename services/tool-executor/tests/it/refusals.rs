//! Calls that never come to be.

use kernel::{Role, Trust};
use serde_json::json;

use crate::house::House;

#[tokio::test]
async fn what_can_not_be_called_is_denied_with_its_reason() {
    let house = House::new(&["test.echo", "file.read", "shell.run"], &[], "{}").await;
    let executor = house.executor();
    let mut changed = house.call("test.echo", json!({}), Trust::Operator);
    changed.schema_digest = "0".repeat(64);
    let calls = vec![
        house.call("no.such", json!({}), Trust::Operator),
        // It exists, but the agent does not have it.
        house.call("file.write", json!({"path": "a", "content": "b"}), Trust::Operator),
        house.call("file.read", json!({"path": 7}), Trust::Operator),
        changed,
        house.call("test.echo", json!({"text": "hello"}), Trust::Operator),
    ];
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;

    let (end, code, block) = house.end_of(run, ids[0]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "unknown_tool"));
    assert!(block.text.contains("no.such") && block.trust == Trust::System);
    let (end, code, _) = house.end_of(run, ids[1]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "unknown_tool"));
    let (end, code, block) = house.end_of(run, ids[2]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "invalid_arguments"));
    assert!(block.text.contains("`/path`"), "{}", block.text);
    let (end, code, _) = house.end_of(run, ids[3]).await;
    assert_eq!((end, code.as_str()), ("tool.denied", "schema_changed"));
    let (end, _, block) = house.end_of(run, ids[4]).await;
    assert_eq!((end, block.text.as_str(), block.trust), ("tool.completed", r#"{"text":"hello"}"#, Trust::Untrusted));

    // All of them have ended, so the model is asked again.
    let state = house.engine(Role::Planner).await.load(run).await.unwrap().unwrap();
    assert!(state.calls.is_empty() && state.turn.is_some());
    house.close(vec![executor]).await;
}
