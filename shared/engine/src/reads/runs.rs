//! Runs as they stand.

use kernel::{ConversationId, RunId, Seq, Status, TenantId, Timestamp, TurnId, budget::Spent, wait::WakeKind};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{
    Reads,
    cursor::{Cursor, InvalidCursor},
    limit,
    row::{Cells, instant, micros},
};
use crate::error::{EngineError, pg};
use crate::pool::Pool;

/// A run as its last commit left it.
#[derive(Clone, Debug, Serialize)]
pub struct RunRow {
    /// Which run.
    pub run_id: RunId,
    /// Whose.
    pub tenant: TenantId,
    /// Name of its agent.
    pub agent: String,
    /// Digest of its agent's definition.
    pub agent_digest: String,
    /// What is to be reached.
    pub objective: String,
    /// The conversation it belongs to.
    pub conversation_id: Option<ConversationId>,
    /// The user's labels: a JSON object.
    pub metadata: Box<RawValue>,
    /// Whether spans are exported.
    pub sampled: bool,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Its last event.
    pub seq: Seq,
    /// Where it stands. `running` is not among them: it is `runnable` with a live lease on [`RunRow::turn_id`].
    pub status: Status,
    /// The rule by which it ended.
    pub rule: Option<String>,
    /// The open turn.
    pub turn_id: Option<TurnId>,
    /// When the open turn may be taken, if not at once.
    pub not_before: Option<Timestamp>,
    /// What may wake it, when it waits.
    pub wake_kinds: Vec<WakeKind>,
    /// Since when it waits.
    pub waiting_since: Option<Timestamp>,
    /// What it has spent.
    pub spent: Spent,
}

/// Which runs are meant. The default is all of them.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Only those that stand here.
    pub status: Option<Status>,
    /// Only those of the agent of this name.
    pub agent: Option<String>,
    /// Only those that wait for this kind of wake.
    pub wake: Option<WakeKind>,
    /// Only those whose objective has this text in it, in any case, or whose id begins with it.
    pub q: Option<String>,
    /// Only those of this conversation.
    pub conversation: Option<ConversationId>,
    /// Only those created at this time or later.
    pub since: Option<Timestamp>,
    /// Most rows of the page; 0 for the usual 50.
    pub limit: u32,
    /// [`Page::next`] of the page before.
    pub cursor: Option<String>,
}

/// A page of a list, newest first.
#[derive(Clone, Debug, Serialize)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; none after the last one.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// The first `asked` rows of those that were read, and where the next page begins if there were more.
    pub(super) fn cut(mut items: Vec<T>, asked: i64, place: impl FnOnce(&T) -> String) -> Self {
        let asked = usize::try_from(asked).unwrap_or(usize::MAX);
        let more = items.len() > asked;
        items.truncate(asked);
        let next = items.last().filter(|_| more).map(place);
        Self { items, next }
    }
}

