//! The door itself: once and only once, in order, whatever the caches say.

use std::{sync::Arc, time::Duration};

use bus::{CloudEvent, Outgoing};
use engine::{Engine, SubmitError, testing::TestStack};
use kernel::{
    Block, Cause, Command, EventData, Rejection, Role, RunId, Status, TenantId, Trust,
    command::{AddMessage, ByOperator, CreateRun, TurnOutcome, WaitRequest},
    event::RunCreated,
    wait::{Condition, ExternalPattern, WaitExpr},
};
use sqlx::Row;

use crate::support::{eventually, redis};

pub fn block(text: &str) -> Block {
    Block::new(text, Trust::Operator, "operator:test")
}

pub fn create(objective: &str) -> Command {
    let created = RunCreated::new(TenantId::default(), "tester", "digest", block(objective), block("begin"));
    Command::Create(Box::new(CreateRun { created: RunCreated { sampled: true, ..created }, hold: None }))
}

pub fn message(text: &str) -> Command {
    Command::AddMessage(AddMessage { block: block(text) })
}

/// A turn that does nothing but wait for an event of the forge about `subject`.
pub fn wait_for_forge(state: &kernel::RunState, subject: &str, filter: Option<&str>) -> Command {
    let pattern = ExternalPattern {
        source: "forge".into(),
        event_type: "forge.merged".into(),
        subject: subject.into(),
        filter: filter.map(str::to_owned),
        exclusive: false,
        verify: None,
    };
    let on = WaitExpr::from(Condition::External(pattern));
    let wait = WaitRequest { on, why: "to see".into(), assumes: None, expects: None, deadline: None };
    let turn_id = state.turn.as_ref().unwrap().turn_id;
    let outcome = TurnOutcome::empty(turn_id, state.seq, "scripted:test", Trust::Operator);
    Command::CommitTurn(Box::new(TurnOutcome { wait: Some(wait), ..outcome }))
}

pub fn forge_event(id: &str, subject: &str, ok: bool) -> CloudEvent {
    let json = serde_json::json!({
        "specversion": "1.0", "id": id, "source": "https://forge.test", "type": "forge.merged", "subject": subject,
        "data": { "ok": ok },
    });
    let headers = bus::Headers::new().with("Content-Type", "application/cloudevents+json");
    CloudEvent::decode(&headers, &json.to_string().into(), &bus::CloudEventLimits::default()).unwrap()
}

async fn new_run(engine: &Engine) -> RunId {
    let run = RunId::mint();
    engine.submit(run, create("test the door"), "create", Cause::default()).await.unwrap();
    run
}

async fn seqs(stack: &TestStack, run: RunId) -> Vec<i64> {
    let mut postgres = stack.postgres().await.unwrap();
    let rows = sqlx::query("select seq from events where run_id = $1 order by seq").bind(run.0);
    rows.fetch_all(&mut postgres).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_delivery_changes_nothing() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    let run = new_run(&engine).await;
    let first = engine.submit(run, message("hello"), "m1", Cause::default()).await.unwrap();
    assert_eq!((first.events.len(), first.duplicate), (1, false));
    let second = engine.submit(run, message("hello"), "m1", Cause::default()).await.unwrap();
    assert_eq!((second.events.len(), second.duplicate), (0, true));
    let again = engine.submit(run, create("again"), "create", Cause::default()).await.unwrap();
    assert!(again.duplicate);
    let other = engine.submit(run, create("another delivery"), "create-2", Cause::default()).await;
    assert!(matches!(other, Err(SubmitError::Rejected(Rejection::RunExists))), "{other:?}");
    assert_eq!(seqs(&stack, run).await, [1, 2, 3]);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_doors_racing_for_one_run_lose_nothing() {
    let stack = TestStack::new().await.unwrap();
    let doors =
        [stack.engine(Role::Ingress).await.unwrap(), stack.another_engine(stack.options(Role::Ingress)).await.unwrap()];
    let run = new_run(&doors[0]).await;
    let submits = (0..100).map(|number| {
        let engine = doors[number % 2].clone();
        // Each message is delivered to both doors: one of the two commits it.
        let key = format!("m{}", number / 2);
        async move { engine.submit(run, message(&key), key.clone(), Cause::default()).await.unwrap() }
    });
    let all = futures::future::join_all(submits).await;
    assert_eq!(all.iter().filter(|committed| committed.duplicate).count(), 50);
    assert_eq!(seqs(&stack, run).await, (1..=52).collect::<Vec<i64>>());
    let state = doors[1].load(run).await.unwrap().unwrap();
    assert_eq!(state.seq, 52);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_may_be_lost_old_or_lies() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    let run = new_run(&engine).await;
    let mut redis = redis().await;
    let key = format!("{}:esc:s{}:{run}", stack.namespace(), kernel::STATE_VERSION);
    let old: Vec<u8> = eventually(|| async {
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(&mut redis.clone()).await.unwrap();
        value
    })
    .await;
    engine.submit(run, message("one"), "m1", Cause::default()).await.unwrap();
    let state = engine.load(run).await.unwrap().unwrap();

    // Old: a pause that only the old state allows is decided on the log.
    engine.submit(run, Command::Pause(by()), "p1", Cause::default()).await.unwrap();
    redis::cmd("SET").arg(&key).arg(&old).query_async::<()>(&mut redis).await.unwrap();
    let resumed = engine.submit(run, Command::Resume(by()), "r1", Cause::default()).await.unwrap();
    assert_eq!(resumed.state.status(), Status::Runnable);

    // Ahead of the log: dropped.
    let mut lie = (*state).clone();
    lie.seq = 9_999;
    let value = format!("{:020}{}", lie.seq, serde_json::to_string(&lie).unwrap());
    redis::cmd("SET").arg(&key).arg(value).query_async::<()>(&mut redis).await.unwrap();
    let seq = engine.load(run).await.unwrap().unwrap().seq;
    assert_eq!(seq, resumed.state.seq);
    let after = engine.submit(run, message("two"), "m2", Cause::default()).await.unwrap();
    assert_eq!(after.state.seq, seq + 1);

    // Not JSON, and not there.
    redis::cmd("SET").arg(&key).arg("00000000000000099999garbage").query_async::<()>(&mut redis).await.unwrap();
    assert_eq!(engine.load(run).await.unwrap().unwrap().seq, seq + 1);
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut redis).await.unwrap();
    assert_eq!(*engine.load(run).await.unwrap().unwrap(), *after.state);
    stack.close().await.unwrap();
}

