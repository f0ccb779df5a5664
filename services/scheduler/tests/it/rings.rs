use bus::{Bus, Message, Subject, Subscription};
use engine::Engine;
use futures::StreamExt as _;
use kernel::wait::{Condition, ExternalPattern, Verify};
use kernel::{Role, RunId};

use crate::common::{DEADLINE, System, create};

/// Whether the message was published for the first time, rather than rung again: then it has no identity.
fn is_first(message: &Message) -> bool {
    message.msg_id().is_some()
}

fn run_of(message: &Message) -> RunId {
    let Ok(Subject::Event { run, .. }) = Subject::parse(&message.subject) else { panic!("{}", message.subject) };
    run.parse().unwrap()
}

async fn next(bells: &mut Subscription) -> Message {
    tokio::time::timeout(DEADLINE, bells.next()).await.expect("it rings in time").unwrap()
}

#[tokio::test]
async fn what_a_crash_left_unpublished_is_published() {
    let system = System::new().await;
    let mut bells = system.stack.bus().subscribe("evt.run.runnable.>").await.unwrap();
    // A door whose connection is gone: it commits, and nobody hears of it.
    let deaf = Bus::connect(bus::testing::options(system.stack.bus().namespace().clone())).await.unwrap();
    let engine = Engine::start(system.stack.options(Role::Ingress), deaf.clone()).await.unwrap();
    deaf.drain().await.unwrap();
    let run = create(&engine, None).await;
    drop(engine);

    let scheduler = system.scheduler(|config| config.sweep_after_seconds = 1).await;
    let message = next(&mut bells).await;
    assert_eq!(run_of(&message), run);
    assert!(is_first(&message), "with its identity, so that it is published once");
    scheduler.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn an_open_turn_without_a_planner_is_rung_for_again() {
    let system = System::new().await;
    let mut bells = system.stack.bus().subscribe("evt.run.runnable.>").await.unwrap();
    let (taken, neglected) = (system.create(None).await, system.create(None).await);
    let turn = system.state(taken).await.turn.clone().unwrap();
    let lease = system.planner.leases().acquire(&format!("turn/{}", turn.turn_id), "test", DEADLINE).await.unwrap();
    assert!(lease.is_some());
    let scheduler = system
        .scheduler(|config| {
            config.neglect_seconds = 0;
            config.reap_seconds = 1;
        })
        .await;
    let mut rung = 0;
    while rung < 2 {
        let message = next(&mut bells).await;
        if !is_first(&message) {
            assert_eq!(run_of(&message), neglected, "the other one has a planner");
            rung += 1;
        }
    }
    scheduler.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_started_call_whose_executor_is_gone_is_rung_for_again() {
    let system = System::new().await;
    let mut bells = system.stack.bus().subscribe("evt.tool.requested.>").await.unwrap();
    let (held, abandoned) = (system.create(None).await, system.create(None).await);
    let call = system.start_call(held).await;
    let lease = system.executor.leases().acquire(&format!("call/{call}"), "test", DEADLINE).await.unwrap();
    assert!(lease.is_some());
    let call = system.start_call(abandoned).await;
    let scheduler = system.scheduler(|config| config.reap_seconds = 1).await;
    let message = loop {
        let message = next(&mut bells).await;
        if !is_first(&message) {
            break message;
        }
    };
    assert_eq!(run_of(&message), abandoned, "the other one has an executor");
    let requested: kernel::event::ToolRequested = message.json().unwrap();
    assert_eq!(requested.call.call_id, call);
    scheduler.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn started_calls_come_page_by_page() {
    let system = System::new().await;
    for _ in 0..3 {
        let run = system.create(None).await;
        system.start_call(run).await;
    }
    let reads = system.executor.reads();
    let all = reads.started_calls_after(None, 10).await.unwrap();
    assert_eq!(all.len(), 3);
    let mut paged = Vec::new();
    let mut after = None;
    loop {
        let page = reads.started_calls_after(after, 2).await.unwrap();
        after = page.last().map(|last| (last.started_at, last.call_id));
        let done = page.len() < 2;
        paged.extend(page);
        if done {
            break;
        }
    }
    assert_eq!(paged, all);
    system.close().await;
}

#[tokio::test]
async fn a_scheduler_stops_in_order_in_the_middle_of_its_work() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    system.until("readiness", async || scheduler.health().readiness().await.ready.then_some(())).await;
    let stopped = tokio::time::timeout(DEADLINE, scheduler.stop()).await.expect("in time");
    assert_eq!(stopped.unwrap(), service::Drained::Clean);
    system.close().await;
}

#[tokio::test]
async fn a_wait_that_can_be_verified_is_rung_for_and_no_other() {
    let system = System::new().await;
    let mut bells = system.stack.bus().subscribe("evt.wait.registered.>").await.unwrap();
    let pattern = |verify: Option<Verify>| {
        Condition::External(ExternalPattern {
            source: "forge".into(),
            event_type: "forge.merged".into(),
            subject: "acme/shop#7".into(),
            filter: None,
            exclusive: false,
            verify: verify.map(Box::new),
        })
    };
    let verify = Verify { tool: "forge.look".into(), arguments: serde_json::Value::Null, when: "data.merged".into() };
    let (plain, verified) = (system.create(None).await, system.create(None).await);
    system.wait_for(plain, |_| pattern(None)).await;
    system.wait_for(verified, |_| pattern(Some(verify))).await;
    let scheduler = system
        .scheduler(|config| {
            config.reap_seconds = 1;
            config.reconcile_shortest_seconds = 1;
        })
        .await;
    let mut rung = 0;
    while rung < 2 {
        let message = next(&mut bells).await;
        if !is_first(&message) {
            assert_eq!(run_of(&message), verified);
            rung += 1;
        }
    }
    scheduler.stop().await.unwrap();
    system.cancel(plain).await;
    system.cancel(verified).await;
    system.close().await;
}
