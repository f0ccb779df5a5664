use bus::testing::TestBus;
use bus::{Bus, ConsumeOptions, DlqFilter, Outcome, Outgoing, header, subject};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::support::{Notes, until};

/// Publishes and has the consumer give up on every message.
async fn kill(bus: &Bus, consumer: &str, messages: Vec<Outgoing>) {
    let before = bus.stream_status("DLQ").await.unwrap().last_seq;
    let count = messages.len() as u64;
    let token = CancellationToken::new();
    let options = ConsumeOptions { concurrency: 1, ..ConsumeOptions::default() };
    let consuming = bus.consume(consumer, options, |_| async { Ok(Outcome::dead("told to")) }, token.clone()).unwrap();
    assert!(bus.publisher().publish_all(messages).await.iter().all(Result::is_ok));
    let are_kept = async || bus.stream_status("DLQ").await.is_ok_and(|status| status.last_seq == before + count);
    until("the dead letters", are_kept).await;
    token.cancel();
    consuming.join().await;
}

fn runnable(run: &str) -> Outgoing {
    Outgoing::new(subject::evt("run.runnable", "default", run), run.to_owned())
        .msg_id(format!("{run}-1"))
        .header("X-Kept", "yes")
}

#[tokio::test]
async fn keeps_everything_and_lists_it_by_pages() {
    let bus = TestBus::start().await.unwrap();
    let before = jiff::Timestamp::now();
    kill(&bus, "planner", (0..5).map(|n| runnable(&n.to_string())).collect()).await;
    let first = bus.dlq_list(2, None).await.unwrap();
    let rest = bus.dlq_list(10, first.cursor).await.unwrap();
    assert_eq!((first.letters.len(), rest.letters.len(), rest.cursor), (2, 3, None));
    let letter = &first.letters[0];
    assert_eq!(letter.subject, "evt.run.runnable.default.0");
    assert_eq!(letter.consumer, "planner");
    assert_eq!(letter.reason, "told to");
    assert_eq!(letter.attempts, 1);
    assert_eq!(letter.payload, Bytes::from_static(b"0"));
    assert!(letter.at.unwrap() >= before);
    let mut headers: Vec<_> = letter.headers.iter().collect();
    headers.sort_unstable();
    assert_eq!(headers, [(header::MSG_ID, "0-1"), ("X-Kept", "yes")]);
    bus.end().await.unwrap();
}

#[tokio::test]
async fn redrives_what_the_filter_takes_to_where_it_came_from() {
    let bus = TestBus::start().await.unwrap();
    let signal = |call: &str| Outgoing::new(subject::sig("default", "run", call), call.to_owned());
    kill(&bus, "planner", vec![runnable("a"), runnable("b")]).await;
    kill(&bus, "artifact", vec![signal("c")]).await;

    let (notes, token) = (Notes::default(), CancellationToken::new());
    let consuming: Vec<_> = ["planner", "artifact"]
        .into_iter()
        .map(|consumer| {
            let seen = notes.clone();
            bus.consume(
                consumer,
                ConsumeOptions::default(),
                move |delivery| {
                    let kept = delivery.headers.get("X-Kept").unwrap_or("no");
                    seen.add(format!("{} {kept} {}", delivery.subject, delivery.msg_id().unwrap_or_default()));
                    async { Ok(Outcome::Ack) }
                },
                token.clone(),
            )
            .unwrap()
        })
        .collect();
    let filter = DlqFilter { subject: Some("evt.*.*.default.b".into()), ..DlqFilter::default() };
    assert_eq!(bus.dlq_redrive(&filter).await.unwrap().redriven, 1);
    assert_eq!(notes.wait_for(1).await, ["evt.run.runnable.default.b yes b-1:redrive-2"]);
    assert_eq!(bus.dlq_list(10, None).await.unwrap().letters.len(), 2);

    let filter = DlqFilter { consumer: Some("artifact".into()), ..DlqFilter::default() };
    assert_eq!(bus.dlq_redrive(&filter).await.unwrap().redriven, 1);
    assert_eq!(notes.wait_for(2).await[1], "sig.default.run.c no :redrive-3");

    let filter = DlqFilter { seqs: Some(vec![7]), ..DlqFilter::default() };
    assert_eq!(bus.dlq_redrive(&filter).await.unwrap().redriven, 0);
    assert_eq!(bus.dlq_redrive(&DlqFilter::default()).await.unwrap().redriven, 1);
    notes.wait_for(3).await;
    assert!(bus.dlq_list(10, None).await.unwrap().letters.is_empty());
    token.cancel();
    for consuming in consuming {
        consuming.join().await;
    }
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_message_too_large_for_its_reason_is_kept_without_its_body() {
    let bus = TestBus::start().await.unwrap();
    let size = bus.max_payload() - 100;
    let large = Outgoing::new(subject::evt("run.runnable", "default", "big"), vec![b'x'; size]);
    kill(&bus, "planner", vec![large]).await;
    let letter = bus.dlq_list(1, None).await.unwrap().letters.remove(0);
    assert_eq!((letter.omitted, letter.payload.len()), (Some(size as u64), 0));
    let redriven = bus.dlq_redrive(&DlqFilter::default()).await.unwrap();
    assert_eq!((redriven.redriven, redriven.failed), (0, 1));
    assert_eq!(bus.dlq_list(10, None).await.unwrap().letters.len(), 1);
    bus.end().await.unwrap();
}