/// Why a list could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The cursor is not one.
    #[error(transparent)]
    Cursor(#[from] InvalidCursor),
    /// The store did not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A query for runs: all that a row shows, and the rest of the statement.
macro_rules! select_runs {
    ($($rest:tt)*) => {
        concat!(
            "select run_id, tenant, agent, agent_digest, objective, conversation_id, metadata, sampled, seq, status, rule,
                    turn_id, wake_kinds, turns, tool_calls, model_calls, input_tokens, cached_tokens, output_tokens,
                    cost_microusd, ",
            micros!("created_at"), ", ", micros!("updated_at"), ", ",
            micros!("not_before"), ", ", micros!("waiting_since"), " from runs ", $($rest)*
        )
    };
}

/// The children of a run, oldest first.
pub(super) async fn children_of(pool: &Pool, parent: RunId, most: i64) -> Result<Vec<RunRow>, EngineError> {
    let read = || pg("listing children");
    let rows = sqlx::query(select_runs!("where parent_id = $1 order by runs.created_at, run_id limit $2"))
        .bind(parent.0)
        .bind(most)
        .fetch_all(pool)
        .await
        .map_err(read())?;
    rows.iter().map(run_row).collect::<Result<_, _>>().map_err(read())
}

impl Reads {
    /// A run of this tenant.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn run(&self, tenant: &TenantId, run: RunId) -> Result<Option<RunRow>, EngineError> {
        let read = || pg("reading a run");
        // By its id alone: with the tenant beside it, a plan made on a young table may read all runs of the tenant.
        let row = sqlx::query(select_runs!("where run_id = $1"))
            .bind(run.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        let row = row.as_ref().map(run_row).transpose().map_err(read())?;
        Ok(row.filter(|row| row.tenant == *tenant))
    }

    /// A page of this tenant's runs, newest first. Pages neither repeat nor skip a run, whatever is created meanwhile.
    ///
    /// # Errors
    /// When the cursor is none, or Postgres does not answer.
    pub async fn runs(&self, tenant: &TenantId, filter: &RunFilter) -> Result<Page<RunRow>, ReadError> {
        const LIST: &str = select_runs!(
            "where tenant = $1
               and ($2::text is null or status = $2)
               and ($3::text is null or agent = $3)
               and ($4::text is null or (status = 'waiting' and $4 = any (wake_kinds)))
               and ($5::text is null or strpos(lower(objective), lower($5)) > 0 or starts_with(run_id::text, lower($5)))
               and ($6::bigint is null or runs.created_at >= ",
            instant!("$6"),
            ")
               and (runs.created_at, run_id) < (coalesce(",
            instant!("$7"),
            ", timestamptz 'infinity'),
                                           coalesce($8, uuid 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
               and ($10::uuid is null or conversation_id = $10)
             order by runs.created_at desc, run_id desc limit $9"
        );
        let read = || pg("listing runs");
        let cursor = filter.cursor.as_deref().map(Cursor::decode).transpose()?;
        let asked = limit(if filter.limit == 0 { 50 } else { filter.limit });
        let rows = sqlx::query(LIST)
            .bind(tenant.as_str())
            .bind(filter.status.map(Status::as_str))
            .bind(filter.agent.as_deref())
            .bind(filter.wake.map(WakeKind::as_str))
            .bind(filter.q.as_deref())
            .bind(filter.since.map(Timestamp::as_microsecond))
            .bind(cursor.map(|cursor| cursor.at.as_microsecond()))
            .bind(cursor.map(|cursor| cursor.id))
            // One more than asked for says whether there is a next page.
            .bind(asked + 1)
            .bind(filter.conversation.map(|conversation| conversation.0))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        let items = rows.iter().map(run_row).collect::<Result<Vec<_>, _>>().map_err(read())?;
        Ok(Page::cut(items, asked, |last| Cursor { at: last.created_at, id: last.run_id.0 }.encode()))
    }
}

fn run_row(row: &PgRow) -> Result<RunRow, sqlx::Error> {
    let row = Cells(row);
    Ok(RunRow {
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        agent: row.get("agent")?,
        agent_digest: row.get("agent_digest")?,
        objective: row.get("objective")?,
        conversation_id: row.get::<Option<Uuid>>("conversation_id")?.map(ConversationId),
        metadata: row.raw("metadata")?,
        sampled: row.get("sampled")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        seq: row.count("seq")?,
        status: row.word("status")?,
        rule: row.get("rule")?,
        turn_id: row.get::<Option<Uuid>>("turn_id")?.map(TurnId),
        not_before: row.time_if_any("not_before")?,
        wake_kinds: row.words("wake_kinds")?,
        waiting_since: row.time_if_any("waiting_since")?,
        spent: spent(&row)?,
    })
}

fn spent(row: &Cells<'_>) -> Result<Spent, sqlx::Error> {
    Ok(Spent {
        turns: row.small("turns")?,
        tool_calls: row.small("tool_calls")?,
        usage: kernel::budget::Usage {
            model_calls: row.small("model_calls")?,
            input_tokens: row.count("input_tokens")?,
            cached_tokens: row.count("cached_tokens")?,
            output_tokens: row.count("output_tokens")?,
            cost_microusd: row.count("cost_microusd")?,
            // The log has the finer parts; the projection has none of them.
            ..kernel::budget::Usage::default()
        },
    })
}
