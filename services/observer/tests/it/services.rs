//! Logs of services: what came of actions, how well the services are, and what observers that die leave behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bus::{Outgoing, ServeOptions, subject};
use engine::{ActionRow, ActionSlice, ActionState, RecordedAction};
use kernel::{
    ActionId, TenantId, Timestamp,
    action::{Action, ActionConclusion, ActionOutcome},
};
use serde_json::{Value, json, value::to_raw_value};
use tokio_util::sync::CancellationToken;

use crate::common::World;

const KEEPER: &str = r#"
name: keeper
model: scripted:none
instructions: Keep the shop.
tools: [http.get]
watch:
  - service: orders
    actions:
      success: ["shipped"]
      failure: ["rejected"]
      stages: [{ name: accepted, match: "accepted" }, { name: packed, match: "packed" }]
      within: 120s
      settle: 3s
      quiet: 120s
"#;

const HEALTH: &str = r#"
name: doctor
model: scripted:none
instructions: Look after the shop.
watch:
  - service: "shop-*"
    health:
      - name: errors
        errors: { count: 3, over: 60s }
        clear_after: 1s
      - name: queue
        field: { name: queue.depth, above: 100, clear: 50 }
        clear_after: 1s
    start: { input: Look after the shop. }
"#;

pub(crate) fn action(service: &str) -> Action {
    Action {
        action_id: ActionId::mint(),
        tenant: TenantId::default(),
        service: service.into(),
        actor: "ann".into(),
        what: "POST /orders".into(),
        expects: None,
        request_id: None,
        session_id: None,
        trace_id: None,
        components: Vec::new(),
        at: Timestamp::now(),
        run_id: None,
        call_id: None,
        recorded_by: "test".into(),
    }
}

impl World {
    pub(crate) async fn agent(&self, yaml: &str) {
        self.ingress.agents().put(&TenantId::default(), yaml, "test").await.unwrap();
    }

    pub(crate) async fn act(&self, action: &Action) {
        let recorded = self.ingress.actions().record(action, &action.action_id.to_string(), "").await.unwrap();
        assert_eq!(recorded, RecordedAction::New(action.action_id));
    }

    /// One message of a service's log.
    pub(crate) async fn log(&self, service: &str, lines: &[Value]) {
        let payload: Vec<String> =
            lines.iter().map(|line| line.as_str().map_or_else(|| line.to_string(), str::to_owned)).collect();
        let message = Outgoing::new(subject::log(TenantId::default(), service), payload.join("\n"));
        self.stack.bus().publisher().publish(message).await.unwrap();
    }

    pub(crate) async fn concluded_action(&self, action: &Action) -> ActionConclusion {
        self.until("conclusion", async || self.row(action).await.state == ActionState::Told).await;
        self.row(action).await.conclusion.unwrap()
    }

    async fn row(&self, action: &Action) -> ActionRow {
        self.ingress.actions().get(&action.tenant, action.action_id).await.unwrap().unwrap()
    }

    /// Lines of an action that are kept, over all services.
    pub(crate) async fn gathered(&self, action: &Action) -> u64 {
        let slices = self.ingress.actions().slices(&[action.action_id]).await.unwrap();
        slices
            .iter()
            .map(|slice| serde_json::from_str::<Value>(slice.state.get()).unwrap()["lines"].as_u64().unwrap())
            .sum()
    }

    /// Lines that may be an action's by their time and place alone; none if no reader has looked for it yet.
    async fn near(&self, action: &Action) -> Option<u64> {
        let slices = self.ingress.actions().slices(&[action.action_id]).await.unwrap();
        let near = |slice: &ActionSlice| serde_json::from_str::<Value>(slice.state.get()).unwrap()["near"].as_u64();
        slices.iter().filter_map(near).reduce(|one, other| one + other)
    }

    /// What was said beside runs: types and ids.
    pub(crate) async fn said(&self) -> Vec<(String, String)> {
        let undispatched = self.ingress.externals().undispatched_after(0, Duration::ZERO, 1000).await.unwrap();
        undispatched.into_iter().map(|said| (said.external.event_type, said.external.id)).collect()
    }
}

fn line(trace: &str, text: &str) -> Value {
    json!({ "msg": text, "trace_id": trace, "level": "info" })
}

