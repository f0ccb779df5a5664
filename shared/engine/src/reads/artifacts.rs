//! Named, versioned contents; the bytes themselves are elsewhere.

use kernel::{ArtifactId, RunId, TenantId, Timestamp, call::ArtifactRef};
use serde::Serialize;
use sqlx::postgres::PgRow;

use super::{
    MAX_ROWS, Reads,
    row::{Cells, micros},
};
use crate::error::{EngineError, pg};

/// A version of an artifact.
#[derive(Clone, Debug, Serialize)]
pub struct ArtifactRow {
    /// The version itself.
    #[serde(flatten)]
    pub artifact: ArtifactRef,
    /// The run that it belongs to.
    pub run_id: RunId,
    /// Whose run.
    pub tenant: TenantId,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A query for artifacts: all that a row shows, and the rest of the statement.
macro_rules! select_artifacts {
    ($rest:literal) => {
        concat!(
            "select artifact_id, version, run_id, tenant, name, digest, bytes, media_type, trust, ",
            micros!("created_at"),
            " from artifacts ",
            $rest
        )
    };
}

impl Reads {
    /// All versions of all artifacts of a run of this tenant, by name and version; at most [`MAX_ROWS`].
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn artifacts(&self, tenant: &TenantId, run: RunId) -> Result<Vec<ArtifactRow>, EngineError> {
        let read = || pg("listing artifacts");
        let rows = sqlx::query(select_artifacts!("where run_id = $1 and tenant = $2 order by name, version limit $3"))
            .bind(run.0)
            .bind(tenant.as_str())
            .bind(i64::from(MAX_ROWS))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(artifact_row).collect::<Result<_, _>>().map_err(read())
    }

    /// A version of an artifact of this tenant; the latest one, if none is given.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn artifact(
        &self,
        tenant: &TenantId,
        id: ArtifactId,
        version: Option<u32>,
    ) -> Result<Option<ArtifactRow>, EngineError> {
        let read = || pg("reading an artifact");
        let row = sqlx::query(select_artifacts!(
            "where artifact_id = $1 and tenant = $2 and ($3::integer is null or version = $3)
             order by version desc limit 1"
        ))
        .bind(id.0)
        .bind(tenant.as_str())
        .bind(version.map(|version| i32::try_from(version).unwrap_or(i32::MAX)))
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        row.as_ref().map(artifact_row).transpose().map_err(read())
    }
}

fn artifact_row(row: &PgRow) -> Result<ArtifactRow, sqlx::Error> {
    let row = Cells(row);
    Ok(ArtifactRow {
        artifact: ArtifactRef {
            artifact_id: ArtifactId(row.get("artifact_id")?),
            name: row.get("name")?,
            version: row.small("version")?,
            digest: row.get("digest")?,
            bytes: row.count("bytes")?,
            media_type: row.get("media_type")?,
            trust: row.word("trust")?,
        },
        run_id: RunId(row.get("run_id")?),
        tenant: row.tenant()?,
        created_at: row.time("created_at")?,
    })
}
