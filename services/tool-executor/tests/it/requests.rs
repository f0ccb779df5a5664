//! Tools that answer at once: HTTP, files, repositories.

use kernel::command::{ByOperator, Command};
use kernel::event::EventData;
use kernel::{Role, Trust};
use serde_json::{Value, json};

use crate::house::House;
use crate::server::Server;

/// Runs one call to its end.
async fn once(house: &House, tool: &str, arguments: Value) -> (&'static str, String, kernel::Block) {
    let (run, call_id) = house.run_one(tool, arguments, Trust::Operator).await;
    house.end_of(run, call_id).await
}

#[tokio::test]
async fn reads_go_out_with_a_key_and_a_trace_and_come_back_as_data() {
    let server = Server::start().await;
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let house = House::new(&["http.get"], &[], &allow).await;
    let executor = house.executor();
    let get = |path: &str| json!({"url": server.url(path), "headers": {"x-asked": "yes"}});

    let (run, call_id) = house.run_one("http.get", get("/echo"), Trust::Untrusted).await;
    let (end, _, block) = house.end_of(run, call_id).await;
    assert_eq!((end, block.trust), ("tool.completed", Trust::Untrusted));
    assert!(block.text.starts_with("HTTP 200\n\n") && block.source == format!("tool:http.get/{call_id}"));
    let seen = &server.seen("/echo")[0];
    assert_eq!(seen["idempotency-key"], call_id.to_string().as_str());
    assert_eq!(seen["x-asked"], "yes");
    assert!(seen["traceparent"].to_str().unwrap().contains(&run.trace_id()));

    let (end, _, block) = once(&house, "http.get", get("/moved")).await;
    assert_eq!(end, "tool.completed", "{}", block.text);
    for (path, code) in [("/away", "redirect_refused"), ("/loop", "redirect_refused"), ("/missing", "http_status")] {
        let (end, said, block) = once(&house, "http.get", get(path)).await;
        assert_eq!((end, said.as_str()), ("tool.failed", code), "{path}: {}", block.text);
    }
    let (_, _, block) = once(&house, "http.get", get("/missing")).await;
    assert!(block.text.contains("no such thing") && block.trust == Trust::Untrusted);

    let (end, _, block) = once(&house, "http.get", get("/flaky/1")).await;
    assert_eq!((end, block.text.as_str()), ("tool.completed", "HTTP 200\n\nat last"));
    assert_eq!(server.seen("/flaky/1").len(), 3);

    // Nobody keeps artifacts here, and the result says so.
    let (end, _, block) = once(&house, "http.get", get("/large")).await;
    assert_eq!(end, "tool.completed");
    assert!(block.text.len() < 16 * 1024 && block.text.contains("could not be reached"), "{}", block.text);

    let (end, code, _) = once(&house, "http.get", json!({"url": server.url("/x"), "headers": {"Host": "evil"}})).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "invalid_arguments"));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_host_that_nobody_named_is_asked_about_and_a_private_one_is_never_reached() {
    let server = Server::start().await;
    // Its name, but not its port: enough for the policies, not for an address that isn't public.
    let house = House::new(&["http.get"], &[], "{ hosts: [\"127.0.0.1\"] }").await;
    let executor = house.executor();
    let (end, code, block) = once(&house, "http.get", json!({"url": server.url("/echo")})).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "private_address"), "{}", block.text);
    let other = house.call("http.get", json!({"url": "http://localhost:1/"}), Trust::Operator);
    let run = house.run(vec![other]).await;
    let asked = house.question(run, 1).await;
    assert!(asked.reasons[0].starts_with("ask-unnamed-host: "), "{:?}", asked.reasons);
    assert!(server.seen("/echo").is_empty());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_secret_goes_out_and_never_comes_back() {
    let server = Server::start().await;
    let tool = format!(
        "name: x.look\ndescription: Looks.\neffect: read\nidempotent: true\n\
         input: {{ type: object, properties: {{ q: {{ type: string }} }}, required: [q] }}\n\
         run: {{ http: {{ method: GET, url: \"{}?q={{q}}\", headers: {{ Authorization: \"Bearer secret:TOKEN\" }}, allow_private: true }} }}\n",
        server.url("/private")
    );
    let house = House::new(&[], &[("x.look", tool)], "{}").await;
    std::fs::create_dir(house.path("secrets")).unwrap();
    std::fs::write(house.path("secrets/TOKEN"), "s3cr3t-value\n").unwrap();
    let executor = house.executor();
    let (end, _, block) = once(&house, "x.look", json!({"q": "a&b=secret:TOKEN"})).await;
    assert_eq!(end, "tool.completed", "{}", block.text);
    assert_eq!(server.seen("/private")[0]["authorization"], "Bearer s3cr3t-value");
    assert!(block.text.contains("Bearer [secret TOKEN]") && !block.text.contains("s3cr3t-value"), "{}", block.text);
    assert!(block.text.contains("q=a%26b%3Dsecret%3ATOKEN"), "{}", block.text);
    std::fs::remove_file(house.path("secrets/TOKEN")).unwrap();
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn files_are_written_and_read_in_the_workspace_only() {
    let house = House::new(&["file.read", "file.write", "repo.checkout"], &[], "{}").await;
    let repository = house.path("repositories/shop/src");
    std::fs::create_dir_all(&repository).unwrap();
    std::fs::write(repository.join("lib.rs"), "one\ntwo\nthree\n").unwrap();
    let executor = house.executor();
    let checkout =
        house.call("repo.checkout", json!({"repository": "shop", "ref": "refs/heads/main"}), Trust::Untrusted);
    let write = house.call("file.write", json!({"path": "notes/a.txt", "content": "né"}), Trust::Untrusted);
    let ids = [checkout.call_id, write.call_id];
    let run = house.run(vec![checkout, write]).await;
    let (end, _, block) = house.end_of(run, ids[0]).await;
    assert_eq!((end, block.trust), ("tool.completed", Trust::System), "{}", block.text);
    assert_eq!(house.end_of(run, ids[1]).await.0, "tool.completed");
    let workspace = house.path("workspaces").join(run.to_string());
    assert_eq!(std::fs::read_to_string(workspace.join("src/lib.rs")).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(std::fs::read_to_string(workspace.join("notes/a.txt")).unwrap(), "né");
    assert_eq!(house.count(run, "tool.started").await, 0, "what may be done twice is not started in the log");

    // Another run sees nothing of it, and no path leads there.
    let (end, code, _) = once(&house, "file.read", json!({"path": "notes/a.txt"})).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "not_found"));
    let (end, code, _) = once(&house, "repo.checkout", json!({"repository": "../agents"})).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "invalid_arguments"));
    let outside = house.call("file.read", json!({"path": format!("../{run}/notes/a.txt")}), Trust::Operator);
    let run = house.run(vec![outside]).await;
    assert!(house.question(run, 1).await.reasons[0].starts_with("ask-outside-workspace: "));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn many_calls_of_one_turn_all_end() {
    let house = House::new(&["test.echo", "file.write"], &[], "{}").await;
    let executors = vec![house.executor(), house.executor()];
    let mut calls: Vec<_> =
        (0..20).map(|n| house.call("test.echo", json!({"text": n.to_string()}), Trust::Operator)).collect();
    calls.extend(
        (0..20).map(|n| house.call("file.write", json!({"path": format!("{n}"), "content": "x"}), Trust::Operator)),
    );
    let run = house.run(calls).await;
    house
        .event(run, |events| {
            let ended = events.iter().filter(|event| matches!(event, EventData::ToolCompleted(_))).count();
            (ended == 40).then_some(())
        })
        .await;
    house.close(executors).await;
}

