//! Questions that take two people.

use futures::future::join_all;
use kernel::{call::CallStatus, event::EventData};
use serde_json::{Value, json};

use crate::common::{Asked, System, refusal};

const LONG: i64 = 3_600_000;

async fn ask(system: &System) -> Asked {
    system.ask_about(LONG, |approval| approval.two_people = true).await
}

fn by(name: &'static str) -> impl FnOnce(&mut Value) {
    move |question| question["by"] = json!(name)
}

/// As [`by`], with these arguments.
fn edits(name: &'static str, pull: u64) -> impl FnOnce(&mut Value) {
    move |question| {
        question["by"] = json!(name);
        question["arguments"] = json!({ "pull": pull });
    }
}

#[tokio::test]
async fn the_first_yes_is_kept_and_the_second_person_s_lets_the_call_pass() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    let first = system.decide(&asked, |question| question["reason"] = json!("go")).await.unwrap();
    assert_eq!((&first["state"], &first["by"]), (&json!("endorsed"), &json!("ann")));
    let row = system.row(&asked).await;
    let endorsed = row.endorsed.clone().unwrap();
    assert_eq!((row.state.as_str(), row.two_people), ("open", true));
    assert_eq!(
        (endorsed.by.as_str(), endorsed.reason.as_deref(), &endorsed.binding),
        ("ann", Some("go"), &row.binding)
    );
    assert_eq!(system.state(asked.run).await.calls[&asked.call].status, CallStatus::AwaitingApproval);

    let seq = system.state(asked.run).await.seq;
    for same in [json!({}), json!({"by": "laptop", "aliases": ["ann"]})] {
        let (code, words) = refusal(
            system
                .decide(&asked, |question| question.as_object_mut().unwrap().extend(same.as_object().unwrap().clone()))
                .await,
        );
        assert_eq!(code, 409);
        assert!(words.starts_with("already_endorsed: ") && words.contains("`ann` has agreed"), "{words}");
    }
    assert_eq!(system.state(asked.run).await.seq, seq, "nothing was recorded");

    let second = system.decide(&asked, by("bob")).await.unwrap();
    assert_eq!((&second["state"], &second["by"]), (&json!("granted"), &json!("bob")));
    let call = system.state(asked.run).await.calls[&asked.call].clone();
    assert_eq!((call.status, call.grant.unwrap().endorsed_by.as_deref()), (CallStatus::Approved, Some("ann")));
    let row = system.row(&asked).await;
    assert_eq!((row.decided_by.as_deref(), row.endorsed.map(|first| first.by)), (Some("bob"), Some("ann".to_owned())));
    let late = refusal(system.decide(&asked, by("carol")).await);
    assert!(late.0 == 409 && late.1.contains("granted by bob"), "{late:?}");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn both_agree_to_the_same_arguments() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    assert_eq!(system.decide(&asked, edits("ann", 8)).await.unwrap()["state"], "endorsed");
    assert_eq!(system.row(&asked).await.endorsed.unwrap().arguments, Some(json!({"pull": 8})));
    for (code, words) in [
        refusal(system.decide(&asked, by("bob")).await),
        refusal(system.decide(&asked, edits("bob", 7)).await),
        refusal(system.decide(&asked, edits("bob", 9)).await),
    ] {
        assert_eq!(code, 409);
        assert!(words.starts_with("endorsed_otherwise: ") && words.contains("`ann`"), "{words}");
    }
    assert_eq!(system.decide(&asked, edits("bob", 8)).await.unwrap()["state"], "granted");
    let call = system.state(asked.run).await.calls[&asked.call].clone();
    assert_eq!(call.request.arguments, json!({"pull": 8}));
    assert_eq!(call.grant.unwrap().binding.arguments, policy::digest(&json!({"pull": 8})));
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn one_no_ends_it_whoever_has_agreed() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    system.decide(&asked, |_| {}).await.unwrap();
    let no = |question: &mut Value| question["decision"] = json!("deny");
    assert_eq!(system.decide(&asked, no).await.unwrap()["state"], "denied", "be it the same person's");
    assert_eq!(refusal(system.decide(&asked, by("bob")).await).0, 409);
    assert_eq!(system.events(asked.run, "tool.denied").await.len(), 1);
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn of_many_at_once_two_count() {
    let system = System::new().await;
    let (first, second) = (system.approval(|_| {}).await, system.approval(|_| {}).await);
    let asked = ask(&system).await;
    let people = ["ann", "bob", "carol", "dave"];
    let answers = join_all(people.iter().chain(&people).map(|person| system.decide(&asked, by(person)))).await;
    let mut states: Vec<_> = answers.iter().flatten().map(|answer| answer["state"].as_str().unwrap()).collect();
    states.sort_unstable();
    assert_eq!(states, ["endorsed", "granted"]);
    for answer in answers.into_iter().filter(Result::is_err) {
        assert_eq!(refusal(answer).0, 409);
    }
    let granted = system.events(asked.run, "approval.granted").await;
    let [EventData::ApprovalGranted(granted)] = &granted.iter().map(|event| event.data.clone()).collect::<Vec<_>>()[..]
    else {
        panic!("{granted:?}")
    };
    assert_ne!(granted.endorsed_by.as_ref(), Some(&granted.by));
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_repeated_request_hears_the_same_again_and_what_has_come_of_it() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    let request = |question: &mut Value| question["request_id"] = json!("r1");
    for _ in 0..2 {
        assert_eq!(system.decide(&asked, request).await.unwrap()["state"], "endorsed");
    }
    assert_eq!(system.events(asked.run, "approval.endorsed").await.len(), 1);
    system.decide(&asked, by("bob")).await.unwrap();
    assert_eq!(system.decide(&asked, request).await.unwrap()["state"], "granted");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn nobody_allows_such_calls_once_and_for_all() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let shaped = |two: bool| {
        system.ask_about(LONG, move |approval| {
            approval.two_people = two;
            approval.shown.shape = Some("shape".to_owned());
        })
    };
    let always = |question: &mut Value| question["always"] = json!(true);
    let asked = shaped(true).await;
    let (code, words) = refusal(system.decide(&asked, always).await);
    assert!(code == 400 && words.contains("two people have to agree to each"), "{words}");
    assert!(system.row(&asked).await.endorsed.is_none());

    // From when one person was enough, one of them allowed all of this shape.
    let small = shaped(false).await;
    assert!(system.decide(&small, always).await.unwrap()["standing_id"].is_string());
    let covered = shaped(false).await;
    system.until("decision", async || Some(system.row(&covered).await).filter(|row| row.state == "granted")).await;
    let large = shaped(true).await;
    // Questions are heard in turn: once the next one is decided, this one was looked at.
    let next = shaped(false).await;
    system.until("decision", async || Some(system.row(&next).await).filter(|row| row.state == "granted")).await;
    let row = system.row(&large).await;
    assert!(row.state == "open" && row.endorsed.is_none(), "{row:?}");
    service.stop().await.unwrap();
    system.close().await;
}
