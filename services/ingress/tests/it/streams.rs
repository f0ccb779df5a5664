//! A run as a stream: exact, live, bounded, and over when it should be.

use std::time::Duration;

use bus::{Headers, subject};
use futures::StreamExt as _;
use kernel::command::{AddMessage, EndRequest, WaitRequest};
use kernel::wait::{Condition, WaitExpr};
use kernel::{Command, Role, RunId, TenantId, TurnId};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Door, block, cause, commit, eventually};
use crate::sse::Reader;

/// Turns that make a log long: fewer than the agent may have.
const TURNS: usize = 8;

/// Adds `count` events to the run, one commit each, as fast as they go.
async fn append(engine: &engine::Engine, run: RunId, count: usize, name: &str) {
    for number in 0..count {
        let command = Command::AddMessage(AddMessage { block: block(&format!("{name} {number}")) });
        let submit = || engine.submit(run, command.clone(), format!("{name}/{number}"), cause("ingress", 1));
        // Two engines on one run get into each other's way, and may ask to be tried again.
        while let Err(error) = submit().await {
            assert!(error.is_transient(), "{error}");
        }
    }
}

async fn publish_delta(door: &Door, run: RunId, turn: TurnId, offset: usize, text: &str) {
    let delta = json!({"turn": 1, "turn_id": turn, "block": 0, "offset": offset, "text": text});
    let tenant: TenantId = "acme".parse().unwrap();
    let subject = subject::live(&tenant, run);
    door.bus().publish_core(&subject, Headers::new(), delta.to_string()).await.unwrap();
}

async fn open_turn(door: &Door, run: RunId) -> TurnId {
    let shown = door.get(&format!("/v1/runs/{run}")).await;
    shown["turn"]["turn_id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_stream_begins_with_the_state_and_goes_on_with_the_log() {
    let door = Door::open().await;
    let run = door.run().await;
    let mut stream = Reader::open(&door, run, None).await;
    let snapshot = stream.next().await.unwrap();
    assert_eq!((snapshot.event.as_str(), snapshot.id), ("snapshot", snapshot.data["seq"].as_u64()));
    assert_eq!(snapshot.data["run_id"], json!(run));
    assert_eq!(snapshot.data["draft"], Value::Null);

    let (_, told) = door.post(&format!("/v1/runs/{run}/messages"), &json!({"text": "hello"})).await;
    let message = stream.next().await.unwrap();
    assert_eq!((message.event.as_str(), message.id), ("message.added", told["seq"].as_u64()));
    assert_eq!(message.data["event_id"], format!("{run}-{}", told["seq"]));
    assert_eq!(message.data["data"]["block"]["text"], "hello");
    assert_eq!(message.data, door.events(run).await.pop().unwrap(), "the same as in the list");

    door.post(&format!("/v1/runs/{run}/cancel"), &json!({})).await;
    let end = stream.until("run.cancelled").await;
    assert!(stream.next().await.is_none(), "nothing follows the end");

    // Whoever comes back behind the end is told not to come again; whoever comes for the first time sees how it stands.
    let path = format!("/v1/runs/{run}/stream?last_event_id={}", end.id.unwrap());
    let response = door.request(Method::GET, &path, "viewer").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let mut late = Reader::open(&door, run, None).await;
    assert_eq!(late.next().await.unwrap().data["status"], "cancelled");
    assert!(late.next().await.is_none());
    door.close().await;
}

#[tokio::test]
async fn a_resumed_stream_has_no_gap_and_no_repeat_while_events_are_appended() {
    let door = Door::open().await;
    let run = door.run().await;
    let options = || door.stack.options(Role::Ingress);
    let one = door.stack.another_engine(options()).await.unwrap();
    let two = door.stack.another_engine(options()).await.unwrap();
    let planner = door.engine(Role::Planner).await;
    let appending = async {
        tokio::join!(append(&one, run, 400, "one"), append(&two, run, 400, "two"));
        commit(&planner, run, |_, outcome| outcome.end = Some(EndRequest::Complete(block("done")))).await
    };
    // Reads a few events, drops the connection, resumes behind the last one; again and again, until the end.
    let reading = async {
        let (mut seen, mut last, mut breaks) = (Vec::new(), 0, 0);
        'again: loop {
            let mut stream = Reader::open(&door, run, Some(last)).await;
            let snapshot = stream.next().await.unwrap();
            assert_eq!((snapshot.event.as_str(), snapshot.id), ("snapshot", None), "its id would skip what is between");
            for _ in 0..37 {
                let event = stream.next().await.expect("an end before the last event");
                let Some(id) = event.id else { continue };
                seen.push(id);
                last = id;
                if event.event == "run.completed" {
                    assert!(stream.next().await.is_none());
                    break 'again;
                }
            }
            breaks += 1;
        }
        (seen, breaks)
    };
    let (_, (seen, breaks)) = tokio::join!(appending, reading);
    let wanted: Vec<u64> = (1..=seen.len() as u64).collect();
    assert_eq!(seen, wanted);
    assert!(seen.len() > 800 && breaks > 10, "{} events, {breaks} breaks", seen.len());
    assert_eq!(door.get(&format!("/v1/runs/{run}")).await["seq"], json!(seen.len()));
    door.close().await;
}

