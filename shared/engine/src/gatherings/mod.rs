//! Starts that triggers hold back: events that are gathered, and runs that start when they may.
//!
//! A gathering is a run to be: the events that it will be given, and when it may start. Whoever finds an event for it adds
//! that, each event once; whoever finds it due starts it, under an id that is known from the beginning, so that doing either
//! again changes nothing. All of it is rows: nobody has to remember anything.

mod starting;

use std::sync::Arc;

use kernel::{
    RunId, TenantId, Timestamp,
    agent::{Batch, Debounce, Trigger},
    units::later,
};
use sqlx::{PgConnection, Row};

use crate::{
    agents::AgentTrigger,
    error::{EngineError, pg},
    externals::{RecordedExternal, lock_keys, lock_name},
    matching::FilterError,
    pool::Pool,
    reads::row::instant,
    schedules::run_id_at,
};

pub use starting::{Gathering, Hindrance};

/// The longest key, in bytes: what Postgres can index.
const KEY_BYTES: usize = 512;

/// What triggers hold back. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gatherings {
    pool: Pool,
    agents: crate::Agents,
}

/// Where an event went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The run that will be given it.
    pub run_id: RunId,
    /// When that may start, if nothing else is in its way.
    pub due: Timestamp,
    /// How many events it has by now.
    pub events: u32,
}

/// What tells apart the events of a trigger that are held back or counted by themselves: what its file says, or the event's
/// subject.
///
/// # Errors
/// When the expression makes no sense for this event.
pub fn gathering_key(trigger: &AgentTrigger, event: &serde_json::Value) -> Result<String, FilterError> {
    let text = match &trigger.key {
        Some(key) => key.text(event)?,
        None => event.get("subject").and_then(serde_json::Value::as_str).map(str::to_owned),
    };
    Ok(kernel::excerpt(&text.unwrap_or_default(), KEY_BYTES))
}

impl Gatherings {
    pub(crate) fn new(pool: Pool, agents: crate::Agents) -> Self {
        Self { pool, agents }
    }

    /// Holds an event back for a trigger: adds it to the gathering that is open, or opens one. The second time changes nothing.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn add(
        &self,
        recorded: &RecordedExternal,
        trigger: &AgentTrigger,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<Gathered>, EngineError> {
        let Some(rule) = trigger.trigger() else { return Ok(None) };
        let adding = || pg("gathering an event");
        let mut transaction = self.pool.begin().await.map_err(adding())?;
        let place = Place { recorded, trigger: Arc::clone(&trigger.agent), index: trigger.index, key };
        let lock = lock_name(recorded.tenant.as_str(), &format!("gather/{}/{}/{key}", place.trigger.name, place.index));
        lock_keys(&mut transaction, &[lock]).await?;
        if place.is_gathered(&mut transaction).await? {
            return Ok(None);
        }
        let gathered = match place.join(&mut transaction, rule, now).await? {
            Some(gathered) => gathered,
            None => place.open(&mut transaction, rule, now).await?,
        };
        place.note(&mut transaction, gathered.run_id).await?;
        transaction.commit().await.map_err(adding())?;
        Ok(Some(gathered))
    }
}

/// An event and the trigger that it meets.
struct Place<'a> {
    recorded: &'a RecordedExternal,
    trigger: Arc<crate::AgentVersion>,
    index: usize,
    key: &'a str,
}

