//! The rows of schedules and firings, and what is done to one within a transaction.

use jiff::Timestamp;
use kernel::{RunId, TenantId};
use sqlx::{PgConnection, postgres::PgRow};
use uuid::Uuid;

use super::{Firing, Maker, Schedule, SoundSchedule};
use crate::{
    error::{EngineError, pg},
    reads::row::{Cells, instant, micros},
};

/// A statement that reads whole schedules.
macro_rules! reading {
    ($rest:literal) => {
        concat!(
            "select schedule_id, tenant, spec, revision, agent, made_by, trust, changed_by, paused, ",
            micros!("created_at"),
            ", ",
            micros!("changed_at"),
            ", ",
            micros!("considered_until"),
            " from schedules ",
            $rest
        )
    };
}
pub(super) use reading;

/// The schedule of this name, locked until the transaction ends, and until when its times are decided.
pub(super) async fn locked(
    transaction: &mut PgConnection,
    tenant: &TenantId,
    name: &str,
) -> Result<Option<(Schedule, Timestamp)>, EngineError> {
    const LOCK: &str = reading!("where tenant = $1 and name = $2 for update");
    let read = || pg("locking a schedule");
    let row = sqlx::query(LOCK).bind(tenant.as_str()).bind(name).fetch_optional(transaction).await.map_err(read())?;
    row.map(|row| schedule(&row)).transpose().map_err(read())
}

pub(super) async fn count_of(
    transaction: &mut PgConnection,
    tenant: &TenantId,
    agent: &str,
) -> Result<i64, EngineError> {
    let count = || pg("counting schedules");
    let row = sqlx::query("select count(*) as number from schedules where tenant = $1 and agent = $2")
        .bind(tenant.as_str())
        .bind(agent)
        .fetch_one(transaction)
        .await
        .map_err(count())?;
    Cells(&row).get("number").map_err(count())
}

/// Says whether it was put in: not if there is one of this name.
pub(super) async fn insert(
    transaction: &mut PgConnection,
    tenant: &TenantId,
    sound: &SoundSchedule,
    maker: &Maker,
    now: Timestamp,
) -> Result<bool, EngineError> {
    let inserted = sqlx::query(concat!(
        "insert into schedules (schedule_id, tenant, name, spec, revision, agent, made_by, trust, created_at, changed_at,
                                changed_by, considered_until, look_at)
         values ($1, $2, $3, $4, 1, $5, $6, $7, ",
        instant!("$8"),
        ", ",
        instant!("$8"),
        ", $6, ",
        instant!("$8"),
        ", ",
        instant!("$9"),
        ") on conflict do nothing"
    ))
    .bind(Uuid::now_v7())
    .bind(tenant.as_str())
    .bind(&sound.spec.name)
    .bind(sqlx::types::Json(&sound.spec))
    .bind(&maker.agent)
    .bind(&maker.by)
    .bind(maker.trust.as_str())
    .bind(now.as_microsecond())
    .bind(sound.cadence.next_after(now).map(Timestamp::as_microsecond))
    .execute(transaction)
    .await
    .map_err(pg("storing a schedule"))?;
    Ok(inserted.rows_affected() > 0)
}

pub(super) async fn update(
    transaction: &mut PgConnection,
    schedule_id: Uuid,
    sound: &SoundSchedule,
    maker: &Maker,
    considered_until: Timestamp,
    now: Timestamp,
) -> Result<(), EngineError> {
    sqlx::query(concat!(
        "update schedules
         set spec = $2, revision = revision + 1, agent = $3, made_by = $4, changed_by = $4, trust = $5, changed_at = ",
        instant!("$6"),
        ", look_at = ",
        instant!("$6"),
        ", considered_until = ",
        instant!("$7"),
        " where schedule_id = $1"
    ))
    .bind(schedule_id)
    .bind(sqlx::types::Json(&sound.spec))
    .bind(&maker.agent)
    .bind(&maker.by)
    .bind(maker.trust.as_str())
    .bind(now.as_microsecond())
    .bind(considered_until.as_microsecond())
    .execute(transaction)
    .await
    .map_err(pg("storing a schedule"))?;
    Ok(())
}

/// A row, and until when its times are decided.
pub(super) fn schedule(row: &PgRow) -> Result<(Schedule, Timestamp), sqlx::Error> {
    let row = Cells(row);
    let schedule = Schedule {
        schedule_id: row.get("schedule_id")?,
        tenant: row.tenant()?,
        spec: row.json("spec")?,
        revision: row.count("revision")?,
        maker: Maker { by: row.get("made_by")?, agent: row.get("agent")?, trust: row.word("trust")? },
        created_at: row.time("created_at")?,
        changed_at: row.time("changed_at")?,
        changed_by: row.get("changed_by")?,
        paused: row.get("paused")?,
    };
    Ok((schedule, row.time("considered_until")?))
}

pub(super) fn firing(row: &PgRow) -> Result<Firing, sqlx::Error> {
    let row = Cells(row);
    let status: Option<String> = row.get("status")?;
    Ok(Firing {
        fire_at: row.time("fire_at")?,
        due: row.time("due")?,
        kind: row.word("kind")?,
        state: row.word("state")?,
        run_id: row.get::<Option<Uuid>>("run_id")?.map(RunId),
        run_status: if status.is_some() { Some(row.word("status")?) } else { None },
        note: row.get("note")?,
        decided_at: row.time("decided_at")?,
    })
}
