use bus::{Problem, ServeOptions};
use engine::{AuditFilter, StandingRow};
use kernel::{Role, StandingId, TenantId, call::CallStatus, event::EventData};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::common::{Asked, System, refusal};

const LONG: i64 = 3_600_000;

async fn ask(system: &System, shape: &str) -> Asked {
    system.ask_about(LONG, |approval| approval.shown.shape = Some(shape.to_owned())).await
}

async fn standing(system: &System) -> Vec<StandingRow> {
    system.ingress.standing().list(&TenantId::default(), true).await.unwrap()
}

fn always(question: &mut Value) {
    question["always"] = json!(true);
    question["reason"] = json!("merges of ours");
}

async fn granted(system: &System, asked: &Asked) -> kernel::event::ApprovalGranted {
    let event =
        system.until("approval.granted", async || system.events(asked.run, "approval.granted").await.pop()).await;
    let EventData::ApprovalGranted(granted) = event.data else { panic!("{event:?}") };
    granted
}

#[tokio::test]
async fn all_calls_of_the_shape_pass_and_no_other_until_it_is_revoked() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let first = ask(&system, "shape").await;
    let answer = system.decide(&first, always).await.unwrap();
    let id: StandingId = answer["standing_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(granted(&system, &first).await.standing, None, "a person decided this one");

    let second = ask(&system, "shape").await;
    let by = granted(&system, &second).await;
    assert_eq!((by.standing, by.by.as_str(), by.reason), (Some(id), "ann", None));
    let call = system.state(second.run).await.calls[&second.call].clone();
    assert_eq!((call.status, call.grant.unwrap().standing), (CallStatus::Approved, Some(id)));
    assert_eq!(system.row(&second).await.standing, Some(id));
    let trail = system.ingress.trail();
    system
        .until("an entry of the audit trail", async || {
            let rows = trail.from(&TenantId::default(), &AuditFilter::default(), None, 100).await.unwrap();
            rows.into_iter()
                .find(|row| row.entry.evidence.as_ref().is_some_and(|json| json.to_string().contains(&id.to_string())))
        })
        .await;
    system.until("a use", async || standing(&system).await.into_iter().find(|row| row.uses == 1)).await;

    let other = ask(&system, "another shape").await;
    let asks_more = system
        .ask_about(LONG, |approval| {
            approval.shown.shape = Some("shape".into());
            approval.reasons.push("another policy: it asks, too".into());
        })
        .await;
    let changed_tool = system
        .ask_about(LONG, |approval| {
            approval.shown.shape = Some("shape".into());
            approval.binding.schema = "changed".into();
        })
        .await;
    let standing_approvals = system.ingress.standing();
    assert!(standing_approvals.is_in_force(&TenantId::default(), id).await.unwrap());
    assert!(!standing_approvals.is_in_force(&"other".parse().unwrap(), id).await.unwrap());
    assert!(standing_approvals.revoke(&"other".parse().unwrap(), id, "eve").await.unwrap().is_none());
    let revoked = standing_approvals.revoke(&TenantId::default(), id, "bob").await.unwrap().unwrap();
    assert_eq!((revoked.revoked_by.as_deref(), revoked.note.as_deref()), (Some("bob"), Some("merges of ours")));
    assert!(!standing_approvals.is_in_force(&TenantId::default(), id).await.unwrap());
    let late = ask(&system, "shape").await;
    // The service takes questions in turn, so that once this is decided the others were looked at.
    let last = ask(&system, "last").await;
    system.decide(&last, always).await.unwrap();
    let after = ask(&system, "last").await;
    granted(&system, &after).await;
    for asked in [&other, &asks_more, &changed_tool, &late] {
        assert_eq!(system.row(asked).await.state, "open");
    }
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn what_can_be_undone_by_nobody_and_what_is_refused_gives_nothing() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let shapeless = system.ask(LONG).await;
    let (code, words) = refusal(system.decide(&shapeless, always).await);
    assert_eq!(code, 400);
    assert!(words.contains("each time"), "{words}");
    assert_eq!(system.row(&shapeless).await.state, "open");

    let lost = ask(&system, "shape").await;
    system.decide(&lost, |question| question["decision"] = json!("deny")).await.unwrap();
    let late = |question: &mut Value| {
        always(question);
        question["by"] = json!("bob");
        question["request_id"] = json!("r");
    };
    assert_eq!(refusal(system.decide(&lost, late).await).0, 409);
    assert!(standing(&system).await.is_empty(), "what was proposed beside a decision that lost does not count");
    let next = ask(&system, "shape").await;
    let sure = ask(&system, "sure").await;
    system.decide(&sure, always).await.unwrap();
    granted(&system, &ask(&system, "sure").await).await;
    assert_eq!(system.row(&next).await.state, "open");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_repeated_decision_gives_one_standing_approval() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system, "shape").await;
    let once = |question: &mut Value| {
        always(question);
        question["request_id"] = json!("r1");
    };
    let (first, again) = (system.decide(&asked, once).await.unwrap(), system.decide(&asked, once).await.unwrap());
    assert_eq!(first["standing_id"], again["standing_id"]);
    assert_eq!(standing(&system).await.len(), 1);
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn another_request_under_the_key_of_a_decision_gives_nothing() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let firsts: [fn(&mut Value); 3] = [
        |question| question["decision"] = json!("deny"),
        |_| {},
        |question| question["arguments"] = json!({"pull": 8}),
    ];
    for (index, first) in firsts.into_iter().enumerate() {
        let shape = format!("shape {index}");
        let asked = ask(&system, &shape).await;
        let once = |question: &mut Value| {
            first(question);
            question["request_id"] = json!("r1");
        };
        let decided = system.decide(&asked, once).await.unwrap();
        let then = |question: &mut Value| {
            always(question);
            question["request_id"] = json!("r1");
        };
        assert_eq!(refusal(system.decide(&asked, then).await).0, 409, "{shape}");
        assert!(standing(&system).await.is_empty(), "{shape}");
        assert_eq!(system.decide(&asked, once).await.unwrap(), decided, "the first is repeated as before");
    }
    let left = ask(&system, "shape 0").await;
    let sure = ask(&system, "sure").await;
    system.decide(&sure, always).await.unwrap();
    granted(&system, &ask(&system, "sure").await).await;
    assert_eq!(system.row(&left).await.state, "open");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn edited_arguments_are_judged_before_they_are_granted() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = system.ask(LONG).await;
    let stop = CancellationToken::new();
    let judge = async |question: Value| -> Result<Value, Problem> {
        match question["arguments"]["pull"].as_u64() {
            Some(_) => Ok(json!({"passes": true})),
            None => Err(Problem::new(422, "invalid_arguments: /pull is not a number")),
        }
    };
    let executor = system.stack.engine(Role::ToolExecutor).await.unwrap().bus().clone();
    executor.serve_json(ServeOptions::new("tool-executor", "preview"), judge, stop.clone()).await.unwrap();
    executor.flush().await.unwrap();
    let (code, words) =
        refusal(system.decide(&asked, |question| question["arguments"] = json!({"pull": "eight"})).await);
    assert_eq!(code, 422);
    assert!(words.contains("/pull is not a number"), "{words}");
    assert_eq!(system.row(&asked).await.state, "open", "it can be decided again");
    system.decide(&asked, |question| question["arguments"] = json!({"pull": 8})).await.unwrap();
    assert_eq!(granted(&system, &asked).await.arguments, Some(json!({"pull": 8})));
    stop.cancel();
    service.stop().await.unwrap();
    system.close().await;
}
