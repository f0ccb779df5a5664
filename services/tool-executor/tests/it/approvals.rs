//! Calls that a person has to agree to.

use bus::{BusError, subject};
use engine::NewStanding;
use kernel::call::{Approval, Verdict};
use kernel::command::DecideApproval;
use kernel::{Command, Role, RunId, StandingId, TenantId, Trust};
use serde_json::{Value, json};

use crate::house::{House, PATIENCE, decision};
use crate::server::Server;

#[tokio::test]
async fn a_yes_lets_exactly_one_effect_through() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executors = vec![house.executor(), house.executor()];
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Untrusted).await;

    let asked = house.question(run, 1).await;
    assert_eq!((asked.call_id, asked.tool.as_deref()), (Some(call_id), Some("x.do")));
    assert_eq!((asked.arguments.clone(), asked.trust), (Some(json!({"number": 1})), Trust::Untrusted));
    assert!(asked.reasons.iter().any(|reason| reason.starts_with("ask-untrusted: ")), "{:?}", asked.reasons);
    assert_eq!(asked.binding.arguments, policy::digest(&json!({"number": 1})));
    assert_eq!(server.asked().len(), 0);

    house.decide(run, asked.approval_id, None).await;
    let (end, _, _) = house.end_of(run, call_id).await;
    assert_eq!(end, "tool.completed");
    assert_eq!(server.done(), [json!({"number": 1})]);
    assert_eq!(server.asked(), [call_id.to_string()]);
    assert_eq!((house.count(run, "approval.requested").await, house.count(run, "tool.started").await), (1, 1));
    house.close(executors).await;
}

#[tokio::test]
async fn what_is_not_what_was_agreed_to_is_asked_again() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Untrusted).await;

    // The arguments change, and the yes is bound to others.
    let first = house.question(run, 1).await;
    house.decide(run, first.approval_id, Some((json!({"number": 2}), policy::digest(&json!({"number": 3}))))).await;
    let second = house.question(run, 2).await;
    assert_ne!(first.approval_id, second.approval_id);
    assert_eq!(second.arguments, Some(json!({"number": 2})));
    assert!(server.asked().is_empty());

    // An edit that the yes is bound to goes through as edited.
    house.decide(run, second.approval_id, Some((json!({"number": 4}), policy::digest(&json!({"number": 4}))))).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(server.done(), [json!({"number": 4})]);
    assert_eq!(house.count(run, "approval.requested").await, 2);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn trusted_arguments_need_no_one() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor();
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(house.count(run, "approval.requested").await, 0);
    house.close(vec![executor]).await;
}

/// Decides as the approval service does where a standing approval covers the call.
async fn decide_by_standing(house: &House, run: RunId, asked: &Approval, standing: StandingId) {
    let yes = decision(asked.approval_id, Verdict::Approve, "ann");
    let decision = DecideApproval { standing: Some(standing), ..yes };
    let key = format!("standing/{}", asked.approval_id);
    house.submit(Role::Approval, run, Command::DecideApproval(decision), &key).await;
}

