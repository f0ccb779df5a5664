//! The audit is content with what the engine writes, and sees what is broken on purpose.

use std::{collections::BTreeSet, time::Duration};

use engine::{AuditOptions, AuditReport, Engine, audit, testing, testing::TestStack};
use kernel::{
    ApprovalId, Block, Cause, Command, Role, RunId, TenantId, Timestamp, Trust,
    call::{Approval, Binding, Verdict},
    command::DecideApproval,
};
use sqlx::{AssertSqlSafe, Executor};

use crate::core::{create, forge_event, message, wait_for_forge};

async fn audited(stack: &TestStack, settled: bool) -> AuditReport {
    let options = AuditOptions {
        database_url: testing::database_url(),
        schema: stack.schema().to_owned(),
        redis_url: testing::redis_url(),
        namespace: stack.namespace().to_owned(),
        settled,
        grace: Duration::ZERO,
    };
    audit(&options).await.unwrap()
}

fn rules(report: &AuditReport) -> BTreeSet<&str> {
    report.violations.iter().map(|violation| violation.rule.as_str()).collect()
}

/// A run that was written to, and waits for the forge.
async fn waiting_run(ingress: &Engine, planner: &Engine) -> RunId {
    let run = RunId::mint();
    ingress.submit(run, create("to be audited"), "create", Cause::default()).await.unwrap();
    ingress.submit(run, message("hello"), "message", Cause::default()).await.unwrap();
    let state = planner.load(run).await.unwrap().unwrap();
    planner.submit(run, wait_for_forge(&state, &format!("pull/{run}"), None), "turn", Cause::default()).await.unwrap();
    run
}

/// Two waiting runs, their snapshots written, and nothing under way.
async fn two_runs(stack: &TestStack) -> (RunId, RunId) {
    let (ingress, planner) = (stack.engine(Role::Ingress).await.unwrap(), stack.engine(Role::Planner).await.unwrap());
    let runs = (waiting_run(&ingress, &planner).await, waiting_run(&ingress, &planner).await);
    drain(stack, [&ingress, &planner]).await;
    runs
}

/// Snapshots are written and events published; the outbox would keep them a little longer.
async fn drain(stack: &TestStack, engines: [&Engine; 2]) {
    for engine in engines {
        engine.drain().await;
    }
    spoil(stack, "delete from outbox".to_owned()).await;
}