/// Postgres comes back without its last commits, and others take their numbers: what is left in Redis is of a log that is no
/// more.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_a_log_that_was_lost_is_not_believed() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    let run = new_run(&engine).await;
    let lost = engine.submit(run, message("lost"), "m1", Cause::default()).await.unwrap().state;
    engine.drain().await;
    let mut postgres = stack.postgres().await.unwrap();
    let restore = "with gone as (delete from events where run_id = $1 and seq = 3),
                        forgotten as (delete from inbox where run_id = $1 and key = 'm1')
                   update runs set seq = 2, updated_at = created_at where run_id = $1";
    sqlx::query(restore).bind(run.0).execute(&mut postgres).await.unwrap();
    let engine = stack.another_engine(stack.options(Role::Ingress)).await.unwrap();
    let redis = redis().await;
    let key = format!("{}:esc:s{}:{run}", stack.namespace(), kernel::STATE_VERSION);
    let lie = async || {
        let value = format!("{:020}{}", lost.seq, serde_json::to_string(&*lost).unwrap());
        redis::cmd("SET").arg(&key).arg(value).query_async::<()>(&mut redis.clone()).await.unwrap();
    };
    let is_lost = |state: &kernel::RunState| state.facts.iter().any(|fact| fact.block.text == "lost");

    // Ahead of the log. A handler that looks for what the snapshot lacks is shown the log.
    lie().await;
    let state = engine.load_at_least(run, 3, |state| !is_lost(state)).await.unwrap().unwrap();
    assert_eq!((state.seq, is_lost(&state)), (2, false));
    lie().await;
    let kept = engine.submit(run, message("kept"), "m2", Cause::default()).await.unwrap();
    assert_eq!((kept.state.seq, is_lost(&kept.state)), (3, false));

    // As long as the log.
    lie().await;
    assert_eq!(engine.load(run).await.unwrap().unwrap(), kept.state);
    lie().await;
    let more = engine.submit(run, message("more"), "m3", Cause::default()).await.unwrap();
    assert_eq!((more.state.seq, is_lost(&more.state)), (4, false));

    // Behind it.
    lie().await;
    assert_eq!(engine.load(run).await.unwrap().unwrap(), more.state);
    // A delivery that the lost log had handled is handled.
    lie().await;
    let again = engine.submit(run, message("lost"), "m1", Cause::default()).await.unwrap();
    assert_eq!((again.state.seq, again.duplicate), (5, false));
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_service_has_only_its_own_authority() {
    let stack = TestStack::new().await.unwrap();
    let run = new_run(&stack.engine(Role::Ingress).await.unwrap()).await;
    let planner = stack.engine(Role::Planner).await.unwrap();
    let refused = planner.submit(run, Command::Cancel(by()), "c", Cause::default()).await;
    assert!(matches!(refused, Err(SubmitError::Rejected(Rejection::NotAllowed(Role::Planner, "cancel")))));
    let missing = stack.engine(Role::Ingress).await.unwrap();
    let missing = missing.submit(RunId::mint(), message("?"), "m", Cause::default()).await;
    assert!(matches!(missing, Err(SubmitError::Rejected(Rejection::NoSuchRun))));
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poisoned_command_does_not_take_its_batch_along() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    // The doors clean NUL away; here it comes through.
    let submits = (0..40).map(|number| {
        let engine = engine.clone();
        let objective = if number == 17 { "poison \u{0}".to_owned() } else { format!("number {number}") };
        async move { engine.submit(RunId::mint(), create(&objective), "create", Cause::default()).await.is_ok() }
    });
    let accepted = futures::future::join_all(submits).await;
    let refused: Vec<_> = accepted.iter().enumerate().filter(|(_, accepted)| !**accepted).map(|(at, _)| at).collect();
    assert_eq!(refused, [17]);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_events_are_published_once_and_swept_if_not() {
    let stack = TestStack::new().await.unwrap();
    // Long enough that the row of the commit is there when it is swept.
    let options = engine::EngineOptions { outbox_keep: Duration::from_secs(600), ..stack.options(Role::Ingress) };
    let engine = stack.another_engine(options).await.unwrap();
    let mut heard = stack.bus().subscribe("evt.>").await.unwrap();
    stack.bus().flush().await.unwrap();
    let run = new_run(&engine).await;
    let message =
        tokio::time::timeout(Duration::from_secs(60), futures::StreamExt::next(&mut heard)).await.unwrap().unwrap();
    assert_eq!(message.subject, format!("evt.run.created.default.{run}"));
    assert_eq!(message.msg_id(), Some(format!("{run}-1").as_str()));
    let event = message.cloud_event().unwrap();
    assert_eq!((event.event_type.as_str(), event.subject.as_deref()), ("run.created", Some(run.to_string().as_str())));

    let swept = engine.outbox().sweep(Duration::ZERO, 100).await.unwrap();
    assert_eq!((swept.commits, swept.events), (1, 2), "published again, under the same identity");
    assert_eq!(engine.outbox().sweep(Duration::ZERO, 100).await.unwrap().commits, 0, "once");
    assert_eq!(engine.outbox().ring(run).await.unwrap(), 1, "the open turn");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_came_before_its_wait_wakes_in_the_same_commit() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let planner = stack.engine(Role::Planner).await.unwrap();
    let run = new_run(&ingress).await;
    let tenant = TenantId::default();
    for (id, subject, ok) in [("e1", "other", true), ("e2", "pull/7", false), ("e3", "pull/7", true)] {
        ingress.externals().record(&tenant, "forge", &forge_event(id, subject, ok), None).await.unwrap();
    }
    let state = planner.load(run).await.unwrap().unwrap();
    let wait = wait_for_forge(&state, "pull/7", Some("data.ok"));
    let committed = planner.submit(run, wait, "t1", Cause::default()).await.unwrap();
    let matched = committed.events.iter().find_map(|event| match &event.data {
        EventData::ExternalMatched(matched) => Some(matched.external.id.clone()),
        _ => None,
    });
    assert_eq!(matched.as_deref(), Some("e3"));
    assert_eq!(committed.state.status(), Status::Runnable);
    assert_eq!(committed.state.consumed.len(), 1);

    // The same event does not wake a second time.
    let wait = wait_for_forge(&committed.state, "pull/7", None);
    let committed = planner.submit(run, wait, "t2", Cause::default()).await.unwrap();
    assert_eq!(committed.state.status(), Status::Waiting);
    let (_, matches) =
        ingress.externals().record_and_match(&tenant, "forge", &forge_event("e4", "pull/7", true), None).await.unwrap();
    assert_eq!(matches.len(), 1, "the registered wait is found by the next event");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_run_loads_from_its_checkpoint_and_a_short_tail() {
    let stack = TestStack::new().await.unwrap();
    let options = engine::EngineOptions { checkpoint_every: 20, ..stack.options(Role::Ingress) };
    let engine = Arc::new(stack.another_engine(options).await.unwrap());
    let run = new_run(&engine).await;
    for number in 0..50 {
        engine.submit(run, message("more"), format!("m{number}"), Cause::default()).await.unwrap();
    }
    let state = engine.load(run).await.unwrap().unwrap();
    let checkpoint: i64 = eventually(|| async {
        let mut postgres = stack.postgres().await.unwrap();
        let row = sqlx::query("select seq from checkpoints where run_id = $1").bind(run.0);
        row.fetch_optional(&mut postgres).await.unwrap().map(|row| row.get(0))
    })
    .await;
    assert!(checkpoint >= 20);
    // Without the snapshot, and without the head of the log, the run is still all there.
    let mut redis = redis().await;
    let key = format!("{}:esc:s{}:{run}", stack.namespace(), kernel::STATE_VERSION);
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut redis).await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query("delete from events where run_id = $1 and seq < 20").bind(run.0).execute(&mut postgres).await.unwrap();
    assert_eq!(*engine.load(run).await.unwrap().unwrap(), *state);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_committed_and_published_before_a_drain_ends() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.another_engine(stack.options(Role::Ingress)).await.unwrap();
    let run = new_run(&engine).await;
    let accepted = engine.submit(run, message("last"), "m1", Cause::default()).await.unwrap();
    engine.drain().await;
    let refused = engine.submit(run, message("too late"), "m2", Cause::default()).await;
    assert!(matches!(refused, Err(SubmitError::Engine(engine::EngineError::Draining))));
    let again =
        Outgoing::new(format!("evt.message.added.default.{run}"), "{}").msg_id(format!("{run}-{}", accepted.state.seq));
    assert!(stack.bus().publisher().publish(again).await.unwrap().duplicate, "it was published before");
    stack.close().await.unwrap();
}

fn by() -> ByOperator {
    ByOperator { by: "ann".into(), reason: None }
}
