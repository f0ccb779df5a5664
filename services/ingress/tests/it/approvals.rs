//! Approvals: what people are asked, and that only the first answer counts.
//!
//! The approval service's side is played here with its own engine: it decides through the one door, as the service does.

use bus::{Problem, ServeOptions};
use engine::{Engine, SubmitError};
use kernel::call::Verdict;
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
    reason: Option<String>,
    by: String,
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
    assert!(question.roles.contains(&"operator".to_owned()));
    if question.arguments.as_ref().is_some_and(|arguments| arguments.get("pull").is_none()) {
        return Err(Problem::bad_request("invalid: `pull` is missing"));
    }
    let command = Command::DecideApproval(DecideApproval {
        approval_id: question.approval_id,
        verdict: question.decision,
        edited: question.arguments.map(|arguments| (arguments, "digest".into())),
        reason: question.reason,
        by: question.by,
        standing: None,
    });
    let key = question.request_id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    match engine.submit(run, command, key, cause("approval", 1)).await {
        Ok(_) => Ok(json!({"state": "decided"})),
        Err(SubmitError::Rejected(error @ Rejection::AlreadyDecided(..))) => {
            Err(Problem::new(409, format!("already_decided: {error}")))
        }
        Err(error) => Err(Problem::internal(error.to_string())),
    }
}

/// A run that asks whether it may merge.
async fn asking(door: &Door) -> (RunId, ApprovalId) {
    let run = door.run().await;
    let (planner, executor) = (door.engine(Role::Planner).await, door.engine(Role::ToolExecutor).await);
    let committed = commit(&planner, run, |state, outcome| outcome.calls = vec![merge_call(state)]).await;
    let call = *committed.state.calls.keys().next().unwrap();
    let approval = question(&committed.state, call);
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
