//! The kill switch: what is frozen does not start, whoever is at it.

use engine::{Engine, FreezeScope, SubmitError, testing::TestStack};
use futures::future::join_all;
use kernel::{
    CallId, Cause, Command, Rejection, Role, RunId, TenantId, Trust,
    call::{Binding, CallRequest},
    command::{StartCall, TurnOutcome},
    tool::{CallKind, Effect},
    units::Duration,
};
use sqlx::Row;

use crate::core::{create, wait_for_forge};

struct World {
    stack: TestStack,
    ingress: Engine,
    planner: Engine,
    executor: Engine,
}

impl World {
    async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        let executor = stack.engine(Role::ToolExecutor).await.unwrap();
        Self { stack, ingress, planner, executor }
    }

    /// A run that has asked for a call with an effect.
    async fn run_with_call(&self, tool: &str) -> (RunId, CallId) {
        let run = RunId::mint();
        self.ingress.submit(run, create("freeze"), "create", Cause::default()).await.unwrap();
        let state = self.planner.load(run).await.unwrap().unwrap();
        let Command::CommitTurn(outcome) = wait_for_forge(&state, "none", None) else { unreachable!() };
        let call = CallRequest {
            call_id: CallId::derive(run, "call"),
            tool: tool.into(),
            arguments: serde_json::json!({}),
            kind: CallKind::Call,
            effect: Effect::External,
            idempotent: false,
            schema_digest: "s".into(),
            trust: Trust::Operator,
            timeout: Duration::from_secs(5),
            compensation: Default::default(),
        };
        let call_id = call.call_id;
        let outcome = Command::CommitTurn(Box::new(TurnOutcome { wait: None, calls: vec![call], ..*outcome }));
        self.planner.submit(run, outcome, "turn", Cause::default()).await.unwrap();
        (run, call_id)
    }

    async fn start(&self, (run, call_id): (RunId, CallId), key: &str) -> Result<engine::Committed, SubmitError> {
        let binding = Binding::default();
        let start = Command::StartCall(StartCall { call_id, executor: "one".into(), binding });
        self.executor.submit(run, start, key, Cause::default()).await
    }

    async fn freeze(&self, scope: &str, on: bool) {
        let scope: FreezeScope = scope.parse().unwrap();
        self.ingress.freezes().set(&TenantId::default(), &scope, on, "ann", Some("a test")).await.unwrap();
    }
}

fn is_frozen(result: &Result<engine::Committed, SubmitError>) -> bool {
    matches!(result, Err(SubmitError::Rejected(Rejection::Frozen)))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_scope_stops_what_it_names_and_nothing_else() {
    let world = World::new().await;
    for (scope, stops) in [
        ("all", true),
        ("tenant", true),
        ("agent:tester", true),
        ("tool:forge.merge", true),
        ("agent:other", false),
        ("tool:forge.close", false),
    ] {
        let call = world.run_with_call("forge.merge").await;
        world.freeze(scope, true).await;
        let state = world.planner.load(call.0).await.unwrap().unwrap();
        let holds = world.executor.freezes().holds(&state, "forge.merge").await.unwrap();
        assert_eq!(holds.is_some(), stops, "{scope}");
        let started = world.start(call, "start").await;
        assert_eq!(is_frozen(&started), stops, "{scope}: {started:?}");
        let in_force = world.ingress.freezes().in_force(&TenantId::default()).await.unwrap();
        assert_eq!(in_force.iter().map(|freeze| freeze.scope.to_string()).collect::<Vec<_>>(), [scope]);
        world.freeze(scope, false).await;
        // The same delivery, once it may: it was not handled before.
        if stops {
            assert_eq!(world.start(call, "start").await.unwrap().events.len(), 1, "{scope}");
        }
    }
    assert!(world.ingress.freezes().in_force(&TenantId::default()).await.unwrap().is_empty());
    let elsewhere =
        world.ingress.freezes().set(&"acme".parse().unwrap(), &FreezeScope::Tenant, true, "bob", None).await;
    assert!(elsewhere.unwrap().version > 12, "every change has a number of its own");
    let call = world.run_with_call("forge.merge").await;
    assert!(world.start(call, "start").await.is_ok(), "another tenant's");
    world.stack.close().await.unwrap();
}

/// Starts and the switch race each other: whatever is started is in the log before the switch was on.
#[tokio::test(flavor = "multi_thread")]
async fn no_start_is_committed_after_the_switch_was_thrown() {
    let world = World::new().await;
    let mut thrown_between = 0;
    for _ in 0..10 {
        let calls = join_all((0..24).map(|_| world.run_with_call("forge.merge"))).await;
        let starts = join_all(calls.iter().map(async |call| {
            tokio::time::sleep(std::time::Duration::from_micros(u64::from(call.0.0.as_bytes()[15]) * 40)).await;
            world.start(*call, "start").await
        }));
        let thrown = async {
            tokio::time::sleep(std::time::Duration::from_millis(4)).await;
            world.freeze("tenant", true).await;
            // What is in the log as started when the switch is on is all that ever will be.
            let mut postgres = world.stack.postgres().await.unwrap();
            let count = "select count(*) from events where type = 'tool.started'";
            sqlx::query(count).fetch_one(&mut postgres).await.unwrap().get::<i64, _>(0)
        };
        let (started, at_that_time) = tokio::join!(starts, thrown);
        let ok = started.iter().filter(|started| started.is_ok()).count();
        assert_eq!(ok + started.iter().filter(|started| is_frozen(started)).count(), 24);
        thrown_between += usize::from(0 < ok && ok < 24);
        let mut postgres = world.stack.postgres().await.unwrap();
        let count = "select count(*) from events where type = 'tool.started'";
        let after: i64 = sqlx::query(count).fetch_one(&mut postgres).await.unwrap().get(0);
        assert_eq!(after, at_that_time);
        world.freeze("tenant", false).await;
    }
    println!("the switch fell between two starts in {thrown_between} of 10 rounds");
    world.stack.close().await.unwrap();
}
