//! The waits that an event is for.

use kernel::{RunId, Timestamp, WaitId};
use sqlx::{PgConnection, postgres::PgRow};
use uuid::Uuid;

use super::{Externals, RecordedExternal};
use crate::{
    error::{EngineError, pg},
    reads::row::{Cells, instant, micros},
};

/// Waits that are read at once: a line of them may be long.
pub const MATCHES: usize = 1000;

/// A condition of a wait that is about the resource of an event, and of its type. Whether its filter holds is still to be
/// seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitMatch {
    /// The run that waits.
    pub run_id: RunId,
    /// Which wait.
    pub wait_id: WaitId,
    /// Which condition of it.
    pub leaf: u16,
    /// The type that it is for; a `*` at the end stands for any rest.
    pub event_type: String,
    /// CEL that must hold.
    pub filter: Option<String>,
    /// Whether only one waiting run may have the event.
    pub exclusive: bool,
    /// Since when it waits.
    pub since: Timestamp,
    /// Whether the run's spans are exported.
    pub sampled: bool,
}

impl WaitMatch {
    /// Whether it is about events of this type.
    #[must_use]
    pub fn is_about(&self, recorded: &RecordedExternal) -> bool {
        super::wants_type(&self.event_type, &recorded.external.event_type)
    }
}

/// The columns of a [`WaitMatch`], from `waits w` and `runs r`.
macro_rules! wait_columns {
    () => {
        concat!("w.run_id, w.wait_id, w.leaf, w.event_type, w.filter, w.exclusive, r.sampled, ", micros!("since"))
    };
}

pub(super) use wait_columns;

/// Waits of tenant $1 for resource $2, for events of type $3 such as the one at position $4, behind the wait ($5, $6, $7), $8 of
/// them at most.
///
/// Look-ups with a limit, not joins: the plan is made without knowing how few rows there will be, and as joins it reads all of
/// the log.
pub(crate) const MATCHING: &str = concat!(
    "select ",
    wait_columns!(),
    "
         from waits w cross join lateral (select sampled from runs where run_id = w.run_id limit 1) r
         where w.tenant = $1 and w.resource_key = $2 and w.kind = 'external'
           and case when right(w.event_type, 1) = '*' then starts_with($3, left(w.event_type, -1))
                    else w.event_type = $3 end
           and (w.since, w.run_id, w.leaf) > (coalesce(",
    instant!("$5"),
    ", timestamptz '-infinity'), coalesce($6, uuid '00000000-0000-0000-0000-000000000000'), $7)
           and (select true from events e
                where e.type = 'external.matched' and (e.data -> 'external' ->> 'position')::bigint = $4
                  and e.run_id = w.run_id and e.data ->> 'wait_id' <> w.wait_id::text limit 1) is null
         order by w.since, w.run_id, w.leaf limit $8"
);

impl Externals {
    /// The registered waits that are about a recorded event, longest waiting first: [`MATCHES`] of them at most, those behind
    /// `after`. No lock is needed, since a wait that is registered now finds the event by itself.
    ///
    /// Not among them are waits of runs that had this event for an earlier wait: it is theirs once.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn matching(
        &self,
        recorded: &RecordedExternal,
        after: Option<&WaitMatch>,
    ) -> Result<Vec<WaitMatch>, EngineError> {
        let mut connection = self.pool.acquire().await.map_err(pg("connecting"))?;
        matching(&mut connection, recorded, after).await
    }
}

impl Externals {
    /// Events about the same resource that came before a recorded one, from behind `after`, and are not dispatched yet: a page
    /// of them, oldest first; empty after the last. A wait that means one of them wants that first.
    ///
    /// What is dispatched was offered to every wait that was registered before it came, and who registered later looked
    /// back. So nothing else can be older and still wanted.
    ///
    /// # Errors
    /// When Postgres does not answer.
    pub async fn under_way_before(
        &self,
        recorded: &RecordedExternal,
        after: i64,
    ) -> Result<Vec<RecordedExternal>, EngineError> {
        let read = || pg("looking for earlier outside events");
        let rows = sqlx::query(UNDER_WAY)
            .bind(recorded.tenant.as_str())
            .bind(&recorded.external.resource_key)
            .bind(after)
            .bind(recorded.external.position)
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        rows.iter().map(super::recorded).collect::<Result<_, _>>().map_err(read())
    }
}

/// Undispatched events of tenant $1 about resource $2 between the positions $3 and $4.
pub(crate) const UNDER_WAY: &str = concat!(
    "select position, tenant, source, event, traceparent, false as dispatched, ",
    micros!("received_at"),
    "
             from external_events
             where tenant = $1 and resource_key = $2 and position > $3 and position < $4 and dispatched_at is null
             order by position limit 256"
);

pub(super) async fn matching(
    connection: &mut PgConnection,
    recorded: &RecordedExternal,
    after: Option<&WaitMatch>,
) -> Result<Vec<WaitMatch>, EngineError> {
    let read = || pg("looking for waits");
    let rows = sqlx::query(MATCHING)
        .bind(recorded.tenant.as_str())
        .bind(&recorded.external.resource_key)
        .bind(&recorded.external.event_type)
        .bind(recorded.external.position)
        .bind(after.map(|wait| wait.since.as_microsecond()))
        .bind(after.map(|wait| wait.run_id.0))
        .bind(after.map_or(-1, |wait| i32::from(wait.leaf)))
        .bind(i64::try_from(MATCHES).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await
        .map_err(read())?;
    rows.iter().map(wait_match).collect::<Result<_, _>>().map_err(read())
}

pub(super) fn wait_match(row: &PgRow) -> Result<WaitMatch, sqlx::Error> {
    let row = Cells(row);
    Ok(WaitMatch {
        run_id: RunId(row.get::<Uuid>("run_id")?),
        wait_id: WaitId(row.get("wait_id")?),
        leaf: u16::try_from(row.get::<i32>("leaf")?).unwrap_or(u16::MAX),
        event_type: row.get::<Option<String>>("event_type")?.unwrap_or_default(),
        filter: row.get("filter")?,
        exclusive: row.get("exclusive")?,
        since: row.time("since")?,
        sampled: row.get("sampled")?,
    })
}
