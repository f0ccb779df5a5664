//! Requests that carried an `Idempotency-Key`: the second time gets what the first one made.

use kernel::{RunId, TenantId};
use sqlx::Row;

use crate::error::{EngineError, pg};
use crate::pool::Pool;

/// The keys of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct IdempotencyKeys {
    pool: Pool,
}

/// What a key turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// New: the run of the request may be made.
    Claimed,
    /// Known, with the same request. Whoever claimed it may have died before making its run: create this run once more,
    /// under the same delivery key, and it is made at most once.
    Replay(RunId),
    /// Known, but for another request.
    Mismatch,
}

impl IdempotencyKeys {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Takes a key for the run that a request is about to make. `digest` says what was asked, so that the same key with
    /// another request is noticed. Of several at once, one claims.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn claim(&self, tenant: &TenantId, key: &str, digest: &str, run_id: RunId) -> Result<Claim, EngineError> {
        let claimed = sqlx::query(
            "insert into idempotency_keys (tenant, key, digest, run_id) values ($1, $2, $3, $4) on conflict do nothing",
        )
        .bind(tenant.as_str())
        .bind(key)
        .bind(digest)
        .bind(run_id.0)
        .execute(&self.pool)
        .await
        .map_err(pg("claiming an idempotency key"))?;
        if claimed.rows_affected() == 1 {
            return Ok(Claim::Claimed);
        }
        // A statement of its own: the insert waited for whoever was first, and only a new one sees what they wrote.
        let first = sqlx::query("select digest, run_id from idempotency_keys where tenant = $1 and key = $2")
            .bind(tenant.as_str())
            .bind(key)
            .fetch_one(&self.pool)
            .await
            .map_err(pg("reading an idempotency key"))?;
        let parts = || Ok((first.try_get::<String, _>(0)?, RunId(first.try_get(1)?)));
        let (known, run) = parts().map_err(pg("reading an idempotency key"))?;
        Ok(if known == digest { Claim::Replay(run) } else { Claim::Mismatch })
    }

    /// Gives back a key whose request was refused for good, so that another may come under it. A key of another request stays.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn release(&self, tenant: &TenantId, key: &str, digest: &str) -> Result<(), EngineError> {
        sqlx::query("delete from idempotency_keys where tenant = $1 and key = $2 and digest = $3")
            .bind(tenant.as_str())
            .bind(key)
            .bind(digest)
            .execute(&self.pool)
            .await
            .map_err(pg("giving an idempotency key back"))?;
        Ok(())
    }
}
