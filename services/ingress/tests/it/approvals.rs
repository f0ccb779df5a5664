//! Approvals: what people are asked, and that only the first answer counts.
//!
//! The approval service's side is played here with its own engine: it decides through the one door, as the service does.

use bus::{Problem, ServeOptions};
use engine::{Engine, SubmitError};
use kernel::call::{Approval, Verdict};
use kernel::command::DecideApproval;
use kernel::{ApprovalId, Command, Rejection, Role, RunId};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::{Door, answer, cause, commit, merge_call, question};

#[derive(Deserialize)]
struct Question {
    tenant: String,
    approval_id: ApprovalId,
    decision: Verdict,
    arguments: Option<Value>,
    as_endorsed: Option<String>,
    reason: Option<String>,
    by: String,
    aliases: Vec<String>,
    roles: Vec<String>,
    request_id: Option<String>,
}

/// Answers `svc.approval.decide` for one run.
async fn responder(door: &Door, run: RunId) -> CancellationToken {
    let engine = door.engine(Role::Approval).await;
    let stop = CancellationToken::new();
    let decide = move |question: Question| decide(engine.clone(), run, question);
    door.bus().serve_json(ServeOptions::new("approval", "decide"), decide, stop.clone()).await.unwrap();
    door.bus().flush().await.unwrap();
    stop
}

async fn decide(engine: Engine, run: RunId, question: Question) -> Result<Value, Problem> {
    assert_eq!(question.tenant, "acme");
    assert!(question.roles.iter().any(|role| role == "operator" || role == "admin"));
    if question.arguments.as_ref().is_some_and(|arguments| arguments.get("pull").is_none()) {
        return Err(Problem::bad_request("invalid: `pull` is missing"));
    }
    let mut edited = question.arguments.map(|arguments| (arguments, "digest".to_owned()));
    if let Some(digest) = question.as_endorsed {
        let first = engine.load(run).await.unwrap().unwrap().endorsed[&question.approval_id].clone();
        assert_eq!(first.binding.arguments, digest);
        edited = first.arguments.map(|arguments| (arguments, digest));
    }
    let digest = edited.as_ref().map(|(_, digest)| digest.clone());
    let command = Command::DecideApproval(DecideApproval {
        approval_id: question.approval_id,
        verdict: question.decision,
        edited,
        reason: question.reason,
        by: question.by,
        aliases: question.aliases,
        standing: None,
    });
    let key = question.request_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    match engine.submit(run, command, key, cause("approval", 1)).await {
        Ok(committed) if committed.state.approvals.contains_key(&question.approval_id) => {
            Ok(json!({"state": "endorsed", "digest": digest}))
        }
        Ok(_) => Ok(json!({"state": "decided", "digest": digest})),
        Err(SubmitError::Rejected(error @ (Rejection::AlreadyEndorsed(..) | Rejection::EndorsedOtherwise(..)))) => {
            Err(Problem::new(409, format!("{}: {error}", error.code())))
        }
        Err(SubmitError::Rejected(error @ Rejection::AlreadyDecided(..))) => {
            Err(Problem::new(409, format!("already_decided: {error}")))
        }
        Err(error) => Err(Problem::internal(error.to_string())),
    }
}

/// A run that asks whether it may merge.
async fn asking(door: &Door) -> (RunId, ApprovalId) {
    asking_people(door, false).await
}

async fn asking_people(door: &Door, two_people: bool) -> (RunId, ApprovalId) {
    let run = door.run().await;
    let (planner, executor) = (door.engine(Role::Planner).await, door.engine(Role::ToolExecutor).await);
    let committed = commit(&planner, run, |state, outcome| outcome.calls = vec![merge_call(state)]).await;
    let call = *committed.state.calls.keys().next().unwrap();
    let approval = Approval { two_people, ..question(&committed.state, call) };
    let id = approval.approval_id;
    let seq = committed.state.seq;
    executor.submit(run, Command::AskApproval(Box::new(approval)), "ask", cause("tool-executor", seq)).await.unwrap();
    (run, id)
}

