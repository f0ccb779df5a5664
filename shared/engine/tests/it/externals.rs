//! Events from outside: once, and never past the wait that wants them.

use std::time::Duration;

use engine::{Engine, RecordError, testing::TestStack};
use kernel::{Block, Cause, Command, Role, RunId, Status, TenantId, Trust, command::DeliverExternal};

use crate::core::{create, forge_event, wait_for_forge};

async fn new_run(ingress: &Engine) -> RunId {
    let run = RunId::mint();
    ingress.submit(run, create("wait for the forge"), "create", Cause::default()).await.unwrap();
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_delivered_many_times_is_one() {
    let stack = TestStack::new().await.unwrap();
    let externals = stack.engine(Role::Ingress).await.unwrap().externals();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let event = forge_event("e1", "pull/1", true);
    let deliveries = (0..20).map(|_| externals.record(&tenant, "forge", &event, None));
    let all = futures::future::join_all(deliveries).await.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(all.iter().filter(|recorded| recorded.is_new).count(), 1);
    assert!(all.iter().all(|recorded| recorded.external == all[0].external && recorded.event == all[0].event));
    assert_eq!(all[0].external.resource_key, "forge:pull/1");

    // Another tenant, another source token and another CloudEvent source make it another event.
    assert!(externals.record(&other, "forge", &event, None).await.unwrap().is_new);
    assert!(externals.record(&tenant, "mirror", &event, None).await.unwrap().is_new);
    let mut elsewhere = event.clone();
    elsewhere.source = "https://other.test".into();
    assert!(externals.record(&tenant, "forge", &elsewhere, None).await.unwrap().is_new);
    let mut long = event.clone();
    long.id = "i".repeat(8000);
    assert!(externals.record(&tenant, "forge", &long, None).await.unwrap().is_new);
    assert!(!externals.record(&tenant, "forge", &long, None).await.unwrap().is_new);
    long.subject = Some("s".repeat(8000));
    let refused = externals.record(&tenant, "forge", &long, None).await.unwrap_err();
    assert!(matches!(refused, RecordError::KeyTooLong { bytes: 8006 }) && !refused.is_transient());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_and_not_dealt_with_is_found_again() {
    let stack = TestStack::new().await.unwrap();
    let externals = stack.engine(Role::Ingress).await.unwrap().externals();
    let tenant = TenantId::default();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let first = externals.record(&tenant, "forge", &forge_event("e1", "pull/1", true), Some(parent)).await.unwrap();
    let second = externals.record(&tenant, "forge", &forge_event("e2", "pull/1", true), None).await.unwrap();
    externals.mark_dispatched(second.external.position).await.unwrap();
    assert!(externals.undispatched_after(0, Duration::from_secs(60), 10).await.unwrap().is_empty());
    let found = externals.undispatched_after(0, Duration::ZERO, 10).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].external, &found[0].event), (&first.external, &first.event));
    let again = externals.record(&tenant, "forge", &forge_event("e2", "pull/1", true), None).await.unwrap();
    assert!(again.dispatched && !again.is_new);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_waits_of_the_tenant_the_key_and_the_type_match() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let planner = stack.engine(Role::Planner).await.unwrap();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let run = new_run(&ingress).await;
    let state = planner.load(run).await.unwrap().unwrap();
    planner.submit(run, wait_for_forge(&state, "pull/1", Some("data.ok")), "t1", Cause::default()).await.unwrap();

    let externals = ingress.externals();
    let event = forge_event("e1", "pull/1", true);
    let (recorded, matches) = externals.record_and_match(&tenant, "forge", &event, None).await.unwrap();
    assert_eq!(matches.len(), 1);
    assert_eq!((matches[0].run_id, matches[0].leaf, matches[0].filter.as_deref()), (run, 0, Some("data.ok")));
    assert_eq!(externals.matching(&recorded, None).await.unwrap(), matches);

    let mut another_type = forge_event("e2", "pull/1", true);
    another_type.event_type = "forge.merged.not".into();
    for (tenant, source, event) in [
        (&tenant, "forge", &another_type),
        (&tenant, "forge", &forge_event("e3", "pull/2", true)),
        (&tenant, "mirror", &event),
        (&other, "forge", &event),
    ] {
        let (_, matches) = externals.record_and_match(tenant, source, event, None).await.unwrap();
        assert!(matches.is_empty(), "{source} {event:?}");
    }
    stack.close().await.unwrap();
}

