//! The tools of MCP servers, version by version.

use engine::McpTool;
use engine::testing::TestStack;
use kernel::Role;
use kernel::Trust;
use kernel::tool::{DryRun, Effect, McpPart, McpRun, ToolRun, ToolSpec};
use serde_json::json;

fn tool(server: &str, name: &str, version: usize) -> McpTool {
    let part = McpPart::Tool(name.to_owned());
    let run = ToolRun::Mcp(McpRun { server: server.to_owned(), part, words: Trust::Untrusted, open_world: false });
    let input = json!({"type": "object", "properties": {(format!("v{version}")): {}}});
    McpTool::new(ToolSpec::new(format!("{server}.{name}"), input, Effect::External, run)).unwrap()
}

#[tokio::test]
async fn versions_are_kept_as_they_were_and_no_server_fills_the_disk_with_them() {
    let stack = TestStack::new().await.unwrap();
    let catalogue = stack.engine(Role::ToolExecutor).await.unwrap().mcp();
    let first = tool("desk", "echo", 0);
    for version in 0..30 {
        let change = catalogue.record("desk", &[tool("desk", "echo", version), tool("desk", "same", 0)]).await.unwrap();
        assert!(change.changed.contains(&"desk.echo".to_owned()), "{change:?}");
    }
    assert_eq!(catalogue.version("desk.echo", &first.digest).await.unwrap(), None, "too old");
    let last = tool("desk", "echo", 28);
    assert_eq!(catalogue.version("desk.echo", &last.digest).await.unwrap(), Some(last));
    assert_eq!(catalogue.now("desk.echo").await.unwrap(), Some(tool("desk", "echo", 29)));
    // Ever new names: what is gone is kept for a while, and what holds, and what is another's, for good.
    catalogue.record("shop", &[tool("shop", "buy", 0)]).await.unwrap();
    for round in 0..4 {
        let many: Vec<_> = (0..900).map(|number| tool("desk", &format!("t{round}-{number}"), 0)).collect();
        catalogue.record("desk", &many).await.unwrap();
    }
    let mut kept = 0;
    for round in 0..4 {
        for number in (0..900).step_by(100) {
            kept += usize::from(catalogue.was_there(&format!("desk.t{round}-{number}")).await.unwrap());
        }
    }
    assert!((2 * 9..4 * 9).contains(&kept), "the oldest are gone, the newest are not: {kept}");
    assert_eq!(catalogue.count("desk").await.unwrap(), 900);
    assert!(catalogue.retire(&["shop"]).await.unwrap().len() == 900, "what is not declared any more");
    assert_eq!((catalogue.count("desk").await.unwrap(), catalogue.count("shop").await.unwrap()), (0, 1));
    assert!(catalogue.was_there("desk.t3-0").await.unwrap());
    stack.close().await.unwrap();
}

#[tokio::test]
async fn a_dry_run_that_was_kept_unlooked_at_is_none_when_it_is_read() {
    let stack = TestStack::new().await.unwrap();
    let catalogue = stack.engine(Role::ToolExecutor).await.unwrap().mcp();
    let tool = |name: &str, effect: Effect, set: serde_json::Value| {
        let mut spec = (*tool("desk", name, 1).spec).clone();
        spec.effect = effect;
        spec.dry_run = Some(DryRun::Arguments(set.as_object().cloned().unwrap()));
        McpTool::new(spec).unwrap()
    };
    let sound = tool("sound", Effect::External, json!({"v1": true}));
    // As versions before this one kept them.
    let unsound = [
        tool("unknown", Effect::External, json!({"v1": true, "dry": true})),
        tool("nothing", Effect::External, json!({})),
        tool("read", Effect::Read, json!({"v1": true})),
    ];
    let before = kernel::Timestamp::now();
    let all: Vec<_> = unsound.iter().chain([&sound]).cloned().collect();
    catalogue.record("desk", &all).await.unwrap();
    assert_eq!(catalogue.now("desk.sound").await.unwrap(), Some(sound));
    assert_eq!(catalogue.as_of(&[], &["desk"], before).await.unwrap().len(), 4);
    for McpTool { spec, digest } in unsound {
        let without = ToolSpec { dry_run: None, ..(*spec).clone() };
        // By its digest it is still the version that a run was offered.
        let read = Some(McpTool { spec: without.into(), digest: digest.clone() });
        assert_eq!(catalogue.now(&spec.name).await.unwrap(), read);
        assert_eq!(catalogue.version(&spec.name, &digest).await.unwrap(), read);
        assert_eq!(catalogue.as_of(&[&spec.name], &[], before).await.unwrap().pop(), read);
    }
    stack.close().await.unwrap();
}
