//! The protocol's own reference servers. Fetching them takes a while, so `infra/tests/test_mcp.py` does it and says where they
//! are; without that there is nothing to test here.

use kernel::{Block, Trust};
use serde_json::{Value, json};

use crate::desk;
use crate::house::House;

/// Calls a tool as a run would, once its server has been looked at.
async fn result(house: &House, name: &str, arguments: Value) -> (&'static str, Block) {
    let call = desk::request(&desk::found(house, name).await, arguments, Trust::Operator);
    let call_id = call.call_id;
    let run = house.run(vec![call]).await;
    let (end, code, block) = house.end_of(run, call_id).await;
    assert_eq!(block.trust, Trust::Untrusted, "{name}: {code} {}", block.text);
    (end, block)
}

#[tokio::test]
async fn the_reference_servers_work() {
    let Ok(given) = std::env::var("ESC_TEST_MCP_SERVERS") else { return };
    let given: Value = serde_json::from_str(&given).unwrap();
    let stdio = given["stdio"].as_object().unwrap();
    let names: Vec<_> = stdio.keys().map(String::as_str).chain(["remote"]).collect();
    let offered: Vec<_> = names.iter().map(|name| format!("{name}.*")).collect();
    let house = House::new(&offered.iter().map(String::as_str).collect::<Vec<_>>(), &[], "{}").await;
    let folder = house.path("agents/servers");
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str, transport: Value| {
        let file = json!({"name": name, "transport": transport, "timeouts": {"start": "60s"}});
        std::fs::write(folder.join(format!("{name}.yaml")), file.to_string()).unwrap();
    };
    for (name, server) in stdio {
        let mut server = server.clone();
        server["inherit"] = json!(["PATH", "HOME"]);
        file(name, json!({"stdio": server}));
    }
    file("remote", json!({"http": {"url": given["http"], "allow_private": true}}));
    let executor = house.executor();

    for name in ["everything", "remote"] {
        let (end, block) = result(&house, &format!("{name}.echo"), json!({"message": "hello"})).await;
        assert_eq!((end, block.text.contains("hello")), ("tool.completed", true), "{}", block.text);
        let (end, block) = result(&house, &format!("{name}.get-sum"), json!({"a": 2, "b": 40})).await;
        assert_eq!((end, block.text.contains("42")), ("tool.completed", true), "{}", block.text);
        let (end, block) = result(&house, &format!("{name}.list_resources"), json!({})).await;
        assert_eq!((end, block.text.is_empty()), ("tool.completed", false));
        let (end, block) = result(&house, &format!("{name}.get-tiny-image"), json!({})).await;
        assert_eq!((end, block.text.contains("image/png")), ("tool.completed", true), "{}", block.text);
        let run = json!({"duration": 1, "steps": 2});
        assert_eq!(result(&house, &format!("{name}.trigger-long-running-operation"), run).await.0, "tool.completed");
    }
    let path = format!("{}/hello.txt", given["folder"].as_str().unwrap());
    let (end, block) = result(&house, "filesystem.read_text_file", json!({"path": path})).await;
    assert_eq!((end, block.text.contains("hello from a file")), ("tool.completed", true), "{}", block.text);
    let (end, block) = result(&house, "filesystem.read_text_file", json!({"path": "/etc/passwd"})).await;
    assert_eq!(end, "tool.failed", "{}", block.text);
    let entity = json!({"entities": [{"name": "Ann", "entityType": "person", "observations": ["keeps bees"]}]});
    assert_eq!(result(&house, "graph.create_entities", entity).await.0, "tool.completed");
    let (_, block) = result(&house, "graph.search_nodes", json!({"query": "bees"})).await;
    assert!(block.text.contains("Ann"), "{}", block.text);
    let (end, block) = result(&house, "git.git_status", json!({"repo_path": given["folder"]})).await;
    assert_eq!((end, block.text.contains("hello.txt")), ("tool.completed", true), "{}", block.text);
    let time = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kathmandu"});
    let (end, block) = result(&house, "time.convert_time", time).await;
    assert_eq!((end, block.text.contains("17:45")), ("tool.completed", true), "{}", block.text);
    house.close(vec![executor]).await;
}
