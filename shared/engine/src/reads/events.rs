//! The log of a run, as stored.

use kernel::{Cause, DecodeError, Event, EventData, RunId, Seq, TenantId, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;

use super::{
    MAX_ROWS, Reads, limit,
    row::{Cells, micros},
};
use crate::error::{EngineError, pg};

/// An event as it is stored, with its content as it was written.
#[derive(Clone, Debug, Serialize)]
pub struct StoredEvent {
    /// Which run.
    pub run_id: RunId,
    /// Its number within the run.
    pub seq: Seq,
    /// Whose run.
    pub tenant: TenantId,
    /// The name of its type, such as `run.created`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of its content.
    pub version: u16,
    /// When it was decided.
    pub at: Timestamp,
    /// What led to it.
    pub cause: Cause,
    /// Its content.
    pub data: Box<RawValue>,
}

impl StoredEvent {
    /// The event that it says, lifted to what this code reads.
    ///
    /// # Errors
    /// When the type or its version is unknown, or the content does not fit.
    pub fn decode(&self) -> Result<Event, DecodeError> {
        let data = EventData::decode(&self.event_type, self.version, self.data.get())?;
        Ok(Event { seq: self.seq, at: self.at, data })
    }
}

/// Events of run $1 of tenant $2 behind number $3, $4 of them at most. A run's numbers have no holes, so that the last of a page is
/// known: without that bound a plan may read the whole rest of a long log and sort it, for every page.
pub(crate) const PAGE: &str = concat!(
    "select run_id, seq, tenant, type, version, ",
    micros!("at"),
    ", cause, data
             from events where run_id = $1 and tenant = $2 and seq > $3 and seq <= $3 + $4 order by seq limit $4"
);

impl Reads {
    /// Events of a run of this tenant after number `after`, in order, `most` of them at most.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn events(
        &self,
        tenant: &TenantId,
        run: RunId,
        after: Seq,
        most: u32,
    ) -> Result<Vec<StoredEvent>, EngineError> {
        let read = || pg("reading events");
        let rows = sqlx::query(PAGE)
            .bind(run.0)
            .bind(tenant.as_str())
            // So far off that nothing is behind it, and near enough to add a page.
            .bind(i64::try_from(after).unwrap_or(i64::MAX).min(i64::MAX - i64::from(MAX_ROWS)))
            .bind(limit(most))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(stored).collect::<Result<_, _>>().map_err(read())
    }

    /// The number of the last event of each of these runs, whosever they are; those that do not exist are left out.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn last_events(&self, runs: &[RunId]) -> Result<Vec<(RunId, Seq)>, EngineError> {
        let read = || pg("reading how far runs are");
        let ids: Vec<_> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query("select run_id, seq from runs where run_id = any($1)")
            .bind(ids)
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        let position = |row: &PgRow| Ok((RunId(Cells(row).get("run_id")?), Cells(row).count("seq")?));
        rows.iter().map(position).collect::<Result<_, sqlx::Error>>().map_err(read())
    }
}

fn stored(row: &PgRow) -> Result<StoredEvent, sqlx::Error> {
    let row = Cells(row);
    Ok(StoredEvent {
        run_id: RunId(row.get("run_id")?),
        seq: row.count("seq")?,
        tenant: row.tenant()?,
        event_type: row.get("type")?,
        version: row.get::<i16>("version")?.unsigned_abs(),
        at: row.time("at")?,
        cause: row.json("cause")?,
        data: row.raw("data")?,
    })
}
