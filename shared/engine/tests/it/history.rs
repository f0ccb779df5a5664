//! No history tax: a run costs the same at any age.

use std::sync::Arc;

use engine::{Engine, EngineOptions, testing::TestStack};
use kernel::{
    Cause, Command, Role, RunId, RunState, TenantId,
    command::{TurnOutcome, WaitRequest},
    wait::{Condition, WaitExpr},
};
use sqlx::Row;

use crate::{
    core::{block, create, message, wait_for_forge},
    support::{eventually, redis},
};

/// Events between two checkpoints.
const CHECKPOINT_EVERY: u64 = 500;
/// Messages that a turn leaves: a quick way to a long log.
const MUCH: usize = 200;
/// As a turn usually does.
const LITTLE: usize = 2;

/// 20,000 events, or a million in the long form.
fn age() -> u64 {
    if std::env::var_os("ESC_TEST_LONG").is_some() { 1_000_000 } else { 20_000 }
}

/// A turn of the run: says something, waits for a person, who writes. Gives the run as it stands then.
async fn live(ingress: &Engine, planner: &Engine, run: RunId, turn: u32, words: usize) -> Arc<RunState> {
    let state = planner.load(run).await.unwrap().unwrap();
    let Command::CommitTurn(outcome) = wait_for_forge(&state, "none", None) else { unreachable!() };
    let on = WaitExpr::from(Condition::OperatorInput { approval_id: None });
    let wait = WaitRequest { on, why: "to hear".into(), assumes: None, expects: None, deadline: None };
    let say = (0..words).map(|number| block(&format!("turn {turn}, word {number}"))).collect();
    let outcome = Command::CommitTurn(Box::new(TurnOutcome { wait: Some(wait), say, ..*outcome }));
    planner.submit(run, outcome, format!("turn/{turn}"), Cause::default()).await.unwrap();
    let woken = ingress.submit(run, message("go on"), format!("message/{turn}"), Cause::default()).await.unwrap();
    assert_eq!(woken.state.turns_opened, turn + 1);
    woken.state
}

fn size(state: &RunState) -> usize {
    serde_json::to_string(state).unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_any_age_loads_from_one_snapshot_or_one_checkpoint_and_a_short_tail() {
    let stack = TestStack::new().await.unwrap();
    let door = |role| {
        let options = EngineOptions { checkpoint_every: CHECKPOINT_EVERY, ..stack.options(role) };
        stack.another_engine(options)
    };
    let (ingress, planner) = (door(Role::Ingress).await.unwrap(), door(Role::Planner).await.unwrap());
    let run = RunId::mint();
    ingress.submit(run, create("live long"), "create", Cause::default()).await.unwrap();
    let (mut young, mut turn, mut seq, mut usual) = (0, 1, 0, 0);
    // A long life, the last of it in small steps.
    let old = loop {
        let words = if seq < age() { MUCH } else { LITTLE };
        let state = live(&ingress, &planner, run, turn, words).await;
        if turn == 10 {
            young = size(&state);
        }
        (turn, seq, usual) = (turn + 1, state.seq, usual + u64::from(words == LITTLE));
        if usual * 5 > CHECKPOINT_EVERY {
            break state;
        }
    };
    println!("{} events, {turn} turns; state of {young} bytes after ten turns, {} at the end", old.seq, size(&old));
    assert!(size(&old) < young + young / 10, "{young} bytes after ten turns, {} after {turn}", size(&old));

    // The snapshot is enough: not one event is read.
    let mut redis = redis().await;
    let key = format!("{}:esc:s{}:{run}", stack.namespace(), kernel::STATE_VERSION);
    eventually(|| async {
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(&key).query_async(&mut redis.clone()).await.unwrap();
        value.filter(|value| value.starts_with(format!("{:020}", old.seq).as_bytes()))
    })
    .await;
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::raw_sql("alter table events rename to events_away").execute(&mut postgres).await.unwrap();
    assert_eq!(*planner.load(run).await.unwrap().unwrap(), *old);
    sqlx::raw_sql("alter table events_away rename to events").execute(&mut postgres).await.unwrap();

    // Without it, the checkpoint and a short tail are: what came before is not read.
    let checkpoint: i64 = eventually(|| async {
        let mut postgres = stack.postgres().await.unwrap();
        let row = sqlx::query("select seq from checkpoints where run_id = $1").bind(run.0);
        let seq: Option<i64> = row.fetch_optional(&mut postgres).await.unwrap().map(|row| row.get(0));
        // The last commits' may still be on its way.
        seq.filter(|seq| old.seq - seq.unsigned_abs() <= 2 * CHECKPOINT_EVERY)
    })
    .await;
    redis::cmd("DEL").arg(&key).query_async::<()>(&mut redis).await.unwrap();
    let head = "delete from events where run_id = $1 and seq < $2";
    sqlx::query(head).bind(run.0).bind(checkpoint).execute(&mut postgres).await.unwrap();
    assert_eq!(*planner.load(run).await.unwrap().unwrap(), *old);

    // And the next turn is like any other.
    let next = live(&ingress, &planner, run, turn, LITTLE).await;
    assert!(next.seq > old.seq && size(&next) < young + young / 10);
    let page = ingress.reads().events(&TenantId::default(), run, next.seq - 5, 3).await.unwrap();
    assert_eq!(page.iter().map(|event| event.seq).collect::<Vec<_>>(), [next.seq - 4, next.seq - 3, next.seq - 2]);
    stack.close().await.unwrap();
}

/// Plans are made once, when the tables may be empty: one that reads a table from end to end costs more with every run.
#[tokio::test]
async fn appending_reads_no_table_from_end_to_end() {
    let stack = TestStack::new().await.unwrap();
    let (ingress, planner) = (stack.engine(Role::Ingress).await.unwrap(), stack.engine(Role::Planner).await.unwrap());
    let mut appended = 0;
    for _ in 0..20 {
        let run = RunId::mint();
        ingress.submit(run, create("agent"), "create", Cause::default()).await.unwrap();
        live(&ingress, &planner, run, 1, LITTLE).await;
        appended += 3;
    }
    // Postgres counts what a connection did a while later, or when it is closed.
    ingress.drain().await;
    planner.drain().await;
    drop((ingress, planner));
    let read = eventually(|| async {
        let mut postgres = stack.postgres().await.unwrap();
        let row = sqlx::query(
            "select coalesce(sum(n_tup_ins) filter (where relname = 'inbox'), 0)::bigint,
                    coalesce(sum(seq_tup_read) filter (where relname in ('inbox', 'events', 'runs', 'waits')), 0)::bigint
             from pg_stat_user_tables where schemaname = $1",
        )
        .bind(stack.schema())
        .fetch_one(&mut postgres)
        .await
        .unwrap();
        (row.get::<i64, _>(0) >= appended).then(|| row.get::<i64, _>(1))
    })
    .await;
    assert_eq!(read, 0, "rows read by looking at all of a table");
    stack.close().await.unwrap();
}
