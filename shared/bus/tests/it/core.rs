use bus::testing::TestBus;
use bus::{Headers, subject};
use futures::StreamExt as _;

use crate::support::{runnable, within};

#[tokio::test]
async fn who_is_subscribed_hears_and_only_in_the_namespace() {
    let (bus, other) = (TestBus::start().await.unwrap(), TestBus::start().await.unwrap());
    let mut live = bus.subscribe(&subject::live("default", "r")).await.unwrap();
    let mut elsewhere = other.subscribe("live.>").await.unwrap();
    bus.flush().await.unwrap();
    other.flush().await.unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut headers = Headers::new();
    headers.set_traceparent(parent);
    bus.publish_core(&subject::live("default", "r"), headers, "hello").await.unwrap();
    let message = within("the message", live.next()).await.unwrap();
    assert_eq!((message.subject.as_str(), &message.payload[..]), ("live.default.r", &b"hello"[..]));
    assert_eq!(message.traceparent(), Some(parent));
    other.publish_core("live.x.y", Headers::new(), "own").await.unwrap();
    assert_eq!(within("the other message", elsewhere.next()).await.unwrap().subject, "live.x.y");
    bus.end().await.unwrap();
    other.end().await.unwrap();
}

#[tokio::test]
async fn stored_events_ring_for_subscribers_too() {
    let bus = TestBus::start().await.unwrap();
    let mut of_run = bus.subscribe(&subject::evt_of_run("default", "b")).await.unwrap();
    let mut of_tenant = bus.subscribe(&subject::evt_of_tenant("default")).await.unwrap();
    bus.flush().await.unwrap();
    bus.publisher().publish_all(vec![runnable("a"), runnable("b")]).await;
    assert_eq!(within("the event", of_run.next()).await.unwrap().subject, "evt.run.runnable.default.b");
    assert_eq!(within("the event", of_tenant.next()).await.unwrap().subject, "evt.run.runnable.default.a");
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_group_shares_the_messages() {
    let bus = TestBus::start().await.unwrap();
    let one = bus.subscribe_group("live.a.b", "group").await.unwrap();
    let two = bus.subscribe_group("live.a.b", "group").await.unwrap();
    bus.flush().await.unwrap();
    for n in 0..100_u32 {
        bus.publish_core("live.a.b", Headers::new(), n.to_string()).await.unwrap();
    }
    let both = futures::stream::select(one, two).take(100);
    let mut seen: Vec<u32> = within("all", both.map(|message| message.json::<u32>().unwrap()).collect()).await;
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    bus.end().await.unwrap();
}
