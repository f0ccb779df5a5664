use kernel::{RunId, Status};

use crate::common::System;

async fn is_runnable(system: &System, run: RunId) -> bool {
    system.state(run).await.status() == Status::Runnable
}

#[tokio::test]
async fn a_queued_run_begins_when_there_is_room() {
    let system = System::new().await;
    let busy = system.create(None).await;
    let first = system.create(Some("full")).await;
    let second = system.create(Some("full")).await;
    let reads = system.ingress.reads();
    let queue = reads.queued(1, 10).await.unwrap();
    assert_eq!(
        queue.iter().map(|queued| (queued.run_id, queued.has_room)).collect::<Vec<_>>(),
        [(first, false), (second, false)]
    );
    assert!(reads.queued(2, 10).await.unwrap()[0].has_room);
    assert!(reads.queued(0, 10).await.unwrap().iter().all(|queued| queued.has_room));

    let scheduler = system.scheduler(|config| config.max_running = 1).await;
    system.cancel(busy).await;
    system.until("first run admitted", async || is_runnable(&system, first).await.then_some(())).await;
    assert_eq!(system.state(second).await.status(), Status::Queued, "there is room for one");
    system.cancel(first).await;
    system.until("second run admitted", async || is_runnable(&system, second).await.then_some(())).await;
    scheduler.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn without_a_limit_nothing_stays_queued() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let run = system.create(Some("full")).await;
    system.until("the run admitted", async || is_runnable(&system, run).await.then_some(())).await;
    assert_eq!(system.events(run, "run.queued").await.len(), 1);
    scheduler.stop().await.unwrap();
    system.close().await;
}
