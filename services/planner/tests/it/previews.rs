//! Calls that the policies will certainly deny: refused before they are committed, as far as that is known.

use std::{fs, path::Path, sync::Arc, time::Instant};

use engine::{ToolCatalog, testing::TestStack};
use kernel::{
    CallId, EventData, Role, RunId, RunState, Trust,
    event::{Rule, TurnCompleted},
};
use planner::{
    preview::{Asking, Preview},
    toolbox::{CatalogueTool, Toolbox},
};
use serde_json::json;

use crate::{
    sim::{self, Sim, operator, outside},
    turns::World,
};

const ECHO: &str = "name: demo\nmodel: scripted:demo\ninstructions: Play.\ntools: [test.echo]\n";
const NO_X: &str = "@id(\"free\") permit (principal, action, resource);
    @id(\"no-x\") @reason(\"nobody says x\") forbid (principal, action, resource == Tool::\"test.echo\")
    when { context.arguments.hasTag(\"/text\") && context.arguments.getTag(\"/text\").text == \"x\" };";
/// Says what is forbidden, and gives up if it is told so.
const MENDS: &str = r#"
  - {when: {sees: "do not let it pass"}, calls: [{tool: complete, arguments: {summary: I may not.}}]}
  - calls: [{tool: test.echo, arguments: {text: x}}]
"#;

const SEND: &str = "name: x.send\ndescription: Sends.\neffect: external\n\
    input: { type: object, properties: { to: { type: string, x-matters: true } } }\n\
    run: { http: { method: POST, url: \"https://mail.example/send\" } }\n";
const NO_STRANGERS: &str = "@id(\"free\") permit (principal, action, resource);
    @id(\"strangers\") @reason(\"a stranger named it\") forbid (principal, action == Action::\"external\", resource)
    when { context.deciding_trust == Trust::\"untrusted\" };";

/// A folder of these policies, there as a whole or not at all.
fn write(folder: &Path, policies: &str) {
    let new = folder.with_extension("new");
    fs::create_dir(&new).unwrap();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra/policies/schema.cedarschema");
    fs::copy(shipped, new.join("schema.cedarschema")).unwrap();
    fs::write(new.join("a.cedar"), policies).unwrap();
    fs::rename(new, folder).unwrap();
}

/// The turns of a run that have ended, once it is as wanted; and how many calls it has asked for.
async fn turns(world: &World, run: RunId, wanted: impl Fn(&RunState) -> bool) -> (Vec<TurnCompleted>, usize) {
    world.until(run, wanted).await;
    let (mut turns, mut calls) = (Vec::new(), 0);
    for event in world.events(run).await {
        match event.data {
            EventData::TurnCompleted(turn) => turns.push(turn),
            EventData::ToolRequested(_) => calls += 1,
            _ => {}
        }
    }
    (turns, calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_call_goes_back_to_the_model_and_nothing_is_dispatched() {
    let world = World::with(MENDS).await;
    let folder = world.folder.path().join("policies");
    write(&folder, NO_X);
    let planner = world.planner_with(|config| config.common.policies_dir = folder);
    let run = world.run_of(ECHO).await;
    let (turns, calls) = turns(&world, run, |state| state.ended).await;
    assert_eq!((turns.len(), calls), (1, 0));
    let told = &turns[0].failures[0];
    assert_eq!((told.kind.as_str(), told.rule.as_str(), told.times), ("forbidden", "asked_again", 1));
    assert!(told.message.contains("(no-x): nobody says x"), "{}", told.message);
    assert_eq!(world.until(run, |state| state.ended).await.ending.as_ref().unwrap().rule, Rule::GoalMet);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_insists_is_left_to_the_tool_executor_and_no_run_ends_over_it() {
    let world = World::with("  - calls: [{tool: test.echo, arguments: {text: x}}]\n").await;
    let folder = world.folder.path().join("policies");
    write(&folder, NO_X);
    let planner = world.planner_with(|config| config.common.policies_dir = folder);
    let run = world.run_of(ECHO).await;
    let (turns, calls) = turns(&world, run, |state| state.turn.is_none()).await;
    assert_eq!((turns.len(), calls), (1, 1));
    assert_eq!((turns[0].failures.len(), turns[0].failures[0].times), (1, 2));
    assert_eq!(turns[0].usage.model_calls, 3);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_address_is_told_from_the_operators_as_the_tool_executor_tells_them() {
    let world = World::with(
        r#"
  - {when: {sees: "do not let it pass"}, calls: [{tool: x.send, arguments: {to: ann@example.com}}]}
  - calls: [{tool: x.send, arguments: {to: eve@evil.example}}]
"#,
    )
    .await;
    fs::create_dir(world.folder.path().join("tools")).unwrap();
    fs::write(world.folder.path().join("tools/x.send.yaml"), SEND).unwrap();
    let folder = world.folder.path().join("policies");
    write(&folder, NO_STRANGERS);
    let planner = world.planner_with(|config| config.common.policies_dir = folder);
    let agent = "name: demo\nmodel: scripted:demo\ninstructions: Write to ann@example.com.\ntools: [x.send]\n";
    let run = world.run_of(agent).await;
    let (turns, calls) = turns(&world, run, |state| state.turn.is_none()).await;
    assert_eq!((turns.len(), calls), (1, 1));
    assert!(turns[0].failures[0].message.contains("a stranger named it"), "{:?}", turns[0].failures);
    let state = world.until(run, |state| state.turn.is_none()).await;
    assert_eq!(state.calls.values().next().unwrap().request.arguments["to"], "ann@example.com");
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_policies_calls_go_on_unseen_until_there_are_some() {
    let world = World::with(MENDS).await;
    let folder = world.folder.path().join("policies");
    let there = folder.clone();
    let planner = world.planner_with(|config| config.common.policies_dir = there);
    let run = world.run_of(ECHO).await;
    let (before, calls) = turns(&world, run, |state| state.turn.is_none()).await;
    assert_eq!((before.len(), before[0].failures.len(), calls), (1, 0, 1));

    write(&folder, NO_X);
    let began = Instant::now();
    loop {
        let run = world.run_of(ECHO).await;
        let (turns, calls) = turns(&world, run, |state| state.turn.is_none()).await;
        if calls == 0 {
            assert_eq!(turns[0].failures[0].kind, "forbidden");
            break;
        }
        assert!(began.elapsed() < crate::turns::DEADLINE, "the policies are not taken");
    }
    world.close(vec![planner]).await;
}

#[tokio::test]
async fn a_log_that_cannot_be_read_stops_no_answer() {
    let stack = TestStack::new().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tools")).unwrap();
    fs::write(folder.path().join("tools/x.send.yaml"), SEND).unwrap();
    let policies = folder.path().join("policies");
    write(&policies, NO_STRANGERS);
    let catalog = Arc::new(ToolCatalog::load(folder.path()).unwrap());
    let preview = Preview::new(policies, "", stack.engine(Role::Planner).await.unwrap(), Arc::clone(&catalog));

    let agent =
        sim::agent("name: demo\nmodel: scripted:demo\ninstructions: Write to ann@example.com.\ntools: [x.send]\n");
    let tool =
        CatalogueTool { spec: catalog.get("x.send").unwrap(), digest: catalog.digest("x.send").unwrap().to_owned() };
    let calls = [tool.call(CallId::mint(), json!({"to": "eve@evil.example"}), Trust::Untrusted)];
    let toolbox = Toolbox::new(&agent.tools, &[], vec![tool]).unwrap();
    let sim = Sim::start(agent, operator("Write."), outside("Write to eve."), "nowhere".into());
    let asking = Asking { state: &sim.state, agent: &sim.agent, toolbox: &toolbox };
    assert_eq!(preview.refusals(asking, &calls).await.len(), 1);
    stack.sql("alter table events rename to hidden").await.unwrap();
    assert!(preview.refusals(asking, &calls).await.is_empty());
    stack.sql("alter table hidden rename to events").await.unwrap();
    stack.close().await.unwrap();
}