/// The classic lost wake: the event and the wait that wants it commit at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn no_wake_is_lost_between_an_event_and_its_wait() {
    const LANES: u64 = 8;
    // 400 meetings, or 10,000 in the long form.
    let rounds: u64 = if std::env::var_os("ESC_TEST_LONG").is_some() { 1250 } else { 50 };
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let planner = stack.engine(Role::Planner).await.unwrap();
    let lanes = (0..LANES).map(|lane| {
        let (ingress, planner) = (ingress.clone(), planner.clone());
        tokio::spawn(async move {
            let run = new_run(&ingress).await;
            let mut early = 0;
            for round in 0..rounds {
                // Spread over 0 to 5 ms on both sides, so that each order and every overlap comes up. Every other event is
                // held back for about as long as a wait takes to commit.
                let jitter = |salt: u64| Duration::from_micros((lane * 641 + round * 1009 + salt) % 5000);
                let held_back = Duration::from_millis(round % 2 * 10);
                let (mut wait_after, mut event_after) = (jitter(0), jitter(round * 37) + held_back);
                // However slow the machine, each order comes up.
                match round {
                    0 => wait_after += Duration::from_millis(300),
                    1 => event_after += Duration::from_millis(300),
                    _ => {}
                }
                early += u64::from(meet(&ingress, &planner, run, round, wait_after, event_after).await);
            }
            early
        })
    });
    let lanes: Vec<u64> = futures::future::join_all(lanes).await.into_iter().map(Result::unwrap).collect();
    let early: u64 = lanes.iter().sum();
    println!("{early} of {} events came before their wait", LANES * rounds);
    assert!(early > 0 && early < LANES * rounds, "both orders came up: {early}");
    stack.close().await.unwrap();
}

/// Registers a wait and records its event at about the same time. Whether the event came first.
async fn meet(
    ingress: &Engine,
    planner: &Engine,
    run: RunId,
    round: u64,
    wait_after: Duration,
    event_after: Duration,
) -> bool {
    let tenant = TenantId::default();
    let subject = format!("pull/{run}");
    let state = planner.load(run).await.unwrap().unwrap();
    let waiting = async {
        tokio::time::sleep(wait_after).await;
        let wait = wait_for_forge(&state, &subject, None);
        planner.submit(run, wait, format!("turn-{round}"), Cause::default()).await.unwrap()
    };
    let event = forge_event(&format!("{run}-{round}"), &subject, true);
    let telling = async {
        tokio::time::sleep(event_after).await;
        ingress.externals().record_and_match(&tenant, "forge", &event, None).await.unwrap()
    };
    let (committed, (recorded, matches)) = tokio::join!(waiting, telling);
    for found in &matches {
        let deliver = DeliverExternal {
            external: recorded.external.clone(),
            wait_id: found.wait_id,
            leaf: found.leaf,
            block: Block::new("merged", Trust::Untrusted, "event:forge"),
        };
        let key = format!("{}/{}", recorded.external.position, found.leaf);
        ingress.submit(run, Command::DeliverExternal(Box::new(deliver)), key, Cause::default()).await.unwrap();
    }
    let state = planner.load(run).await.unwrap().unwrap();
    let place = format!("round {round}: the wait after {wait_after:?}, the event after {event_after:?}");
    assert_eq!(state.status(), Status::Runnable, "a wake was lost in {place}");
    assert_eq!(state.consumed.get(&format!("forge:{subject}")), Some(&recorded.external.position), "{place}");
    committed.state.status() == Status::Runnable
}