#[tokio::test]
async fn the_lines_of_an_action_are_found_in_all_services() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let observer = world.observer();
    let run = world.activity("  - tool: shell.run\n    settle: 60s\n").await;
    let action = Action { trace_id: Some("aa00bb11cc22dd33".into()), run_id: Some(run.run), ..action("orders") };
    // Its first lines come before anybody hears of it, and what they say comes late and in disorder.
    world
        .log(
            "orders",
            &[line("AA00BB11CC22DD33", "accepted"), line("ffff00001111", "accepted"), line("ffff00001111", "rejected")],
        )
        .await;
    world.until("reading", async || world.has_reader().await).await;
    world.act(&action).await;
    let shipping = [
        line("aa00bb11cc22dd33", "shipped"),
        json!("INFO shipped [trace aa00bb11cc22dd33]"),
        json!("shipped aa00bb11cc22dd334"),
    ];
    let stock = [line("aa00bb11cc22dd33", "packed"), line("ffff00001111", "packed")];
    // Together, so that nothing is said after it has settled.
    tokio::join!(world.log("shipping", &shipping), world.log("stock", &stock));

    let conclusion = world.concluded_action(&action).await;
    let observation = &conclusion.observation;
    assert_eq!((conclusion.outcome, conclusion.stage.as_deref()), (ActionOutcome::TookEffect, Some("packed")));
    assert_eq!((observation.counts.lines, observation.anomaly), (4, false), "{observation:#?}");
    let services: Vec<_> = observation.evidence.iter().map(|evidence| evidence.service.as_deref().unwrap()).collect();
    assert_eq!(&services[..2], ["shipping", "shipping"], "what says most comes first: {observation:#?}");
    assert!(observation.evidence.iter().all(|evidence| evidence.offset > 0 && evidence.at.is_some()));
    // The run that asked is told, and woken.
    let told = world.observations(run.run).await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0], *observation);
    assert!(world.state(run.run).await.turn.is_some());
    assert!(world.said().await.is_empty(), "nobody else is told");
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn a_killed_observer_is_followed_by_one_that_concludes_once() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let action = Action { request_id: Some("req-000777".into()), ..action("orders") };
    let lines =
        |from: u32, to: u32| (from..to).map(|n| json!(format!("INFO step {n} of req-000777"))).collect::<Vec<_>>();
    let first = world.mortal_observer();
    world.act(&action).await;
    world.log("orders", &lines(0, 40)).await;
    world.until("first lines", async || world.gathered(&action).await == 40).await;
    drop(first);
    world.log("orders", &lines(40, 60)).await;
    world.log("billing", &lines(0, 10)).await;
    let second = world.mortal_observer();
    world.until("more lines", async || world.gathered(&action).await == 70).await;
    drop(second);
    let third = world.observer();
    world.log("orders", &[json!("INFO shipped req-000777")]).await;
    let conclusion = world.concluded_action(&action).await;
    assert_eq!((conclusion.outcome, conclusion.observation.counts.lines), (ActionOutcome::TookEffect, 71));
    third.stop().await.unwrap();
    // Whoever comes next reads the last seconds again, and says nothing again.
    let fourth = world.observer();
    world.until("reading", async || world.has_reader().await).await;
    let said = world.said().await;
    assert_eq!(said, [("observer.action.concluded".into(), format!("action/{}/keeper/0", action.action_id))]);
    fourth.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn actions_at_the_same_time_on_one_service_do_not_mix() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let observer = world.observer();
    let (one, two) = (
        Action { request_id: Some("req-one1".into()), ..action("orders") },
        Action { request_id: Some("req-two2".into()), ..action("orders") },
    );
    world.act(&one).await;
    world.act(&two).await;
    world.until("windows", async || world.ingress.actions().unfinished(10).await.unwrap().len() == 2).await;
    world
        .log(
            "orders",
            &[
                json!("INFO accepted req-one1"),
                json!("INFO accepted req-two2"),
                json!("INFO packed by somebody"),
                json!("ERROR rejected req-two2: no stock"),
                json!("INFO shipped req-one1"),
            ],
        )
        .await;
    let (first, second) = (world.concluded_action(&one).await, world.concluded_action(&two).await);
    assert_eq!((first.outcome, first.observation.counts.lines), (ActionOutcome::TookEffect, 2));
    assert_eq!((second.outcome, second.observation.counts.lines), (ActionOutcome::Failed, 2));
    assert!(second.observation.evidence[0].excerpt.contains("no stock"));
    assert!(first.observation.evidence.iter().all(|evidence| !evidence.excerpt.contains("two2")));
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn lines_of_an_action_that_is_heard_of_later_are_taken_back_from_the_one_that_had_them() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let observer = world.observer();
    let (one, two) = (
        Action { request_id: Some("req-one1".into()), ..action("orders") },
        Action { request_id: Some("req-two2".into()), ..action("orders") },
    );
    world.act(&one).await;
    world.until("readers", async || world.has_reader().await).await;
    // Nobody knows of the second yet: these may be the first one's.
    world.log("orders", &[json!("ERROR rejected req-two2: no stock"), json!("INFO packed by somebody")]).await;
    world.until("near lines", async || world.near(&one).await == Some(2)).await;
    world.act(&two).await;
    world.until("second look", async || world.near(&one).await == Some(0)).await;
    world.log("orders", &[json!("INFO shipped by somebody"), json!("INFO shipped req-two2")]).await;
    let second = world.concluded_action(&two).await;
    assert_eq!((second.outcome, second.observation.counts.lines), (ActionOutcome::TookEffect, 2), "{second:#?}");
    // Its last word comes when it is over, and is still nobody else's.
    world.log("orders", &[json!("ERROR rejected req-two2 late"), json!("INFO shipped req-one1")]).await;
    let first = world.concluded_action(&one).await;
    assert_eq!((first.outcome, first.observation.counts.lines), (ActionOutcome::TookEffect, 1), "{first:#?}");
    assert!(first.observation.evidence.iter().all(|evidence| !evidence.excerpt.contains("two2")), "{first:#?}");
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn what_another_observer_found_long_ago_still_counts() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let action = Action { request_id: Some("req-000888".into()), ..action("orders") };
    world.act(&action).await;
    // Acknowledged long ago by an observer that is gone: nobody reads it again.
    let state = to_raw_value(&json!({ "lines": 5, "last_at": Timestamp::now() })).unwrap();
    let slice = ActionSlice { action_id: action.action_id, service: "orders".into(), stream_seq: 0, state };
    world.ingress.actions().save_slices(vec![slice]).await.unwrap();
    let observer = world.observer();
    world.log("orders", &[json!("INFO shipped req-000888")]).await;
    let conclusion = world.concluded_action(&action).await;
    assert_eq!((conclusion.outcome, conclusion.observation.counts.lines), (ActionOutcome::TookEffect, 6));
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn an_action_without_an_id_is_known_by_its_time_and_place() {
    let world = World::new().await;
    world.agent(KEEPER).await;
    let observer = world.observer();
    let action = Action { components: vec!["orders-1".into()], ..action("orders") };
    let at = |millis: i64| action.at.checked_add(jiff::SignedDuration::from_millis(millis)).unwrap().to_string();
    let line = |pod: &str, millis, trace: &str, text: &str| json!({"time": at(millis), "pod": pod, "trace_id": trace, "msg": text});
    world.act(&action).await;
    world
        .log(
            "orders",
            &[
                line("orders-2", 1, "dddd0000", "accepted"),
                line("orders-1", 900, "bbbb0000", "accepted"),
                line("orders-1", 5, "aaaa0000", "accepted"),
                line("orders-1", -800, "cccc0000", "rejected"),
            ],
        )
        .await;
    world
        .log(
            "shipping",
            &[line("shipping-7", 60, "aaaa0000", "shipped"), line("shipping-7", 61, "bbbb0000", "rejected")],
        )
        .await;
    let conclusion = world.concluded_action(&action).await;
    assert_eq!(world.row(&action).await.adopted.as_deref(), Some("aaaa0000"));
    assert_eq!(
        (conclusion.outcome, conclusion.observation.counts.lines),
        (ActionOutcome::TookEffect, 2),
        "{conclusion:#?}"
    );
    observer.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn a_success_that_nothing_shows_is_a_failure() {
    let world = World::new().await;
    let verify = "      verify:\n        - tool: http.get\n          arguments: { url: \"http://orders/{request_id}\" }\n          \
                  expect: data.result.state == \"shipped\"\n";
    world.agent(&format!("{KEEPER}{verify}")).await;
    // The tool-executor's part.
    let asked = Arc::new(AtomicU64::new(0));
    let (stop, asking) = (CancellationToken::new(), asked.clone());
    let answer = move |question: Value| {
        asking.fetch_add(1, Ordering::Relaxed);
        assert_eq!((question["agent"].as_str(), question["tool"].as_str()), (Some("keeper"), Some("http.get")));
        let lies = question["arguments"]["url"] == "http://orders/req-lie1";
        let state = if lies { "new" } else { "shipped" };
        std::future::ready(Ok(json!({ "text": json!({ "state": state }).to_string(), "value": { "state": state } })))
    };
    let serving =
        world.stack.bus().serve_json(ServeOptions::new("tool-executor", "verify"), answer, stop.clone()).await.unwrap();
    let observer = world.observer();
    let (lie, truth) = (
        Action { request_id: Some("req-lie1".into()), ..action("orders") },
        Action { request_id: Some("req-true".into()), ..action("orders") },
    );
    world.act(&lie).await;
    world.act(&truth).await;
    world.log("orders", &[json!("INFO shipped req-lie1"), json!("INFO shipped req-true")]).await;
    let (lied, told) = (world.concluded_action(&lie).await, world.concluded_action(&truth).await);
    assert_eq!((lied.outcome, lied.observation.anomaly), (ActionOutcome::Failed, true), "{lied:#?}");
    assert_eq!(lied.observation.evidence[0].rule, "verify http.get");
    assert_eq!((told.outcome, told.observation.anomaly), (ActionOutcome::TookEffect, false));
    assert_eq!(asked.load(Ordering::Relaxed), 4, "what contradicts is looked at again, twice");
    observer.stop().await.unwrap();
    stop.cancel();
    serving.join().await;
    world.close().await;
}

#[tokio::test]
async fn alarms_are_told_once_and_so_is_their_end() {
    let world = World::new().await;
    world.agent(HEALTH).await;
    let first = world.mortal_observer();
    let errors: Vec<Value> = (0..4).map(|n| json!(format!("ERROR no route {n}"))).collect();
    world.log("shop-web", &errors).await;
    world.log("shop-db", &[json!({"msg": "stats", "queue": {"depth": 150}})]).await;
    world.log("other", &errors).await;
    world.until("alarms", async || world.said().await.len() == 2).await;
    // One that dies has told, and the next one knows.
    drop(first);
    let second = world.observer();
    world.log("shop-web", &errors).await;
    world
        .log(
            "shop-db",
            &[json!({"queue": {"depth": 70}}), json!({"queue": {"depth": 120}}), json!({"queue": {"depth": 40}})],
        )
        .await;
    world.until("recovery", async || world.said().await.len() >= 3).await;
    let said = world.said().await;
    let mut kinds: Vec<_> = said.iter().map(|(kind, id)| (kind.as_str(), id.split('/').nth(2).unwrap())).collect();
    kinds.sort_unstable();
    let firing = "observer.health.firing";
    assert_eq!(kinds, [(firing, "errors"), (firing, "queue"), ("observer.health.recovered", "queue")], "{said:?}");
    let alerts = world.ingress.services().alerts(&TenantId::default(), 10).await.unwrap();
    let states: Vec<_> = alerts.iter().map(|alert| (alert.service.as_str(), alert.state.as_str())).collect();
    assert_eq!(states, [("shop-web", "firing"), ("shop-db", "recovered")]);
    assert_eq!(alerts[0].what, "4 of 4 records within 60 s are faults");
    second.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn what_a_flood_leaves_out_is_counted() {
    let world = World::new().await;
    world.agent(HEALTH).await;
    let observer = world.observer_with(|config| config.records_per_second = 100);
    let lines: Vec<Value> = (0..500).map(|n| json!(format!("INFO spam {n}"))).collect();
    for _ in 0..40 {
        world.log("shop-web", &lines).await;
    }
    let gaps = async || world.ingress.services().gaps(&TenantId::default(), Timestamp::UNIX_EPOCH, 1000).await.unwrap();
    // They are counted bit by bit, as they come.
    let counted = async || gaps().await.iter().map(|gap| gap.messages).sum::<u64>();
    world.until("gaps", async || counted().await >= 10_000).await;
    let gaps = gaps().await;
    assert!(gaps.iter().all(|gap| gap.service.as_deref() == Some("shop-web") && gap.why == "throttled"), "{gaps:?}");
    observer.stop().await.unwrap();
    world.close().await;
}
