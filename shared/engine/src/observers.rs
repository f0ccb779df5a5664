//! What observers keep: how far they have read, what they have in mind, and where archived output stands.

use kernel::{CallId, RunId, TenantId, Timestamp};
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, micros},
};

/// How far the observers have read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObserverCheckpoints {
    pool: Pool,
}

/// An observer's state of one call, as of one signal.
#[derive(Clone, Debug)]
pub struct ObserverCheckpoint {
    /// Which call.
    pub call_id: CallId,
    /// The run that asked for it.
    pub run_id: RunId,
    /// The last message of the stream of signals that the state includes.
    pub stream_seq: u64,
    /// The state.
    pub state: Box<RawValue>,
}

impl ObserverCheckpoints {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// The checkpoints of these calls; calls without one are missing.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn load(&self, calls: &[CallId]) -> Result<Vec<ObserverCheckpoint>, EngineError> {
        let read = || pg("reading observer checkpoints");
        let rows =
            sqlx::query("select call_id, run_id, stream_seq, state from observer_checkpoints where call_id = any ($1)")
                .bind(ids(calls))
                .fetch_all(&self.pool)
                .await
                .map_err(read())?;
        rows.iter().map(checkpoint).collect::<Result<_, _>>().map_err(read())
    }

    /// Stores checkpoints, all or none. One that is older than what is there changes nothing: an observer that lost its
    /// partition and does not know it yet cannot take the new one's state back. One that is as old counts: time alone may
    /// have told the observer something, such as that a call has fallen silent.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn save(&self, checkpoints: Vec<ObserverCheckpoint>) -> Result<(), EngineError> {
        let (mut calls, mut runs, mut seqs, mut states) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The last one of a call counts: one statement cannot write a row twice.
        let mut latest: std::collections::BTreeMap<CallId, ObserverCheckpoint> = std::collections::BTreeMap::new();
        for checkpoint in checkpoints {
            latest.insert(checkpoint.call_id, checkpoint);
        }
        for checkpoint in latest.into_values() {
            calls.push(checkpoint.call_id.0);
            runs.push(checkpoint.run_id.0);
            seqs.push(i64::try_from(checkpoint.stream_seq).unwrap_or(i64::MAX));
            states.push(Box::<str>::from(checkpoint.state).into_string());
        }
        if calls.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "insert into observer_checkpoints (call_id, run_id, stream_seq, state)
             select c.call_id, c.run_id, c.stream_seq, c.state::json
             from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]) as c (call_id, run_id, stream_seq, state)
             on conflict (call_id) do update
             set stream_seq = excluded.stream_seq, state = excluded.state, updated_at = now()
             where observer_checkpoints.stream_seq <= excluded.stream_seq",
        )
        .bind(calls)
        .bind(runs)
        .bind(seqs)
        .bind(states)
        .execute(&self.pool)
        .await
        .map_err(pg("writing observer checkpoints"))?;
        Ok(())
    }

    /// Forgets calls that have ended.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn remove(&self, calls: &[CallId]) -> Result<(), EngineError> {
        sqlx::query("delete from observer_checkpoints where call_id = any ($1)")
            .bind(ids(calls))
            .execute(&self.pool)
            .await
            .map_err(pg("removing observer checkpoints"))?;
        Ok(())
    }
}

/// Where archived raw output stands. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Segments {
    pool: Pool,
}

/// An archived piece of a call's raw output: the bytes `from_offset..to_offset`, the lines `from_line..to_line`, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which call.
    pub call_id: CallId,
    /// The run that asked for it.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// First byte.
    pub from_offset: u64,
    /// Byte after the last.
    pub to_offset: u64,
    /// First line.
    pub from_line: u64,
    /// Line after the last.
    pub to_line: u64,
    /// Where the object store has it.
    pub object_key: String,
    /// When it was stored; on the way in, the store's clock says.
    pub stored_at: Option<Timestamp>,
}

impl Segments {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Records a stored piece. Of several that begin at the same byte, the longest stays: output that was delivered again
    /// may have been cut elsewhere.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn insert(&self, segment: &Segment) -> Result<(), EngineError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        sqlx::query(
            "insert into signal_segments (call_id, from_offset, to_offset, from_line, to_line, run_id, tenant, object_key)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
             on conflict (call_id, from_offset) do update
             set to_offset = excluded.to_offset, to_line = excluded.to_line, object_key = excluded.object_key,
                 stored_at = now()
             where signal_segments.to_offset < excluded.to_offset",
        )
        .bind(segment.call_id.0)
        .bind(number(segment.from_offset))
        .bind(number(segment.to_offset))
        .bind(number(segment.from_line))
        .bind(number(segment.to_line))
        .bind(segment.run_id.0)
        .bind(segment.tenant.as_str())
        .bind(&segment.object_key)
        .execute(&self.pool)
        .await
        .map_err(pg("recording a segment"))?;
        Ok(())
    }

    /// Objects whose rows are gone, the longest abandoned first: they can be removed from the object store.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn abandoned(&self, most: u32) -> Result<Vec<String>, EngineError> {
        sqlx::query_scalar("select object_key from abandoned_objects order by abandoned_at, object_key limit $1")
            .bind(i64::from(most))
            .fetch_all(&self.pool)
            .await
            .map_err(pg("listing abandoned objects"))
    }

    /// Forgets abandoned objects that were removed.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn removed(&self, object_keys: &[String]) -> Result<(), EngineError> {
        sqlx::query("delete from abandoned_objects where object_key = any ($1)")
            .bind(object_keys)
            .execute(&self.pool)
            .await
            .map_err(pg("forgetting abandoned objects"))?;
        Ok(())
    }

    /// The pieces that hold any of the bytes `from..to` of a call of this tenant, in order.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId, call: CallId, from: u64, to: u64) -> Result<Vec<Segment>, EngineError> {
        let read = || pg("listing segments");
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let rows = sqlx::query(concat!(
            "select call_id, run_id, tenant, from_offset, to_offset, from_line, to_line, object_key, ",
            micros!("stored_at"),
            "
             from signal_segments where call_id = $1 and tenant = $2 and to_offset > $3 and from_offset < $4
             order by from_offset"
        ))
        .bind(call.0)
        .bind(tenant.as_str())
        .bind(number(from))
        .bind(number(to))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(segment).collect::<Result<_, _>>().map_err(read())
    }
}

fn ids(calls: &[CallId]) -> Vec<Uuid> {
    calls.iter().map(|call| call.0).collect()
}

fn checkpoint(row: &PgRow) -> Result<ObserverCheckpoint, sqlx::Error> {
    let row = Cells(row);
    Ok(ObserverCheckpoint {
        call_id: CallId(row.get("call_id")?),
        run_id: RunId(row.get("run_id")?),
        stream_seq: row.count("stream_seq")?,
        state: row.raw("state")?,
    })
}

fn segment(row: &PgRow) -> Result<Segment, sqlx::Error> {
    let row = Cells(row);
    Ok(Segment {
        call_id: CallId(row.get("call_id")?),
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        from_offset: row.count("from_offset")?,
        to_offset: row.count("to_offset")?,
        from_line: row.count("from_line")?,
        to_line: row.count("to_line")?,
        object_key: row.get("object_key")?,
        stored_at: row.time_if_any("stored_at")?,
    })
}
