//! Schedules: what people and agents want done at times that come again.
//!
//! | to change | open |
//! | --- | --- |
//! | what a pattern means | `cron.rs` |
//! | what a change of the clock does | `cadence.rs` |
//! | what a schedule may say | `spec.rs` |
//! | what is due, overlaps, was missed | `plan.rs` |
//! | how it is decided once, however many keep time | `decide.rs` |
//! | what became of its times, and filling them in afterwards | `firings.rs` |
//! | how it stands in Postgres | `rows.rs` |

mod cadence;
mod cron;
mod decide;
mod firings;
mod ids;
mod plan;
mod rows;
mod spec;

use jiff::Timestamp;
use kernel::{TenantId, Trust, schedule::ScheduleSpec};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    externals::{lock_keys, lock_name},
    pool::Pool,
    reads::row::{instant, micros},
};

use rows::{count_of, insert, locked, reading, schedule, update};

pub use cadence::{Cadence, Times};
pub use cron::{CronError, CronPattern};
pub use decide::{Begin, Decided, Outcome as FiringOutcome};
pub use firings::{BackfillError, Backfilled, Firing, FiringKind, FiringState, MAX_BACKFILL};
pub use ids::run_id_at;
pub use spec::{ScheduleFileError, SoundSchedule, cadence_of, check_schedule, parse_schedule, read_schedule};

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
}
