//! Timers and expired questions: each found when due, by one scheduler at a time, and again if that one died.

use std::{collections::BTreeSet, time::Duration};

use engine::testing::TestStack;
use kernel::{Cause, Role, RunId, TimerId, Timestamp, event::TimerPurpose};
use sqlx::PgConnection;

use crate::{core::create, support::eventually};

async fn set(postgres: &mut PgConnection, run: RunId, due_in_ms: i64) -> TimerId {
    let timer = TimerId::mint();
    sqlx::query(
        "insert into timers (timer_id, run_id, due, purpose) values ($1, $2, now() + $3 * interval '1 ms', 'wait')",
    )
    .bind(timer.0)
    .bind(run.0)
    .bind(due_in_ms)
    .execute(postgres)
    .await
    .unwrap();
    timer
}

#[tokio::test(flavor = "multi_thread")]
async fn many_schedulers_share_what_is_due_and_nothing_is_claimed_twice() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let run = RunId::mint();
    ingress.submit(run, create("wait"), "create", Cause::default()).await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    let mut due = BTreeSet::new();
    for number in 0..200 {
        due.insert(set(&mut postgres, run, -1000 - number).await);
    }
    set(&mut postgres, run, 3_600_000).await;

    let timers = stack.engine(Role::Scheduler).await.unwrap().timers();
    let long = Duration::from_secs(60);
    let claims = (0..30).map(|_| timers.claim_ahead(10, Duration::ZERO, long));
    let claimed: Vec<_> = futures::future::join_all(claims).await.into_iter().flat_map(Result::unwrap).collect();
    let rest = timers.claim_ahead(1000, Duration::ZERO, long).await.unwrap();
    let all: BTreeSet<_> = claimed.iter().chain(&rest).map(|timer| timer.timer_id).collect();
    assert_eq!(claimed.len() + rest.len(), 200, "none twice");
    assert_eq!(all, due);
    let timer = claimed.first().unwrap();
    assert_eq!((timer.run_id, timer.purpose, timer.tenant.as_str()), (run, TimerPurpose::Wait, "default"));
    assert!(timer.due < Timestamp::now());
    assert!(timers.claim_ahead(1000, Duration::ZERO, long).await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_scheduler_that_died_runs_out() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let run = RunId::mint();
    ingress.submit(run, create("wait"), "create", Cause::default()).await.unwrap();
    let timers = stack.engine(Role::Scheduler).await.unwrap().timers();
    assert_eq!(timers.next_due().await.unwrap(), None);

    let mut postgres = stack.postgres().await.unwrap();
    let timer = set(&mut postgres, run, -10).await;
    let later = set(&mut postgres, run, 3_600_000).await;
    assert!(timers.next_due().await.unwrap().unwrap() < Timestamp::now());
    let claimed = timers.claim_ahead(10, Duration::ZERO, Duration::from_millis(200)).await.unwrap();
    assert_eq!(claimed.iter().map(|claim| claim.timer_id).collect::<Vec<_>>(), [timer]);
    let next = timers.next_due().await.unwrap().unwrap();
    assert!(
        next < Timestamp::now() + Duration::from_secs(1),
        "the end of the claim comes before what is due in an hour"
    );
    let again = eventually(|| async {
        timers.claim_ahead(10, Duration::ZERO, Duration::from_secs(60)).await.unwrap().into_iter().next()
    })
    .await;
    assert_eq!(again.timer_id, timer);

    sqlx::query("delete from timers where timer_id = $1").bind(timer.0).execute(&mut postgres).await.unwrap();
    let next = timers.next_due().await.unwrap().unwrap();
    assert!(next > Timestamp::now() + Duration::from_secs(3000));
    sqlx::query("delete from timers where timer_id = $1").bind(later.0).execute(&mut postgres).await.unwrap();
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_soon_due_can_be_claimed_ahead_and_given_back() {
    let stack = TestStack::new().await.unwrap();
    let ingress = stack.engine(Role::Ingress).await.unwrap();
    let run = RunId::mint();
    ingress.submit(run, create("wait"), "create", Cause::default()).await.unwrap();
    let timers = stack.engine(Role::Scheduler).await.unwrap().timers();
    let mut postgres = stack.postgres().await.unwrap();
    let due = set(&mut postgres, run, -10).await;
    let soon = set(&mut postgres, run, 30_000).await;
    let later = set(&mut postgres, run, 3_600_000).await;
    let (minute, long) = (Duration::from_secs(60), Duration::from_secs(600));
    let claimed = timers.claim_ahead(10, minute, long).await.unwrap();
    assert_eq!(claimed.iter().map(|claim| claim.timer_id).collect::<Vec<_>>(), [due, soon]);
    assert!(timers.claim_ahead(10, minute, long).await.unwrap().is_empty());
    timers.release(&[soon]).await.unwrap();
    assert_eq!(timers.next_due().await.unwrap(), Some(claimed[1].due));
    assert_eq!(timers.claim_ahead(10, minute, long).await.unwrap(), claimed[1..]);
    for timer in [due, soon, later] {
        sqlx::query("delete from timers where timer_id = $1").bind(timer.0).execute(&mut postgres).await.unwrap();
    }
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_open_questions_expire() {
    let stack = TestStack::new().await.unwrap();
    let mut postgres = stack.postgres().await.unwrap();
    for (state, minutes) in [("open", -2), ("open", -1), ("open", 60), ("granted", -1)] {
        sqlx::query(
            "insert into approvals (approval_id, run_id, tenant, question, binding, trust, reasons, state, requested_at,
                                    expires_at)
             values (gen_random_uuid(), gen_random_uuid(), 'default', 'may I?', '{}', 'system', '[]', $1,
                     now() - interval '1 day', now() + $2 * interval '1 minute')",
        )
        .bind(state)
        .bind(minutes)
        .execute(&mut postgres)
        .await
        .unwrap();
    }
    let timers = stack.engine(Role::Approval).await.unwrap().timers();
    let due = timers.due_approvals(10).await.unwrap();
    assert_eq!(due.len(), 2);
    assert!(due[0].expires_at < due[1].expires_at && due[1].expires_at < Timestamp::now());
    assert_eq!(timers.due_approvals(1).await.unwrap(), due[..1]);
    stack.close().await.unwrap();
}
