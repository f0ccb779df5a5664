//! Starting what was held back, when nothing is in its way.

use std::{sync::Arc, time::Duration};

use kernel::{
    RunId, TenantId, Timestamp,
    agent::{Throttle, Trigger},
    event::ExternalRef,
    units::later,
};
use sqlx::{Row, postgres::PgRow};

use super::Gatherings;
use crate::{
    AgentVersion, RecordedExternal,
    error::{EngineError, pg},
    externals::recorded,
    reads::row::{Cells, instant, micros},
};

/// Most events of a gathering that its run is given; of more, the newest.
const EVENTS: i64 = 100;
/// How long a start waits before it is tried again whose place is taken by another run.
const OCCUPIED: Duration = Duration::from_millis(500);

/// A start that is due and that nobody else is at.
#[derive(Clone, Debug)]
pub struct Gathering {
    /// The run to be.
    pub run_id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// What it is held back and counted by.
    pub key: String,
    /// How many events it has.
    pub events: u32,
    /// The agent that it starts; none if that version is not stored any more.
    pub agent: Option<Arc<AgentVersion>>,
    place: i32,
    name: String,
}

/// What is in the way of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// As many runs have started as may, until then.
    Throttled(Timestamp),
    /// As many runs are under way as may.
    Occupied,
}

impl Gathering {
    /// The trigger that held it back.
    #[must_use]
    pub fn trigger(&self) -> Option<&Trigger> {
        let agent = self.agent.as_ref()?;
        agent.spec.triggers.get(usize::try_from(self.place).ok()?)
    }
}

