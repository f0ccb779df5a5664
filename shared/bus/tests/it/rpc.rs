use std::time::Duration;

use bus::testing::TestBus;
use bus::{BusError, Problem, ServeOptions, subject};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::support::within;

const LONG: Duration = Duration::from_secs(20);

#[derive(Serialize, Deserialize)]
struct Question {
    approve: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Answer {
    state: String,
}

#[tokio::test]
async fn asks_and_answers_in_json() {
    let bus = TestBus::start().await.unwrap();
    let token = CancellationToken::new();
    let decide = |question: Question| async move {
        if question.approve {
            Ok(Answer { state: "granted".into() })
        } else {
            Err(Problem::new(409, "already\r\ndenied"))
        }
    };
    let serving = bus.serve_json(ServeOptions::new("approval", "decide"), decide, token.clone()).await.unwrap();
    bus.flush().await.unwrap();
    let subject = subject::svc("approval", "decide");
    let answer: Answer = bus.request_json(&subject, &Question { approve: true }, LONG).await.unwrap();
    assert_eq!(answer, Answer { state: "granted".into() });

    let refused = bus.request_json::<_, Answer>(&subject, &Question { approve: false }, LONG).await.unwrap_err();
    assert!(
        matches!(&refused, BusError::Refused { code: 409, message, .. } if message == "already  denied"),
        "{refused}"
    );
    assert!(!refused.is_transient());
    let malformed = bus.request(&subject, "{", LONG).await.unwrap_err();
    assert!(matches!(malformed, BusError::Refused { code: 400, .. }), "{malformed}");

    token.cancel();
    within("the end", serving.join()).await;
    let nobody = bus.request(&subject, "{}", LONG).await.unwrap_err();
    assert!(matches!(nobody, BusError::NoResponders { .. }) && nobody.is_transient(), "{nobody}");
    bus.end().await.unwrap();
}

#[tokio::test]
async fn a_panic_and_a_silence_are_told_apart_and_others_are_served() {
    let bus = TestBus::start().await.unwrap();
    let token = CancellationToken::new();
    let handler = |message: bus::Message| async move {
        match &message.payload[..] {
            b"panic" => panic!("oh no"),
            b"silence" => std::future::pending().await,
            body => Ok(Bytes::copy_from_slice(body)),
        }
    };
    bus.serve(ServeOptions::new("echo", "say"), handler, token.clone()).await.unwrap();
    bus.flush().await.unwrap();
    let subject = subject::svc("echo", "say");
    let panicked = bus.request(&subject, "panic", LONG).await.unwrap_err();
    assert!(matches!(panicked, BusError::Refused { code: 500, .. }), "{panicked}");
    let silent = bus.request(&subject, "silence", Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(silent, BusError::RequestTimedOut { .. }), "{silent}");
    assert_eq!(&bus.request(&subject, "hello", LONG).await.unwrap().payload[..], b"hello");
    token.cancel();
    bus.end().await.unwrap();
}

#[tokio::test]
async fn finishes_the_answer_it_had_begun() {
    let bus = TestBus::start().await.unwrap();
    let token = CancellationToken::new();
    let began = std::sync::Arc::new(tokio::sync::Notify::new());
    let (gate, open) = tokio::sync::watch::channel(false);
    let handler = {
        let began = began.clone();
        move |_| {
            let (began, mut open) = (began.clone(), open.clone());
            async move {
                began.notify_one();
                open.wait_for(|open| *open).await.map_err(|error| Problem::internal(error.to_string()))?;
                Ok(Bytes::from_static(b"done"))
            }
        }
    };
    let serving = bus.serve(ServeOptions::new("slow", "do"), handler, token.clone()).await.unwrap();
    bus.flush().await.unwrap();
    let asking = tokio::spawn({
        let bus = (*bus).clone();
        async move { bus.request(&subject::svc("slow", "do"), "", LONG).await }
    });
    within("the request", began.notified()).await;
    token.cancel();
    gate.send_replace(true);
    assert_eq!(&within("the answer", asking).await.unwrap().unwrap().payload[..], b"done");
    within("the end", serving.join()).await;
    bus.end().await.unwrap();
}
