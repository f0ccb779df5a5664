//! The audit trail: who did what, when, from where, on what evidence. It is only ever added to.

use kernel::{TenantId, Timestamp};
use serde::Serialize;
use sqlx::{postgres::PgRow, types::Json};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

/// Something that somebody did, or tried to.
#[derive(Clone, Debug, Serialize)]
pub struct AuditEntry {
    /// Its id: the second time it is added, nothing happens.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// In which tenant.
    pub tenant: TenantId,
    /// Who.
    pub actor: String,
    /// With what roles.
    pub roles: Vec<String>,
    /// With which API token, if it is one of those that are kept here.
    pub token_id: Option<Uuid>,
    /// What, as a stable word such as `approval.decide`.
    pub action: String,
    /// To what.
    pub resource: String,
    /// `done`, or the code of the problem that it ran into.
    pub outcome: String,
    /// The address that the connection came from.
    pub address: Option<String>,
    /// What the proxies before it say about where it came from: their word, not ours.
    pub forwarded: Option<String>,
    /// What the program calls itself.
    pub user_agent: Option<String>,
    /// What it was decided on.
    pub evidence: Option<serde_json::Value>,
}

/// An entry as it is kept.
#[derive(Clone, Debug, Serialize)]
pub struct AuditRow {
    /// Where it stands: entries are read in this order.
    pub position: i64,
    /// What it says.
    #[serde(flatten)]
    pub entry: AuditEntry,
}

/// Which entries to read.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only those of this actor.
    pub actor: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Not older than this.
    pub since: Option<Timestamp>,
    /// Older than this.
    pub until: Option<Timestamp>,
}

/// The audit trail of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditTrail {
    pool: Pool,
}

macro_rules! audit_columns {
    () => {
        concat!(
            "position, id, tenant, actor, roles, token_id, action, resource, outcome, address, forwarded, user_agent, evidence, ",
            micros!("at"),
            " "
        )
    };
}

/// A page of a tenant's entries on one side of a place, in this order.
macro_rules! audit_page {
    ($side:literal, $order:literal) => {
        concat!(
            "select ",
            audit_columns!(),
            "from audit where tenant = $1 and ($2::bigint is null or position ",
            $side,
            " $2)
               and ($3::text is null or actor = $3) and ($4::text is null or action = $4)
               and ($5::bigint is null or audit.at >= ",
            instant!("$5"),
            ") and ($6::bigint is null or audit.at < ",
            instant!("$6"),
            ") order by position ",
            $order,
            " limit $7"
        )
    };
}

impl AuditTrail {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Adds entries, all or none. Whoever has read one has read all with a lower position, or could have: they are added one
    /// after the other, whoever adds them, so that none turns up behind a reader.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn add(&self, entries: &[AuditEntry]) -> Result<(), EngineError> {
        sqlx::query("select add_to_audit($1)")
            .bind(Json(entries))
            .execute(&self.pool)
            .await
            .map_err(pg("adding to the audit trail"))?;
        Ok(())
    }

    /// This tenant's entries, newest first, from before `before`.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn latest(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, EngineError> {
        self.read(audit_page!("<", "desc"), tenant, filter, before, limit).await
    }

    /// This tenant's entries in the order in which they were added, from after `after`.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn from(
        &self,
        tenant: &TenantId,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, EngineError> {
        self.read(audit_page!(">", "asc"), tenant, filter, after, limit).await
    }

    async fn read(
        &self,
        statement: &'static str,
        tenant: &TenantId,
        filter: &AuditFilter,
        place: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, EngineError> {
        let read = || pg("reading the audit trail");
        let rows = sqlx::query(statement)
            .bind(tenant.as_str())
            .bind(place)
            .bind(&filter.actor)
            .bind(&filter.action)
            .bind(filter.since.map(|at| at.as_microsecond()))
            .bind(filter.until.map(|at| at.as_microsecond()))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(audit_row).collect::<Result<_, _>>().map_err(read())
    }
}

fn audit_row(row: &PgRow) -> Result<AuditRow, sqlx::Error> {
    let row = Cells(row);
    let entry = AuditEntry {
        id: row.get("id")?,
        at: row.time("at")?,
        tenant: row.tenant()?,
        actor: row.get("actor")?,
        roles: row.get("roles")?,
        token_id: row.get("token_id")?,
        action: row.get("action")?,
        resource: row.get("resource")?,
        outcome: row.get("outcome")?,
        address: row.get("address")?,
        forwarded: row.get("forwarded")?,
        user_agent: row.get("user_agent")?,
        evidence: row.get::<Option<Json<serde_json::Value>>>("evidence")?.map(|json| json.0),
    };
    Ok(AuditRow { position: row.get("position")?, entry })
}