#[tokio::test]
async fn the_first_decision_counts_and_the_second_hears_of_it() {
    let door = Door::open().await;
    let (run, approval) = asking(&door).await;
    let _stop = responder(&door, run).await;
    let open = door.get("/v1/approvals?state=open").await;
    assert_eq!(open["items"][0]["approval_id"], json!(approval));
    assert_eq!((&open["items"][0]["kind"], &open["items"][0]["trust"]), (&json!("call"), &json!("untrusted")));
    assert_eq!(
        (&open["items"][0]["arguments"], &open["items"][0]["tool"]),
        (&json!({"pull": 7}), &json!("forge.merge"))
    );
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    assert!(shown["waits"].as_array().unwrap().iter().any(|wait| wait["kind"] == "operator_input"), "{shown}");

    let path = format!("/v1/approvals/{approval}");
    let (status, problem) = door.post(&path, &json!({"decision": "approve", "arguments": {}})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("invalid_decision")));
    let (status, problem) = door.post(&path, &json!({"decision": "deny", "arguments": {"pull": 8}})).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("arguments")));

    let decision = json!({"decision": "approve", "arguments": {"pull": 8}, "reason": "looks right"});
    let (status, decided) = door.post(&path, &decision).await;
    assert_eq!((status, &decided["state"]), (StatusCode::OK, &json!("granted")), "{decided}");
    assert_eq!((&decided["decided_by"], &decided["reason"]), (&json!("acme-operator"), &json!("looks right")));

    let (status, problem) = door.post(&path, &json!({"decision": "deny"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_decided")));
    assert_eq!(
        (&problem["approval"]["state"], &problem["approval"]["decided_by"]),
        (&json!("granted"), &json!("acme-operator"))
    );
    let granted = door.events(run).await.into_iter().filter(|event| event["type"] == "approval.granted");
    assert_eq!(granted.map(|event| event["data"]["arguments"].clone()).collect::<Vec<_>>(), [json!({"pull": 8})]);
    assert_eq!(door.get("/v1/approvals?state=open").await["items"], json!([]));
    assert_eq!(door.get(&path).await["state"], "granted");
    door.close().await;
}

#[tokio::test]
async fn the_same_key_with_another_answer_is_refused_and_not_taken_for_a_repetition() {
    let door = Door::open().await;
    let (run, approval) = asking(&door).await;
    let _stop = responder(&door, run).await;
    let decide = async |decision: &str| {
        let request = door.request(Method::POST, &format!("/v1/approvals/{approval}"), "operator");
        answer(request.header("idempotency-key", "k").json(&json!({"decision": decision})).send().await.unwrap()).await
    };
    for _ in 0..2 {
        let (status, decided) = decide("approve").await;
        assert_eq!((status, &decided["state"]), (StatusCode::OK, &json!("granted")), "{decided}");
    }
    let (status, problem) = decide("deny").await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("idempotency_key_reused")), "{problem}");
    assert_eq!(problem["approval"]["state"], "granted");
    door.close().await;
}

#[tokio::test]
async fn the_same_key_with_other_arguments_is_refused_and_a_refused_answer_leaves_its_key() {
    let door = Door::open().await;
    let (run, approval) = asking(&door).await;
    let _stop = responder(&door, run).await;
    let decide = async |decision: Value| {
        let request = door.request(Method::POST, &format!("/v1/approvals/{approval}"), "operator");
        answer(request.header("idempotency-key", "k").json(&decision).send().await.unwrap()).await
    };
    let (status, problem) = decide(json!({"decision": "approve", "arguments": {}})).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("invalid_decision")), "{problem}");
    for _ in 0..2 {
        let (status, decided) = decide(json!({"decision": "approve", "arguments": {"pull": 8}})).await;
        assert_eq!((status, &decided["state"]), (StatusCode::OK, &json!("granted")), "{decided}");
    }
    for other in [
        json!({"decision": "approve", "arguments": {"pull": 9}}),
        json!({"decision": "approve", "always": true}),
        json!({"decision": "approve", "arguments": {"pull": 8}, "reason": "another"}),
    ] {
        let (status, problem) = decide(other).await;
        assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("idempotency_key_reused")), "{problem}");
        assert_eq!(problem["approval"]["state"], "granted");
    }
    door.close().await;
}