#[tokio::test]
async fn a_large_result_is_kept_whole_and_can_be_read_in_parts() {
    let server = Server::start().await;
    let allow = format!("{{ hosts: [\"{}\"] }}", server.addr);
    let house = House::new(&["http.get", "artifact.read"], &[], &allow).await;
    let mut config = house.config();
    config.common.artifact_url = server.url("/");
    let executor = house.executor_with(config);
    let call = house.call("http.get", json!({"url": server.url("/large")}), Trust::Operator);
    let run = house.run(vec![call]).await;
    let result = house
        .event(run, |events| {
            events.iter().find_map(|event| match event {
                EventData::ToolCompleted(done) => Some(done.result.clone()),
                _ => None,
            })
        })
        .await;
    let artifact = result.artifact.unwrap();
    assert_eq!((artifact.bytes, artifact.trust), (40_000, Trust::Untrusted));
    assert!(result.block.text.len() < 16 * 1024);
    assert!(result.block.text.contains(&format!("kept whole as artifact {} version 1", artifact.artifact_id)));

    let part = json!({"artifact_id": artifact.artifact_id, "offset": 39_990, "bytes": 100});
    let (end, _, block) = once(&house, "artifact.read", part).await;
    assert_eq!((end, block.text.as_str(), block.trust), ("tool.completed", "xxxxxxxxxx", Trust::Untrusted));
    let gone = json!({"artifact_id": kernel::ArtifactId::mint()});
    let (end, code, _) = once(&house, "artifact.read", gone).await;
    assert_eq!((end, code.as_str()), ("tool.failed", "not_found"));
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_paused_run_starts_nothing_until_it_goes_on() {
    let server = Server::start().await;
    let house = House::new(&["test.echo"], &[("x.do", server.effect_tool("x.do", "60s", false))], "{}").await;
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let by = || ByOperator { by: "ann".to_owned(), reason: None };
    house.submit(Role::Ingress, run, Command::Pause(by()), "pause").await;
    let executor = house.executor();
    // A later call of another run is done: the earlier message was seen.
    assert_eq!(once(&house, "test.echo", json!({})).await.0, "tool.completed");
    assert!(server.asked().is_empty());
    house.submit(Role::Ingress, run, Command::Resume(by()), "resume").await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(server.asked().len(), 1);
    house.close(vec![executor]).await;
}
