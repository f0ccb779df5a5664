//! Headers that the client can't read: anybody who may publish may send them.

use bus::testing::{self, TestBus};
use bus::{Bus, BusState, ConsumeOptions, Delivery, OrderedOptions, Outcome, Outgoing, subject};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use crate::support::{Notes, settled, until, within};

/// Publishes with a header block as it stands.
async fn publish_raw(subject: &str, block: &[u8], body: &[u8]) {
    let server = testing::url().rsplit(['/', '@']).next().unwrap().to_owned();
    let mut stream = BufReader::new(tokio::net::TcpStream::connect(server).await.unwrap());
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let head = format!("HPUB {subject} {} {}\r\n", block.len(), block.len() + body.len());
    let mut out = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(block);
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\nPING\r\n");
    stream.write_all(&out).await.unwrap();
    let mut pong = [0; 6];
    stream.read_exact(&mut pong).await.unwrap();
    assert_eq!(&pong, b"PONG\r\n");
}

#[tokio::test]
async fn no_header_block_stops_a_consumer_or_is_lost() {
    let bus = TestBus::start().await.unwrap();
    let (notes, token) = (Notes::default(), CancellationToken::new());
    let options = || ConsumeOptions { max_attempts: 1, ..ConsumeOptions::default() };
    let consuming: Vec<_> = ["ingress", "artifact"]
        .into_iter()
        .map(|consumer| {
            let seen = notes.clone();
            let handler = move |delivery: Delivery| {
                let outcome = match &delivery.payload[..] {
                    b"good" => Outcome::Ack,
                    _ => Outcome::dead(format!("ce-id is {:?}", delivery.headers.get("ce-id"))),
                };
                seen.add(String::from_utf8_lossy(&delivery.payload));
                async { Ok(outcome) }
            };
            bus.consume(consumer, options(), handler, token.clone()).unwrap()
        })
        .collect();
    let blocks = [
        &b"NATS/1.0\r\nce-id: a\rb\r\n\r\n"[..],
        b"NATS/1.0\r\nce-id: \xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\nbad name: x\r\n\r\n",
        b"NATS/1.0 503 No Responders\r\n\r\n",
        b"NATS/1.0 400\r\n\r\n",
        b"\xff\xff\r\n\r\n",
    ];
    for block in blocks {
        for subject in ["in.default.x.y", "log.default.web"] {
            publish_raw(&bus.namespace().subject(subject), block, b"poison").await;
        }
    }
    for subject in [subject::in_("default", "x", "y"), subject::log("default", "web")] {
        bus.publisher().publish(Outgoing::new(subject, "good")).await.unwrap();
    }
    let notes = notes.wait_for(2 * blocks.len() + 2).await;
    assert_eq!(notes.iter().filter(|note| *note == "good").count(), 2);
    assert_eq!(bus.state(), BusState::Connected);
    let are_kept = async || bus.stream_status("DLQ").await.is_ok_and(|status| status.messages == 14);
    until("the dead letters", are_kept).await;
    let letters = bus.dlq_list(20, None).await.unwrap().letters;
    assert!(letters.iter().any(|letter| letter.reason == "ce-id is Some(\"a b\")"));
    token.cancel();
    for consuming in consuming {
        within("the end", consuming.join()).await;
    }
    settled(&bus, "ingress").await;
    settled(&bus, "artifact").await;
    bus.end().await.unwrap();
}

#[tokio::test]
async fn following_in_order_outlives_a_header_block() {
    let bus = TestBus::start().await.unwrap();
    publish_raw(&bus.namespace().subject("log.default.web"), b"NATS/1.0\r\na: \xff\r\n\r\n", b"poison").await;
    publish_raw(&bus.namespace().subject("log.default.web"), b"NATS/1.0\r\na: b\rc\r\n\r\n", b"poison").await;
    let mut pulls = Vec::new();
    for partition in 0..bus::PARTITIONS {
        pulls.push(bus.ordered_pull(&format!("observer-{partition}"), OrderedOptions::default()).await.unwrap());
    }
    let nexts = pulls.iter_mut().map(|pull| Box::pin(pull.next()));
    let (batch, index, rest) = within("a batch", futures::future::select_all(nexts)).await;
    drop(rest);
    let mut seen = batch.unwrap();
    while seen.len() < 2 {
        seen.extend(within("a batch", pulls[index].next()).await.unwrap());
    }
    assert!(seen.iter().all(|delivery| &delivery.payload[..] == b"poison"));
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_beyond_help_says_so() {
    // Whoever subscribes to what outsiders publish is not guarded: the process must not look well when it is not.
    let bus = TestBus::start().await.unwrap();
    let fragile = Bus::connect(testing::options(bus.namespace().clone())).await.unwrap();
    let subscription = fragile.subscribe("in.>").await.unwrap();
    fragile.flush().await.unwrap();
    publish_raw(&bus.namespace().subject("in.default.x.y"), b"NATS/1.0\r\na: b\rc\r\n\r\n", b"poison").await;
    until("the end", async || fragile.state() == BusState::Closed).await;
    drop(subscription);
    bus.end().await.unwrap();
}
