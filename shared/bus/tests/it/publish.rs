use bus::testing::{self, TestBus};
use bus::{BusError, Outgoing, subject};

use crate::support::{holds, runnable, within};

#[tokio::test]
async fn the_same_identity_is_stored_once() {
    let bus = TestBus::start().await.unwrap();
    let first = bus.publisher().publish(runnable("a")).await.unwrap();
    let second = bus.publisher().publish(runnable("a")).await.unwrap();
    assert!(!first.duplicate && second.duplicate);
    assert_eq!(first.stream_seq, second.stream_seq);
    bus.end().await.unwrap();
}

#[tokio::test]
async fn many_go_out_in_order_and_one_bad_one_fails_alone() {
    let bus = TestBus::start().await.unwrap();
    let mut messages: Vec<_> = (0..5_000).map(|n| runnable(&format!("run-{n}"))).collect();
    messages[1_000] = Outgoing::new("nowhere.at.all", "x").msg_id("x");
    messages[2_000] = Outgoing::new(subject::evt("run.runnable", "default", "big"), vec![0; bus.max_payload() + 1]);
    messages[3_000] = Outgoing::new(subject::evt("run.runnable", "default", "just"), vec![0; bus.max_payload()]);
    let results = within("publishing", bus.publisher().publish_all(messages)).await;
    assert!(matches!(results[1_000], Err(BusError::NoStream { .. })));
    assert!(matches!(results[2_000], Err(BusError::TooLarge { .. })));
    let stored: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).map(|ack| ack.stream_seq).collect();
    assert_eq!(stored.len(), 4_998);
    assert!(stored.is_sorted());
    bus.end().await.unwrap();
}

#[tokio::test]
async fn many_publishers_share_the_connection() {
    let bus = TestBus::start().await.unwrap();
    let batches = (0..12).map(|batch| {
        let publisher = bus.publisher();
        async move { publisher.publish_all((0..1_000).map(|n| runnable(&format!("{batch}-{n}"))).collect()).await }
    });
    let results = within("publishing", futures::future::join_all(batches)).await;
    assert!(results.iter().flatten().all(Result::is_ok));
    assert_eq!(bus.stream_status("EVENTS").await.unwrap().messages, 12_000);
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_full_inbox_refuses_and_recovers_once_it_is_consumed() {
    let mut topology = testing::topology();
    topology.streams.iter_mut().find(|stream| stream.name == "INBOUND").unwrap().limits.max_bytes = 64 * 1024;
    let bus = TestBus::start_with(topology).await.unwrap();
    let event = |n: u32| Outgoing::new(subject::in_("default", "github", "push"), vec![b'x'; 8 * 1024]).msg_id(n);
    let mut stored = 0;
    let error = loop {
        match bus.publisher().publish(event(stored)).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, BusError::StreamFull { .. }) && error.is_transient(), "{error:?}");
    assert!(stored >= 4);

    let token = tokio_util::sync::CancellationToken::new();
    let consuming = bus
        .consume("ingress", bus::ConsumeOptions::default(), |_| async { Ok(bus::Outcome::Ack) }, token.clone())
        .unwrap();
    let is_room = async || bus.stream_status("INBOUND").await.is_ok_and(|status| status.messages == 0);
    crate::support::until("room", is_room).await;
    bus.publisher().publish(event(stored)).await.unwrap();
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_missing_stream_is_made_again() {
    let bus = TestBus::start().await.unwrap();
    bus.publisher().publish(runnable("a")).await.unwrap();
    bus.lose("EVENTS").await.unwrap();
    let ack = within("publishing", bus.publisher().publish(runnable("b"))).await.unwrap();
    assert_eq!(ack.stream_seq, 1);
    // The consumers are there again, too, though nobody reads them now.
    holds(&bus, "planner", 1).await;
    bus.end().await.unwrap();
}
