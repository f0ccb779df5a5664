use std::{
    collections::VecDeque,
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
struct Receiver {
    answers: Arc<Mutex<VecDeque<StatusCode>>>,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Receiver {
    async fn start(answers: impl IntoIterator<Item = StatusCode>) -> (Self, SocketAddr) {
        let receiver = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let router = Router::new().route("/ask", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, addr)
    }

    fn got(&self) -> Vec<(HeaderMap, Bytes)> {
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
