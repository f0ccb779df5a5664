//! The health of a service beside any action, as a collector sends it: each of six ways not to be well is told once, starts one
//! run, and is told to be over.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    forge::Forge,
    harness::{House, resource, until},
    receiver::Receiver,
};

const KEEPER: &str = "name: night-watch
model: scripted:complete
instructions: Look after the shop.
watch:
  - service: shop
    health:
      - { name: queue, field: { name: queue.depth, above: 100, clear: 50 }, clear_after: 1s }
      - { name: errors, errors: { count: 3, over: 2s }, clear_after: 1s }
      - { name: restarts, field: { name: k8s.container.restarts, rise: true, above: 2, over: 5s }, clear_after: 1s }
      - { name: disk, field: { name: system.filesystem.utilization, only: { state: used }, above: 0.9 }, clear_after: 1s }
      - { name: memory, field: { name: process.memory.usage, above: 1e9 }, clear_after: 1s }
      - { name: sessions, lines: { match: 'session \\w+ expired', count: 2, over: 2s }, clear_after: 1s }
    start: { input: 'Say what is wrong with the shop.' }
";

/// A metric with a point for each of these labels.
fn gauge(name: &str, points: &[(&[(&str, &str)], f64)]) -> Value {
    let label = |(key, value): &(&str, &str)| json!({ "key": key, "value": { "stringValue": value } });
    let point = |(labels, number): &(&[(&str, &str)], f64)| json!({ "asDouble": number, "attributes": labels.iter().map(label).collect::<Vec<_>>() });
    json!({ "name": name, "gauge": { "dataPoints": points.iter().map(point).collect::<Vec<_>>() } })
}

async fn measure(house: &House, metrics: &[Value]) {
    let document =
        json!({ "resourceMetrics": [{ "resource": resource("shop"), "scopeMetrics": [{ "metrics": metrics }] }] });
    house.post("/v1/metrics", &document).await;
}

/// Metrics of a shop that is well but for what is said.
fn metrics(queue: f64, restarts: f64, disk: f64, memory: f64) -> Vec<Value> {
    let disks: [(&[(&str, &str)], f64); 4] = [
        (&[("mountpoint", "/data"), ("state", "used")], disk),
        (&[("mountpoint", "/data"), ("state", "free")], 1.0 - disk),
        (&[("mountpoint", "/"), ("state", "used")], 0.02),
        (&[("mountpoint", "/"), ("state", "free")], 0.98),
    ];
    vec![
        gauge("queue.depth", &[(&[], queue)]),
        gauge("k8s.container.restarts", &[(&[("pod", "shop-1")], restarts), (&[("pod", "shop-2")], 40.0)]),
        gauge("system.filesystem.utilization", &disks),
        gauge("process.memory.usage", &[(&[], memory)]),
    ]
}

async fn states(house: &House) -> BTreeMap<String, String> {
    let alerts = house.get("/v1/alerts").await;
    let of = |alert: &Value| (alert["rule"].as_str().unwrap().to_owned(), alert["state"].as_str().unwrap().to_owned());
    let ours = |(rule, _): &(String, String)| {
        ["queue", "errors", "restarts", "disk", "memory", "sessions"].contains(&rule.as_str())
    };
    alerts["items"].as_array().unwrap().iter().map(of).filter(ours).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_not_to_be_well_is_told_once_and_so_is_its_end() {
    let forge = Forge::start().await;
    let (_receiver, otlp) = Receiver::start().await;
    let house = House::prepared(forge.address, otlp, &[KEEPER.to_owned()], |_| ()).await;
    measure(&house, &metrics(10.0, 17.0, 0.5, 5e8)).await;
    measure(&house, &metrics(150.0, 20.0, 0.95, 2e9)).await;
    // It goes on: that is nothing new.
    measure(&house, &metrics(160.0, 20.0, 0.96, 2.1e9)).await;
    let lines = ["ERROR no route to 1", "ERROR no route to 2", "ERROR no route to 3", "ERROR no route to 4"];
    let expired = ["INFO session a1 expired", "INFO session b2 expired", "INFO session c3 expired"];
    house.log("shop", &[lines.as_slice(), expired.as_slice()].concat()).await;

    let runs = async || house.get("/v1/runs?agent=night-watch").await["items"].as_array().unwrap().clone();
    until("a run for each", || async { (runs().await.len() >= 6).then_some(()) }).await;
    assert_eq!(states(&house).await.len(), 6, "{:#}", house.get("/v1/alerts").await);
    measure(&house, &metrics(10.0, 20.0, 0.5, 5e8)).await;
    until("all is well again", || async {
        let states = states(&house).await;
        states.values().all(|state| state == "recovered").then_some(())
    })
    .await;
    let runs = runs().await;
    assert_eq!(runs.len(), 6, "one for each, however long it lasted: {runs:#?}");
    house.end().await;
}
