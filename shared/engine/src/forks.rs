//! Forks: what a run knew before one of its turns, and what its calls came to later.

use kernel::{
    Block, EventData, RunId, RunState, Seq, TenantId, Trust,
    call::{Call, CallResult},
    event::{RunCreated, ToolCompleted, ToolRequested},
    fork::{Carried, Origin},
    state::{Fact, FactKind},
};
use sqlx::Row;

use crate::{
    error::{EngineError, pg},
    load::Loader,
    pool::Pool,
};

/// Reads what forks need. Cheap to clone.
#[derive(Clone)]
pub struct Forks {
    pool: Pool,
    loader: Loader,
}

/// A run as it stood before one of its turns.
#[derive(Clone, Debug)]
pub struct ForkPoint {
    /// Where that is.
    pub origin: Origin,
    /// The run as it was created.
    pub created: RunCreated,
    /// The run as it stood.
    pub state: RunState,
    /// What a fork brings along; of calls that were under way, what the log has of their ends.
    pub carried: Carried,
}

impl Forks {
    pub(crate) fn new(pool: Pool, loader: Loader) -> Self {
        Self { pool, loader }
    }

    /// The run as its turn of this number saw it. None if there is no such run of this tenant, or it had no such turn.
    ///
    /// # Errors
    /// When Postgres does not answer, or the log can't be read.
    pub async fn point(&self, tenant: &TenantId, run: RunId, turn: u32) -> Result<Option<ForkPoint>, EngineError> {
        let Some(seq) = self.seen_by(run, turn).await? else { return Ok(None) };
        let Some(state) = self.loader.at(run, seq).await?.filter(|state| state.tenant == *tenant) else {
            return Ok(None);
        };
        let Some(EventData::RunCreated(created)) = self.loader.first(run).await? else { return Ok(None) };
        let mut carried = Carried::of(&state);
        let ends = self.ends(run, seq).await?;
        carried.facts.extend(open_calls(&state, &ends));
        Ok(Some(ForkPoint { origin: Origin { run_id: run, seq, turn }, created, state, carried }))
    }

