//! The kill switch at the public door.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer};

async fn put(door: &Door, role: &str, body: Value) -> (StatusCode, Value) {
    answer(door.request(Method::PUT, "/v1/freeze", role).json(&body).send().await.unwrap()).await
}

#[tokio::test]
async fn an_operator_freezes_what_is_the_tenants_and_no_more() {
    let door = Door::open().await;
    let (status, frozen) =
        put(&door, "operator", json!({"scope": "tool:forge.merge", "on": true, "reason": "odd"})).await;
    assert_eq!(status, StatusCode::OK, "{frozen}");
    assert_eq!(
        (&frozen["scope"], &frozen["on"], &frozen["by"]),
        (&json!("tool:forge.merge"), &json!(true), &json!("acme-operator"))
    );
    let listed = door.get("/v1/freeze").await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    assert_eq!(listed["items"][0]["reason"], "odd");

    for role in ["viewer", "user", "publisher"] {
        assert_eq!(put(&door, role, json!({"scope": "tenant", "on": true})).await.0, StatusCode::FORBIDDEN, "{role}");
    }
    // Every tenant's runs are not an admin's of one tenant to freeze.
    let (status, problem) = put(&door, "admin", json!({"scope": "all", "on": true})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("insufficient_role")));
    for scope in ["", "everything", "agent:", "tool:a b"] {
        let (status, problem) = put(&door, "operator", json!({"scope": scope, "on": true})).await;
        assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("scope")), "{scope}");
    }
    let (status, lifted) = put(&door, "operator", json!({"scope": "tool:forge.merge", "on": false})).await;
    assert!(status.is_success() && lifted["version"].as_i64() > frozen["version"].as_i64());
    assert!(door.get("/v1/freeze").await["items"].as_array().unwrap().is_empty());
    door.close().await;
}
