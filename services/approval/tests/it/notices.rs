use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;

use crate::common::System;

/// A receiver of webhooks: answers as told, then with 200, and keeps what it got.
#[derive(Clone, Default)]
pub struct Receiver {
    answers: Arc<Mutex<VecDeque<StatusCode>>>,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Receiver {
    pub async fn start(answers: impl IntoIterator<Item = StatusCode>) -> (Self, SocketAddr) {
        let receiver = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let router = Router::new().route("/ask", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, addr)
    }

    pub fn got(&self) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().unwrap().clone()
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    receiver.got.lock().unwrap().push((headers, body));
    receiver.answers.lock().unwrap().pop_front().unwrap_or(StatusCode::OK)
}

#[tokio::test]
async fn a_question_is_posted_signed_until_it_is_taken() {
    let system = System::new().await;
    let (receiver, addr) = Receiver::start([StatusCode::SERVICE_UNAVAILABLE]).await;
    let service = system
        .approval(|config| {
            config.notify_url = format!("http://{addr}/ask");
            config.notify_secret = "whsec_c2VjcmV0".into();
        })
        .await;
    let asked = system.ask(3_600_000).await;
    let got = system.until("second post", async || Some(receiver.got()).filter(|got| got.len() == 2)).await;
    assert_eq!(got[0].0["webhook-id"], got[1].0["webhook-id"], "a repetition is known by its id");
    let (headers, body) = &got[1];
    let text = |name: &str| headers[name].to_str().unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(b"secret").unwrap();
    mac.update(format!("{}.{}.", text("webhook-id"), text("webhook-timestamp")).as_bytes());
    mac.update(body);
    assert_eq!(text("webhook-signature"), format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
    let body: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(body["type"], "approval.requested");
    assert_eq!(body["data"]["approval_id"], asked.id.to_string());
    assert_eq!(body["data"]["arguments"]["pull"], 7);
    assert_eq!(body["data"]["trust"], "untrusted");
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn people_are_reminded_once_and_others_are_told_and_nobody_of_what_is_decided() {
    let system = System::new().await;
    let (people, addr) = Receiver::start([]).await;
    let (others, other_addr) = Receiver::start([]).await;
    let set_up = |config: &mut approval::Config| {
        config.notify_url = format!("http://{addr}/ask");
        config.notify_secret = "secret".into();
        config.escalate_url = format!("http://{other_addr}/ask");
        config.escalate_secret = "another".into();
        config.remind_seconds = 3;
        config.escalate_seconds = 6;
    };
    // Of two instances, one tells each.
    let (first, second) = (system.approval(set_up).await, system.approval(set_up).await);
    let decided = system.ask(3_600_000).await;
    system.decide(&decided, |_| {}).await.unwrap();
    let asked = system.ask(3_600_000).await;
    system.until("an escalation", async || others.got().pop()).await;
    let told = |got: Vec<(HeaderMap, Bytes)>| -> Vec<(String, String)> {
        let bodies = got.iter().map(|(_, body)| serde_json::from_slice::<Value>(body).unwrap());
        let row = |body: Value| {
            (body["type"].as_str().unwrap().to_owned(), body["data"]["approval_id"].as_str().unwrap().to_owned())
        };
        bodies.map(row).filter(|(_, id)| *id == asked.id.to_string()).collect()
    };
    let id = asked.id.to_string();
    let all = [("approval.requested".to_owned(), id.clone()), ("approval.reminder".to_owned(), id.clone())];
    assert_eq!(told(people.got()), all);
    assert_eq!(told(others.got()), [("approval.escalated".to_owned(), id)]);
    let of_decided = decided.id.to_string();
    let late = people.got().iter().chain(&others.got()).any(|(_, body)| {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["data"]["approval_id"] == of_decided && body["type"] != "approval.requested"
    });
    assert!(!late, "nobody is reminded of what is decided");
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_final_refusal_is_kept_as_a_dead_letter_and_the_question_stays_open() {
    let system = System::new().await;
    let (receiver, addr) = Receiver::start([StatusCode::GONE]).await;
    let service = system
        .approval(|config| {
            config.notify_url = format!("http://{addr}/ask");
            config.notify_secret = "secret".into();
        })
        .await;
    let asked = system.ask(3_600_000).await;
    let letter =
        system.until("dead letter", async || system.stack.bus().dlq_list(10, None).await.unwrap().letters.pop()).await;
    assert_eq!((letter.consumer.as_str(), receiver.got().len()), ("approval", 1));
    assert!(letter.reason.contains("410"), "{}", letter.reason);
    system.decide(&asked, |_| {}).await.unwrap();
    service.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn people_are_told_that_one_more_of_them_is_needed() {
    let system = System::new().await;
    let (people, addr) = Receiver::start([]).await;
    let set_up = |config: &mut approval::Config| {
        config.notify_url = format!("http://{addr}/ask");
        config.notify_secret = "secret".into();
    };
    // Of two instances, one tells it.
    let (first, second) = (system.approval(set_up).await, system.approval(set_up).await);
    let asked = system.ask_about(3_600_000, |approval| approval.two_people = true).await;
    let told =
        || -> Vec<Value> { people.got().iter().map(|(_, body)| serde_json::from_slice(body).unwrap()).collect() };
    let question = system.until("a notice", async || told().pop()).await;
    assert_eq!(
        (&question["type"], &question["data"]["people_needed"]),
        (&Value::from("approval.requested"), &2.into())
    );
    system.decide(&asked, |_| {}).await.unwrap();
    let endorsed = async || told().into_iter().find(|told| told["type"] == "approval.endorsed");
    let notice = system.until("a second notice", endorsed).await;
    assert_eq!(notice["data"]["approval_id"], asked.id.to_string());
    assert_eq!(notice["data"]["endorsed"]["by"], "ann");
    assert_eq!(notice["data"]["text"], "`ann` has agreed: one more person is needed");
    system.decide(&asked, |question| question["by"] = "bob".into()).await.unwrap();
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let ids: BTreeSet<_> =
        people.got().iter().map(|(headers, _)| headers["webhook-id"].to_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 2, "each is known by its id: {ids:?}");
    system.close().await;
}
