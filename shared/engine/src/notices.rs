//! When people are told of a question that is still open: at once, once more, and others. Rows, so that no process has to stay
//! up for it.

use std::time::Duration;

use kernel::{ApprovalId, Timestamp};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant},
};

/// What people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// That there is a question.
    Asked,
    /// That one of the two people whom it takes has agreed.
    Endorsed,
    /// That it is still open.
    Reminder,
    /// That nobody of those who were told answers.
    Escalation,
}

impl NoticeKind {
    /// All of them. What another version has planned is left to it.
    const ALL: [Self; 4] = [Self::Asked, Self::Endorsed, Self::Reminder, Self::Escalation];

    /// The name in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Endorsed => "endorsed",
            Self::Reminder => "reminder",
            Self::Escalation => "escalation",
        }
    }
}

/// Something that people are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Of which question.
    pub approval_id: ApprovalId,
    /// What.
    pub kind: NoticeKind,
    /// The how manieth of its kind, from 0.
    pub number: i32,
    /// How often it was tried already.
    pub attempts: u32,
}

/// What is still to be told of all questions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Notices {
    pool: Pool,
}

impl Notices {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Writes down what is to be told, and when. What is written down already stays as it is.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn plan(
        &self,
        approval_id: ApprovalId,
        notices: &[(NoticeKind, i32, Timestamp)],
    ) -> Result<(), EngineError> {
        let kinds: Vec<&str> = notices.iter().map(|(kind, ..)| kind.as_str()).collect();
        let numbers: Vec<i32> = notices.iter().map(|(_, number, _)| *number).collect();
        let due: Vec<i64> = notices.iter().map(|(.., due)| due.as_microsecond()).collect();
        sqlx::query(
            "insert into approval_notices (approval_id, kind, number, due)
             select a.approval_id, n.kind, n.number, timestamptz 'epoch' + n.due * interval '1 microsecond'
             from approvals a, unnest($2::text[], $3::integer[], $4::bigint[]) as n (kind, number, due)
             where a.approval_id = $1 and a.state = 'open'
             on conflict do nothing",
        )
        .bind(approval_id.0)
        .bind(kinds)
        .bind(numbers)
        .bind(due)
        .execute(&self.pool)
        .await
        .map_err(pg("planning notices"))?;
        Ok(())
    }

    /// Takes what is due, for as long as `hold`: whoever takes it and dies lets others have it then. What is moot by now, since
    /// its question is not open any more, is removed instead; what is of a kind that only a later version knows is left to that.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn claim_due(&self, limit: u32, hold: Duration) -> Result<Vec<Notice>, EngineError> {
        let claim = || pg("claiming notices");
        let now = Timestamp::now();
        let until = now.as_microsecond().saturating_add(i64::try_from(hold.as_micros()).unwrap_or(i64::MAX));
        let rows = sqlx::query(concat!(
            "with due as (
                 select n.approval_id, n.kind, n.number, a.state from approval_notices n join approvals a using (approval_id)
                 where n.due <= ",
            instant!("$1"),
            " and (n.claimed_until is null or n.claimed_until <= ",
            instant!("$1"),
            ") and (n.kind = any($4) or a.state <> 'open')
                 order by n.due limit $3 for update of n skip locked
             ), moot as (
                 delete from approval_notices n using due d
                 where n.approval_id = d.approval_id and n.kind = d.kind and n.number = d.number and d.state <> 'open'
             )
             update approval_notices n set claimed_until = ",
            instant!("$2"),
            ", attempts = n.attempts + 1 from due d
             where n.approval_id = d.approval_id and n.kind = d.kind and n.number = d.number and d.state = 'open'
             returning n.approval_id, n.kind, n.number, n.attempts"
        ))
        .bind(now.as_microsecond())
        .bind(until)
        .bind(i64::from(limit))
        .bind(NoticeKind::ALL.map(NoticeKind::as_str).to_vec())
        .fetch_all(&self.pool)
        .await
        .map_err(claim())?;
        rows.iter().map(notice).collect::<Result<_, _>>().map_err(claim())
    }

    /// Lets it be tried again, not before `at`.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn put_off(&self, notice: &Notice, at: Timestamp) -> Result<(), EngineError> {
        sqlx::query(concat!(
            "update approval_notices set claimed_until = null, due = ",
            instant!("$4"),
            " where approval_id = $1 and kind = $2 and number = $3"
        ))
        .bind(notice.approval_id.0)
        .bind(notice.kind.as_str())
        .bind(notice.number)
        .bind(at.as_microsecond())
        .execute(&self.pool)
        .await
        .map_err(pg("putting a notice off"))?;
        Ok(())
    }

    /// It was told, or given up.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn done(&self, notice: &Notice) -> Result<(), EngineError> {
        sqlx::query("delete from approval_notices where approval_id = $1 and kind = $2 and number = $3")
            .bind(notice.approval_id.0)
            .bind(notice.kind.as_str())
            .bind(notice.number)
            .execute(&self.pool)
            .await
            .map_err(pg("ending a notice"))?;
        Ok(())
    }
}

fn notice(row: &PgRow) -> Result<Notice, sqlx::Error> {
    let row = Cells(row);
    Ok(Notice {
        approval_id: ApprovalId(row.get::<Uuid>("approval_id")?),
        kind: row.word("kind")?,
        number: row.get("number")?,
        attempts: row.small("attempts")?,
    })
}
