//! The tools that MCP servers offer, version by version.

use std::{collections::BTreeSet, sync::Arc};

use kernel::{CallId, RunId, Timestamp, tool::ToolSpec};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::take_unsound_dry_run;
use crate::{
    digest::digest,
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant},
};

/// Versions of one tool that are kept beside the one that holds: a server that changes its mind again and again fills no disk.
const KEPT: i64 = 20;
/// Versions of all tools of a server that are kept beside those that hold: neither does one whose tools have ever new names.
const KEPT_OF_SERVER: i64 = 2000;
/// Tasks older than this are forgotten: their call has long ended.
const TASK_DAYS: i32 = 30;

/// A version of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct McpTool {
    /// Its declaration.
    pub spec: Arc<ToolSpec>,
    /// The digest of that.
    pub digest: String,
}

/// What a new list of a server's tools changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpChange {
    /// Tools that were not there, or not like this.
    pub changed: Vec<String>,
    /// Tools that are gone.
    pub gone: Vec<String>,
}

impl McpChange {
    /// Whether all is as it was.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.gone.is_empty()
    }
}

/// A task that a call became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpTask {
    /// Whose.
    pub server: String,
    /// Its id there.
    pub task_id: String,
}

/// The tools of MCP servers, and the tasks of calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct McpCatalogue {
    pool: Pool,
}

impl McpTool {
    /// A declaration and its name by content.
    ///
    /// # Errors
    /// When it cannot be written as JSON, which no declaration that came as JSON does.
    pub fn new(spec: ToolSpec) -> Result<Self, EngineError> {
        let json =
            serde_json::to_value(&spec).map_err(|source| EngineError::Json { what: "a tool's declaration", source })?;
        Ok(Self { digest: digest(&json), spec: Arc::new(spec) })
    }

    fn text(&self) -> Result<String, EngineError> {
        serde_json::to_string(&self.spec).map_err(|source| EngineError::Json { what: "a tool's declaration", source })
    }
}

