//! What runs remember for later runs. Turns write it through the log; here it is read, and changed by people.

use std::{collections::HashSet, sync::Arc};

use kernel::{
    Block, MemoryId, RunId, TenantId, Timestamp,
    memory::{MemoryPlace, MemoryScope},
};
use serde::Serialize;
use sqlx::postgres::PgRow;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::{Cells, instant, micros},
};

/// Most bytes of a question that are looked at.
pub(crate) const QUESTION_BYTES: i32 = 4000;

/// The memories of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Memories {
    pool: Pool,
    asked: Arc<Asked>,
}

/// Who asks whether a tenant has any memory. One look answers all who asked before it began.
#[derive(Debug, Default)]
struct Asked {
    open: std::sync::Mutex<OpenQuestions>,
    last: tokio::sync::Mutex<Look>,
}

/// A look, and what it found.
#[derive(Debug, Default)]
struct Look {
    number: u64,
    about: HashSet<TenantId>,
    found: HashSet<TenantId>,
}

#[derive(Debug, Default)]
struct OpenQuestions {
    /// Looks that were begun.
    begun: u64,
    /// Tenants that the next look is about.
    tenants: HashSet<TenantId>,
}

impl Asked {
    fn open(&self) -> std::sync::MutexGuard<'_, OpenQuestions> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A memory as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// Its id.
    pub memory_id: MemoryId,
    /// Where it is.
    #[serde(flatten)]
    pub place: MemoryPlace,
    /// What it says, and how far that may be believed.
    #[serde(flatten)]
    pub block: Block,
    /// How often that place was written.
    pub revision: u64,
    /// The run that wrote it; none if a person did.
    pub run_id: Option<RunId>,
    /// Who wrote it, such as `run:<id>` or `operator:ann`.
    pub written_by: String,
    /// When.
    pub written_at: Timestamp,
    /// When it is forgotten by itself.
    pub expires_at: Option<Timestamp>,
}

/// Whose memories are seen beside the tenant's own.
#[derive(Clone, Copy, Debug)]
pub struct Circle<'a> {
    /// The agent.
    pub agent: &'a str,
    /// The user, if there is one.
    pub user: Option<&'a str>,
}

/// Which memories are listed.
#[derive(Clone, Debug, Default)]
pub struct MemoryFilter {
    /// Only of this scope.
    pub scope: Option<MemoryScope>,
    /// Only of this agent or user.
    pub owner: Option<String>,
    /// Only those with these words.
    pub words: Option<String>,
    /// Only those written before the memory with this id, at this time: the end of the page before.
    pub before: Option<(Timestamp, MemoryId)>,
}

macro_rules! memory_columns {
    () => {
        concat!(
            "memory_id, scope, owner, key, text, trust, source, revision, run_id, written_by, ",
            micros!("written_at"),
            ", ",
            micros!("expires_at"),
            " "
        )
    };
}

