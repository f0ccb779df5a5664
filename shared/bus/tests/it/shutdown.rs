use std::time::Duration;

use bus::{ConsumeOptions, Outcome};
use tokio_util::sync::CancellationToken;

use crate::support::{Notes, patient, runnable, settled, status, until, within};

#[tokio::test]
async fn finishes_what_it_began_and_returns_the_rest_at_once() {
    // The consumer waits a minute for a silent worker: what is returned comes sooner.
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let (gate, open) = tokio::sync::watch::channel(false);
    let seen = notes.clone();
    let drain = Duration::from_secs(60);
    let options = ConsumeOptions { concurrency: 2, prefetch: 8, drain, ..ConsumeOptions::default() };
    let first = bus
        .consume(
            "planner",
            options,
            move |delivery| {
                let (seen, mut open) = (seen.clone(), open.clone());
                async move {
                    seen.add(format!("begun {}", String::from_utf8_lossy(&delivery.payload)));
                    open.wait_for(|open| *open).await?;
                    seen.add("finished");
                    Ok(Outcome::Ack)
                }
            },
            token.clone(),
        )
        .unwrap();
    bus.publisher().publish_all((0..6).map(|n| runnable(&n.to_string())).collect()).await;
    notes.wait_for(2).await;
    until("all taken", async || status(&bus, "planner", |status| status.unacknowledged == 6).await).await;

    token.cancel();
    let other = Notes::default();
    let seen = other.clone();
    let stop = CancellationToken::new();
    let second = bus
        .consume(
            "planner",
            ConsumeOptions::default(),
            move |_| {
                seen.add("taken over");
                async { Ok(Outcome::Ack) }
            },
            stop.clone(),
        )
        .unwrap();
    let began = std::time::Instant::now();
    other.wait_for(4).await;
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
    gate.send_replace(true);
    within("the end of the first", first.join()).await;
    assert_eq!(notes.all().iter().filter(|note| *note == "finished").count(), 2);
    stop.cancel();
    within("the end of the second", second.join()).await;
    settled(&bus, "planner").await;
    assert_eq!(other.count(), 4);
    bus.end().await.unwrap();
}

#[tokio::test]
async fn drops_a_handler_at_the_deadline_and_returns_its_message() {
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let options = ConsumeOptions { drain: Duration::from_millis(100), ..ConsumeOptions::default() };
    let consuming = bus
        .consume(
            "planner",
            options,
            move |delivery| {
                let seen = seen.clone();
                async move {
                    seen.add(format!("begun {}", delivery.delivered));
                    std::future::pending().await
                }
            },
            token.clone(),
        )
        .unwrap();
    bus.publisher().publish(runnable("a")).await.unwrap();
    notes.wait_for(1).await;
    token.cancel();
    within("the end", consuming.join()).await;

    let stop = CancellationToken::new();
    let seen = notes.clone();
    let second = bus
        .consume(
            "planner",
            ConsumeOptions::default(),
            move |delivery| {
                seen.add(format!("begun {}", delivery.delivered));
                async { Ok(Outcome::Ack) }
            },
            stop.clone(),
        )
        .unwrap();
    assert_eq!(notes.wait_for(2).await, ["begun 1", "begun 2"]);
    stop.cancel();
    second.join().await;
    bus.end().await.unwrap();
}