async fn spoil(stack: &TestStack, sql: String) {
    stack.postgres().await.unwrap().execute(AssertSqlSafe(sql)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_engine_writes_is_sound() {
    let stack = TestStack::new().await.unwrap();
    two_runs(&stack).await;
    for settled in [false, true] {
        let report = audited(&stack, settled).await;
        assert_eq!(report.violations, [], "{settled}");
        assert_eq!(report.runs, 2);
        assert!(report.events >= 10, "{report:?}");
    }
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_derived_is_compared_with_the_log() {
    let stack = TestStack::new().await.unwrap();
    let (first, second) = two_runs(&stack).await;
    spoil(&stack, format!("update runs set turns = 7, attention = true where run_id = '{first}'")).await;
    spoil(&stack, format!("update waits set filter = 'true' where run_id = '{first}'")).await;
    spoil(&stack, format!("delete from waits where run_id = '{second}'")).await;
    spoil(&stack, format!("insert into timers values ('{first}', '{second}', now(), 'wall', null)")).await;
    spoil(&stack, format!("insert into inbox (run_id, key) values ('{}', 'nobody')", RunId::mint())).await;
    let report = audited(&stack, false).await;
    let wanted = ["inbox.orphan", "runs.differs", "timers.left", "waits.differs", "waits.missing"];
    assert_eq!(rules(&report), BTreeSet::from(wanted), "{report:#?}");
    let of_runs = report.violations.iter().find(|violation| violation.rule == "runs.differs").unwrap();
    assert_eq!(of_runs.run_id, Some(first));
    assert!(of_runs.detail.contains("attention is true, not false; turns is 7, not 1"), "{of_runs:?}");
    let _spoiled = stack.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_tampered_with_does_not_pass() {
    let stack = TestStack::new().await.unwrap();
    let (first, second) = two_runs(&stack).await;
    let other_words =
        "update events set data = replace(data::text, 'hello', 'howdy')::json where type = 'message.added'";
    spoil(&stack, format!("{other_words} and run_id = '{first}'")).await;
    spoil(&stack, format!("delete from events where type = 'message.added' and run_id = '{second}'")).await;
    let report = audited(&stack, false).await;
    let of =
        |run| report.violations.iter().filter(|each| each.run_id == Some(run)).map(|each| each.rule.as_str()).collect();
    let (first, second): (BTreeSet<&str>, BTreeSet<&str>) = (of(first), of(second));
    assert_eq!(first, BTreeSet::from(["snapshot.differs"]), "{report:#?}");
    assert!(second.contains("log.gapless"), "{report:#?}");
    let _spoiled = stack.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_all_is_quiet_a_lost_wake_is_seen() {
    let stack = TestStack::new().await.unwrap();
    let (ingress, planner) = (stack.engine(Role::Ingress).await.unwrap(), stack.engine(Role::Planner).await.unwrap());
    let run = waiting_run(&ingress, &planner).await;
    // Recorded, and then nobody brings it to the wait.
    let event = forge_event("e1", &format!("pull/{run}"), true);
    ingress.externals().record(&TenantId::default(), "forge", &event, None).await.unwrap();
    // And a run whose turn nobody takes.
    let idle = RunId::mint();
    ingress.submit(idle, create("to be forgotten"), "create", Cause::default()).await.unwrap();
    drain(&stack, [&ingress, &planner]).await;
    assert_eq!(audited(&stack, false).await.violations, []);
    let report = audited(&stack, true).await;
    let found: BTreeSet<_> = report.violations.iter().map(|each| (each.run_id, each.rule.as_str())).collect();
    let wanted =
        [(None, "settled.undispatched"), (Some(idle), kernel::audit::rules::SETTLED), (Some(run), "settled.lost_wake")];
    assert_eq!(found, BTreeSet::from(wanted), "{report:#?}");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_yes_of_two_stands_beside_the_log_as_it_is_in_it() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let executor = stack.engine(Role::ToolExecutor).await.unwrap();
    let people = stack.engine(Role::Approval).await.unwrap();
    let (run, approval_id) = (RunId::mint(), ApprovalId::mint());
    ingress.submit(run, create("to be agreed to"), "create", Cause::default()).await.unwrap();
    let question = Approval {
        approval_id,
        call_id: None,
        question: Block::new("may it?", Trust::System, "policy"),
        tool: None,
        arguments: None,
        binding: Binding::default(),
        trust: Trust::System,
        reasons: Vec::new(),
        two_people: true,
        shown: Default::default(),
        expires_at: Timestamp::now() + jiff::SignedDuration::from_hours(1),
    };
    executor.submit(run, Command::AskApproval(Box::new(question)), "ask", Cause::default()).await.unwrap();
    let agree = async |by: &str| {
        let decision = DecideApproval {
            approval_id,
            verdict: Verdict::Approve,
            edited: None,
            reason: None,
            by: by.to_owned(),
            aliases: vec!["root".to_owned()],
            standing: None,
        };
        people.submit(run, Command::DecideApproval(decision), by, Cause::default()).await
    };
    let first = agree("ann").await.unwrap();
    let row = people.reads().approval_by_id(approval_id).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.two_people), ("open", true));
    assert_eq!(row.endorsed.as_ref(), first.state.endorsed.get(&approval_id), "as it is in the log");
    assert!(agree("root").await.is_err(), "who made ann's token");
    let again = agree("ann").await.unwrap();
    assert!(again.duplicate, "the same request is heard once");
    drain(&stack, [&executor, &people]).await;
    assert_eq!(audited(&stack, false).await.violations, []);
    spoil(&stack, "update approvals set endorsed = null".to_owned()).await;
    assert_eq!(rules(&audited(&stack, false).await), BTreeSet::from(["approvals.differs"]));
    let _spoiled = stack.close().await;
}
