//! Standing approvals: a person's yes to all calls of one shape, until it is revoked.
//!
//! A shape is exact: the agent's definition, the tool's, whatever decides in the arguments by its value, the rest by its kind.
//! So a changed agent, a changed tool or another recipient is asked about as before. It is given together with a decision
//! and counts only if that decision was taken; whoever dispatches looks once more whether it still does.

use kernel::{ApprovalId, RunId, StandingId, TenantId, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{postgres::PgRow, types::Json};

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, micros},
};

/// Most of them in one answer.
const MOST: u32 = 1000;

/// What is given.
#[derive(Clone, Debug)]
pub struct NewStanding {
    /// Its id: the same for each repetition of one decision.
    pub standing_id: StandingId,
    /// Whose agent.
    pub tenant: TenantId,
    /// Name of the agent.
    pub agent: String,
    /// Digest of its definition.
    pub agent_digest: String,
    /// Which tool.
    pub tool: String,
    /// Digest of the tool's declaration.
    pub schema_digest: String,
    /// Digest of the shape.
    pub shape: String,
    /// The policies that it answers, with their words.
    pub reasons: Vec<String>,
    /// The arguments that it was given for.
    pub arguments: serde_json::Value,
    /// The decision that it is given with.
    pub approval_id: ApprovalId,
    /// The run that asked.
    pub run_id: RunId,
    /// What the person wrote.
    pub note: Option<String>,
    /// The person.
    pub given_by: String,
}

/// A standing approval.
#[derive(Clone, Debug, Serialize)]
pub struct StandingRow {
    /// Which one.
    pub standing_id: StandingId,
    /// Whose.
    pub tenant: TenantId,
    /// Name of the agent.
    pub agent: String,
    /// Digest of its definition.
    pub agent_digest: String,
    /// Which tool.
    pub tool: String,
    /// Digest of the tool's declaration.
    pub schema_digest: String,
    /// Digest of the shape.
    pub shape: String,
    /// The policies that it answers, with their words.
    pub reasons: Vec<String>,
    /// The arguments that it was given for.
    pub arguments: Box<RawValue>,
    /// The decision that it was given with.
    pub approval_id: ApprovalId,
    /// The run that had asked.
    pub run_id: RunId,
    /// What the person wrote.
    pub note: Option<String>,
    /// The person.
    pub given_by: String,
    /// When.
    pub given_at: Timestamp,
    /// When it last decided.
    pub last_used_at: Option<Timestamp>,
    /// How often it decided.
    pub uses: u64,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// By whom.
    pub revoked_by: Option<String>,
}

/// What a call has to fit.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// Digest of the agent's definition.
    pub agent_digest: &'a str,
    /// Which tool.
    pub tool: &'a str,
    /// Digest of the tool's declaration.
    pub schema_digest: &'a str,
    /// Digest of the shape.
    pub shape: &'a str,
}

/// The standing approvals of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StandingApprovals {
    pool: Pool,
}

macro_rules! select_standing {
    ($rest:literal) => {
        concat!(
            "select standing_id, tenant, agent, agent_digest, tool, schema_digest, shape, reasons, arguments, approval_id, run_id,
                    note, given_by, uses, revoked_by, ",
            micros!("given_at"),
            ", ",
            micros!("last_used_at"),
            ", ",
            micros!("revoked_at"),
            " from standing_approvals ",
            $rest
        )
    };
}