#[tokio::test]
async fn what_a_standing_approval_let_pass_is_asked_about_if_that_was_revoked_meanwhile() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor();
    let (tenant, standing) = (TenantId::default(), house.engine(Role::Approval).await.standing());
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Untrusted).await;
    let asked = house.question(run, 1).await;
    let new = NewStanding {
        standing_id: StandingId::mint(),
        tenant: tenant.clone(),
        agent: "test".to_owned(),
        agent_digest: "digest".to_owned(),
        tool: "x.do".to_owned(),
        schema_digest: asked.binding.schema.clone(),
        shape: asked.shown.shape.clone().expect("it can be allowed once and for all"),
        reasons: asked.reasons.clone(),
        arguments: json!({"number": 1}),
        approval_id: asked.approval_id,
        run_id: run,
        note: None,
        given_by: "ann".to_owned(),
    };
    standing.propose(&new).await.unwrap();
    standing.confirm(new.standing_id).await.unwrap();
    standing.revoke(&tenant, new.standing_id, "bob").await.unwrap().unwrap();
    decide_by_standing(&house, run, &asked, new.standing_id).await;
    let again = house.question(run, 2).await;
    assert_ne!(again.approval_id, asked.approval_id);
    assert_eq!(again.shown.shape, asked.shown.shape, "the same call has the same shape");
    assert!(server.asked().is_empty(), "nothing was done");

    let given = NewStanding { standing_id: StandingId::mint(), ..new };
    standing.propose(&given).await.unwrap();
    standing.confirm(given.standing_id).await.unwrap();
    decide_by_standing(&house, run, &again, given.standing_id).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn a_person_is_shown_where_it_comes_from_and_what_the_model_had_before_it() {
    let server = Server::start().await;
    let dangerous = server.effect_tool("x.pay", "60s", false).replace("effect: external", "effect: payment");
    let tools = [("x.do", server.effect_tool("x.do", "60s", false)), ("x.pay", dangerous)];
    let house = House::new(&[], &tools, "{}").await;
    let executor = house.executor();
    let run = house.run_for("Do number four.", vec![house.call("x.do", json!({"number": 71}), Trust::Untrusted)]).await;
    let asked = house.question(run, 1).await;
    let [origin] = asked.shown.origins.as_slice() else { panic!("{:?}", asked.shown) };
    assert_eq!((origin.pointer.as_str(), origin.trust, origin.matters), ("/number", Trust::Untrusted, true));
    assert!(!asked.shown.evidence.is_empty() && asked.shown.evidence.len() <= 8, "{:?}", asked.shown.evidence);
    let row =
        house.engine(Role::Ingress).await.reads().approval(&TenantId::default(), asked.approval_id).await.unwrap();
    assert_eq!(row.unwrap().shown, asked.shown, "as it is in the log");
    let state = house.engine(Role::Ingress).await.load(run).await.unwrap().unwrap();
    assert!(state.approvals[&asked.approval_id].shown.is_empty(), "the state has no use for it");

    let other = house.run(vec![house.call("x.do", json!({"number": 72}), Trust::Untrusted)]).await;
    assert_ne!(house.question(other, 1).await.shown.shape, asked.shown.shape, "what decides is taken by its value");
    let mut pay = house.call("x.pay", json!({"number": 71}), Trust::Untrusted);
    pay.effect = kernel::tool::Effect::Payment;
    let paying = house.run(vec![pay]).await;
    assert_eq!(house.question(paying, 1).await.shown.shape, None, "what pays is asked about each time");
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn edited_arguments_can_be_judged_before_they_are_granted() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor();
    let run = house.run(vec![house.call("x.do", json!({"number": 1}), Trust::Untrusted)]).await;
    let asked = house.question(run, 1).await;
    let bus = house.engine(Role::Approval).await.bus().clone();
    let preview = async |tenant: &str, arguments: Value| {
        let question = json!({
            "tenant": tenant, "run_id": run, "call_id": asked.call_id, "approval_id": asked.approval_id, "arguments": arguments,
        });
        bus.request_json::<_, Value>(&subject::svc("tool-executor", "preview"), &question, PATIENCE).await
    };
    assert_eq!(preview("default", json!({"number": 2})).await.unwrap()["passes"], true);
    for (tenant, arguments, code) in
        [("default", json!({"number": "two"}), 422), ("default", json!({}), 422), ("other", json!({"number": 2}), 404)]
    {
        match preview(tenant, arguments.clone()).await {
            Err(BusError::Refused { code: told, .. }) => assert_eq!(told, code, "{arguments}"),
            other => panic!("{arguments}: {other:?}"),
        }
    }
    assert!(server.asked().is_empty(), "nothing was done");
    house.close(vec![executor]).await;
}
