//! Questions that take two people.

use futures::future::join_all;
use kernel::{call::CallStatus, event::EventData};
use serde_json::{Value, json};

use crate::{
    common::{Asked, System, refusal},
    notices::Receiver,
};

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
async fn the_log_says_that_it_takes_two_whatever_the_table_says() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    system.stack.sql("update approvals set two_people = false").await.unwrap();
    let without = |question: &mut Value| assert!(question.as_object_mut().unwrap().remove("aliases").is_some());
    for _ in 0..2 {
        let (code, words) = refusal(system.decide(&asked, without).await);
        assert!(code == 503 && words.starts_with("makers_unknown: "), "{code} {words}");
        // The first time nobody has agreed yet, the second time somebody has.
        if system.row(&asked).await.endorsed.is_none() {
            assert_eq!(system.decide(&asked, |_| {}).await.unwrap()["state"], "endorsed");
        }
    }
    let always = |question: &mut Value| {
        question["by"] = json!("bob");
        question["always"] = json!(true);
    };
    assert_eq!(refusal(system.decide(&asked, always).await).0, 400);
    let laptop = |question: &mut Value| {
        question["by"] = json!("laptop");
        question["aliases"] = json!(["ann"]);
    };
    let (code, words) = refusal(system.decide(&asked, laptop).await);
    assert!(code == 409 && words.starts_with("already_endorsed: "), "{code} {words}");
    // A no takes one, and so does a question that takes one.
    let one = system.ask(LONG).await;
    assert_eq!(system.decide(&one, without).await.unwrap()["state"], "granted");
    let no = |question: &mut Value| {
        without(question);
        question["decision"] = json!("deny");
    };
    assert_eq!(system.decide(&asked, no).await.unwrap()["state"], "denied");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn the_second_may_agree_by_the_digest_of_what_the_first_has_agreed_to() {
    let system = System::new().await;
    let service = system.approval(|_| {}).await;
    let asked = ask(&system).await;
    let second = |digest: &str| {
        let digest = digest.to_owned();
        move |question: &mut Value| {
            question["by"] = json!("bob");
            question["as_endorsed"] = json!(digest);
            question["request_id"] = json!("r");
        }
    };
    let (code, words) = refusal(system.decide(&asked, second("any")).await);
    assert!(code == 409 && words.starts_with("not_endorsed: "), "{code} {words}");

    // No browser could send this number back.
    let large = json!({ "pull": 9_007_199_254_740_993_u64 });
    let first = system.decide(&asked, edits("ann", 9_007_199_254_740_993)).await.unwrap();
    assert_eq!(first["digest"], policy::digest(&large));
    let (code, words) = refusal(system.decide(&asked, second(&policy::digest(&json!({"pull": 7})))).await);
    assert!(code == 409 && words.starts_with("endorsed_otherwise: "), "{code} {words}");
    for _ in 0..2 {
        let decided = system.decide(&asked, second(&policy::digest(&large))).await.unwrap();
        assert_eq!((&decided["state"], &decided["digest"]), (&json!("granted"), &first["digest"]));
    }
    let call = system.state(asked.run).await.calls[&asked.call].clone();
    assert_eq!((&call.request.arguments, call.grant.unwrap().binding.arguments), (&large, policy::digest(&large)));

    let asked = ask(&system).await;
    let digest = system.decide(&asked, |_| {}).await.unwrap()["digest"].as_str().unwrap().to_owned();
    assert_eq!(
        system.decide(&asked, second(&digest)).await.unwrap()["state"],
        "granted",
        "nobody has changed anything"
    );
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
    let (receiver, addr) = Receiver::start([]).await;
    let service = system
        .approval(|config| {
            config.notify_url = format!("http://{addr}/ask");
            config.notify_secret = "secret".into();
        })
        .await;
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
    // People are told of what no standing approval answers, after that was looked at.
    let id = large.id.to_string();
    let is_large = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["data"]["approval_id"] == id;
    system.until("notice", async || receiver.got().iter().any(|(_, body)| is_large(body)).then_some(())).await;
    let row = system.row(&large).await;
    assert!(row.state == "open" && row.endorsed.is_none(), "{row:?}");
    service.stop().await.unwrap();
    system.close().await;
}
