//! The kill switch: nothing new starts in a frozen scope.
//!
//! A start is refused in the transaction that would commit `tool.started`, under a lock that whoever changes a freeze takes
//! for itself. So a change waits for the starts that have begun to be committed, and every start after it sees it. What needs
//! no start in the log is looked at by [`Freezes::holds`] before it happens.

use std::{fmt, str::FromStr};

use kernel::{CallId, RunId, RunState, TenantId, Timestamp};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;

use crate::{
    agents::{is_name, is_tool_name},
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, micros},
};

/// The tenant of the scope that is every tenant's.
const EVERYBODY: &str = "*";

/// Where nothing may start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FreezeScope {
    /// Everywhere, whoever's it is: `all`.
    All,
    /// In all runs of the tenant: `tenant`.
    Tenant,
    /// In the runs of an agent, and of all runs below them: `agent:<name>`.
    Agent(String),
    /// Of a tool: `tool:<name>`.
    Tool(String),
}

/// A text that is no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no scope: write `all`, `tenant`, `agent:<name>` or `tool:<name>`")]
pub struct NotAScope(String);

impl FromStr for FreezeScope {
    type Err = NotAScope;

    fn from_str(text: &str) -> Result<Self, NotAScope> {
        match (text, text.split_once(':')) {
            ("all", _) => Ok(Self::All),
            ("tenant", _) => Ok(Self::Tenant),
            (_, Some(("agent", name))) if is_name(name) => Ok(Self::Agent(name.to_owned())),
            (_, Some(("tool", name))) if is_tool_name(name) => Ok(Self::Tool(name.to_owned())),
            _ => Err(NotAScope(text.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for FreezeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Tenant => f.write_str("tenant"),
            Self::Agent(name) => write!(f, "agent:{name}"),
            Self::Tool(name) => write!(f, "tool:{name}"),
        }
    }
}

impl TryFrom<String> for FreezeScope {
    type Error = NotAScope;

    fn try_from(text: String) -> Result<Self, NotAScope> {
        text.parse()
    }
}

impl From<FreezeScope> for String {
    fn from(scope: FreezeScope) -> Self {
        scope.to_string()
    }
}

/// A change of the kill switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Freeze {
    /// Its number: of two changes of one scope the higher one counts.
    pub version: i64,
    /// Where.
    pub scope: FreezeScope,
    /// Whether nothing starts there from then on.
    pub on: bool,
    /// Who changed it.
    pub by: String,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A call that had begun when its scope was frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnderWay {
    /// Which call.
    pub call_id: CallId,
    /// Of which run.
    pub run_id: RunId,
    /// Which tool.
    pub tool: String,
    /// Whether it goes on by itself, so that it can be ended.
    pub activity: bool,
    /// When it began.
    pub started_at: Timestamp,
}

/// The kill switch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Freezes {
    pool: Pool,
}

impl Freezes {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Throws the switch or lifts it. Once this returns, no `tool.started` is committed in a scope that is on.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn set(
        &self,
        tenant: &TenantId,
        scope: &FreezeScope,
        on: bool,
        by: &str,
        reason: Option<&str>,
    ) -> Result<Freeze, EngineError> {
        let setting = || pg("changing a freeze");
        let mut transaction = self.pool.begin().await.map_err(setting())?;
        sqlx::query("select pg_advisory_xact_lock(hashtextextended(current_schema() || '/freezes', 0))")
            .execute(&mut *transaction)
            .await
            .map_err(setting())?;
        let row = sqlx::query(concat!(
            "insert into freezes (tenant, scope, is_on, by_whom, reason) values ($1, $2, $3, $4, $5)
             returning version, scope, is_on, by_whom, reason, ",
            micros!("at")
        ))
        .bind(owner(tenant, scope))
        .bind(scope.to_string())
        .bind(on)
        .bind(by)
        .bind(reason)
        .fetch_one(&mut *transaction)
        .await
        .map_err(setting())?;
        transaction.commit().await.map_err(setting())?;
        freeze(&row).map_err(setting())
    }

