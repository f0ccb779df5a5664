//! Starts that triggers hold back: one run for many events, no more than may, each once whatever dies in between.

use std::time::Duration;

use bus::CloudEvent;
use engine::{Gathered, RecordedExternal, RunFilter, RunRow};
use kernel::{EventData, Role, RunId, TenantId, Timestamp, command::EndRequest};
use serde_json::json;

use crate::common::System;

/// What an ingress does with an event that meets a trigger which holds back.
struct Trigger<'a> {
    system: &'a System,
}

impl<'a> Trigger<'a> {
    /// Puts in an agent whose trigger has these further lines.
    async fn new(system: &'a System, pacing: &str) -> Self {
        let yaml = format!(
            "name: keeper\nmodel: scripted:keeper\ninstructions: Keep.\ntriggers:\n  - on: forge.push\n    \
             start: {{ input: Keep it green }}\n{pacing}"
        );
        system.ingress.agents().put(&TenantId::default(), &yaml, "ann").await.unwrap();
        Self { system }
    }

    async fn record(&self, id: &str, subject: &str) -> RecordedExternal {
        let mut event = CloudEvent::new(id, "/forge", "forge.push").with_json(json!({ "number": id }));
        event.subject = Some(subject.into());
        self.system.ingress.externals().record(&TenantId::default(), "forge", &event, None).await.unwrap()
    }

    async fn add(&self, recorded: &RecordedExternal) -> Option<Gathered> {
        let triggers = self.system.ingress.agents().triggers(&TenantId::default()).await.unwrap();
        let key = engine::gathering_key(&triggers[0], &recorded.event).unwrap();
        self.system.ingress.gatherings().add(recorded, &triggers[0], &key, Timestamp::now()).await.unwrap()
    }

    async fn event(&self, id: &str, subject: &str) -> Gathered {
        let recorded = self.record(id, subject).await;
        self.add(&recorded).await.expect("it is new")
    }

    async fn runs(&self) -> Vec<RunRow> {
        let filter = RunFilter { agent: Some("keeper".into()), ..RunFilter::default() };
        self.system.ingress.reads().runs(&TenantId::default(), &filter).await.unwrap().items
    }

    async fn until(&self, count: usize) -> Vec<RunRow> {
        self.system
            .until("run", async || {
                let runs = self.runs().await;
                (runs.len() >= count).then_some(runs)
            })
            .await
    }

    async fn end(&self, run: RunId) {
        let state = self.system.state(run).await;
        let text = kernel::Block::new("done", kernel::Trust::Operator, "model");
        self.system.commit(&state, |outcome| outcome.end = Some(EndRequest::Complete(text))).await;
    }
}

