//! Second opinions: when one is asked for, what it changes, and what it cannot.

use kernel::{
    RunId,
    budget::Usage,
    event::{EventData, ObservationRecorded},
    opinion::{Opinion, SecondOpinion, Why},
};
use serde_json::Value;

use crate::common::{SHORT_LEASE, World};
use crate::desk::Desk;

const ADVISED: &str =
    "  - tool: shell.run\n    packs: [generic]\n    settle: 60s\nobserver: { model: scripted:small }\n";
const ALONE: &str = "  - tool: shell.run\n    packs: [generic]\n    settle: 60s\n";
/// A failure that the status hides.
const HIDDEN: &str = "working\npanic: the cache is gone\nnothing more\n";

/// The planner's side of the question: it always says the same.
async fn planner(world: &World, answer: Value) -> Desk {
    Desk::open(world, ("planner", "classify"), move |_| answer.clone()).await
}

fn opinion(anomaly: bool, decision_needed: bool, why: Why) -> Value {
    let usage = Usage { model_calls: 1, input_tokens: 200, output_tokens: 10, cost_microusd: 3, ..Usage::default() };
    let said = Some(Opinion { anomaly, decision_needed, why });
    let opinion = SecondOpinion { model: Some("scripted:small".into()), said, failed: None, usage };
    serde_json::to_value(opinion).unwrap()
}

async fn recorded(world: &World, run: RunId) -> Vec<ObservationRecorded> {
    let mut recorded = Vec::new();
    for event in world.events(run).await {
        if let EventData::ObservationRecorded(data) = event.decode().unwrap().data {
            recorded.push(data);
        }
    }
    recorded
}

#[tokio::test]
async fn an_opinion_wakes_where_the_rules_would_have_slept_and_is_paid_by_the_run() {
    let world = World::new().await;
    let desk = planner(&world, opinion(true, true, Why::Failed)).await;
    let observer = world.observer();
    let mut build = world.activity(ADVISED).await;
    let before = world.state(build.run).await.spent;
    build.say(HIDDEN).await;
    build.exit(0).await;

    let types = world.concluded(&build).await;
    assert!(types.contains(&"tool.completed".to_owned()), "the status stays what it is: {types:?}");
    let recorded = recorded(&world, build.run).await;
    assert_eq!(recorded.len(), 1);
    let observation = &recorded[0].observation;
    assert!(observation.anomaly && observation.decision.as_ref().unwrap().contains("its status hides that"));
    assert!(observation.evidence[0].excerpt.contains("panic: the cache is gone"));
    assert_eq!(recorded[0].asked.as_ref().unwrap().model.as_deref(), Some("scripted:small"));
    let spent = world.state(build.run).await.spent;
    assert_eq!(spent.usage.tokens(), before.usage.tokens() + 210);
    assert_eq!(spent.usage.cost_microusd, before.usage.cost_microusd + 3);
    assert_eq!(spent.turns, before.turns, "it was no turn");

    let questions = desk.questions();
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0]["call_id"], build.call.to_string());
    assert!(questions[0]["packet"].to_string().len() < 2048, "no more than the packet: {:#}", questions[0]);
    observer.stop().await.unwrap();
    desk.close().await;
    world.close().await;
}

#[tokio::test]
async fn nobody_is_asked_unless_an_agent_says_so_and_the_rules_are_unsure() {
    let world = World::new().await;
    let desk = planner(&world, opinion(true, true, Why::Failed)).await;
    let observer = world.observer();
    for (rules, body, code, decides) in [
        (ALONE, HIDDEN, 0, false),
        (ADVISED, HIDDEN, 1, true),
        (ADVISED, "all is well\n", 0, false),
        (ADVISED, "panic: the cache is gone\nBUILD SUCCESSFUL\n", 0, false),
    ] {
        let mut build = world.activity(rules).await;
        build.say(body).await;
        build.exit(code).await;
        world.concluded(&build).await;
        let recorded = recorded(&world, build.run).await;
        assert_eq!(recorded.len(), 1);
        assert_eq!((recorded[0].observation.decision.is_some(), &recorded[0].asked), (decides, &None), "{body}");
    }
    assert!(desk.questions().is_empty());
    observer.stop().await.unwrap();
    desk.close().await;
    world.close().await;
}

/// Concludes a call that the rules are unsure of, and gives what was recorded of it.
async fn unsure(world: &World) -> ObservationRecorded {
    let mut build = world.activity(ADVISED).await;
    build.say(HIDDEN).await;
    build.exit(0).await;
    world.concluded(&build).await;
    let mut recorded = recorded(world, build.run).await;
    assert_eq!(recorded.len(), 1);
    recorded.remove(0)
}

#[tokio::test]
async fn without_a_usable_answer_the_rules_word_stands() {
    let world = World::new().await;
    let observer = world.observer();
    let rules = |recorded: &ObservationRecorded| {
        let seen = &recorded.observation;
        assert_eq!((seen.phase.as_str(), seen.anomaly, &seen.decision), ("completed", false, &None), "{recorded:#?}");
        assert!(seen.evidence.is_empty() && !seen.changed.contains("model"), "{recorded:#?}");
        recorded.asked.as_ref().unwrap().failed.clone()
    };
    assert_eq!(rules(&unsure(&world).await).as_deref(), Some("unreachable"), "no planner is there");

    let desk = planner(&world, serde_json::json!({ "said": { "anomaly": "DROP ALL", "why": "because" } })).await;
    assert_eq!(rules(&unsure(&world).await).as_deref(), Some("garbled"));
    desk.close().await;

    let desk = planner(&world, opinion(false, false, Why::Harmless)).await;
    assert_eq!(rules(&unsure(&world).await), None, "it agrees");
    observer.stop().await.unwrap();
    desk.be_silent(true);
    let observer = world.observer_with(|config| config.opinion_seconds = 1);
    assert_eq!(rules(&unsure(&world).await).as_deref(), Some("late"));
    observer.stop().await.unwrap();
    desk.close().await;
    world.close().await;
}

#[tokio::test]
async fn who_is_slow_to_answer_holds_nobody_up_and_an_observer_may_die_meanwhile() {
    let world = World::new().await;
    let desk = planner(&world, opinion(true, true, Why::Incomplete)).await;
    desk.be_silent(true);
    let first = world.observer_with(|config| (config.opinion_seconds, config.lease_millis) = (60, SHORT_LEASE));
    let mut build = world.activity(ADVISED).await;
    build.say(HIDDEN).await;
    build.exit(0).await;
    world.until("question", async || !desk.questions().is_empty()).await;

    // Of sixteen calls some are in the same partition.
    for _ in 0..16 {
        let mut other = world.activity(ALONE).await;
        other.say("fine\n").await;
        other.exit(0).await;
        world.concluded(&other).await;
    }
    let state = world.state(build.run).await;
    assert!(state.calls.contains_key(&build.call), "nothing is told before there is an answer");
    drop(first);
    desk.be_silent(false);

    let second = world.observer();
    world.concluded(&build).await;
    let recorded = recorded(&world, build.run).await;
    assert_eq!(recorded.len(), 1, "asked twice, told once");
    let observation = &recorded[0].observation;
    assert!(observation.decision.is_some(), "{recorded:#?}");
    assert_eq!(
        (observation.counts.lines, observation.counts.bytes, observation.counts.gap_bytes),
        (3, build.offset, 0)
    );
    assert!(desk.questions().len() >= 2, "by either of them");
    second.stop().await.unwrap();
    desk.close().await;
    world.close().await;
}
