use futures::{StreamExt as _, future::join_all};
use kernel::{
    RunId, Status, TimerId,
    event::EventData,
    wait::{Condition, WaitExpr},
};

use crate::common::{System, soon};

async fn sleeps(system: &System, millis: i64) -> RunId {
    let run = system.create(None).await;
    let timer_id = TimerId::derive(run, "nap");
    system.wait_for(run, |_| Condition::Timer { timer_id, due: soon(millis) }).await;
    run
}

/// When the one timer of a run fired, after when it was due, in milliseconds.
async fn lateness(system: &System, run: RunId) -> i128 {
    let fired = system
        .until("timer.fired", async || Some(system.events(run, "timer.fired").await).filter(|fired| !fired.is_empty()))
        .await;
    assert_eq!(fired.len(), 1, "a timer fires once");
    let EventData::TimerFired(timer) = &fired[0].data else { panic!("{:?}", fired[0]) };
    assert!(fired[0].at >= timer.due, "never early");
    fired[0].at.duration_since(timer.due).as_millis()
}

#[tokio::test]
async fn two_schedulers_fire_each_timer_once_and_on_time() {
    let system = System::new().await;
    let (first, second) = (system.scheduler(|_| {}).await, system.scheduler(|_| {}).await);
    let runs = join_all((0..60).map(|nap| sleeps(&system, 300 + nap * 5))).await;
    let mut late = join_all(runs.iter().map(|run| lateness(&system, *run))).await;
    late.sort_unstable();
    // Far more than it takes: the machine may be held up.
    assert!(late[late.len() / 4] < 15_000, "late by {late:?} ms");
    for run in runs {
        assert_eq!(system.state(run).await.status(), Status::Runnable, "the timer wakes the run");
        assert_eq!(system.events(run, "timer.fired").await.len(), 1);
    }
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn what_came_due_while_nobody_kept_time_fires_at_the_start() {
    let system = System::new().await;
    let run = sleeps(&system, 20).await;
    let later = sleeps(&system, 3_600_000).await;
    let scheduler = system.scheduler(|_| {}).await;
    lateness(&system, run).await;
    assert_eq!(system.state(later).await.status(), Status::Waiting, "an hour has not passed");
    assert!(system.events(later, "timer.fired").await.is_empty());
    scheduler.stop().await.unwrap();
    system.cancel(later).await;
    system.close().await;
}

#[tokio::test]
async fn a_scheduler_that_died_with_claims_is_stood_in_for() {
    let system = System::new().await;
    let run = sleeps(&system, 10).await;
    // As another one that claims, and never fires.
    let claimed = system
        .until("due timer", async || {
            let claim = std::time::Duration::from_millis(700);
            system.planner.timers().claim_ahead(10, std::time::Duration::ZERO, claim).await.unwrap().pop()
        })
        .await;
    assert_eq!(claimed.run_id, run);
    let scheduler = system.scheduler(|_| {}).await;
    lateness(&system, run).await;
    scheduler.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_scheduler_that_stops_gives_its_timers_back() {
    let system = System::new().await;
    let first = system.scheduler(|config| config.timer_claim_seconds = 3600).await;
    let run = sleeps(&system, 1500).await;
    let timers = system.planner.timers();
    system.until("claim", async || timers.next_due().await.unwrap().is_none().then_some(())).await;
    // On a busy machine it may be due before that one has stopped, which then still fires it; otherwise the other one can
    // only have it, an hour before the claim ends, if it was given back.
    first.stop().await.unwrap();
    let second = system.scheduler(|_| {}).await;
    lateness(&system, run).await;
    second.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn an_hour_without_any_scheduler_is_caught_up_each_timer_once() {
    let system = System::new().await;
    let runs = join_all((0..40).map(|number| sleeps(&system, -3_600_000 + number * 60_000))).await;
    let (first, second) = (system.scheduler(|_| {}).await, system.scheduler(|_| {}).await);
    for run in &runs {
        lateness(&system, *run).await;
    }
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    for run in runs {
        assert_eq!(system.events(run, "timer.fired").await.len(), 1);
        assert_eq!(system.state(run).await.status(), Status::Runnable);
    }
    system.close().await;
}

#[tokio::test]
async fn a_timer_beside_other_conditions_and_a_deadline_do_their_part() {
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let timer = |run, millis| -> WaitExpr {
        Condition::Timer { timer_id: TimerId::derive(run, "nap"), due: soon(millis) }.into()
    };
    let operator = || WaitExpr::from(Condition::OperatorInput { approval_id: None });
    let runnable = async |run| {
        system.until("a turn", async || (system.state(run).await.status() == Status::Runnable).then_some(())).await;
    };

    let any = system.create(None).await;
    system.wait(any, WaitExpr::Any(vec![operator(), timer(any, 200)]), None).await;
    runnable(any).await;
    assert_eq!(system.events(any, "wait.satisfied").await.len(), 1);

    let all = system.create(None).await;
    system.wait(all, WaitExpr::All(vec![operator(), timer(all, 200)]), None).await;
    lateness(&system, all).await;
    assert_eq!(system.state(all).await.status(), Status::Waiting, "the operator has still to write");
    system.say(all).await;
    runnable(all).await;

    let late = system.create(None).await;
    system.wait(late, WaitExpr::All(vec![operator(), timer(late, 3_600_000)]), Some(soon(200))).await;
    runnable(late).await;
    assert_eq!(system.events(late, "wait.expired").await.len(), 1);
    assert!(system.state(late).await.timers.is_empty(), "the other timer went with the wait");

    let cancelled = loop {
        let (run, due) = (system.create(None).await, soon(2_000));
        let timer = Condition::Timer { timer_id: TimerId::derive(run, "nap"), due };
        system.wait(run, timer.into(), None).await;
        system.cancel(run).await;
        // On a machine that stood still meanwhile it may have fired before.
        if soon(0) < due {
            break run;
        }
    };
    let after = sleeps(&system, 2_100).await;
    lateness(&system, after).await;
    assert!(system.events(cancelled, "timer.fired").await.is_empty(), "it went with its run");
    scheduler.stop().await.unwrap();
    system.close().await;
}

/// 10,000 timers due within a second: none is lost, none fires twice. How late they are in a build that is not optimised says
/// little; the load test measures that. Long: it makes 10,000 runs first.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_timers_due_within_a_second_all_fire_once() {
    if std::env::var_os("ESC_TEST_LONG").is_none() {
        return;
    }
    const TIMERS: i64 = 10_000;
    let system = System::new().await;
    let scheduler = system.scheduler(|_| {}).await;
    let start = soon(45_000);
    let runs: Vec<RunId> = futures::stream::iter(0..TIMERS)
        .map(async |number| {
            let run = system.create(None).await;
            let due = start.checked_add(jiff::SignedDuration::from_micros(number * 1_000_000 / TIMERS)).unwrap();
            system.wait_for(run, |_| Condition::Timer { timer_id: TimerId::derive(run, "nap"), due }).await;
            run
        })
        .buffer_unordered(128)
        .collect()
        .await;
    assert!(soon(0) < start, "the runs took too long to make");
    let mut late = Vec::new();
    for run in runs {
        late.push(lateness(&system, run).await);
    }
    late.sort_unstable();
    let (p50, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
    println!("lateness of {TIMERS} timers: p50 {p50} ms, p99 {p99} ms");
    assert!(p99 < 30_000, "p50 {p50} ms, p99 {p99} ms");
    scheduler.stop().await.unwrap();
    system.close().await;
}