#[tokio::test]
async fn a_batch_is_one_run_with_all_its_events() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    batch: { size: 3, within: 1h }\n").await;
    let first = trigger.event("1", "acme/widget").await;
    assert_eq!(trigger.event("2", "acme/widget").await.events, 2);
    let elsewhere = trigger.event("3", "acme/gadget").await;
    assert_ne!(elsewhere.run_id, first.run_id, "another subject is another batch");
    let running = system.scheduler(|_| {}).await;
    let last = trigger.event("4", "acme/widget").await;
    assert_eq!((last.run_id, last.events), (first.run_id, 3));
    let runs = trigger.until(1).await;
    assert_eq!((runs.len(), runs[0].run_id), (1, first.run_id));
    let created = system.events(first.run_id, "run.created").await;
    let EventData::RunCreated(created) = &created[0].data else { panic!("no creation") };
    for id in ["\"1\"", "\"2\"", "\"4\""] {
        assert!(created.input.text.contains(&format!("\"number\": {id}")), "{}", created.input.text);
    }
    assert_eq!(created.input.trust, kernel::Trust::Untrusted);
    assert_eq!(created.trigger.as_ref().map(|event| event.id.as_str()), Some("4"));
    // The next event opens another batch, and the same event again is in none.
    assert_eq!(trigger.event("5", "acme/widget").await.events, 1);
    let again = trigger.record("4", "acme/widget").await;
    assert_eq!(trigger.add(&again).await, None);
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_debounce_starts_after_the_last_event_and_not_before() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    debounce: { quiet: 3s, at_most: 1h }\n").await;
    let running = system.scheduler(|_| {}).await;
    let mut last = trigger.event("0", "acme/widget").await;
    let (mut number, mut too_late) = (0, 0);
    while last.events < 6 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        number += 1;
        assert!(number < 100, "six events in a row are never one start");
        let next = trigger.event(&number.to_string(), "acme/widget").await;
        if next.run_id == last.run_id {
            assert_eq!(next.events, last.events + 1);
            assert!(next.due > last.due, "each event puts it off");
        } else {
            // The machine stood still for so long that it began without this one: once more.
            assert!(Timestamp::now() >= last.due, "it began before {}", last.due);
            assert_eq!(next.events, 1);
            too_late += 1;
        }
        last = next;
    }
    let runs = trigger.until(1 + too_late).await;
    assert_eq!(runs.len(), 1 + too_late);
    let run = runs.iter().find(|run| run.run_id == last.run_id).expect("the run of six events");
    assert!(run.created_at >= last.due, "{} before {}", run.created_at, last.due);
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn no_more_runs_are_under_way_than_may_and_two_schedulers_agree() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    concurrency: 2\n").await;
    let (one, two) = (system.scheduler(|_| {}).await, system.scheduler(|_| {}).await);
    for number in 0..6 {
        trigger.event(&number.to_string(), "acme/widget").await;
    }
    trigger.event("other", "acme/gadget").await;
    for ended in 0..3 {
        let runs = trigger.until(3 + ended).await;
        assert_eq!(runs.len(), 3 + ended, "two of one subject, one of the other, and those that have ended");
        let open = runs.iter().filter(|run| !run.status.is_terminal());
        let oldest = open.min_by_key(|run| run.run_id).unwrap().run_id;
        trigger.end(oldest).await;
    }
    trigger.until(6).await;
    one.stop().await.unwrap();
    two.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_throttle_lets_so_many_start_and_the_others_wait_their_turn() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    throttle: { runs: 2, per: 3s }\n    key: \"'all'\"\n").await;
    for number in 0..4 {
        trigger.event(&number.to_string(), &format!("acme/{number}")).await;
    }
    let running = system.scheduler(|_| {}).await;
    let mut runs = trigger.until(4).await;
    runs.sort_by_key(|run| run.created_at);
    let between = |early: usize, late: usize| runs[late].created_at.duration_since(runs[early].created_at).as_millis();
    // What counts is when each was begun; on a busy machine the run itself comes a little later.
    assert!(between(0, 2) >= 1_500 && between(1, 3) >= 1_500, "{} {}", between(0, 2), between(1, 3));
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn what_a_scheduler_claimed_and_did_not_finish_is_begun_by_another_under_the_same_name() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    concurrency: 1\n").await;
    let gathered = trigger.event("1", "acme/widget").await;
    // As one leaves it that dies after the claim.
    let gatherings = system.ingress.gatherings();
    let now = Timestamp::now();
    let claimed = gatherings.claim_due(now, 10, Duration::from_secs(2)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert!(gatherings.claim_due(now, 10, Duration::from_secs(1)).await.unwrap().is_empty());
    let running = system.scheduler(|_| {}).await;
    let runs = trigger.until(1).await;
    assert_eq!((runs.len(), runs[0].run_id), (1, gathered.run_id));
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn an_event_that_a_waiting_run_took_starts_none() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    concurrency: 1\n    wake: true\n").await;
    let running = system.scheduler(|_| {}).await;
    let first = trigger.event("1", "acme/widget").await;
    trigger.until(1).await;
    // The next one has to wait for the run, which takes it by a wait of its own meanwhile.
    let next = trigger.record("2", "acme/widget").await;
    trigger.add(&next).await.unwrap();
    system
        .wait_for(first.run_id, |_| {
            let pattern = kernel::wait::ExternalPattern {
                source: "forge".into(),
                event_type: "forge.push".into(),
                subject: "acme/widget".into(),
                filter: None,
                exclusive: false,
                verify: None,
            };
            kernel::wait::Condition::External(pattern)
        })
        .await;
    system
        .until("look-back", async || (!system.events(first.run_id, "external.matched").await.is_empty()).then_some(()))
        .await;
    trigger.end(first.run_id).await;
    let third = trigger.event("3", "acme/widget").await;
    let runs = trigger.until(2).await;
    let ids: Vec<_> = runs.iter().map(|run| run.run_id).collect();
    assert_eq!((ids.len(), ids.contains(&third.run_id)), (2, true), "the second event started none");
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn what_a_start_is_held_back_with_is_kept_until_it_has_it() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    batch: { size: 2, within: 1h }\n").await;
    let retention = system.stack.engine(Role::Scheduler).await.unwrap().retention();
    let first = trigger.record("1", "acme/widget").await;
    let held = trigger.add(&first).await.unwrap();
    let other = trigger.record("none waits for this", "acme/gadget").await;
    for recorded in [&first, &other] {
        system.ingress.externals().mark_dispatched(recorded.external.position).await.unwrap();
    }
    assert_eq!(retention.prune_externals(Duration::ZERO, 10).await.unwrap(), 1, "all but what is held back");
    let running = system.scheduler(|_| {}).await;
    let second = trigger.record("2", "acme/widget").await;
    assert_eq!(trigger.add(&second).await.unwrap().run_id, held.run_id);
    trigger.until(1).await;
    let created = system.events(held.run_id, "run.created").await;
    let EventData::RunCreated(created) = &created[0].data else { panic!("no creation") };
    for id in ["\"1\"", "\"2\""] {
        assert!(created.input.text.contains(&format!("\"number\": {id}")), "{}", created.input.text);
    }
    // Then it may go like any other.
    system
        .until("forgetting", async || (retention.prune_externals(Duration::ZERO, 10).await.unwrap() == 1).then_some(()))
        .await;
    running.stop().await.unwrap();
    system.close().await;
}

#[tokio::test]
async fn a_start_without_events_is_none_and_says_why() {
    let system = System::new().await;
    let trigger = Trigger::new(&system, "    concurrency: 1\n    wake: true\n").await;
    let retention = system.stack.engine(Role::Scheduler).await.unwrap().retention();
    let lost = trigger.record("1", "acme/widget").await;
    system.ingress.externals().mark_dispatched(lost.external.position).await.unwrap();
    assert_eq!(retention.prune_externals(Duration::ZERO, 10).await.unwrap(), 1);
    trigger.add(&lost).await.unwrap();
    let running = system.scheduler(|_| {}).await;
    // Behind it in its line, so that it has been dealt with once this one begins.
    let next = trigger.event("2", "acme/widget").await;
    let runs = trigger.until(1).await;
    assert_eq!((runs.len(), runs[0].run_id), (1, next.run_id));
    let kept = system.stack.everything().await.unwrap();
    assert!(kept.contains("its events were forgotten before it could start"), "{kept}");
    assert!(!kept.contains("a run that waited has taken the events"));
    running.stop().await.unwrap();
    system.close().await;
}
