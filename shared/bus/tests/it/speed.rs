//! Figures, on request: `cargo test -p bus --test it -- --ignored --nocapture speed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bus::testing::{self, TestBus};
use bus::{ConsumeOptions, OrderedOptions, Outcome, Outgoing, subject};
use tokio_util::sync::CancellationToken;

const MESSAGES: usize = 60_000;

fn rate(began: Instant) -> f64 {
    MESSAGES as f64 / began.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a check"]
async fn publishes_and_consumes_many_small_messages() {
    let mut topology = testing::topology();
    topology.streams.iter_mut().for_each(|stream| stream.limits.max_bytes = 64 * 1024 * 1024);
    let bus = TestBus::start_with(topology).await.unwrap();
    let event = |n: usize| {
        Outgoing::new(subject::evt("run.runnable", "default", n), vec![b'x'; 256])
            .msg_id(n)
            .header("ce-type", "run.runnable")
    };
    let began = Instant::now();
    let results = bus.publisher().publish_all((0..MESSAGES).map(event).collect()).await;
    assert!(results.iter().all(Result::is_ok));
    println!("published {:.0}/s", rate(began));

    let handled = Arc::new(AtomicUsize::new(0));
    let counting = handled.clone();
    let token = CancellationToken::new();
    let began = Instant::now();
    let consuming = bus
        .consume(
            "planner",
            ConsumeOptions { concurrency: 256, prefetch: 256, ..ConsumeOptions::default() },
            move |_| {
                counting.fetch_add(1, Ordering::Relaxed);
                async { Ok(Outcome::Ack) }
            },
            token.clone(),
        )
        .unwrap();
    while handled.load(Ordering::Relaxed) < MESSAGES {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    println!("consumed {:.0}/s", rate(began));
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a check"]
async fn follows_many_small_messages_in_order() {
    let bus = TestBus::start().await.unwrap();
    let frame = |n: usize| Outgoing::new(subject::sig("default", "run", "call"), vec![b'x'; 256]).msg_id(n);
    assert!(bus.publisher().publish_all((0..MESSAGES).map(frame).collect()).await.iter().all(Result::is_ok));
    let mut pulls = Vec::new();
    for partition in 0..bus::PARTITIONS {
        pulls.push(bus.ordered_pull(&format!("observer-{partition}"), OrderedOptions::default()).await.unwrap());
    }
    let (first, index, rest) = futures::future::select_all(pulls.iter_mut().map(|pull| Box::pin(pull.next()))).await;
    drop(rest);
    let mut pull = pulls.swap_remove(index);
    let mut batch = first.unwrap();
    let (began, mut seen) = (Instant::now(), 0);
    loop {
        seen += batch.len();
        pull.ack_through(batch.last().unwrap().stream_seq).await.unwrap();
        if seen >= MESSAGES {
            break;
        }
        batch = pull.next().await.unwrap();
    }
    println!("followed {:.0}/s", rate(began));
    bus.end().await.unwrap();
}
