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
use engine::{Notice, NoticeKind};
use hmac::{Hmac, KeyInit, Mac};
use kernel::Timestamp;
use serde_json::Value;
use sha2::Sha256;

use crate::common::{Asked, System};

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
        config.remind_seconds = 600;
        config.escalate_seconds = 1200;
    };
    // Of two instances, one tells each.
    let (first, second) = (system.approval(set_up).await, system.approval(set_up).await);
    let told = |receiver: &Receiver, asked: &Asked| -> Vec<String> {
        let bodies = receiver.got().into_iter().map(|(_, body)| serde_json::from_slice::<Value>(&body).unwrap());
        let of_it = bodies.filter(|body| body["data"]["approval_id"] == asked.id.to_string());
        of_it.map(|body| body["type"].as_str().unwrap().to_owned()).collect()
    };
    // As if the time that it was planned for had come.
    let come_due = async |asked: &Asked, kind: NoticeKind| {
        let notice = Notice { approval_id: asked.id, kind, number: 0, attempts: 0 };
        system.ingress.notices().put_off(&notice, Timestamp::now()).await.unwrap();
    };
    let decided = system.ask(3_600_000).await;
    system.until("a question", async || told(&people, &decided).pop()).await;
    system.decide(&decided, |_| {}).await.unwrap();
    come_due(&decided, NoticeKind::Reminder).await;
    come_due(&decided, NoticeKind::Escalation).await;
    let asked = system.ask(3_600_000).await;
    system.until("another question", async || told(&people, &asked).pop()).await;
    come_due(&asked, NoticeKind::Reminder).await;
    let reminder = async || told(&people, &asked).into_iter().find(|kind| kind == "approval.reminder");
    system.until("a reminder", reminder).await;
    come_due(&asked, NoticeKind::Escalation).await;
    system.until("an escalation", async || told(&others, &asked).pop()).await;
    assert_eq!(told(&people, &asked), ["approval.requested", "approval.reminder"]);
    assert_eq!(told(&others, &asked), ["approval.escalated"]);
    assert_eq!(told(&people, &decided), ["approval.requested"], "nobody is reminded of what is decided");
    assert!(told(&others, &decided).is_empty(), "nor is anybody else told of it");
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
