//! Artifacts: described from the log, contents passed through from the artifact service.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query};
use axum::http::HeaderMap;
use axum::routing::get;
use kernel::call::ArtifactRef;
use kernel::{ArtifactId, Role, Trust};
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::sync::Mutex;

use crate::harness::{Door, answer, commit};

type Asked = Arc<Mutex<Vec<(String, String, String)>>>;

/// The artifact service's internal HTTP, as far as this door asks it.
async fn storage(asked: Asked) -> String {
    let content = move |Path(id): Path<String>, Query(query): Query<Vec<(String, String)>>, headers: HeaderMap| {
        let asked = Arc::clone(&asked);
        async move {
            let token = headers["authorization"].to_str().unwrap().to_owned();
            asked.lock().await.push((id, format!("{query:?}"), token));
            "<script>alert(1)</script>"
        }
    };
    let keep = |Query(query): Query<std::collections::HashMap<String, String>>, body: axum::body::Bytes| async move {
        let kept = ArtifactRef {
            artifact_id: ArtifactId::derive(query["run_id"].parse().unwrap(), &query["name"]),
            name: query["name"].clone(),
            version: 1,
            digest: "d".into(),
            bytes: body.len() as u64,
            media_type: query["media_type"].clone(),
            trust: Trust::Operator,
        };
        (StatusCode::CREATED, axum::Json(kept))
    };
    let router = Router::new().route("/internal/artifacts/{id}", get(content));
    let router = router.route("/internal/artifacts", axum::routing::put(keep));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

fn report(id: ArtifactId, version: u32) -> ArtifactRef {
    ArtifactRef {
        artifact_id: id,
        name: "report \"1\".html".into(),
        version,
        digest: format!("digest{version}"),
        bytes: 25,
        media_type: "text/html".into(),
        trust: Trust::Untrusted,
    }
}

#[tokio::test]
async fn content_passes_through_and_is_never_run() {
    let asked = Asked::default();
    let url = storage(Arc::clone(&asked)).await;
    let door = Door::open_with(|config| {
        config.common.artifact_url = url;
        config.common.internal_token = "between us".into();
    })
    .await;
    let run = door.run().await;
    let planner = door.engine(Role::Planner).await;
    let id = ArtifactId::mint();
    commit(&planner, run, |_, outcome| {
        outcome.artifacts = vec![report(id, 1), report(id, 2)];
        outcome.wait = Some(crate::harness::wait_for_event("main", None, false));
    })
    .await;

    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown["artifacts"].as_array().unwrap().len(), 1, "each in its latest version");
    assert_eq!(shown["artifacts"][0]["version"], 2);
    let latest = door.get(&format!("/v1/artifacts/{id}")).await;
    assert_eq!((&latest["version"], &latest["run_id"]), (&json!(2), &json!(run)));
    assert_eq!(latest["content_url"], format!("/v1/artifacts/{id}/content?version=2"));
    assert_eq!(door.get(&format!("/v1/artifacts/{id}?version=1")).await["digest"], "digest1");

    let path = format!("/v1/artifacts/{id}/content");
    let response = door.request(Method::GET, &path, "viewer").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!((header("content-type"), header("content-length")), ("text/html".into(), "25".into()));
    assert_eq!(header("content-disposition"), "attachment; filename*=UTF-8''report%20%221%22.html");
    assert_eq!((header("x-content-type-options"), header("etag")), ("nosniff".into(), "\"digest2\"".into()));
    assert!(header("content-security-policy").starts_with("sandbox"));
    assert_eq!(response.text().await.unwrap(), "<script>alert(1)</script>");
    assert_eq!(
        *asked.lock().await,
        [(id.to_string(), r#"[("tenant", "acme"), ("version", "2")]"#.to_owned(), "Bearer between us".to_owned())]
    );

    let missing = door.request(Method::GET, &format!("{path}?version=9"), "viewer").send().await.unwrap();
    assert_eq!(answer(missing).await.1["code"], "unknown_artifact");
    let other = door.http.get(format!("{}{path}", door.url)).bearer_auth("other-admin").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::NOT_FOUND);
    door.close().await;
}

#[tokio::test]
async fn without_the_artifact_service_the_description_stays() {
    let door = Door::open_with(|config| config.common.artifact_url = "http://127.0.0.1:9".into()).await;
    let run = door.run().await;
    let planner = door.engine(Role::Planner).await;
    let id = ArtifactId::mint();
    commit(&planner, run, |_, outcome| {
        outcome.artifacts = vec![report(id, 1)];
        outcome.wait = Some(crate::harness::wait_for_event("main", None, false));
    })
    .await;
    assert_eq!(door.get(&format!("/v1/artifacts/{id}")).await["version"], 1);
    let response = door.request(Method::GET, &format!("/v1/artifacts/{id}/content"), "viewer").send().await.unwrap();
    let (status, problem) = answer(response).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("artifact_unavailable")));
    door.close().await;
}

#[tokio::test]
async fn what_a_person_gives_a_run_is_its_artifact_and_untrusted() {
    let url = storage(Asked::default()).await;
    let door = Door::open_with(|config| config.common.artifact_url = url).await;
    let run = door.run().await;
    let path = format!("/v1/artifacts?run_id={run}&name=plan.txt&media_type=text/plain");
    for version in [1, 2] {
        let request = door.request(Method::POST, &path, "user").body("x".repeat(2 * 1024 * 1024));
        let (status, kept) = answer(request.send().await.unwrap()).await;
        assert_eq!(status, StatusCode::CREATED, "{kept}");
        assert_eq!(
            (&kept["version"], &kept["trust"], &kept["bytes"]),
            (&json!(version), &json!("untrusted"), &json!(2_097_152))
        );
        let shown = door.get(&format!("/v1/artifacts/{}", kept["artifact_id"].as_str().unwrap())).await;
        assert_eq!((&shown["version"], &shown["run_id"]), (&json!(version), &json!(run)));
    }
    let (status, _) = answer(door.request(Method::POST, &path, "viewer").body("x").send().await.unwrap()).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let stranger =
        door.http.post(format!("{}{path}", door.url)).bearer_auth("other-admin").body("x").send().await.unwrap();
    assert_eq!(stranger.status(), StatusCode::NOT_FOUND);
    door.close().await;
}
