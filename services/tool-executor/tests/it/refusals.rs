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

#[tokio::test]
async fn a_tool_is_only_for_those_whom_its_file_names() {
    let tool = |name: &str, permissions: &str| {
        let yaml = format!(
            "name: {name}\ndescription: Echoes.\neffect: read\nidempotent: true\npermissions: {permissions}\n\
             input: {{ type: object, properties: {{}} }}\nrun: {{ builtin: test.echo }}\n"
        );
        (name.to_owned(), yaml)
    };
    let tools = [
        tool("x.operators", "{ roles: [operator, admin] }"),
        tool("x.others", "{ tenants: [other] }"),
        tool("x.robots", "{ agents: [robot] }"),
        tool("x.users", "{ roles: [user], tenants: [default], agents: [\"test*\"] }"),
    ];
    let declared: Vec<_> = tools.iter().map(|(name, yaml)| (name.as_str(), yaml.clone())).collect();
    let house = House::new(&[], &declared, "{}").await;
    let executor = house.executor();
    // By a user, as all runs of the house.
    let calls: Vec<_> = tools.iter().map(|(name, _)| house.call(name, json!({}), Trust::Operator)).collect();
    let ids: Vec<_> = calls.iter().map(|call| call.call_id).collect();
    let run = house.run(calls).await;
    for (id, whom) in ids.iter().zip(["their role", "this tenant", "the agent"]) {
        let (end, code, block) = house.end_of(run, *id).await;
        assert_eq!((end, code.as_str()), ("tool.denied", "not_permitted"), "{}", block.text);
        assert!(block.text.contains(whom), "{}", block.text);
        // Who may is nothing to whoever may not.
        assert!(["operator", "admin", "other", "robot"].iter().all(|name| !block.text.contains(&format!("`{name}`"))));
    }
    assert_eq!(house.end_of(run, ids[3]).await.0, "tool.completed");
    house.close(vec![executor]).await;
}