#[tokio::test]
async fn questions_are_listed_page_by_page() {
    let door = Door::open().await;
    let asked = [asking(&door).await.1, asking(&door).await.1];
    let first = door.get("/v1/approvals?limit=1").await;
    let rest = door.get(&format!("/v1/approvals?limit=1&cursor={}", first["next"].as_str().unwrap())).await;
    assert_eq!(
        (&first["items"][0]["approval_id"], &rest["items"][0]["approval_id"]),
        (&json!(asked[1]), &json!(asked[0]))
    );
    assert_eq!(rest.get("next"), None);
    for list in ["approvals", "waits", "runs"] {
        let refused = door.request(Method::GET, &format!("/v1/{list}?cursor=nonsense"), "viewer").send().await.unwrap();
        assert_eq!(answer(refused).await.1["code"], "invalid_cursor", "{list}");
    }
    let first = door.get("/v1/waits?limit=1").await;
    let rest = door.get(&format!("/v1/waits?cursor={}", first["next"].as_str().unwrap())).await;
    assert_ne!(first["items"][0], rest["items"][0]);
    door.close().await;
}

#[tokio::test]
async fn of_many_at_once_one_decides() {
    let door = Door::open().await;
    let (run, approval) = asking(&door).await;
    let _stop = responder(&door, run).await;
    let path = format!("/v1/approvals/{approval}");
    let decide = |number: usize| {
        let decision = if number.is_multiple_of(2) { "approve" } else { "deny" };
        let body = json!({"decision": decision});
        let path = path.clone();
        let door = &door;
        async move { door.post(&path, &body).await.0 }
    };
    let statuses = futures::future::join_all((0..8).map(decide)).await;
    assert_eq!(statuses.iter().filter(|status| **status == StatusCode::OK).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(*status, StatusCode::OK | StatusCode::CONFLICT)), "{statuses:?}");
    door.close().await;
}