impl Gatherings {
    /// Takes the starts that are due for `claim_for`, `limit` of them at most: of each trigger and key the first in line, so that
    /// whoever has it is the only one who counts.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn claim_due(
        &self,
        now: Timestamp,
        limit: u32,
        claim_for: Duration,
    ) -> Result<Vec<Gathering>, EngineError> {
        let claiming = || pg("claiming what is held back");
        let until = now.checked_add(claim_for).unwrap_or(Timestamp::MAX);
        let rows = sqlx::query(concat!(
            "with first as (
                select distinct on (tenant, agent, place, key) gathering_id, due, claimed_until
                from gatherings where state in ('open', 'closed')
                order by tenant, agent, place, key, opened_at, gathering_id
             ), mine as (
                select g.gathering_id from gatherings g join first using (gathering_id)
                where g.state in ('open', 'closed') and g.due <= ",
            instant!("$1"),
            " and (g.claimed_until is null or g.claimed_until <= ",
            instant!("$1"),
            ") order by g.due limit $2 for update of g skip locked
             )
             update gatherings g set state = 'closed', claimed_until = ",
            instant!("$3"),
            " from mine where g.gathering_id = mine.gathering_id
             returning g.gathering_id, g.tenant, g.agent, g.digest, g.place, g.key, g.events"
        ))
        .bind(now.as_microsecond())
        .bind(i64::from(limit))
        .bind(until.as_microsecond())
        .fetch_all(&self.pool)
        .await
        .map_err(claiming())?;
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            let (mut gathering, digest) = gathering(row).map_err(claiming())?;
            gathering.agent = self.agents.by_digest(&gathering.tenant, &gathering.name, &digest).await?;
            claimed.push(gathering);
        }
        Ok(claimed)
    }

    /// Whether anything is due by `now`: cheap, for whoever looks often.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn next_due(&self) -> Result<Option<Timestamp>, EngineError> {
        let read = || pg("looking at what is held back");
        let row = sqlx::query(concat!(
            "select ",
            micros!("due"),
            " from gatherings where state in ('open', 'closed') order by gatherings.due limit 1"
        ))
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        row.map(|row| Cells(&row).time("due")).transpose().map_err(read())
    }

    /// What is in the way of a start that is claimed.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn hindrance(&self, gathering: &Gathering, now: Timestamp) -> Result<Option<Hindrance>, EngineError> {
        let Some(trigger) = gathering.trigger() else { return Ok(None) };
        if let Some(most) = trigger.concurrency
            && self.under_way(gathering).await? >= u64::from(most)
        {
            return Ok(Some(Hindrance::Occupied));
        }
        let Some(Throttle { runs, per }) = trigger.throttle else { return Ok(None) };
        let read = || pg("counting what has started");
        let since = now.checked_sub(per.std()).unwrap_or(Timestamp::MIN);
        // The one that has to be too long ago before another may start.
        let row = sqlx::query(concat!(
            "select ",
            micros!("started_at"),
            " from gatherings where tenant = $1 and agent = $2 and place = $3 and key = $4
                and state in ('started', 'ended') and started_at > ",
            instant!("$5"),
            " order by gatherings.started_at desc offset $6 limit 1"
        ))
        .bind(gathering.tenant.as_str())
        .bind(&gathering.name)
        .bind(gathering.place)
        .bind(&gathering.key)
        .bind(since.as_microsecond())
        .bind(i64::from(runs.saturating_sub(1)))
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        let oldest = row.map(|row| Cells(&row).time("started_at")).transpose().map_err(read())?;
        Ok(oldest.map(|oldest| Hindrance::Throttled(later(oldest, per))))
    }

    /// How many runs of the same trigger and key have started and not ended. Those that have are noted on the way.
    async fn under_way(&self, gathering: &Gathering) -> Result<u64, EngineError> {
        let counting = || pg("counting what is under way");
        let row = sqlx::query(
            "with over as (
                update gatherings g set state = 'ended'
                where g.tenant = $1 and g.agent = $2 and g.place = $3 and g.key = $4 and g.state = 'started' and not exists
                    (select from runs r where r.run_id = g.gathering_id and r.status not in ('completed', 'failed', 'cancelled'))
                returning 1
             )
             select count(*) - (select count(*) from over) from gatherings
             where tenant = $1 and agent = $2 and place = $3 and key = $4 and state = 'started'",
        )
        .bind(gathering.tenant.as_str())
        .bind(&gathering.name)
        .bind(gathering.place)
        .bind(&gathering.key)
        .fetch_one(&self.pool)
        .await
        .map_err(counting())?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs).map_err(counting())
    }

    /// The newest events of a gathering, oldest first. What was forgotten meanwhile is missing.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn events(&self, gathering: &Gathering) -> Result<Vec<RecordedExternal>, EngineError> {
        let read = || pg("reading gathered events");
        let rows = sqlx::query(concat!(
            "select x.position, x.tenant, x.source, x.event, x.traceparent, true as dispatched, ",
            micros!("received_at"),
            " from gathered g join external_events x using (position)
             where g.gathering_id = $1 order by x.position desc limit $2"
        ))
        .bind(gathering.run_id.0)
        .bind(EVENTS)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().rev().map(recorded).collect::<Result<_, _>>().map_err(read())
    }

    /// Whether a run of this agent has taken the event by a wait.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn is_taken(&self, tenant: &TenantId, agent: &str, event: &ExternalRef) -> Result<bool, EngineError> {
        let row = sqlx::query(
            "select exists (select from events e join runs r using (run_id)
                where e.type = 'external.matched' and (e.data -> 'external' ->> 'position')::bigint = $1
                  and r.tenant = $2 and r.agent = $3)",
        )
        .bind(event.position)
        .bind(tenant.as_str())
        .bind(agent)
        .fetch_one(&self.pool)
        .await;
        row.and_then(|row| row.try_get(0)).map_err(pg("looking for who has taken an event"))
    }

    /// Puts a claimed start off.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn put_off(
        &self,
        gathering: &Gathering,
        hindrance: Hindrance,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        let due = match hindrance {
            Hindrance::Throttled(until) => until,
            Hindrance::Occupied => now.checked_add(OCCUPIED).unwrap_or(Timestamp::MAX),
        };
        sqlx::query(concat!(
            "update gatherings set claimed_until = null, due = ",
            instant!("$2"),
            " where gathering_id = $1 and state = 'closed'"
        ))
        .bind(gathering.run_id.0)
        .bind(due.as_microsecond())
        .execute(&self.pool)
        .await
        .map_err(pg("putting a start off"))?;
        Ok(())
    }

    /// Notes that the run of a gathering exists.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn started(&self, gathering: &Gathering, now: Timestamp) -> Result<(), EngineError> {
        self.settle(gathering, "started", now, None).await
    }

    /// Notes that no run is needed, and why.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn drop(&self, gathering: &Gathering, now: Timestamp, why: &str) -> Result<(), EngineError> {
        self.settle(gathering, "dropped", now, Some(why)).await
    }

    async fn settle(
        &self,
        gathering: &Gathering,
        state: &str,
        now: Timestamp,
        note: Option<&str>,
    ) -> Result<(), EngineError> {
        sqlx::query(concat!(
            "update gatherings set state = $2, note = $4, claimed_until = null, started_at = ",
            instant!("$3"),
            " where gathering_id = $1 and state = 'closed'"
        ))
        .bind(gathering.run_id.0)
        .bind(state)
        .bind(now.as_microsecond())
        .bind(note)
        .execute(&self.pool)
        .await
        .map_err(pg("noting what came of a start"))?;
        Ok(())
    }
}

fn gathering(row: &PgRow) -> Result<(Gathering, String), sqlx::Error> {
    let row = Cells(row);
    let gathering = Gathering {
        run_id: RunId(row.get("gathering_id")?),
        tenant: row.tenant()?,
        key: row.get("key")?,
        events: row.small("events")?,
        agent: None,
        place: row.get("place")?,
        name: row.get("agent")?,
    };
    Ok((gathering, row.get("digest")?))
}
