//! Documents that agents know: kept in collections, cut into passages, found by their words.

mod chunks;

use std::time::Duration;

use kernel::{Block, TenantId, Timestamp, Trust};
use serde::Serialize;
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use crate::{
    error::{EngineError, pg},
    memories::QUESTION_BYTES,
    pool::Pool,
    reads::row::{Cells, micros},
};

pub use chunks::chunks_of;

/// Most passages of a document.
pub const MAX_CHUNKS: usize = 20_000;
/// Words of a question that are looked for, at most.
const MAX_WORDS: i64 = 40;
/// Passages that are looked at for one word, at most: a word that more have says little.
const MAX_HITS: i64 = 1000;

/// The documents of all tenants. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Knowledge {
    pool: Pool,
    /// How long a search may take in Postgres.
    search_within: Duration,
}

/// What is known of a document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// Its id: a name that is used again keeps it.
    pub document_id: Uuid,
    /// The collection that it is in.
    pub collection: String,
    /// Its name there.
    pub name: String,
    /// Digest of its content.
    pub digest: String,
    /// Its media type.
    pub media_type: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// Passages that it was cut into.
    pub chunks: u32,
    /// How far it may be believed.
    pub trust: Trust,
    /// Who added it.
    pub added_by: String,
    /// When.
    pub added_at: Timestamp,
}

/// A document that is added.
#[derive(Clone, Debug)]
pub struct NewDocument {
    /// The collection.
    pub collection: String,
    /// Its name there: the same name again replaces it.
    pub name: String,
    /// Digest of its content.
    pub digest: String,
    /// Its media type.
    pub media_type: String,
    /// Its size, in bytes.
    pub bytes: u64,
    /// How far it may be believed.
    pub trust: Trust,
    /// Who adds it.
    pub added_by: String,
    /// Its passages, in order.
    pub chunks: Vec<Chunk>,
}

/// A passage of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The headings that it stands under.
    pub heading: String,
    /// Its text.
    pub text: String,
}

/// A passage that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Passage {
    /// The collection.
    pub collection: String,
    /// The document.
    pub name: String,
    /// The number of the passage within it, from 0.
    pub ordinal: u32,
    /// Digest of the document as it was then.
    pub digest: String,
    /// The headings that it stands under.
    pub heading: String,
    /// Its text, with how far it may be believed; its source says where it stands.
    #[serde(flatten)]
    pub block: Block,
}

macro_rules! document_columns {
    () => {
        concat!(
            "document_id, collection, name, digest, media_type, bytes, chunks, trust, added_by, ",
            micros!("added_at"),
            " "
        )
    };
}

impl Knowledge {
    pub(crate) fn new(pool: Pool, search_within: Duration) -> Self {
        Self { pool, search_within }
    }

