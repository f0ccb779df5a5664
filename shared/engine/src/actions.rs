//! Actions on services, what was found about them, and what was concluded. Plain tables: no run is changed here.

use kernel::{
    ActionId, TenantId, Timestamp,
    action::{Action, ActionConclusion},
};
use serde_json::value::RawValue;
use sqlx::{Row as _, postgres::PgRow, types::Json};

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, micros},
};

/// Actions of one tenant that may be open at once: every record of its services is held against all of them.
pub const MAX_OPEN: i64 = 256;

/// The actions of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Actions {
    pool: Pool,
}

/// What became of an action that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedAction {
    /// It is new.
    New(ActionId),
    /// It was there before, under this id.
    Known(ActionId),
    /// Its key was used before, for something else.
    Mismatch,
    /// Too many of this tenant are open.
    Full,
}

/// How far an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionState {
    /// Evidence is gathered.
    Open,
    /// There is a conclusion.
    Decided,
    /// Whoever should know of it does.
    Told,
}

impl ActionState {
    /// The name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Decided => "decided",
            Self::Told => "told",
        }
    }
}

/// An action as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionRow {
    /// The action.
    pub action: Action,
    /// The trace that its first lines turned out to belong to.
    pub adopted: Option<String>,
    /// When it was recorded.
    pub opened_at: Timestamp,
    /// How far it is.
    pub state: ActionState,
    /// The conclusion, if there is one.
    pub conclusion: Option<ActionConclusion>,
    /// Since when.
    pub decided_at: Option<Timestamp>,
}

/// What was found about an action in the log of one service.
#[derive(Clone, Debug)]
pub struct ActionSlice {
    /// Which action.
    pub action_id: ActionId,
    /// Whose log.
    pub service: String,
    /// The last message that it includes.
    pub stream_seq: u64,
    /// What was found.
    pub state: Box<RawValue>,
}

impl Actions {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Records an action under its key: the same one again changes nothing.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn record(&self, action: &Action, key: &str, digest: &str) -> Result<RecordedAction, EngineError> {
        let write = || pg("recording an action");
        let inserted = sqlx::query(
            "insert into actions (action_id, tenant, key, digest, service, action)
             select $1, $2, $3, $4, $5, $6
             where (select count(*) from actions o where o.tenant = $2 and o.state <> 'told') < $7
             on conflict do nothing",
        )
        .bind(action.action_id.0)
        .bind(action.tenant.as_str())
        .bind(key)
        .bind(digest)
        .bind(&action.service)
        .bind(Json(action))
        .bind(MAX_OPEN)
        .execute(&self.pool)
        .await
        .map_err(write())?;
        if inserted.rows_affected() == 1 {
            return Ok(RecordedAction::New(action.action_id));
        }
        // A statement of its own: the insert waited for whoever was first, and only a new one sees what they wrote.
        let first = sqlx::query("select action_id, digest from actions where tenant = $1 and key = $2")
            .bind(action.tenant.as_str())
            .bind(key)
            .fetch_optional(&self.pool)
            .await
            .map_err(write())?;
        let Some(first) = first else { return Ok(RecordedAction::Full) };
        let known = || Ok((ActionId(first.try_get(0)?), first.try_get::<String, _>(1)?));
        let (known, was) = known().map_err(write())?;
        Ok(if was == digest { RecordedAction::Known(known) } else { RecordedAction::Mismatch })
    }

