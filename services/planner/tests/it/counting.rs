//! How much a model is shown, by its own tokenizer or by what its provider counted.

use std::sync::{Arc, Mutex};

use kernel::{EventData, RunId, Status, slice::Manifest};
use serde_json::{Value, json};

use crate::{
    costs::{Model, calls_counted, served},
    endings::{House, echo},
    turns::World,
};

/// What each turn saw, by the log.
async fn saw(world: &World, run: RunId) -> Vec<Manifest> {
    let events = world.events(run).await;
    let manifests = events.into_iter().filter_map(|event| match event.data {
        EventData::TurnCompleted(turn) => Some(turn.manifest),
        _ => None,
    });
    manifests.collect()
}

/// Works twice and is done then. It finds a token in every second byte of what it is sent.
fn worker() -> Model {
    Arc::new(|number, asked: Value| {
        Box::pin(async move {
            let bytes = asked["messages"].to_string().len() + asked["tools"].to_string().len();
            let (name, arguments) = match number {
                0 | 1 => ("test_echo", json!({"text": format!("look {number}")})),
                _ => ("complete", json!({"summary": "done"})),
            };
            calls_counted(name, &arguments, bytes as u64 / 2)
        })
    })
}

/// The manifests of a run of the model with this name.
async fn counted(model: &str) -> Vec<Manifest> {
    let world = World::with("  - text: unused\n").await;
    let (url, _) = served(worker()).await;
    let planner = world.planner();
    let yaml = format!("name: demo\nmodel: {model}\nbase_url: {url}\ninstructions: Play.\ntools: [test.echo]\n");
    let run = world.run_of(&yaml).await;
    let house = House::of(&world.stack, Arc::new(Mutex::new(vec![run])), echo).await;
    let state = world.until(run, |state| state.ended).await;
    assert_eq!(state.status(), Status::Completed, "{:?}", state.ending);
    let manifests = saw(&world, run).await;
    drop(house);
    world.close(vec![planner]).await;
    manifests
}

fn rules(manifest: &Manifest) -> u64 {
    manifest.sections.iter().find(|section| section.name == "rules").unwrap().tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_tokenizer_is_public_is_counted_with_it_from_the_first_turn_on() {
    let manifests = counted("mine:gpt-5-mini").await;
    assert_eq!(manifests.len(), 3);
    for manifest in &manifests {
        assert_eq!(manifest.counted_by.as_deref(), Some("o200k_base"));
        assert_eq!(rules(manifest), rules(&manifests[0]), "whatever the provider says");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_is_counted_by_length_and_by_what_its_provider_has_counted() {
    let manifests = counted("mine:m").await;
    assert!(manifests.iter().all(|manifest| manifest.counted_by.is_none()));
    let rules: Vec<_> = manifests.iter().map(rules).collect();
    // A token in four bytes before anything is known, in two from then on, but for what stands around it in JSON.
    assert!(rules[1] * 10 > rules[0] * 19 && rules[1] * 10 < rules[0] * 26, "{rules:?}");
    assert!(rules[2].abs_diff(rules[1]) * 50 < rules[1], "{rules:?}");
}
