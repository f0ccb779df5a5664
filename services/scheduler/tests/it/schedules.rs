use std::collections::BTreeSet;

use engine::{FiringState, Maker, RunFilter, RunRow, Schedule, parse_schedule};
use kernel::{EventData, Status, TenantId, Timestamp, Trust, event::RunCreated};

use crate::common::System;

const AGENT: &str = "name: reporter\nmodel: scripted:none\ninstructions: Report.\nbudget: { turns: 5 }\n";

fn tenant() -> TenantId {
    TenantId::default()
}

fn ann() -> Maker {
    Maker { by: "operator:ann".into(), agent: None, trust: Trust::Operator }
}

async fn put(system: &System, what: &str, more: &str, maker: &Maker) -> Schedule {
    system.ingress.agents().put(&tenant(), AGENT, "ann").await.unwrap();
    let text = format!("name: tick\ncron: \"* * * * * *\"\n{what}\n{more}\n");
    let sound = parse_schedule(&text, Timestamp::now()).unwrap();
    system.ingress.schedules().put(&tenant(), &sound, maker, 10).await.unwrap()
}

const START: &str = "start: { agent: reporter, input: Report., objective: Know how it stands, budget: { turns: 3 }, metadata: { team: a } }";

async fn runs(system: &System) -> Vec<RunRow> {
    let filter = RunFilter { limit: 1000, ..RunFilter::default() };
    system.ingress.reads().runs(&tenant(), &filter).await.unwrap().items
}

async fn firings(system: &System, schedule: &Schedule, state: FiringState) -> Vec<engine::Firing> {
    let firings = system.ingress.schedules().firings(schedule.schedule_id, None, 1000).await.unwrap();
    firings.into_iter().filter(|firing| firing.state == state).collect()
}

async fn created(system: &System, run: &RunRow) -> RunCreated {
    match &system.events(run.run_id, "run.created").await[..] {
        [event] => match &event.data {
            EventData::RunCreated(created) => created.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_start_each_run_once() {
    let system = System::new().await;
    let schedule = put(&system, START, "overlap: allow", &ann()).await;
    let (first, second) = (system.scheduler(|_| {}).await, system.scheduler(|_| {}).await);
    system
        .until("three runs", async || {
            (firings(&system, &schedule, FiringState::Started).await.len() >= 3).then_some(())
        })
        .await;
    assert!(system.ingress.schedules().delete(&tenant(), "tick", None).await.unwrap());
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let runs = runs(&system).await;
    let mut times = BTreeSet::new();
    for run in &runs {
        let created = created(&system, run).await;
        assert!(times.insert(created.metadata["scheduled_for"].as_str().unwrap().to_owned()), "each time once");
        assert_eq!((created.objective.text.as_str(), created.input.text.as_str()), ("Know how it stands", "Report."));
        assert_eq!((created.objective.trust, created.input.source.as_str()), (Trust::Operator, "schedule:tick"));
        assert_eq!((created.limits.turns, &created.metadata["team"]), (Some(3), &"a".into()));
        assert_eq!(system.state(run.run_id).await.status(), Status::Runnable);
    }
    assert!(runs.len() >= 3);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_published_once_and_can_be_heard() {
    let system = System::new().await;
    let mut heard = system.stack.bus().subscribe("in.default.clock.bell.rung").await.unwrap();
    let publish = "publish: { type: bell.rung, source: clock, subject: tower, data: { bells: 8 } }";
    let schedule = put(&system, publish, "", &ann()).await;
    let (first, second) = (system.scheduler(|_| {}).await, system.scheduler(|_| {}).await);
    let message =
        tokio::time::timeout(crate::common::DEADLINE, futures::StreamExt::next(&mut heard)).await.unwrap().unwrap();
    let event: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!((&event["subject"], &event["data"]["bells"]), (&"tower".into(), &8.into()));
    system
        .until("three events", async || {
            (firings(&system, &schedule, FiringState::Published).await.len() >= 3).then_some(())
        })
        .await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    let published = firings(&system, &schedule, FiringState::Published).await.len();
    let recorded = system.ingress.externals().undispatched_after(0, std::time::Duration::ZERO, 1000).await.unwrap();
    let ids: BTreeSet<_> = recorded.iter().map(|event| event.external.id.clone()).collect();
    assert_eq!((recorded.len(), ids.len()), (published, published), "each time once");
    assert_eq!(recorded[0].external.resource_key, "clock:tower");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_in_the_way_is_cancelled_first() {
    let system = System::new().await;
    put(&system, START, "overlap: cancel", &ann()).await;
    let scheduler = system.scheduler(|_| {}).await;
    let ended = system
        .until("a cancelled run and the next", async || {
            let runs = runs(&system).await;
            let ended = runs.iter().find(|run| run.status == Status::Cancelled).cloned();
            ended.filter(|_| runs.iter().any(|run| run.status == Status::Runnable))
        })
        .await;
    let cancelled = system.events(ended.run_id, "run.cancelled").await;
    assert!(format!("{cancelled:?}").contains("schedule:tick"), "{cancelled:?}");
    scheduler.stop().await.unwrap();
    let under_way = runs(&system).await.into_iter().filter(|run| run.status == Status::Runnable).count();
    assert!(under_way <= 1, "never two side by side");
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_wrote_is_no_order_and_what_cannot_be_done_is_said() {
    let system = System::new().await;
    let bee = Maker { by: "run:7".into(), agent: Some("bee".into()), trust: Trust::Untrusted };
    let schedule = put(&system, "start: { agent: reporter, input: Obey me }", "overlap: allow", &bee).await;
    let scheduler = system.scheduler(|_| {}).await;
    let run = system.until("a run", async || runs(&system).await.pop()).await;
    let created = created(&system, &run).await;
    assert_eq!((created.objective.trust, created.objective.source.as_str()), (Trust::System, "runtime"));
    assert!(!created.objective.text.contains("Obey me"), "{}", created.objective.text);
    assert_eq!((created.input.text.as_str(), created.input.trust), ("Obey me", Trust::Untrusted));
    assert_eq!(created.input.source, "schedule:tick/run:7");

    put(&system, "start: { agent: nobody, input: Report. }", "overlap: allow", &ann()).await;
    let failed =
        system.until("a failed firing", async || firings(&system, &schedule, FiringState::Failed).await.pop()).await;
    assert!(failed.note.unwrap().contains("no agent `nobody`"));
    scheduler.stop().await.unwrap();
    system.close().await;
}
