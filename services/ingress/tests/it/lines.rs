//! Lines of waits for one event: what several of them may have, what only one may have, and what a dispatch that was cut short
//! leaves.

use std::time::Instant;

use bus::{CloudEvent, Outgoing, subject};
use engine::{Engine, EventClaim};
use futures::{StreamExt as _, stream};
use kernel::command::{AddMessage, DeliverExternal};
use kernel::wait::Condition;
use kernel::{Cause, Command, Role, RunId, Status, TenantId};
use serde_json::json;

use crate::harness::{Door, block, commit, eventually, wait_for_event};

fn tenant() -> TenantId {
    "acme".parse().unwrap()
}

fn build(id: &str) -> CloudEvent {
    let mut event = CloudEvent::new(id, "ci", "build.done").with_json(json!({"ok": true}));
    event.subject = Some("main".into());
    event
}

async fn publish(door: &Door, event: &CloudEvent) {
    let (headers, body) = event.to_binary();
    let message = Outgoing::new(subject::in_("acme", "ci", &event.event_type), body).headers(headers);
    door.bus().publisher().publish(message).await.unwrap();
}

/// Waits until the event has been dealt with.
async fn settle(door: &Door, event: &CloudEvent) {
    let externals = door.engine(Role::Ingress).await.externals();
    eventually("the dispatch of an event", || async {
        externals.record(&tenant(), "ci", event, None).await.unwrap().dispatched.then_some(())
    })
    .await;
}

async fn waits_for_build(planner: &Engine, run: RunId, exclusive: bool) {
    commit(planner, run, |_, outcome| outcome.wait = Some(wait_for_event("main", None, exclusive))).await;
}

/// Those of the runs that the event woke, once each.
async fn woken(planner: &Engine, runs: &[RunId]) -> Vec<RunId> {
    let mut woken = Vec::new();
    for run in runs {
        let state = planner.load(*run).await.unwrap().unwrap();
        if state.status() == Status::Runnable {
            assert_eq!(state.turns_opened, 2, "once");
            woken.push(*run);
        }
    }
    woken
}

#[tokio::test]
async fn a_dispatcher_that_dies_after_its_claim_is_stood_in_for_and_one_run_has_the_event() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let externals = door.engine(Role::Ingress).await.externals();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(door.run().await);
    }
    for run in &runs {
        waits_for_build(&planner, *run, true).await;
    }
    // As a process leaves it that dies between claim and delivery; it served them in another order.
    let event = build("b1");
    let (recorded, matches) = externals.record_and_match(&tenant(), "ci", &event, None).await.unwrap();
    let claimer = matches.iter().find(|wait| wait.run_id == runs[1]).unwrap();
    assert_eq!(externals.claim(&recorded, claimer).await.unwrap(), EventClaim::Won);
    settle(&door, &event).await;
    assert_eq!(woken(&planner, &runs).await, [runs[1]]);
    door.close().await;
}

#[tokio::test]
async fn a_claimer_whose_wait_is_gone_makes_room_for_the_next() {
    let door = Door::open().await;
    let (planner, ingress) = (door.engine(Role::Planner).await, door.engine(Role::Ingress).await);
    let externals = ingress.externals();
    let (gone, next) = (door.run().await, door.run().await);
    for run in [gone, next] {
        waits_for_build(&planner, run, true).await;
    }
    let event = build("b1");
    let (recorded, matches) = externals.record_and_match(&tenant(), "ci", &event, None).await.unwrap();
    assert_eq!(externals.claim(&recorded, &matches[0]).await.unwrap(), EventClaim::Won);
    let hello = Command::AddMessage(AddMessage { block: block("never mind") });
    ingress.submit(gone, hello, "m", Cause::default()).await.unwrap();
    commit(&planner, gone, |_, outcome| {
        let mut wait = wait_for_event("elsewhere", None, true);
        wait.on = Condition::OperatorInput { approval_id: None }.into();
        outcome.wait = Some(wait);
    })
    .await;
    settle(&door, &event).await;
    assert_eq!(woken(&planner, &[next]).await, [next]);
    assert_eq!(planner.load(gone).await.unwrap().unwrap().status(), Status::Waiting);
    door.close().await;
}

/// Runs that wait for the build, one in ten of them for itself.
async fn line(door: &Door, planner: &Engine, runs: usize) -> Vec<RunId> {
    let make = async |number: usize| {
        let run = door.run().await;
        waits_for_build(planner, run, number.is_multiple_of(10)).await;
        run
    };
    stream::iter(0..runs).map(make).buffer_unordered(32).collect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_wakes_a_line_of_a_thousand_once_each() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let runs = line(&door, &planner, 1000).await;
    let event = build("b1");
    let begun = Instant::now();
    publish(&door, &event).await;
    settle(&door, &event).await;
    println!("{} waits dealt with by one event in {:?}", runs.len(), begun.elapsed());
    assert_eq!(woken(&planner, &runs).await.len(), 900 + 1);
    door.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_was_cut_short_goes_on_where_it_ended() {
    let door = Door::open().await;
    let (planner, ingress) = (door.engine(Role::Planner).await, door.engine(Role::Ingress).await);
    let runs = line(&door, &planner, 60).await;
    // As a process leaves it that dies in the middle.
    let event = build("b1");
    let (recorded, matches) = ingress.externals().record_and_match(&tenant(), "ci", &event, None).await.unwrap();
    for wait in matches.iter().filter(|wait| !wait.exclusive).take(20) {
        let external = recorded.external.clone();
        let key = format!("ext/{}/{}/{}", external.position, wait.wait_id, wait.leaf);
        let deliver = DeliverExternal { external, wait_id: wait.wait_id, leaf: wait.leaf, block: block("built") };
        let command = Command::DeliverExternal(Box::new(deliver));
        ingress.submit(wait.run_id, command, key, Cause::default()).await.unwrap();
    }
    settle(&door, &event).await;
    assert_eq!(woken(&planner, &runs).await.len(), 54 + 1);
    door.close().await;
}

/// The events that a run has had, in that order.
async fn had(door: &Door, run: RunId) -> Vec<String> {
    let events = door.events(run).await.into_iter().filter(|event| event["type"] == "external.matched");
    events.map(|event| event["data"]["external"]["id"].as_str().unwrap().to_owned()).collect()
}

/// A run that takes events one by one has each, in their order, however their dispatches overtake each other.
#[tokio::test]
async fn an_event_that_overtakes_another_lets_it_go_first() {
    let door = Door::open().await;
    let planner = door.engine(Role::Planner).await;
    let externals = door.engine(Role::Ingress).await.externals();
    for exclusive in [false, true] {
        let run = door.run().await;
        waits_for_build(&planner, run, exclusive).await;
        // The first is recorded, and whoever was to dispatch it is slow or dead.
        let (slow, fast) = (build(&format!("slow/{exclusive}")), build(&format!("fast/{exclusive}")));
        externals.record(&tenant(), "ci", &slow, None).await.unwrap();
        publish(&door, &fast).await;
        settle(&door, &fast).await;
        assert_eq!(had(&door, run).await, [slow.id.as_str()]);
        waits_for_build(&planner, run, exclusive).await;
        assert_eq!(had(&door, run).await, [slow.id.as_str(), fast.id.as_str()]);
        settle(&door, &slow).await;
        let cancel = Command::Cancel(kernel::command::ByOperator { by: "ann".into(), reason: None });
        door.engine(Role::Ingress).await.submit(run, cancel, "cancel", Cause::default()).await.unwrap();
    }
    door.close().await;
}
