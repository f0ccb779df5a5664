//! Reads: by tenant, in pages that neither repeat nor skip, and what nobody has taken up.

use std::{collections::BTreeSet, time::Duration};

use engine::{Engine, ReadError, RunFilter, RunRow, testing::TestStack};
use kernel::{
    ApprovalId, ArtifactId, Cause, Command, EventData, Role, RunId, Status, TenantId, Timestamp, wait::WakeKind,
};

use crate::core::{create, message, wait_for_forge};

fn create_for(tenant: &str, agent: &str, objective: &str) -> Command {
    let Command::Create(mut run) = create(objective) else { unreachable!("create makes a creation") };
    run.created.tenant = tenant.parse().unwrap();
    run.created.agent = agent.into();
    Command::Create(run)
}

async fn new_run(ingress: &Engine, command: Command) -> RunId {
    let run = RunId::mint();
    ingress.submit(run, command, "create", Cause::default()).await.unwrap();
    run
}

fn ids(rows: &[RunRow]) -> Vec<RunId> {
    rows.iter().map(|row| row.run_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_neither_repeat_nor_skip_while_runs_are_created() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let tenant = TenantId::default();
    let made = (0..25).map(|n| new_run(&ingress, create(&format!("run {n}"))));
    let made: BTreeSet<RunId> = futures::future::join_all(made).await.into_iter().collect();
    // Some at the very same time: then the id decides.
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query("update runs set created_at = date_trunc('minute', created_at)").execute(&mut postgres).await.unwrap();

    let reads = ingress.reads();
    let mut filter = RunFilter { limit: 10, ..RunFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = reads.runs(&tenant, &filter).await.unwrap();
        seen.extend(ids(&page.items));
        new_run(&ingress, create("made while paging")).await;
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 25);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), made);
    filter.cursor = Some("nonsense".into());
    assert!(matches!(reads.runs(&tenant, &filter).await, Err(ReadError::Cursor(_))));
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_narrowed_by_what_is_asked() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let planner = stack.engine(Role::Planner).await.unwrap();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let waiting = new_run(&ingress, create_for("default", "keeper", "Merge 100% of Pulls")).await;
    let begun = Timestamp::now();
    let open = new_run(&ingress, create_for("default", "writer", "write it")).await;
    let theirs = new_run(&ingress, create_for("other", "keeper", "merge pulls")).await;
    let state = planner.load(waiting).await.unwrap().unwrap();
    planner.submit(waiting, wait_for_forge(&state, "pull/1", Some("data.ok")), "t", Cause::default()).await.unwrap();

    let reads = ingress.reads();
    let mut last = reads.last_events(&[theirs, waiting, RunId::mint()]).await.unwrap();
    last.sort_unstable();
    let seq = planner.load(waiting).await.unwrap().unwrap().seq;
    assert_eq!(last, [(waiting, seq), (theirs, ingress.load(theirs).await.unwrap().unwrap().seq)]);
    let list = |filter: RunFilter| {
        let (reads, tenant) = (reads.clone(), tenant.clone());
        async move { ids(&reads.runs(&tenant, &filter).await.unwrap().items) }
    };
    let all = RunFilter::default;
    assert_eq!(list(all()).await, [open, waiting]);
    assert_eq!(list(RunFilter { status: Some(Status::Waiting), ..all() }).await, [waiting]);
    assert_eq!(list(RunFilter { agent: Some("writer".into()), ..all() }).await, [open]);
    assert_eq!(list(RunFilter { wake: Some(WakeKind::External), ..all() }).await, [waiting]);
    assert_eq!(list(RunFilter { wake: Some(WakeKind::Timer), ..all() }).await, []);
    assert_eq!(list(RunFilter { q: Some("100% of pulls".into()), ..all() }).await, [waiting]);
    assert_eq!(list(RunFilter { q: Some("%".into()), agent: Some("writer".into()), ..all() }).await, []);
    assert_eq!(list(RunFilter { q: Some(open.to_string()), ..all() }).await, [open]);
    assert_eq!(list(RunFilter { since: Some(begun), ..all() }).await, [open]);
    assert_eq!(ids(&reads.runs(&other, &all()).await.unwrap().items), [theirs]);

    let row = reads.run(&tenant, waiting).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.spent.turns, row.wake_kinds.as_slice()),
        (Status::Waiting, 1, &[WakeKind::External][..])
    );
    assert!(row.waiting_since.is_some() && row.turn_id.is_none());
    assert!(reads.run(&other, waiting).await.unwrap().is_none(), "another tenant's run does not exist");
    assert!(serde_json::to_value(&row).unwrap()["metadata"].is_object());

    let board = reads.waits(&tenant, None, 10, None).await.unwrap().items;
    assert_eq!(board.len(), 1);
    assert_eq!((board[0].run_id, board[0].kind, board[0].agent.as_str()), (waiting, WakeKind::External, "keeper"));
    assert_eq!(board[0].resource_key.as_deref(), Some("forge:pull/1"));
    assert!(reads.waits(&tenant, Some(WakeKind::Timer), 10, None).await.unwrap().items.is_empty());
    assert!(reads.waits(&other, None, 10, None).await.unwrap().items.is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_board_shows_calls_and_questions_that_have_no_wait_of_their_own() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let run = new_run(&ingress, create("ask and call")).await;
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query(
        "update runs set status = 'waiting', waiting_since = now(), wake_kinds = '{task_result,operator_input}'",
    )
    .execute(&mut postgres)
    .await
    .unwrap();
    let board = ingress.reads().waits(&TenantId::default(), None, 10, None).await.unwrap().items;
    let kinds: BTreeSet<_> = board.iter().map(|wait| wait.kind).collect();
    assert_eq!(kinds, BTreeSet::from([WakeKind::TaskResult, WakeKind::OperatorInput]));
    assert!(board.iter().all(|wait| wait.run_id == run && wait.wait_id.is_none()));
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_board_is_read_page_by_page_whatever_begins_to_wait_meanwhile() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let (tenant, reads) = (TenantId::default(), ingress.reads());
    for number in 0..5 {
        new_run(&ingress, create(&format!("wait {number}"))).await;
    }
    let mut postgres = stack.postgres().await.unwrap();
    // All at one time, some for two things: neither the time nor the run tells them apart.
    sqlx::query(
        "update runs set status = 'waiting', waiting_since = '2026-01-31 12:00Z', wake_kinds = '{timer,task_result}'",
    )
    .execute(&mut postgres)
    .await
    .unwrap();
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = reads.waits(&tenant, None, 3, cursor.as_deref()).await.unwrap();
        seen.extend(page.items.iter().map(|wait| (wait.run_id, wait.kind)));
        let Some(next) = page.next else { break };
        cursor = Some(next);
        new_run(&ingress, create("one more")).await;
        let later = "update runs set status = 'waiting', waiting_since = now(), wake_kinds = '{timer}' where status = 'runnable'";
        sqlx::query(later).execute(&mut postgres).await.unwrap();
    }
    assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>().len()), (10, 10), "{seen:?}");
    assert!(reads.waits(&tenant, None, 3, Some("nonsense")).await.is_err());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_read_in_order_from_any_place() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let (tenant, reads) = (TenantId::default(), ingress.reads());
    let run = new_run(&ingress, create("talk")).await;
    let cause = Cause { service: "ingress".into(), operator: Some("ann".into()), ..Cause::default() };
    ingress.submit(run, message("hello"), "m1", cause).await.unwrap();
    let all = reads.events(&tenant, run, 0, 100).await.unwrap();
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(all[0].event_type, "run.created");
    assert_eq!(all[2].cause.operator.as_deref(), Some("ann"));
    assert!(matches!(all[2].decode().unwrap().data, EventData::MessageAdded(_)));
    let tail = reads.events(&tenant, run, 1, 1).await.unwrap();
    assert_eq!(tail.iter().map(|event| event.seq).collect::<Vec<_>>(), [2]);
    assert!(reads.events(&tenant, run, u64::MAX, 1).await.unwrap().is_empty());
    assert!(reads.events(&"other".parse().unwrap(), run, 0, 1).await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_and_artifacts_show_to_their_tenant_only() {
    let stack = TestStack::new().await.unwrap();
    let reads = stack.engine(Role::Ingress).await.unwrap().reads();
    let (tenant, other) = (TenantId::default(), "other".parse::<TenantId>().unwrap());
    let (approval, artifact, run) = (ApprovalId::mint(), ArtifactId::mint(), RunId::mint());
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query(
        r#"insert into approvals (approval_id, run_id, tenant, tool, question, arguments, binding, trust, reasons, state,
                                  requested_at, expires_at)
           values ($1, $2, 'default', 'github.merge', 'may I?', '{"number":7}', '{"arguments":"a","schema":"s","policy":"p"}',
                   'untrusted', '["it moves things"]', 'open', now(), now())"#,
    )
    .bind(approval.0)
    .bind(run.0)
    .execute(&mut postgres)
    .await
    .unwrap();
    for version in 1..=2 {
        sqlx::query(
            "insert into artifacts (artifact_id, version, run_id, tenant, name, digest, bytes, media_type, trust, created_at)
             values ($1, $2, $3, 'default', 'report.md', 'd', 12, 'text/markdown', 'system', now())",
        )
        .bind(artifact.0)
        .bind(version)
        .bind(run.0)
        .execute(&mut postgres)
        .await
        .unwrap();
    }
    let row = reads.approval(&tenant, approval).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.binding.policy.as_str(), row.reasons.len()), ("open", "p", 1));
    assert_eq!(row.arguments.unwrap().get(), r#"{"number":7}"#);
    assert_eq!(reads.approvals(&tenant, Some("open"), 10).await.unwrap().len(), 1);
    let page = reads.approval_page(&tenant, None, 1, None).await.unwrap();
    assert_eq!((page.items.len(), page.next), (1, None), "there is no second page");
    assert!(reads.approvals(&tenant, Some("granted"), 10).await.unwrap().is_empty());
    assert!(reads.approvals(&other, None, 10).await.unwrap().is_empty());
    assert!(reads.approval(&other, approval).await.unwrap().is_none());

    let versions = reads.artifacts(&tenant, run).await.unwrap();
    assert_eq!(versions.iter().map(|row| row.artifact.version).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(reads.artifact(&tenant, artifact, None).await.unwrap().unwrap().artifact.version, 2);
    assert_eq!(reads.artifact(&tenant, artifact, Some(1)).await.unwrap().unwrap().artifact.version, 1);
    assert!(reads.artifact(&tenant, artifact, Some(u32::MAX)).await.unwrap().is_none());
    assert!(reads.artifact(&other, artifact, None).await.unwrap().is_none());
    assert!(reads.artifacts(&other, run).await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_taken_up_is_found() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let planner = stack.engine(Role::Planner).await.unwrap();
    let reads = stack.engine(Role::Scheduler).await.unwrap().reads();
    let open = new_run(&ingress, create("neglected")).await;
    let put_off = new_run(&ingress, create("put off")).await;
    let waiting = new_run(&ingress, create("asleep")).await;
    let state = planner.load(waiting).await.unwrap().unwrap();
    planner.submit(waiting, wait_for_forge(&state, "pull/1", None), "t", Cause::default()).await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    sqlx::query("update runs set not_before = now() + interval '1 hour' where run_id = $1")
        .bind(put_off.0)
        .execute(&mut postgres)
        .await
        .unwrap();

    assert!(reads.attention_after(None, Duration::from_secs(60), 10).await.unwrap().is_empty());
    let found = reads.attention_after(None, Duration::ZERO, 10).await.unwrap();
    assert_eq!(found.iter().map(|row| row.run_id).collect::<Vec<_>>(), [open]);
    assert!(found[0].turn_id.is_some() && found[0].status == Status::Runnable);

    let counts = reads.counts().await.unwrap();
    assert_eq!(counts.runs.get(&Status::Runnable), Some(&2));
    assert_eq!(counts.runs.get(&Status::Waiting), Some(&1));
    assert_eq!((counts.waits, counts.timers, counts.started_calls, counts.open_approvals), (1, 0, 0, 0));
    assert!(reads.started_calls_after(None, 10).await.unwrap().is_empty());
    stack.close().await.unwrap();
}
