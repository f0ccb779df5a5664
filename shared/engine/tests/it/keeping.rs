//! What services keep beside runs, and for how long: idempotency keys, observer checkpoints, archived segments, old runs.

use std::time::Duration;

use engine::{Claim, ObserverCheckpoint, Segment, testing::TestStack};
use kernel::{CallId, Cause, Command, Role, RunId, TenantId, command::ByOperator};
use serde_json::value::RawValue;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::core::{create, forge_event, message};

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_claims_a_key_and_the_others_get_its_run() {
    let stack = TestStack::new().await.unwrap();
    let keys = stack.engine(Role::Ingress).await.unwrap().idempotency();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let claims = (0..20).map(|_| {
        let (keys, tenant, run) = (keys.clone(), tenant.clone(), RunId::mint());
        async move { (run, keys.claim(&tenant, "k", "digest", run).await.unwrap()) }
    });
    let all = futures::future::join_all(claims).await;
    let claimed: Vec<_> = all.iter().filter(|(_, claim)| *claim == Claim::Claimed).map(|(run, _)| *run).collect();
    assert_eq!(claimed.len(), 1);
    let replays = all.iter().filter(|(_, claim)| *claim == Claim::Replay(claimed[0])).count();
    assert_eq!(replays, 19);
    assert_eq!(keys.claim(&tenant, "k", "another digest", RunId::mint()).await.unwrap(), Claim::Mismatch);
    assert_eq!(keys.claim(&other, "k", "digest", RunId::mint()).await.unwrap(), Claim::Claimed);
    keys.release(&tenant, "k", "another digest").await.unwrap();
    assert_eq!(keys.claim(&tenant, "k", "digest", RunId::mint()).await.unwrap(), Claim::Replay(claimed[0]));
    keys.release(&tenant, "k", "digest").await.unwrap();
    assert_eq!(keys.claim(&tenant, "k", "another digest", RunId::mint()).await.unwrap(), Claim::Claimed);
    assert_eq!(
        keys.claim(&other, "k", "another digest", RunId::mint()).await.unwrap(),
        Claim::Mismatch,
        "theirs stays"
    );
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_never_goes_back() {
    let stack = TestStack::new().await.unwrap();
    let checkpoints = stack.engine(Role::Observer).await.unwrap().checkpoints();
    let (run, call, other) = (RunId::mint(), CallId::mint(), CallId::mint());
    let at = |call: CallId, stream_seq: u64, state: &str| ObserverCheckpoint {
        call_id: call,
        run_id: run,
        stream_seq,
        state: RawValue::from_string(state.to_owned()).unwrap(),
    };
    let read = |calls: Vec<CallId>| {
        let checkpoints = checkpoints.clone();
        async move { checkpoints.load(&calls).await.unwrap() }
    };
    checkpoints.save(vec![at(call, 7, r#"{"lines":7}"#), at(call, 9, r#"{"lines":9}"#)]).await.unwrap();
    checkpoints.save(vec![at(call, 8, r#"{"lines":8}"#), at(other, 1, "[]")]).await.unwrap();
    checkpoints.save(Vec::new()).await.unwrap();
    let kept = read(vec![call]).await;
    assert_eq!((kept[0].stream_seq, kept[0].state.get()), (9, r#"{"lines":9}"#));
    assert_eq!(read(vec![call, other, CallId::mint()]).await.len(), 2);
    checkpoints.remove(&[call]).await.unwrap();
    assert_eq!(read(vec![call, other]).await.len(), 1);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn segments_are_found_by_the_bytes_they_hold() {
    let stack = TestStack::new().await.unwrap();
    let segments = stack.engine(Role::Artifact).await.unwrap().segments();
    let (tenant, run, call) = (TenantId::default(), RunId::mint(), CallId::mint());
    let segment = |from: u64, to: u64| Segment {
        call_id: call,
        run_id: run,
        tenant: tenant.clone(),
        from_offset: from,
        to_offset: to,
        from_line: from / 10,
        to_line: to / 10,
        object_key: format!("segments/{from}-{to}"),
        stored_at: None,
    };
    for (from, to) in [(0, 100), (100, 200), (200, 250), (200, 300), (200, 260)] {
        segments.insert(&segment(from, to)).await.unwrap();
    }
    let keys = |found: Vec<Segment>| found.into_iter().map(|segment| segment.object_key).collect::<Vec<_>>();
    let all = segments.list(&tenant, call, 0, u64::MAX).await.unwrap();
    assert!(all.iter().all(|segment| segment.stored_at.is_some()));
    assert_eq!(keys(all), ["segments/0-100", "segments/100-200", "segments/200-300"]);
    assert_eq!(keys(segments.list(&tenant, call, 99, 101).await.unwrap()), ["segments/0-100", "segments/100-200"]);
    assert_eq!(keys(segments.list(&tenant, call, 100, 200).await.unwrap()), ["segments/100-200"]);
    assert!(segments.list(&"other".parse().unwrap(), call, 0, 300).await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_time_alone_told_an_observer_is_kept() {
    let stack = TestStack::new().await.unwrap();
    let checkpoints = stack.engine(Role::Observer).await.unwrap().checkpoints();
    let (run_id, call_id) = (RunId::mint(), CallId::mint());
    for state in [r#"{"silent":false}"#, r#"{"silent":true}"#] {
        let state = RawValue::from_string(state.to_owned()).unwrap();
        checkpoints.save(vec![ObserverCheckpoint { call_id, run_id, stream_seq: 7, state }]).await.unwrap();
    }
    let kept = checkpoints.load(&[call_id]).await.unwrap();
    assert_eq!(kept[0].state.get(), r#"{"silent":true}"#);
    stack.close().await.unwrap();
}

const DAY: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(flavor = "multi_thread")]
async fn only_outside_events_that_are_old_and_dealt_with_are_forgotten() {
    let stack = TestStack::new().await.unwrap();
    let externals = stack.engine(Role::Ingress).await.unwrap().externals();
    let retention = stack.engine(Role::Scheduler).await.unwrap().retention();
    let tenant = TenantId::default();
    for number in 0..6 {
        let event = forge_event(&format!("e{number}"), "a", true);
        let recorded = externals.record(&tenant, "forge", &event, None).await.unwrap();
        if number != 0 {
            externals.mark_dispatched(recorded.external.position).await.unwrap();
        }
    }
    let mut postgres = stack.postgres().await.unwrap();
    let age = "update external_events set received_at = now() - interval '2 days' where id not like '%e5'";
    sqlx::query(age).execute(&mut postgres).await.unwrap();
    assert_eq!(retention.prune_externals(DAY, 3).await.unwrap(), 3);
    assert_eq!(retention.prune_externals(DAY, 3).await.unwrap(), 1);
    assert_eq!(retention.prune_externals(DAY, 3).await.unwrap(), 0);
    let left = externals.undispatched_after(0, Duration::ZERO, 10).await.unwrap();
    assert_eq!(left.iter().map(|event| event.external.id.as_str()).collect::<Vec<_>>(), ["e0"]);
    assert!(!externals.record(&tenant, "forge", &forge_event("e5", "a", true), None).await.unwrap().is_new);

    let keys = stack.engine(Role::Ingress).await.unwrap().idempotency();
    for key in ["old", "young"] {
        keys.claim(&tenant, key, "digest", RunId::mint()).await.unwrap();
    }
    let age = "update idempotency_keys set created_at = now() - interval '2 days' where key = 'old'";
    sqlx::query(age).execute(&mut postgres).await.unwrap();
    assert_eq!(retention.prune_idempotency_keys(DAY, 10).await.unwrap(), 1);
    assert_eq!(keys.claim(&tenant, "old", "digest", RunId::mint()).await.unwrap(), Claim::Claimed);
    stack.close().await.unwrap();
}

/// Tables with rows of a run.
const TABLES: [&str; 12] = [
    "runs",
    "events",
    "inbox",
    "checkpoints",
    "waits",
    "timers",
    "started_calls",
    "approvals",
    "artifacts",
    "observer_checkpoints",
    "signal_segments",
    "removed_runs",
];

/// In how many of the tables there is something of the run.
async fn tables_with(postgres: &mut PgConnection, run: RunId) -> Vec<&'static str> {
    let mut found = Vec::new();
    for table in TABLES {
        let query = format!("select exists (select from {table} where run_id = $1)");
        let row = sqlx::query(AssertSqlSafe(query)).bind(run.0).fetch_one(&mut *postgres).await.unwrap();
        if row.get(0) {
            found.push(table);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_runs_go_with_all_that_belongs_to_them_and_others_stay() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let retention = stack.engine(Role::Scheduler).await.unwrap().retention();
    let mut postgres = stack.postgres().await.unwrap();
    let (ended, recent, open) = (RunId::mint(), RunId::mint(), RunId::mint());
    for run in [ended, recent, open] {
        ingress.submit(run, create("end"), "create", Cause::default()).await.unwrap();
        for number in 0..20 {
            ingress.submit(run, message("more"), format!("m{number}"), Cause::default()).await.unwrap();
        }
        let fill = "
            with c as (insert into checkpoints values ($1, 1, 1, '{}')),
                 a as (insert into approvals (approval_id, run_id, tenant, question, binding, trust, reasons, state,
                                              requested_at, expires_at)
                       values (gen_random_uuid(), $1, 'default', '?', '{}', 'system', '[]', 'granted', now(), now())),
                 f as (insert into artifacts values (gen_random_uuid(), 1, $1, 'default', 'n', 'd', 1, 't', 'system', now())),
                 o as (insert into observer_checkpoints values (gen_random_uuid(), $1, 1, '{}'))
            insert into signal_segments values (gen_random_uuid(), 0, 1, 0, 1, $1, 'default', 'k')";
        sqlx::query(fill).bind(run.0).execute(&mut postgres).await.unwrap();
    }
    let cancel = || Command::Cancel(ByOperator { by: "ann".into(), reason: None });
    for run in [ended, recent] {
        ingress.submit(run, cancel(), "cancel", Cause::default()).await.unwrap();
    }
    let age = "update runs set updated_at = now() - interval '2 days' where run_id = any ($1)";
    sqlx::query(age).bind(vec![ended.0, open.0]).execute(&mut postgres).await.unwrap();
    let before = tables_with(&mut postgres, open).await;

    // At once it is gone for whoever asks, and in small steps its log.
    let mut steps = vec![retention.remove_ended_runs(None, DAY, 10).await.unwrap()];
    assert_eq!((steps[0].runs, steps[0].rows, steps[0].next), (1, 20, None));
    assert!(ingress.load(ended).await.unwrap().is_none());
    assert_eq!(tables_with(&mut postgres, ended).await, ["events", "inbox", "removed_runs"]);
    while steps.last().is_some_and(|step| step.rows > 0) {
        steps.push(retention.remove_ended_runs(None, DAY, 10).await.unwrap());
    }
    assert_eq!(steps.iter().map(|step| step.runs).sum::<u64>(), 1);
    assert!(tables_with(&mut postgres, ended).await.is_empty());
    assert_eq!(tables_with(&mut postgres, open).await, before);
    assert!(ingress.load(recent).await.unwrap().is_some());
    // What was published goes on being swept, though there is nothing left to say of the run.
    ingress.outbox().sweep(Duration::ZERO, 100).await.unwrap();
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_memories_at_the_same_time_hears_of_their_own() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let memories = stack.engine(Role::Planner).await.unwrap().memories();
    for tenant in ["has-one", "has-two"] {
        sqlx::query(
            "insert into memories (memory_id, tenant, scope, owner, key, text, trust, source, written_by, written_at)
             values (gen_random_uuid(), $1, 'tenant', '', 'k', 'they rise early', 'operator', 'api', 'operator:ann', now())",
        )
        .bind(tenant)
        .execute(&mut postgres)
        .await
        .unwrap();
    }
    let asked = (0..200).map(|each| {
        let memories = memories.clone();
        let tenant: TenantId = ["has-one", "none", "has-two", "nothing"][each % 4].parse().unwrap();
        tokio::spawn(async move {
            if each % 7 == 0 {
                // Who gives up must not take the others' answers along.
                let _ = tokio::time::timeout(Duration::from_micros(200), memories.any(&tenant)).await;
            }
            (memories.any(&tenant).await.unwrap(), tenant)
        })
    });
    for (any, tenant) in futures::future::try_join_all(asked).await.unwrap() {
        assert_eq!(any, tenant.as_str().starts_with("has"), "{tenant}");
    }
    stack.close().await.unwrap();
}
