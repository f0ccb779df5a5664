//! Children, as their parents have them and as they are.

use kernel::{CallId, RunId, TenantId};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{MAX_ROWS, Reads, RunRow, limit, row::Cells, runs::children_of};
use crate::error::{EngineError, pg};

/// An open child with which its parent is not in step, as far as the tables say. What is to be done, the two runs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildOutOfStep {
    /// The child's run, which may not exist yet.
    pub child_id: RunId,
    /// Its parent.
    pub run_id: RunId,
    /// The parent's call that it answers.
    pub call_id: CallId,
}

/// Open children behind child $1 that are not in step with their parents, $2 of them at most.
///
/// Look-ups with a limit, not joins: the plan is made without knowing how few rows there will be.
pub(crate) const OUT_OF_STEP: &str = "
    select c.child_id, c.run_id, c.call_id
    from children c
    cross join lateral (select r.status from runs r where r.run_id = c.run_id limit 1) parent
    left join lateral (select r.status from runs r where r.run_id = c.child_id limit 1) child on true
    where c.child_id > coalesce($1, uuid '00000000-0000-0000-0000-000000000000')
      and (case
             when child.status is null then parent.status <> 'paused'
             when child.status in ('completed', 'failed', 'cancelled') then true
             when child.status = 'cancelling' then false
             when parent.status = 'cancelling' then true
             else (parent.status = 'paused') <> (child.status = 'paused')
           end)
    order by c.child_id limit $2";

impl Reads {
    /// Open children that are not in step with their parents, over all tenants, in the order of their ids from behind `after`:
    /// to be created, held, let go, ended or settled. One that a person holds is among them, and in step all the same.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn children_out_of_step(
        &self,
        after: Option<RunId>,
        most: u32,
    ) -> Result<Vec<ChildOutOfStep>, EngineError> {
        let read = || pg("looking for children that are out of step");
        let rows = sqlx::query(OUT_OF_STEP)
            .bind(after.map(|child| child.0))
            .bind(limit(most))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(out_of_step).collect::<Result<_, _>>().map_err(read())
    }

    /// The children of a run of this tenant, oldest first, ended ones too: a thousand of them at most.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn children(&self, tenant: &TenantId, parent: RunId) -> Result<Vec<RunRow>, EngineError> {
        let rows = children_of(&self.pool, parent, limit(MAX_ROWS)).await?;
        Ok(rows.into_iter().filter(|row| row.tenant == *tenant).collect())
    }
}

fn out_of_step(row: &PgRow) -> Result<ChildOutOfStep, sqlx::Error> {
    let row = Cells(row);
    Ok(ChildOutOfStep {
        child_id: RunId(row.get::<Uuid>("child_id")?),
        run_id: RunId(row.get::<Uuid>("run_id")?),
        call_id: CallId(row.get("call_id")?),
    })
}
