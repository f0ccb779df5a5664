//! What must be true once nothing is under way any more: no lost wake, nothing left to publish or to dispatch.

use std::time::Duration;

use kernel::{
    RunId, RunState,
    wait::{Condition, ExternalPattern},
};
use sqlx::{PgConnection, Row, types::Json};
use uuid::Uuid;

use super::Audit;
use crate::{
    error::{EngineError, pg},
    matching::Filter,
    reads::row::instant,
};

/// What was forgotten, by rule: queries that give the run, if there is one, and words. `$1` is the grace in seconds.
const FORGOTTEN: [(&str, &str); 2] = [
    (
        "settled.unpublished",
        "select runs[1], 'a commit of ' || at || ' is still in the outbox' from outbox
         where coalesce(swept_at, at) < now() - make_interval(secs => $1)",
    ),
    (
        "settled.undispatched",
        "select null::uuid, 'outside event ' || position || ' of ' || received_at from external_events
         where dispatched_at is null and received_at < now() - make_interval(secs => $1)",
    ),
];

impl Audit {
    /// Nothing is left that somebody should have done.
    pub(super) async fn nothing_left(&mut self) -> Result<(), EngineError> {
        let read = || pg("looking for what was forgotten");
        for (rule, query) in FORGOTTEN {
            let query = format!("{query} limit 100");
            let rows = sqlx::query(sqlx::AssertSqlSafe(query))
                .bind(self.grace.as_secs_f64())
                .fetch_all(&self.pool)
                .await
                .map_err(read())?;
            for row in rows {
                let run: Option<Uuid> = row.try_get(0).map_err(read())?;
                let words: String = row.try_get(1).map_err(read())?;
                self.found(run.map(RunId), None, rule, words);
            }
        }
        for (run, position) in std::mem::take(&mut self.untaken) {
            if !self.taken.contains_key(&position) {
                let detail = format!("it waits for outside event {position}, which nobody has consumed");
                self.found(Some(run), None, "settled.lost_wake", detail);
            }
        }
        Ok(())
    }

    /// Nobody waits for what has happened. What else a run that rests must not have is for the rules to say.
    pub(super) async fn settled_run(&mut self, view: &mut PgConnection, state: &RunState) -> Result<(), EngineError> {
        let leaves = state.wait.iter().flat_map(|wait| wait.on.leaves());
        for leaf in leaves.filter(|leaf| leaf.met_by.is_none()) {
            let Condition::External(pattern) = &leaf.condition else { continue };
            let Some(position) = missed(view, state, pattern, self.grace).await? else { continue };
            if pattern.exclusive {
                self.untaken.push((state.run_id, position));
            } else {
                let detail = format!("it waits for outside event {position}, which came long ago");
                self.found(Some(state.run_id), None, "settled.lost_wake", detail);
            }
        }
        Ok(())
    }
}

/// The place of an outside event that a wait should have met by now.
async fn missed(
    view: &mut PgConnection,
    state: &RunState,
    pattern: &ExternalPattern,
    grace: Duration,
) -> Result<Option<i64>, EngineError> {
    let read = || pg("looking for lost wakes");
    let key = pattern.resource_key();
    let filter = pattern.filter.as_deref().and_then(|filter| Filter::compile(filter).ok());
    let mut after = state.consumed.get(&key).copied().unwrap_or(0);
    loop {
        let rows = sqlx::query(concat!(
            "select position, type, event from external_events
             where tenant = $1 and resource_key = $2 and position > $3 and received_at >= ",
            instant!("$4"),
            " and received_at < now() - make_interval(secs => $5) order by position limit 256"
        ))
        .bind(state.tenant.as_str())
        .bind(&key)
        .bind(after)
        .bind(state.created_at.as_microsecond())
        .bind(grace.as_secs_f64())
        .fetch_all(&mut *view)
        .await
        .map_err(read())?;
        for row in &rows {
            let position: i64 = row.try_get(0).map_err(read())?;
            let event_type: String = row.try_get(1).map_err(read())?;
            let Json(event): Json<serde_json::Value> = row.try_get(2).map_err(read())?;
            let meant = filter.as_ref().is_none_or(|filter| filter.matches(&event).unwrap_or(false));
            if pattern.matches_type(&event_type) && meant {
                return Ok(Some(position));
            }
            after = position;
        }
        if rows.is_empty() {
            return Ok(None);
        }
    }
}
