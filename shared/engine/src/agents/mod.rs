//! Agent definitions: stored by content, so that a run keeps the one it started with whatever becomes of the name.

mod cache;
mod file;
mod observe;
mod steering;
mod watch;
mod words;

use std::sync::Arc;

use kernel::{TenantId, Timestamp, agent::AgentSpec};
use sqlx::postgres::PgRow;

use crate::{
    digest::digest,
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, micros},
};
use cache::Cache;

pub use cache::{AgentTrigger, AgentWatch};
pub use file::{AgentFileError, MAX_FILE_BYTES, parse};
pub(crate) use file::{Problem, is_name, is_tool_name, read_yaml};
pub use words::nearest;

/// The agent definitions. Cheap to clone; clones share what they remember.
#[derive(Clone, Debug)]
pub struct Agents {
    pool: Pool,
    cache: Arc<Cache>,
}

/// A definition and its name by content.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentVersion {
    /// The agent's name.
    pub name: String,
    /// SHA-256 of the definition, hex: what was meant, not how it was written.
    pub digest: String,
    /// The definition.
    pub spec: AgentSpec,
}

/// The definition that new runs of an agent start with.
#[derive(Clone, Debug)]
pub struct AgentHead {
    /// The definition.
    pub version: Arc<AgentVersion>,
    /// Since when.
    pub changed_at: Timestamp,
    /// Who changed it.
    pub changed_by: String,
}

/// A version of an agent, past or present.
#[derive(Clone, Debug)]
pub struct AgentPast {
    /// The definition.
    pub version: AgentVersion,
    /// When it was first put in.
    pub created_at: Timestamp,
    /// Whether new runs start with it.
    pub is_head: bool,
}

/// Versions of one agent that are listed: more only ever come from a program that writes files by itself.
const MOST_VERSIONS: i64 = 200;

/// Why a definition was not stored.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The file is wrong.
    #[error(transparent)]
    File(#[from] AgentFileError),
    /// The store did not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl AgentVersion {
    /// Names a definition by its content.
    ///
    /// # Errors
    /// When it cannot be written as JSON, which no definition from a file does.
    pub fn new(spec: AgentSpec) -> Result<Self, EngineError> {
        let json =
            serde_json::to_value(&spec).map_err(|source| EngineError::Json { what: "an agent definition", source })?;
        Ok(Self { name: spec.name.clone(), digest: digest(&json), spec })
    }
}