    /// Adds a document, in place of the one of the same name, all of it or nothing.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn put(&self, tenant: &TenantId, new: &NewDocument) -> Result<Document, EngineError> {
        let write = || pg("adding a document");
        let mut transaction = self.pool.begin().await.map_err(write())?;
        let row = sqlx::query(concat!(
            "insert into knowledge_documents (document_id, tenant, collection, name, digest, media_type, bytes, chunks, trust, added_by)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
             on conflict (tenant, collection, name) do update
             set digest = excluded.digest, media_type = excluded.media_type, bytes = excluded.bytes, chunks = excluded.chunks,
                 trust = excluded.trust, added_by = excluded.added_by, added_at = now()
             returning ",
            document_columns!()
        ))
        .bind(Uuid::now_v7())
        .bind(tenant.as_str())
        .bind(&new.collection)
        .bind(&new.name)
        .bind(&new.digest)
        .bind(&new.media_type)
        .bind(i64::try_from(new.bytes).unwrap_or(i64::MAX))
        .bind(i32::try_from(new.chunks.len()).unwrap_or(i32::MAX))
        .bind(new.trust.as_str())
        .bind(&new.added_by)
        .fetch_one(&mut *transaction)
        .await
        .map_err(write())?;
        let document = document_row(&row).map_err(write())?;
        sqlx::query("delete from knowledge_chunks where document_id = $1")
            .bind(document.document_id)
            .execute(&mut *transaction)
            .await
            .map_err(write())?;
        let headings: Vec<&str> = new.chunks.iter().map(|chunk| chunk.heading.as_str()).collect();
        let texts: Vec<&str> = new.chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        sqlx::query(
            "insert into knowledge_chunks (document_id, ordinal, tenant, collection, heading, text)
             select $1, ordinality - 1, $2, $3, heading, text
             from unnest($4::text[], $5::text[]) with ordinality as c (heading, text, ordinality)",
        )
        .bind(document.document_id)
        .bind(tenant.as_str())
        .bind(&new.collection)
        .bind(headings)
        .bind(texts)
        .execute(&mut *transaction)
        .await
        .map_err(write())?;
        transaction.commit().await.map_err(write())?;
        Ok(document)
    }

    /// A tenant's documents, by collection and name; of one collection, if it is given.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn list(
        &self,
        tenant: &TenantId,
        collection: Option<&str>,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Document>, EngineError> {
        let read = || pg("listing documents");
        let rows = sqlx::query(concat!(
            "select ",
            document_columns!(),
            "from knowledge_documents
             where tenant = $1 and ($2::text is null or collection = $2)
               and ($3::text is null or (collection, name) > ($3, $4))
             order by collection, name limit $5"
        ))
        .bind(tenant.as_str())
        .bind(collection)
        .bind(after.map(|(collection, _)| collection))
        .bind(after.map(|(_, name)| name))
        .bind(i64::from(limit.clamp(1, 1001)))
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        rows.iter().map(document_row).collect::<Result<_, _>>().map_err(read())
    }

    /// Removes a document. Whether it was there.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn delete(&self, tenant: &TenantId, collection: &str, name: &str) -> Result<bool, EngineError> {
        let done = sqlx::query("delete from knowledge_documents where tenant = $1 and collection = $2 and name = $3")
            .bind(tenant.as_str())
            .bind(collection)
            .bind(name)
            .execute(&self.pool)
            .await
            .map_err(pg("removing a document"))?;
        Ok(done.rows_affected() > 0)
    }

    /// The passages of these collections that fit a question best, the best first. Two orders are fused: by how rare the words
    /// are that a passage shares with the question, and by how close together they stand in it.
    ///
    /// # Errors
    /// When Postgres does not answer in time.
    pub async fn search(
        &self,
        tenant: &TenantId,
        collections: &[String],
        question: &str,
        limit: u32,
    ) -> Result<Vec<Passage>, EngineError> {
        let read = || pg("searching documents");
        if collections.is_empty() || question.trim().is_empty() {
            return Ok(Vec::new());
        }
        let mut transaction = self.pool.begin().await.map_err(read())?;
        let within = format!("{}ms", self.search_within.as_millis());
        sqlx::query("select set_config('statement_timeout', $1, true)")
            .bind(within)
            .execute(&mut *transaction)
            .await
            .map_err(read())?;
        let rows = sqlx::query(
            "with question as (select to_tsvector('pg_catalog.english', left($3, $4)) as words,
                                      replace(plainto_tsquery('pg_catalog.english', left($3, $4))::text, ' & ', ' | ')::tsquery as any_of),
             asked as (select u.lexeme from question, unnest(question.words) as u order by length(u.lexeme) desc, u.lexeme limit $5),
             hits as (
                 select hit.document_id, hit.ordinal, asked.lexeme
                 from asked cross join lateral (
                     select c.document_id, c.ordinal from knowledge_chunks c
                     where c.tenant = $1 and c.collection = any ($2) and c.words @@ plainto_tsquery('pg_catalog.simple', asked.lexeme)
                     limit $6) hit),
             weights as (select lexeme, ln(1 + $6::float8 / count(*)) as weight from hits group by lexeme),
             found as (select hits.document_id, hits.ordinal, sum(weights.weight) as weight
                       from hits join weights using (lexeme) group by 1, 2 order by 3 desc, 1, 2 limit 200),
             ranked as (
                 select c.document_id, c.ordinal, c.heading, c.text,
                        row_number() over (order by found.weight desc, c.document_id, c.ordinal) as by_words,
                        row_number() over (order by ts_rank_cd(c.words, question.any_of, 33) desc, c.document_id, c.ordinal) as by_place
                 from found join knowledge_chunks c using (document_id, ordinal), question)
             select d.collection, d.name, d.digest, d.trust, ranked.ordinal, ranked.heading, ranked.text
             from ranked join knowledge_documents d using (document_id)
             order by 1.0 / (10 + by_words) + 1.0 / (10 + by_place) desc, ranked.document_id, ranked.ordinal
             limit $7",
        )
        .bind(tenant.as_str())
        .bind(collections)
        .bind(question)
        .bind(QUESTION_BYTES)
        .bind(MAX_WORDS)
        .bind(MAX_HITS)
        .bind(i64::from(limit.min(100)))
        .fetch_all(&mut *transaction)
        .await
        .map_err(read())?;
        transaction.commit().await.map_err(read())?;
        rows.iter().map(passage_row).collect::<Result<_, _>>().map_err(read())
    }
}

fn document_row(row: &PgRow) -> Result<Document, sqlx::Error> {
    let row = Cells(row);
    Ok(Document {
        document_id: row.get("document_id")?,
        collection: row.get("collection")?,
        name: row.get("name")?,
        digest: row.get("digest")?,
        media_type: row.get("media_type")?,
        bytes: row.count("bytes")?,
        chunks: row.small("chunks")?,
        trust: row.word("trust")?,
        added_by: row.get("added_by")?,
        added_at: row.time("added_at")?,
    })
}

fn passage_row(row: &PgRow) -> Result<Passage, sqlx::Error> {
    let (collection, name): (String, String) = (row.try_get("collection")?, row.try_get("name")?);
    let cells = Cells(row);
    let ordinal = cells.small("ordinal")?;
    let source = format!("knowledge:{collection}/{name}#{ordinal}");
    let block = Block { text: cells.get("text")?, trust: cells.word("trust")?, source };
    Ok(Passage { collection, name, ordinal, digest: cells.get("digest")?, heading: cells.get("heading")?, block })
}