#[tokio::test]
async fn many_readers_of_one_run_each_get_every_event_wherever_they_begin() {
    let door = Door::open().await;
    let run = door.run().await;
    let (engine, planner) = (door.engine(Role::Ingress).await, door.engine(Role::Planner).await);
    append(&engine, run, 100, "early").await;
    let middle = door.get(&format!("/v1/runs/{run}")).await["seq"].as_u64().unwrap();
    let appending = async {
        append(&engine, run, 200, "late").await;
        commit(&planner, run, |_, outcome| outcome.end = Some(EndRequest::Complete(block("done")))).await.state.seq
    };
    let read = |last: Option<u64>| {
        let door = &door;
        async move {
            let mut stream = Reader::open(door, run, last).await;
            let snapshot = stream.until("snapshot").await;
            let mut seen = last.unwrap_or_else(|| snapshot.data["seq"].as_u64().unwrap());
            while let Some(event) = stream.next().await {
                if let Some(id) = event.id {
                    assert_eq!(id, seen + 1, "begun behind {last:?}");
                    seen = id;
                }
            }
            seen
        }
    };
    // They share what is read, some from far back, and some come while others are in the middle of it.
    let places = [None, Some(0), Some(middle), Some(middle - 50)];
    let readers = futures::future::join_all(places.iter().cycle().take(24).map(|last| read(*last)));
    let (last, seen) = tokio::join!(appending, readers);
    assert_eq!(seen, vec![last; 24]);
    door.close().await;
}

#[tokio::test]
async fn an_id_that_the_log_does_not_have_begins_anew() {
    let door = Door::open().await;
    let run = door.run().await;
    let mut stream = Reader::open(&door, run, Some(1_000_000)).await;
    let snapshot = stream.next().await.unwrap();
    assert_eq!(snapshot.id, snapshot.data["seq"].as_u64(), "the snapshot is where to go on from");
    door.close().await;
}

#[tokio::test]
async fn text_that_is_being_written_comes_between_events() {
    let door = Door::open().await;
    let run = door.run().await;
    let turn = open_turn(&door, run).await;
    let mut first = Reader::open(&door, run, None).await;
    first.until("snapshot").await;
    publish_delta(&door, run, turn, 0, "Hello").await;
    let delta = first.until("delta").await;
    assert_eq!((delta.id, &delta.data["text"], &delta.data["offset"]), (None, &json!("Hello"), &json!(0)));

    // Who comes later begins with what is there, and goes on exactly from there.
    let mut second = Reader::open(&door, run, None).await;
    let snapshot = second.until("snapshot").await;
    assert_eq!(snapshot.data["draft"]["turn_id"], json!(turn));
    assert_eq!(snapshot.data["draft"]["blocks"], json!([{"block": 0, "offset": 0, "text": "Hello"}]));
    publish_delta(&door, run, turn, 5, ", world").await;
    for stream in [&mut first, &mut second] {
        let delta = stream.until("delta").await;
        assert_eq!((&delta.data["offset"], &delta.data["text"]), (&json!(5), &json!(", world")));
    }

    // The draft of a turn that is over is nobody's any more.
    let planner = door.engine(Role::Planner).await;
    commit(&planner, run, |_, outcome| outcome.end = Some(EndRequest::Complete(block("Hello, world")))).await;
    let mut third = Reader::open(&door, run, None).await;
    assert_eq!(third.until("snapshot").await.data["draft"], Value::Null);
    door.close().await;
}