    /// Actions that are not told yet, oldest first.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn unfinished(&self, limit: u32) -> Result<Vec<ActionRow>, EngineError> {
        let read = || pg("reading open actions");
        let rows = sqlx::query(concat!(
            "select action, adopted, ",
            micros!("opened_at"),
            ", state, conclusion, ",
            micros!("decided_at"),
            " from actions where state <> 'told' order by opened_at, action_id limit $1"
        ))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(row).collect::<Result<_, _>>().map_err(read())
    }

    /// One action of this tenant.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn get(&self, tenant: &TenantId, id: ActionId) -> Result<Option<ActionRow>, EngineError> {
        let read = || pg("reading an action");
        let found = sqlx::query(concat!(
            "select action, adopted, ",
            micros!("opened_at"),
            ", state, conclusion, ",
            micros!("decided_at"),
            " from actions where action_id = $1 and tenant = $2"
        ))
        .bind(id.0)
        .bind(tenant.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        found.as_ref().map(row).transpose().map_err(read())
    }

    /// The latest actions of this tenant, on one service or on all.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn latest(
        &self,
        tenant: &TenantId,
        service: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ActionRow>, EngineError> {
        let read = || pg("listing actions");
        let rows = sqlx::query(concat!(
            "select action, adopted, ",
            micros!("opened_at"),
            ", state, conclusion, ",
            micros!("decided_at"),
            " from actions where tenant = $1 and ($2::text is null or service = $2)
             order by opened_at desc, action_id desc limit $3"
        ))
        .bind(tenant.as_str())
        .bind(service)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(row).collect::<Result<_, _>>().map_err(read())
    }

    /// Notes the trace that the first lines of an action belong to. Of several finders the first one counts, and no two
    /// open actions have the same trace.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn adopt(&self, tenant: &TenantId, id: ActionId, trace: &str) -> Result<bool, EngineError> {
        let changed = sqlx::query(
            "update actions set adopted = $3
             where action_id = $1 and tenant = $2 and adopted is null and state = 'open'
               and not exists (select from actions o where o.state <> 'told' and o.tenant = $2 and o.adopted = $3)",
        )
        .bind(id.0)
        .bind(tenant.as_str())
        .bind(trace)
        .execute(&self.pool)
        .await
        .map_err(pg("noting the trace of an action"))?;
        Ok(changed.rows_affected() == 1)
    }

    /// Keeps the conclusion; of several the first one counts.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn decide(&self, id: ActionId, conclusion: &ActionConclusion) -> Result<bool, EngineError> {
        let changed = sqlx::query(
            "update actions set state = 'decided', conclusion = $2, decided_at = now() where action_id = $1 and state = 'open'",
        )
        .bind(id.0)
        .bind(Json(conclusion))
        .execute(&self.pool)
        .await
        .map_err(pg("concluding an action"))?;
        Ok(changed.rows_affected() == 1)
    }

    /// Notes that everybody who should know does, and forgets what was gathered.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn told(&self, id: ActionId) -> Result<(), EngineError> {
        sqlx::query(
            "with gone as (delete from action_slices where action_id = $1)
             update actions set state = 'told', told_at = now() where action_id = $1 and state = 'decided'",
        )
        .bind(id.0)
        .execute(&self.pool)
        .await
        .map_err(pg("closing an action"))?;
        Ok(())
    }

    /// What was found about these actions, by service.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn slices(&self, ids: &[ActionId]) -> Result<Vec<ActionSlice>, EngineError> {
        let read = || pg("reading what was found about actions");
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<uuid::Uuid> = ids.iter().map(|id| id.0).collect();
        let rows =
            sqlx::query("select action_id, service, stream_seq, state from action_slices where action_id = any ($1)")
                .bind(ids)
                .fetch_all(&self.pool)
                .await
                .map_err(read())?;
        rows.iter().map(slice).collect::<Result<_, _>>().map_err(read())
    }

    /// Keeps what was found. One that has read less than what is there changes nothing, and so does one about an action that
    /// is closed.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn save_slices(&self, slices: Vec<ActionSlice>) -> Result<(), EngineError> {
        if slices.is_empty() {
            return Ok(());
        }
        let (mut ids, mut services, mut seqs, mut states) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for slice in slices {
            ids.push(slice.action_id.0);
            services.push(slice.service);
            seqs.push(i64::try_from(slice.stream_seq).unwrap_or(i64::MAX));
            states.push(Box::<str>::from(slice.state).into_string());
        }
        sqlx::query(
            "insert into action_slices (action_id, service, stream_seq, state)
             select s.action_id, s.service, s.stream_seq, s.state::json
             from unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[]) as s (action_id, service, stream_seq, state)
             where exists (select from actions a where a.action_id = s.action_id and a.state = 'open')
             on conflict (action_id, service) do update set stream_seq = excluded.stream_seq, state = excluded.state
             where action_slices.stream_seq <= excluded.stream_seq",
        )
        .bind(ids)
        .bind(services)
        .bind(seqs)
        .bind(states)
        .execute(&self.pool)
        .await
        .map_err(pg("keeping what was found about actions"))?;
        Ok(())
    }
}

fn row(row: &PgRow) -> Result<ActionRow, sqlx::Error> {
    let row = Cells(row);
    let state = match row.get::<String>("state")?.as_str() {
        "open" => ActionState::Open,
        "decided" => ActionState::Decided,
        _ => ActionState::Told,
    };
    Ok(ActionRow {
        action: row.json("action")?,
        adopted: row.get("adopted")?,
        opened_at: row.time("opened_at")?,
        state,
        conclusion: row.get::<Option<Json<ActionConclusion>>>("conclusion")?.map(|json| json.0),
        decided_at: row.time_if_any("decided_at")?,
    })
}

fn slice(row: &PgRow) -> Result<ActionSlice, sqlx::Error> {
    let row = Cells(row);
    Ok(ActionSlice {
        action_id: ActionId(row.get("action_id")?),
        service: row.get("service")?,
        stream_seq: row.count("stream_seq")?,
        state: row.raw("state")?,
    })
}
