//! An agent's own schedules: made and deleted if a person agrees, kept apart, believed no further than what led to them.

use kernel::{Role, TenantId, Trust};
use serde_json::json;

use crate::house::House;

#[tokio::test]
async fn an_agent_makes_and_deletes_a_schedule_if_a_person_agrees() {
    let house = House::new(&["schedule.create", "schedule.delete", "schedule.list"], &[], "{}").await;
    let executor = house.executor();
    let schedules = house.engine(Role::Ingress).await.schedules();
    let tenant = TenantId::default();
    let arguments =
        json!({"name": "weekly", "cron": "0 9 * * MON", "input": "Look again.", "time_zone": "Europe/London"});
    // Whatever it read: it is asked.
    let (run, made) = house.run_one("schedule.create", arguments, Trust::Operator).await;
    let asked = house.question(run, 1).await;
    assert!(asked.reasons.iter().any(|reason| reason.starts_with("ask-schedule: ")), "{:?}", asked.reasons);
    assert!(schedules.get(&tenant, "weekly").await.unwrap().is_none());
    house.decide(run, asked.approval_id, None).await;
    let (end, words, _) = house.end_of(run, made).await;
    assert_eq!(end, "tool.completed", "{words}");
    let stored = schedules.get(&tenant, "weekly").await.unwrap().unwrap();
    assert_eq!((stored.maker.agent.as_deref(), stored.maker.trust), (Some("tester"), Trust::Trusted));
    assert_eq!(stored.maker.by, format!("run:{run}"));
    assert_eq!(stored.spec.start.as_ref().unwrap().agent, "tester", "it starts runs of itself");

    let (run, listed) = house.run_one("schedule.list", json!({}), Trust::Untrusted).await;
    let (end, _, block) = house.end_of(run, listed).await;
    assert_eq!((end, block.text.contains("Look again.")), ("tool.completed", true), "{}", block.text);
    assert_eq!(block.trust, Trust::Trusted);

    let (run, deleted) = house.run_one("schedule.delete", json!({"name": "weekly"}), Trust::Untrusted).await;
    house.decide(run, house.question(run, 1).await.approval_id, None).await;
    assert_eq!(house.end_of(run, deleted).await.0, "tool.completed");
    assert!(schedules.get(&tenant, "weekly").await.unwrap().is_none());
    house.close(vec![executor]).await;
}

#[tokio::test]
async fn what_an_agent_may_not_have_is_said() {
    let house = House::new(&["schedule.create"], &[], "{}").await;
    let mut config = house.config();
    config.max_schedules = 1;
    let executor = house.executor_with(config);
    for (arguments, code) in [
        (json!({"name": "often", "cron": "* * * * * *", "input": "x"}), "too_often"),
        (json!({"name": "never", "cron": "0 0 31 2 *", "input": "x"}), "invalid_arguments"),
        (json!({"name": "one", "cron": "@daily", "input": "x"}), ""),
        (json!({"name": "two", "cron": "@daily", "input": "x"}), "too_many_schedules"),
    ] {
        let (run, call_id) = house.run_one("schedule.create", arguments.clone(), Trust::Untrusted).await;
        house.decide(run, house.question(run, 1).await.approval_id, None).await;
        let (end, found, _) = house.end_of(run, call_id).await;
        if code.is_empty() {
            assert_eq!(end, "tool.completed", "{arguments}: {found}");
        } else {
            assert_eq!((end, found.as_str()), ("tool.failed", code), "{arguments}");
        }
    }
    house.close(vec![executor]).await;
}
