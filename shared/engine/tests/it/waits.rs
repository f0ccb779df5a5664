//! Waits on real parts: the first of many satisfies and the others are gone, all of many, nested; one event for a long line of
//! waits; and an event that only one of them may have.

use std::time::{Duration, Instant};

use engine::{Committed, Engine, EventClaim, RecordedExternal, WaitMatch, testing::TestStack};
use futures::{StreamExt as _, future::join_all, stream};
use kernel::{
    Block, Cause, Command, EventData, Role, RunId, RunState, Status, TenantId, TimerId, Timestamp, Trust,
    command::{DeliverExternal, FireTimer, TurnOutcome, WaitRequest},
    wait::{Condition, ExternalPattern, WaitExpr},
};
use sqlx::Row;

use crate::core::{create, forge_event, message, wait_for_forge};

/// A stack with the doors that waits need.
struct World {
    stack: TestStack,
    ingress: Engine,
    planner: Engine,
    scheduler: Engine,
}

impl World {
    async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let ingress = stack.engine(Role::Ingress).await.unwrap();
        let planner = stack.engine(Role::Planner).await.unwrap();
        let scheduler = stack.engine(Role::Scheduler).await.unwrap();
        Self { stack, ingress, planner, scheduler }
    }

    async fn run(&self) -> RunId {
        let run = RunId::mint();
        self.ingress.submit(run, create("wait"), "create", Cause::default()).await.unwrap();
        run
    }

    async fn state(&self, run: RunId) -> std::sync::Arc<RunState> {
        self.planner.load(run).await.unwrap().unwrap()
    }

    /// The run's open turn waits for `on`.
    async fn wait_for(&self, run: RunId, on: WaitExpr, deadline: Option<Timestamp>) -> Committed {
        let state = self.state(run).await;
        let Command::CommitTurn(outcome) = wait_for_forge(&state, "none", None) else { unreachable!() };
        let wait = WaitRequest { on, why: "to see".into(), assumes: None, expects: None, deadline };
        let key = format!("turn/{}", outcome.turn_id);
        let outcome = Command::CommitTurn(Box::new(TurnOutcome { wait: Some(wait), ..*outcome }));
        self.planner.submit(run, outcome, key, Cause::default()).await.unwrap()
    }

    async fn event(&self, id: &str, subject: &str) -> (RecordedExternal, Vec<WaitMatch>) {
        let event = forge_event(id, subject, true);
        self.ingress.externals().record_and_match(&TenantId::default(), "forge", &event, None).await.unwrap()
    }

    /// Delivers an event to a wait. Whether it took it.
    async fn deliver(&self, recorded: &RecordedExternal, wait: &WaitMatch) -> bool {
        let external = recorded.external.clone();
        let key = format!("ext/{}/{}/{}", external.position, wait.wait_id, wait.leaf);
        let block = Block::new("merged", Trust::Untrusted, "event:forge");
        let deliver = DeliverExternal { external, wait_id: wait.wait_id, leaf: wait.leaf, block };
        let command = Command::DeliverExternal(Box::new(deliver));
        let committed = self.ingress.submit(wait.run_id, command, key, Cause::default()).await.unwrap();
        committed.duplicate || !committed.events.is_empty()
    }

    /// Fires the timers of the run that are due, as a scheduler would.
    async fn fire_due(&self, run: RunId) {
        loop {
            let due = self.scheduler.timers().claim_ahead(10, Duration::ZERO, Duration::from_secs(60)).await.unwrap();
            for timer in &due {
                let fire = Command::FireTimer(FireTimer { timer_id: timer.timer_id });
                let key = format!("timer/{}", timer.timer_id);
                self.scheduler.submit(run, fire, key, Cause::default()).await.unwrap();
            }
            if !due.is_empty() {
                return;
            }
            let next = self.scheduler.timers().next_due().await.unwrap().expect("a timer is set");
            tokio::time::sleep(Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default()).await;
        }
    }

    /// Rows of the run in `waits` and `timers`.
    async fn rows(&self, run: RunId) -> (i64, i64) {
        let mut postgres = self.stack.postgres().await.unwrap();
        let counts =
            "select (select count(*) from waits where run_id = $1), (select count(*) from timers where run_id = $1)";
        let row = sqlx::query(counts).bind(run.0).fetch_one(&mut postgres).await.unwrap();
        (row.get(0), row.get(1))
    }

    /// How many times each run took an event of the forge, over all runs.
    async fn matched(&self) -> Vec<i64> {
        let mut postgres = self.stack.postgres().await.unwrap();
        let count = "select count(*) from events where type = 'external.matched' group by run_id";
        sqlx::query(count).fetch_all(&mut postgres).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    async fn close(self) {
        self.stack.close().await.unwrap();
    }
}

