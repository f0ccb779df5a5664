//! What the server or the network may do to us.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::testing::{self, TestBus};
use bus::{Bus, BusOptions, BusState, ConsumeOptions, Consuming, Delivery, OrderedOptions, Outcome};
use tokio_util::sync::CancellationToken;

use crate::support::{Notes, Proxy, frame, impatient, impatient_topology, jetstream, runnable, settled, until, within};

async fn through(proxy: &Proxy, bus: &Bus) -> Bus {
    let options = BusOptions {
        url: proxy.url.clone(),
        // What is under way when the connection is cut is never answered, and not waited for as long as in other tests.
        patience: Duration::from_secs(5),
        topology: impatient_topology(),
        ..testing::options(bus.namespace().clone())
    };
    Bus::connect(options).await.unwrap()
}

/// Notes what comes to the planner.
fn noting(bus: &Bus, options: ConsumeOptions, notes: &Notes, token: &CancellationToken) -> Consuming {
    let notes = notes.clone();
    let handler = move |delivery: Delivery| {
        notes.add(String::from_utf8_lossy(&delivery.payload));
        async { Ok(Outcome::Ack) }
    };
    bus.consume("planner", options, handler, token.clone()).unwrap()
}

#[tokio::test]
async fn a_consumer_outlives_the_loss_of_its_stream() {
    let bus = TestBus::start().await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let consuming = noting(&bus, ConsumeOptions::default(), &notes, &token);
    bus.publisher().publish(runnable("a")).await.unwrap();
    notes.wait_for(1).await;
    bus.lose("EVENTS").await.unwrap();
    bus.publisher().publish(runnable("b")).await.unwrap();
    assert_eq!(notes.wait_for(2).await, ["a", "b"]);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_consumer_outlives_the_loss_of_itself() {
    let bus = TestBus::start().await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let consuming = noting(&bus, ConsumeOptions::default(), &notes, &token);
    bus.publisher().publish(runnable("a")).await.unwrap();
    notes.wait_for(1).await;
    let stream = jetstream().await.get_stream_no_info(bus.namespace().name("EVENTS")).await.unwrap();
    stream.delete_consumer(&bus.namespace().name("planner")).await.unwrap();
    bus.publisher().publish(runnable("b")).await.unwrap();
    // At least once: the new consumer begins at the start of the stream.
    assert_eq!(notes.wait_for(3).await, ["a", "a", "b"]);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn work_goes_on_over_a_connection_that_breaks_and_breaks() {
    let direct = impatient().await;
    let proxy = Proxy::start().await;
    let bus = through(&proxy, &direct).await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let consuming = noting(&bus, ConsumeOptions { concurrency: 8, ..ConsumeOptions::default() }, &notes, &token);
    let publisher = bus.publisher();
    let publishing = tokio::spawn(async move {
        for round in 0..6 {
            let runs = (0..200).map(|n| runnable(&format!("{round}-{n}"))).collect();
            let results = publisher.publish_all(runs).await;
            assert!(results.iter().all(Result::is_ok), "{:?}", results.iter().find(|result| result.is_err()));
        }
    });
    for count in [50, 300, 700] {
        notes.wait_for(count).await;
        proxy.cut();
        until("the loss", async || bus.state() == BusState::Disconnected).await;
        proxy.restore();
        until("the return", async || bus.state() == BusState::Connected).await;
    }
    within("publishing", publishing).await.unwrap();
    until("every run", async || notes.all().into_iter().collect::<BTreeSet<_>>().len() == 1_200).await;
    settled(&direct, "planner").await;
    token.cancel();
    within("the end", consuming.join()).await;
    direct.end().await.unwrap();
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_filled_again() {
    let direct = impatient().await;
    let proxy = Proxy::start().await;
    let bus = through(&proxy, &direct).await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let consuming = noting(&bus, ConsumeOptions::default(), &notes, &token);
    let partition = 0;
    let mut pull = bus.ordered_pull(&format!("observer-{partition}"), OrderedOptions::default()).await.unwrap();
    let frames = || (0..64).map(|call| frame(&format!("c{call}"), 0)).collect();
    bus.publisher().publish(runnable("a")).await.unwrap();
    bus.publisher().publish_all(frames()).await;
    notes.wait_for(1).await;
    let before = within("a batch", pull.next()).await.unwrap();
    pull.ack_through(before.last().unwrap().stream_seq).await.unwrap();

    proxy.cut();
    until("the loss", async || bus.state() == BusState::Disconnected).await;
    for stream in ["INBOUND", "SIGNALS", "EVENTS", "DLQ"] {
        direct.lose(stream).await.unwrap();
    }
    proxy.restore();

    within("publishing", bus.publisher().publish(runnable("b"))).await.unwrap();
    assert_eq!(notes.wait_for(2).await, ["a", "b"]);
    // The new stream numbers from 1 again: what has an old number is not taken for old.
    let results = within("publishing", bus.publisher().publish_all(frames())).await;
    assert!(results.iter().all(Result::is_ok));
    let after = within("a batch", pull.next()).await.unwrap();
    assert_eq!(after[0].subject, before[0].subject);
    token.cancel();
    within("the end", consuming.join()).await;
    direct.end().await.unwrap();
}

#[tokio::test]
async fn following_in_order_outlives_a_broken_connection() {
    let direct = TestBus::start().await.unwrap();
    let proxy = Proxy::start().await;
    let bus = through(&proxy, &direct).await;
    let mut pulls = Vec::new();
    for partition in 0..bus::PARTITIONS {
        pulls.push(bus.ordered_pull(&format!("observer-{partition}"), OrderedOptions { batch: 8 }).await.unwrap());
    }
    direct.publisher().publish_all((0..300).map(|offset| frame("c", offset)).collect()).await;
    // The call is in one of the partitions; the others stay silent.
    let nexts = pulls.iter_mut().map(|pull| Box::pin(pull.next()));
    let (first, index, rest) = within("a batch", futures::future::select_all(nexts)).await;
    drop(rest);
    let mut pull = pulls.swap_remove(index);
    let mut seen: Vec<String> = Vec::new();
    let mut batch = first.unwrap();
    loop {
        seen.extend(batch.iter().map(|delivery| String::from_utf8_lossy(&delivery.payload).into_owned()));
        if seen.len() > 100 && seen.len() < 200 {
            pull.ack_through(batch.last().unwrap().stream_seq).await.unwrap();
            proxy.cut();
            until("the loss", async || bus.state() == BusState::Disconnected).await;
            proxy.restore();
        }
        if seen.len() >= 300 {
            break;
        }
        batch = within("a batch", pull.next()).await.unwrap();
    }
    assert_eq!(seen, (0..300).map(|offset| format!("c {offset}")).collect::<Vec<_>>());
    direct.end().await.unwrap();
}

#[tokio::test]
async fn shutting_down_without_a_server_takes_no_longer_than_allowed() {
    let direct = impatient().await;
    let proxy = Proxy::start().await;
    let bus = through(&proxy, &direct).await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let options = ConsumeOptions { drain: Duration::from_secs(1), ..ConsumeOptions::default() };
    let consuming = bus
        .consume(
            "planner",
            options,
            move |_| {
                seen.add("begun");
                async { std::future::pending().await }
            },
            token.clone(),
        )
        .unwrap();
    bus.publisher().publish(runnable("a")).await.unwrap();
    notes.wait_for(1).await;
    proxy.cut();
    until("the loss", async || bus.state() == BusState::Disconnected).await;
    token.cancel();
    within("the end", consuming.join()).await;
    direct.end().await.unwrap();
}
