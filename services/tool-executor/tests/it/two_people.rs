//! Calls that take two people.

use engine::SubmitError;
use kernel::call::CallStatus;
use kernel::event::EventData;
use kernel::{ApprovalId, Rejection, RunId, Trust};
use serde_json::{Value, json};

use crate::house::House;
use crate::server::Server;

/// One person is enough up to 50.
const LIMIT: &str = r#"
    @id("one") @ask("a person must see it") permit (principal, action, resource);
    @id("two") @reason("it is more than 50") @obligation("two_people") permit (principal, action, resource)
    unless {
        context.arguments.hasTag("/number") && context.arguments.getTag("/number") has integer &&
        context.arguments.getTag("/number").integer <= 50
    };"#;

fn edited(number: u64) -> Option<(Value, String)> {
    let arguments = json!({ "number": number });
    let digest = policy::digest(&arguments);
    Some((arguments, digest))
}

async fn refused(house: &House, run: RunId, id: ApprovalId, by: &str, edit: Option<(Value, String)>) -> Rejection {
    match house.agree(run, id, by, edit).await {
        Err(SubmitError::Rejected(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn it_is_done_when_two_have_agreed_to_the_same() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor_with(house.config_under(LIMIT));
    let (run, call_id) = house.run_one("x.do", json!({"number": 100}), Trust::Operator).await;

    let asked = house.question(run, 1).await;
    assert!(asked.two_people && asked.shown.shape.is_none(), "nobody may allow it once and for all: {asked:?}");
    assert_eq!(asked.reasons, ["one: a person must see it", "two: it is more than 50"]);
    assert!(asked.question.text.contains("Two people have to agree"), "{}", asked.question.text);

    let state = house.agree(run, asked.approval_id, "ann", edited(90)).await.unwrap();
    assert_eq!(state.calls[&call_id].status, CallStatus::AwaitingApproval);
    let again = refused(&house, run, asked.approval_id, "ann", edited(90)).await;
    assert!(matches!(again, Rejection::AlreadyEndorsed(..)), "{again}");
    let as_it_was = refused(&house, run, asked.approval_id, "bob", None).await;
    assert!(matches!(as_it_was, Rejection::EndorsedOtherwise(..)), "{as_it_was}");
    assert!(server.asked().is_empty(), "nothing was done");

    house.agree(run, asked.approval_id, "bob", edited(90)).await.unwrap();
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(server.done(), [json!({"number": 90})]);
    assert_eq!(house.count(run, "approval.requested").await, 1);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn one_person_can_not_edit_a_call_into_one_that_takes_two() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let executor = house.executor_with(house.config_under(LIMIT));
    let (run, call_id) = house.run_one("x.do", json!({"number": 20}), Trust::Operator).await;
    let small = house.question(run, 1).await;
    assert!(!small.two_people);
    house.decide(run, small.approval_id, edited(100)).await;

    let large = house.question(run, 2).await;
    assert_eq!((large.two_people, large.arguments), (true, Some(json!({"number": 100}))));
    house.agree(run, large.approval_id, "ann", None).await.unwrap();
    assert!(server.asked().is_empty(), "nothing was done");
    house.agree(run, large.approval_id, "bob", None).await.unwrap();
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(server.done(), [json!({"number": 100})]);
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn policies_that_want_more_people_by_now_ask_again() {
    let server = Server::start().await;
    let house = House::with_effect(&server).await;
    let policies = |more: &str| format!("@id(\"all\") @ask(\"it acts\") {more} permit (principal, action, resource);");
    let executor = house.executor_with(house.config_under(&policies("")));
    let (run, call_id) = house.run_one("x.do", json!({"number": 1}), Trust::Operator).await;
    let asked = house.question(run, 1).await;
    assert!(!asked.two_people);
    executor.stop().await.unwrap();
    house.decide(run, asked.approval_id, None).await;

    // The same policy asks, in the same words: only that one person is not enough any more is new.
    let executor = house.executor_with(house.config_under(&policies("@obligation(\"two_people\")")));
    let again = house.question(run, 2).await;
    assert_eq!((again.two_people, &again.reasons), (true, &asked.reasons));
    assert!(server.asked().is_empty(), "nothing was done");
    for by in ["ann", "bob"] {
        house.agree(run, again.approval_id, by, None).await.unwrap();
    }
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    let events = house.events(run).await;
    let granted = events.iter().filter_map(|event| match event {
        EventData::ApprovalGranted(granted) => Some((granted.endorsed_by.as_deref(), granted.by.as_str())),
        _ => None,
    });
    assert_eq!(granted.collect::<Vec<_>>(), [(None, "ann"), (Some("ann"), "bob")]);
    house.close(vec![executor]).await;
}
