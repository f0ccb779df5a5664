//! What is one tenant's is no other's: over every path that the description of the API knows.

use std::collections::BTreeMap;

use engine::NewStanding;
use kernel::call::ArtifactRef;
use kernel::command::TurnOutcome;
use kernel::{ApprovalId, ArtifactId, Command, Role, RunId, RunState, StandingId, Trust};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer, cause, commit, json_of, merge_call, question};

/// A word that stands in all that belongs to the first tenant, and so must not stand in any answer to the second.
const MINE: &str = "belongs-to-acme";
/// A name that both tenants may give to things of their own.
const NAME: &str = "same-name";

/// Things of the tenant `acme`, by the names that paths have for their ids.
async fn things(door: &Door) -> BTreeMap<&'static str, String> {
    let agent = format!("name: {NAME}\nmodel: scripted:x\ninstructions: {MINE}\n");
    door.put_agent(&agent).await;
    let conversation = uuid::Uuid::now_v7();
    let input = json!({"agent": NAME, "input": MINE, "metadata": {"secret": MINE}, "conversation_id": conversation});
    let (_, run) = door.post("/v1/runs", &input).await;
    let run: RunId = run["run_id"].as_str().unwrap().parse().unwrap();
    let (planner, executor) = (door.engine(Role::Planner).await, door.engine(Role::ToolExecutor).await);
    let artifact = ArtifactId::mint();
    let made = ArtifactRef {
        artifact_id: artifact,
        name: MINE.into(),
        version: 1,
        digest: "digest".into(),
        bytes: 1,
        media_type: "text/plain".into(),
        trust: Trust::Untrusted,
    };
    let turn = |state: &RunState, outcome: &mut TurnOutcome| {
        outcome.calls = vec![merge_call(state)];
        outcome.artifacts = vec![made];
    };
    let committed = commit(&planner, run, turn).await;
    let call = *committed.state.calls.keys().next().unwrap();
    let approval = question(&committed.state, call);
    let approval_id = approval.approval_id;
    let asked = Command::AskApproval(Box::new(approval));
    executor.submit(run, asked, "ask", cause("tool-executor", committed.state.seq)).await.unwrap();
    let schedule = json!({"cron": "0 0 1 1 *", "start": {"agent": NAME, "input": MINE}});
    let put =
        door.request(Method::PUT, &format!("/v1/schedules/{NAME}"), "admin").json(&schedule).send().await.unwrap();
    assert!(put.status().is_success(), "{}", put.text().await.unwrap());
    let token = json!({"name": MINE, "roles": ["viewer"]});
    let token = json_of(door.request(Method::POST, "/v1/tokens", "admin").json(&token).send().await.unwrap()).await;
    let freeze = json!({"scope": format!("agent:{NAME}"), "on": true, "reason": MINE});
    json_of(door.request(Method::PUT, "/v1/freeze", "operator").json(&freeze).send().await.unwrap()).await;
    let action = json!({"service": NAME, "what": MINE});
    let action = json_of(door.request(Method::POST, "/v1/actions", "user").json(&action).send().await.unwrap()).await;
    let knowledge = door.request(Method::PUT, &format!("/v1/knowledge/{NAME}/{NAME}"), "operator");
    let knowledge = knowledge.header("content-type", "text/plain").body(MINE).send().await.unwrap();
    assert!(knowledge.status().is_success(), "{}", knowledge.text().await.unwrap());
    let standing = standing(door, run, approval_id).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    BTreeMap::from([
        ("run_id", run.to_string()),
        ("call_id", call.to_string()),
        ("approval_id", approval_id.to_string()),
        ("token_id", text(&token["token_id"])),
        ("name", NAME.to_owned()),
        ("artifact_id", artifact.to_string()),
        ("conversation_id", conversation.to_string()),
        ("action_id", text(&action["action_id"])),
        ("collection", NAME.to_owned()),
        ("standing_id", standing.to_string()),
        ("number", "1".to_owned()),
        ("event_id", "1".to_owned()),
        ("service", NAME.to_owned()),
        ("source", NAME.to_owned()),
    ])
}

