//! The times of a schedule as they are noted: what became of each, and filling in what has passed.

use jiff::Timestamp;
use kernel::{RunId, Status, TenantId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Schedules,
    rows::{firing, locked},
    spec::{ScheduleFileError, cadence_of},
};
use crate::{
    error::{EngineError, pg},
    reads::row::{instant, micros},
};

/// Most times that are filled in at once.
pub const MAX_BACKFILL: usize = 10_000;

/// Why a firing was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiringKind {
    /// Its time had come.
    Regular,
    /// Its time had passed while no scheduler was there.
    MadeUp,
    /// Somebody asked for it afterwards.
    Backfill,
}

/// Where a firing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FiringState {
    /// Noted: put off by jitter, or waiting for a run to end.
    Waiting,
    /// Decided; somebody is at it.
    Starting,
    /// Its run was started.
    Started,
    /// Its run has been seen to have ended.
    Ended,
    /// Its event was published.
    Published,
    /// It does not take place, since another run is under way.
    Skipped,
    /// It did not take place, since no scheduler was there.
    Missed,
    /// It could not be done.
    Failed,
}

/// A firing as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Firing {
    /// The time of the schedule that it is for.
    pub fire_at: Timestamp,
    /// That and its jitter.
    pub due: Timestamp,
    /// Why it was noted.
    pub kind: FiringKind,
    /// Where it stands.
    pub state: FiringState,
    /// The run that it started.
    pub run_id: Option<RunId>,
    /// Where that stands.
    pub run_status: Option<Status>,
    /// Why it did not take place.
    pub note: Option<String>,
    /// When it was noted.
    pub decided_at: Timestamp,
}

/// What came of filling in times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backfilled {
    /// Times that will be fired.
    pub noted: u64,
    /// Times that were fired before, or will be anyway.
    pub known: u64,
}

/// Why times were not filled in.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    /// There is no such schedule.
    #[error("there is no schedule `{0}`")]
    Unknown(String),
    /// There are too many of them.
    #[error("there are more than {MAX_BACKFILL} times between those two: give a shorter range")]
    TooMany,
    /// The stored schedule can't be used.
    #[error(transparent)]
    Schedule(#[from] ScheduleFileError),
    /// The store did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Schedules {
    /// Fires the times of a schedule between two that have passed, both included, each once: those that were fired before are
    /// left alone. Runs start one after the other, in order, or with `at_once` side by side.
    ///
    /// # Errors
    /// When there is no such schedule, the range holds too much, or Postgres does not do it.
    pub async fn backfill(
        &self,
        tenant: &TenantId,
        name: &str,
        (from, to): (Timestamp, Timestamp),
        at_once: bool,
    ) -> Result<Backfilled, BackfillError> {
        let storing = || pg("filling in the times of a schedule");
        let mut transaction = self.pool.begin().await.map_err(storing())?;
        let Some((schedule, _)) = locked(&mut transaction, tenant, name).await? else {
            return Err(BackfillError::Unknown(name.to_owned()));
        };
        let cadence = cadence_of(&schedule.spec)?;
        let before = from.checked_sub(std::time::Duration::from_nanos(1)).unwrap_or(from);
        let times = cadence.after(before).take_while(|time| *time <= to).take(MAX_BACKFILL + 1);
        let times: Vec<i64> = times.map(Timestamp::as_microsecond).collect();
        if times.len() > MAX_BACKFILL {
            return Err(BackfillError::TooMany);
        }
        let now = Timestamp::now().as_microsecond();
        let noted = sqlx::query(concat!(
            "insert into firings (schedule_id, fire_at, due, kind, at_once, state, decided_at)
             select $1, f.at, f.at, 'backfill', $3, 'waiting', ",
            instant!("$4"),
            " from (select timestamptz 'epoch' + at * interval '1 microsecond' as at from unnest($2::bigint[]) as t (at)) f
             on conflict (schedule_id, fire_at) do update
             set kind = 'backfill', at_once = excluded.at_once, state = 'waiting', due = excluded.due, note = null,
                 decided_at = excluded.decided_at
             where firings.state in ('skipped', 'missed', 'failed')"
        ))
        .bind(schedule.schedule_id)
        .bind(&times)
        .bind(at_once || schedule.spec.publish.is_some())
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(storing())?
        .rows_affected();
        sqlx::query(concat!("update schedules set look_at = ", instant!("$2"), " where schedule_id = $1"))
            .bind(schedule.schedule_id)
            .bind(now)
            .execute(&mut *transaction)
            .await
            .map_err(storing())?;
        transaction.commit().await.map_err(storing())?;
        Ok(Backfilled { noted, known: (times.len() as u64).saturating_sub(noted) })
    }

    /// What became of the times of a schedule, the latest first, from before a time on.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn firings(
        &self,
        schedule_id: Uuid,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<Firing>, EngineError> {
        let read = || pg("reading firings");
        let rows = sqlx::query(concat!(
            "select f.kind, f.state, f.run_id, f.note, r.status, ",
            micros!("fire_at"),
            ", ",
            micros!("due"),
            ", ",
            micros!("decided_at"),
            "
             from firings f left join lateral (select status from runs where runs.run_id = f.run_id limit 1) r on true
             where schedule_id = $1 and ($2::bigint is null or fire_at < ",
            instant!("$2"),
            ") order by f.fire_at desc limit $3"
        ))
        .bind(schedule_id)
        .bind(before.map(Timestamp::as_microsecond))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(firing).collect::<Result<_, _>>().map_err(read())
    }
}