impl McpCatalogue {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Takes in what a server offers now, as a whole.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn record(&self, server: &str, tools: &[McpTool]) -> Result<McpChange, EngineError> {
        let failed = || pg("recording the tools of an MCP server");
        let names: Vec<&str> = tools.iter().map(|tool| tool.spec.name.as_str()).collect();
        let digests: Vec<&str> = tools.iter().map(|tool| tool.digest.as_str()).collect();
        // As text, since `jsonb` would forget the order of its keys.
        let specs: Vec<String> = tools.iter().map(McpTool::text).collect::<Result<_, _>>()?;
        let mut transaction = self.pool.begin().await.map_err(failed())?;
        // Executors that look at the same time take turns.
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('mcp/' || current_schema() || '/' || $1, 0))")
            .bind(server)
            .execute(&mut *transaction)
            .await
            .map_err(failed())?;
        let closed: Vec<String> = sqlx::query(
            "update mcp_tools old set valid_to = clock_timestamp()
             where old.server = $1 and old.valid_to is null
               and not exists (select from unnest($2::text[], $3::text[]) as new (name, digest)
                               where new.name = old.name and new.digest = old.digest)
             returning old.name",
        )
        .bind(server)
        .bind(&names)
        .bind(&digests)
        .fetch_all(&mut *transaction)
        .await
        .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect())
        .map_err(failed())?;
        let mut changed: Vec<String> = sqlx::query(
            "insert into mcp_tools (name, server, digest, spec)
             select new.name, $1, new.digest, new.spec::json
             from unnest($2::text[], $3::text[], $4::text[]) as new (name, digest, spec)
             where not exists (select from mcp_tools old where old.name = new.name and old.valid_to is null)
             returning name",
        )
        .bind(server)
        .bind(&names)
        .bind(&digests)
        .bind(&specs)
        .fetch_all(&mut *transaction)
        .await
        .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect())
        .map_err(failed())?;
        if !closed.is_empty() {
            forget_old(&mut transaction, server).await.map_err(failed())?;
        }
        transaction.commit().await.map_err(failed())?;
        changed.sort_unstable();
        let now: BTreeSet<&str> = names.into_iter().collect();
        let mut gone: Vec<String> = closed.into_iter().filter(|name| !now.contains(name.as_str())).collect();
        gone.sort_unstable();
        Ok(McpChange { changed, gone })
    }

    /// The tools of these names, and all of these servers, as a run is offered them that holds on to a moment: of each the
    /// oldest version that was still good then.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn as_of(&self, names: &[&str], servers: &[&str], at: Timestamp) -> Result<Vec<McpTool>, EngineError> {
        let read = || pg("reading the tools of MCP servers");
        let rows = sqlx::query(concat!(
            "select distinct on (name) name, digest, spec from mcp_tools
             where (name = any($1) or server = any($2)) and (valid_to is null or valid_to > ",
            instant!("$3"),
            ") order by name, valid_from"
        ))
        .bind(names)
        .bind(servers)
        .bind(at.as_microsecond())
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(tool).collect::<Result<_, _>>().map_err(read())
    }

    /// A tool as it is now.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn now(&self, name: &str) -> Result<Option<McpTool>, EngineError> {
        let read = || pg("reading a tool of an MCP server");
        let row = sqlx::query("select digest, spec from mcp_tools where name = $1 and valid_to is null")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        row.as_ref().map(tool).transpose().map_err(read())
    }

    /// A version of a tool, whether it is the one that holds or not; none if it is not kept.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn version(&self, name: &str, digest: &str) -> Result<Option<McpTool>, EngineError> {
        let read = || pg("reading a version of a tool of an MCP server");
        let row = sqlx::query("select digest, spec from mcp_tools where name = $1 and digest = $2 limit 1")
            .bind(name)
            .bind(digest)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        row.as_ref().map(tool).transpose().map_err(read())
    }

    /// Ends what is offered of servers that are not among the declared ones any more. The tools that are gone by that.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn retire(&self, declared: &[&str]) -> Result<Vec<String>, EngineError> {
        sqlx::query(
            "update mcp_tools set valid_to = clock_timestamp()
             where valid_to is null and server <> all ($1) returning name",
        )
        .bind(declared)
        .fetch_all(&self.pool)
        .await
        .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect())
        .map_err(pg("retiring the tools of MCP servers"))
    }

    /// Whether a tool of this name was ever there.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn was_there(&self, name: &str) -> Result<bool, EngineError> {
        let read = || pg("reading a tool of an MCP server");
        sqlx::query("select exists (select from mcp_tools where name = $1)")
            .bind(name)
            .fetch_one(&self.pool)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(read())
    }

    /// How many tools a server offers, as far as is known.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn count(&self, server: &str) -> Result<u64, EngineError> {
        let read = || pg("counting the tools of an MCP server");
        let row = sqlx::query("select count(*) as count from mcp_tools where server = $1 and valid_to is null")
            .bind(server)
            .fetch_one(&self.pool)
            .await
            .map_err(read())?;
        Cells(&row).count("count").map_err(read())
    }

    /// Notes that a call became a task, so that whoever takes the call up after a crash asks about it. Old notes go.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn keep_task(&self, run: RunId, call: CallId, task: &McpTask) -> Result<(), EngineError> {
        sqlx::query(
            "with old as (delete from mcp_tasks where since < now() - make_interval(days => $5))
             insert into mcp_tasks (call_id, run_id, server, task_id) values ($1, $2, $3, $4)
             on conflict (call_id) do update set task_id = excluded.task_id, since = now()",
        )
        .bind(call.0)
        .bind(run.0)
        .bind(&task.server)
        .bind(&task.task_id)
        .bind(TASK_DAYS)
        .execute(&self.pool)
        .await
        .map_err(pg("keeping a task"))?;
        Ok(())
    }

    /// The task that a call became.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn task_of(&self, call: CallId) -> Result<Option<McpTask>, EngineError> {
        let read = || pg("reading a task");
        let row = sqlx::query("select server, task_id from mcp_tasks where call_id = $1")
            .bind(call.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        let Some(row) = row else { return Ok(None) };
        let row = Cells(&row);
        Ok(Some(McpTask { server: row.get("server").map_err(read())?, task_id: row.get("task_id").map_err(read())? }))
    }
}

/// Removes what a server offered once and nobody holds on to any longer.
async fn forget_old(connection: &mut PgConnection, server: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "delete from mcp_tools where server = $1 and valid_to is not null and (name, valid_from) not in (
             select name, valid_from from (
                 select name, valid_from, row_number() over (partition by name order by valid_from desc) as place,
                        row_number() over (order by valid_to desc, name) as rank
                 from mcp_tools where server = $1 and valid_to is not null
             ) closed where place <= $2 and rank <= $3)",
    )
    .bind(server)
    .bind(KEPT)
    .bind(KEPT_OF_SERVER)
    .execute(connection)
    .await?;
    Ok(())
}

/// A version as it is stored, but for a dry run that whoever wrote it did not look at closely enough: a run that holds on to
/// that version may not be harmed by it.
fn tool(row: &PgRow) -> Result<McpTool, sqlx::Error> {
    let row = Cells(row);
    let mut spec: ToolSpec = row.json("spec")?;
    take_unsound_dry_run(&mut spec);
    Ok(McpTool { spec: Arc::new(spec), digest: row.get("digest")? })
}
