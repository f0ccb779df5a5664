//! Leases: one holder at a time, kept as long as wanted, and known to be lost when they are.

use std::time::{Duration, Instant};

use engine::testing::TestStack;
use kernel::Role;

use crate::support::{eventually, redis};

const LONG: Duration = Duration::from_secs(30);
/// Renewed three times in it: long enough for a machine that is held up to come to that.
const KEPT: Duration = Duration::from_secs(9);
/// Soon over.
const SHORT: Duration = Duration::from_secs(3);
/// How long anything may take before a test fails.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_holder_until_it_is_released() {
    let stack = TestStack::new().await.unwrap();
    let leases = stack.engine(Role::Planner).await.unwrap().leases();
    let rivals = (0..20).map(|n| {
        let leases = leases.clone();
        async move { leases.acquire("turn/1", &format!("planner-{n}"), LONG).await.unwrap() }
    });
    let mut held: Vec<_> = futures::future::join_all(rivals).await.into_iter().flatten().collect();
    assert_eq!(held.len(), 1);
    assert_eq!(leases.held_many(&["turn/1", "turn/2"]).await.unwrap(), [true, false]);
    assert_eq!(leases.held_many::<&str>(&[]).await.unwrap(), [false; 0]);

    held.remove(0).release().await;
    assert!(!leases.is_held("turn/1").await.unwrap(), "released means that it is free by now");
    let dropped = leases.acquire("turn/1", "planner-x", LONG).await.unwrap().unwrap();
    drop(dropped);
    eventually(|| async { leases.acquire("turn/1", "planner-y", LONG).await.unwrap() }).await.release().await;
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_its_time_as_long_as_it_is_wanted() {
    let stack = TestStack::new().await.unwrap();
    let leases = stack.engine(Role::Planner).await.unwrap().leases();
    let lease = leases.acquire("call/1", "executor", KEPT).await.unwrap().unwrap();
    let key = format!("{}:esc:lease:call/1", stack.namespace());
    let mut redis = redis().await;
    // Its time only goes up when it is renewed: that goes on, and nobody else gets it.
    let renewed_twice = async {
        let (mut renewed, mut left) = (0, i64::MAX);
        while renewed < 2 {
            let now: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
            renewed += u32::from(now > left);
            left = now;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, renewed_twice).await.expect("it is renewed");
    assert!(leases.acquire("call/1", "other", KEPT).await.unwrap().is_none());
    assert!(!lease.is_lost());
    lease.release().await;
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_redis_does_not_take_a_lease_but_somebody_else_does() {
    let stack = TestStack::new().await.unwrap();
    let leases = stack.engine(Role::Planner).await.unwrap().leases();
    let lease = leases.acquire("observer/3", "observer-a", KEPT).await.unwrap().unwrap();
    let key = format!("{}:esc:lease:observer/3", stack.namespace());
    let mut redis = redis().await;

    redis::cmd("DEL").arg(&key).query_async::<()>(&mut redis).await.unwrap();
    eventually(|| async { leases.is_held("observer/3").await.unwrap().then_some(()) }).await;
    assert!(!lease.is_lost());

    redis::cmd("SET").arg(&key).arg("observer-b/token").query_async::<()>(&mut redis).await.unwrap();
    tokio::time::timeout(DEADLINE, lease.lost()).await.unwrap();
    assert!(lease.is_lost());
    lease.release().await;
    let holder: String = redis::cmd("GET").arg(&key).query_async(&mut redis).await.unwrap();
    assert_eq!(holder, "observer-b/token", "what is lost is not given up for the new holder");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_for_something_is_taken_over_by_whoever_works_for_it() {
    let stack = TestStack::new().await.unwrap();
    let leases = stack.engine(Role::ToolExecutor).await.unwrap().leases();
    let first = leases.acquire_for("lock/a", "call-1", LONG).await.unwrap().unwrap();
    assert!(leases.acquire_for("lock/a", "call-2", LONG).await.unwrap().is_none());
    assert!(leases.acquire("lock/a", "call-1", LONG).await.unwrap().is_none());
    let second = leases.acquire_for("lock/a", "call-1", LONG).await.unwrap().unwrap();
    second.release().await;
    leases.acquire_for("lock/a", "call-2", LONG).await.unwrap().unwrap().release().await;
    first.release().await;
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_left_runs_out_by_itself() {
    let stack = TestStack::new().await.unwrap();
    let leases = stack.engine(Role::Planner).await.unwrap().leases();
    let begun = Instant::now();
    leases.acquire("turn/1", "planner", SHORT).await.unwrap().unwrap().leave();
    let held = leases.is_held("turn/1").await.unwrap();
    // On a machine that is held up it may have run out by now.
    assert!(held || begun.elapsed() >= SHORT, "nobody gave it up");
    eventually(|| async { leases.acquire("turn/1", "another", SHORT).await.unwrap() }).await.release().await;
    stack.close().await.unwrap();
}