#[tokio::test]
async fn only_operators_of_the_tenant_decide() {
    let door = Door::open().await;
    let (run, approval) = asking(&door).await;
    let _stop = responder(&door, run).await;
    let path = format!("/v1/approvals/{approval}");
    let body = json!({"decision": "approve"});
    let anonymous = door.http.post(format!("{}{path}", door.url)).json(&body).send().await.unwrap();
    assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
    for role in ["viewer", "user", "publisher"] {
        let response = door.request(Method::POST, &path, role).json(&body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{role}");
    }
    let other = door.http.post(format!("{}{path}", door.url)).bearer_auth("other-operator").json(&body);
    assert_eq!(other.send().await.unwrap().status(), StatusCode::NOT_FOUND);
    assert_eq!(door.get(&path).await["state"], "open");
    door.close().await;
}

#[tokio::test]
async fn without_the_approval_service_nothing_is_decided() {
    let door = Door::open().await;
    let (_, approval) = asking(&door).await;
    let request = door.request(Method::POST, &format!("/v1/approvals/{approval}"), "operator");
    let response = request.json(&json!({"decision": "approve"})).send().await.unwrap();
    assert!(response.headers().contains_key("retry-after"));
    let (status, problem) = answer(response).await;
    assert_eq!((status, &problem["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("approval_unavailable")));
    door.close().await;
}

/// A token of an operator that an admin has made.
async fn made(door: &Door, name: &str) -> String {
    let body = json!({"name": name, "roles": ["operator"]});
    let (status, body) =
        answer(door.request(Method::POST, "/v1/tokens", "admin").json(&body).send().await.unwrap()).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    body["token"].as_str().unwrap().to_owned()
}

async fn decide_with(door: &Door, approval: ApprovalId, token: &str, body: &Value) -> (StatusCode, Value) {
    let request = door.http.post(format!("{}/v1/approvals/{approval}", door.url)).bearer_auth(token).json(body);
    answer(request.send().await.unwrap()).await
}

#[tokio::test]
async fn two_tokens_of_two_people_decide_and_no_other_two() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let _stop = responder(&door, run).await;
    let (ann, bob) = (made(&door, "ann").await, made(&door, "bob").await);
    let yes = json!({"decision": "approve", "reason": "it is due"});
    let decide = async |token: &str| decide_with(&door, approval, token, &yes).await;

    let open = door.get(&format!("/v1/approvals/{approval}")).await;
    assert_eq!(
        (&open["people_needed"], &open["people_missing"], &open["endorsements"]),
        (&json!(2), &json!(2), &json!([]))
    );
    let (status, problem) = decide_with(&door, approval, &ann, &json!({"decision": "approve", "always": true})).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("always")), "{problem}");

    let (status, endorsed) = decide(&ann).await;
    assert_eq!((status, &endorsed["state"]), (StatusCode::ACCEPTED, &json!("open")), "one more person is needed");
    assert_eq!((&endorsed["people_missing"], &endorsed["decided_by"]), (&json!(1), &Value::Null));
    let first = &endorsed["endorsements"][0];
    assert_eq!((&first["by"], &first["reason"]), (&json!("ann"), &json!("it is due")));

    // Her own once more, and that of the admin who made it and so has had it in hand.
    for token in [ann.as_str(), "acme-admin"] {
        let (status, problem) = decide(token).await;
        assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_endorsed")), "{problem}");
        assert_eq!(problem["approval"]["people_missing"], 1);
    }
    assert_eq!(decide("other-operator").await.0, StatusCode::NOT_FOUND, "of another tenant");
    assert_eq!(decide("acme-user").await.0, StatusCode::FORBIDDEN);

    let (status, granted) = decide(&bob).await;
    assert_eq!((status, &granted["state"]), (StatusCode::OK, &json!("granted")), "{granted}");
    assert_eq!(
        (&granted["decided_by"], &granted["endorsements"][0]["by"], &granted["people_missing"]),
        (&json!("bob"), &json!("ann"), &json!(0))
    );
    let events = door.events(run).await;
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    assert_eq!((of("approval.endorsed").len(), of("approval.granted").len()), (1, 1));

    let why = door.get(&format!("/v1/runs/{run}/why/{run}-{}", of("approval.granted")[0]["seq"])).await;
    let links = why["chain"].as_array().unwrap();
    let said = links.iter().find(|link| link["type"] == "approval.granted").unwrap();
    assert_eq!(said["summary"], "bob said yes, as ann had");
    assert!(links.iter().any(|link| link["type"] == "approval.endorsed"), "{why:#}");
    door.close().await;
}

#[tokio::test]
async fn one_person_is_one_also_if_the_table_says_that_one_is_enough() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let _stop = responder(&door, run).await;
    door.stack.sql("update approvals set two_people = false").await.unwrap();
    let ann = made(&door, "ann").await;
    let yes = json!({"decision": "approve"});
    assert_eq!(decide_with(&door, approval, &ann, &yes).await.0, StatusCode::ACCEPTED);
    let (status, problem) = decide_with(&door, approval, "acme-admin", &yes).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_endorsed")), "they made the other");
    assert_eq!(problem["approval"]["state"], "open");
    door.close().await;
}

#[tokio::test]
async fn a_first_yes_that_a_no_has_overtaken_is_no_success() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let engine = door.engine(Role::Approval).await;
    let stop = CancellationToken::new();
    let overtaken = move |question: Question| {
        let engine = engine.clone();
        async move {
            let answer = decide(engine.clone(), run, question).await;
            let no = Command::DecideApproval(DecideApproval {
                approval_id: approval,
                verdict: Verdict::Deny,
                edited: None,
                reason: None,
                by: "bob".into(),
                aliases: Vec::new(),
                standing: None,
            });
            engine.submit(run, no, "no", cause("approval", 1)).await.unwrap();
            answer
        }
    };
    door.bus().serve_json(ServeOptions::new("approval", "decide"), overtaken, stop.clone()).await.unwrap();
    door.bus().flush().await.unwrap();
    let (status, problem) = decide_with(&door, approval, "acme-operator", &json!({"decision": "approve"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("already_decided")), "{problem}");
    assert_eq!((&problem["approval"]["state"], &problem["approval"]["decided_by"]), (&json!("denied"), &json!("bob")));
    stop.cancel();
    door.close().await;
}

