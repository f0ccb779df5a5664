//! The audit trail: whatever was done or refused is in it, with who, when, from where and on what evidence.

use engine::{AuditFilter, AuditRow};
use kernel::{Role, TenantId};
use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Door, answer, eventually};

async fn rows(door: &Door) -> Vec<AuditRow> {
    let trail = door.engine(Role::Ingress).await.trail();
    trail.from(&"acme".parse::<TenantId>().unwrap(), &AuditFilter::default(), None, 1000).await.unwrap()
}

async fn ask(door: &Door, path: &str) -> Value {
    answer(door.request(Method::GET, path, "operator").send().await.unwrap()).await.1
}

#[tokio::test]
async fn who_did_what_from_where_is_there_when_it_is_answered() {
    let door = Door::open().await;
    let freeze = door
        .request(Method::PUT, "/v1/freeze", "operator")
        .header("user-agent", HeaderValue::from_bytes(b"test/1 \xff").unwrap());
    let freeze =
        freeze.header("x-forwarded-for", "203.0.113.7").json(&json!({"scope": "tenant", "on": true, "reason": "odd"}));
    assert_eq!(freeze.send().await.unwrap().status(), StatusCode::OK);
    let refused = door.request(Method::PUT, "/v1/freeze", "user").json(&json!({"scope": "tenant", "on": false}));
    assert_eq!(refused.send().await.unwrap().status(), StatusCode::FORBIDDEN);

    let page = ask(&door, "/v1/audit?action=freeze.set").await;
    let [refused, done] = page["items"].as_array().unwrap().as_slice() else { panic!("{page}") };
    assert_eq!((&refused["actor"], &refused["outcome"]), (&json!("acme-user"), &json!("insufficient_role")));
    assert_eq!(
        (&done["actor"], &done["outcome"], &done["roles"]),
        (&json!("acme-operator"), &json!("done"), &json!(["operator"]))
    );
    assert_eq!((&done["address"], &done["forwarded"]), (&json!("127.0.0.1"), &json!("203.0.113.7")));
    assert_eq!((&done["resource"], &done["evidence"]["reason"]), (&json!("/v1/freeze"), &json!("odd")));
    assert_eq!(done["user_agent"], "test/1 \u{fffd}", "what is no text is kept as far as it is one");
    assert_eq!(ask(&door, "/v1/audit?actor=nobody").await["items"], json!([]));
    door.close().await;
}

