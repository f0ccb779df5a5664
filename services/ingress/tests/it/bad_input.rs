//! Every kind of bad input gets an answer that names what is wrong and what to do, and disturbs nothing.

use kernel::RunId;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer};

struct Case {
    method: Method,
    path: &'static str,
    body: String,
    status: u16,
    code: &'static str,
    field: Option<&'static str>,
}

fn case(method: Method, path: &'static str, body: impl Into<String>, status: u16, code: &'static str) -> Case {
    Case { method, path, body: body.into(), status, code, field: None }
}

impl Case {
    fn field(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }
}

fn cases() -> Vec<Case> {
    let run = |body: Value| body.to_string();
    let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
    vec![
        case(post.clone(), "/v1/runs", "{\"agent\": \"helper\",\n \"input\": }", 400, "malformed_json"),
        case(post.clone(), "/v1/runs", "{\"agent\": \"helper\"", 400, "malformed_json"),
        case(post.clone(), "/v1/runs", "[]", 422, "invalid_field"),
        case(post.clone(), "/v1/runs", "", 422, "missing_field").field("agent"),
        case(post.clone(), "/v1/runs", run(json!({"agent": "helper"})), 422, "missing_field").field("input"),
        case(
            post.clone(),
            "/v1/runs",
            run(json!({"agent": "helper", "inptu": "x", "input": "x"})),
            422,
            "unknown_field",
        )
        .field("inptu"),
        case(post.clone(), "/v1/runs", run(json!({"agent": "nobody", "input": "x"})), 422, "unknown_agent")
            .field("agent"),
        case(post.clone(), "/v1/runs", run(json!({"agent": "helper", "input": " "})), 422, "invalid_field")
            .field("input"),
        case(post.clone(), "/v1/runs", run(json!({"agent": "helper", "input": null})), 422, "invalid_field")
            .field("input"),
        case(
            post.clone(),
            "/v1/runs",
            run(json!({"agent": "helper", "input": "x", "budget": {"turn": 1}})),
            422,
            "unknown_field",
        )
        .field("turn"),
        case(
            post.clone(),
            "/v1/runs",
            run(json!({"agent": "helper", "input": "x", "budget": {"cost_usd": -1.0}})),
            422,
            "invalid_field",
        )
        .field("budget.cost_usd"),
        case(
            post.clone(),
            "/v1/runs",
            run(json!({"agent": "helper", "input": "x".repeat(5000)})),
            413,
            "payload_too_large",
        ),
        case(get.clone(), "/v1/runs?status=done", "", 400, "invalid_query").field("status"),
        case(get.clone(), "/v1/runs?wake=never", "", 400, "invalid_query").field("wake"),
        case(get.clone(), "/v1/runs?limit=0", "", 400, "invalid_query").field("limit"),
        case(get.clone(), "/v1/runs?limit=x", "", 400, "invalid_query"),
        case(get.clone(), "/v1/runs?since=yesterday", "", 400, "invalid_query"),
        case(get.clone(), "/v1/runs?cursor=x", "", 400, "invalid_cursor").field("cursor"),
        case(get.clone(), "/v1/runs?statsu=waiting", "", 400, "invalid_query").field("statsu"),
        case(get.clone(), "/v1/runs/nonsense", "", 404, "unknown_run"),
        case(get.clone(), "/v1/runs/0198c0de-0000-7000-8000-000000000000", "", 404, "unknown_run"),
        case(get.clone(), "/v1/runs/0198c0de-0000-7000-8000-000000000000/events", "", 404, "unknown_run"),
        case(get.clone(), "/v1/runs/0198c0de-0000-7000-8000-000000000000/stream", "", 404, "unknown_run"),
        case(
            get.clone(),
            "/v1/runs/0198c0de-0000-7000-8000-000000000000/stream?last_event_id=x",
            "",
            400,
            "invalid_last_event_id",
        ),
        case(post.clone(), "/v1/runs/0198c0de-0000-7000-8000-000000000000/cancel", "", 404, "unknown_run"),
        case(get.clone(), "/v1/approvals/nonsense", "", 404, "unknown_approval"),
        case(get.clone(), "/v1/approvals?state=maybe", "", 400, "invalid_query").field("state"),
        case(
            post.clone(),
            "/v1/approvals/0198c0de-0000-7000-8000-000000000000",
            r#"{"decision":"approve"}"#,
            404,
            "unknown_approval",
        ),
        case(
            post.clone(),
            "/v1/approvals/0198c0de-0000-7000-8000-000000000000",
            r#"{"decision":"maybe"}"#,
            422,
            "invalid_field",
        ),
        case(get.clone(), "/v1/artifacts/nonsense", "", 404, "unknown_artifact"),
        case(get.clone(), "/v1/artifacts/0198c0de-0000-7000-8000-000000000000/content", "", 404, "unknown_artifact"),
        case(get.clone(), "/v1/agents/nobody", "", 404, "unknown_agent"),
        case(put.clone(), "/v1/agents/bad", "name: bad\nmodel: m\ninstructions: i\ntolls: []\n", 422, "invalid_agent"),
        case(put.clone(), "/v1/agents/bad", "name: [", 422, "invalid_agent"),
        case(put, "/v1/agents/bad", "name: good\nmodel: 'scripted:x'\ninstructions: i\n", 422, "name_mismatch")
            .field("name"),
        case(post.clone(), "/v1/events", "{", 400, "malformed_json"),
        case(post.clone(), "/v1/events", r#"{"specversion":"1.0","id":"1","source":"s"}"#, 422, "invalid_event")
            .field("type"),
        case(get.clone(), "/v1/nowhere", "", 404, "unknown_path"),
        case(get.clone(), "/nowhere", "", 404, "unknown_path"),
        case(get.clone(), "/v1/runs?q=a%00b", "", 400, "invalid_query"),
        case(get.clone(), "/v1/costs?since=%00", "", 400, "invalid_query"),
        case(get.clone(), "/v1/schedules/a%00b", "", 400, "invalid_path"),
        case(get.clone(), "/v1/runs/%00/events", "", 400, "invalid_path"),
        case(post, "/v1/runs:cancel", "{}", 422, "missing_field").field("filter"),
        case(Method::DELETE, "/v1/runs", "", 405, "method_not_allowed"),
        case(Method::POST, "/openapi.json", "", 405, "method_not_allowed"),
        case(get, "/v1/events", "", 405, "method_not_allowed"),
    ]
}

#[tokio::test]
async fn every_fault_is_named_with_a_remedy() {
    let door = Door::open_with(|config| config.body_limit_bytes = 4096).await;
    for case in cases() {
        let request = door.request(case.method.clone(), case.path, "admin").body(case.body.clone());
        let response = request.header("content-type", "application/json").send().await.unwrap();
        let name = format!("{} {} {}", case.method, case.path, case.body.chars().take(80).collect::<String>());
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{name}");
        if case.status == 405 {
            assert!(response.headers().contains_key("allow"), "{name}");
        }
        let (status, problem) = answer(response).await;
        assert_eq!((status.as_u16(), problem["code"].as_str()), (case.status, Some(case.code)), "{name}: {problem}");
        assert_eq!(problem["status"], case.status, "{name}");
        assert!(problem["type"].as_str().unwrap().ends_with(case.code), "{name}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{name}");
        assert!(
            problem["remedy"].is_string() || case.code == "invalid_event" || case.path == "/v1/events",
            "{name}: {problem}"
        );
        if let Some(field) = case.field {
            assert_eq!(problem["field"], field, "{name}");
        }
    }
    assert_eq!(door.get("/v1/runs").await["items"], json!([]), "nothing was started");
    door.close().await;
}

#[tokio::test]
async fn the_place_of_a_fault_is_told() {
    let door = Door::open().await;
    let body = "{\"agent\": \"helper\",\n \"input\": }";
    let response = door.request(Method::POST, "/v1/runs", "user").header("content-type", "application/json").body(body);
    let (_, problem) = answer(response.send().await.unwrap()).await;
    assert_eq!((&problem["line"], &problem["column"]), (&json!(2), &json!(11)));
    let yaml = "name: bad\nmodel: 'scripted:x'\ninstructions: i\ntolls: []\n";
    let response = door.request(Method::PUT, "/v1/agents/bad", "admin").body(yaml).send().await.unwrap();
    let (_, problem) = answer(response).await;
    assert_eq!(problem["line"], 4, "{problem}");
    assert!(problem["column"].is_u64() && problem["detail"].as_str().unwrap().contains("tolls"), "{problem}");
    door.close().await;
}

#[tokio::test]
async fn a_body_that_is_no_json_is_not_taken_for_it() {
    let door = Door::open().await;
    let request = door.request(Method::POST, "/v1/runs", "user").header("content-type", "text/plain").body("{}");
    let (status, problem) = answer(request.send().await.unwrap()).await;
    assert_eq!((status, &problem["code"]), (StatusCode::UNSUPPORTED_MEDIA_TYPE, &json!("unsupported_media_type")));
    door.close().await;
}

#[tokio::test]
async fn a_nul_is_cleaned_and_the_rest_stays() {
    let door = Door::open().await;
    let body = json!({"agent": "helper", "input": "a\0b", "metadata": {"k\0": "v\0"}});
    let (status, answer) = door.post("/v1/runs", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let run: RunId = answer["run_id"].as_str().unwrap().parse().unwrap();
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown["objective"]["text"], "a\u{fffd}b");
    door.close().await;
}
