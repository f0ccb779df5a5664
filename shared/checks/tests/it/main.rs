//! Checks against a real NATS server and a real receiver of webhooks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::sync::{Arc, Mutex};

use axum::{Json, Router, extract::State, http::HeaderMap, routing::post};
use bus::{ServeOptions, testing::TestBus};
use checks::{About, Checks, No};
use kernel::{
    RunId, TenantId,
    agent::{NoAnswer, Point, PointCheck},
    units::Duration,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

fn check(name: &str, url: Option<String>, responder: Option<&str>) -> PointCheck {
    PointCheck {
        name: name.to_owned(),
        at: Point::BeforeTool,
        secret: url.as_ref().map(|_| "secret:DESK".to_owned()),
        url,
        responder: responder.map(str::to_owned),
        timeout: Duration::from_secs(20),
        default: NoAnswer::Deny,
    }
}

async fn ask(checks: &Checks, asked: &[PointCheck]) -> Result<(), No> {
    let tenant = TenantId::default();
    let about =
        About { tenant: &tenant, run_id: RunId::mint(), agent: "a", turn: 3, about: json!({"tool": "shell.run"}) };
    checks.ask(asked, Point::BeforeTool, &about).await
}

fn with(bus: &TestBus) -> Checks {
    Checks::with_secrets((**bus).clone(), |name| (name == "DESK").then(|| "whsec_bXkgc2VjcmV0".to_owned())).unwrap()
}

type Seen = Arc<Mutex<Vec<(HeaderMap, Value)>>>;

/// Answers with what the path says.
async fn receiver(seen: Seen) -> String {
    let take = |axum::extract::Path(answer): axum::extract::Path<String>,
                State(seen): State<Seen>,
                headers: HeaderMap,
                Json(body): Json<Value>| async move {
        seen.lock().unwrap().push((headers, body));
        match answer.as_str() {
            "silence" => std::future::pending().await,
            "nonsense" => "perhaps".to_owned(),
            decision => json!({"decision": decision, "reason": "as asked"}).to_string(),
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/{answer}", post(take)).with_state(seen);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn a_webhook_says_yes_or_no_and_anything_else_is_silence() {
    let bus = TestBus::start().await.unwrap();
    let (checks, seen) = (with(&bus), Seen::default());
    let url = receiver(Arc::clone(&seen)).await;
    let at = |path: &str| check("desk", Some(format!("{url}/{path}")), None);
    assert_eq!(ask(&checks, &[at("allow")]).await, Ok(()));
    let no = ask(&checks, &[at("deny")]).await.unwrap_err();
    assert_eq!((no.said, no.words().as_str()), (true, "the check `desk` says no: as asked"));
    assert!(!ask(&checks, &[at("nonsense")]).await.unwrap_err().said);
    let silent = PointCheck { timeout: Duration::from_millis(100), ..at("silence") };
    let no = ask(&checks, std::slice::from_ref(&silent)).await.unwrap_err();
    assert!(!no.said && no.reason.contains("100 ms"), "{no:?}");
    let open = PointCheck { default: NoAnswer::Allow, ..silent };
    assert_eq!(ask(&checks, &[open]).await, Ok(()), "what no answer means is for the operator to say");
    let nobody = check("desk", Some("http://127.0.0.1:9/".to_owned()), None);
    assert!(!ask(&checks, &[nobody, at("allow")]).await.unwrap_err().said);
    let (headers, body) = seen.lock().unwrap()[0].clone();
    assert_eq!(
        (&body["at"], &body["turn"], &body["about"]["tool"]),
        (&json!("before_tool"), &json!(3), &json!("shell.run"))
    );
    for header in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        assert!(headers.contains_key(header), "{header}");
    }
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_secret_that_is_missing_is_silence_not_an_unsigned_request() {
    let bus = TestBus::start().await.unwrap();
    let seen = Seen::default();
    let url = receiver(Arc::clone(&seen)).await;
    let checks = Checks::with_secrets((*bus).clone(), |_| None).unwrap();
    let no = ask(&checks, &[check("desk", Some(format!("{url}/allow")), None)]).await.unwrap_err();
    assert!(!no.said && no.reason.contains("ESC_SECRET_DESK"), "{no:?}");
    assert!(seen.lock().unwrap().is_empty());
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_responder_on_nats_is_asked_and_the_first_no_in_the_file_counts() {
    let bus = TestBus::start().await.unwrap();
    let stop = CancellationToken::new();
    for (name, decision) in [("yes", "allow"), ("no", "deny")] {
        let answer = move |question: Value| async move {
            Ok(
                json!({"decision": decision, "reason": format!("{} asks", question["check"].as_str().unwrap_or_default())}),
            )
        };
        bus.serve_json(ServeOptions::new("checks", name), answer, stop.clone()).await.unwrap();
    }
    bus.flush().await.unwrap();
    let checks = with(&bus);
    let (yes, no) = (check("one", None, Some("yes")), check("two", None, Some("no")));
    assert_eq!(ask(&checks, std::slice::from_ref(&yes)).await, Ok(()));
    let said = ask(&checks, &[yes.clone(), no]).await.unwrap_err();
    assert_eq!((said.check.as_str(), said.reason.as_str(), said.said), ("two", "two asks", true));
    assert!(!ask(&checks, &[check("three", None, Some("nobody"))]).await.unwrap_err().said);
    let elsewhere = PointCheck { at: Point::AtEnd, ..check("four", None, Some("no")) };
    assert_eq!(ask(&checks, &[elsewhere]).await, Ok(()), "only what is asked at this point");
    stop.cancel();
    bus.end().await.unwrap();
}
