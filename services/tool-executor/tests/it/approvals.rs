//! Calls that a person has to agree to.

use kernel::Trust;
use serde_json::json;

use crate::house::House;
use crate::server::Server;

#[tokio::test]
async fn a_yes_lets_exactly_one_effect_through() {
    let server = Server::start().await;
    let house = House::new(&[], &[("x.do", server.effect_tool("x.do", "5s", false))], "{}").await;
    let executors = vec![house.executor(), house.executor()];
    let call = house.call("x.do", json!({"number": 1}), Trust::Untrusted);
    let call_id = call.call_id;
    let run = house.run(vec![call]).await;

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
    let house = House::new(&[], &[("x.do", server.effect_tool("x.do", "5s", false))], "{}").await;
    let executor = house.executor();
    let call = house.call("x.do", json!({"number": 1}), Trust::Untrusted);
    let call_id = call.call_id;
    let run = house.run(vec![call]).await;

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
    let house = House::new(&[], &[("x.do", server.effect_tool("x.do", "5s", false))], "{}").await;
    let executor = house.executor();
    let call = house.call("x.do", json!({"number": 1}), Trust::Operator);
    let call_id = call.call_id;
    let run = house.run(vec![call]).await;
    assert_eq!(house.end_of(run, call_id).await.0, "tool.completed");
    assert_eq!(house.count(run, "approval.requested").await, 0);
    house.close(vec![executor]).await;
}
