//! What is waited for, asked about.

use kernel::RunId;
use kernel::call::Observation;
use kernel::command::WaitRequest;
use kernel::event::EventData;
use kernel::wait::{Condition, ExternalPattern, Verify};
use serde_json::json;

use crate::house::House;
use crate::server::Server;

fn wait(tool: &str, when: &str) -> WaitRequest {
    let pattern = ExternalPattern {
        source: "forge".into(),
        event_type: "forge.merged".into(),
        subject: "acme/shop#7".into(),
        filter: None,
        exclusive: false,
        verify: Some(Box::new(Verify { tool: tool.into(), arguments: json!({}), when: when.into() })),
    };
    WaitRequest {
        on: Condition::External(pattern).into(),
        why: "the merge".into(),
        assumes: None,
        expects: None,
        deadline: None,
    }
}

fn look(server: &Server, effect: &str) -> String {
    format!(
        "name: x.look\ndescription: Looks.\neffect: {effect}\nidempotent: true\n\
         input: {{ type: object, additionalProperties: false }}\n\
         run: {{ http: {{ method: GET, url: \"{}\", allow_private: true }} }}\n",
        server.url("/effect")
    )
}

/// Waits for the first observation of a run.
async fn observed(house: &House, run: RunId) -> Observation {
    let observed = |event: &EventData| match event {
        EventData::ObservationRecorded(recorded) => Some(recorded.observation.clone()),
        _ => None,
    };
    house.event(run, |events| events.iter().find_map(observed)).await
}

#[tokio::test]
async fn what_has_happened_without_an_event_is_found_and_wakes() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.look", look(&server, "read"))], "{}").await;
    let executor = house.executor();
    let not_yet = house.run_that(Vec::new(), Some(wait("x_look", "data.count > 0"))).await;
    let run = house.run_that(Vec::new(), Some(wait("x_look", "data.count == 0"))).await;
    let observed = observed(&house, run).await;
    assert_eq!(observed.phase, "verified");
    assert!(observed.decision.is_some() && observed.changed.contains("acme/shop#7"), "{observed:?}");
    assert!(observed.evidence[0].excerpt.contains("\"count\":0"));
    assert_eq!(house.count(run, "run.runnable").await, 2, "it wakes");
    assert_eq!(house.count(not_yet, "observation.recorded").await, 0);
    // A doorbell of the reconciler finds the same, and says it once.
    let outbox = house.engine(kernel::Role::Scheduler).await.outbox();
    assert_eq!(outbox.ring_wait(run).await.unwrap(), 1);
    let later = house.run_that(Vec::new(), Some(wait("x_look", "data.count == 0"))).await;
    house.event(later, |events| (events.last()?.type_name() == "run.runnable" && events.len() > 4).then_some(())).await;
    assert_eq!(house.count(run, "observation.recorded").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_question_that_does_more_than_read_is_not_asked() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.look", look(&server, "external"))], "{}").await;
    let executor = house.executor();
    let run = house.run_that(Vec::new(), Some(wait("x.look", "true"))).await;
    let observed = observed(&house, run).await;
    assert_eq!((observed.phase.as_str(), observed.decision.as_ref()), ("not_verifiable", None));
    assert!(observed.changed.contains("more than read"), "{}", observed.changed);
    house.close(vec![executor]).await;
}
