//! Questions to people.

use kernel::{
    ApprovalId, CallId, RunId, StandingId, TenantId, Timestamp, Trust,
    call::{Binding, Endorsement, Shown},
};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{postgres::PgRow, types::Json};
use uuid::Uuid;

use super::{
    Page, ReadError, Reads,
    cursor::Cursor,
    limit,
    row::{Cells, instant, micros},
};
use crate::error::{EngineError, pg};

/// A question to a person, and the answer if there is one.
#[derive(Clone, Debug, Serialize)]
pub struct ApprovalRow {
    /// Which question.
    pub approval_id: ApprovalId,
    /// The run that asks.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// The call that it lets pass; none for a plain question.
    pub call_id: Option<CallId>,
    /// Which tool, for a call.
    pub tool: Option<String>,
    /// What is asked.
    pub question: String,
    /// The arguments as shown.
    pub arguments: Option<Box<RawValue>>,
    /// What the yes is bound to.
    pub binding: Binding,
    /// The lowest trust behind the arguments.
    pub trust: Trust,
    /// The policies that asked, with their words.
    pub reasons: Vec<String>,
    /// Whether it takes the yes of two different people.
    pub two_people: bool,
    /// The first yes of two.
    pub endorsed: Option<Endorsement>,
    /// Where the arguments come from, what the model said, and what it had before it.
    pub shown: Shown,
    /// `open`, `granted`, `denied` or `expired`.
    pub state: String,
    /// When it was asked.
    pub requested_at: Timestamp,
    /// When no answer becomes a no.
    pub expires_at: Timestamp,
    /// When it was decided.
    pub decided_at: Option<Timestamp>,
    /// Who decided.
    pub decided_by: Option<String>,
    /// What the person wrote.
    pub decision: Option<String>,
    /// The standing approval that decided in the place of a person.
    pub standing: Option<StandingId>,
}

/// A query for questions: all that a row shows, and the rest of the statement.
macro_rules! select_approvals {
    ($($rest:tt)*) => {
        concat!(
            "select approval_id, run_id, tenant, call_id, tool, question, arguments, binding, trust, reasons, two_people, endorsed, shown,
                    state, decided_by, decision, standing, ",
            micros!("requested_at"),
            ", ",
            micros!("expires_at"),
            ", ",
            micros!("decided_at"),
            " from approvals ",
            $($rest)*
        )
    };
}

impl Reads {
    /// This tenant's questions, newest first; only those in `state`, if one is given.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn approvals(
        &self,
        tenant: &TenantId,
        state: Option<&str>,
        most: u32,
    ) -> Result<Vec<ApprovalRow>, EngineError> {
        self.approvals_behind(tenant, state, limit(most), None).await
    }

    /// A page of this tenant's questions, newest first, behind `cursor`. Pages neither repeat nor skip one, whatever is asked
    /// meanwhile.
    ///
    /// # Errors
    /// When the cursor is none, or Postgres does not answer.
    pub async fn approval_page(
        &self,
        tenant: &TenantId,
        state: Option<&str>,
        most: u32,
        cursor: Option<&str>,
    ) -> Result<Page<ApprovalRow>, ReadError> {
        let cursor = cursor.map(Cursor::decode).transpose()?;
        let asked = limit(most);
        // One more than asked for says whether there is a next page.
        let items = self.approvals_behind(tenant, state, asked + 1, cursor).await?;
        Ok(Page::cut(items, asked, |last| Cursor { at: last.requested_at, id: last.approval_id.0 }.encode()))
    }

    async fn approvals_behind(
        &self,
        tenant: &TenantId,
        state: Option<&str>,
        most: i64,
        cursor: Option<Cursor>,
    ) -> Result<Vec<ApprovalRow>, EngineError> {
        const LIST: &str = select_approvals!(
            "where tenant = $1 and ($2::text is null or state = $2)
               and ($4::bigint is null or (approvals.requested_at, approval_id) < (",
            instant!("$4"),
            ", $5::uuid))
             order by approvals.requested_at desc, approval_id desc limit $3"
        );
        let read = || pg("listing approvals");
        let rows = sqlx::query(LIST)
            .bind(tenant.as_str())
            .bind(state)
            .bind(most)
            .bind(cursor.map(|cursor| cursor.at.as_microsecond()))
            .bind(cursor.map(|cursor| cursor.id))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(approval_row).collect::<Result<_, _>>().map_err(read())
    }

    /// A question of this tenant.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn approval(&self, tenant: &TenantId, id: ApprovalId) -> Result<Option<ApprovalRow>, EngineError> {
        // By its id alone: with the tenant beside it, a plan made on a young table reads all that the tenant ever asked.
        Ok(self.approval_by_id(id).await?.filter(|row| row.tenant == *tenant))
    }

    /// A question of whichever tenant: for the runtime itself, never for what somebody asks for.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn approval_by_id(&self, id: ApprovalId) -> Result<Option<ApprovalRow>, EngineError> {
        let read = || pg("reading an approval");
        let row = sqlx::query(select_approvals!("where approval_id = $1"))
            .bind(id.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        row.as_ref().map(approval_row).transpose().map_err(read())
    }
}

fn approval_row(row: &PgRow) -> Result<ApprovalRow, sqlx::Error> {
    let row = Cells(row);
    Ok(ApprovalRow {
        approval_id: ApprovalId(row.get("approval_id")?),
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        call_id: row.get::<Option<Uuid>>("call_id")?.map(CallId),
        tool: row.get("tool")?,
        question: row.get("question")?,
        arguments: row.get::<Option<Json<Box<RawValue>>>>("arguments")?.map(|json| json.0),
        binding: row.json("binding")?,
        trust: row.word("trust")?,
        reasons: row.json("reasons")?,
        two_people: row.get("two_people")?,
        endorsed: row.get::<Option<Json<Endorsement>>>("endorsed")?.map(|json| json.0),
        shown: row.get::<Option<Json<Shown>>>("shown")?.map(|json| json.0).unwrap_or_default(),
        state: row.get("state")?,
        requested_at: row.time("requested_at")?,
        expires_at: row.time("expires_at")?,
        decided_at: row.time_if_any("decided_at")?,
        decided_by: row.get("decided_by")?,
        decision: row.get("decision")?,
        standing: row.get::<Option<Uuid>>("standing")?.map(StandingId),
    })
}
