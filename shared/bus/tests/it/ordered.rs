use std::collections::BTreeMap;
use std::time::Duration;

use bus::testing::TestBus;
use bus::{Bus, Delivery, OrderedOptions, OrderedPull, PARTITIONS, Subject};

use crate::support::{frame, impatient, status, until, within};

/// Which partition a call's frames are in.
async fn partition_of(bus: &Bus, call: &str) -> u8 {
    bus.publisher().publish(frame(call, 0)).await.unwrap();
    within("a partition that has the frame", async {
        loop {
            if let Some(partition) = pending(bus).await.iter().position(|pending| *pending > 0) {
                return u8::try_from(partition).unwrap();
            }
        }
    })
    .await
}

/// How many messages each partition holds.
async fn pending(bus: &Bus) -> Vec<u64> {
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        all.push(bus.consumer_status(&format!("observer-{partition}")).await.unwrap().pending);
    }
    all
}

async fn follow(bus: &Bus, partition: u8) -> OrderedPull {
    bus.ordered_pull(&format!("observer-{partition}"), OrderedOptions { batch: 16 }).await.unwrap()
}

/// Reads until the frame of this offset, and returns all that came.
async fn read_through(pull: &mut OrderedPull, offset: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.last().is_none_or(|delivery: &Delivery| offset_of(delivery) < offset) {
        all.extend(within("a batch", pull.next()).await.unwrap());
    }
    all
}

fn offset_of(delivery: &Delivery) -> usize {
    String::from_utf8_lossy(&delivery.payload).split(' ').nth(1).unwrap().parse().unwrap()
}

fn offsets(deliveries: &[Delivery]) -> Vec<usize> {
    deliveries.iter().map(offset_of).collect()
}

#[tokio::test]
async fn every_call_is_in_one_partition_and_in_order() {
    let bus = TestBus::start().await.unwrap();
    let frames = (0..50).flat_map(|offset| (0..20).map(move |call| frame(&format!("c{call}"), offset))).collect();
    assert!(bus.publisher().publish_all(frames).await.iter().all(Result::is_ok));
    let mut calls: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    until("every message counted", async || pending(&bus).await.iter().sum::<u64>() == 1_000).await;
    for (partition, mut left) in (0..PARTITIONS).zip(pending(&bus).await) {
        let mut pull = follow(&bus, partition).await;
        let mut here: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        while left > 0 {
            let batch = within("a batch", pull.next()).await.unwrap();
            left -= batch.len() as u64;
            for delivery in &batch {
                assert_eq!(delivery.partition, Some(partition));
                let Ok(Subject::Signal { call, .. }) = Subject::parse(&delivery.subject) else { panic!("no signal") };
                here.entry(call).or_default().push(offset_of(delivery));
            }
            pull.ack_through(batch.last().unwrap().stream_seq).await.unwrap();
        }
        calls.extend(here);
    }
    assert_eq!(calls.len(), 20);
    assert!(calls.values().all(|offsets| *offsets == (0..50).collect::<Vec<_>>()));
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_successor_goes_on_after_the_last_acknowledgement_without_waiting() {
    // The consumer waits a minute for a silent worker; the successor must not.
    let bus = TestBus::start().await.unwrap();
    let partition = partition_of(&bus, "c").await;
    bus.publisher().publish_all((1..40).map(|offset| frame("c", offset)).collect()).await;
    let mut first = follow(&bus, partition).await;
    let seen = read_through(&mut first, 39).await;
    assert_eq!(offsets(&seen), (0..40).collect::<Vec<_>>());
    first.ack_through(seen[9].stream_seq).await.unwrap();
    bus.flush().await.unwrap();
    drop(first);

    bus.publisher().publish_all((40..50).map(|offset| frame("c", offset)).collect()).await;
    let mut second = follow(&bus, partition).await;
    let seen = read_through(&mut second, 49).await;
    assert_eq!(offsets(&seen), (10..50).collect::<Vec<_>>());
    second.ack_through(seen.last().unwrap().stream_seq).await.unwrap();
    let consumer = format!("observer-{partition}");
    until("all acknowledged", async || status(&bus, &consumer, |status| status.unacknowledged == 0).await).await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn what_is_delivered_again_is_passed_over_and_can_still_be_acknowledged() {
    let bus = impatient().await;
    let partition = partition_of(&bus, "c").await;
    let consumer = format!("observer-{partition}");
    let mut pull = follow(&bus, partition).await;
    let first = read_through(&mut pull, 0).await;
    // Nothing is acknowledged, so the server delivers it again after a while; it doesn't show.
    until("a redelivery", async || {
        let quiet = tokio::time::timeout(Duration::from_millis(300), pull.next()).await;
        assert!(quiet.is_err(), "a message was handed out twice");
        status(&bus, &consumer, |status| status.redelivered > 0).await
    })
    .await;
    bus.publisher().publish(frame("c", 1)).await.unwrap();
    let second = read_through(&mut pull, 1).await;
    assert_eq!(offsets(&second), [1]);
    pull.ack_through(first[0].stream_seq).await.unwrap();
    pull.ack_through(second[0].stream_seq).await.unwrap();
    until("all acknowledged", async || {
        // Goes on reading: an acknowledgement that came too early is sent again with the next delivery.
        let _ = tokio::time::timeout(Duration::from_millis(100), pull.next()).await;
        status(&bus, &consumer, |status| status.unacknowledged == 0).await
    })
    .await;
    bus.end().await.unwrap();
}
