use bus::testing::{self, TestBus};
use bus::{Bus, BusError, BusOptions, BusState, StreamLimits, subject};

use crate::support::{Notes, frame, holds, jetstream, runnable};

#[tokio::test]
async fn several_reconcile_at_once_and_again_with_other_limits() {
    let namespace = testing::namespace();
    let buses = futures::future::join_all((0..4).map(|_| Bus::connect(testing::options(namespace.clone())))).await;
    let buses: Vec<Bus> = buses.into_iter().map(Result::unwrap).collect();
    let mut topology = testing::topology();
    for outcome in futures::future::join_all(buses.iter().map(|bus| bus.reconcile(&topology))).await {
        outcome.unwrap();
    }
    buses[0].publisher().publish(runnable("a")).await.unwrap();

    // A roll-out changes limits and adds a filter while instances with the old ones still start.
    for stream in &mut topology.streams {
        stream.limits = StreamLimits { max_bytes: stream.limits.max_bytes / 2, ..stream.limits };
    }
    topology.consumers.iter_mut().find(|consumer| consumer.name == "approval").unwrap().filters.push("evt.x.>".into());
    for outcome in futures::future::join_all(buses.iter().map(|bus| bus.reconcile(&topology))).await {
        outcome.unwrap();
    }
    assert_eq!(buses[1].stream_status("EVENTS").await.unwrap().messages, 1);
    holds(&buses[1], "planner", 1).await;
    let bus = TestBus::adopt(buses[0].clone());
    bus.end().await.unwrap();
}

#[tokio::test]
async fn every_subject_lands_in_its_stream() {
    let bus = TestBus::start().await.unwrap();
    let publisher = bus.publisher();
    for subject in [
        subject::in_("default", "github", "com.github.push"),
        subject::log("default", "checkout"),
        subject::sig("default", "run", "call"),
        subject::evt("tool.requested", "default", "run"),
        subject::dlq("planner"),
    ] {
        publisher.publish(bus::Outgoing::new(subject, "x")).await.unwrap();
    }
    for (stream, messages) in [("INBOUND", 1), ("SIGNALS", 2), ("EVENTS", 1), ("DLQ", 1)] {
        assert_eq!(bus.stream_status(stream).await.unwrap().messages, messages, "{stream}");
    }
    for (consumer, pending) in [("ingress", 1), ("artifact", 2), ("tool-executor", 1), ("planner", 0)] {
        holds(&bus, consumer, pending).await;
    }
    bus.end().await.unwrap();
}

#[tokio::test]
async fn namespaces_do_not_meet() {
    let (one, other) = (TestBus::start().await.unwrap(), TestBus::start().await.unwrap());
    one.publisher().publish(runnable("a")).await.unwrap();
    one.publisher().publish(frame("c", 0)).await.unwrap();
    assert_eq!(other.stream_status("EVENTS").await.unwrap().messages, 0);
    assert_eq!(other.stream_status("SIGNALS").await.unwrap().messages, 0);
    one.end().await.unwrap();
    other.end().await.unwrap();
}

#[tokio::test]
async fn tells_why_it_can_not_connect() {
    let options = |url: &str| BusOptions {
        connect_within: std::time::Duration::from_millis(300),
        ..BusOptions::new(url, "test")
    };
    // Port 9 is the discard service, where nobody listens.
    let error = Bus::connect(options("nats://user:s3cret@127.0.0.1:9")).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"));
    let error = Bus::connect(options("nats://u:s3cret@host:port:port")).await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"));
}

#[tokio::test]
async fn drains_in_order() {
    let bus = TestBus::start().await.unwrap();
    let second = Bus::connect(testing::options(bus.namespace().clone())).await.unwrap();
    assert_eq!(second.state(), BusState::Connected);
    second.drain().await.unwrap();
    assert_eq!(second.state(), BusState::Closed);
    assert!(matches!(second.flush().await, Err(BusError::Flush { .. })));
    bus.end().await.unwrap();
}

#[tokio::test]
async fn mending_changes_no_settings() {
    let bus = TestBus::start().await.unwrap();
    let settings = |bus: &TestBus| {
        let name = bus.namespace().name("EVENTS");
        async move {
            let mut stream = jetstream().await.get_stream(name).await.unwrap();
            (stream.info().await.unwrap().config.clone(), stream)
        }
    };
    // Another version of the system has other limits; only the consumer is lost.
    let mut topology = testing::topology();
    topology.streams.iter_mut().for_each(|stream| stream.limits.max_age *= 2);
    let other = Bus::connect(testing::options(bus.namespace().clone())).await.unwrap();
    other.reconcile(&topology).await.unwrap();
    let (before, stream) = settings(&bus).await;
    stream.delete_consumer(&bus.namespace().name("planner")).await.unwrap();

    let token = tokio_util::sync::CancellationToken::new();
    let notes = Notes::default();
    let seen = notes.clone();
    let handler = move |_| {
        seen.add("handled");
        async { Ok(bus::Outcome::Ack) }
    };
    let consuming = bus.consume("planner", bus::ConsumeOptions::default(), handler, token.clone()).unwrap();
    bus.publisher().publish(runnable("a")).await.unwrap();
    notes.wait_for(1).await;
    assert_eq!(settings(&bus).await.0, before);
    token.cancel();
    consuming.join().await;
    bus.end().await.unwrap();
}