/// A standing approval of that tenant.
async fn standing(door: &Door, run_id: RunId, approval_id: ApprovalId) -> StandingId {
    let standing = door.engine(Role::Approval).await.standing();
    let standing_id = StandingId::mint();
    let new = NewStanding {
        standing_id,
        tenant: "acme".parse().unwrap(),
        agent: NAME.into(),
        agent_digest: "digest".into(),
        tool: "forge.merge".into(),
        schema_digest: "schema".into(),
        shape: "shape".into(),
        reasons: Vec::new(),
        arguments: json!({"secret": MINE}),
        approval_id,
        run_id,
        note: None,
        given_by: "ann".into(),
    };
    standing.propose(&new).await.unwrap();
    standing.confirm(standing_id).await.unwrap();
    standing_id
}

/// A path with the first tenant's own ids in it.
fn filled(path: &str, things: &BTreeMap<&str, String>) -> String {
    path.split('/')
        .map(|segment| match segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}')) {
            // What has no thing of ours in it still gets an id that could be one.
            Some(name) => things.get(name).cloned().unwrap_or_else(|| uuid::Uuid::nil().to_string()),
            None => segment.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("/")
}

#[tokio::test]
async fn no_path_shows_or_changes_what_is_another_tenants() {
    let door = Door::open().await;
    let things = things(&door).await;
    let run_path = format!("/v1/runs/{}", things["run_id"]);
    let before = door.get(&run_path).await;
    let document: Value = serde_json::from_str(ingress::openapi()).unwrap();
    let mut tried = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys().filter(|name| *name != "parameters") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let url = format!("{}{}", door.url, filled(path, &things));
            // In the name of a tenant that is everything there and nothing here.
            for (name, forged) in [("x-tenant", "acme"), ("tenant", "acme")] {
                let request = door.http.request(method.clone(), &url).bearer_auth("other-admin").header(name, forged);
                let request = if method == Method::GET { request } else { request.json(&json!({})) };
                let response = tokio::time::timeout(crate::harness::PATIENCE, request.send()).await.unwrap().unwrap();
                let status = response.status();
                // A stream of another's run must not open; that of one's own would not end.
                let is_stream = response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
                assert!(!is_stream, "{method} {path} opens a stream of another tenant");
                let body = response.text().await.unwrap();
                assert!(
                    !status.is_server_error() || status == StatusCode::SERVICE_UNAVAILABLE,
                    "{method} {path}: {status} {body}"
                );
                // The words of a refusal repeat what was asked for; an answer must not.
                assert!(!status.is_success() || !body.contains(MINE), "{method} {path}: {body}");
                tried += 1;
            }
        }
    }
    assert!(tried > 80, "{tried}");
    let after = door.get(&run_path).await;
    assert_eq!((&after["seq"], &after["status"]), (&before["seq"], &before["status"]), "nothing was done to the run");
    for (path, state) in [(format!("/v1/approvals/{}", things["approval_id"]), "open")] {
        assert_eq!(door.get(&path).await["state"], state);
    }
    let schedule = door.request(Method::GET, &format!("/v1/schedules/{NAME}"), "viewer").send().await.unwrap();
    assert!(schedule.status().is_success(), "the schedule is still there");
    let tokens = answer(door.request(Method::GET, "/v1/tokens", "admin").send().await.unwrap()).await.1;
    assert_eq!(tokens["items"][0]["name"], MINE, "the token is still good");
    assert_eq!(door.get("/v1/freeze").await["items"][0]["reason"], MINE, "the freeze is still in force");
    let standing = door.get("/v1/standing-approvals").await;
    assert_eq!(standing["items"].as_array().map(Vec::len), Some(1), "and so is the standing approval");
    door.close().await;
}