    /// What is frozen for this tenant, by scope.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn in_force(&self, tenant: &TenantId) -> Result<Vec<Freeze>, EngineError> {
        let read = || pg("listing freezes");
        let rows = sqlx::query(concat!(
            "select version, scope, is_on, by_whom, reason, ",
            micros!("at"),
            " from (select distinct on (tenant, scope) * from freezes where tenant = any (array[$1, '*'])
                    order by tenant, scope, version desc) newest
             where is_on order by scope limit 1000"
        ))
        .bind(tenant.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(freeze).collect::<Result<_, _>>().map_err(read())
    }

    /// What is under way in a scope, the longest first, 1000 at most.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn under_way(&self, tenant: &TenantId, scope: &FreezeScope) -> Result<Vec<UnderWay>, EngineError> {
        let read = || pg("listing what is under way");
        let (agent, tool) = match scope {
            FreezeScope::All | FreezeScope::Tenant => (None, None),
            FreezeScope::Agent(agent) => (Some(agent), None),
            FreezeScope::Tool(tool) => (None, Some(tool)),
        };
        let rows = sqlx::query(concat!(
            "select s.call_id, s.run_id, s.tool, s.activity, ",
            micros!("started_at"),
            " from started_calls s join runs r using (run_id)
             where ($1::text is null or s.tenant = $1) and ($2::text is null or r.agent = $2 or $2 = any (r.lineage))
               and ($3::text is null or s.tool = $3)
             order by s.started_at limit 1000"
        ))
        .bind((*scope != FreezeScope::All).then(|| tenant.as_str()))
        .bind(agent)
        .bind(tool)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(under_way).collect::<Result<_, _>>().map_err(read())
    }

    /// The scope that keeps `tool` from starting in this run; none if nothing does.
    ///
    /// # Errors
    /// When Postgres does not answer: then nobody knows, and nothing may start.
    pub async fn holds(&self, run: &RunState, tool: &str) -> Result<Option<String>, EngineError> {
        let read = || pg("looking at the kill switch");
        let mut agents = run.parent.as_ref().map(|parent| parent.lineage.clone()).unwrap_or_default();
        agents.push(run.agent.clone());
        let row = sqlx::query("select frozen_by($1, $2, $3) as scope")
            .bind(run.tenant.as_str())
            .bind(agents)
            .bind(tool)
            .fetch_one(&self.pool)
            .await
            .map_err(read())?;
        Cells(&row).get("scope").map_err(read())
    }
}

/// Whose a scope is.
fn owner<'a>(tenant: &'a TenantId, scope: &FreezeScope) -> &'a str {
    if *scope == FreezeScope::All { EVERYBODY } else { tenant.as_str() }
}

fn under_way(row: &PgRow) -> Result<UnderWay, sqlx::Error> {
    let row = Cells(row);
    Ok(UnderWay {
        call_id: CallId(row.get("call_id")?),
        run_id: RunId(row.get("run_id")?),
        tool: row.get("tool")?,
        activity: row.get("activity")?,
        started_at: row.time("started_at")?,
    })
}

fn freeze(row: &PgRow) -> Result<Freeze, sqlx::Error> {
    let row = Cells(row);
    Ok(Freeze {
        version: row.get("version")?,
        scope: row.word("scope")?,
        on: row.get("is_on")?,
        by: row.get("by_whom")?,
        reason: row.get("reason")?,
        at: row.time("at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_read_as_they_are_written() {
        for text in ["all", "tenant", "agent:ci-keeper", "tool:shell.run"] {
            assert_eq!(text.parse::<FreezeScope>().unwrap().to_string(), text);
        }
        for text in ["", "everything", "agent:", "agent:A B", "tool:*", "run:1"] {
            assert!(text.parse::<FreezeScope>().unwrap_err().to_string().contains("agent:<name>"), "{text}");
        }
    }
}
