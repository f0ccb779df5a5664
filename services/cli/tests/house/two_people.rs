//! A payment that takes two people: from the policy that says so to the effect, through every room.

use serde_json::{Value, json};

use crate::{
    forge::Forge,
    harness::{House, shipped_policies, until},
    receiver::Receiver,
};

const AGENT: &str = "name: payer
model: scripted:payer
instructions: Pay what you are told to.
tools: [shell.run]
allow: { commands: ['echo paid 900', 'echo paid 800'] }
";

const PAYER: &str = "name: payer
steps:
  - when: { turn: 1 }
    calls: [{ tool: shell.run, arguments: { command: 'echo paid 900' } }]
  - calls: [{ tool: complete, arguments: { summary: Paid. } }]
";

const POLICY: &str = r#"
@id("two-people-pay")
@ask("it pays")
@obligation("two_people")
permit (principal, action, resource == Tool::"shell.run");
"#;

fn types(events: &[Value], entity: &str) -> Vec<String> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    names.filter(|name| name.starts_with(entity)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_two_people_happens_when_two_have_agreed() {
    let forge = Forge::start().await;
    let (_receiver, otlp) = Receiver::start().await;
    let policies = |folder: &std::path::Path| {
        let own = folder.join("policies");
        std::fs::create_dir(&own).unwrap();
        for name in ["schema.cedarschema", "default.cedar"] {
            std::fs::copy(shipped_policies().join(name), own.join(name)).unwrap();
        }
        std::fs::write(own.join("two.cedar"), POLICY).unwrap();
    };
    let house = House::guarded(forge.address, otlp, &["root", "ann", "bob"], policies).await;
    house.scenario("payer", PAYER);
    house.put_agent("payer", AGENT.to_owned()).await;
    let started = house.post("/v1/runs", &json!({ "agent": "payer", "input": "Pay the invoice." })).await;
    let run = started["run_id"].as_str().unwrap().to_owned();
    let asked = until("two people are asked", || async {
        house.get("/v1/approvals?state=open").await["items"][0].as_object().cloned()
    })
    .await;
    assert_eq!((&asked["people_needed"], &asked["may_be_standing"]), (&json!(2), &json!(false)), "{asked:#?}");
    let approval = asked["approval_id"].as_str().unwrap();

    let less = json!({ "decision": "approve", "arguments": { "command": "echo paid 800" } });
    let (status, body) = house.decide(Some("ann"), approval, &less).await;
    assert_eq!((status.as_u16(), &body["people_missing"]), (202, &json!(1)), "{body}");
    let (status, body) = house.decide(Some("ann"), approval, &less).await;
    assert_eq!((status.as_u16(), &body["code"]), (409, &json!("already_endorsed")), "{body}");
    let (status, body) = house.decide(Some("bob"), approval, &json!({ "decision": "approve" })).await;
    assert_eq!((status.as_u16(), &body["code"]), (409, &json!("endorsed_otherwise")), "{body}");
    let so_far = house.events(&run).await;
    assert_eq!(types(&so_far, "tool."), ["tool.requested"], "nothing has begun");

    let same = json!({ "decision": "approve", "arguments": body["approval"]["endorsements"][0]["arguments"] });
    let (status, body) = house.decide(Some("bob"), approval, &same).await;
    assert_eq!((status.as_u16(), &body["state"]), (200, &json!("granted")), "{body}");
    until("the run ends", || async {
        let run = house.get(&format!("/v1/runs/{run}")).await;
        (run["status"] == "completed").then_some(())
    })
    .await;
    let events = house.events(&run).await;
    assert_eq!(types(&events, "approval."), ["approval.requested", "approval.endorsed", "approval.granted"]);
    let begun = types(&events, "tool.").into_iter().filter(|name| name != "tool.progressed").collect::<Vec<_>>();
    assert_eq!(begun, ["tool.requested", "tool.started", "tool.completed"]);
    house.end().await;
}
