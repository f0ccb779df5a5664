//! Loading runs: a snapshot or a checkpoint, and the tail of the log behind it.

use std::{collections::HashMap, sync::Arc};

use kernel::{Event, EventData, RunId, RunState, STATE_VERSION, Timestamp, apply};
use sqlx::Row;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    snapshot::Snapshots,
};

/// Events folded in one read: a longer log is read in pieces, so that memory stays bounded.
const TAIL: i64 = 2000;

/// Reads runs from wherever is nearest, and never hands out what is older than the log.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) pool: Pool,
    pub(crate) snapshots: Snapshots,
}

/// Where a log ends.
#[derive(Clone, Copy)]
struct Head {
    seq: u64,
    at: Timestamp,
}

impl Head {
    /// Two logs may have the same number of events; that the last came at the same microsecond says that it is one log.
    fn is_of(self, state: &RunState) -> bool {
        state.seq == self.seq && state.updated_at == self.at
    }
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

    /// The last event of the run in Postgres; none if there is no such run.
    async fn head(&self, run: RunId) -> Result<Option<Head>, EngineError> {
        let read = || pg("reading the head of a run");
        let row =
            sqlx::query("select seq, (extract(epoch from updated_at) * 1000000)::bigint from runs where run_id = $1")
                .bind(run.0)
                .fetch_optional(&self.pool)
                .await
                .map_err(read())?;
        let head = |row: sqlx::postgres::PgRow| {
            Ok(Head { seq: row.try_get::<i64, _>(0)?.unsigned_abs(), at: timestamp(row.try_get(1)?) })
        };
        row.map(head).transpose().map_err(read())
    }

    /// The run as the log has it now, from the snapshot and what came after it.
    pub(crate) async fn current(&self, run: RunId) -> Result<Option<Arc<RunState>>, EngineError> {
        let hint = self.hints(&[run]).await.remove(&run);
        self.catch_up(run, hint).await
    }

    /// Brings `hint` up to the log. A hint of another log is a lie, and forgotten: ahead of this one, or with an event in it
    /// that this one does not have. Postgres may come back without commits that it had confirmed.
    pub(crate) async fn catch_up(
        &self,
        run: RunId,
        hint: Option<Arc<RunState>>,
    ) -> Result<Option<Arc<RunState>>, EngineError> {
        let Some(head) = self.head(run).await? else { return Ok(None) };
        if let Some(hint) = hint {
            if head.is_of(&hint) {
                return Ok(Some(hint));
            }
            let base = Arc::unwrap_or_clone(hint);
            let folded = if base.seq < head.seq { self.fold(run, Some(base), head.seq).await? } else { None };
            if let Some(state) = folded {
                return Ok(Some(Arc::new(state)));
            }
            tracing::warn!(run_id = %run, "a snapshot is of another log, and is forgotten");
            self.snapshots.forget(run).await;
        }
        let base = self.checkpoint(run, head.seq).await?;
        let state = match self.fold(run, base, head.seq).await? {
            Some(state) => Some(state),
            None => self.fold(run, None, head.seq).await?,
        };
        Ok(state.map(Arc::new))
    }

    /// What the log makes of `base`, up to event `seq` at least. None if `base` does not end with an event of this log, or
    /// if there is nothing to fold.
    async fn fold(&self, run: RunId, base: Option<RunState>, seq: u64) -> Result<Option<RunState>, EngineError> {
        // The last event of the base is read once more, to see whether it is the log's.
        let mut unseen = base.as_ref().map(|base| (base.seq, base.updated_at));
        let mut from = unseen.map_or(1, |(seq, _)| seq);
        let mut state = base;
        loop {
            let tail = self.tail(run, from).await?;
            if tail.is_empty() {
                break;
            }
            for event in &tail {
                from = event.seq + 1;
                match unseen.take() {
                    Some(last) if last != (event.seq, event.at) => return Ok(None),
                    Some(_) => {}
                    None => state = Some(apply(state, run, event)?),
                }
            }
            if from > seq {
                break;
            }
        }
        Ok(state.filter(|_| unseen.is_none()))
    }

    /// The run as it was after event `seq`, from the beginning of its log or a checkpoint before that.
    pub(crate) async fn at(&self, run: RunId, seq: u64) -> Result<Option<RunState>, EngineError> {
        let mut state = self.checkpoint(run, seq).await?;
        loop {
            let from = state.as_ref().map_or(1, |state| state.seq + 1);
            if from > seq {
                return Ok(state);
            }
            let tail = self.tail(run, from).await?;
            let wanted: Vec<_> = tail.into_iter().take_while(|event| event.seq <= seq).collect();
            if wanted.is_empty() {
                return Ok(None);
            }
            for event in &wanted {
                state = Some(apply(state, run, event)?);
            }
        }
    }

    /// What the log of a run begins with.
    pub(crate) async fn first(&self, run: RunId) -> Result<Option<EventData>, EngineError> {
        Ok(self.tail(run, 1).await?.into_iter().next().map(|event| event.data))
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

    /// Events from number `from` on.
    async fn tail(&self, run: RunId, from: u64) -> Result<Vec<Event>, EngineError> {
        let rows = sqlx::query(
            "select seq, type, version, (extract(epoch from at) * 1000000)::bigint, data::text
             from events where run_id = $1 and seq >= $2 order by seq limit $3",
        )
        .bind(run.0)
        .bind(i64::try_from(from).unwrap_or(i64::MAX))
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
