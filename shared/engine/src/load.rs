//! Loading runs: a snapshot or a checkpoint, and the tail of the log behind it.

use std::{collections::HashMap, sync::Arc};

use kernel::{Event, EventData, RunId, RunState, STATE_VERSION, Timestamp, apply};
use sqlx::{PgPool, Row};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    snapshot::Snapshots,
};

/// Events folded in one read: a longer log is read in pieces, so that memory stays bounded.
const TAIL: i64 = 2000;

/// Reads runs from wherever is nearest, and never hands out what is older than the log.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) pool: PgPool,
    pub(crate) snapshots: Snapshots,
}

impl Loader {
    /// Snapshots as they are, old or new: good enough to decide on, since the commit compares the seq.
    pub(crate) async fn hints(&self, runs: &[RunId]) -> HashMap<RunId, Arc<RunState>> {
        match self.snapshots.get(runs).await {
            Ok(found) => found.into_iter().flatten().map(|state| (state.run_id, Arc::new(state))).collect(),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no snapshots: loading from the log");
                HashMap::new()
            }
        }
    }

    /// The seqs of `runs` in Postgres; runs that do not exist are missing.
    pub(crate) async fn seqs(&self, runs: &[RunId]) -> Result<HashMap<RunId, u64>, EngineError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query("select run_id, seq from runs where run_id = any ($1)")
            .bind(ids)
            .fetch_all(&self.pool)
            .await
            .map_err(pg("reading the seq of runs"))?;
        rows.into_iter()
            .map(|row| Ok((RunId(row.try_get(0)?), row.try_get::<i64, _>(1)?.unsigned_abs())))
            .collect::<Result<_, sqlx::Error>>()
            .map_err(pg("reading the seq of runs"))
    }

    /// The run as the log has it now, from the snapshot and what came after it.
    pub(crate) async fn current(&self, run: RunId) -> Result<Option<Arc<RunState>>, EngineError> {
        let hint = self.hints(&[run]).await.remove(&run);
        self.catch_up(run, hint).await
    }

    /// Brings `hint` up to the log. A hint that is ahead of the log is a lie and is dropped.
    pub(crate) async fn catch_up(
        &self,
        run: RunId,
        hint: Option<Arc<RunState>>,
    ) -> Result<Option<Arc<RunState>>, EngineError> {
        let Some(seq) = self.seqs(&[run]).await?.get(&run).copied() else { return Ok(None) };
        let mut state = match hint.filter(|state| state.seq <= seq) {
            Some(state) if state.seq == seq => return Ok(Some(state)),
            Some(state) => Some(Arc::unwrap_or_clone(state)),
            None => self.checkpoint(run, seq).await?,
        };
        while state.as_ref().map_or(0, |state| state.seq) < seq {
            let after = state.as_ref().map_or(0, |state| state.seq);
            let tail = self.tail(run, after).await?;
            if tail.is_empty() {
                break;
            }
            for event in &tail {
                state = Some(apply(state, run, event)?);
            }
        }
        Ok(state.map(Arc::new))
    }

    async fn checkpoint(&self, run: RunId, at_most: u64) -> Result<Option<RunState>, EngineError> {
        let row = sqlx::query("select state::text, seq from checkpoints where run_id = $1 and state_version = $2")
            .bind(run.0)
            .bind(i32::try_from(STATE_VERSION).unwrap_or(i32::MAX))
            .fetch_optional(&self.pool)
            .await
            .map_err(pg("reading a checkpoint"))?;
        let state: Option<RunState> = row.and_then(|row| {
            let json: String = row.try_get(0).ok()?;
            serde_json::from_str(&json).ok()
        });
        Ok(state.filter(|state| state.seq <= at_most))
    }

    async fn tail(&self, run: RunId, after: u64) -> Result<Vec<Event>, EngineError> {
        let rows = sqlx::query(
            "select seq, type, version, (extract(epoch from at) * 1000000)::bigint, data::text
             from events where run_id = $1 and seq > $2 order by seq limit $3",
        )
        .bind(run.0)
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(TAIL)
        .fetch_all(&self.pool)
        .await
        .map_err(pg("reading the tail of a log"))?;
        rows.into_iter().map(|row| stored_event(&row)).collect()
    }
}

fn stored_event(row: &sqlx::postgres::PgRow) -> Result<Event, EngineError> {
    let read = pg("reading an event");
    let parts = || -> Result<(i64, String, i16, i64, String), sqlx::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
    };
    let (seq, event_type, version, micros, data) = parts().map_err(read)?;
    Ok(Event {
        seq: seq.unsigned_abs(),
        at: timestamp(micros),
        data: EventData::decode(&event_type, version.unsigned_abs(), &data)?,
    })
}

/// Microseconds since 1970 as a timestamp; beyond its range, the nearest end.
pub(crate) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(if micros < 0 { Timestamp::MIN } else { Timestamp::MAX })
}