#[tokio::test]
async fn pages_and_the_export_hold_each_entry_once() {
    let door = Door::open().await;
    for number in 0..7 {
        let body = json!({"scope": "tenant", "on": number % 2 == 0});
        assert!(
            door.request(Method::PUT, "/v1/freeze", "operator").json(&body).send().await.unwrap().status().is_success()
        );
    }
    let (mut cursor, mut seen) = (String::new(), Vec::new());
    loop {
        let page = ask(&door, &format!("/v1/audit?action=freeze.set&limit=3{cursor}")).await;
        seen.extend(page["items"].as_array().unwrap().iter().map(|entry| entry["id"].to_string()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let (mut cursor, mut exported) = (String::new(), Vec::new());
    loop {
        let page = ask(&door, &format!("/v1/audit/events?action=freeze.set&limit=3{cursor}")).await;
        let items = page["items"].as_array().unwrap();
        if items.is_empty() {
            break;
        }
        for event in items {
            assert_eq!((&event["specversion"], &event["type"]), (&json!("1.0"), &json!("escapement.audit.freeze.set")));
            assert_eq!((&event["source"], &event["subject"]), (&json!("/escapement/acme/audit"), &json!("/v1/freeze")));
            exported.push(event["id"].to_string());
        }
        cursor = format!("&cursor={}", page["next"].as_str().unwrap());
    }
    seen.reverse();
    assert_eq!((seen.len(), &seen), (7, &exported), "one newest first, the other oldest first");
    let other = door.http.get(format!("{}/v1/audit", door.url)).bearer_auth("other-admin").send().await.unwrap();
    assert_eq!(answer(other).await.1["items"], json!([]), "another tenant's is another's");
    let viewer = door.request(Method::GET, "/v1/audit", "viewer").send().await.unwrap();
    assert_eq!(viewer.status(), StatusCode::FORBIDDEN);
    let (status, problem) =
        answer(door.request(Method::GET, "/v1/audit?cursor=x", "operator").send().await.unwrap()).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("cursor")));
    door.close().await;
}

#[tokio::test]
async fn runs_are_entered_behind_the_answer_and_data_is_not() {
    let door = Door::open().await;
    let run = door.run().await;
    let event = json!({"specversion": "1.0", "id": "1", "source": "s", "type": "t"});
    let _ = door.request(Method::POST, "/v1/events?source=ci", "user").json(&event).send().await.unwrap();
    let cancel = door.request(Method::POST, &format!("/v1/runs/{run}/cancel"), "user").json(&json!({}));
    assert!(cancel.send().await.unwrap().status().is_success());
    let entered = eventually("the run is entered", || async {
        let rows = rows(&door).await;
        rows.iter().any(|row| row.entry.action == "runs.create").then_some(rows)
    });
    let rows = entered.await;
    let cancelled = rows
        .iter()
        .map(|row| &row.entry)
        .find(|entry| entry.action == "runs.cancel")
        .expect("there when it was answered");
    assert_eq!(
        (cancelled.actor.as_str(), cancelled.resource.as_str()),
        ("acme-user", format!("/v1/runs/{run}/cancel").as_str())
    );
    assert!(rows.iter().all(|row| !row.entry.action.starts_with("events")), "{rows:?}");
    door.close().await;
}

#[tokio::test]
async fn an_act_on_many_is_entered_with_what_it_meant_and_how_many_it_touched() {
    let door = Door::open().await;
    let runs = [door.run().await, door.run().await];
    let filter = json!({"agent": "helper", "status": "runnable"});
    let body = |dry_run: bool| json!({"filter": filter, "reason": "a bad release", "dry_run": dry_run});
    for dry_run in [true, false] {
        assert_eq!(door.post("/v1/runs:pause", &body(dry_run)).await.0, StatusCode::OK);
    }
    let page = ask(&door, "/v1/audit?action=runs.pause").await;
    let evidence: Vec<_> = page["items"].as_array().unwrap().iter().map(|entry| &entry["evidence"]).collect();
    let [done, dry] = evidence.as_slice() else { panic!("{page}") };
    for (evidence, dry_run, changed) in [(dry, true, 0), (done, false, 2)] {
        assert_eq!((&evidence["filter"], &evidence["dry_run"]), (&filter, &json!(dry_run)), "{evidence}");
        assert_eq!((&evidence["found"], &evidence["changed"]), (&json!(2), &json!(changed)), "{evidence}");
        assert_eq!((&evidence["failed"], &evidence["reason"]), (&json!(0), &json!("a bad release")), "{evidence}");
    }
    // A list of names is kept as far as it can be read.
    let many: Vec<_> = runs.iter().cycle().take(101).collect();
    assert_eq!(door.post("/v1/runs:resume", &json!({"filter": {"run_ids": many}, "dry_run": true})).await.0, 200);
    let page = ask(&door, "/v1/audit?action=runs.resume").await;
    let filter = &page["items"][0]["evidence"]["filter"];
    assert_eq!((filter["run_ids"].as_array().unwrap().len(), &filter["run_ids_in_all"]), (100, &json!(101)));
    let redrive = door.request(Method::POST, "/v1/dlq:redrive", "admin");
    let redrive = redrive.json(&json!({"filter": {"consumer": "planner"}, "dry_run": true})).send().await.unwrap();
    assert_eq!(redrive.status(), StatusCode::OK);
    let page = ask(&door, "/v1/audit?action=dlq.redrive").await;
    let evidence = &page["items"][0]["evidence"];
    assert_eq!(
        (&evidence["filter"]["consumer"], &evidence["dry_run"]),
        (&json!("planner"), &json!(true)),
        "{evidence}"
    );
    assert_eq!((&evidence["found"], &evidence["redriven"]), (&json!(0), &json!(0)));
    door.close().await;
}

#[tokio::test]
async fn whoever_hangs_up_before_the_answer_is_entered_all_the_same() {
    let door = Door::open().await;
    let body = r#"{"scope": "tenant", "on": true, "reason": "unseen"}"#;
    let mut connection = TcpStream::connect(door.url.trim_start_matches("http://")).await.unwrap();
    let request = format!(
        "PUT /v1/freeze HTTP/1.1\r\nhost: door\r\nauthorization: Bearer acme-operator\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    // The answer waits for executors to hear: longer than this.
    drop(connection);
    let entered = eventually("the act is entered", || async {
        rows(&door).await.into_iter().find(|row| row.entry.action == "freeze.set")
    });
    let row = entered.await;
    assert_eq!((row.entry.actor.as_str(), row.entry.outcome.as_str()), ("acme-operator", "abandoned"));
    door.close().await;
}
