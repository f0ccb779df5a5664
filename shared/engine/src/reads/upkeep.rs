//! What the services ask for themselves, over all tenants: what is due and nobody has taken up, and how much there is.

use std::{collections::BTreeMap, time::Duration};

use kernel::{CallId, RunId, Seq, Status, TenantId, Timestamp, TurnId, WaitId, call::CallStatus};
use serde::Serialize;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{
    Reads, limit,
    row::{Cells, instant, micros},
};
use crate::error::{EngineError, pg};

/// A run that somebody should act on: a turn is open, or a call is requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionRow {
    /// Which run.
    pub run_id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Where it stands.
    pub status: Status,
    /// Its last event.
    pub seq: Seq,
    /// The open turn; none when it is for a call.
    pub turn_id: Option<TurnId>,
    /// Since when nothing has happened to it.
    pub updated_at: Timestamp,
}

/// A call whose effect may be under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StartedCall {
    /// Which call.
    pub call_id: CallId,
    /// The run that asked for it.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// Which tool.
    pub tool: String,
    /// Whether it goes on by itself.
    pub activity: bool,
    /// Started, or in doubt.
    pub status: CallStatus,
    /// The executor instance that started it.
    pub executor: String,
    /// When it last started.
    pub started_at: Timestamp,
}

/// A wait for an outside event of which can be found out whether it has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifiedWait {
    /// The run that waits.
    pub run_id: RunId,
    /// Its wait.
    pub wait_id: WaitId,
    /// Which condition of it.
    pub leaf: u32,
    /// Since when it waits.
    pub since: Timestamp,
    /// When it gives up.
    pub deadline: Option<Timestamp>,
}

/// How much there is of everything, for gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Runs by where they stand; a status that no run has is missing.
    pub runs: BTreeMap<Status, u64>,
    /// Conditions of open waits.
    pub waits: u64,
    /// Set timers.
    pub timers: u64,
    /// Of those, how many are overdue.
    pub overdue_timers: u64,
    /// Calls whose effect may be under way.
    pub started_calls: u64,
    /// Open questions to people.
    pub open_approvals: u64,
    /// Commits whose events are not known to be published for good.
    pub outbox: u64,
    /// Outside events that are recorded and not yet dealt with.
    pub undispatched_externals: u64,
}

/// Runs behind run $1 that somebody should act on and that nothing has happened to since $2, $3 of them at most.
pub(crate) const ATTENTION: &str = concat!(
    "select run_id, tenant, status, seq, turn_id, ",
    micros!("updated_at"),
    "
             from runs
             where attention and run_id > coalesce($1, uuid '00000000-0000-0000-0000-000000000000')
               and greatest(runs.updated_at, not_before) <= ",
    instant!("$2"),
    "
             order by run_id limit $3"
);

/// Conditions that can be verified behind condition $3 of wait $2 of run $1, $4 of them at most.
pub(crate) const VERIFIED: &str = concat!(
    "select run_id, wait_id, leaf, ",
    micros!("since"),
    ", ",
    micros!("deadline"),
    "
             from waits
             where kind = 'external' and due is not null and (run_id, wait_id, leaf) > ($1, $2, $3)
             order by run_id, wait_id, leaf limit $4"
);

