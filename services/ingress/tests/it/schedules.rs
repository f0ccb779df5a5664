//! Schedules over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer};

const NIGHTLY: &str = "
cron: 30 2 * * *
time_zone: Australia/Melbourne
start: { agent: helper, input: Look around. }
overlap: queue
";

async fn put(door: &Door, name: &str, media_type: &str, body: impl Into<String>) -> (StatusCode, Value) {
    let request = door.request(Method::PUT, &format!("/v1/schedules/{name}"), "operator");
    answer(request.header("content-type", media_type).body(body.into()).send().await.unwrap()).await
}

#[tokio::test]
async fn a_schedule_is_put_in_held_filled_in_and_deleted() {
    let door = Door::open().await;
    let (status, nightly) = put(&door, "nightly", "application/yaml", NIGHTLY).await;
    assert_eq!(status, StatusCode::OK, "{nightly}");
    assert_eq!((&nightly["revision"], &nightly["made_by"]), (&json!(1), &json!("operator:acme-operator")));
    assert_eq!(nightly["next"].as_array().unwrap().len(), 5);
    let shown = door.get("/v1/schedules/nightly?next=12").await;
    assert_eq!((shown["next"].as_array().unwrap().len(), &shown["spec"]["dst"]), (12, &json!("once")));
    // The same in JSON is the same.
    let (_, again) = put(&door, "nightly", "application/json", shown["spec"].to_string()).await;
    assert_eq!((&again["revision"], &again["spec"]), (&json!(2), &shown["spec"]));
    assert_eq!(door.get("/v1/schedules").await["items"][0]["next"].as_array().unwrap().len(), 1);

    let (status, held) = door.post("/v1/schedules/nightly/pause", &json!({})).await;
    assert_eq!((status, &held["paused"], &held["next"]), (StatusCode::OK, &json!(true), &json!([])));
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-10T00:00:00Z"});
    let (status, filled) = door.post("/v1/schedules/nightly/backfill", &range).await;
    assert_eq!((status, filled), (StatusCode::ACCEPTED, json!({"noted": 9, "known": 0})));
    let page = door.get("/v1/schedules/nightly/firings?limit=5").await;
    assert_eq!((&page["items"][0]["kind"], &page["items"][0]["state"]), (&json!("backfill"), &json!("waiting")));
    let next = page["next"].as_str().unwrap();
    let rest = door.get(&format!("/v1/schedules/nightly/firings?limit=5&before={next}")).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), rest.get("next")), (4, None));
    let (_, resumed) = door.post("/v1/schedules/nightly/resume", &json!({})).await;
    assert_eq!(resumed["paused"], false);

    let gone = door.request(Method::DELETE, "/v1/schedules/nightly", "operator").send().await.unwrap();
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    let (status, problem) =
        answer(door.request(Method::DELETE, "/v1/schedules/nightly", "operator").send().await.unwrap()).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("unknown_schedule")));
    door.close().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_is_named() {
    let door = Door::open().await;
    for (from, to, code, field) in [
        ("30 2 * * *", "\"0 30 2 31 2 *\"", "invalid_schedule", "cron"),
        ("30 2 * * *", "61 2 * * *", "invalid_schedule", "cron"),
        ("Australia/Melbourne", "Mars/Olympus", "invalid_schedule", "time_zone"),
        ("agent: helper", "agent: nobody", "unknown_agent", "start.agent"),
        ("overlap: queue", "name: other", "name_mismatch", "name"),
    ] {
        let (status, problem) = put(&door, "nightly", "application/yaml", NIGHTLY.replacen(from, to, 1)).await;
        assert_eq!(
            (status.as_u16(), &problem["code"], &problem["field"]),
            (422, &json!(code), &json!(field)),
            "{problem}"
        );
        assert!(problem["remedy"].is_string(), "{problem}");
    }
    let (status, problem) = put(&door, "nightly", "application/yaml", "cron: [").await;
    assert_eq!((status.as_u16(), problem["line"].is_number()), (422, true), "{problem}");
    put(&door, "nightly", "application/yaml", NIGHTLY).await;
    for (body, field) in [
        (json!({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}), "from"),
        (json!({"from": "2026-01-02T00:00:00Z", "to": "2999-01-01T00:00:00Z"}), "to"),
    ] {
        let (status, problem) = door.post("/v1/schedules/nightly/backfill", &body).await;
        assert_eq!((status.as_u16(), &problem["field"]), (422, &json!(field)), "{problem}");
    }
    let (status, _) =
        answer(door.request(Method::PUT, "/v1/schedules/nightly", "user").body(NIGHTLY).send().await.unwrap()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    door.close().await;
}