impl StandingApprovals {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Writes down what is given with a decision that is about to be taken. It does not count before [`StandingApprovals::confirm`].
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn propose(&self, new: &NewStanding) -> Result<(), EngineError> {
        sqlx::query(
            "insert into standing_approvals (standing_id, tenant, agent, agent_digest, tool, schema_digest, shape, reasons,
                                             arguments, approval_id, run_id, note, given_by)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
             on conflict (standing_id) do update set revoked_at = null, revoked_by = null
             where standing_approvals.confirmed_at is null and standing_approvals.revoked_by = 'runtime'",
        )
        .bind(new.standing_id.0)
        .bind(new.tenant.as_str())
        .bind(&new.agent)
        .bind(&new.agent_digest)
        .bind(&new.tool)
        .bind(&new.schema_digest)
        .bind(&new.shape)
        .bind(Json(&new.reasons))
        .bind(Json(&new.arguments))
        .bind(new.approval_id.0)
        .bind(new.run_id.0)
        .bind(&new.note)
        .bind(&new.given_by)
        .execute(&self.pool)
        .await
        .map_err(pg("writing a standing approval down"))?;
        Ok(())
    }

    /// Lets it count, since the decision that it was given with was taken.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn confirm(&self, id: StandingId) -> Result<(), EngineError> {
        sqlx::query(
            "update standing_approvals set confirmed_at = now(),
                revoked_at = case when revoked_by = 'runtime' then null else revoked_at end,
                revoked_by = case when revoked_by = 'runtime' then null else revoked_by end
             where standing_id = $1 and confirmed_at is null",
        )
        .bind(id.0)
        .execute(&self.pool)
        .await
        .map_err(pg("confirming a standing approval"))?;
        Ok(())
    }

    /// Takes back what was written down with a decision that was then refused, unless it counts by another one.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn withdraw(&self, id: StandingId) -> Result<(), EngineError> {
        sqlx::query(
            "update standing_approvals set revoked_at = now(), revoked_by = 'runtime'
             where standing_id = $1 and confirmed_at is null and revoked_at is null",
        )
        .bind(id.0)
        .execute(&self.pool)
        .await
        .map_err(pg("taking a standing approval back"))?;
        Ok(())
    }

    /// Brings to an end what was written down by somebody who died before confirming it: it counts if its decision was taken
    /// by the same person, and never if that was taken otherwise.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn settle(&self) -> Result<u64, EngineError> {
        let done = sqlx::query(
            "update standing_approvals s
             set confirmed_at = case when a.state = 'granted' and a.decided_by = s.given_by and a.standing is null then now() end,
                 revoked_at = case when a.state = 'granted' and a.decided_by = s.given_by and a.standing is null then null else now() end,
                 revoked_by = case when a.state = 'granted' and a.decided_by = s.given_by and a.standing is null then null else 'runtime' end
             from approvals a
             where s.confirmed_at is null and s.revoked_at is null and s.given_at < now() - interval '30 seconds'
               and a.approval_id = s.approval_id and a.state <> 'open'",
        )
        .execute(&self.pool)
        .await
        .map_err(pg("settling standing approvals"))?;
        Ok(done.rows_affected())
    }

    /// The one that covers a call of this shape, if every policy that asks now is one that it answers.
    ///
    /// # Errors
    /// When Postgres does not answer: then a person is asked.
    pub async fn covering(
        &self,
        tenant: &TenantId,
        shape: Shape<'_>,
        reasons: &[String],
    ) -> Result<Option<StandingRow>, EngineError> {
        let read = || pg("looking for a standing approval");
        let rows = sqlx::query(select_standing!(
            "where tenant = $1 and shape = $2 and agent_digest = $3 and tool = $4 and schema_digest = $5
               and confirmed_at is not null and standing_approvals.revoked_at is null
             order by standing_approvals.given_at limit 100"
        ))
        .bind(tenant.as_str())
        .bind(shape.shape)
        .bind(shape.agent_digest)
        .bind(shape.tool)
        .bind(shape.schema_digest)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        let rows: Vec<_> = rows.iter().map(standing_row).collect::<Result<_, _>>().map_err(read())?;
        Ok(rows.into_iter().find(|row| reasons.iter().all(|reason| row.reasons.contains(reason))))
    }

    /// Whether it still counts for this tenant.
    ///
    /// # Errors
    /// When Postgres does not answer: then nobody knows, and nothing may start.
    pub async fn is_in_force(&self, tenant: &TenantId, id: StandingId) -> Result<bool, EngineError> {
        let found = sqlx::query(
            "select from standing_approvals
             where standing_id = $1 and tenant = $2 and confirmed_at is not null and revoked_at is null",
        )
        .bind(id.0)
        .bind(tenant.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(pg("looking at a standing approval"))?;
        Ok(found.is_some())
    }

    /// Counts a decision that it took.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn used(&self, id: StandingId) -> Result<(), EngineError> {
        sqlx::query("update standing_approvals set uses = uses + 1, last_used_at = now() where standing_id = $1")
            .bind(id.0)
            .execute(&self.pool)
            .await
            .map_err(pg("counting the use of a standing approval"))?;
        Ok(())
    }

    /// This tenant's, newest first; also the revoked ones if `all`.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId, all: bool) -> Result<Vec<StandingRow>, EngineError> {
        let read = || pg("listing standing approvals");
        let rows = sqlx::query(select_standing!(
            "where tenant = $1 and confirmed_at is not null and ($2 or standing_approvals.revoked_at is null)
             order by standing_approvals.given_at desc, standing_id limit $3"
        ))
        .bind(tenant.as_str())
        .bind(all)
        .bind(i64::from(MOST))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(standing_row).collect::<Result<_, _>>().map_err(read())
    }

    /// Revokes it. Once this returns, no call is let pass by it any more; a second time changes nothing. None if this tenant
    /// has no such.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn revoke(
        &self,
        tenant: &TenantId,
        id: StandingId,
        by: &str,
    ) -> Result<Option<StandingRow>, EngineError> {
        let setting = || pg("revoking a standing approval");
        sqlx::query(
            "update standing_approvals set revoked_at = now(), revoked_by = $3
             where standing_id = $1 and tenant = $2 and revoked_at is null",
        )
        .bind(id.0)
        .bind(tenant.as_str())
        .bind(by)
        .execute(&self.pool)
        .await
        .map_err(setting())?;
        let row = sqlx::query(select_standing!("where standing_id = $1 and tenant = $2 and confirmed_at is not null"))
            .bind(id.0)
            .bind(tenant.as_str())
            .fetch_optional(&self.pool)
            .await
            .map_err(setting())?;
        row.as_ref().map(standing_row).transpose().map_err(setting())
    }
}

fn standing_row(row: &PgRow) -> Result<StandingRow, sqlx::Error> {
    let row = Cells(row);
    Ok(StandingRow {
        standing_id: StandingId(row.get("standing_id")?),
        tenant: row.tenant()?,
        agent: row.get("agent")?,
        agent_digest: row.get("agent_digest")?,
        tool: row.get("tool")?,
        schema_digest: row.get("schema_digest")?,
        shape: row.get("shape")?,
        reasons: row.json("reasons")?,
        arguments: row.raw("arguments")?,
        approval_id: ApprovalId(row.get("approval_id")?),
        run_id: RunId(row.get("run_id")?),
        note: row.get("note")?,
        given_by: row.get("given_by")?,
        given_at: row.time("given_at")?,
        last_used_at: row.time_if_any("last_used_at")?,
        uses: row.count("uses")?,
        revoked_at: row.time_if_any("revoked_at")?,
        revoked_by: row.get("revoked_by")?,
    })
}