#[tokio::test]
async fn the_audit_trail_tells_who_agreed_first_and_who_could_not() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let _stop = responder(&door, run).await;
    let yes = json!({"decision": "approve"});
    for (token, expected) in [("acme-operator", 202), ("acme-operator", 409), ("acme-admin", 200)] {
        assert_eq!(decide_with(&door, approval, token, &yes).await.0.as_u16(), expected, "{token}");
    }
    let trail = door.request(Method::GET, "/v1/audit?action=approvals.decide", "admin").send().await.unwrap();
    let trail = answer(trail).await.1;
    let entries = trail["items"].as_array().unwrap();
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            (&entry["actor"], &entry["outcome"], &entry["evidence"]["state"], &entry["evidence"]["endorsed_by"])
        })
        .collect();
    let (operator, admin) = (json!("acme-operator"), json!("acme-admin"));
    let (done, refused, endorsed, granted) =
        (json!("done"), json!("already_endorsed"), json!("endorsed"), json!("granted"));
    assert_eq!(
        told,
        [
            (&admin, &done, &granted, &operator),
            (&operator, &refused, &Value::Null, &Value::Null),
            (&operator, &done, &endorsed, &operator),
        ],
        "{trail:#}"
    );
    door.close().await;
}

#[tokio::test]
async fn what_the_first_has_changed_is_what_the_second_has_to_send() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let _stop = responder(&door, run).await;
    let changed = json!({"decision": "approve", "arguments": {"pull": 8}});
    let (status, endorsed) = decide_with(&door, approval, "acme-operator", &changed).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{endorsed}");
    assert_eq!(
        (&endorsed["arguments"], &endorsed["endorsements"][0]["arguments"]),
        (&json!({"pull": 7}), &json!({"pull": 8}))
    );
    let (status, problem) = decide_with(&door, approval, "acme-admin", &json!({"decision": "approve"})).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("endorsed_otherwise")), "{problem}");
    let shown = problem["approval"]["endorsements"][0]["digest"].clone();
    for (decision, field, value) in
        [("deny", "reason", json!("no")), ("approve", "arguments", json!({})), ("approve", "always", json!(true))]
    {
        let body = json!({"decision": decision, "as_endorsed": shown, field: value});
        let (status, problem) = decide_with(&door, approval, "acme-admin", &body).await;
        assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("invalid_field")), "{problem}");
    }
    let same = json!({"decision": "approve", "as_endorsed": shown});
    let (status, granted) = decide_with(&door, approval, "acme-admin", &same).await;
    assert_eq!((status, &granted["state"]), (StatusCode::OK, &json!("granted")), "{granted}");
    let granted = door.events(run).await.into_iter().find(|event| event["type"] == "approval.granted").unwrap();
    assert_eq!(granted["data"]["arguments"], json!({"pull": 8}));
    let trail = door.request(Method::GET, "/v1/audit?action=approvals.decide", "admin").send().await.unwrap();
    let trail = answer(trail).await.1;
    let agreed = trail["items"].as_array().unwrap().iter().filter(|entry| entry["outcome"] == "done");
    let agreed: Vec<_> = agreed.map(|entry| &entry["evidence"]["agreed"]).collect();
    assert_eq!(agreed, ["digest", "digest"], "the arguments as changed, not as asked");
    door.close().await;
}

#[tokio::test]
async fn a_repeated_first_yes_is_told_the_same_and_later_what_came_of_it() {
    let door = Door::open().await;
    let (run, approval) = asking_people(&door, true).await;
    let _stop = responder(&door, run).await;
    let decide = async || {
        let request = door.request(Method::POST, &format!("/v1/approvals/{approval}"), "operator");
        let request = request.header("idempotency-key", "k").json(&json!({"decision": "approve"}));
        answer(request.send().await.unwrap()).await
    };
    for _ in 0..2 {
        let (status, body) = decide().await;
        assert_eq!((status, &body["people_missing"]), (StatusCode::ACCEPTED, &json!(1)), "{body}");
    }
    let second = decide_with(&door, approval, "acme-admin", &json!({"decision": "approve"})).await;
    assert_eq!(second.0, StatusCode::OK);
    let (status, body) = decide().await;
    assert_eq!((status, &body["state"]), (StatusCode::OK, &json!("granted")), "{body}");
    door.close().await;
}