    /// The last event that the turn saw: what its outcome was based on, or else what opened it.
    async fn seen_by(&self, run: RunId, turn: u32) -> Result<Option<Seq>, EngineError> {
        let read = || pg("looking for a turn");
        let row = sqlx::query(
            "select o.seq, (select (c.data ->> 'based_on')::bigint from events c where c.run_id = o.run_id
                    and c.type = 'turn.completed' and c.data ->> 'turn_id' = o.data ->> 'turn_id' limit 1) as based_on
             from events o where o.run_id = $1 and o.type = 'run.runnable' and (o.data ->> 'number')::bigint = $2
             order by o.seq limit 1",
        )
        .bind(run.0)
        .bind(i64::from(turn))
        .fetch_optional(&self.pool)
        .await
        .map_err(read())?;
        let seen = |row: sqlx::postgres::PgRow| {
            let (opened, based_on) = (row.try_get::<i64, _>(0)?, row.try_get::<Option<i64>, _>(1)?);
            Ok(based_on.unwrap_or(opened).max(opened).unsigned_abs())
        };
        row.map(seen).transpose().map_err(read())
    }

    /// How calls ended after an event, in order.
    async fn ends(&self, run: RunId, after: Seq) -> Result<Vec<EventData>, EngineError> {
        let types = ["tool.completed", "tool.failed", "tool.denied", "tool.cancelled", "subagent.completed"];
        let rows = sqlx::query(
            "select type, version, data::text from events where run_id = $1 and seq > $2 and type = any ($3) order by seq",
        )
        .bind(run.0)
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(&types[..])
        .fetch_all(&self.pool)
        .await
        .map_err(pg("reading how calls ended"))?;
        rows.iter().map(event_data).collect()
    }

    /// What a call of a fork came to in the run that it goes on from, if that made the same one later: with the same tool and
    /// arguments, the first one for the first, the second for the second.
    ///
    /// # Errors
    /// When Postgres does not answer, or the log can't be read.
    pub async fn recorded(&self, state: &RunState, call: &Call) -> Result<Option<CallResult>, EngineError> {
        let Some(origin) = state.origin else { return Ok(None) };
        let request = &call.request;
        let same = |requested: &&ToolRequested| requested.call.arguments == request.arguments;
        let own = self.requests(state.run_id, 0, &request.tool).await?;
        let earlier = own.iter().filter(same).take_while(|other| other.call.call_id != request.call_id).count();
        let before = self.requests(origin.run_id, origin.seq, &request.tool).await?;
        let Some(recorded) = before.iter().filter(same).nth(earlier).map(|requested| requested.call.call_id) else {
            return Ok(None);
        };
        let ends = self.ends(origin.run_id, origin.seq).await?;
        Ok(ends.into_iter().find_map(|end| match end {
            EventData::ToolCompleted(ToolCompleted { call_id, result, .. }) if call_id == recorded => Some(result),
            _ => None,
        }))
    }

    /// The calls of a tool that a run asked for after an event.
    async fn requests(&self, run: RunId, after: Seq, tool: &str) -> Result<Vec<ToolRequested>, EngineError> {
        let rows = sqlx::query(
            "select type, version, data::text from events where run_id = $1 and seq > $2 and type = 'tool.requested'
                and data -> 'call' ->> 'tool' = $3 order by seq",
        )
        .bind(run.0)
        .bind(i64::try_from(after).unwrap_or(i64::MAX))
        .bind(tool)
        .fetch_all(&self.pool)
        .await
        .map_err(pg("reading what a run asked for"))?;
        let all = rows.iter().map(event_data).collect::<Result<Vec<_>, _>>()?;
        let requests = all.into_iter().filter_map(|data| match data {
            EventData::ToolRequested(requested) => Some(requested),
            _ => None,
        });
        Ok(requests.collect())
    }
}

fn event_data(row: &sqlx::postgres::PgRow) -> Result<EventData, EngineError> {
    let parts =
        || -> Result<(String, i16, String), sqlx::Error> { Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)) };
    let (event_type, version, data) = parts().map_err(pg("reading an event"))?;
    Ok(EventData::decode(&event_type, version.unsigned_abs(), &data)?)
}

/// What a fork is told of the calls that were open.
fn open_calls(state: &RunState, ends: &[EventData]) -> Vec<Fact> {
    let tools = state.calls.values().map(|call| (call.request.call_id, format!("`{}`", call.request.tool)));
    let agents =
        state.children.values().map(|child| (child.spawn.call_id, format!("The agent `{}`", child.spawn.agent)));
    let told = tools.chain(agents).map(|(call, name)| {
        let end = ends.iter().find_map(|end| match end {
            EventData::ToolCompleted(done) if done.call_id == call => {
                Some((FactKind::Result, "completed", done.result.block.clone()))
            }
            EventData::ToolFailed(failed) if failed.call_id == call => {
                Some((FactKind::Failure, "failed", failed.failure.block.clone()))
            }
            EventData::ToolDenied(denied) if denied.call_id == call => {
                Some((FactKind::Failure, "was denied", denied.reason.clone()))
            }
            EventData::ToolCancelled(cancelled) if cancelled.call_id == call => {
                Some((FactKind::Failure, "was cancelled", Block::new(&cancelled.reason, Trust::System, "runtime")))
            }
            EventData::SubagentCompleted(done) if done.call_id == call => {
                Some((FactKind::Result, "completed", done.result.clone()))
            }
            _ => None,
        });
        let unknown = || Block::new("It was under way, and how it ended is not on record.", Trust::System, "runtime");
        let (kind, how, block) = end.unwrap_or_else(|| (FactKind::Failure, "has no recorded end", unknown()));
        let title = format!("{name} {how}, as recorded");
        Fact { seq: state.seq, at: state.updated_at, kind, title, block, call_id: Some(call) }
    });
    told.collect()
}
