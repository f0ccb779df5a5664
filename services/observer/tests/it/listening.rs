//! Logs of services: what an agent says about their lines, and what their pace tells without a rule.

use engine::ServiceCheckpoint;
use jiff::SignedDuration;
use kernel::{TenantId, Timestamp, action::Action};
use observer::services::{evidence::Line, pace::Pace};
use serde_json::{Value, json, value::to_raw_value};
use signals::Record;

use crate::{common::World, services::action};

const LISTENER: &str = r#"
name: listener
model: scripted:none
instructions: Listen.
watch:
  - service: "shop-*"
    actions: { success: ["shipped"], settle: 1s }
"#;

const WAKER: &str = r#"
name: waker
model: scripted:none
instructions: Look after the shop.
watch:
  - service: shop-web
    observe:
      packs: [kubernetes]
      failure: ["declined by the bank"]
      records: [{ where: "data.http.status >= 500 && data.severity != 'debug'" }]
      settle: 1s
      escalate: [{ on: [burst], rule: learned, wake: now }]
    start: { input: Look after the shop. }
"#;

const FIRING: &str = "observer.health.firing";
const NOTICED: &str = "observer.health.noticed";

impl World {
    /// What an observer has in mind of a service, once it has kept that.
    async fn in_mind(&self, service: &str) -> ServiceCheckpoint {
        let find = async || {
            for partition in 0..bus::PARTITIONS {
                let kept = self.ingress.services().checkpoints(partition).await.unwrap();
                if let Some(found) = kept.into_iter().find(|kept| kept.service == service) {
                    return Some(found);
                }
            }
            None
        };
        self.until("checkpoint", async || find().await.is_some()).await;
        find().await.unwrap()
    }

    /// Types of what was said, and the alarms that it is about.
    async fn alarms(&self) -> Vec<(String, String)> {
        let said = self.said().await.into_iter();
        let mut alarms: Vec<_> = said
            .filter(|(kind, _)| kind.starts_with("observer.health."))
            .map(|(kind, id)| (kind, id.split('/').skip(1).take(2).collect::<Vec<_>>().join("/")))
            .collect();
        alarms.sort();
        alarms
    }
}

fn retrying(number: i64) -> Value {
    json!(format!("WARN retrying request {number}"))
}

#[tokio::test]
async fn a_burst_that_no_rule_names_is_told_and_shown_with_what_came_of_an_action() {
    let world = World::new().await;
    world.agent(LISTENER).await;
    world.agent(WAKER).await;
    let first = world.observer();
    world.log("shop-web", &[json!("INFO up")]).await;
    let kept = world.in_mind("shop-web").await;
    first.stop().await.unwrap();
    // It has retried once a second for ten minutes.
    let mut pace = Pace::default();
    let began = Timestamp::now().checked_sub(SignedDuration::from_secs(600)).unwrap();
    for second in 0..600 {
        let at = began.checked_add(SignedDuration::from_secs(second)).unwrap();
        let record = Record::from_line(retrying(second).as_str().unwrap().as_bytes());
        let told = pace.note(&record, at, || Line::new(&record, 1, 0, at));
        assert_eq!(told, None);
    }
    let mut mind: Value = serde_json::from_str(kept.state.get()).unwrap();
    mind["pace"] = serde_json::to_value(&pace).unwrap();
    let kept = ServiceCheckpoint { state: to_raw_value(&mind).unwrap(), ..world.in_mind("shop-web").await };
    world.ingress.services().save(vec![kept]).await.unwrap();

    let second = world.observer();
    let action = Action { request_id: Some("req-000999".into()), ..action("shop-web") };
    world.act(&action).await;
    world.log("shop-web", &[json!("INFO accepted req-000999")]).await;
    world.until("window", async || world.gathered(&action).await == 1).await;
    for _ in 0..3 {
        world.log("shop-web", &(0..700).map(retrying).collect::<Vec<_>>()).await;
    }
    world.until("burst", async || world.alarms().await.len() == 2).await;
    let burst = |kind: &str, agent: &str| (kind.to_owned(), format!("{agent}/observe.burst.learned"));
    assert_eq!(world.alarms().await, [burst(FIRING, "waker"), burst(NOTICED, "listener")]);
    world.log("shop-web", &[json!("INFO shipped req-000999")]).await;
    let conclusion = world.concluded_action(&action).await;
    let told = &conclusion.observation;
    assert!(told.anomaly && told.changed.contains("Meanwhile at `shop-web`: Lines of a kind came"), "{told:#?}");
    assert_eq!(told.counts.lines, 2, "no line of the burst is the action's");
    assert!(told.evidence.iter().any(|evidence| evidence.rule == "learned" && evidence.excerpt.contains("retrying")));
    // Whoever comes next reads the last seconds again, and tells nothing again.
    second.stop().await.unwrap();
    let third = world.observer();
    world.log("shop-web", &[json!("INFO bye")]).await;
    world.until("reading", async || world.has_reader().await).await;
    assert_eq!(world.alarms().await.len(), 2);
    third.stop().await.unwrap();
    world.close().await;
}

#[tokio::test]
async fn what_an_agent_says_about_lines_of_a_service_fires_also_over_a_crash() {
    let world = World::new().await;
    world.agent(WAKER).await;
    let first = world.mortal_observer();
    world.log("shop-web", &[json!("INFO all is well"), json!("WARN payment 7 declined by the bank")]).await;
    world.in_mind("shop-web").await;
    drop(first);
    let second = world.observer();
    world
        .log(
            "shop-web",
            &[
                json!({"severity": "INFO", "body": "GET /cart", "attributes": {"http.status": 503}}),
                json!("Warning BackOff pod/shop-web-1 Back-off restarting failed container"),
                json!({"severity": "INFO", "body": "GET /cart", "attributes": {"http.status": 200}}),
            ],
        )
        .await;
    world.until("alarm", async || !world.alarms().await.is_empty()).await;
    assert_eq!(world.alarms().await, [(FIRING.to_owned(), "waker/observe.failure".to_owned())]);
    let alerts = world.ingress.services().alerts(&TenantId::default(), 10).await.unwrap();
    assert_eq!((alerts.len(), alerts[0].state.as_str(), alerts[0].rule.as_str()), (1, "firing", "observe.failure"));
    assert!(alerts[0].what.contains("failure[0]"), "{:?}", alerts[0]);
    second.stop().await.unwrap();
    world.close().await;
}