impl Memories {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool, asked: Arc::default() }
    }

    /// Whether a tenant has any memory now. Most have none, and every turn asks: those who ask at the same time share a look.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn any(&self, tenant: &TenantId) -> Result<bool, EngineError> {
        let wanted = {
            let mut open = self.asked.open();
            open.tenants.insert(tenant.clone());
            open.begun + 1
        };
        let mut last = self.asked.last.lock().await;
        // One that was begun for this question may have failed, or been overtaken by a later one about others.
        if last.number < wanted || !last.about.contains(tenant) {
            let (number, mut about) = {
                let mut open = self.asked.open();
                open.begun += 1;
                (open.begun, std::mem::take(&mut open.tenants))
            };
            about.insert(tenant.clone());
            let found = self.of_these(&about).await?;
            *last = Look { number, about, found };
        }
        Ok(last.found.contains(tenant))
    }

    /// Those of these tenants that have a memory.
    async fn of_these(&self, tenants: &HashSet<TenantId>) -> Result<HashSet<TenantId>, EngineError> {
        let read = || pg("looking for memories");
        let names: Vec<&str> = tenants.iter().map(TenantId::as_str).collect();
        let rows = sqlx::query(
            "select t.tenant from unnest($1::text[]) as t (tenant)
             cross join lateral (select 1 from memories m where m.tenant = t.tenant limit 1) as any_of",
        )
        .bind(names)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(|row| Cells(row).tenant()).collect::<Result<_, _>>().map_err(read())
    }

    /// What fits a question best, the best first; and then, unless only that is wanted, what was written last.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn recall(
        &self,
        tenant: &TenantId,
        circle: Circle<'_>,
        question: &str,
        only_fitting: bool,
        limit: u32,
    ) -> Result<Vec<Memory>, EngineError> {
        let read = || pg("recalling memories");
        let rows = sqlx::query(concat!(
            "with asked as (select replace(plainto_tsquery('pg_catalog.english', left($4, $6))::text, ' & ', ' | ')::tsquery as any_of)
             select ",
            memory_columns!(),
            "from memories, asked
             where tenant = $1 and (expires_at is null or expires_at > now()) and (words @@ any_of or not $7)
               and (scope = 'tenant' or (scope = 'agent' and owner = $2) or (scope = 'user' and owner = $3))
             order by (words @@ any_of) desc, ts_rank_cd(words, any_of, 1) desc, memories.written_at desc, memory_id
             limit $5"
        ))
        .bind(tenant.as_str())
        .bind(circle.agent)
        .bind(circle.user)
        .bind(question)
        .bind(i64::from(limit.min(100)))
        .bind(QUESTION_BYTES)
        .bind(only_fitting)
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(memory_row).collect::<Result<_, _>>().map_err(read())
    }

    /// A tenant's memories, the last written first.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(&self, tenant: &TenantId, filter: &MemoryFilter, limit: u32) -> Result<Vec<Memory>, EngineError> {
        let read = || pg("listing memories");
        let rows = sqlx::query(concat!(
            "select ",
            memory_columns!(),
            "from memories
             where tenant = $1 and (expires_at is null or expires_at > now())
               and ($2::text is null or scope = $2) and ($3::text is null or owner = $3)
               and ($4::text is null or words @@ websearch_to_tsquery('pg_catalog.english', left($4, 4000)))
               and ($5::bigint is null or (memories.written_at, memory_id) < (",
            instant!("$5"),
            ", $6))
             order by memories.written_at desc, memory_id desc
             limit $7"
        ))
        .bind(tenant.as_str())
        .bind(filter.scope.map(MemoryScope::as_str))
        .bind(filter.owner.as_deref())
        .bind(filter.words.as_deref())
        .bind(filter.before.map(|(at, _)| at.as_microsecond()))
        .bind(filter.before.map(|(_, id)| id.0))
        .bind(i64::from(limit.clamp(1, 1001)))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(memory_row).collect::<Result<_, _>>().map_err(read())
    }

    /// Keeps what a person wants remembered, in place of what was there.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn put(
        &self,
        tenant: &TenantId,
        place: &MemoryPlace,
        block: &Block,
        by: &str,
        expires_at: Option<Timestamp>,
    ) -> Result<Memory, EngineError> {
        let row = sqlx::query(concat!(
            "insert into memories as m (memory_id, tenant, scope, owner, key, text, trust, source, written_by, written_at, expires_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, now(), ",
            instant!("$10"),
            ")
             on conflict (memory_id) do update
             set text = excluded.text, trust = excluded.trust, source = excluded.source, revision = m.revision + 1,
                 run_id = null, turn_id = null, written_by = excluded.written_by, written_at = excluded.written_at,
                 expires_at = excluded.expires_at
             returning ",
            memory_columns!()
        ))
        .bind(place.id(tenant).0)
        .bind(tenant.as_str())
        .bind(place.scope.as_str())
        .bind(&place.owner)
        .bind(&place.key)
        .bind(&block.text)
        .bind(block.trust.as_str())
        .bind(&block.source)
        .bind(by)
        .bind(expires_at.map(Timestamp::as_microsecond))
        .fetch_one(&self.pool)
        .await
        .map_err(pg("keeping a memory"))?;
        memory_row(&row).map_err(pg("keeping a memory"))
    }

    /// Forgets a memory. Whether it was there.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn delete(&self, tenant: &TenantId, memory: MemoryId) -> Result<bool, EngineError> {
        let done = sqlx::query("delete from memories where tenant = $1 and memory_id = $2")
            .bind(tenant.as_str())
            .bind(memory.0)
            .execute(&self.pool)
            .await
            .map_err(pg("forgetting a memory"))?;
        Ok(done.rows_affected() > 0)
    }
}

fn memory_row(row: &PgRow) -> Result<Memory, sqlx::Error> {
    let row = Cells(row);
    Ok(Memory {
        memory_id: MemoryId(row.get("memory_id")?),
        place: MemoryPlace { scope: row.word("scope")?, owner: row.get("owner")?, key: row.get("key")? },
        block: Block { text: row.get("text")?, trust: row.word("trust")?, source: row.get("source")? },
        revision: row.count("revision")?,
        run_id: row.get::<Option<uuid::Uuid>>("run_id")?.map(RunId),
        written_by: row.get("written_by")?,
        written_at: row.time("written_at")?,
        expires_at: row.time_if_any("expires_at")?,
    })
}
