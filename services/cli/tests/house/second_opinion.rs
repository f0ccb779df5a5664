//! A command that hides its failure: the agent's small model is asked, has the run woken with the evidence, and is paid by it.

use serde_json::{Value, json};

use crate::{
    forge::Forge,
    harness::{House, until},
    receiver::Receiver,
};

const AGENT: &str = "name: hushed
model: scripted:hushed
instructions: Run what you are told to.
tools: [shell.run]
observe: [{ tool: shell.run, packs: [generic], settle: 60s }]
observer: { model: scripted:second, when: unsure }
allow: { commands: ['echo panic: the cache is gone'] }
";

const HUSHED: &str = "name: hushed
steps:
  - when: { sees: 'a model that was asked says: it failed[\\s\\S]*panic: the cache is gone' }
    calls: [{ tool: complete, arguments: { summary: Looked. } }]
  - when: { turn: 1 }
    calls: [{ tool: shell.run, arguments: { command: 'echo panic: the cache is gone' } }]
  - calls: [{ tool: complete, arguments: { summary: Slept. } }]
";

const SECOND: &str = "name: second
steps:
  - when: { sees: '<<<data \\w+ trust=untrusted[\\s\\S]*panic: the cache is gone' }
    calls: [{ tool: judge_output, arguments: { anomaly: true, decision_needed: true, why: failed } }]
    usage: { input: 200, output: 10 }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_small_model_tells_what_a_status_hides() {
    let forge = Forge::start().await;
    let (_receiver, otlp) = Receiver::start().await;
    let house = House::start(forge.address, otlp).await;
    house.scenario("hushed", HUSHED);
    house.scenario("second", SECOND);
    house.put_agent("hushed", AGENT.to_owned()).await;
    let started = house.post("/v1/runs", &json!({ "agent": "hushed", "input": "Warm up the cache." })).await;
    let run = started["run_id"].as_str().unwrap().to_owned();
    let ended = until("the run ends", || async {
        let run = house.get(&format!("/v1/runs/{run}")).await;
        ["completed", "failed", "cancelled"].contains(&run["status"].as_str().unwrap()).then_some(run)
    })
    .await;
    let events = house.events(&run).await;
    assert_eq!(ended["status"], "completed", "{events:#?}");
    let observed: Vec<&Value> = events.iter().filter(|event| event["type"] == "observation.recorded").collect();
    assert_eq!(observed.len(), 1, "{observed:#?}");
    let asked = &observed[0]["data"]["asked"];
    assert_eq!((&asked["model"], &asked["said"]["why"]), (&json!("scripted:second"), &json!("failed")), "{asked:#}");
    let last = events.last().unwrap().to_string();
    assert!(last.contains("Looked."), "the run's own model saw what the status hides: {last}");

    let economics = house.get(&format!("/v1/runs/{run}/economics")).await;
    let control = &economics["controls"]["observer"];
    assert_eq!((&control["times"], &control["effective"], &control["tokens"]), (&json!(1), &json!(1), &json!(210)));
    house.end().await;
}
