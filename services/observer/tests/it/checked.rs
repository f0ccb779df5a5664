//! What the operator's own checks keep from the model of the end of an activity, and what holds while nobody can ask them.

use kernel::RunId;
use serde_json::{Value, json};

use crate::common::{Activity, World};
use crate::desk::Desk;

/// The tool-executor's side of the question: it says no to whatever has this word in it.
async fn gate(world: &World, word: &'static str) -> Desk {
    let answer = move |question: &Value| {
        let withheld = question.to_string().contains(word).then_some("the check `censor` says no: it is a secret");
        json!({ "withheld": withheld })
    };
    Desk::open(world, ("tool-executor", "check"), answer).await
}

/// Rules that tell of a failure at once, and a check of results.
fn checked(default: &str) -> String {
    format!(
        "  - tool: shell.run\n    failure: ['^panic']\n    settle: 0s\n\
         checks: [{{name: censor, at: after_tool, responder: desk, timeout: 30s, default: {default}}}]\n"
    )
}

/// All that the log has of a run, as text.
async fn log_of(world: &World, run: RunId) -> String {
    world.events(run).await.iter().map(|event| event.data.get().to_owned()).collect()
}

async fn fails(build: &mut Activity, words: &str) {
    build.say(&format!("working\npanic: {words}\n")).await;
    build.exit(1).await;
}

#[tokio::test]
async fn what_a_check_keeps_back_is_nowhere_in_the_log_and_the_run_goes_on() {
    let world = World::new().await;
    let gate = gate(&world, "4711").await;
    let observer = world.observer();
    let mut build = world.activity(&checked("deny")).await;
    build.say("working\npanic: the salary is 4711\n").await;
    world.until("a note", async || !world.observations(build.run).await.is_empty()).await;
    build.exit(1).await;
    let types = world.concluded(&build).await;
    assert!(types.contains(&"tool.failed".to_owned()), "how it ended is no secret: {types:?}");
    let observations = world.observations(build.run).await;
    let last = observations.last().unwrap();
    assert!(last.changed.contains("withheld") && last.changed.contains("`censor`"), "{last:#?}");
    assert!(last.decision.is_some(), "it still asks for a decision");
    let log = log_of(&world, build.run).await;
    assert!(!log.contains("4711"), "neither while it ran nor at its end: {log}");
    let questions = gate.questions();
    assert!(questions.iter().all(|question| question["call_id"] == json!(build.call)));
    assert!(
        questions[0].to_string().contains("4711") && questions[0]["exit"]["code"] == json!(1),
        "{:#}",
        questions[0]
    );
    observer.stop().await.unwrap();
    gate.close().await;
    world.close().await;
}

#[tokio::test]
async fn what_a_check_lets_pass_is_told_as_ever() {
    let world = World::new().await;
    let gate = gate(&world, "4711").await;
    let observer = world.observer();
    let mut build = world.activity(&checked("deny")).await;
    fails(&mut build, "the cache is gone").await;
    world.concluded(&build).await;
    let last = world.observations(build.run).await.pop().unwrap();
    assert!(last.evidence.iter().any(|evidence| evidence.excerpt.contains("the cache is gone")), "{last:#?}");

    // Nobody is asked where no check wants to see results.
    let before = gate.questions().len();
    let mut build = world.activity("  - tool: shell.run\n    failure: ['^panic']\n").await;
    fails(&mut build, "4711").await;
    world.concluded(&build).await;
    assert_eq!(gate.questions().len(), before);
    observer.stop().await.unwrap();
    gate.close().await;
    world.close().await;
}

#[tokio::test]
async fn where_nobody_can_ask_the_checks_what_they_say_of_silence_holds() {
    let world = World::new().await;
    let observer = world.observer_with(|config| config.check_seconds = 0);
    for (default, is_told) in [("deny", false), ("allow", true)] {
        let mut build = world.activity(&checked(default)).await;
        fails(&mut build, "4711").await;
        world.concluded(&build).await;
        assert_eq!(log_of(&world, build.run).await.contains("4711"), is_told, "{default}");
    }
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn a_slow_check_holds_nobody_up_and_an_observer_may_die_meanwhile() {
    let world = World::new().await;
    let gate = gate(&world, "4711").await;
    gate.be_silent(true);
    let first = world.mortal_observer();
    let mut build = world.activity(&checked("deny")).await;
    fails(&mut build, "the salary is 4711").await;
    world.until("question", async || !gate.questions().is_empty()).await;
    let mut other = world.activity("  - tool: shell.run\n    failure: ['^panic']\n").await;
    fails(&mut other, "another").await;
    world.concluded(&other).await;
    let state = world.state(build.run).await;
    assert!(state.calls.contains_key(&build.call), "nothing is told before there is an answer");
    drop(first);
    gate.be_silent(false);

    let second = world.observer();
    world.concluded(&build).await;
    let log = log_of(&world, build.run).await;
    assert!(!log.contains("4711"), "{log}");
    let ends = world.observations(build.run).await.into_iter().filter(|told| told.phase == "failed").count();
    assert_eq!(ends, 1, "asked twice, told once");
    second.stop().await.unwrap();
    gate.close().await;
    world.close().await;
}
