//! Schedules: what people and agents want done at times that come again.
//!
//! | to change | open |
//! | --- | --- |
//! | what a pattern means | `cron.rs` |
//! | what a change of the clock does | `cadence.rs` |
//! | what a schedule may say | `spec.rs` |
//! | what is due, overlaps, was missed | `plan.rs` |
//! | how it is decided once, however many keep time | `decide.rs` |
//! | how it stands in Postgres | `rows.rs` |

mod cadence;
mod cron;
mod decide;
mod ids;
mod plan;
mod rows;
mod spec;

use jiff::Timestamp;
use kernel::{RunId, Status, TenantId, Trust, schedule::ScheduleSpec};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    externals::{lock_keys, lock_name},
    pool::Pool,
    reads::row::{instant, micros},
};

use rows::{count_of, firing, insert, locked, reading, schedule, update};

pub use cadence::{Cadence, Times};
pub use cron::{CronError, CronPattern};
pub use decide::{Begin, Decided, Outcome as FiringOutcome};
pub use ids::run_id_at;
pub use spec::{ScheduleFileError, SoundSchedule, cadence_of, check_schedule, parse_schedule, read_schedule};

/// Most times that are filled in at once.
pub const MAX_BACKFILL: usize = 10_000;

/// The schedules of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schedules {
    pool: Pool,
}

/// A schedule as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Which one: a name that is used again after a deletion is another schedule.
    pub schedule_id: Uuid,
    /// Whose.
    pub tenant: TenantId,
    /// What it says.
    pub spec: ScheduleSpec,
    /// How often it was put in.
    pub revision: u64,
    /// Who made it.
    pub maker: Maker,
    /// When it was first put in.
    pub created_at: Timestamp,
    /// When it last changed.
    pub changed_at: Timestamp,
    /// Who did that.
    pub changed_by: String,
    /// Whether it is held.
    pub paused: bool,
}

/// Who made a schedule, and so how far what it says may be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maker {
    /// As shown: `operator:ann`, `run:<id>`.
    pub by: String,
    /// The agent whose run did; none if a person did.
    pub agent: Option<String>,
    /// How far what it says may be believed.
    pub trust: Trust,
}

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

/// Why a schedule was not put in.
#[derive(Debug, thiserror::Error)]
pub enum PutScheduleError {
    /// Its name is used for one that this maker may not change.
    #[error("there is a schedule `{name}` that this agent did not make: use another name")]
    Taken {
        /// The name.
        name: String,
    },
    /// The agent has as many as it may.
    #[error("this agent has {most} schedules, and no more may be: delete one first")]
    TooMany {
        /// How many may be.
        most: u32,
    },
    /// The store did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
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
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Puts a schedule in, or changes the one of this name. Times of the old one that were noted stay; if the times change,
    /// the new ones count from now on. An agent may change only what that agent made, and have `most` schedules.
    ///
    /// # Errors
    /// When the maker may not, or Postgres does not do it.
    pub async fn put(
        &self,
        tenant: &TenantId,
        sound: &SoundSchedule,
        maker: &Maker,
        most: u32,
    ) -> Result<Schedule, PutScheduleError> {
        let storing = || pg("storing a schedule");
        let now = Timestamp::now();
        let mut transaction = self.pool.begin().await.map_err(storing())?;
        if let Some(agent) = &maker.agent {
            lock_keys(&mut transaction, &[lock_name(tenant.as_str(), &format!("schedules/{agent}"))]).await?;
        }
        let name = &sound.spec.name;
        let known = locked(&mut transaction, tenant, name).await?;
        match known {
            Some((known, _)) if maker.agent.is_some() && known.maker.agent != maker.agent => {
                return Err(PutScheduleError::Taken { name: name.clone() });
            }
            Some((known, considered)) => {
                let keeps = known.spec.keeps_the_times_of(&sound.spec);
                let considered = if keeps { considered } else { now };
                update(&mut transaction, known.schedule_id, sound, maker, considered, now).await?;
            }
            None => {
                if let Some(agent) = &maker.agent
                    && count_of(&mut transaction, tenant, agent).await? >= i64::from(most)
                {
                    return Err(PutScheduleError::TooMany { most });
                }
                if !insert(&mut transaction, tenant, sound, maker, now).await? {
                    // Another one of this name came first, or is not this service's to see for a change.
                    return Err(match maker.agent {
                        Some(_) => PutScheduleError::Taken { name: name.clone() },
                        None => EngineError::Contended(1).into(),
                    });
                }
            }
        }
        let stored = locked(&mut transaction, tenant, name).await?;
        transaction.commit().await.map_err(storing())?;
        stored.map(|(schedule, _)| schedule).ok_or_else(|| EngineError::Contended(1).into())
    }

    /// The schedule of this name.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn get(&self, tenant: &TenantId, name: &str) -> Result<Option<Schedule>, EngineError> {
        const GET: &str = reading!("where tenant = $1 and name = $2");
        let read = || pg("reading a schedule");
        let row = sqlx::query(GET).bind(tenant.as_str()).bind(name).fetch_optional(&self.pool).await.map_err(read())?;
        row.map(|row| schedule(&row).map(|(schedule, _)| schedule)).transpose().map_err(read())
    }

    /// All schedules of a tenant, by name; with `agent` only those that this agent made.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId, agent: Option<&str>) -> Result<Vec<Schedule>, EngineError> {
        const LIST: &str = reading!("where tenant = $1 and ($2::text is null or agent = $2) order by name");
        let read = || pg("listing schedules");
        let rows = sqlx::query(LIST).bind(tenant.as_str()).bind(agent).fetch_all(&self.pool).await.map_err(read())?;
        rows.iter().map(|row| schedule(row).map(|(schedule, _)| schedule)).collect::<Result<_, _>>().map_err(read())
    }

    /// Deletes a schedule with what is noted of it; with `agent` only if this agent made it. Says whether there was one. A
    /// firing that is under way at that moment may still take place.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn delete(&self, tenant: &TenantId, name: &str, agent: Option<&str>) -> Result<bool, EngineError> {
        let deleted =
            sqlx::query("delete from schedules where tenant = $1 and name = $2 and ($3::text is null or agent = $3)")
                .bind(tenant.as_str())
                .bind(name)
                .bind(agent)
                .execute(&self.pool)
                .await
                .map_err(pg("deleting a schedule"))?;
        Ok(deleted.rows_affected() > 0)
    }

    /// Holds a schedule, or lets it go on. What passes in between is not made up for; firings that wait go on waiting.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn hold(
        &self,
        tenant: &TenantId,
        name: &str,
        paused: bool,
        by: &str,
    ) -> Result<Option<Schedule>, EngineError> {
        let now = Timestamp::now().as_microsecond();
        sqlx::query(concat!(
            "update schedules set paused = $3, changed_by = $4, changed_at = ",
            instant!("$5"),
            ", look_at = ",
            instant!("$5"),
            ", considered_until = case when paused then ",
            instant!("$5"),
            " else considered_until end
             where tenant = $1 and name = $2 and paused <> $3"
        ))
        .bind(tenant.as_str())
        .bind(name)
        .bind(paused)
        .bind(by)
        .bind(now)
        .execute(&self.pool)
        .await
        .map_err(pg("holding a schedule"))?;
        self.get(tenant, name).await
    }

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
