//! Does the log obey the rules, and does everything that is derived from it say what it says?
//!
//! Reads only, a page of runs at a time, each page from one view of Postgres: it may run beside a system at work. Memory is
//! bounded by the longest-lived questions of one run, not by the length of the log.
//!
//! | what is compared | where |
//! | --- | --- |
//! | each run's events with the rules | `kernel::audit` |
//! | the tables beside the log, snapshots and checkpoints with the folded events | `audit/derived.rs` |
//! | what must be true once nothing is under way any more | `audit/settled.rs` |

mod derived;
mod settled;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use futures::TryStreamExt;
use kernel::{
    Event, EventData, RunId, RunState, Seq, Timestamp,
    audit::{Families, RunAudit, Violation, rules},
};
use serde::Serialize;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::{
    engine::{connect, connect_redis},
    error::{EngineError, pg},
    pool::Pool,
    snapshot::{RedisKeys, Snapshots},
};

/// Runs that are looked at together.
const PAGE: i64 = 100;
/// How long a store may take to answer: nobody waits for an audit.
const WITHIN: Duration = Duration::from_secs(30);
/// Violations that are kept; more are counted.
const KEPT: usize = 1000;

/// What to look at, and how strictly.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// `postgres://user:password@host:port/database`, as a user that may read everything.
    pub database_url: String,
    /// Postgres schema.
    pub schema: String,
    /// `redis://:password@host:port/0`.
    pub redis_url: String,
    /// Prefix of Redis keys; empty in production.
    pub namespace: String,
    /// Whether nothing is under way any more, so that nothing may be left undone either.
    pub settled: bool,
    /// How long something may be nobody's before it counts as forgotten.
    pub grace: Duration,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AuditReport {
    /// Runs read.
    pub runs: u64,
    /// Events read.
    pub events: u64,
    /// What is not as it must be, a thousand at most.
    pub violations: Vec<AuditViolation>,
    /// Violations beyond those.
    pub omitted: u64,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditViolation {
    /// The run that it was seen in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The event at which it was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// A stable word for the rule that is broken.
    pub rule: String,
    /// What was seen.
    pub detail: String,
}

/// Reads everything and says what is not as it must be.
///
/// # Errors
/// When a store does not answer.
pub async fn audit(options: &AuditOptions) -> Result<AuditReport, EngineError> {
    let pool = connect(&options.database_url, &options.schema, 2, WITHIN).await?;
    let mut audit = Audit {
        snapshots: snapshots(options).await?,
        pool,
        settled: options.settled,
        grace: options.grace,
        report: AuditReport::default(),
        taken: HashMap::new(),
        untaken: Vec::new(),
        families: Families::default(),
    };
    let mut after = Uuid::nil();
    while let Some(last) = audit.page(after).await? {
        after = last;
    }
    for Violation { run_id, seq, rule, detail } in audit.families.violations(audit.settled) {
        audit.found(Some(run_id), seq, rule, detail);
    }
    audit.orphans().await?;
    if audit.settled {
        audit.nothing_left().await?;
    }
    audit.pool.close().await;
    Ok(audit.report)
}

struct Audit {
    pool: Pool,
    snapshots: Snapshots,
    settled: bool,
    grace: Duration,
    report: AuditReport,
    /// Outside events that an exclusive wait has consumed, by place, with the run that did.
    taken: HashMap<i64, RunId>,
    /// Exclusive waits that an outside event fits which came long ago: wrong unless another has it.
    untaken: Vec<(RunId, i64)>,
    families: Families,
}

/// What is to be read, and the copies to compare with it.
struct Logs {
    wanted: HashSet<Uuid>,
    snapshots: HashMap<RunId, RunState>,
    checkpoints: HashMap<RunId, RunState>,
}

/// A run on its way through the log.
struct Folding {
    run: RunId,
    audit: RunAudit,
    snapshot: Option<RunState>,
    checkpoint: Option<RunState>,
    seen: Seen,
    /// The rest of its log makes no sense after an event that can't be read.
    unreadable: bool,
}

/// What the events said and the state does not keep.
#[derive(Default)]
struct Seen {
    approvals: BTreeMap<kernel::ApprovalId, (&'static str, kernel::call::Approval)>,
    /// Who was the first of two to say yes.
    endorsed: BTreeMap<kernel::ApprovalId, String>,
    artifacts: BTreeMap<(kernel::ArtifactId, u32), kernel::call::ArtifactRef>,
    /// When each child was started, in microseconds since 1970.
    children: BTreeMap<RunId, i64>,
}

impl Audit {
    /// Looks at the runs behind `after`, and returns the last of them; none if there are none.
    async fn page(&mut self, after: Uuid) -> Result<Option<Uuid>, EngineError> {
        let runs: Vec<Uuid> = sqlx::query("select run_id from runs where run_id > $1 order by run_id limit $2")
            .bind(after)
            .bind(PAGE)
            .fetch_all(&self.pool)
            .await
            .and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect())
            .map_err(pg("listing runs"))?;
        let (Some(first), Some(last)) = (runs.first().copied(), runs.last().copied()) else { return Ok(None) };
        // Before the view of Postgres is taken: snapshots are written after the commit, so none may be ahead of that view.
        let ids: Vec<_> = runs.iter().map(|run| RunId(*run)).collect();
        let snapshots = self.snapshots.get(&ids).await?;
        let snapshots = snapshots.into_iter().flatten().map(|state| (state.run_id, state)).collect();

        let mut view = self.pool.begin().await.map_err(pg("beginning a view"))?;
        statement(&mut view, "set transaction isolation level repeatable read, read only").await?;
        let mut derived = derived::rows(&mut view, &runs).await?;
        let checkpoints = derived::checkpoints(&mut view, &runs).await?;
        let mut logs = Logs { wanted: runs.iter().copied().collect(), snapshots, checkpoints };
        for folding in self.read(&mut view, (first, last), &mut logs).await? {
            let rows = derived.remove(&folding.run).unwrap_or_default();
            self.end(&mut view, folding, rows).await?;
        }
        for run in derived.into_keys() {
            self.found(Some(run), None, "log.missing", "the run has no events".to_owned());
        }
        self.report.runs += runs.len() as u64;
        view.rollback().await.map_err(pg("ending a view"))?;
        Ok(Some(last))
    }

    /// Reads the events of the runs in this range, and folds them.
    async fn read(
        &mut self,
        view: &mut PgConnection,
        (first, last): (Uuid, Uuid),
        logs: &mut Logs,
    ) -> Result<Vec<Folding>, EngineError> {
        let mut folded: Vec<Folding> = Vec::with_capacity(logs.wanted.len());
        let mut events = sqlx::query(
            "select run_id, seq, type, version, (extract(epoch from at) * 1000000)::bigint, data::text
             from events where run_id between $1 and $2 order by run_id, seq",
        )
        .bind(first)
        .bind(last)
        .fetch(view);
        while let Some(row) = events.try_next().await.map_err(pg("reading the log"))? {
            let run: Uuid = row.try_get(0).map_err(pg("reading the log"))?;
            // Those that were created meanwhile and sort in between are not looked at.
            if !logs.wanted.contains(&run) {
                continue;
            }
            if folded.last().is_none_or(|folding| folding.run.0 != run) {
                folded.push(logs.begin(RunId(run)));
            }
            if let Some(folding) = folded.last_mut() {
                self.fold(folding, &row)?;
            }
        }
        Ok(folded)
    }

    fn fold(&mut self, folding: &mut Folding, row: &sqlx::postgres::PgRow) -> Result<(), EngineError> {
        self.report.events += 1;
        if folding.unreadable {
            return Ok(());
        }
        let event = match event(row).map_err(pg("reading the log"))? {
            Ok(event) => event,
            Err((seq, error)) => {
                folding.unreadable = true;
                self.found(Some(folding.run), Some(seq), "log.unreadable", error.to_string());
                return Ok(());
            }
        };
        folding.seen.see(&event);
        folding.audit.push(&event);
        self.compare_copies(folding);
        Ok(())
    }

    /// A copy of the state as of event n is what the first n events fold to.
    fn compare_copies(&mut self, folding: &mut Folding) {
        let Some(state) = folding.audit.state() else { return };
        let copies = [("snapshot.differs", &mut folding.snapshot), ("checkpoint.differs", &mut folding.checkpoint)];
        for (rule, copy) in copies {
            if let Some(copy) = copy.take_if(|copy| copy.seq == state.seq)
                && copy != *state
            {
                let detail = derived::state_differences(&copy, state);
                self.found(Some(folding.run), Some(state.seq), rule, detail);
            }
        }
    }

    /// What is left to look at once all events of a run are folded.
    async fn end(
        &mut self,
        view: &mut PgConnection,
        mut folding: Folding,
        rows: derived::Rows,
    ) -> Result<(), EngineError> {
        let run = folding.run;
        if !folding.unreadable {
            folding.audit.rest();
            if self.settled {
                folding.audit.settled(long_ago(self.grace));
            }
        }
        folding.audit.tell(&mut self.families);
        self.take(&mut folding.audit);
        let Some(state) = folding.audit.state().filter(|_| !folding.unreadable) else { return Ok(()) };
        for (rule, copy) in [("snapshot.ahead", &folding.snapshot), ("checkpoint.ahead", &folding.checkpoint)] {
            if let Some(copy) = copy {
                let detail = format!("it is of event {}, and the log ends at {}", copy.seq, state.seq);
                self.found(Some(run), Some(state.seq), rule, detail);
            }
        }
        for (rule, detail) in derived::differences(rows, &derived::expected(state, &folding.seen)) {
            self.found(Some(run), Some(state.seq), &rule, detail);
        }
        if self.settled { self.settled_run(view, state).await } else { Ok(()) }
    }

    /// What the rules say of a run, and of its outside events beside those of the other runs.
    fn take(&mut self, audit: &mut RunAudit) {
        for Violation { run_id, seq, rule, detail } in audit.take_violations() {
            self.found(Some(run_id), seq, rule, detail);
        }
        let Some(run) = audit.state().map(|state| state.run_id) else { return };
        for (position, seq) in audit.take_exclusive() {
            if let Some(other) = self.taken.insert(position, run).filter(|other| *other != run) {
                let detail = format!("run {other} has outside event {position} too, and both waits are exclusive");
                self.found(Some(run), Some(seq), rules::EXCLUSIVE, detail);
            }
        }
    }

    /// Rows of runs that do not exist. The log of a run that was removed leaves in steps.
    async fn orphans(&mut self) -> Result<(), EngineError> {
        for table in
            ["events", "inbox", "waits", "timers", "started_calls", "approvals", "artifacts", "checkpoints", "children"]
        {
            let query = format!(
                "select distinct run_id from {table} t
                 where not exists (select from runs r where r.run_id = t.run_id)
                   and not exists (select from removed_runs r where r.run_id = t.run_id) limit 100"
            );
            let rows =
                sqlx::query(AssertSqlSafe(query)).fetch_all(&self.pool).await.map_err(pg("looking for orphans"))?;
            for row in rows {
                let run = RunId(row.try_get(0).map_err(pg("looking for orphans"))?);
                self.found(Some(run), None, &format!("{table}.orphan"), "there is no such run".to_owned());
            }
        }
        Ok(())
    }

    fn found(&mut self, run_id: Option<RunId>, seq: Option<Seq>, rule: &str, detail: String) {
        if self.report.violations.len() == KEPT {
            self.report.omitted += 1;
            return;
        }
        self.report.violations.push(AuditViolation { run_id, seq, rule: rule.to_owned(), detail });
    }
}

impl Logs {
    fn begin(&mut self, run: RunId) -> Folding {
        Folding {
            run,
            audit: RunAudit::new(run),
            snapshot: self.snapshots.remove(&run),
            checkpoint: self.checkpoints.remove(&run),
            seen: Seen::default(),
            unreadable: false,
        }
    }
}

impl Seen {
    fn see(&mut self, event: &Event) {
        match &event.data {
            EventData::ApprovalRequested(asked) => {
                self.approvals.insert(asked.approval.approval_id, ("open", asked.approval.clone()));
            }
            EventData::BudgetExceeded(exceeded) => {
                if let Some(ask) = &exceeded.ask {
                    self.approvals.insert(ask.approval_id, ("open", kernel::call::Approval::clone(ask)));
                }
            }
            EventData::ApprovalEndorsed(endorsed) => {
                self.endorsed.insert(endorsed.approval_id, endorsed.by.clone());
            }
            EventData::ApprovalGranted(granted) => self.decided(granted.approval_id, "granted"),
            EventData::ApprovalDenied(denied) => self.decided(denied.approval_id, "denied"),
            EventData::ApprovalExpired(expired) => self.decided(expired.approval_id, "expired"),
            EventData::ArtifactCreated(created) => self.artifact(&created.artifact),
            EventData::ArtifactUpdated(updated) => self.artifact(&updated.artifact),
            EventData::SubagentStarted(started) => {
                self.children.insert(started.child_id, event.at.as_microsecond());
            }
            EventData::ToolCompleted(done) => done.result.artifact.iter().for_each(|artifact| self.artifact(artifact)),
            _ => {}
        }
    }

    fn decided(&mut self, approval: kernel::ApprovalId, how: &'static str) {
        if let Some((state, _)) = self.approvals.get_mut(&approval) {
            *state = how;
        }
    }

    fn artifact(&mut self, artifact: &kernel::call::ArtifactRef) {
        self.artifacts.entry((artifact.artifact_id, artifact.version)).or_insert_with(|| artifact.clone());
    }
}

/// An event, or its number and why it can't be read.
fn event(row: &sqlx::postgres::PgRow) -> Result<Result<Event, (Seq, kernel::DecodeError)>, sqlx::Error> {
    let seq = row.try_get::<i64, _>(1)?.unsigned_abs();
    let (event_type, version): (String, i16) = (row.try_get(2)?, row.try_get(3)?);
    let at = crate::load::timestamp(row.try_get(4)?);
    let data: String = row.try_get(5)?;
    let decoded = EventData::decode(&event_type, version.unsigned_abs(), &data);
    Ok(decoded.map(|data| Event { seq, at, data }).map_err(|error| (seq, error)))
}

async fn snapshots(options: &AuditOptions) -> Result<Snapshots, EngineError> {
    let redis = connect_redis(&options.redis_url, WITHIN).await?;
    Ok(Snapshots::new(redis, RedisKeys::new(&options.namespace)))
}

async fn statement(connection: &mut PgConnection, sql: &'static str) -> Result<(), EngineError> {
    sqlx::query(sql).execute(connection).await.map_err(pg("beginning a view"))?;
    Ok(())
}

/// The latest time at which something may have become due and be undone.
fn long_ago(grace: Duration) -> Timestamp {
    Timestamp::now().checked_sub(grace).unwrap_or(Timestamp::MIN)
}
