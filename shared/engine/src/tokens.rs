//! API tokens, by their hashes. Who holds one is looked up at every request, so that a revoked one is refused everywhere at once.

use kernel::{TenantId, Timestamp};
use serde::Serialize;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

/// Most of them in one answer.
const MOST: i64 = 1000;

/// A token to be.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What its holder sees.
    pub tenant: TenantId,
    /// The holder's name, kept with what is done with it.
    pub name: String,
    /// What it allows.
    pub roles: Vec<String>,
    /// SHA-256 of the token itself, which is kept nowhere.
    pub sha256: [u8; 32],
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// Who makes it.
    pub created_by: String,
}

/// A token, without what it is known by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenRow {
    /// Which one.
    pub token_id: Uuid,
    /// What its holder sees.
    pub tenant: TenantId,
    /// The holder's name.
    pub name: String,
    /// What it allows.
    pub roles: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// By whom.
    pub created_by: String,
    /// When it ends by itself.
    pub expires_at: Timestamp,
    /// The hour in which it was last used.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// By whom.
    pub revoked_by: Option<String>,
}

/// The tokens of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiTokens {
    pool: Pool,
}

macro_rules! token_columns {
    () => {
        concat!(
            "token_id, tenant, name, roles, created_by, revoked_by, ",
            micros!("created_at"),
            ", ",
            micros!("expires_at"),
            ", ",
            micros!("last_used_at"),
            ", ",
            micros!("revoked_at"),
            " "
        )
    };
}

impl ApiTokens {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Keeps a token. None if another one that is not revoked has its name.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn create(&self, new: &NewToken) -> Result<Option<TokenRow>, EngineError> {
        let creating = || pg("keeping an API token");
        let row = sqlx::query(concat!(
            "insert into api_tokens (token_id, tenant, name, roles, sha256, created_by, expires_at)
             values ($1, $2, $3, $4, $5, $6, ",
            instant!("$7"),
            ") on conflict do nothing returning ",
            token_columns!()
        ))
        .bind(Uuid::now_v7())
        .bind(new.tenant.as_str())
        .bind(&new.name)
        .bind(&new.roles)
        .bind(new.sha256.as_slice())
        .bind(&new.created_by)
        .bind(new.expires_at.as_microsecond())
        .fetch_optional(&self.pool)
        .await
        .map_err(creating())?;
        row.as_ref().map(token_row).transpose().map_err(creating())
    }

    /// Whose token has this hash, if it is still good. Notes the hour of the use.
    ///
    /// # Errors
    /// When Postgres does not answer: then nobody knows who calls.
    pub async fn find(&self, sha256: &[u8; 32]) -> Result<Option<TokenRow>, EngineError> {
        let read = || pg("looking for an API token");
        let row = sqlx::query(concat!(
            "select ",
            token_columns!(),
            ", coalesce(api_tokens.last_used_at < date_trunc('hour', now()), true) as stale
             from api_tokens where sha256 = $1 and api_tokens.revoked_at is null and api_tokens.expires_at > now()"
        ))
        .bind(sha256.as_slice())
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        let Some(row) = row else { return Ok(None) };
        let token = token_row(&row).map_err(read())?;
        if Cells(&row).get("stale").map_err(read())? {
            // Once an hour, whoever is first: the condition keeps the others from writing it again.
            sqlx::query(
                "update api_tokens set last_used_at = date_trunc('hour', now())
                 where token_id = $1 and coalesce(last_used_at < date_trunc('hour', now()), true)",
            )
            .bind(token.token_id)
            .execute(&self.pool)
            .await
            .map_err(read())?;
        }
        Ok(Some(token))
    }

    /// Whether a token is still good.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn is_good(&self, token_id: Uuid) -> Result<bool, EngineError> {
        let found =
            sqlx::query("select from api_tokens where token_id = $1 and revoked_at is null and expires_at > now()")
                .bind(token_id)
                .fetch_optional(&self.pool)
                .await
                .map_err(pg("looking at an API token"))?;
        Ok(found.is_some())
    }

    /// The names of those who made a token, or the token of who made it, and so on: each has had the next one in hand. A name counts
    /// for whatever tokens have, or had, it in this tenant.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn makers(&self, tenant: &TenantId, token_id: Uuid) -> Result<Vec<String>, EngineError> {
        let read = || pg("looking for who made an API token");
        let rows = sqlx::query(
            "with recursive makers as (
                 select created_by as name from api_tokens where token_id = $1 and tenant = $2
                 union
                 select t.created_by from makers m join api_tokens t on t.name = m.name and t.tenant = $2
             )
             select name from makers order by name",
        )
        .bind(token_id)
        .bind(tenant.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(|row| Cells(row).get("name")).collect::<Result<_, _>>().map_err(read())
    }

    /// The tokens of a tenant, newest first; also those that are revoked or over if `all`.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId, all: bool) -> Result<Vec<TokenRow>, EngineError> {
        let read = || pg("listing API tokens");
        let rows = sqlx::query(concat!(
            "select ",
            token_columns!(),
            "from api_tokens
             where tenant = $1 and ($2 or (api_tokens.revoked_at is null and api_tokens.expires_at > now()))
             order by token_id desc limit $3"
        ))
        .bind(tenant.as_str())
        .bind(all)
        .bind(MOST)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(token_row).collect::<Result<_, _>>().map_err(read())
    }

    /// Revokes a token: once this returns, nobody gets in with it. A second time changes nothing. None if this tenant has no
    /// such.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn revoke(&self, tenant: &TenantId, token_id: Uuid, by: &str) -> Result<Option<TokenRow>, EngineError> {
        let revoking = || pg("revoking an API token");
        let row = sqlx::query(concat!(
            "update api_tokens
             set revoked_by = case when revoked_at is null then $3 else revoked_by end, revoked_at = coalesce(revoked_at, now())
             where token_id = $1 and tenant = $2 returning ",
            token_columns!()
        ))
        .bind(token_id)
        .bind(tenant.as_str())
        .bind(by)
        .fetch_optional(&self.pool)
        .await
        .map_err(revoking())?;
        row.as_ref().map(token_row).transpose().map_err(revoking())
    }
}

fn token_row(row: &PgRow) -> Result<TokenRow, sqlx::Error> {
    let row = Cells(row);
    Ok(TokenRow {
        token_id: row.get("token_id")?,
        tenant: row.tenant()?,
        name: row.get("name")?,
        roles: row.get("roles")?,
        created_at: row.time("created_at")?,
        created_by: row.get("created_by")?,
        expires_at: row.time("expires_at")?,
        last_used_at: row.time_if_any("last_used_at")?,
        revoked_at: row.time_if_any("revoked_at")?,
        revoked_by: row.get("revoked_by")?,
    })
}
