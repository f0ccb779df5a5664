//! The board of everything suspended, and on what.

use kernel::{RunId, TenantId, Timestamp, WaitId, wait::WakeKind};
use serde::Serialize;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{
    Reads, limit,
    row::{Cells, micros},
};
use crate::error::{EngineError, pg};

/// One thing that a run waits for: a condition of its registered wait, or what its open calls and questions amount to.
#[derive(Clone, Debug, Serialize)]
pub struct WaitRow {
    /// Which run.
    pub run_id: RunId,
    /// Name of its agent.
    pub agent: String,
    /// The registered wait; none when it is only for open calls or questions.
    pub wait_id: Option<WaitId>,
    /// Which condition of the wait, from 0.
    pub leaf: Option<u32>,
    /// What kind of wake it would be.
    pub kind: WakeKind,
    /// `<source>:<subject>` of the outside event.
    pub resource_key: Option<String>,
    /// Type of the outside event; a `*` at the end stands for any rest.
    pub event_type: Option<String>,
    /// CEL that the outside event must meet.
    pub filter: Option<String>,
    /// Whether only one waiting run may have the event.
    pub exclusive: bool,
    /// When the timer is due.
    pub due: Option<Timestamp>,
    /// When the wait gives up.
    pub deadline: Option<Timestamp>,
    /// Why the run pauses.
    pub why: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

impl Reads {
    /// What this tenant's runs wait for, newest first; only wakes of `kind`, if one is given.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn waits(
        &self,
        tenant: &TenantId,
        kind: Option<WakeKind>,
        most: u32,
    ) -> Result<Vec<WaitRow>, EngineError> {
        let read = || pg("listing waits");
        // Calls and questions have no wait of their own: what the run says of its wake kinds stands for them.
        let rows = sqlx::query(concat!(
            "select run_id, agent, wait_id, leaf, kind, resource_key, event_type, filter, exclusive, why, ",
            micros!("due"), ", ", micros!("deadline"), ", ", micros!("since"), "
             from (
                select w.run_id, r.agent, w.wait_id, w.leaf, w.kind, w.resource_key, w.event_type, w.filter, w.exclusive,
                       w.why, case when w.kind = 'timer' then w.due end as due, w.deadline, w.since
                from waits w join runs r on r.run_id = w.run_id
                where w.tenant = $1
                union all
                select r.run_id, r.agent, null, null, k.kind, null, null, null, false, null, null, null, r.waiting_since
                from runs r cross join unnest(r.wake_kinds) as k (kind)
                where r.tenant = $1 and r.status = 'waiting' and r.waiting_since is not null
                  and not exists (select 1 from waits w where w.run_id = r.run_id and w.kind = k.kind)
             ) board
             where $2::text is null or kind = $2
             order by board.since desc, run_id desc, leaf limit $3"
        ))
        .bind(tenant.as_str())
        .bind(kind.map(WakeKind::as_str))
        .bind(limit(most))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(wait_row).collect::<Result<_, _>>().map_err(read())
    }
}

fn wait_row(row: &PgRow) -> Result<WaitRow, sqlx::Error> {
    let row = Cells(row);
    Ok(WaitRow {
        run_id: RunId(row.get("run_id")?),
        agent: row.get("agent")?,
        wait_id: row.get::<Option<Uuid>>("wait_id")?.map(WaitId),
        leaf: row.get::<Option<i32>>("leaf")?.map(i32::unsigned_abs),
        kind: row.word("kind")?,
        resource_key: row.get("resource_key")?,
        event_type: row.get("event_type")?,
        filter: row.get("filter")?,
        exclusive: row.get("exclusive")?,
        due: row.time_if_any("due")?,
        deadline: row.time_if_any("deadline")?,
        why: row.get("why")?,
        since: row.time("since")?,
    })
}
