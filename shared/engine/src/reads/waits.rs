//! The board of everything suspended, and on what.

use kernel::{RunId, TenantId, Timestamp, WaitId, wait::WakeKind};
use serde::Serialize;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{
    InvalidCursor, Page, ReadError, Reads,
    cursor::Cursor,
    limit,
    row::{Cells, instant, micros},
};
use crate::error::pg;

/// All kinds of wakes.
const KINDS: [WakeKind; 4] = [WakeKind::Timer, WakeKind::TaskResult, WakeKind::External, WakeKind::OperatorInput];

/// One thing that a run waits for: a condition of its registered wait, or what its open calls and questions amount to.
#[derive(Clone, Debug, Serialize)]
pub struct WaitRow {
    /// Which run.
    pub run_id: RunId,
    /// Name of its agent.
    pub agent: String,
    /// The registered wait; none when it is only for open calls or questions.
    pub wait_id: Option<WaitId>,
    /// Which condition of the wait, from 0.
    pub leaf: Option<u32>,
    /// What kind of wake it would be.
    pub kind: WakeKind,
    /// `<source>:<subject>` of the outside event.
    pub resource_key: Option<String>,
    /// Type of the outside event; a `*` at the end stands for any rest.
    pub event_type: Option<String>,
    /// CEL that the outside event must meet.
    pub filter: Option<String>,
    /// Whether only one waiting run may have the event.
    pub exclusive: bool,
    /// When the timer is due.
    pub due: Option<Timestamp>,
    /// When the wait gives up.
    pub deadline: Option<Timestamp>,
    /// Why the run pauses.
    pub why: Option<String>,
    /// Since when.
    pub since: Timestamp,
}

/// A place on the board: that of one condition of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    run: Cursor,
    /// Of those of the run, which condition of its wait; what has no wait comes last.
    leaf: Option<u32>,
    kind: WakeKind,
}

impl Place {
    fn of(row: &WaitRow) -> Self {
        Self { run: Cursor { at: row.since, id: row.run_id.0 }, leaf: row.leaf, kind: row.kind }
    }

    fn encode(&self) -> String {
        format!("{}{:08x}{}", self.run.encode(), self.leaf.unwrap_or(u32::MAX), self.kind.as_str())
    }

    fn decode(text: &str) -> Result<Self, InvalidCursor> {
        let (run, rest) = text.split_at_checked(48).ok_or(InvalidCursor)?;
        let (leaf, kind) = rest.split_at_checked(8).ok_or(InvalidCursor)?;
        let leaf = u32::from_str_radix(leaf, 16).map_err(|_| InvalidCursor)?;
        let kind = KINDS.into_iter().find(|known| known.as_str() == kind).ok_or(InvalidCursor)?;
        Ok(Self { run: Cursor::decode(run)?, leaf: Some(leaf).filter(|leaf| *leaf != u32::MAX), kind })
    }
}

impl Reads {
    /// A page of what this tenant's runs wait for, newest first, behind `cursor`; only wakes of `kind`, if one is given. Pages
    /// neither repeat nor skip a wait that stays, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// When the cursor is none, or Postgres does not answer.
    pub async fn waits(
        &self,
        tenant: &TenantId,
        kind: Option<WakeKind>,
        most: u32,
        cursor: Option<&str>,
    ) -> Result<Page<WaitRow>, ReadError> {
        // Calls and questions have no wait of their own: what the run says of its wake kinds stands for them.
        const LIST: &str = concat!(
            "select run_id, agent, wait_id, leaf, kind, resource_key, event_type, filter, exclusive, why, ",
            micros!("due"),
            ", ",
            micros!("deadline"),
            ", ",
            micros!("since"),
            "
             from (
                select w.run_id, r.agent, w.wait_id, w.leaf, w.kind, w.resource_key, w.event_type, w.filter, w.exclusive,
                       w.why, case when w.kind = 'timer' then w.due end as due, w.deadline, w.since,
                       w.leaf::bigint as place
                from waits w join runs r on r.run_id = w.run_id
                where w.tenant = $1
                union all
                select r.run_id, r.agent, null, null, k.kind, null, null, null, false, null, null, null, r.waiting_since,
                       4294967295
                from runs r cross join unnest(r.wake_kinds) as k (kind)
                where r.tenant = $1 and r.status = 'waiting' and r.waiting_since is not null
                  and not exists (select 1 from waits w where w.run_id = r.run_id and w.kind = k.kind)
             ) board
             where ($2::text is null or kind = $2)
               and ($4::bigint is null
                    or (board.since, run_id) < (",
            instant!("$4"),
            ", $5::uuid)
                    or ((board.since, run_id) = (",
            instant!("$4"),
            ", $5::uuid) and (place, kind) > ($6::bigint, $7::text)))
             order by board.since desc, run_id desc, place, kind limit $3"
        );
        let read = || pg("listing waits");
        let place = cursor.map(Place::decode).transpose()?;
        let asked = limit(most);
        let rows = sqlx::query(LIST)
            .bind(tenant.as_str())
            .bind(kind.map(WakeKind::as_str))
            // One more than asked for says whether there is a next page.
            .bind(asked + 1)
            .bind(place.as_ref().map(|place| place.run.at.as_microsecond()))
            .bind(place.as_ref().map(|place| place.run.id))
            .bind(place.as_ref().map(|place| i64::from(place.leaf.unwrap_or(u32::MAX))))
            .bind(place.as_ref().map(|place| place.kind.as_str()))
            .fetch_all(&self.pool)
            .await
            .map_err(read())?;
        let items = rows.iter().map(wait_row).collect::<Result<Vec<_>, _>>().map_err(read())?;
        Ok(Page::cut(items, asked, |last| Place::of(last).encode()))
    }
}

fn wait_row(row: &PgRow) -> Result<WaitRow, sqlx::Error> {
    let row = Cells(row);
    Ok(WaitRow {
        run_id: RunId(row.get("run_id")?),
        agent: row.get("agent")?,
        wait_id: row.get::<Option<Uuid>>("wait_id")?.map(WaitId),
        leaf: row.get::<Option<i32>>("leaf")?.map(i32::unsigned_abs),
        kind: row.word("kind")?,
        resource_key: row.get("resource_key")?,
        event_type: row.get("event_type")?,
        filter: row.get("filter")?,
        exclusive: row.get("exclusive")?,
        due: row.time_if_any("due")?,
        deadline: row.time_if_any("deadline")?,
        why: row.get("why")?,
        since: row.time("since")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_trip_and_nonsense_is_refused() {
        let run = Cursor { at: Timestamp::from_microsecond(1_750_000_000_123_456).unwrap(), id: Uuid::now_v7() };
        for (leaf, kind) in [(Some(0), WakeKind::External), (None, WakeKind::TaskResult), (Some(7), WakeKind::Timer)] {
            let place = Place { run, leaf, kind };
            assert_eq!(Place::decode(&place.encode()), Ok(place));
        }
        let good = Place { run, leaf: Some(1), kind: WakeKind::Timer }.encode();
        for text in
            ["", &run.encode(), &good[..56], &format!("{good}s"), &good.replace("00000001timer", "0000000étimer")]
        {
            assert_eq!(Place::decode(text), Err(InvalidCursor), "{text}");
        }
    }
}
