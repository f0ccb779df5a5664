//! A log that lies: what it says of an action is held against the world, in each of the four ways of the example in
//! `infra/agents/examples/verify`, as its files have them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    extract::{Path as Place, Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use kernel::{agent::AgentSpec, units, watch::VerifyStep};
use serde_json::{Value, json};

use crate::{
    forge::Forge,
    harness::{House, until},
    receiver::Receiver,
};

/// What is asked about an order, as its name says: it was shipped, it was not, and whoever is asked can't tell.
const ORDERS: [(&str, &str); 3] = [("true", "took_effect"), ("lies", "failed"), ("lost", "unsure")];

/// The shop, as HTTP shows it: pages of its orders, and Prometheus beside it.
#[derive(Clone, Default)]
struct Shop {
    shipped: Arc<Mutex<BTreeSet<String>>>,
}

impl Shop {
    async fn start(&self) -> SocketAddr {
        let routes = Router::new()
            .route("/orders/{id}", get(order))
            .route("/api/v1/query", get(metric))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    fn has_shipped(&self, id: &str) -> bool {
        self.shipped.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

/// The page of an order; one is a page of another kind, as a proxy would give it.
async fn order(State(shop): State<Shop>, Place(id): Place<String>) -> Response {
    if id.ends_with("lost") {
        return (StatusCode::OK, "<h1>Please log in</h1>").into_response();
    }
    let state = if shop.has_shipped(&id) { "shipped" } else { "new" };
    Json(json!({ "id": id, "state": state })).into_response()
}

/// An instant query as Prometheus answers it; a counter that nobody has touched is no series.
async fn metric(State(shop): State<Shop>, Query(asked): Query<BTreeMap<String, String>>) -> Response {
    let id =
        asked["query"].strip_prefix("sum(orders_shipped_total{order=\"").and_then(|rest| rest.strip_suffix("\"})"));
    let Some(id) = id else { return (StatusCode::BAD_REQUEST, Json(json!({ "status": "error" }))).into_response() };
    let number = if shop.has_shipped(id) { "1" } else { "0" };
    let series = json!({ "metric": {}, "value": [1_767_323_045.0, number] });
    let result = if id.ends_with("lost") { Vec::new() } else { vec![series] };
    Json(json!({ "status": "success", "data": { "resultType": "vector", "result": result } })).into_response()
}

/// The example's tools, with the shop of this test in the place of a real one.
fn write_tools(folder: &Path, shop: SocketAddr) {
    let tools = folder.join("agents/tools");
    let examples = example().join("tools");
    std::fs::create_dir_all(folder.join("shop/orders")).unwrap();
    let command = folder.join("shop/orderctl");
    std::fs::write(&command, ORDERCTL).unwrap();
    std::fs::set_permissions(&command, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let place = |text: String, from: &str, to: &str| {
        assert!(text.contains(from), "{from} in {text}");
        text.replace(from, to)
    };
    let status = std::fs::read_to_string(examples.join("orders.status.yaml")).unwrap();
    let status = place(status, "/opt/shop/bin/orderctl", command.to_str().unwrap());
    // What is looked at in vain counts as unsure: only what can't be looked at is to be that.
    let patient = |text: String| place(text, "timeout: 10s", "timeout: 60s");
    let status = place(status, "network: true", &format!("network: true\n    read: [\"{}/shop\"]", folder.display()));
    std::fs::write(tools.join("orders.status.yaml"), patient(status)).unwrap();
    let row = std::fs::read_to_string(examples.join("orders.row.yaml")).unwrap();
    std::fs::write(tools.join("orders.row.yaml"), patient(row)).unwrap();
    let metrics = std::fs::read_to_string(tools.join("metrics.query.yaml")).unwrap();
    let metrics = place(metrics, "{env:ESC_PROMETHEUS_URL}", &format!("http://{shop}"));
    std::fs::write(tools.join("metrics.query.yaml"), patient(metrics)).unwrap();
}

/// The shop's own command: the state of an order, or exit code 3 if there is none.
const ORDERCTL: &str = r#"#!/bin/sh
[ "$1" = status ] && [ "$2" = -- ] && [ $# = 3 ] || exit 2
case "$3" in *lost) echo "the shop's books are closed" >&2; exit 1;; esac
cat "$(dirname "$0")/orders/$3" 2>/dev/null || { echo "no such order"; exit 3; }
"#;

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents/examples/verify")
}

/// The example's agent, once for each of its steps: it watches a service of its own and takes that step alone.
fn agents(shop: SocketAddr) -> Vec<(String, AgentSpec)> {
    let yaml = std::fs::read_to_string(example().join("agents/orders-keeper.yaml")).unwrap();
    let whole = engine::parse(&yaml.replace("orders.internal:8080", &shop.to_string())).unwrap();
    let steps = whole.watch[0].actions.as_ref().unwrap().verify.clone();
    let of_step = |step: VerifyStep| {
        let mut spec = whole.clone();
        let kind = step.tool.replace('.', "-");
        spec.name = format!("{}-{kind}", whole.name);
        let watch = &mut spec.watch[0];
        watch.service = format!("orders-{kind}");
        watch.start = None;
        let actions = watch.actions.as_mut().unwrap();
        (actions.verify, actions.settle) = (vec![step], Some(units::Duration::from_secs(1)));
        (watch.service.clone(), spec)
    };
    steps.into_iter().map(of_step).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_log_says_is_held_against_the_world_in_four_ways() {
    let (forge, shop) = (Forge::start().await, Shop::default());
    let (_receiver, otlp) = Receiver::start().await;
    let address = shop.start().await;
    let agents = agents(address);
    let files: Vec<_> = agents.iter().map(|(_, spec)| serde_json::to_string(spec).unwrap()).collect();
    let house = House::prepared(forge.address, otlp, &files, |folder| write_tools(folder, address)).await;
    // An order that can't be read, as its state is stored in a way that nobody knows any more.
    let orders = "create table stored (number text, state text, shipped_at timestamptz);
                  insert into stored values ('orders-row-true', 'shipped', now()), ('orders-row-lies', 'new', null),
                                            ('orders-row-lost', 'no state', null);
                  create view orders as select number, shipped_at,
                      case when state = 'no state' then (state::int)::text else state end as state from stored";
    house.stack.sql(orders).await.unwrap();
    std::fs::write(house.folder.path().join("secrets/ORDERS_DATABASE"), house.stack.database_url()).unwrap();

    let mut expected = Vec::new();
    for (service, _) in agents {
        let kind = service.strip_prefix("orders-").unwrap().to_owned();
        for (order, outcome) in ORDERS {
            let id = format!("{kind}-{order}");
            if order == "true" {
                shop.shipped.lock().unwrap().insert(id.clone());
                std::fs::write(house.folder.path().join("shop/orders").join(&id), "shipped\n").unwrap();
            }
            let action = house.act(&service, &id).await;
            // Whatever has happened, this is what the log says.
            house.log(&service, &[&format!("INFO order {id} shipped")]).await;
            expected.push((id, action, outcome));
        }
    }
    assert_eq!(expected.len(), 12, "four ways, three orders");
    for (id, action, outcome) in expected {
        let told = until("it is concluded", || async {
            let action = house.get(&format!("/v1/actions/{action}")).await;
            action["conclusion"].is_object().then(|| action["conclusion"].clone())
        })
        .await;
        assert_eq!(told["outcome"], outcome, "{id}: {told:#}");
        let (observation, verified) = (&told["observation"], &told["verified"][0]);
        assert_eq!(observation["anomaly"], json!(outcome == "failed"), "{id}: {told:#}");
        let holds = [("took_effect", json!(true)), ("failed", json!(false)), ("unsure", Value::Null)];
        let shown = &holds.iter().find(|(name, _)| *name == outcome).unwrap().1;
        assert_eq!(verified.get("holds").unwrap_or(&Value::Null), shown, "{id}: {told:#}");
        let missing = observation["missing"].as_str().unwrap_or_default();
        assert_eq!(missing.contains(verified["tool"].as_str().unwrap()), outcome == "unsure", "{id}: {missing}");
    }
    house.end().await;
}
