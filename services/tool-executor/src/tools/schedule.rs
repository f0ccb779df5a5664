//! `schedule.create`, `schedule.delete` and `schedule.list`: an agent's own schedules, which start runs of the same agent.
//!
//! What such a run is started with was written by a model: it is believed no further than what that turn had seen, and never
//! like a person's word.

use std::time::Duration;

use engine::{Maker, PutScheduleError, Schedule, Schedules, cadence_of, check_schedule};
use kernel::{Timestamp, Trust, schedule::ScheduleSpec};
use serde_json::{Value, json};

use super::{Invocation, required};
use crate::outcome::{Content, Happened, ToolError};

/// Agents' schedules fire no more often than this.
const CLOSEST: Duration = Duration::from_secs(60);
/// Coming times that an agent is shown.
const NEXT: usize = 3;
/// Arguments that are the schedule's own fields.
const FIELDS: [&str; 9] = ["name", "description", "cron", "time_zone", "dst", "overlap", "jitter", "from", "until"];

/// Makes a schedule, or changes one that this agent made.
pub(super) async fn create(schedules: &Schedules, most: u32, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let now = Timestamp::now();
    let sound = check_schedule(spec(invocation)?, now).map_err(|error| {
        let field = error.field.as_deref().unwrap_or_default().trim_start_matches("start.");
        ToolError::final_("invalid_arguments", format!("`{field}`: {}: {}", error.message, error.remedy))
    })?;
    if sound.closest_after(now).is_some_and(|closest| closest < CLOSEST) {
        let words = "`cron`: it fires more often than once a minute: leave more time between";
        return Err(ToolError::final_("too_often", words));
    }
    let maker = Maker {
        by: format!("run:{}", invocation.run),
        agent: Some(invocation.agent.to_owned()),
        trust: invocation.trust.join(Trust::Trusted),
    };
    let stored = schedules.put(invocation.tenant, &sound, &maker, most).await.map_err(|error| match error {
        PutScheduleError::Engine(error) => ToolError::transient("store", error.to_string(), Happened::Unknown),
        error @ PutScheduleError::Taken { .. } => ToolError::final_("taken", error.to_string()),
        error @ PutScheduleError::TooMany { .. } => ToolError::final_("too_many_schedules", error.to_string()),
    })?;
    let next = next(&stored, now);
    let words = match next.first() {
        Some(first) => format!("schedule {} is in force, next at {first}", stored.spec.name),
        None => format!("schedule {} is in force", stored.spec.name),
    };
    Ok(Content::own(words, json!({"name": stored.spec.name, "revision": stored.revision, "next": next})))
}

/// Deletes a schedule that this agent made. One that is gone is gone.
pub(super) async fn delete(schedules: &Schedules, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let name = required(invocation, "name")?;
    let deleted = schedules
        .delete(invocation.tenant, name, Some(invocation.agent))
        .await
        .map_err(|error| ToolError::transient("store", error.to_string(), Happened::Unknown))?;
    let words = if deleted { "deleted" } else { "this agent has no schedule of that name" };
    Ok(Content::own(words, json!({"deleted": deleted})))
}

/// Lists the schedules that this agent made.
pub(super) async fn list(schedules: &Schedules, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let mine = schedules
        .list(invocation.tenant, Some(invocation.agent))
        .await
        .map_err(|error| ToolError::transient("store", error.to_string(), Happened::No))?;
    let now = Timestamp::now();
    let shown: Vec<Value> = mine
        .iter()
        .map(|schedule| {
            let (spec, next) = (&schedule.spec, next(schedule, now));
            let input = spec.start.as_ref().map(|run| run.input.clone());
            json!({
                "name": spec.name, "cron": spec.cron, "time_zone": spec.time_zone, "input": input, "paused": schedule.paused,
                "made_by": schedule.maker.by, "next": next,
            })
        })
        .collect();
    let value = Value::Array(shown);
    let mut content = Content::own(value.to_string(), value);
    "application/json".clone_into(&mut content.media_type);
    content.trust = Trust::join_all(mine.iter().map(|schedule| schedule.maker.trust));
    Ok(content)
}

/// The schedule that the arguments say, of the agent that asks.
fn spec(invocation: Invocation<'_>) -> Result<ScheduleSpec, ToolError> {
    let given = |name: &str| invocation.arguments.get(name).filter(|value| !value.is_null()).cloned();
    let mut spec = serde_json::Map::new();
    spec.extend(FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), given(name)?))));
    let start = json!({"agent": invocation.agent, "input": given("input"), "objective": given("objective")});
    spec.insert("start".to_owned(), start);
    serde_json::from_value(Value::Object(spec))
        .map_err(|error| ToolError::final_("invalid_arguments", format!("no schedule: {error}")))
}

fn next(schedule: &Schedule, now: Timestamp) -> Vec<Timestamp> {
    if schedule.paused {
        return Vec::new();
    }
    cadence_of(&schedule.spec).map(|cadence| cadence.after(now).take(NEXT).collect()).unwrap_or_default()
}
