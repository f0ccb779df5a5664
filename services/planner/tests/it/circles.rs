//! Going in circles without repeating a call: a plan that grows, and criteria that nobody does anything about.

use std::sync::{Arc, Mutex};

use kernel::{
    EventData, RunId,
    drift::{DriftKind, Remedy},
    event::Rule,
};
use serde_json::json;

use crate::{
    endings::{House, echo},
    turns::{Stored, World, artifact_service},
};

async fn noticed(world: &World, run: RunId) -> Vec<(DriftKind, Remedy)> {
    let events = world.events(run).await;
    let noticed = events.iter().filter_map(|event| match &event.data {
        EventData::DriftNoticed(noticed) => Some((noticed.kind, noticed.remedy)),
        _ => None,
    });
    noticed.collect()
}

/// A model that adds a step to its plan in each turn and gets none of them done.
fn planner_of_plans() -> String {
    let turn = |number: usize| {
        let steps: Vec<_> =
            (1..=number).map(|step| json!({"title": format!("step {step}"), "status": "pending"})).collect();
        let calls = json!([
            {"tool": "update_plan", "arguments": {"steps": steps, "reason": format!("thought {number}")}},
            {"tool": "test.echo", "arguments": {"text": format!("thought {number}")}},
        ]);
        format!("  - {{when: {{turn: {number}}}, calls: {calls}}}\n")
    };
    (1..=30).map(turn).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_only_grows_is_noticed_and_getting_things_done_ends_that() {
    let heeds = r#"
  - when: {sees: 'step 1 at last'}
    calls: [{tool: complete, arguments: {summary: done}}]
  - when: {sees: 'grew from 1 open steps to 5'}
    calls:
      - {tool: update_plan, arguments: {steps: [{title: step 1, status: done}, {title: step 2, status: dropped}]}}
      - {tool: test.echo, arguments: {text: step 1 at last}}
"#;
    let mut world = World::with(&planner_of_plans()).await;
    world.artifact_url = artifact_service(Stored::default()).await;
    let path = world.folder.path().join("scenarios/heeds.yaml");
    std::fs::write(path, format!("name: heeds\nsteps:{heeds}{}", planner_of_plans())).unwrap();
    let planner = world.planner();
    let yaml = |model: &str| {
        format!(
            "name: {model}\nmodel: scripted:{model}\ninstructions: Play.\ntools: [test.echo]\nbudget: {{turns: 40}}\n"
        )
    };
    let (heeds, stubborn) = (world.run_of(&yaml("heeds")).await, world.run_of(&yaml("demo")).await);
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![heeds, stubborn])), echo).await;
    let grows = |remedy| (DriftKind::GrowingScope, remedy);

    let state = world.until(heeds, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::GoalMet, "{:?}", state.ending);
    assert_eq!(noticed(&world, heeds).await, [grows(Remedy::Remind)], "once is enough for who heeds it");

    let state = world.until(stubborn, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::NoProgress, "{:?}", state.ending);
    let ladder = [Remedy::Remind, Remedy::Replan, Remedy::Block, Remedy::Reset, Remedy::Ask];
    assert_eq!(noticed(&world, stubborn).await, ladder.map(grows), "each step once, from cheap to dear");
    let reasons: Vec<_> = world
        .events(stubborn)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::PlanUpdated(plan) => plan.reason,
            _ => None,
        })
        .collect();
    assert_eq!(reasons[..2], ["thought 1", "thought 2"], "why it changed stands beside what changed");
    drop(house);
    world.close(vec![planner]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_it_is_done_again_with_nothing_done_is_told_so() {
    let works = r#"
  - when: {sees: 'complete. was refused'}
    once: true
    calls: [{tool: test.echo, arguments: {text: mend it}}]
"#;
    let again = "  - calls: [{tool: complete, arguments: {summary: done}}]\n";
    let world = World::with(again).await;
    let path = world.folder.path().join("scenarios/works.yaml");
    std::fs::write(path, format!("name: works\nsteps:{works}{again}")).unwrap();
    let planner = world.planner();
    let yaml = |model: &str, controls: &str| {
        format!(
            "name: {model}\nmodel: scripted:{model}\ninstructions: Play.\ntools: [test.echo]\ncontrols: {{{controls}}}\n\
             acceptance: [{{text: it works, check: {{tool: {{tool: test.echo, arguments: {{text: fail}}}}}}}}]\n"
        )
    };
    let idle = world.run_of(&yaml("demo", "")).await;
    let works = world.run_of(&yaml("works", "")).await;
    let unwatched = world.run_of(&yaml("demo", "drift: off")).await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![idle, works, unwatched])), echo).await;
    for run in [idle, works, unwatched] {
        let state = world.until(run, |state| state.ended).await;
        assert_eq!(state.ending.as_ref().unwrap().rule, Rule::NotAccepted, "{:?}", state.ending);
    }
    let forgets = (DriftKind::ForgottenCriteria, Remedy::Remind);
    assert_eq!(noticed(&world, idle).await, [forgets; 2], "the second and the third time");
    assert_eq!(noticed(&world, works).await, [forgets], "not when something was done in between");
    assert_eq!(noticed(&world, unwatched).await, []);
    drop(house);
    world.close(vec![planner]).await;
}
