//! What is forgotten after a while.

use std::time::Duration;

use sqlx::PgPool;

use crate::error::{EngineError, pg};

/// Forgets what nobody will ask for again. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Retention {
    pool: PgPool,
}

impl Retention {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Forgets deliveries that were handled longer than `older_than` ago, `most` of them at most, and says how many. The
    /// streams must not keep messages for as long, or one of them could be handled twice.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn prune_inbox(&self, older_than: Duration, most: u32) -> Result<u64, EngineError> {
        let deleted = sqlx::query(
            "delete from inbox where ctid = any (array(
                select ctid from inbox where at < now() - make_interval(secs => $1) limit $2
             ))",
        )
        .bind(older_than.as_secs_f64())
        .bind(i64::from(most))
        .execute(&self.pool)
        .await
        .map_err(pg("forgetting old deliveries"))?;
        Ok(deleted.rows_affected())
    }
}