impl Agents {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool, cache: Arc::new(Cache::default()) }
    }

    /// Stores a definition and makes it the one that new runs start with.
    ///
    /// # Errors
    /// When the file is wrong (with line and column), or Postgres does not do it.
    pub async fn put(&self, tenant: &TenantId, yaml: &str, by: &str) -> Result<AgentVersion, AgentError> {
        let version = AgentVersion::new(parse(yaml)?)?;
        sqlx::query(
            "with kept as (
                insert into agents (tenant, name, digest, source, spec) values ($1, $2, $3, $4, $5) on conflict do nothing
             )
             insert into agent_heads (tenant, name, digest, changed_by) values ($1, $2, $3, $6)
             on conflict (tenant, name) do update
             set digest = excluded.digest, changed_at = now(), changed_by = excluded.changed_by
             where agent_heads.digest <> excluded.digest",
        )
        .bind(tenant.as_str())
        .bind(&version.name)
        .bind(&version.digest)
        // Text in Postgres holds no NUL; in a YAML file it is only ever part of a comment that says nothing.
        .bind(yaml.replace('\0', " "))
        .bind(sqlx::types::Json(&version.spec))
        .bind(by)
        .execute(&self.pool)
        .await
        .map_err(pg("storing an agent"))?;
        self.cache.forget_triggers(tenant);
        Ok(version)
    }

    /// The definition that new runs of this agent start with.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn head(&self, tenant: &TenantId, name: &str) -> Result<Option<Arc<AgentVersion>>, EngineError> {
        let read = || pg("reading an agent");
        let row = sqlx::query("select digest from agent_heads where tenant = $1 and name = $2")
            .bind(tenant.as_str())
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        let Some(row) = row else { return Ok(None) };
        let digest: String = Cells(&row).get("digest").map_err(read())?;
        self.by_digest(tenant, name, &digest).await
    }

    /// A definition by its content. It never changes, so it is read once.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn by_digest(
        &self,
        tenant: &TenantId,
        name: &str,
        digest: &str,
    ) -> Result<Option<Arc<AgentVersion>>, EngineError> {
        if let Some(known) = self.cache.version(tenant, digest) {
            return Ok((known.name == name).then_some(known));
        }
        let read = || pg("reading an agent");
        let row = sqlx::query("select name, digest, spec from agents where tenant = $1 and name = $2 and digest = $3")
            .bind(tenant.as_str())
            .bind(name)
            .bind(digest)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        let Some(row) = row else { return Ok(None) };
        let version = Arc::new(version(&row).map_err(read())?);
        self.cache.keep_version(tenant, &version);
        Ok(Some(version))
    }

    /// All agents of this tenant, by name.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId) -> Result<Vec<AgentHead>, EngineError> {
        let read = || pg("listing agents");
        let rows = sqlx::query(concat!(
            "select a.name, a.digest, a.spec, h.changed_by, ",
            micros!("changed_at"),
            "
             from agent_heads h join agents a using (tenant, name, digest) where h.tenant = $1 order by a.name"
        ))
        .bind(tenant.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        Ok(rows.iter().filter_map(|row| readable(tenant, row, head(row))).collect())
    }

    /// The versions of an agent, the latest first, 200 at most; none if there is no such agent.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn versions(&self, tenant: &TenantId, name: &str) -> Result<Vec<AgentPast>, EngineError> {
        let rows = sqlx::query(concat!(
            "select a.name, a.digest, a.spec, a.digest is not distinct from h.digest as is_head, ",
            micros!("created_at"),
            "
             from agents a left join agent_heads h using (tenant, name)
             where a.tenant = $1 and a.name = $2 order by a.created_at desc, a.digest limit $3"
        ))
        .bind(tenant.as_str())
        .bind(name)
        .bind(MOST_VERSIONS)
        .fetch_all(&self.pool)
        .await
        .map_err(pg("listing the versions of an agent"))?;
        Ok(rows.iter().filter_map(|row| readable(tenant, row, past(row))).collect())
    }

    /// The triggers of all agents of this tenant, compiled. Changes by others show within a second.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn triggers(&self, tenant: &TenantId) -> Result<Arc<[AgentTrigger]>, EngineError> {
        if let Some(triggers) = self.cache.triggers(tenant) {
            return Ok(triggers);
        }
        // Whoever comes while they are read waits, instead of reading them too.
        let _reading = self.cache.reading().await;
        if let Some(triggers) = self.cache.triggers(tenant) {
            return Ok(triggers);
        }
        let heads = self.list(tenant).await?;
        let triggers: Arc<[AgentTrigger]> = heads.iter().flat_map(|head| AgentTrigger::all_of(&head.version)).collect();
        self.cache.keep_triggers(tenant, &triggers);
        Ok(triggers)
    }

    /// The services that the agents of this tenant watch. Changes by others show within a second.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn watches(&self, tenant: &TenantId) -> Result<Arc<[AgentWatch]>, EngineError> {
        if let Some(watches) = self.cache.watches(tenant) {
            return Ok(watches);
        }
        let _reading = self.cache.reading().await;
        if let Some(watches) = self.cache.watches(tenant) {
            return Ok(watches);
        }
        let heads = self.list(tenant).await?;
        let watches: Arc<[AgentWatch]> = heads.iter().flat_map(|head| AgentWatch::all_of(&head.version)).collect();
        self.cache.keep_watches(tenant, &watches);
        Ok(watches)
    }
}

/// A definition that this version cannot read takes only itself out of a list.
fn readable<T>(tenant: &TenantId, row: &PgRow, read: Result<T, sqlx::Error>) -> Option<T> {
    read.inspect_err(|error| {
        let agent = Cells(row).get::<String>("name").unwrap_or_default();
        tracing::error!(%tenant, agent, error = error as &dyn std::error::Error, "an agent is left out: store it anew");
    })
    .ok()
}

fn version(row: &PgRow) -> Result<AgentVersion, sqlx::Error> {
    let row = Cells(row);
    Ok(AgentVersion { name: row.get("name")?, digest: row.get("digest")?, spec: row.json("spec")? })
}

fn head(row: &PgRow) -> Result<AgentHead, sqlx::Error> {
    let version = Arc::new(version(row)?);
    let row = Cells(row);
    Ok(AgentHead { version, changed_at: row.time("changed_at")?, changed_by: row.get("changed_by")? })
}

fn past(row: &PgRow) -> Result<AgentPast, sqlx::Error> {
    let version = version(row)?;
    let row = Cells(row);
    Ok(AgentPast { version, created_at: row.time("created_at")?, is_head: row.get("is_head")? })
}
