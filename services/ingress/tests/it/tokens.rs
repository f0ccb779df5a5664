//! API tokens that admins make: good everywhere at once, and then nowhere.

use std::time::Duration;

use futures::StreamExt as _;
use ingress::Config;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, PATIENCE, answer, config, eventually};

async fn make(door: &Door, role: &str, body: Value) -> (StatusCode, Value) {
    answer(door.request(Method::POST, "/v1/tokens", role).json(&body).send().await.unwrap()).await
}

async fn status(door: &Door, url: &str, token: &str) -> StatusCode {
    door.http.get(format!("{url}/v1/runs")).bearer_auth(token).send().await.unwrap().status()
}

#[tokio::test]
async fn a_token_lets_in_at_every_instance_until_it_is_revoked() {
    let door = Door::open().await;
    let second: Config = config(&door.stack, door.tokens.path());
    let mut second = service::spawn("ingress", second, ingress::run).unwrap();
    let other = format!("http://{}", second.listening().await.unwrap());
    let (created, body) = make(&door, "admin", json!({"name": "ann", "roles": ["operator"]})).await;
    assert_eq!(created, StatusCode::CREATED, "{body}");
    let (token, id) = (body["token"].as_str().unwrap(), body["token_id"].as_str().unwrap());
    for url in [&door.url, &other] {
        assert_eq!(status(&door, url, token).await, StatusCode::OK);
    }
    let session = door.http.get(format!("{other}/v1/session")).bearer_auth(token).send().await.unwrap();
    let session = answer(session).await.1;
    assert_eq!((&session["name"], &session["tenant"]), (&json!("ann"), &json!("acme")));

    let listed = answer(door.request(Method::GET, "/v1/tokens", "admin").send().await.unwrap()).await.1;
    let row = &listed["items"][0];
    assert_eq!(
        (&row["name"], &row["roles"], &row["created_by"]),
        (&json!("ann"), &json!(["operator"]), &json!("acme-admin"))
    );
    assert!(row["last_used_at"].is_string(), "{row}");
    assert!(!listed.to_string().contains(token), "the secret is kept nowhere");

    let path = format!("/v1/tokens/{id}");
    let (revoked, body) = answer(door.request(Method::DELETE, &path, "admin").send().await.unwrap()).await;
    assert_eq!((revoked, &body["revoked_by"]), (StatusCode::OK, &json!("acme-admin")));
    for url in [&door.url, &other] {
        assert_eq!(status(&door, url, token).await, StatusCode::UNAUTHORIZED, "at once");
    }
    let again = make(&door, "admin", json!({"name": "ann", "roles": ["viewer"]})).await;
    assert_eq!(again.0, StatusCode::CREATED, "the name is free again");
    second.stop().await.unwrap();
    door.close().await;
}

#[tokio::test]
async fn an_open_stream_ends_when_its_token_is_revoked() {
    let door = Door::open().await;
    let run = door.run().await;
    let (_, body) = make(&door, "admin", json!({"name": "reader", "roles": ["viewer"]})).await;
    let stream = door.http.get(format!("{}/v1/runs/{run}/stream", door.url));
    let response = stream.bearer_auth(body["token"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut stream = response.bytes_stream();
    stream.next().await.unwrap().unwrap();
    let path = format!("/v1/tokens/{}", body["token_id"].as_str().unwrap());
    assert!(door.request(Method::DELETE, &path, "admin").send().await.unwrap().status().is_success());
    // Sooner than the stream would look by itself.
    let end = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::time::timeout(Duration::from_secs(25), end).await.expect("the stream ends");
    door.close().await;
}

#[tokio::test]
async fn an_open_stream_ends_with_its_token() {
    let door = Door::open().await;
    let path = format!("{}/v1/runs/{}/stream", door.url, door.run().await);
    // On a machine that stands still for a while such a token may be over before it is shown.
    let response = eventually("the stream opens", || async {
        let name = format!("short-{}", kernel::Timestamp::now().as_nanosecond());
        let (_, made) = make(&door, "admin", json!({"name": name, "roles": ["viewer"], "expires_in": "2s"})).await;
        let response = door.http.get(&path).bearer_auth(made["token"].as_str().unwrap()).send().await.unwrap();
        (response.status() == StatusCode::OK).then_some(response)
    })
    .await;
    // Sooner than the stream would look by itself.
    let end = async { response.bytes_stream().for_each(|_| async {}).await };
    tokio::time::timeout(Duration::from_secs(25), end).await.expect("the stream ends");
    door.close().await;
}

#[tokio::test]
async fn an_open_stream_ends_when_its_token_is_another_tenants() {
    let door = Door::open().await;
    let path = format!("/v1/runs/{}/stream", door.run().await);
    let mut stream = door.request(Method::GET, &path, "viewer").send().await.unwrap().bytes_stream();
    stream.next().await.unwrap().unwrap();
    let mut rows: Value = serde_json::from_str(&std::fs::read_to_string(door.tokens.path()).unwrap()).unwrap();
    let row = rows.as_array_mut().unwrap().iter_mut().find(|row| row["name"] == "acme-viewer").unwrap();
    row["tenant"] = json!("other");
    std::fs::write(door.tokens.path(), rows.to_string()).unwrap();
    let end = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the stream ends");
    door.close().await;
}

#[tokio::test]
async fn only_admins_say_who_gets_in_and_only_to_their_own_tenant() {
    let door = Door::open().await;
    let body = json!({"name": "x", "roles": ["admin"]});
    for role in ["viewer", "user", "operator", "publisher"] {
        assert_eq!(make(&door, role, body.clone()).await.0, StatusCode::FORBIDDEN, "{role}");
    }
    let (status, problem) = make(&door, "admin", json!({"name": "x", "roles": ["viewer"], "tenant": "other"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("insufficient_role")));
    for (body, field) in [
        (json!({"name": " ", "roles": ["viewer"]}), "name"),
        (json!({"name": "x", "roles": []}), "roles"),
        (json!({"name": "x", "roles": ["viewer"], "expires_in": "400d"}), "expires_in"),
        (json!({"name": "x", "roles": ["viewer"], "expires_in": "0s"}), "expires_in"),
    ] {
        let (status, problem) = make(&door, "admin", body).await;
        assert_eq!((status.as_u16(), &problem["field"]), (422, &json!(field)), "{problem}");
    }
    let (_, made) = make(&door, "admin", json!({"name": "x", "roles": ["viewer"]})).await;
    let (status, problem) = make(&door, "admin", json!({"name": "x", "roles": ["viewer"]})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("name_taken")));
    let path = format!("{}/v1/tokens/{}", door.url, made["token_id"].as_str().unwrap());
    let (status, problem) = answer(door.http.delete(path).bearer_auth("other-admin").send().await.unwrap()).await;
    assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("unknown_token")));
    door.close().await;
}

#[tokio::test]
async fn a_token_ends_by_itself() {
    let door = Door::open().await;
    let (_, made) = make(&door, "admin", json!({"name": "short", "roles": ["viewer"], "expires_in": "1ms"})).await;
    assert_eq!(status(&door, &door.url, made["token"].as_str().unwrap()).await, StatusCode::UNAUTHORIZED);
    door.close().await;
}
