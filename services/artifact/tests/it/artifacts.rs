//! Content in and out.

use bytes::Bytes;
use kernel::{ArtifactId, RunId, call::ArtifactRef};
use reqwest::{StatusCode, header};

use crate::common::World;

#[tokio::test]
async fn versions_are_stored_committed_and_read_back() {
    let world = World::new().await;
    let service = world.service().await;
    let run = world.run().await;
    let answer = service.put(run, "reports/result.md").body("one").send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let one: ArtifactRef = answer.json().await.unwrap();
    assert_eq!(one.artifact_id, ArtifactId::derive(run, "artifact/reports/result.md"));
    assert_eq!((one.version, one.bytes, one.media_type.as_str()), (1, 3, "text/plain"));
    // What is not committed has no version yet.
    assert_eq!(service.get(&format!("/internal/artifacts/{}", one.artifact_id)).send().await.unwrap().status(), 404);
    let again: ArtifactRef =
        service.put(run, "reports/result.md").body("one").send().await.unwrap().json().await.unwrap();
    assert_eq!(again, one);
    world.commit(run, one.clone()).await;
    let two: ArtifactRef =
        service.put(run, "reports/result.md").body("two!").send().await.unwrap().json().await.unwrap();
    assert_eq!((two.artifact_id, two.version), (one.artifact_id, 2));

    let path = format!("/internal/artifacts/{}?tenant=default", one.artifact_id);
    let answer = service.get(&path).send().await.unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/plain");
    assert_eq!(answer.headers()["esc-trust"], "trusted");
    let etag = answer.headers()[header::ETAG].clone();
    assert_eq!(etag, format!("\"{}\"", one.digest));
    assert_eq!(answer.text().await.unwrap(), "one");
    let same = service.get(&path).header(header::IF_NONE_MATCH, etag).send().await.unwrap();
    assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    let part = service.get(&path).header(header::RANGE, "bytes=1-").send().await.unwrap();
    assert_eq!(
        (part.status(), part.headers()[header::CONTENT_RANGE].to_str().unwrap()),
        (StatusCode::PARTIAL_CONTENT, "bytes 1-2/3")
    );
    assert_eq!(part.text().await.unwrap(), "ne");
    let beyond = service.get(&path).header(header::RANGE, "bytes=9-").send().await.unwrap();
    assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    for (path, status) in [
        (format!("/internal/artifacts/{}?version=7", one.artifact_id), 404),
        (format!("/internal/artifacts/{}?tenant=other", one.artifact_id), 404),
        (format!("/internal/artifacts/{}?version=x", one.artifact_id), 400),
        ("/internal/artifacts/nonsense".to_owned(), 400),
    ] {
        assert_eq!(service.get(&path).send().await.unwrap().status(), status, "{path}");
    }
    service.stop().await;
    world.close().await;
}

#[tokio::test]
async fn bad_requests_are_told_why() {
    let world = World::new().await;
    let service = world.service_with(|config| config.artifact_max_bytes = 10).await;
    let run = world.run().await;
    for (name, body, status, code) in
        [("../up", "x", 400, "bad_name"), ("", "x", 400, "bad_name"), ("a", "more than ten bytes", 413, "too_large")]
    {
        let answer = service.put(run, name).body(body).send().await.unwrap();
        assert_eq!(answer.status(), status, "{name}");
        let problem: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(problem["code"], code, "{problem}");
    }
    let answer = service.put(RunId::mint(), "a").body("x").send().await.unwrap();
    assert_eq!(answer.status(), 404, "no such run");
    service.stop().await;
    world.close().await;
}

#[tokio::test]
async fn only_services_get_in() {
    let world = World::new().await;
    let service = world.service().await;
    let run = world.run().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = service.put(run, "a").build().unwrap().url().clone();
    for authorization in [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic the services' own")] {
        let request = client.put(url.clone()).body("x");
        let request = match authorization {
            Some(shown) => request.header(header::AUTHORIZATION, shown),
            None => request,
        };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 401, "{authorization:?}");
        assert_eq!(answer.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
    service.stop().await;

    let mut config = artifact::Config::default();
    config.common.listen = "0.0.0.0:0".parse().unwrap();
    let error = service::spawn("artifact", config, artifact::run).unwrap().stop().await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("internal_token"), "{error}");
    world.close().await;
}

/// Memory is a process's, so this test starts itself once more, alone: other tests would be measured with it.
#[tokio::test]
async fn large_content_flows_through_bounded_memory() {
    const NAME: &str = "artifacts::large_content_flows_through_bounded_memory";
    const ALONE: &str = "ESC_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().unwrap();
        let done = std::process::Command::new(program).args(["--exact", NAME]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
        return;
    }
    const CHUNKS: usize = 1024;
    let world = World::new().await;
    let service = world.service().await;
    let run = world.run().await;
    let chunk = |at: usize| -> Vec<u8> { (0..64 * 1024).map(|byte| ((byte * 31 + at * 7) % 251) as u8).collect() };
    let chunks = futures::stream::iter((0..CHUNKS).map(move |at| Ok::<_, std::io::Error>(Bytes::from(chunk(at)))));
    let before = peak_kib();
    let answer = service.put(run, "big.bin").body(reqwest::Body::wrap_stream(chunks)).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let artifact: ArtifactRef = answer.json().await.unwrap();
    assert_eq!(artifact.bytes, 64 << 20);
    world.commit(run, artifact.clone()).await;
    let mut answer = service.get(&format!("/internal/artifacts/{}", artifact.artifact_id)).send().await.unwrap();
    let (mut total, mut expected) = (0, Vec::new());
    while let Some(piece) = answer.chunk().await.unwrap() {
        for byte in piece {
            if expected.is_empty() {
                expected = chunk(total / (64 * 1024));
            }
            assert_eq!(byte, expected[total % (64 * 1024)], "at {total}");
            total += 1;
            if total % (64 * 1024) == 0 {
                expected.clear();
            }
        }
    }
    assert_eq!(total, 64 << 20);
    let grown = peak_kib() - before;
    assert!(grown < 48 * 1024, "{grown} KiB for 64 MiB that went in and out");
    service.stop().await;
    world.close().await;
}

/// The most memory that this process has had, in KiB.
fn peak_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
