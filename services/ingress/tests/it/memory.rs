//! Memories, documents and costs over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer};

async fn send(door: &Door, method: Method, path: &str, role: &str, body: Value) -> (StatusCode, Value) {
    answer(door.request(method, path, role).json(&body).send().await.unwrap()).await
}

#[tokio::test]
async fn memories_are_kept_searched_paged_and_forgotten() {
    let door = Door::open().await;
    for (number, text) in ["Deploys take an hour.", "Ann likes tea.", "Ben likes coffee."].into_iter().enumerate() {
        let body = json!({"scope": "tenant", "key": format!("fact {number}"), "text": text});
        let (status, kept) = send(&door, Method::PUT, "/v1/memory", "operator", body).await;
        assert_eq!((status, &kept["trust"]), (StatusCode::OK, &json!("untrusted")), "{kept}");
        assert_eq!(kept["written_by"], "operator:acme-operator");
    }
    let found = door.get("/v1/memory?q=who%20likes%20tea").await;
    assert_eq!((found["items"].as_array().unwrap().len(), &found["items"][0]["text"]), (1, &json!("Ann likes tea.")));
    let first = door.get("/v1/memory?limit=2").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = door.get(&format!("/v1/memory?limit=2&cursor={cursor}")).await;
    assert_eq!(second["items"].as_array().unwrap().len(), 1);
    assert_eq!(second["next_cursor"], Value::Null);

    let id = second["items"][0]["memory_id"].as_str().unwrap();
    let path = format!("/v1/memory/{id}");
    let forget = |role: &'static str| send(&door, Method::DELETE, &path, role, json!({}));
    let (status, _) = forget("viewer").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, _) = forget("operator").await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, problem) = forget("operator").await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("unknown_memory")));
    door.close().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_memory_is_named() {
    let door = Door::open().await;
    let good = json!({"scope": "agent", "owner": "helper", "key": "k", "text": "t"});
    for (field, value, code) in [
        ("scope", json!("world"), "invalid_scope"),
        ("owner", json!(""), "invalid_owner"),
        ("key", json!(" "), "invalid_key"),
        ("text", json!("x".repeat(5000)), "invalid_text"),
        ("trust", json!("operator"), "invalid_trust"),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let (status, problem) = send(&door, Method::PUT, "/v1/memory", "operator", body).await;
        assert!(status.is_client_error(), "{problem}");
        assert_eq!((&problem["code"], &problem["field"]), (&json!(code), &json!(field)), "{problem}");
    }
    for path in ["/v1/memory?cursor=x", "/v1/memory?cursor=1.2", "/v1/memory?limit=0", "/v1/memory?scope=x"] {
        let (status, problem) = answer(door.request(Method::GET, path, "viewer").send().await.unwrap()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {problem}");
    }
    door.close().await;
}

#[tokio::test]
async fn documents_are_added_listed_and_removed() {
    let door = Door::open().await;
    let add = async |path: &str, body: Vec<u8>| {
        let request = door.request(Method::PUT, path, "operator").header("content-type", "text/markdown");
        answer(request.body(body).send().await.unwrap()).await
    };
    let text = "# Pay\nOn the 5th.\n\n# Leave\nAsk first.\n";
    let (status, added) = add("/v1/knowledge/handbook/rules.md?trust=trusted", text.into()).await;
    assert_eq!(
        (status, &added["passages"], &added["trust"]),
        (StatusCode::OK, &json!(2), &json!("trusted")),
        "{added}"
    );
    let (_, again) = add("/v1/knowledge/handbook/rules.md", "Nothing.".into()).await;
    assert_eq!(
        (&again["passages"], &again["trust"]),
        (&json!(1), &json!("untrusted")),
        "nobody vouches by being silent"
    );
    for (path, body, code) in [
        ("/v1/knowledge/Hand%20Book/x.md", b"x".to_vec(), "invalid_collection"),
        ("/v1/knowledge/handbook/x.md", vec![0xff, 0xfe, 0], "not_text"),
        ("/v1/knowledge/handbook/x.md", b"a\0b".to_vec(), "not_text"),
        ("/v1/knowledge/handbook/x.md", b" \n ".to_vec(), "invalid_document"),
        ("/v1/knowledge/handbook/x.md?trust=system", b"x".to_vec(), "invalid_trust"),
    ] {
        let (status, problem) = add(path, body).await;
        assert!(status.is_client_error(), "{path}: {problem}");
        assert_eq!(problem["code"], code, "{path}");
    }
    let listed = door.get("/v1/knowledge?collection=handbook").await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let remove = || send(&door, Method::DELETE, "/v1/knowledge/handbook/rules.md", "operator", json!({}));
    assert_eq!(remove().await.0, StatusCode::NO_CONTENT);
    assert_eq!(remove().await.0, StatusCode::NOT_FOUND);
    assert_eq!(door.get("/v1/skills").await["items"], json!([]));
    door.close().await;
}

#[tokio::test]
async fn costs_are_summed_up_by_agent() {
    let door = Door::open().await;
    assert_eq!(door.get("/v1/costs").await, json!({"items": [], "cost_usd": 0.0}));
    door.run().await;
    let costs = door.get("/v1/costs?since=2020-01-01T00:00:00Z").await;
    assert_eq!(costs["items"][0]["runs"], 1);
    let later = door.get("/v1/costs?since=2999-01-01T00:00:00Z").await;
    assert_eq!(later["items"], json!([]));
    door.close().await;
}
