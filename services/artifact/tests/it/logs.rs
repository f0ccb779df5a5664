//! The logs of services, kept and read back.

use bus::{Outgoing, subject};
use kernel::TenantId;
use serde_json::Value;

use crate::common::{Service, World, until};

async fn publish(world: &World, service: &str, payloads: &[&str]) -> Vec<u64> {
    let messages = payloads
        .iter()
        .map(|payload| Outgoing::new(subject::log(TenantId::default(), service), (*payload).to_owned()))
        .collect();
    let acks = world.stack.bus().publisher().publish_all(messages).await;
    acks.into_iter().map(|ack| ack.unwrap().stream_seq).collect()
}

async fn lines(service: &Service, query: &str) -> Option<Vec<Value>> {
    let answer = service.get(&format!("/internal/signals?{query}")).send().await.unwrap();
    match answer.status().as_u16() {
        200 => Some(answer.json::<Value>().await.unwrap()["lines"].as_array().unwrap().clone()),
        404 => None,
        status => panic!("{status}: {}", answer.text().await.unwrap()),
    }
}

fn texts(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn evidence_opens_the_lines_around_it() {
    let world = World::new().await;
    let service = world.service().await;
    let seqs = publish(&world, "orders", &["{\"msg\":\"a\"}\n\nplain b\n", "[\"c\", {\"msg\":\"d\"}]", "e"]).await;
    publish(&world, "other", &["not of orders"]).await;
    let all = |limit: usize| format!("service=orders&limit={limit}");
    until("archive", async || lines(&service, &all(100)).await.is_some_and(|lines| lines.len() == 5)).await;

    let found = lines(&service, &all(100)).await.unwrap();
    assert_eq!(texts(&found), ["{\"msg\":\"a\"}", "plain b", "c", "{\"msg\":\"d\"}", "e"]);
    assert_eq!((found[3]["seq"].as_u64(), found[3]["line"].as_u64()), (Some(seqs[1]), Some(2)));
    // As evidence names it.
    let at = found[3]["at"].as_str().unwrap();
    let near = lines(&service, &format!("service=orders&seq={}&line=2&at={at}&context=1", seqs[1])).await.unwrap();
    assert_eq!(texts(&near), ["c", "{\"msg\":\"d\"}", "e"]);
    let without_time = lines(&service, &format!("service=orders&seq={}&line=1&context=0", seqs[2])).await.unwrap();
    assert_eq!(texts(&without_time), ["e"]);
    // By what stands in it, and bounded.
    assert_eq!(texts(&lines(&service, "service=orders&match=lain").await.unwrap()), ["plain b"]);
    assert_eq!(lines(&service, &all(2)).await.unwrap().len(), 2);
    for nothing in ["service=orders&seq=99999", "service=orders&seq=1&at=2020-01-01T00:00:00Z"] {
        assert_eq!(lines(&service, nothing).await, None, "{nothing}");
    }
    assert!(lines(&service, "tenant=other&service=orders").await.unwrap().is_empty(), "another tenant sees nothing");
    let wrong = service.get("/internal/signals?service=orders&nonsense=1").send().await.unwrap();
    assert_eq!(wrong.status().as_u16(), 400);
    service.stop().await;
    world.close().await;
}

#[tokio::test]
async fn what_waits_when_the_service_dies_is_kept_by_the_next_one() {
    let world = World::new().await;
    // It would keep them by itself only long after the test has given up: what is found was kept by the next one.
    let first = world.service_with(|config| config.segment_millis = 600_000).await;
    publish(&world, "orders", &["one", "two"]).await;
    until("delivery", async || {
        let status = world.stack.bus().consumer_status("artifact").await;
        status.is_ok_and(|status| status.unacknowledged == 2)
    })
    .await;
    drop(first);
    let second = world.service().await;
    until("archive", async || lines(&second, "service=orders").await.is_some_and(|lines| lines.len() == 2)).await;
    second.stop().await;
    world.close().await;
}