#[tokio::test]
async fn a_quiet_stream_gives_a_sign_of_life_and_looks_at_the_log() {
    let door = Door::open_with(|config| config.heartbeat_seconds = 1).await;
    let run = door.run().await;
    let mut stream = Reader::open(&door, run, None).await;
    stream.until("snapshot").await;
    stream.until("").await;
    // Its engine rings its bells where nobody hears them.
    let elsewhere = bus::testing::TestBus::start().await.unwrap();
    let engine = engine::Engine::start(door.stack.options(Role::Ingress), (*elsewhere).clone()).await.unwrap();
    append(&engine, run, 1, "silent").await;
    engine.drain().await;
    stream.until("message.added").await;
    elsewhere.end().await.unwrap();
    door.close().await;
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_told_to_come_again() {
    let door = Door::open().await;
    let run = door.run().await;
    let turn = open_turn(&door, run).await;
    let mut stream = Reader::open(&door, run, None).await;
    let seq = stream.until("snapshot").await.id.unwrap();
    // More than the connection and the inbox hold, while nobody reads.
    let text = "x".repeat(64 * 1024);
    for piece in 0..400 {
        publish_delta(&door, run, turn, piece * text.len(), &text).await;
        if piece % 16 == 0 {
            // On a slow machine its patience may end before it is through.
            eventually("a flush", || async { door.bus().flush().await.ok() }).await;
        }
    }
    let resume = stream.until("resume").await;
    assert_eq!(resume.data, json!({"reason": "slow_reader", "last_event_id": seq}));
    assert!(stream.next().await.is_none());
    door.close().await;
}

/// The events of a packed stream up to the number `last`, as they come.
async fn packed_events(door: &Door, run: RunId, after: u64, last: u64) -> usize {
    use std::io::Write as _;
    let request = door.request(Method::GET, &format!("/v1/runs/{run}/stream"), "viewer");
    let request = request.header("accept-encoding", "gzip").header("last-event-id", after.to_string());
    let response = request.send().await.unwrap();
    assert_eq!(
        (response.status(), &response.headers()["content-encoding"]),
        (StatusCode::OK, &"gzip".parse().unwrap())
    );
    let mut body = response.bytes_stream();
    let mut unpack = flate2::write::GzDecoder::new(Vec::new());
    loop {
        let piece = tokio::time::timeout(crate::harness::PATIENCE, body.next()).await.unwrap().unwrap().unwrap();
        unpack.write_all(&piece).unwrap();
        unpack.flush().unwrap();
        let text = String::from_utf8_lossy(unpack.get_ref()).into_owned();
        if text.contains(&format!("id: {last}\n")) || text.contains(&format!("id:{last}\n")) {
            return text.matches("event: message.added").count() + text.matches("event:message.added").count();
        }
    }
}

#[tokio::test]
async fn a_packed_stream_can_be_read_as_it_comes() {
    let door = Door::open().await;
    let run = door.run().await;
    let engine = door.engine(Role::Ingress).await;
    append(&engine, run, 30, "early").await;
    let seq = door.get(&format!("/v1/runs/{run}")).await["seq"].as_u64().unwrap();
    assert_eq!(packed_events(&door, run, 0, seq).await, 30);
    let (late, _) = tokio::join!(packed_events(&door, run, seq, seq + 5), append(&engine, run, 5, "late"));
    assert_eq!(late, 5, "while the stream is open");
    door.close().await;
}

#[tokio::test]
async fn a_stream_goes_on_at_another_instance_and_closing_one_is_nothing_to_the_run() {
    let door = Door::open().await;
    let config = crate::harness::config(&door.stack, door.tokens.path());
    let mut second = service::spawn("ingress", config, ingress::run).unwrap();
    let addr = second.listening().await.unwrap();
    let run = door.run().await;
    let engine = door.engine(Role::Ingress).await;
    append(&engine, run, 10, "one").await;
    let mut first = Reader::open(&door, run, Some(0)).await;
    first.until("snapshot").await;
    let mut last = 0;
    for _ in 0..6 {
        last = first.next().await.unwrap().id.unwrap();
    }
    drop(first);
    let before = door.events(run).await;
    let request = door.http.get(format!("http://{addr}/v1/runs/{run}/stream")).bearer_auth("acme-viewer");
    let response = request.header("last-event-id", last.to_string()).send().await.unwrap();
    let mut rest = Reader::of(response);
    rest.until("snapshot").await;
    assert_eq!(rest.next().await.unwrap().id, Some(last + 1), "no gap and no repeat");
    drop(rest);
    assert_eq!(door.events(run).await, before);
    second.stop().await.unwrap();
    door.close().await;
}

/// 100,000 events with `ESC_TEST_LONG`, else fewer.
#[tokio::test]
async fn a_long_log_is_caught_up_with_page_by_page() {
    let door = Door::open().await;
    let run = door.run().await;
    let count = if std::env::var_os("ESC_TEST_LONG").is_some() { 100_000 } else { 2000 };
    let (engine, planner) = (door.engine(Role::Ingress).await, door.engine(Role::Planner).await);
    // A turn that says much is a quick way to a long log.
    for turn in 0..TURNS {
        let word = |number| block(&format!("turn {turn}, word {number}"));
        let on = WaitExpr::from(Condition::OperatorInput { approval_id: None });
        let wait = WaitRequest { on, why: "to hear".into(), assumes: None, expects: None, deadline: None };
        commit(&planner, run, |_, outcome| {
            outcome.say = (0..count / TURNS).map(word).collect();
            outcome.wait = Some(wait);
        })
        .await;
        append(&engine, run, 1, &format!("turn {turn}")).await;
    }
    let seq = door.get(&format!("/v1/runs/{run}")).await["seq"].as_u64().unwrap();
    assert!(seq > u64::try_from(count).unwrap());
    let begun = std::time::Instant::now();
    let mut stream = Reader::open(&door, run, Some(0)).await;
    stream.until("snapshot").await;
    for wanted in 1..=seq {
        assert_eq!(stream.next().await.unwrap().id, Some(wanted));
    }
    eprintln!("{seq} events in {:?}", begun.elapsed());
    // What lies before the last one seen is not read again.
    let begun = std::time::Instant::now();
    let mut tail = Reader::open(&door, run, Some(seq - 100)).await;
    tail.until("snapshot").await;
    for wanted in seq - 99..=seq {
        assert_eq!(tail.next().await.unwrap().id, Some(wanted));
    }
    eprintln!("the last 100 of them in {:?}", begun.elapsed());
    door.close().await;
}

#[tokio::test]
async fn streams_end_when_the_service_does() {
    let mut door = Door::open_with(|config| config.common.drain_seconds = 120).await;
    let run = door.run().await;
    let mut stream = Reader::open(&door, run, None).await;
    let seq = stream.until("snapshot").await.id.unwrap();
    let begun = std::time::Instant::now();
    let (resume, ()) = tokio::join!(stream.until("resume"), door.stop());
    assert_eq!(resume.data, json!({"reason": "shutdown", "last_event_id": seq}));
    assert!(begun.elapsed() < Duration::from_secs(60), "the drain waits for nobody's stream");
    door.close().await;
}
