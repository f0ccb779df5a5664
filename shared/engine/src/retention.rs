//! What is forgotten after a while.

use std::time::Duration;

use kernel::RunId;
use sqlx::Row;
use uuid::Uuid;

use crate::error::{EngineError, pg};
use crate::pool::Pool;

/// Runs that one step of a removal looks at.
const RUNS: i32 = 500;

/// Forgets what nobody will ask for again. Cheap to clone.
///
/// Every step is short and takes no lock that others wait for; what is left is for the next step.
#[derive(Clone, Debug)]
pub struct Retention {
    pool: Pool,
}

/// What a step of [`Retention::remove_ended_runs`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Runs that are gone.
    pub runs: u64,
    /// Rows of their logs and of deliveries to them that were deleted, and those of runs that were removed before.
    pub rows: u64,
    /// The last run that was looked at: where the next step goes on; none after the last run of all.
    pub next: Option<RunId>,
}

impl Retention {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Forgets deliveries that were handled longer than `older_than` ago, `most` of them at most, and says how many. The
    /// streams must not keep messages for as long, or one of them could be handled twice.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_inbox(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const PRUNE: &str = "delete from inbox where ctid = any (array(
            select ctid from inbox where at < now() - make_interval(secs => $1) limit $2 for update skip locked))";
        self.prune(PRUNE, older_than, most, "forgetting old deliveries").await
    }

    /// Forgets events from outside that were received longer than `older_than` ago and dealt with, `most` of them at most, and
    /// says how many. What a trigger holds back for a run that has not started is not dealt with. A wait does not look back further than [`crate::EngineOptions::lookback`], and the same event coming
    /// again after that counts as new: be generous.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_externals(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const PRUNE: &str = "delete from external_events where ctid = any (array(
            select x.ctid from external_events x
            where x.received_at < now() - make_interval(secs => $1) and x.dispatched_at is not null and not exists
                (select from gathered g join gatherings h using (gathering_id)
                 where g.position = x.position and h.state in ('open', 'closed'))
            limit $2))";
        self.prune(PRUNE, older_than, most, "forgetting old outside events").await
    }

    /// Forgets idempotency keys that were claimed longer than `older_than` ago, `most` of them at most, and says how many.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_idempotency_keys(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const PRUNE: &str = "delete from idempotency_keys where ctid = any (array(
            select ctid from idempotency_keys where created_at < now() - make_interval(secs => $1) limit $2
            for update skip locked))";
        self.prune(PRUNE, older_than, most, "forgetting old idempotency keys").await
    }

    /// Forgets what became of the times of schedules that were noted longer than `older_than` ago and are settled, `most` of
    /// them at most, and says how many. One that is filled in after that is taken for one that never was.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_firings(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const PRUNE: &str = "delete from firings where ctid = any (array(
            select ctid from firings where decided_at < now() - make_interval(secs => $1)
            and state not in ('waiting', 'starting', 'started') limit $2 for update skip locked))";
        self.prune(PRUNE, older_than, most, "forgetting old firings").await
    }

    /// Forgets starts that were held back longer than `older_than` ago and whose runs have ended or were not needed, `most` of
    /// them at most, and says how many. Keep them as long as outside events: the same one is then not gathered twice.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_gatherings(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const PRUNE: &str = "delete from gatherings where ctid = any (array(
            select ctid from gatherings g where opened_at < now() - make_interval(secs => $1)
            and state not in ('open', 'closed') and not exists
                (select from runs r where r.run_id = g.gathering_id and r.status not in ('completed', 'failed', 'cancelled'))
            limit $2 for update skip locked))";
        self.prune(PRUNE, older_than, most, "forgetting old starts").await
    }

    /// Forgets actions on services that were recorded longer than `older_than` ago and whose outcome is told, and gaps in the
    /// signals that were noted before that, `most` of each at most, and says how many.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_actions(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        const ACTIONS: &str = "delete from actions where ctid = any (array(
            select ctid from actions where state = 'told' and opened_at < now() - make_interval(secs => $1) limit $2))";
        const GAPS: &str = "delete from signal_gaps where ctid = any (array(
            select ctid from signal_gaps where noted_at < now() - make_interval(secs => $1) limit $2))";
        let actions = self.prune(ACTIONS, older_than, most, "forgetting old actions").await?;
        Ok(actions + self.prune(GAPS, older_than, most, "forgetting old gaps").await?)
    }

    /// One step of removing the runs that ended longer than `older_than` ago, with everything that Postgres has of them: looks
    /// at some runs behind `after` and deletes about `most` rows at most. A long log takes several steps; from the first on
    /// the run is as if it had never been. Contents in the object store stay.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn remove_ended_runs(
        &self,
        after: Option<RunId>,
        older_than: Duration,
        most: u32,
    ) -> Result<Removed, EngineError> {
        let removing = || pg("removing ended runs");
        let row = sqlx::query(
            "select o_removed, o_rows, o_last from remove_ended_runs($1, make_interval(secs => $2), $3, $4)",
        )
        .bind(after.map(|run| run.0))
        .bind(older_than.as_secs_f64())
        .bind(RUNS)
        .bind(i32::try_from(most).unwrap_or(i32::MAX))
        .fetch_one(&self.pool)
        .await
        .map_err(removing())?;
        let removed = || -> Result<Removed, sqlx::Error> {
            let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
            let next = row.try_get::<Option<Uuid>, _>("o_last")?.map(RunId);
            Ok(Removed { runs: count("o_removed")?, rows: count("o_rows")?, next })
        };
        removed().map_err(removing())
    }

    async fn prune(
        &self,
        statement: &'static str,
        older_than: Duration,
        most: u32,
        operation: &'static str,
    ) -> Result<u64, EngineError> {
        let deleted = sqlx::query(statement)
            .bind(older_than.as_secs_f64())
            .bind(i64::from(most))
            .execute(&self.pool)
            .await
            .map_err(pg(operation))?;
        Ok(deleted.rows_affected())
    }
}