impl Place<'_> {
    fn index(&self) -> i32 {
        i32::try_from(self.index).unwrap_or(i32::MAX)
    }

    async fn is_gathered(&self, transaction: &mut PgConnection) -> Result<bool, EngineError> {
        let row = sqlx::query(
            "select exists (select from gathered where tenant = $1 and agent = $2 and place = $3 and position = $4)",
        )
        .bind(self.recorded.tenant.as_str())
        .bind(&self.trigger.name)
        .bind(self.index())
        .bind(self.recorded.external.position)
        .fetch_one(transaction)
        .await;
        row.and_then(|row| row.try_get(0)).map_err(pg("looking for a gathered event"))
    }

    /// Adds to the open gathering, if there is one. Its row is changed only while it is open: whoever closes it meanwhile goes
    /// first.
    async fn join(
        &self,
        transaction: &mut PgConnection,
        rule: &Trigger,
        now: Timestamp,
    ) -> Result<Option<Gathered>, EngineError> {
        if rule.debounce.is_none() && rule.batch.is_none() {
            return Ok(None);
        }
        let quiet = rule.debounce.map(|debounce| later(now, debounce.quiet()));
        let joining = || pg("joining a gathering");
        let row = sqlx::query(concat!(
            "update gatherings g set events = events + 1,
                due = case when events + 1 >= $6 then least(due, ",
            instant!("$7"),
            ") when $8::bigint is null then due
                      else least(",
            instant!("$8"),
            ", opened_at + make_interval(secs => $9)) end,
                state = case when events + 1 >= $6 then 'closed' else state end
             where tenant = $1 and agent = $2 and digest = $3 and place = $4 and key = $5 and state = 'open'
             returning gathering_id, events, (extract(epoch from due) * 1000000)::bigint as due"
        ))
        .bind(self.recorded.tenant.as_str())
        .bind(&self.trigger.name)
        .bind(&self.trigger.digest)
        .bind(self.index())
        .bind(self.key)
        .bind(i32::try_from(most(rule)).unwrap_or(i32::MAX))
        .bind(now.as_microsecond())
        .bind(quiet.map(Timestamp::as_microsecond))
        .bind(longest(rule).std().as_secs_f64())
        .fetch_optional(transaction)
        .await
        .map_err(joining())?;
        let gathered = |row: sqlx::postgres::PgRow| {
            Ok(Gathered {
                run_id: RunId(row.try_get("gathering_id")?),
                due: crate::load::timestamp(row.try_get("due")?),
                events: row.try_get::<i32, _>("events")?.unsigned_abs(),
            })
        };
        row.map(gathered).transpose().map_err(joining())
    }

    async fn open(
        &self,
        transaction: &mut PgConnection,
        rule: &Trigger,
        now: Timestamp,
    ) -> Result<Gathered, EngineError> {
        let run_id = self.run_id();
        let gathers = (rule.debounce.is_some() || rule.batch.is_some()) && most(rule) > 1;
        let due = if gathers { first_due(rule, now) } else { now };
        sqlx::query(concat!(
            "insert into gatherings (gathering_id, tenant, agent, digest, place, key, state, events, opened_at, due)
             values ($1, $2, $3, $4, $5, $6, $7, 1, ",
            instant!("$8"),
            ", ",
            instant!("$9"),
            ")"
        ))
        .bind(run_id.0)
        .bind(self.recorded.tenant.as_str())
        .bind(&self.trigger.name)
        .bind(&self.trigger.digest)
        .bind(self.index())
        .bind(self.key)
        .bind(if gathers { "open" } else { "closed" })
        .bind(now.as_microsecond())
        .bind(due.as_microsecond())
        .execute(transaction)
        .await
        .map_err(pg("opening a gathering"))?;
        Ok(Gathered { run_id, due, events: 1 })
    }

    async fn note(&self, transaction: &mut PgConnection, run: RunId) -> Result<(), EngineError> {
        sqlx::query("insert into gathered (tenant, agent, place, position, gathering_id) values ($1, $2, $3, $4, $5)")
            .bind(self.recorded.tenant.as_str())
            .bind(&self.trigger.name)
            .bind(self.index())
            .bind(self.recorded.external.position)
            .bind(run.0)
            .execute(transaction)
            .await
            .map_err(pg("noting a gathered event"))?;
        Ok(())
    }

    /// As of a run that starts at once: the same whoever derives it.
    fn run_id(&self) -> RunId {
        triggered_run_id(
            &self.recorded.tenant,
            self.recorded.external.position,
            self.recorded.received_at,
            &self.trigger.name,
            self.index,
        )
    }
}

/// The id of the run that a trigger starts: the same whenever and wherever the event is handled again.
///
/// Its time is when the event was received; the rest follows from tenant, event, agent and the trigger's place in the agent's
/// file.
#[must_use]
pub fn triggered_run_id(
    tenant: &TenantId,
    position: i64,
    received_at: Timestamp,
    agent: &str,
    trigger: usize,
) -> RunId {
    run_id_at(received_at, &format!("{tenant}/{position}/{agent}/{trigger}"))
}

/// How many events a gathering takes.
fn most(rule: &Trigger) -> u32 {
    rule.batch.map_or(u32::MAX, |batch| batch.size)
}

/// How long a gathering stays open, however many come.
fn longest(rule: &Trigger) -> kernel::units::Duration {
    let spans = [rule.debounce.map(Debounce::at_most), rule.batch.map(|Batch { within, .. }| within)];
    spans.into_iter().flatten().min().unwrap_or_default()
}

/// When a gathering of one event is due.
fn first_due(rule: &Trigger, now: Timestamp) -> Timestamp {
    let quiet = rule.debounce.map(|debounce| later(now, debounce.quiet()));
    let longest = later(now, longest(rule));
    quiet.map_or(longest, |quiet| quiet.min(longest))
}

#[cfg(test)]
mod tests {
    use kernel::{agent::Bounded, units::Duration};

    use super::*;

    fn rule(debounce: Option<Debounce>, batch: Option<Batch>) -> Trigger {
        let mut trigger: Trigger = serde_json::from_value(serde_json::json!({"on": "a.b"})).unwrap();
        (trigger.debounce, trigger.batch) = (debounce, batch);
        trigger
    }

    #[test]
    fn a_gathering_is_due_when_the_first_of_its_bounds_is_reached() {
        let now = Timestamp::UNIX_EPOCH;
        let after = |rule: &Trigger| first_due(rule, now).as_second();
        let quiet = Debounce::Quiet(Duration::from_secs(30));
        assert_eq!(after(&rule(Some(quiet), None)), 30);
        assert_eq!(longest(&rule(Some(quiet), None)).as_millis(), 300_000);
        let bounded = Debounce::Bounded(Bounded { quiet: Duration::from_secs(30), at_most: Duration::from_secs(60) });
        assert_eq!(longest(&rule(Some(bounded), None)).as_millis(), 60_000);
        let batch = Batch { size: 5, within: Duration::from_secs(10) };
        assert_eq!(after(&rule(None, Some(batch))), 10);
        assert_eq!(after(&rule(Some(quiet), Some(batch))), 10);
        assert_eq!(most(&rule(Some(quiet), Some(batch))), 5);
    }

    #[test]
    fn a_triggered_run_has_one_id_that_sorts_by_time() {
        let tenant = TenantId::default();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let id = triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 0);
        assert_eq!(id, triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 0));
        assert_eq!(id.0.get_version_num(), 7);
        for other in [
            triggered_run_id(&tenant, 8, at(1_750_000_000_000), "a", 0),
            triggered_run_id(&tenant, 7, at(1_750_000_000_000), "b", 0),
            triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 1),
            triggered_run_id(&"other".parse().unwrap(), 7, at(1_750_000_000_000), "a", 0),
        ] {
            assert_ne!(id, other);
        }
        assert!(id < triggered_run_id(&tenant, 7, at(1_750_000_000_001), "a", 0));
    }
}