fn forge(subject: &str) -> WaitExpr {
    pattern(subject, false)
}

fn only_one(subject: &str) -> WaitExpr {
    pattern(subject, true)
}

fn pattern(subject: &str, exclusive: bool) -> WaitExpr {
    let (source, event_type) = ("forge".into(), "forge.*".into());
    Condition::External(ExternalPattern {
        source,
        event_type,
        subject: subject.into(),
        filter: None,
        exclusive,
        verify: None,
    })
    .into()
}

fn timer(run: RunId, name: &str, millis: i64) -> WaitExpr {
    Condition::Timer { timer_id: TimerId::derive(run, name), due: soon(millis) }.into()
}

fn operator() -> WaitExpr {
    Condition::OperatorInput { approval_id: None }.into()
}

fn soon(millis: i64) -> Timestamp {
    Timestamp::now().checked_add(jiff::SignedDuration::from_millis(millis)).unwrap()
}

const HOUR: i64 = 3_600_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_of_many_satisfies_and_the_others_are_gone() {
    let world = World::new().await;
    let run = world.run().await;
    let on = WaitExpr::Any(vec![
        timer(run, "long", HOUR),
        timer(run, "longer", 2 * HOUR),
        forge("a"),
        forge("b"),
        operator(),
    ]);
    let waiting = world.wait_for(run, on, Some(soon(HOUR))).await;
    assert_eq!(waiting.state.status(), Status::Waiting);
    assert_eq!(world.rows(run).await, (5, 3));

    let (recorded, matches) = world.event("e1", "b").await;
    assert_eq!(matches.len(), 1);
    assert!(world.deliver(&recorded, &matches[0]).await);
    assert!(world.deliver(&recorded, &matches[0]).await, "again, as a redelivery: taken before");
    assert_eq!(world.rows(run).await, (0, 0), "nothing of the wait is left");
    let state = world.state(run).await;
    assert_eq!((state.status(), state.timers.len(), state.turns_opened), (Status::Runnable, 0, 2));
    assert!(state.wait.is_none());

    // What would have met it too finds nothing, and what it led to is one turn.
    assert!(world.event("e2", "a").await.1.is_empty());
    world.ingress.submit(run, message("hello"), "m", Cause::default()).await.unwrap();
    assert_eq!(world.state(run).await.turns_opened, 2);
    assert_eq!(world.matched().await, [1]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_beside_an_event_ends_the_wait_and_the_event_comes_too_late() {
    let world = World::new().await;
    let run = world.run().await;
    world.wait_for(run, WaitExpr::All(vec![forge("a"), timer(run, "long", HOUR)]), Some(soon(50))).await;
    assert_eq!(world.rows(run).await, (2, 2));
    world.fire_due(run).await;
    assert_eq!(world.rows(run).await, (0, 0));
    let state = world.state(run).await;
    assert_eq!((state.status(), state.turns_opened), (Status::Runnable, 2));
    assert!(world.event("e1", "a").await.1.is_empty());

    // The next wait looks back for it.
    let met = world.wait_for(run, forge("a"), None).await;
    assert_eq!(met.state.status(), Status::Runnable);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_needed_in_any_order_and_by_any_way() {
    let world = World::new().await;
    let run = world.run().await;
    // One came before the wait, one comes after it, one is a time, and one a person.
    world.event("e1", "early").await;
    let on = WaitExpr::All(vec![forge("late"), forge("early"), timer(run, "nap", 50), operator()]);
    let waiting = world.wait_for(run, on, None).await;
    assert_eq!(waiting.state.status(), Status::Waiting);
    world.ingress.submit(run, message("go on"), "m", Cause::default()).await.unwrap();
    // A person is heard at once; the wait goes on all the same.
    let state = world.state(run).await;
    assert!(state.wait.is_some());
    world.fire_due(run).await;
    let (recorded, matches) = world.event("e2", "late").await;
    assert_eq!(matches.len(), 1);
    assert!(world.deliver(&recorded, &matches[0]).await);
    let state = world.state(run).await;
    assert!(state.wait.is_none() && state.status() == Status::Runnable);
    assert_eq!(world.rows(run).await, (0, 0));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_waits_are_met_by_the_branch_that_holds() {
    let world = World::new().await;
    let run = world.run().await;
    let both = WaitExpr::All(vec![forge("a"), WaitExpr::Any(vec![forge("b"), forge("c")])]);
    world.wait_for(run, WaitExpr::Any(vec![both, timer(run, "long", HOUR)]), None).await;
    for (id, subject, status) in
        [("e1", "c", Status::Waiting), ("e2", "b", Status::Waiting), ("e3", "a", Status::Runnable)]
    {
        let (recorded, matches) = world.event(id, subject).await;
        assert_eq!(matches.len(), 1, "{subject}");
        assert!(world.deliver(&recorded, &matches[0]).await);
        assert_eq!(world.state(run).await.status(), status, "after {subject}");
    }
    assert_eq!(world.rows(run).await, (0, 0));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_one_key_are_met_by_what_came_before_in_any_order() {
    let world = World::new().await;
    let run = world.run().await;
    let when = |filter: &str| -> WaitExpr {
        Condition::External(ExternalPattern {
            source: "forge".into(),
            event_type: "forge.merged".into(),
            subject: "a".into(),
            filter: Some(filter.into()),
            exclusive: false,
            verify: None,
        })
        .into()
    };
    // The second condition's event came before the first one's.
    for (id, ok) in [("e1", false), ("e2", true)] {
        let event = forge_event(id, "a", ok);
        world.ingress.externals().record(&TenantId::default(), "forge", &event, None).await.unwrap();
    }
    let met = world.wait_for(run, WaitExpr::All(vec![when("data.ok"), when("!data.ok")]), None).await;
    assert_eq!(met.state.status(), Status::Runnable);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_event_is_found_behind_hundreds_of_others() {
    let world = World::new().await;
    let run = world.run().await;
    let externals = world.ingress.externals();
    let tenant = TenantId::default();
    let others = (0..700).map(|number| {
        let (externals, tenant) = (externals.clone(), tenant.clone());
        let mut event = forge_event(&format!("o{number}"), "a", number % 2 == 0);
        if number % 2 == 0 {
            event.event_type = "forge.opened".into();
        }
        async move { externals.record(&tenant, "forge", &event, None).await.unwrap() }
    });
    stream::iter(others).buffer_unordered(4).for_each(async |_| {}).await;
    world.event("wanted", "a").await;
    let state = world.state(run).await;
    let wait = wait_for_forge(&state, "a", Some("data.ok"));
    let met = world.planner.submit(run, wait, "t", Cause::default()).await.unwrap();
    let found = met.events.iter().find_map(|event| match &event.data {
        EventData::ExternalMatched(matched) => Some(matched.external.id.clone()),
        _ => None,
    });
    assert_eq!(found.as_deref(), Some("wanted"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_not_given_again_to_a_later_wait_of_the_same_run() {
    let world = World::new().await;
    let run = world.run().await;
    // Whoever recorded the event died before dispatching it; the run found it by looking back.
    let (recorded, _) = world.event("e1", "a").await;
    assert_eq!(world.wait_for(run, forge("a"), None).await.state.status(), Status::Runnable);
    assert_eq!(world.wait_for(run, forge("a"), None).await.state.status(), Status::Waiting);
    let again = world.ingress.externals().matching(&recorded, None).await.unwrap();
    assert!(again.is_empty(), "it had it");
    assert_eq!(world.event("e2", "a").await.1.len(), 1);
    assert_eq!(world.matched().await, [1]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_line_of_waits_is_read_in_pages_each_once() {
    let world = World::new().await;
    let mut postgres = world.stack.postgres().await.unwrap();
    let run = world.run().await;
    let waits = i64::try_from(2 * engine::MATCHES + 10).unwrap();
    // Many since the same moment.
    sqlx::query(
        "insert into waits (run_id, wait_id, leaf, tenant, kind, resource_key, event_type, why, since)
         select $1, gen_random_uuid(), n, 'default', 'external', 'forge:a', 'forge.*', '', now() - n / 700 * interval '1 s'
         from generate_series(1, $2) n",
    )
    .bind(run.0)
    .bind(waits)
    .execute(&mut postgres)
    .await
    .unwrap();
    let (recorded, mut page) = world.event("e1", "a").await;
    let mut seen = Vec::new();
    while let Some(last) = page.last().cloned() {
        seen.append(&mut page);
        page = world.ingress.externals().matching(&recorded, Some(&last)).await.unwrap();
    }
    assert!(seen.is_sorted_by_key(|wait| wait.since), "the longest waiting first");
    let mut leaves: Vec<_> = seen.iter().map(|wait| wait.leaf).collect();
    leaves.sort_unstable();
    assert!(leaves.iter().map(|leaf| i64::from(*leaf)).eq(1..=waits));
    sqlx::query("delete from waits").execute(&mut postgres).await.unwrap();
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_wakes_a_thousand_runs_once_each() {
    // Ten times as many in the long form.
    let count = if std::env::var_os("ESC_TEST_LONG").is_some() { 10_000 } else { 1000 };
    let world = World::new().await;
    let runs: Vec<RunId> = stream::iter(0..count)
        .map(async |_| {
            let run = world.run().await;
            world.wait_for(run, forge("release"), None).await;
            run
        })
        .buffer_unordered(64)
        .collect()
        .await;
    let begun = Instant::now();
    let (recorded, mut page) = world.event("e1", "release").await;
    while let Some(last) = page.last() {
        let taken = stream::iter(&page).map(|wait| world.deliver(&recorded, wait)).buffer_unordered(256);
        assert_eq!(taken.filter(|taken| std::future::ready(*taken)).count().await, page.len());
        page = world.ingress.externals().matching(&recorded, Some(last)).await.unwrap();
    }
    println!("{count} wakes by one event in {:?}", begun.elapsed());
    assert_eq!(world.matched().await, vec![1; count]);
    // A few at a time: the connections to Postgres are few, too.
    let states: Vec<_> = stream::iter(&runs).map(|run| world.state(*run)).buffer_unordered(16).collect().await;
    assert!(states.iter().all(|state| state.status() == Status::Runnable && state.turns_opened == 2));
    world.close().await;
}

// Events that only one may have.

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outlives_whoever_made_it() {
    let world = World::new().await;
    let (first, second) = (world.run().await, world.run().await);
    let (third, shared) = (world.run().await, world.run().await);
    for run in [first, second] {
        world.wait_for(run, only_one("a"), None).await;
    }
    let externals = world.ingress.externals();
    let (recorded, matches) = world.event("e1", "a").await;
    let [of_first, of_second] = matches.as_slice() else { panic!("{matches:?}") };
    assert_eq!((of_first.run_id, of_second.run_id), (first, second));
    // Claimed for the first, and then the dispatcher dies. Another one begins with the second: it is told who comes first.
    assert_eq!(externals.claim(&recorded, of_first).await.unwrap(), EventClaim::Won);
    assert_eq!(
        externals.claim(&recorded, of_second).await.unwrap(),
        EventClaim::Held(Box::new(of_first.clone())),
        "neither may it be given to another"
    );
    // Nor does a wait that looks back get it.
    assert_eq!(world.wait_for(third, only_one("a"), None).await.state.status(), Status::Waiting);
    assert!(world.deliver(&recorded, of_first).await);
    // It died again, before it could say that the event is dispatched.
    let again = externals.matching(&recorded, None).await.unwrap();
    assert_eq!(again.iter().map(|wait| wait.run_id).collect::<Vec<_>>(), [second, third]);
    for wait in &again {
        assert_eq!(externals.claim(&recorded, wait).await.unwrap(), EventClaim::Taken);
    }
    externals.release(&recorded, of_first).await.unwrap();
    assert_eq!(
        externals.claim(&recorded, of_second).await.unwrap(),
        EventClaim::Taken,
        "what was taken is not released"
    );
    // A shared wait has it all the same.
    assert_eq!(world.wait_for(shared, forge("a"), None).await.state.status(), Status::Runnable);
    assert_eq!(world.matched().await, [1, 1]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_claimer_does_not_take_is_for_the_next() {
    let world = World::new().await;
    let (first, second) = (world.run().await, world.run().await);
    world.wait_for(first, only_one("a"), None).await;
    let externals = world.ingress.externals();
    let (recorded, matches) = world.event("e1", "a").await;
    assert_eq!(externals.claim(&recorded, &matches[0]).await.unwrap(), EventClaim::Won);
    // The claimer's wait is gone before the delivery comes: a person wrote, and its next turn waits for something else.
    world.ingress.submit(first, message("never mind"), "m", Cause::default()).await.unwrap();
    world.wait_for(first, operator(), None).await;
    assert!(!world.deliver(&recorded, &matches[0]).await);
    // The claim is void, even if nobody releases it: whoever looks back has the event.
    assert_eq!(world.wait_for(second, only_one("a"), None).await.state.status(), Status::Runnable);
    assert_eq!(externals.claim(&recorded, &matches[0]).await.unwrap(), EventClaim::Taken);

    // A condition that was met keeps its wait, and the claim: that is what releasing is for.
    let (third, fourth) = (world.run().await, world.run().await);
    world.wait_for(third, WaitExpr::All(vec![only_one("b"), operator()]), None).await;
    world.wait_for(fourth, only_one("b"), None).await;
    let (e2, of_e2) = world.event("e2", "b").await;
    assert_eq!(externals.claim(&e2, &of_e2[0]).await.unwrap(), EventClaim::Won);
    assert!(world.deliver(&e2, &of_e2[0]).await);
    let (e3, of_e3) = world.event("e3", "b").await;
    assert_eq!(of_e3[0].run_id, third);
    assert_eq!(externals.claim(&e3, &of_e3[0]).await.unwrap(), EventClaim::Won);
    assert!(!world.deliver(&e3, &of_e3[0]).await, "its condition was met by another event");
    assert!(matches!(externals.claim(&e3, &of_e3[1]).await.unwrap(), EventClaim::Held(_)));
    externals.release(&e3, &of_e3[0]).await.unwrap();
    assert_eq!(externals.claim(&e3, &of_e3[1]).await.unwrap(), EventClaim::Won);
    assert!(world.deliver(&e3, &of_e3[1]).await);
    assert_eq!(world.state(fourth).await.status(), Status::Runnable);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_those_who_look_back_at_once_one_has_the_event() {
    let world = World::new().await;
    for round in 0..10 {
        let subject = format!("pull/{round}");
        let runs = join_all((0..6).map(|_| world.run())).await;
        world.event(&format!("e{round}"), &subject).await;
        let waits = runs.iter().map(|run| world.wait_for(*run, only_one(&subject), None));
        let met = join_all(waits).await.iter().filter(|each| each.state.status() == Status::Runnable).count();
        assert_eq!(met, 1, "round {round}");
    }
    world.close().await;
}

/// Waits are registered, the event is recorded, and two dispatch it, all at the same time: one run has it.
#[tokio::test(flavor = "multi_thread")]
async fn looking_back_and_dispatching_at_once_one_has_the_event() {
    let world = World::new().await;
    let externals = world.ingress.externals();
    for round in 0..20 {
        let subject = format!("pull/{round}");
        let runs = join_all((0..5).map(|_| world.run())).await;
        let id = format!("e{round}");
        let waits = join_all(runs.iter().map(|run| world.wait_for(*run, only_one(&subject), None)));
        let dispatch = async || {
            let (recorded, matches) = world.event(&id, &subject).await;
            for wait in &matches {
                let claimer = match externals.claim(&recorded, wait).await.unwrap() {
                    EventClaim::Won => wait.clone(),
                    EventClaim::Held(other) => *other,
                    EventClaim::Taken | EventClaim::Gone => continue,
                };
                if !world.deliver(&recorded, &claimer).await {
                    externals.release(&recorded, &claimer).await.unwrap();
                }
            }
        };
        tokio::join!(waits, dispatch(), dispatch());
        let states = join_all(runs.iter().map(|run| world.state(*run))).await;
        let woken = states.iter().filter(|state| state.status() == Status::Runnable).count();
        assert_eq!(woken, 1, "round {round}");
    }
    assert_eq!(world.matched().await, vec![1; 20]);
    world.close().await;
}

/// A commit that does not stand leaves no claim behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_loses_its_race_claims_nothing() {
    let world = World::new().await;
    let rival = world.stack.another_engine(world.stack.options(Role::Planner)).await.unwrap();
    for round in 0..10 {
        let subject = format!("pull/{round}");
        let run = world.run().await;
        let (recorded, _) = world.event(&format!("e{round}"), &subject).await;
        // The same turn's outcome from two planners; and a person writes meanwhile.
        let state = world.state(run).await;
        let Command::CommitTurn(outcome) = wait_for_forge(&state, "none", None) else { unreachable!() };
        let wait =
            WaitRequest { on: only_one(&subject), why: "to see".into(), assumes: None, expects: None, deadline: None };
        let outcome = || Command::CommitTurn(Box::new(TurnOutcome { wait: Some(wait.clone()), ..(*outcome).clone() }));
        let (one, other, _) = tokio::join!(
            world.planner.submit(run, outcome(), "turn/a", Cause::default()),
            rival.submit(run, outcome(), "turn/b", Cause::default()),
            world.ingress.submit(run, message("hello"), "m", Cause::default()),
        );
        let matched = [one, other]
            .into_iter()
            .flat_map(|committed| committed.unwrap().events)
            .filter(|event| matches!(event.data, EventData::ExternalMatched(_)))
            .count();
        let mut postgres = world.stack.postgres().await.unwrap();
        let claimed = sqlx::query("select claimed_run is not null from external_events where position = $1")
            .bind(recorded.external.position)
            .fetch_one(&mut postgres)
            .await
            .unwrap();
        assert_eq!(claimed.get::<bool, _>(0), matched == 1, "round {round}: {matched}");
    }
    world.close().await;
}

/// Registrations that are committed together find what came before them as they would alone.
#[tokio::test(flavor = "multi_thread")]
async fn waits_that_register_together_each_find_their_own() {
    let world = World::new().await;
    let runs = join_all((0..40).map(|_| world.run())).await;
    // Half of the runs find an event of their own, the other half share three that only one may have each.
    for number in 0..20 {
        world.event(&format!("own{number}"), &format!("own/{number}")).await;
    }
    for number in 0..3 {
        world.event(&format!("one{number}"), "shared").await;
    }
    let waits = runs.iter().enumerate().map(|(number, run)| {
        let on = if number < 20 { forge(&format!("own/{number}")) } else { only_one("shared") };
        world.wait_for(*run, on, None)
    });
    let states: Vec<_> = join_all(waits).await.into_iter().map(|committed| committed.state.status()).collect();
    assert_eq!(states[..20], [Status::Runnable; 20]);
    assert_eq!(states[20..].iter().filter(|status| **status == Status::Runnable).count(), 3);
    assert_eq!(world.matched().await, vec![1; 23]);
    world.close().await;
}
