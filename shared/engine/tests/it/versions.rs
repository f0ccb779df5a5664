//! Versions side by side: a log that a newer one writes is left alone with clear words, an older one's door still works, and
//! what the oldest one wrote is still read.

use engine::{Engine, EngineError, SubmitError, testing::TestStack};
use kernel::{Cause, DecodeError, Role, RunId, Status};
use sqlx::PgConnection;

use crate::{
    core::{create, message},
    support::redis,
};

async fn new_run(engine: &Engine) -> RunId {
    let run = RunId::mint();
    engine.submit(run, create("outlive versions"), "create", Cause::default()).await.unwrap();
    run
}

/// An event as only a newer version writes it, at the end of the log of the run; its snapshot is the newer version's own.
async fn write_newer(stack: &TestStack, run: RunId, event_type: &str, version: i16, data: &str) {
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query(
        "insert into events (run_id, seq, tenant, type, version, at, cause, data)
         select run_id, seq + 1, tenant, $2, $3, now(), '{\"service\": \"planner\"}', $4::json from runs where run_id = $1",
    )
    .bind(run.0)
    .bind(event_type)
    .bind(version)
    .bind(data)
    .execute(&mut postgres)
    .await
    .unwrap();
    sqlx::query("update runs set seq = seq + 1 where run_id = $1").bind(run.0).execute(&mut postgres).await.unwrap();
    let newer = kernel::STATE_VERSION + 1;
    let key = format!("{}:esc:s{newer}:{run}", stack.namespace());
    redis::cmd("SET").arg(key).arg("of another shape").query_async::<()>(&mut redis().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_version_wrote_is_named_and_left_alone() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    let (unknown, newer, own) = (new_run(&engine).await, new_run(&engine).await, new_run(&engine).await);
    write_newer(&stack, unknown, "run.dreamt", 1, "{}").await;
    write_newer(&stack, newer, "message.added", 99, r#"{"voice": "alto"}"#).await;
    let words =
        ["event type `run.dreamt` is not known", "event `message.added` has version 99, this version reads up to 1"];
    for (run, words) in [unknown, newer].into_iter().zip(words) {
        let error = engine.load(run).await.unwrap_err();
        assert!(error.to_string().contains(words) && error.to_string().contains("run the newer one"), "{error}");
        assert!(matches!(error, EngineError::Decode(DecodeError::UnknownType(_) | DecodeError::TooNew { .. })));
        // Not for this instance to try again: its message goes to another.
        assert!(!error.is_transient());
    }
    // A batch with such runs in it commits the others, and nothing is added to those.
    let all = [unknown, own, newer].map(|run| engine.submit(run, message("hello"), "m", Cause::default()));
    let [first, second, third] = futures::future::join_all(all).await.try_into().unwrap();
    assert!(matches!(first, Err(SubmitError::Engine(EngineError::Decode(_)))), "{first:?}");
    assert!(matches!(third, Err(SubmitError::Engine(EngineError::Decode(_)))), "{third:?}");
    assert_eq!(second.unwrap().events.len(), 1);
    // Whoever only shows the log shows it as it is.
    let shown = engine.reads().events(&"default".parse().unwrap(), unknown, 0, 10).await.unwrap();
    assert_eq!(shown.last().map(|event| event.event_type.as_str()), Some("run.dreamt"));
    assert!(shown.last().unwrap().decode().is_err());
    stack.close().await.unwrap();
}

/// The statement by which the first version appends: a run's creation.
const FIRST_APPEND: &str = r#"
    select o_outcome from append(
        array[$1]::uuid[], array[0]::bigint[], array[2]::bigint[], array['create'],
        json_build_array(json_build_object('run_id', $1, 'tenant', 'default', 'agent', 'tester', 'agent_digest', 'digest',
                                           'objective', 'old', 'conversation_id', null, 'metadata', '{}'::json,
                                           'sampled', true)),
        array['runnable'], array[null]::text[], array[$2]::bigint[], array[true], array[$3]::uuid[], array[null]::bigint[],
        array[''], array[0], array[0], array[0], array[0]::bigint[], array[0]::bigint[], array[0]::bigint[],
        array[0]::bigint[],
        array[$1, $1]::uuid[], array[1, 2]::bigint[], array['default', 'default'], array['run.created', 'run.runnable'],
        array[1, 1]::smallint[], array[$2, $2]::bigint[], array['{"service": "ingress"}', '{"service": "ingress"}'],
        array[$4, $5], null, null)"#;

/// The content of `run.created` with nothing in it that was added later.
const FIRST_CREATED: &str = r#"{"tenant": "default", "agent": "tester", "agent_digest": "digest",
    "objective": {"text": "old", "trust": "operator", "source": "operator:ann"},
    "input": {"text": "begin", "trust": "operator", "source": "operator:ann"}}"#;

async fn create_as_first_version(postgres: &mut PgConnection, run: RunId) -> i16 {
    let turn = kernel::TurnId::derive(run, "turn/1");
    sqlx::query_scalar(FIRST_APPEND)
        .bind(run.0)
        .bind(kernel::Timestamp::now().as_microsecond())
        .bind(turn.0)
        .bind(FIRST_CREATED)
        .bind(format!(r#"{{"turn_id": "{turn}", "number": 1}}"#))
        .fetch_one(postgres)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_appends_beside_this_one_and_is_read_by_it() {
    let stack = TestStack::new().await.unwrap();
    let engine = stack.engine(Role::Ingress).await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let run = RunId::mint();
    assert_eq!(create_as_first_version(&mut postgres, run).await, 0);
    assert_eq!(create_as_first_version(&mut postgres, run).await, 1, "the same delivery again");
    let state = engine.load(run).await.unwrap().unwrap();
    assert_eq!((state.seq, state.status(), state.objective.text.as_str()), (2, Status::Runnable, "old"));
    let next = engine.submit(run, message("hello"), "m", Cause::default()).await.unwrap();
    assert_eq!(next.state.seq, 3);
    // To the older one this run has moved on, and one that this version made exists.
    let own = new_run(&engine).await;
    sqlx::query("delete from inbox").execute(&mut postgres).await.unwrap();
    assert_eq!(create_as_first_version(&mut postgres, run).await, 2);
    assert_eq!(create_as_first_version(&mut postgres, own).await, 2);
    stack.close().await.unwrap();
}
