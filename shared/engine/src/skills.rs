//! What skills said when runs opened them, and what became of those runs.

use std::collections::BTreeMap;

use kernel::{TenantId, memory::SkillRef};
use serde::Serialize;
use sqlx::types::Json;

use crate::{
    error::{EngineError, pg},
    pool::Pool,
    reads::row::Cells,
};

/// The files of a skill, by their path within its folder.
pub type SkillFiles = BTreeMap<String, String>;

/// The versions of skills that were opened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SkillVersions {
    pool: Pool,
}

/// How often a version of a skill was opened, and how those runs ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkillUse {
    /// The skill.
    pub skill: String,
    /// Digest of its files.
    pub digest: String,
    /// Runs that opened it.
    pub runs: u64,
    /// Of those, runs that ended with their objective reached.
    pub completed: u64,
    /// And runs that failed.
    pub failed: u64,
}

impl SkillVersions {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Keeps what a skill says, once for each version.
    ///
    /// # Errors
    /// When Postgres does not do it.
    pub async fn keep(&self, skill: &SkillRef, files: &SkillFiles) -> Result<(), EngineError> {
        sqlx::query("insert into skill_versions (digest, name, files) values ($1, $2, $3) on conflict do nothing")
            .bind(&skill.digest)
            .bind(&skill.name)
            .bind(Json(files))
            .execute(&self.pool)
            .await
            .map_err(pg("keeping a skill"))?;
        Ok(())
    }

    /// What a version of a skill said; none if no run has opened it.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn get(&self, digest: &str) -> Result<Option<SkillFiles>, EngineError> {
        let read = || pg("reading a skill");
        let row = sqlx::query("select files from skill_versions where digest = $1")
            .bind(digest)
            .fetch_optional(&self.pool)
            .await
            .map_err(read())?;
        row.as_ref().map(|row| Cells(row).json("files")).transpose().map_err(read())
    }

    /// What this tenant's runs opened.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn uses(&self, tenant: &TenantId) -> Result<Vec<SkillUse>, EngineError> {
        let read = || pg("counting the uses of skills");
        let rows = sqlx::query(
            "select u.skill, u.digest, count(*) as runs, count(*) filter (where r.status = 'completed') as completed,
                    count(*) filter (where r.status = 'failed') as failed
             from skill_uses u left join runs r using (run_id)
             where u.tenant = $1 group by 1, 2 order by 1, 3 desc, 2 limit 1000",
        )
        .bind(tenant.as_str())
        .fetch_all(&self.pool)
        .await
        .map_err(read())?;
        let read_row = |row| {
            let row = Cells(row);
            Ok(SkillUse {
                skill: row.get("skill")?,
                digest: row.get("digest")?,
                runs: row.count("runs")?,
                completed: row.count("completed")?,
                failed: row.count("failed")?,
            })
        };
        rows.iter().map(read_row).collect::<Result<_, _>>().map_err(read())
    }
}
