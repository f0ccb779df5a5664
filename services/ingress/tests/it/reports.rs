//! What a run hands over, over HTTP.

use kernel::{
    ArtifactId, Cause, Command, Role, RunId, Trust,
    acceptance::{AskedCheck, CriterionVerdict},
    call::ArtifactRef,
    command::{EndRequest, Judge, PlanChange},
    event::{PlanStep, StepStatus},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, answer, block, commit};

async fn report(door: &Door, run: RunId) -> Value {
    door.get(&format!("/v1/runs/{run}/report")).await
}

#[tokio::test]
async fn a_report_says_what_was_asked_done_verified_and_left() {
    let door = Door::open().await;
    let body = json!({
        "agent": "helper", "input": "go", "objective": "mend it",
        "acceptance": ["it reads well", {"text": "it is reported", "check": {"artifact": {"name": "report.json"}}}],
    });
    let (status, created) = door.post("/v1/runs", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{created}");
    let run: RunId = created["run_id"].as_str().unwrap().parse().unwrap();
    let early = report(&door, run).await;
    assert_eq!((&early["objective"], &early["done"], &early["ended"]), (&json!("mend it"), &Value::Null, &Value::Null));
    assert_eq!(early["criteria"][1]["holds"], Value::Null, "nobody has looked into it");

    let planner = door.engine(Role::Planner).await;
    commit(&planner, run, |state, outcome| {
        let step = |title: &str, status| PlanStep { title: title.into(), status };
        let steps = vec![step("look", StepStatus::Done), step("tidy up", StepStatus::Pending)];
        outcome.plan = Some(PlanChange { steps, reason: None });
        outcome.artifacts = vec![ArtifactRef {
            artifact_id: ArtifactId::derive(state.run_id, "report"),
            name: "report.json".into(),
            version: 1,
            digest: "d".into(),
            bytes: 2,
            media_type: "application/json".into(),
            trust: Trust::Operator,
        }];
        let checks = vec![AskedCheck { criterion: 1, call_id: None }];
        outcome.end = Some(EndRequest::CompleteIf { summary: block("it is mended"), checks });
    })
    .await;
    let state = planner.load(run).await.unwrap().unwrap();
    let verdict = CriterionVerdict {
        criterion: 1,
        passed: true,
        how: "the artifact `report.json`".into(),
        evidence: block("`report.json` has 2 bytes"),
        call_id: None,
    };
    let turn_id = state.turn.as_ref().unwrap().turn_id;
    let judge = Command::Judge(Box::new(Judge { turn_id, verdicts: vec![verdict], artifacts: Vec::new() }));
    planner.submit(run, judge, "judge", Cause::default()).await.unwrap();

    let told = report(&door, run).await;
    assert_eq!(told["ended"], json!({"outcome": "completed", "rule": "goal_verified"}));
    assert_eq!(told["done"], "it is mended");
    let own_word = json!({"text": "it reads well", "holds": null, "how": "the agent's own word", "evidence": ""});
    let looked_into = json!({
        "text": "it is reported", "holds": true, "how": "the artifact `report.json`", "evidence": "`report.json` has 2 bytes",
    });
    assert_eq!(told["criteria"], json!([own_word, looked_into]));
    assert_eq!((&told["steps_done"], &told["left"]), (&json!(["look"]), &json!(["tidy up"])));
    assert_eq!(told["artifacts"], json!(["report.json version 1"]));
    assert_eq!(told["cost"], json!({"turns": 1, "tool_calls": 0, "tokens": 110, "microusd": 0, "refusals": 0}));
    door.close().await;
}

#[tokio::test]
async fn a_run_that_was_ended_has_a_report_and_other_tenants_see_none() {
    let door = Door::open().await;
    let run = door.run().await;
    let (status, body) = door.post(&format!("/v1/runs/{run}/cancel"), &json!({"reason": "enough"})).await;
    assert!(status.is_success(), "{status}: {body}");
    let told = report(&door, run).await;
    assert_eq!(told["ended"], json!({"outcome": "cancelled", "rule": "cancelled"}));
    assert_eq!(told["done"], "enough");
    let url = format!("{}/v1/runs/{run}/report", door.url);
    let asked = |token: &str| door.http.request(Method::GET, &url).bearer_auth(token).send();
    let (status, body) = answer(asked("other-admin").await.unwrap()).await;
    assert_eq!((status, &body["code"]), (StatusCode::NOT_FOUND, &json!("unknown_run")), "{body}");
    assert_eq!(asked("nobody").await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let (status, body) =
        answer(door.request(Method::GET, "/v1/runs/no-run/report", "viewer").send().await.unwrap()).await;
    assert!(status.is_client_error(), "{status}: {body}");
    door.close().await;
}
