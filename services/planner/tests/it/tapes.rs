//! What a model says is written down and played again: `record:` and `replay:` in whole runs.

use std::sync::{Arc, Mutex};

use kernel::{EventData, RunId, event::Rule};

use crate::{
    endings::{House, echo},
    turns::World,
};

/// Turns until history is summarised, and a few more.
const TURNS: u32 = 14;

fn scenario() -> String {
    format!(
        r#"
  - calls: [{{tool: write_summary, arguments: {{facts: ["summarised before turn {{{{turn}}}}"]}}}}]
    usage: {{input: 500, output: 50}}
  - when: {{turn: 2}}
    unless: could not be used
    calls: [{{tool: test.echo, malformed: '{{"text": '}}]
    usage: {{input: 70, output: 7}}
  - when: {{turn: {TURNS}}}
    text: "So says {{{{run_id}}}}."
    usage: {{input: 80, output: 8}}
  - calls: [{{tool: test.echo, arguments: {{text: "turn {{{{turn}}}} of {{{{run_id}}}}"}}}}]
    usage: {{input: 90, output: 9}}
"#
    )
}

/// What a run's turns came to, without what differs from run to run.
async fn story(world: &World, run: RunId) -> Vec<String> {
    let events = world.events(run).await;
    let told = events.iter().filter_map(|event| match &event.data {
        EventData::TurnCompleted(turn) => {
            Some(format!("{} {:?} {:?}", turn.number, turn.text.as_ref().map(|text| &text.text), turn.usage))
        }
        EventData::ToolRequested(requested) => Some(requested.call.arguments.to_string()),
        EventData::ContextCompacted(compacted) => {
            Some(format!("{} {:?}", compacted.strategy, compacted.summary.as_ref().map(|summary| &summary.body.text)))
        }
        _ => None,
    });
    told.map(|line| line.replace(&run.to_string(), "RUN")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_is_played_again_turn_by_turn() {
    let world = World::with(&scenario()).await;
    let recordings = world.folder.path().join("recordings");
    let planner = world.planner_with(|config| config.recordings.clone_from(&recordings));
    let yaml =
        |name: &str, model: &str| format!("name: {name}\nmodel: {model}\ninstructions: Play.\ntools: [test.echo]\n");
    let recorded = world.run_of(&yaml("first", "record:tape/scripted:demo")).await;
    let runs = Arc::new(Mutex::new(vec![recorded]));
    let house = House::of(&world.stack, Arc::clone(&runs), echo).await;
    let state = world.until(recorded, |state| state.ended).await;
    assert_eq!(state.ending.as_ref().unwrap().rule, Rule::FinalAnswer, "{:?}", state.ending);
    assert_eq!(state.ending.as_ref().unwrap().text.text, format!("So says {recorded}."));

    // The model itself is gone: only the tape can tell.
    std::fs::remove_file(world.folder.path().join("scenarios/demo.yaml")).unwrap();
    let replayed = world.run_of(&yaml("second", "replay:tape")).await;
    runs.lock().unwrap().push(replayed);
    let again = world.until(replayed, |state| state.ended).await;
    assert_eq!(again.ending.as_ref().unwrap().text.text, format!("So says {replayed}."), "it names its own run");
    let (first, second) = (story(&world, recorded).await, story(&world, replayed).await);
    assert!(first.iter().any(|line| line.starts_with("model ") && line.contains("summarised before")), "{first:#?}");
    assert_eq!(first, second);
    assert_eq!(state.spent.usage, again.spent.usage, "what it cost then");
    let tape = std::fs::read_to_string(recordings.join("tape.jsonl")).unwrap();
    assert!(!tape.contains("Play to the end."), "what was asked is not kept");

    // Where there is no tape the run ends and says which.
    for (model, words) in [("replay:other", "other"), ("replay:../tape", "no name of a recording")] {
        let run = world.run_of(&yaml("third", model)).await;
        let state = world.until(run, |state| state.ended).await;
        let ending = state.ending.as_ref().unwrap();
        assert_eq!(ending.rule, Rule::Unrecoverable);
        assert!(ending.text.text.contains(words), "{}", ending.text.text);
    }
    drop(house);
    world.close(vec![planner]).await;
}
