//! Schedules: decided once, however many keep time, whatever clocks do, and whoever changes them meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::{
    Begin, FiringKind, FiringOutcome, FiringState, Maker, PutScheduleError, Schedules, SoundSchedule, parse_schedule,
    testing::TestStack,
};
use kernel::{Cause, Command, Role, TenantId, Timestamp, Trust, command::ByOperator};

use crate::core::create;

const MOST: u32 = 2;

fn ann() -> Maker {
    Maker { by: "operator:ann".into(), agent: None, trust: Trust::Operator }
}

fn agent(name: &str) -> Maker {
    Maker { by: "run:1".into(), agent: Some(name.into()), trust: Trust::Untrusted }
}

fn sound(name: &str, cron: &str, more: &str) -> SoundSchedule {
    let text = format!("name: {name}\ncron: \"{cron}\"\nstart: {{ agent: tester, input: do it }}\n{more}\n");
    parse_schedule(&text, Timestamp::now()).unwrap()
}

fn tenant() -> TenantId {
    TenantId::default()
}

fn after(at: Timestamp, seconds: u64) -> Timestamp {
    at.checked_add(Duration::from_secs(seconds)).unwrap()
}

async fn schedules(stack: &TestStack) -> Schedules {
    stack.engine(Role::Scheduler).await.unwrap().schedules()
}

