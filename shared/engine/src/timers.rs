//! What is due: timers, and questions that nobody answered in time.

use std::time::Duration;

use kernel::{ApprovalId, RunId, TenantId, TimerId, Timestamp, event::TimerPurpose};
use sqlx::postgres::PgRow;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

/// The timers of all runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Timers {
    pool: Pool,
}

/// A timer whose time has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTimer {
    /// Which timer.
    pub timer_id: TimerId,
    /// The run that it is for.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// Whether the run's spans are exported.
    pub sampled: bool,
    /// When it was due.
    pub due: Timestamp,
    /// What it is for.
    pub purpose: TimerPurpose,
}

/// A question that nobody answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueApproval {
    /// Which question.
    pub approval_id: ApprovalId,
    /// The run that asked.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// When no answer became a no.
    pub expires_at: Timestamp,
}

/// Claims timers at the time $1 that are due by $2, until $3, $4 of them at most.
///
/// An array and a lateral look-up, not joins: the plan is made without knowing how few timers there will be, and as joins it
/// reads all timers and all runs.
pub(crate) const CLAIM: &str = concat!(
    "with claimed as (
        update timers set claimed_until = ",
    instant!("$3"),
    " where timer_id = any (array(
            select timer_id from timers
            where due <= ",
    instant!("$2"),
    " and (claimed_until is null or claimed_until <= ",
    instant!("$1"),
    ")
            order by due limit $4 for update skip locked
        ))
        returning timer_id, run_id, due, purpose
     )
     select c.timer_id, c.run_id, r.tenant, r.sampled, c.purpose, ",
    micros!("due"),
    "
     from claimed c cross join lateral (select tenant, sampled from runs where run_id = c.run_id limit 1) r
     order by c.due"
);

/// The next time at which there is something to claim, as seen at $1. Those under claim lie around now, and are few.
pub(crate) const NEXT: &str = concat!(
    "select ",
    micros!("at"),
    " from (
        select least(
            (select due from timers where claimed_until is null order by due limit 1),
            (select min(claimed_until) from timers where due <= ",
    instant!("$1"),
    ")
        ) as at
     ) next"
);

impl Timers {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Takes timers that are due or will be within `ahead`, the longest overdue first: so that each can be fired when its time
    /// comes, without a look at the table in between. Nobody else is given them until `claim_for` after that; then, if they are
    /// still there, anybody is again. A timer goes away in the commit that records its firing, so no lock is held until then.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn claim_ahead(
        &self,
        limit: u32,
        ahead: Duration,
        claim_for: Duration,
    ) -> Result<Vec<DueTimer>, EngineError> {
        let claim = || pg("claiming timers");
        // This process's clock on both sides: the kernel fires nothing that is not due by the clock of whoever submits.
        let now = Timestamp::now();
        let later = |by: Duration| now.checked_add(by).unwrap_or(Timestamp::MAX).as_microsecond();
        let rows = sqlx::query(CLAIM)
            .bind(now.as_microsecond())
            .bind(later(ahead))
            .bind(later(ahead.saturating_add(claim_for)))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(claim())?;
        rows.iter().map(due_timer).collect::<Result<_, _>>().map_err(claim())
    }

    /// Gives claimed timers back, to whoever looks next.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn release(&self, timers: &[TimerId]) -> Result<(), EngineError> {
        if timers.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = timers.iter().map(|timer| timer.0).collect();
        sqlx::query("update timers set claimed_until = null where timer_id = any ($1)")
            .bind(ids)
            .execute(&self.pool)
            .await
            .map_err(pg("releasing timers"))?;
        Ok(())
    }

    /// When there will be something to claim, as things stand: the next due time, or the end of a claim whose timer is due and
    /// still there. None when there is no timer at all.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn next_due(&self) -> Result<Option<Timestamp>, EngineError> {
        let read = || pg("looking for the next timer");
        let row =
            sqlx::query(NEXT).bind(Timestamp::now().as_microsecond()).fetch_one(&self.pool).await.map_err(read())?;
        Cells(&row).time_if_any("at").map_err(read())
    }

    /// Open questions whose time is over, the longest overdue first. Nothing is claimed: expiring one twice is harmless.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn due_approvals(&self, limit: u32) -> Result<Vec<DueApproval>, EngineError> {
        let read = || pg("looking for expired approvals");
        let rows = sqlx::query(concat!(
            "select approval_id, run_id, tenant, ",
            micros!("expires_at"),
            "
             from approvals where state = 'open' and approvals.expires_at <= ",
            instant!("$1"),
            "
             order by approvals.expires_at limit $2"
        ))
        .bind(Timestamp::now().as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(due_approval).collect::<Result<_, _>>().map_err(read())
    }
}

fn due_timer(row: &PgRow) -> Result<DueTimer, sqlx::Error> {
    let row = Cells(row);
    Ok(DueTimer {
        timer_id: TimerId(row.get("timer_id")?),
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        sampled: row.get("sampled")?,
        due: row.time("due")?,
        purpose: row.word("purpose")?,
    })
}

fn due_approval(row: &PgRow) -> Result<DueApproval, sqlx::Error> {
    let row = Cells(row);
    Ok(DueApproval {
        approval_id: ApprovalId(row.get("approval_id")?),
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        expires_at: row.time("expires_at")?,
    })
}
