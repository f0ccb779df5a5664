//! Runs that wait for admission.

use kernel::{RunId, TenantId};
use sqlx::postgres::PgRow;

use super::{Reads, limit, row::Cells};
use crate::error::{EngineError, pg};

/// A run that waits for admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Which run.
    pub run_id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Whether its spans are exported.
    pub sampled: bool,
    /// Whether its tenant has room for it, behind those that came before it.
    pub has_room: bool,
}

impl Reads {
    /// Queued runs, those with room first, each tenant's in the order in which they came. A tenant has room while fewer than
    /// `max_running` of its runs have an open turn; 0 is room for all.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn queued(&self, max_running: u32, most: u32) -> Result<Vec<Queued>, EngineError> {
        let read = || pg("looking at the queue");
        // Both statuses ask for attention, so that the index of those that do is all that is read.
        let rows = sqlx::query(
            "with running as (
                select tenant, count(*) as runs from runs where attention and status = 'runnable' group by tenant
             ), queue as (
                select run_id, tenant, sampled, row_number() over (partition by tenant order by created_at, run_id) as place
                from runs where attention and status = 'queued'
             )
             select run_id, tenant, sampled, $1 = 0 or place + coalesce(runs, 0) <= $1 as has_room
             from queue left join running using (tenant)
             order by has_room desc, place, run_id limit $2",
        )
        .bind(i64::from(max_running))
        .bind(limit(most))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(queued).collect::<Result<_, _>>().map_err(read())
    }
}

fn queued(row: &PgRow) -> Result<Queued, sqlx::Error> {
    let row = Cells(row);
    Ok(Queued {
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        sampled: row.get("sampled")?,
        has_room: row.get("has_room")?,
    })
}
