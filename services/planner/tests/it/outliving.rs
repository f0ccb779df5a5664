//! What outlives a turn: memories from run to run, skills as they were when they were opened, failures that are written down.

use kernel::{
    Command, Event, EventData, Status, Trust,
    command::AddMessage,
    event::{MemoryWritten, TurnCompleted},
    memory::MemoryScope,
};
use service::Running;

use crate::{
    sim::{operator, outside},
    turns::World,
};

const AGENT: &str = "name: demo\nmodel: scripted:demo\ninstructions: Play.\n";

fn completed(events: &[Event]) -> Vec<&TurnCompleted> {
    let turn = |event| match event {
        &Event { data: EventData::TurnCompleted(ref turn), .. } => Some(turn),
        _ => None,
    };
    events.iter().filter_map(turn).collect()
}

fn written(events: &[Event]) -> Vec<&MemoryWritten> {
    let memory = |event| match event {
        &Event { data: EventData::MemoryWritten(ref memory), .. } => Some(memory),
        _ => None,
    };
    events.iter().filter_map(memory).collect()
}

/// The section of this name of a turn's manifest.
fn section<'a>(turn: &'a TurnCompleted, name: &str) -> Option<&'a kernel::slice::Section> {
    turn.manifest.sections.iter().find(|section| section.name == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_reaches_later_runs_and_stays_what_it_was() {
    let world = World::with(
        r#"
  - when: {sees: 'The deploy takes (?P<long>\w+ minutes)'}
    calls: [{tool: complete, arguments: {summary: "it takes {{long}}"}}]
  - when: {sees: "held back"}
    calls: [{tool: complete, arguments: {summary: "something is held back"}}]
  - calls:
      - {tool: remember, arguments: {key: deploy, text: "The deploy takes forty minutes."}}
      - {tool: complete, arguments: {summary: noted}}
"#,
    )
    .await;
    let planner = world.planner();
    let first = world.run_of(AGENT).await;
    world.until(first, |state| state.ended).await;
    let events = world.events(first).await;
    let kept = written(&events);
    assert_eq!((kept.len(), kept[0].place.scope, kept[0].place.owner.as_str()), (1, MemoryScope::Agent, "demo"));
    assert_eq!(kept[0].block.trust, Trust::Untrusted, "it saw an event from outside");

    // Another run that begins with data is told of it, with evidence, and knows no better of it.
    let second = world.run_of(AGENT).await;
    let state = world.until(second, |state| state.ended).await;
    assert!(state.ending.as_ref().unwrap().text.text.contains("forty minutes"), "{state:?}");
    let events = world.events(second).await;
    let turn = completed(&events)[0];
    let told = section(turn, "memories").unwrap();
    assert_eq!(told.sources, [format!("memory:{}/1", kept[0].memory_id)]);
    assert_eq!((told.trust, turn.trust), (Trust::Untrusted, Trust::Untrusted));

    // A clean one is not made dirty by it.
    let clean = world.run_on(AGENT, operator("Look."), Default::default()).await;
    let state = world.until(clean, |state| state.ended).await;
    assert!(state.ending.as_ref().unwrap().text.text.contains("held back"), "{state:?}");
    assert!(completed(&world.events(clean).await)[0].trust > Trust::Untrusted);

    // Unless its agent's file says so; and then all that it does is as little believed.
    let brave = format!("{AGENT}memory: {{recall: all}}\n");
    let brave = world.run_on(&brave, operator("Look."), Default::default()).await;
    let state = world.until(brave, |state| state.ended).await;
    assert!(state.ending.as_ref().unwrap().text.text.contains("forty minutes"), "{state:?}");
    assert_eq!(completed(&world.events(brave).await)[0].trust, Trust::Untrusted);
    assert_eq!(state.lowest_trust, Trust::Untrusted);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ends_is_asked_what_to_remember_of_it() {
    let world = World::with(
        r#"
  - when: {sees: '# The run ends'}
    calls:
      - {tool: remember, arguments: {key: lesson, text: "Look twice.", scope: user}}
      - {tool: complete, arguments: {summary: "not asked"}}
  - calls: [{tool: complete, arguments: {summary: done}}]
"#,
    )
    .await;
    let planner = world.planner();
    let agent = format!("{AGENT}memory: {{extract: true}}\n");
    let user = serde_json::json!({"user": "ann"}).as_object().unwrap().clone();
    let run = world.run_on(&agent, operator("Look."), user).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "done");
    let events = world.events(run).await;
    assert!(written(&events).is_empty(), "an answer with anything else in it is no use");

    let scenario = std::fs::read_to_string(world.folder.path().join("scenarios/demo.yaml")).unwrap();
    let without = scenario.replace("      - {tool: complete, arguments: {summary: \"not asked\"}}\n", "");
    assert_ne!(scenario, without);
    // Files are told apart by their time.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    std::fs::write(world.folder.path().join("scenarios/demo.yaml"), without).unwrap();
    let user = serde_json::json!({"user": "ann"}).as_object().unwrap().clone();
    let run = world.run_on(&agent, operator("Look."), user).await;
    world.until(run, |state| state.ended).await;
    let events = world.events(run).await;
    let kept = written(&events);
    assert_eq!((kept[0].place.owner.as_str(), kept[0].block.text.as_str()), ("ann", "Look twice."));
    let turn = completed(&events)[0];
    assert_eq!((turn.usage.model_calls, kept[0].turn_id), (2, turn.turn_id), "in the same commit, and paid for");
    world.close(vec![planner]).await;
}

fn with_skill(world: &World, text: &str) -> Running {
    let folder = world.folder.path().join("skills/steps");
    std::fs::create_dir_all(&folder).unwrap();
    let skill = format!("---\nname: steps\ndescription: How it is done here.\n---\nFirst {text}.\n");
    std::fs::write(folder.join("SKILL.md"), skill).unwrap();
    let skills = world.folder.path().join("skills");
    world.planner_with(|config| config.skills_dir = skills)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skill_is_read_when_it_is_needed_and_stays_as_it_was() {
    let world = World::with(
        r#"
  - when: {turn: 1, sees: '(?s)Skills that you opened.*First (?P<what>\w+)'}
    calls: [{tool: wait_for, arguments: {operator: true, why: "{{what}}"}}]
  - when: {turn: 2, sees: '(?s)Skills that you opened.*First (?P<what>\w+)'}
    calls: [{tool: complete, arguments: {summary: "{{what}}"}}]
  - when: {sees: 'steps: How it is done here'}
    text: I look it up first.
    calls: [{tool: use_skill, arguments: {name: steps}}]
"#,
    )
    .await;
    let planner = with_skill(&world, "measure");
    let run = world.run_of(&format!("{AGENT}skills: [steps, missing]\n")).await;
    let state = world.until(run, |state| state.wait.is_some()).await;
    let pinned = state.skills.get("steps").unwrap().clone();
    let events = world.events(run).await;
    let turns = completed(&events);
    assert_eq!((turns.len(), turns[0].usage.model_calls), (1, 2), "it read and acted in one turn");
    assert!(section(turns[0], "skill").unwrap().sources[0].starts_with("skill:steps/SKILL.md@"));
    assert!(
        section(turns[0], "skills").unwrap().cut.as_ref().unwrap().contains("missing"),
        "what is not there is said"
    );
    assert!(
        events
            .iter()
            .any(|event| matches!(&event.data, EventData::SkillOpened(opened) if opened.skill.digest == pinned))
    );
    assert_eq!(planner.stop().await.unwrap(), service::Drained::Clean);

    // It is another skill by now, and another planner: this run keeps to what it read.
    let planner = with_skill(&world, "cut");
    let go_on = Command::AddMessage(AddMessage { block: operator("Go on.") });
    world.ingress.submit(run, go_on, "go-on", Default::default()).await.unwrap();
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().text.text, "measure");
    assert_eq!(state.skills.get("steps"), Some(&pinned));
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_models_got_wrong_is_written_down_with_the_turn() {
    let world = World::with(
        r#"
  - {once: true, error: {status: 503}}
  - {once: true, calls: [{tool: nowhere, arguments: {}}]}
  - {once: true, calls: [{tool: complete, malformed: "{oops"}]}
  - calls: [{tool: complete, arguments: {summary: done}}]
"#,
    )
    .await;
    // Time enough to try again, however slow the machine is.
    let planner = world.planner_with(|config| config.model_retry_seconds = 60);
    let run = world.run_on(AGENT, outside("x"), Default::default()).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.status(), Status::Completed);
    let events = world.events(run).await;
    let turn = completed(&events)[0];
    let noted: Vec<_> = turn.failures.iter().map(|failure| (failure.kind.as_str(), failure.rule.as_str())).collect();
    assert_eq!(
        noted,
        [("overloaded", "retried"), ("unknown_tool", "asked_again"), ("malformed_arguments", "asked_again")]
    );
    assert_eq!(turn.failures[0].model, "scripted:demo");
    assert_eq!(turn.usage.model_calls, 3);
    world.close(vec![planner]).await;
}