impl Reads {
    /// Runs that somebody should act on and that nothing has happened to for `older_than`, in the order of their ids from behind
    /// `after`: the next page. A run whose turn is put off ([`super::RunRow::not_before`]) counts from then on. Whether
    /// somebody is on it is for the leases to say.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn attention_after(
        &self,
        after: Option<RunId>,
        older_than: Duration,
        most: u32,
    ) -> Result<Vec<AttentionRow>, EngineError> {
        let read = || pg("looking for neglected runs");
        let before = Timestamp::now().checked_sub(older_than).unwrap_or(Timestamp::MIN);
        let rows = sqlx::query(ATTENTION)
            .bind(after.map(|run| run.0))
            .bind(before.as_microsecond())
            .bind(limit(most))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(attention_row).collect::<Result<_, _>>().map_err(read())
    }

    /// Calls whose effect may be under way, longest first, from behind a call by when it started and its id. Whether somebody is
    /// on them is for the leases to say.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn started_calls_after(
        &self,
        after: Option<(Timestamp, CallId)>,
        most: u32,
    ) -> Result<Vec<StartedCall>, EngineError> {
        let read = || pg("listing started calls");
        let (at, id) = after.unzip();
        let rows = sqlx::query(concat!(
            "select call_id, run_id, tenant, tool, activity, status, executor, ",
            micros!("started_at"),
            "
             from started_calls
             where $1::bigint is null or (started_calls.started_at, call_id) > (",
            instant!("$1"),
            ", $2)
             order by started_calls.started_at, call_id limit $3"
        ))
        .bind(at.map(Timestamp::as_microsecond))
        .bind(id.map(|id| id.0))
        .bind(limit(most))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(started_call).collect::<Result<_, _>>().map_err(read())
    }

    /// Waits for outside events that can be verified, from behind a condition by its run, wait and number: the next page.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn verified_waits_after(
        &self,
        after: Option<(RunId, WaitId, u32)>,
        most: u32,
    ) -> Result<Vec<VerifiedWait>, EngineError> {
        let read = || pg("listing waits to verify");
        let (run, wait, leaf) = after.map_or((Uuid::nil(), Uuid::nil(), -1), |(run, wait, leaf)| {
            (run.0, wait.0, i32::try_from(leaf).unwrap_or(i32::MAX))
        });
        let rows = sqlx::query(VERIFIED)
            .bind(run)
            .bind(wait)
            .bind(leaf)
            .bind(limit(most))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(verified_wait).collect::<Result<_, _>>().map_err(read())
    }

    /// How much there is of everything. Reads whole tables: ask seldom.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn counts(&self) -> Result<Counts, EngineError> {
        let read = || pg("counting");
        let rows = sqlx::query("select status, count(*) as runs from runs group by status")
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        let by_status = |row: &PgRow| Ok((Cells(row).word("status")?, Cells(row).count("runs")?));
        let runs = rows.iter().map(by_status).collect::<Result<_, sqlx::Error>>().map_err(read())?;
        let row = sqlx::query(
            "select (select count(*) from waits) as waits,
                    (select count(*) from timers) as timers,
                    (select count(*) from timers where due <= now()) as overdue_timers,
                    (select count(*) from started_calls) as started_calls,
                    (select count(*) from approvals where state = 'open') as open_approvals,
                    (select count(*) from outbox) as outbox,
                    (select count(*) from external_events where dispatched_at is null) as undispatched_externals",
        )
        .fetch_one(&self.pool)
        .await
        .map_err(read())?;
        counts(runs, &Cells(&row)).map_err(read())
    }
}

fn attention_row(row: &PgRow) -> Result<AttentionRow, sqlx::Error> {
    let row = Cells(row);
    Ok(AttentionRow {
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        status: row.word("status")?,
        seq: row.count("seq")?,
        turn_id: row.get::<Option<Uuid>>("turn_id")?.map(TurnId),
        updated_at: row.time("updated_at")?,
    })
}

fn started_call(row: &PgRow) -> Result<StartedCall, sqlx::Error> {
    let row = Cells(row);
    Ok(StartedCall {
        call_id: CallId(row.get("call_id")?),
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        tool: row.get("tool")?,
        activity: row.get("activity")?,
        status: row.word("status")?,
        executor: row.get("executor")?,
        started_at: row.time("started_at")?,
    })
}

fn verified_wait(row: &PgRow) -> Result<VerifiedWait, sqlx::Error> {
    let row = Cells(row);
    Ok(VerifiedWait {
        run_id: RunId(row.get("run_id")?),
        wait_id: WaitId(row.get("wait_id")?),
        leaf: row.get::<i32>("leaf")?.unsigned_abs(),
        since: row.time("since")?,
        deadline: row.time_if_any("deadline")?,
    })
}

fn counts(runs: BTreeMap<Status, u64>, row: &Cells<'_>) -> Result<Counts, sqlx::Error> {
    Ok(Counts {
        runs,
        waits: row.count("waits")?,
        timers: row.count("timers")?,
        overdue_timers: row.count("overdue_timers")?,
        started_calls: row.count("started_calls")?,
        open_approvals: row.count("open_approvals")?,
        outbox: row.count("outbox")?,
        undispatched_externals: row.count("undispatched_externals")?,
    })
}
