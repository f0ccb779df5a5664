//! Who gets in, and to what.

use ingress::{AuthMode, Config};
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Door, answer, eventually};

#[tokio::test]
async fn nobody_gets_in_without_a_known_token() {
    let door = Door::open().await;
    for (token, code) in [(None, "missing_token"), (Some("nonsense"), "invalid_token"), (Some("late"), "invalid_token")]
    {
        for path in ["/v1/runs", "/v1/nowhere"] {
            let request = door.http.get(format!("{}{path}", door.url));
            let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
            let response = request.send().await.unwrap();
            let challenge = response.headers()["www-authenticate"].to_str().unwrap().to_owned();
            assert!(challenge.starts_with("Bearer"), "{challenge}");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            let (status, problem) = answer(response).await;
            assert_eq!((status, &problem["code"]), (StatusCode::UNAUTHORIZED, &json!(code)));
            assert!(problem["remedy"].is_string(), "{problem}");
        }
    }
    let basic = door.http.get(format!("{}/v1/runs", door.url)).basic_auth("acme-admin", None::<&str>);
    assert_eq!(basic.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    door.close().await;
}

#[tokio::test]
async fn a_role_may_do_its_own_things_and_no_more() {
    let door = Door::open().await;
    let run = door.run().await;
    let body = json!({"agent": "helper", "input": "x"});
    let event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
    let cases = [
        (Method::GET, "/v1/runs".to_owned(), json!({}), "viewer"),
        (Method::POST, "/v1/runs".to_owned(), body, "user"),
        (Method::POST, format!("/v1/runs/{run}/messages"), json!({"text": "hello"}), "user"),
        (Method::POST, format!("/v1/runs/{run}/pause"), json!({}), "operator"),
        (Method::PATCH, format!("/v1/runs/{run}/budget"), json!({"turns": 5}), "operator"),
        (Method::POST, format!("/v1/approvals/{run}"), json!({"decision": "deny"}), "operator"),
        (Method::PUT, "/v1/agents/helper".to_owned(), json!({}), "admin"),
        (Method::POST, "/v1/events?source=ci".to_owned(), event, "user"),
    ];
    let ranks = ["viewer", "user", "operator", "admin"];
    for (method, path, body, needed) in cases {
        let rank = |role| ranks.iter().position(|known| *known == role);
        for role in ranks {
            let response = door.request(method.clone(), &path, role).json(&body).send().await.unwrap();
            let allowed = rank(role) >= rank(needed);
            assert_eq!(response.status() != StatusCode::FORBIDDEN, allowed, "{role} on {method} {path}");
            if !allowed {
                assert_eq!(response.headers().get_all("www-authenticate").iter().count(), 1);
                assert_eq!(answer(response).await.1["code"], "insufficient_role");
            }
        }
        let response = door.request(method, &path, "publisher").json(&body).send().await.unwrap();
        assert_eq!(response.status() != StatusCode::FORBIDDEN, path.starts_with("/v1/events"), "publisher on {path}");
    }
    door.close().await;
}

#[tokio::test]
async fn a_tenant_sees_nothing_of_another() {
    let door = Door::open().await;
    let run = door.run().await;
    let other = |method: Method, path: String| {
        door.http.request(method, format!("{}{path}", door.url)).bearer_auth("other-admin")
    };
    for (method, path) in [
        (Method::GET, String::new()),
        (Method::GET, "/events".into()),
        (Method::GET, "/stream".into()),
        (Method::GET, "/turns/1".into()),
        (Method::GET, "/why/1".into()),
        (Method::POST, "/messages".into()),
        (Method::POST, "/cancel".into()),
        (Method::PATCH, "/budget".into()),
    ] {
        let response = other(method, format!("/v1/runs/{run}{path}")).json(&json!({"text": "x"})).send().await.unwrap();
        let (status, problem) = answer(response).await;
        // A body that this call does not take is told before the run is looked for.
        if problem["code"] != "unknown_field" {
            assert_eq!((status, &problem["code"]), (StatusCode::NOT_FOUND, &json!("unknown_run")), "{path}");
        }
    }
    let (_, page) = answer(other(Method::GET, "/v1/runs".into()).send().await.unwrap()).await;
    assert_eq!(page["items"], json!([]));
    let (_, agents) = answer(other(Method::GET, "/v1/agents".into()).send().await.unwrap()).await;
    assert_eq!(agents["items"], json!([]));
    let created = other(Method::POST, "/v1/runs".into()).json(&json!({"agent": "helper", "input": "x"}));
    assert_eq!(answer(created.send().await.unwrap()).await.1["code"], "unknown_agent");
    door.close().await;
}

#[tokio::test]
async fn authentication_can_be_off_at_home() {
    let door = Door::open_with(|config| {
        config.auth = AuthMode::Off;
        config.tokens = "".into();
    })
    .await;
    let response = door.http.get(format!("{}/v1/runs", door.url)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    door.close().await;
}

#[tokio::test]
async fn a_door_that_could_not_be_locked_does_not_open() {
    for config in [
        Config::default(),
        Config { tokens: "/nowhere/tokens.json".into(), ..Config::default() },
        Config {
            auth: AuthMode::Off,
            common: service::Common { listen: ([0, 0, 0, 0], 0).into(), ..service::Common::for_service("ingress") },
            ..Config::default()
        },
    ] {
        let running = service::spawn("ingress", config, ingress::run).unwrap();
        running.finished().await;
        let error = running.stop().await.unwrap_err();
        assert!(error.is_config(), "{error}");
    }
}

#[tokio::test]
async fn a_changed_token_file_counts_without_a_restart() {
    let door = Door::open().await;
    let file = door.tokens.path();
    let status = async || door.request(Method::GET, "/v1/runs", "viewer").send().await.unwrap().status();
    let kept = std::fs::read(file).unwrap();
    // What can't be used changes nothing.
    std::fs::write(file, "nonsense").unwrap();
    assert_eq!(status().await, StatusCode::OK);
    std::fs::write(file, "[]").unwrap();
    eventually("the token is taken away", || async { (status().await == StatusCode::UNAUTHORIZED).then_some(()) })
        .await;
    std::fs::write(file, kept).unwrap();
    eventually("the token is given back", || async { (status().await == StatusCode::OK).then_some(()) }).await;
    door.close().await;
}

#[tokio::test]
async fn what_needs_no_token_is_open() {
    let door = Door::open().await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/openapi.json", "application/json"),
        ("/healthz", "application/json"),
        ("/readyz", "application/json"),
        ("/metrics", "text/plain"),
    ] {
        let response = door.http.get(format!("{}{path}", door.url)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert!(response.headers()["content-type"].to_str().unwrap().starts_with(kind), "{path}");
    }
    door.close().await;
}

#[tokio::test]
async fn every_answer_says_what_a_browser_may_do_with_it() {
    let door = Door::open().await;
    for path in ["/", "/openapi.json", "/nowhere", "/v1/runs", "/v1/nowhere"] {
        let response = door.request(Method::GET, path, "viewer").send().await.unwrap();
        let of = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(of("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
        assert_eq!(of("cross-origin-resource-policy").as_deref(), Some("same-origin"), "{path}");
        assert_eq!(of("referrer-policy").as_deref(), Some("no-referrer"), "{path}");
        let policy = of("content-security-policy").unwrap_or_default();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
    }
    door.close().await;
}
