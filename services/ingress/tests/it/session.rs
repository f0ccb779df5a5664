//! A browser's session: a token in a cookie, for pages of this server alone.

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;

use crate::harness::{Door, answer};

async fn open(door: &Door, role: &str) -> String {
    let response = door.request(Method::POST, "/v1/session", role).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && cookie.contains("Path=/v1"),
        "{cookie}"
    );
    assert!(!cookie.contains("acme-"), "the token itself is not to be read over a shoulder: {cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_cookie_stands_for_its_token_on_pages_of_this_server() {
    let door = Door::open().await;
    let cookie = open(&door, "user").await;
    let by_cookie = |method, path: &str| -> RequestBuilder {
        door.http.request(method, format!("{}{path}", door.url)).header("cookie", &cookie)
    };
    let own = |request: RequestBuilder| request.header("sec-fetch-site", "same-origin");
    let (status, who) = answer(own(by_cookie(Method::GET, "/v1/session")).send().await.unwrap()).await;
    assert_eq!((status, &who["roles"]), (StatusCode::OK, &json!(["user"])));
    // What only reads needs no more than the cookie; what changes something must come from a page of this server.
    assert_eq!(by_cookie(Method::GET, "/v1/runs").send().await.unwrap().status(), StatusCode::OK);
    let body = json!({"agent": "helper", "input": "x"});
    let (status, problem) = answer(by_cookie(Method::POST, "/v1/runs").json(&body).send().await.unwrap()).await;
    assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("foreign_page")));
    let neighbour = by_cookie(Method::POST, "/v1/runs").header("origin", "http://127.0.0.1:1").json(&body);
    assert_eq!(neighbour.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(
        own(by_cookie(Method::POST, "/v1/runs").json(&body)).send().await.unwrap().status(),
        StatusCode::ACCEPTED
    );
    // It allows what the token allows.
    let run = door.run().await;
    let pause = own(by_cookie(Method::POST, &format!("/v1/runs/{run}/pause"))).json(&json!({}));
    assert_eq!(answer(pause.send().await.unwrap()).await.1["code"], "insufficient_role");

    let closed = own(by_cookie(Method::DELETE, "/v1/session")).send().await.unwrap();
    assert_eq!(closed.status(), StatusCode::NO_CONTENT);
    assert!(closed.headers()["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    door.close().await;
}

#[tokio::test]
async fn a_cookie_of_no_known_token_opens_nothing() {
    let door = Door::open().await;
    for cookie in ["esc_session=00", "esc_session=", "esc_session=nonsense", "other=1"] {
        let request = door.http.get(format!("{}/v1/runs", door.url)).header("cookie", cookie);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::UNAUTHORIZED, "{cookie}");
    }
    door.close().await;
}

#[tokio::test]
async fn the_console_is_served_whole_and_sent_again_only_when_it_changed() {
    let door = Door::open().await;
    let page = door.http.get(format!("{}/", door.url)).send().await.unwrap();
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let script = format!("{}/console/main.js", door.url);
    assert!(page.text().await.unwrap().contains("/console/main.js"));
    let first = door.http.get(&script).send().await.unwrap();
    assert_eq!(first.headers()["content-type"], "text/javascript; charset=utf-8");
    let again = door.http.get(&script).header("if-none-match", first.headers()["etag"].clone());
    assert_eq!(again.send().await.unwrap().status(), StatusCode::NOT_MODIFIED);
    let missing = door.http.get(format!("{}/console/../Cargo.toml", door.url)).send().await.unwrap();
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    door.close().await;
}
