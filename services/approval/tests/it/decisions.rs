use futures::future::join_all;
use kernel::{ApprovalId, call::CallStatus, event::EventData};
use serde_json::json;

use crate::common::{Asked, System, refusal};

const LONG: i64 = 3_600_000;

#[tokio::test]
async fn a_yes_lets_the_call_pass_and_the_second_answer_is_told_who_was_first() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = system.ask(LONG).await;
    let answer = system.decide(&asked, |question| question["reason"] = json!("go")).await.unwrap();
    assert_eq!((&answer["state"], &answer["by"]), (&json!("granted"), &json!("ann")));
    assert_eq!(system.state(asked.run).await.calls[&asked.call].status, CallStatus::Approved);
    let granted = &system.events(asked.run, "approval.granted").await[0];
    let EventData::ApprovalGranted(granted) = &granted.data else { panic!("{granted:?}") };
    assert_eq!((granted.by.as_str(), granted.reason.as_deref()), ("ann", Some("go")));
    assert_eq!(granted.binding, system.row(&asked).await.binding, "bound to what was shown");

    let (code, words) = refusal(system.decide(&asked, |question| question["by"] = json!("bob")).await);
    assert_eq!(code, 409);
    assert!(words.contains("granted by ann"), "{words}");
    let no = |question: &mut serde_json::Value| question["decision"] = json!("deny");
    assert_eq!(refusal(system.decide(&asked, no).await).0, 409);
    assert_eq!(system.events(asked.run, "approval.granted").await.len(), 1);
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_no_denies_the_call_and_the_model_is_told_why() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = system.ask(LONG).await;
    let answer = system
        .decide(&asked, |question| {
            question["decision"] = json!("deny");
            question["reason"] = json!("not on a Friday");
        })
        .await;
    assert_eq!(answer.unwrap()["state"], "denied");
    let denied = &system.events(asked.run, "tool.denied").await[0];
    let EventData::ToolDenied(denied) = &denied.data else { panic!("{denied:?}") };
    assert_eq!((denied.code.as_str(), denied.reason.text.as_str()), ("operator", "not on a Friday"));
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn edited_arguments_are_what_the_yes_is_bound_to() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let edited = system.ask(LONG).await;
    system.decide(&edited, |question| question["arguments"] = json!({"pull": 8})).await.unwrap();
    let call = system.state(edited.run).await.calls[&edited.call].clone();
    assert_eq!(call.request.arguments, json!({"pull": 8}));
    let binding = call.grant.unwrap().binding;
    assert_eq!((binding.arguments, binding.policy.as_str()), (policy::digest(&json!({"pull": 8})), "policy"));

    let same = system.ask(LONG).await;
    system.decide(&same, |question| question["arguments"] = json!({"pull": 7.0})).await.unwrap();
    let granted = &system.events(same.run, "approval.granted").await[0];
    let EventData::ApprovalGranted(granted) = &granted.data else { panic!("{granted:?}") };
    assert_eq!(granted.arguments, None, "what was shown, sent back, is no edit");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn of_many_answers_at_once_one_counts() {
    let system = System::new().await;
    let (first, second) = (system.approval(|_| {}).await, system.approval(|_| {}).await);
    let asked = system.ask(LONG).await;
    let answers = join_all((0..8).map(|person| {
        system.decide(&asked, move |question| {
            question["by"] = json!(format!("person-{person}"));
            question["decision"] = json!(if person % 2 == 0 { "approve" } else { "deny" });
        })
    }))
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    for answer in answers.into_iter().filter(Result::is_err) {
        assert_eq!(refusal(answer).0, 409);
    }
    let decided = system.events(asked.run, "approval.granted").await.len()
        + system.events(asked.run, "approval.denied").await.len();
    assert_eq!(decided, 1);
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_repeated_request_hears_the_same_again() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = system.ask(LONG).await;
    let request = |question: &mut serde_json::Value| question["request_id"] = json!("r1");
    let (first, again) = (system.decide(&asked, request).await.unwrap(), system.decide(&asked, request).await.unwrap());
    assert_eq!((&first["state"], &again["state"]), (&json!("granted"), &json!("granted")));
    assert_eq!(system.events(asked.run, "approval.granted").await.len(), 1);
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn who_may_not_decide_is_told_so_and_changes_nothing() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = system.ask(LONG).await;
    let (code, words) = refusal(system.decide(&asked, |question| question["roles"] = json!(["viewer", "user"])).await);
    assert_eq!(code, 403);
    assert!(words.contains("operator"), "{words}");
    assert_eq!(refusal(system.decide(&asked, |question| question["tenant"] = json!("other")).await).0, 404);
    let nobody = Asked { id: ApprovalId::mint(), run: asked.run, call: asked.call };
    assert_eq!(refusal(system.decide(&nobody, |_| {}).await).0, 404);
    let edited_no = |question: &mut serde_json::Value| {
        question["decision"] = json!("deny");
        question["arguments"] = json!({});
    };
    assert_eq!(refusal(system.decide(&asked, edited_no).await).0, 400);
    assert_eq!(system.row(&asked).await.state, "open");
    service.stop().await.unwrap();
    system.close().await;
}