/// The times that begin when `now` is looked at by several at once.
async fn begun(schedules: &Schedules, now: Timestamp) -> Vec<Begin> {
    let looks = (0..8).map(|_| schedules.decide(now, 10));
    let decided = futures::future::join_all(looks).await;
    decided.into_iter().flat_map(|decided| decided.unwrap().begin).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_schedulers_begin_each_firing_once_and_again_if_nobody_finished() {
    let stack = TestStack::new().await.unwrap();
    let schedules = schedules(&stack).await;
    let stored = schedules.put(&tenant(), &sound("tick", "* * * * * *", "overlap: allow"), &ann(), MOST).await.unwrap();
    let now = after(stored.created_at, 5);
    let first = begun(&schedules, now).await;
    let times: BTreeSet<_> = first.iter().map(|begin| begin.fire_at).collect();
    assert_eq!((first.len(), times.len()), (5, 5), "five seconds, each once: {times:?}");
    assert!(begun(&schedules, now).await.is_empty());

    // One is carried out, the others are left by a scheduler that died.
    schedules.conclude(&first[0], &FiringOutcome::Published).await.unwrap();
    let again = begun(&schedules, after(now, 11)).await;
    let again: BTreeSet<_> = again.iter().map(|begin| (begin.fire_at, begin.run_id)).collect();
    let left: BTreeSet<_> = first[1..].iter().map(|begin| (begin.fire_at, begin.run_id)).collect();
    assert!(left.is_subset(&again), "under the same names");
    assert!(!again.iter().any(|(time, _)| *time == first[0].fire_at));
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_fires_nothing_twice_and_holds_nothing_up() {
    let stack = TestStack::new().await.unwrap();
    let schedules = schedules(&stack).await;
    let more = "overlap: allow\ncatch_up: { within: 366d, missed: all }";
    let stored = schedules.put(&tenant(), &sound("hourly", "@hourly", more), &ann(), MOST).await.unwrap();
    let now = stored.created_at;
    let mut seen = BTreeSet::new();
    // A day ahead, back, and again hour by hour.
    for hours in [25, 0, 1, 2, 3, 26, 27] {
        for begin in begun(&schedules, after(now, hours * 3600)).await {
            assert!(seen.insert(begin.fire_at), "{} twice", begin.fire_at);
            schedules.conclude(&begin, &FiringOutcome::Published).await.unwrap();
        }
    }
    assert_eq!(seen.len(), 27, "{seen:?}");
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_changes_or_goes_in_the_middle_does_no_harm() {
    let stack = TestStack::new().await.unwrap();
    let schedules = schedules(&stack).await;
    let stored = schedules.put(&tenant(), &sound("tick", "* * * * * *", "overlap: allow"), &ann(), MOST).await.unwrap();
    let first = begun(&schedules, after(stored.created_at, 2)).await;
    assert_eq!(first.len(), 2);
    // The same times in other words keep their place; other times begin now.
    let same = sound("tick", "* * * * * *", "overlap: allow\ndescription: the same");
    let changed = schedules.put(&tenant(), &same, &ann(), MOST).await.unwrap();
    assert_eq!((changed.schedule_id, changed.revision), (stored.schedule_id, 2));
    let next = begun(&schedules, after(stored.created_at, 3)).await;
    assert_eq!(next.len(), 1, "neither again nor left out");
    assert_eq!(next[0].schedule.spec.description, "the same");

    let held = schedules.hold(&tenant(), "tick", true, "operator:ann").await.unwrap().unwrap();
    assert!(held.paused);
    assert!(begun(&schedules, after(stored.created_at, 8)).await.is_empty());
    schedules.hold(&tenant(), "tick", false, "operator:ann").await.unwrap();

    assert!(schedules.delete(&tenant(), "tick", None).await.unwrap());
    assert!(!schedules.delete(&tenant(), "tick", None).await.unwrap());
    schedules.conclude(&next[0], &FiringOutcome::Started).await.unwrap();
    assert!(begun(&schedules, after(stored.created_at, 60)).await.is_empty());
    let anew = schedules.put(&tenant(), &same, &ann(), MOST).await.unwrap();
    assert_ne!(anew.schedule_id, stored.schedule_id, "the same name, another schedule");
    assert!(schedules.firings(anew.schedule_id, None, 10).await.unwrap().is_empty());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_overlaps_waits_until_the_run_is_seen_to_have_ended() {
    let stack = TestStack::new().await.unwrap();
    let (ingress, schedules) = (stack.engine(Role::Ingress).await.unwrap(), schedules(&stack).await);
    let stored = schedules.put(&tenant(), &sound("tick", "* * * * * *", "overlap: queue"), &ann(), MOST).await.unwrap();
    let start = stored.created_at;
    let first = begun(&schedules, after(start, 1)).await.pop().unwrap();
    ingress.submit(first.run_id, create("it"), "create", Cause::default()).await.unwrap();
    schedules.conclude(&first, &FiringOutcome::Started).await.unwrap();
    assert!(begun(&schedules, after(start, 2)).await.is_empty(), "it waits");
    assert!(begun(&schedules, after(start, 3)).await.is_empty(), "one waits already");
    let states = |firings: &[engine::Firing]| firings.iter().map(|firing| firing.state).collect::<Vec<_>>();
    let firings = schedules.firings(stored.schedule_id, None, 10).await.unwrap();
    assert_eq!(states(&firings), [FiringState::Skipped, FiringState::Waiting, FiringState::Started]);
    assert!(firings[0].note.as_ref().unwrap().contains("waits already"));
    assert_eq!(firings[2].run_id, Some(first.run_id));

    let cancel = Command::Cancel(ByOperator { by: "ann".into(), reason: None });
    ingress.submit(first.run_id, cancel, "cancel", Cause::default()).await.unwrap();
    let second = begun(&schedules, after(start, 4)).await;
    assert_eq!(second.iter().map(|begin| begin.fire_at).collect::<Vec<_>>(), [firings[1].fire_at]);
    let firings = schedules.firings(stored.schedule_id, None, 10).await.unwrap();
    assert_eq!(firings.last().unwrap().state, FiringState::Ended);
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_filled_in_once_and_what_was_missed_can_be() {
    let stack = TestStack::new().await.unwrap();
    let schedules = schedules(&stack).await;
    let stored = schedules.put(&tenant(), &sound("daily", "0 6 * * *", ""), &ann(), MOST).await.unwrap();
    let day = |text: &str| format!("{text}T06:00:00Z").parse::<Timestamp>().unwrap();
    let range = (day("2026-01-01"), day("2026-01-05"));
    let first = schedules.backfill(&tenant(), "daily", range, true).await.unwrap();
    assert_eq!((first.noted, first.known), (5, 0), "both ends count");
    let begun_now = begun(&schedules, after(stored.created_at, 1)).await;
    assert_eq!(begun_now.len(), 5);
    for begin in &begun_now[1..] {
        schedules.conclude(begin, &FiringOutcome::Published).await.unwrap();
    }
    let why = FiringOutcome::Failed("there is no agent".into());
    schedules.conclude(&begun_now[0], &why).await.unwrap();
    let wider = (day("2025-12-31"), day("2026-01-05"));
    let again = schedules.backfill(&tenant(), "daily", wider, false).await.unwrap();
    assert_eq!((again.noted, again.known), (2, 4), "a new one, and the one that failed");
    let one_by_one = begun(&schedules, after(stored.created_at, 2)).await;
    assert_eq!(one_by_one.iter().map(|begin| begin.fire_at).collect::<Vec<_>>(), [day("2025-12-31")]);
    let firings = schedules.firings(stored.schedule_id, Some(day("2026-01-02")), 10).await.unwrap();
    assert_eq!(firings.len(), 2);
    assert!(firings.iter().all(|firing| firing.kind == FiringKind::Backfill));
    let too_many = (day("1990-01-01"), day("2026-01-01"));
    assert!(schedules.backfill(&tenant(), "daily", too_many, false).await.unwrap_err().to_string().contains("shorter"));
    assert!(schedules.backfill(&tenant(), "weekly", range, false).await.is_err());
    stack.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_keeps_to_its_own_and_to_its_number() {
    let stack = TestStack::new().await.unwrap();
    let schedules = schedules(&stack).await;
    let put = async |name: &str, maker: &Maker| schedules.put(&tenant(), &sound(name, "@daily", ""), maker, MOST).await;
    put("of-ann", &ann()).await.unwrap();
    put("of-bee", &agent("bee")).await.unwrap();
    for name in ["of-ann", "of-bee"] {
        assert!(matches!(put(name, &agent("ant")).await, Err(PutScheduleError::Taken { .. })), "{name}");
        assert!(!schedules.delete(&tenant(), name, Some("ant")).await.unwrap());
    }
    put("one", &agent("ant")).await.unwrap();
    put("two", &agent("ant")).await.unwrap();
    assert!(matches!(put("three", &agent("ant")).await, Err(PutScheduleError::TooMany { most: MOST })));
    put("two", &agent("ant")).await.expect("changing one makes no more");
    let names = |list: Vec<engine::Schedule>| list.into_iter().map(|each| each.spec.name).collect::<Vec<_>>();
    assert_eq!(names(schedules.list(&tenant(), Some("ant")).await.unwrap()), ["one", "two"]);
    assert_eq!(names(schedules.list(&tenant(), None).await.unwrap()), ["of-ann", "of-bee", "one", "two"]);
    assert!(schedules.delete(&tenant(), "one", Some("ant")).await.unwrap());
    let taken_over = put("two", &ann()).await.unwrap();
    assert_eq!(
        (taken_over.maker.agent, taken_over.maker.trust),
        (None, Trust::Operator),
        "a person's word makes it theirs"
    );
    stack.close().await.unwrap();
}
