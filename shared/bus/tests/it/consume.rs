use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bus::testing::TestBus;
use bus::{BusError, ConsumeOptions, Delivery, Outcome, Outgoing, header, subject};
use tokio_util::sync::CancellationToken;

use crate::support::{Notes, are_dead, holds, impatient, jetstream, patient, runnable, settled, status, until, within};

const MS: Duration = Duration::from_millis(1);

fn quick() -> ConsumeOptions {
    ConsumeOptions { retry_min: 5 * MS, retry_max: 50 * MS, max_attempts: 3, ..ConsumeOptions::default() }
}

#[tokio::test]
async fn handles_every_message_and_leaves_none_behind() {
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let handler = move |delivery: Delivery| {
        seen.add(format!("{} {}", delivery.subject, delivery.delivered));
        async { Ok(Outcome::Ack) }
    };
    // Two instances share the work.
    let one = bus.consume("planner", quick(), handler.clone(), token.clone()).unwrap();
    let two = bus.consume("planner", quick(), handler, token.clone()).unwrap();
    let results = bus.publisher().publish_all((0..500).map(|n| runnable(&n.to_string())).collect()).await;
    assert!(results.iter().all(Result::is_ok));
    let notes = notes.wait_for(500).await;
    let distinct: BTreeSet<_> = notes.iter().collect();
    assert_eq!(distinct.len(), 500);
    assert!(distinct.contains(&"evt.run.runnable.default.7 1".to_owned()));
    token.cancel();
    within("the end", futures::future::join(one.join(), two.join())).await;
    settled(&bus, "planner").await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn shows_what_the_publisher_sent() {
    let bus = TestBus::start().await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let before = jiff::Timestamp::now();
    let consuming = bus
        .consume(
            "planner",
            quick(),
            move |delivery| {
                let age = delivery.published_at.duration_since(before);
                assert!(age.as_secs().abs() < 60, "{age}");
                let body: serde_json::Value = delivery.json().unwrap();
                seen.add(format!("{body} {} {}", delivery.traceparent().unwrap(), delivery.msg_id().unwrap()));
                seen.add(delivery.headers.get("X-Odd").unwrap().to_owned());
                async { Ok(Outcome::Ack) }
            },
            token.clone(),
        )
        .unwrap();
    let message = Outgoing::json(subject::evt("run.runnable", "default", "r"), &serde_json::json!({"seq": 1}))
        .unwrap()
        .traceparent(parent)
        .msg_id("r-1")
        .header("X-Odd", "a\r\nInjected: b");
    bus.publisher().publish(message).await.unwrap();
    let notes = notes.wait_for(2).await;
    assert_eq!(notes, [format!("{{\"seq\":1}} {parent} r-1"), "a  Injected: b".to_owned()]);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn failures_are_repeated_and_then_kept_with_their_reason_while_others_flow() {
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let consuming = bus
        .consume(
            "planner",
            quick(),
            move |delivery| {
                let run = String::from_utf8_lossy(&delivery.payload).into_owned();
                seen.add(format!("{run} {}", delivery.delivered));
                async move {
                    match (run.as_str(), delivery.delivered) {
                        ("errs", _) => Err("no database".into()),
                        ("panics", _) => panic!("oh no"),
                        ("recovers", 1) => Ok(Outcome::retry("once")),
                        ("dead", _) => Ok(Outcome::dead("can't be read")),
                        _ => Ok(Outcome::Ack),
                    }
                }
            },
            token.clone(),
        )
        .unwrap();
    let runs = ["errs", "good", "panics", "recovers", "dead"];
    bus.publisher().publish_all(runs.map(runnable).to_vec()).await;
    // 3 + 1 + 3 + 2 + 1 attempts.
    notes.wait_for(10).await;
    until("three dead letters", async || are_dead(&bus, 3).await).await;
    let mut reasons: Vec<_> = bus
        .dlq_list(10, None)
        .await
        .unwrap()
        .letters
        .into_iter()
        .map(|letter| format!("{} {} {}: {}", letter.subject, letter.consumer, letter.attempts, letter.reason))
        .collect();
    reasons.sort();
    assert_eq!(
        reasons,
        [
            "evt.run.runnable.default.dead planner 1: can't be read",
            "evt.run.runnable.default.errs planner 3: no database",
            "evt.run.runnable.default.panics planner 3: the handler panicked: oh no",
        ]
    );
    token.cancel();
    consuming.join().await;
    assert_eq!(notes.count(), 10);
    settled(&bus, "planner").await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_slow_handler_keeps_its_message() {
    let bus = impatient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let handler = move |_| {
        let seen = seen.clone();
        async move {
            seen.add("begun");
            // Three times as long as the server waits without a word.
            tokio::time::sleep(Duration::from_secs(6)).await;
            seen.add("done");
            Ok(Outcome::Ack)
        }
    };
    let consuming = bus.consume("planner", quick(), handler, token.clone()).unwrap();
    bus.publisher().publish(runnable("slow")).await.unwrap();
    assert_eq!(notes.wait_for(2).await, ["begun", "done"]);
    token.cancel();
    consuming.join().await;
    settled(&bus, "planner").await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_stuck_handler_loses_its_message() {
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let handler = move |delivery: Delivery| {
        seen.add(format!("attempt {}", delivery.delivered));
        async move {
            if delivery.delivered == 1 {
                std::future::pending::<()>().await;
            }
            Ok(Outcome::Ack)
        }
    };
    let options = ConsumeOptions { timeout: Some(100 * MS), ..quick() };
    let consuming = bus.consume("planner", options, handler, token.clone()).unwrap();
    bus.publisher().publish(runnable("stuck")).await.unwrap();
    assert_eq!(notes.wait_for(2).await, ["attempt 1", "attempt 2"]);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn deferring_costs_no_attempt_and_stops_the_pulling() {
    let bus = patient().await;
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let (calls, down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (counted, is_down) = (calls.clone(), down.clone());
    let options = ConsumeOptions { concurrency: 2, ..quick() };
    let consuming = bus
        .consume(
            "planner",
            options,
            move |delivery| {
                counted.fetch_add(1, Ordering::SeqCst);
                let is_down = is_down.load(Ordering::SeqCst);
                if !is_down {
                    seen.add(format!("{} {}", String::from_utf8_lossy(&delivery.payload), delivery.delivered));
                }
                async move {
                    Ok(if is_down {
                        Outcome::Defer { after: Some(70 * MS), reason: "down".into() }
                    } else {
                        Outcome::Ack
                    })
                }
            },
            token.clone(),
        )
        .unwrap();
    bus.publisher().publish_all(["a", "b", "c", "d"].map(runnable).to_vec()).await;
    // The database is down for far longer than a message may fail.
    until("many deferrals", async || calls.load(Ordering::SeqCst) >= 40).await;
    holds(&bus, "planner", 2).await;
    down.store(false, Ordering::SeqCst);
    let mut notes = notes.wait_for(4).await;
    notes.sort();
    assert_eq!(notes, ["a 1", "b 1", "c 1", "d 1"]);
    assert!(bus.dlq_list(1, None).await.unwrap().letters.is_empty());
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn runs_no_more_handlers_than_allowed_and_takes_no_more_than_it_can_hold() {
    let bus = patient().await;
    let token = CancellationToken::new();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let notes = Notes::default();
    let (gate, open) = tokio::sync::watch::channel(false);
    let options = ConsumeOptions { concurrency: 3, prefetch: 2, ..quick() };
    let consuming = {
        let (running, most, notes) = (running.clone(), most.clone(), notes.clone());
        bus.consume(
            "planner",
            options,
            move |_| {
                let (running, most, notes, mut open) = (running.clone(), most.clone(), notes.clone(), open.clone());
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    open.wait_for(|open| *open).await?;
                    running.fetch_sub(1, Ordering::SeqCst);
                    notes.add("done");
                    Ok(Outcome::Ack)
                }
            },
            token.clone(),
        )
        .unwrap()
    };
    bus.publisher().publish_all((0..20).map(|n| runnable(&n.to_string())).collect()).await;
    until("three handlers", async || running.load(Ordering::SeqCst) == 3).await;
    until("two in line", async || status(&bus, "planner", |status| status.unacknowledged == 5).await).await;
    holds(&bus, "planner", 15).await;
    gate.send_replace(true);
    notes.wait_for(20).await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_message_whose_handler_never_answers_becomes_a_dead_letter() {
    let bus = patient().await;
    // A process that dies under the message: delivered again and again, never settled.
    let stream = jetstream().await.get_stream(bus.namespace().name("EVENTS")).await.unwrap();
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        stream.get_consumer(&bus.namespace().name("planner")).await.unwrap();
    bus.publisher().publish(runnable("killer")).await.unwrap();
    for _ in 0..6 {
        use futures::StreamExt as _;
        let mut batch = consumer.batch().max_messages(1).expires(Duration::from_secs(60)).messages().await.unwrap();
        let message = within("a delivery", batch.next()).await.unwrap().unwrap();
        message.ack_with(async_nats::jetstream::AckKind::Nak(None)).await.unwrap();
    }
    let token = CancellationToken::new();
    let notes = Notes::default();
    let seen = notes.clone();
    let consuming = bus
        .consume(
            "planner",
            quick(),
            move |_| {
                seen.add("handled");
                async { Ok(Outcome::Ack) }
            },
            token.clone(),
        )
        .unwrap();
    until("a dead letter", async || are_dead(&bus, 1).await).await;
    let letter = bus.dlq_list(1, None).await.unwrap().letters.remove(0);
    assert_eq!(letter.reason, "delivered 6 times and never answered");
    token.cancel();
    consuming.join().await;
    assert_eq!(notes.count(), 0);
    bus.end().await.unwrap();
}

#[tokio::test]
async fn an_unknown_consumer_is_refused_at_once() {
    let bus = TestBus::start().await.unwrap();
    let outcome = bus.consume("nobody", quick(), |_| async { Ok(Outcome::Ack) }, CancellationToken::new()).map(|_| ());
    assert!(matches!(outcome, Err(BusError::UnknownConsumer { .. })));
    assert!(matches!(
        bus.ordered_pull("planner", bus::OrderedOptions::default()).await.map(|_| ()),
        Err(BusError::UnknownConsumer { .. })
    ));
    bus.end().await.unwrap();
}

#[tokio::test]
async fn signals_show_their_own_subject_and_partition() {
    let bus = TestBus::start().await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let seen = notes.clone();
    let consuming = bus
        .consume(
            "artifact",
            quick(),
            move |delivery| {
                let offset = delivery.headers.get(header::OFFSET).unwrap_or_default();
                seen.add(format!("{} {} {}", delivery.subject, delivery.partition.unwrap(), offset));
                async { Ok(Outcome::Ack) }
            },
            token.clone(),
        )
        .unwrap();
    let signal = |offset: u32| Outgoing::new(subject::sig("t", "r", "c"), "x").header(header::OFFSET, offset);
    bus.publisher().publish_all(vec![signal(0), signal(1)]).await;
    bus.publisher().publish(Outgoing::new(subject::log("t", "web"), "x")).await.unwrap();
    let notes = notes.wait_for(3).await;
    let signals: Vec<_> = notes.iter().filter(|note| note.starts_with("sig.t.r.c ")).collect();
    assert_eq!(signals.len(), 2);
    assert_eq!(signals[0].split(' ').nth(1), signals[1].split(' ').nth(1), "one call, one partition");
    assert_eq!(notes.iter().filter(|note| note.starts_with("log.t.web ")).count(), 1);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}

/// What a recorder has of a metric of the consumer `planner`.
fn shown(handle: &metrics_exporter_prometheus::PrometheusHandle, metric: &str) -> Option<f64> {
    let prefix = format!("{metric}{{consumer=\"planner\"}} ");
    handle.render().lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok())
}

#[tokio::test]
async fn what_waits_for_a_stuck_consumer_is_shown() {
    let bus = TestBus::start().await.unwrap();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let (handle, token, notes) = (recorder.handle(), CancellationToken::new(), Notes::default());
    let options = ConsumeOptions { concurrency: 1, look: 20 * MS, drain: 100 * MS, ..quick() };
    let begun = notes.clone();
    let handler = move |_: Delivery| {
        begun.add("begun");
        std::future::pending()
    };
    bus.publisher().publish(runnable("first")).await.unwrap();
    // Its figures are made where it is told to begin.
    let consuming = metrics::with_local_recorder(&recorder, || bus.consume("planner", options, handler, token.clone()));
    notes.wait_for(1).await;
    // Nothing is delivered any more, and more and more waits.
    for name in ["second", "third"] {
        bus.publisher().publish(runnable(name)).await.unwrap();
    }
    until("both are shown", async || shown(&handle, "bus_consumer_pending_messages") == Some(2.0)).await;
    until("the first is", async || shown(&handle, "bus_consumer_unacknowledged_messages") == Some(1.0)).await;
    token.cancel();
    within("the end", consuming.unwrap().join()).await;
    assert_eq!(shown(&handle, "bus_consumer_pending_messages"), Some(0.0), "whoever has stopped says nothing");
    bus.end().await.unwrap();
}
