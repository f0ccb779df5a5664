//! Health and metrics over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::routing::get as get_route;
use serde_json::{Value, json};
use service::config::Common;
use service::{Ctx, Drained, Running};

use crate::http::get;

fn common() -> Common {
    Common { listen: "127.0.0.1:0".parse().unwrap(), drain_seconds: 10, ..Common::default() }
}

/// Serves an API of its own and waits for the end.
async fn run(ctx: Ctx<Common>) -> Result<(), service::ServeError> {
    ctx.health.expect("nats");
    let router = Router::new().route("/v1/name", get_route(async move || ctx.name));
    ctx.serve(ctx.config.listen, router).await?;
    metrics::counter!("test_served_total", "service" => ctx.name).increment(3);
    metrics::histogram!("test_wait_seconds", "service" => ctx.name).record(0.02);
    ctx.shutdown.stopping().cancelled().await;
    Ok(())
}

async fn start(name: &'static str) -> (Running, std::net::SocketAddr) {
    let mut running = service::spawn(name, common(), run).unwrap();
    let addr = running.listening().await.expect("listens");
    (running, addr)
}

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let (running, addr) = start("planner").await;
    let (status, body) = get(addr, "/healthz").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["status"], &body["service"]), (200, &json!("ok"), &json!("planner")));

    let expected = json!({"service": "planner", "ready": false,
        "not_ready": [{"check": "nats", "detail": "not there yet"}]});
    let (status, body) = get(addr, "/readyz").await;
    assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (503, expected));

    running.health().set("nats", true, "");
    let up = Arc::new(AtomicBool::new(false));
    let probed = Arc::clone(&up);
    running.health().check("postgres", move || {
        let up = probed.load(Ordering::SeqCst);
        async move { if up { Ok(()) } else { Err("connection refused".to_owned()) } }
    });
    let (status, body) = get(addr, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("connection refused") && !body.contains("nats"), "{body}");
    up.store(true, Ordering::SeqCst);
    assert_eq!(get(addr, "/readyz").await.0, 200);

    running.health().set("nats", false, "disconnected");
    assert!(get(addr, "/readyz").await.1.contains("disconnected"));
    assert_eq!(running.stop().await.unwrap(), Drained::Clean);
    // Asked again, since somebody else may have the port for a moment.
    let silent = async {
        while tokio::net::TcpStream::connect(addr).await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), silent).await.expect("nobody listens any more");
}

#[tokio::test]
async fn a_check_without_an_answer_fails() {
    let (running, addr) = start("scheduler").await;
    running.health().set("nats", true, "");
    running.health().check("redis", std::future::pending);
    let (status, body) = get(addr, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("no answer in 2s"), "{body}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn several_services_share_one_process() {
    let (first, first_addr) = start("approval").await;
    let (second, second_addr) = start("artifact").await;
    assert_eq!(get(first_addr, "/v1/name").await, (200, "approval".into()));
    assert_eq!(get(second_addr, "/v1/name").await, (200, "artifact".into()));
    first.stop().await.unwrap();
    let (status, text) = get(second_addr, "/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "test_served_total{service=\"approval\"} 3",
        "test_served_total{service=\"artifact\"} 3",
        "test_wait_seconds_bucket{service=\"artifact\",le=\"0.025\"} 1",
        "esc_build_info{service=\"artifact\",version=",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    second.stop().await.unwrap();
}
