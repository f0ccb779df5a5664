//! Events that came before the wait that may want them.

use std::time::Duration;

use kernel::{Timestamp, event::ExternalRef, wait::ExternalPattern};
use serde_json::Value;
use sqlx::{PgConnection, postgres::PgRow};

use super::{claim::is_unclaimed, recorded};
use crate::{
    error::{EngineError, pg},
    reads::row::{instant, micros},
};

/// Events that are read at once.
const PAGE: usize = 64;

/// Events of tenant $1 about resource $2 behind position $3, received since $4, of a type that $5 means; not the claimed ones if
/// $6; $7 of them at most.
pub(crate) const EARLIER: &str = concat!(
    "select position, tenant, source, event, traceparent, dispatched_at is not null as dispatched, ",
    micros!("received_at"),
    "
             from external_events x
             where tenant = $1 and resource_key = $2 and position > $3 and received_at >= ",
    instant!("$4"),
    "
               and case when right($5, 1) = '*' then starts_with(x.type, left($5, -1)) else x.type = $5 end
               and (not $6 or ",
    is_unclaimed!(),
    ")
             order by position limit $7"
);

/// An event that came before the wait that may want it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) external: ExternalRef,
    pub(crate) event: Value,
}

/// The earlier events that a condition of a wait is about, oldest first, in pages. The lock on the key must be held.
///
/// An exclusive condition is not shown what is claimed.
pub(crate) struct Earlier<'a> {
    tenant: &'a str,
    pattern: &'a ExternalPattern,
    after: i64,
    since: Timestamp,
    is_over: bool,
}

impl<'a> Earlier<'a> {
    /// Those behind position `after`, received since `since` and within `window`.
    pub(crate) fn new(
        tenant: &'a str,
        pattern: &'a ExternalPattern,
        after: i64,
        since: Timestamp,
        window: Duration,
    ) -> Self {
        let since = since.max(Timestamp::now().checked_sub(window).unwrap_or(Timestamp::MIN));
        Self { tenant, pattern, after, since, is_over: false }
    }

    /// The next of them; empty after the last.
    pub(crate) async fn page(&mut self, transaction: &mut PgConnection) -> Result<Vec<Candidate>, EngineError> {
        if self.is_over {
            return Ok(Vec::new());
        }
        let read = || pg("looking back for outside events");
        let rows = sqlx::query(EARLIER)
            .bind(self.tenant)
            .bind(self.pattern.resource_key())
            .bind(self.after)
            .bind(self.since.as_microsecond())
            .bind(&self.pattern.event_type)
            .bind(self.pattern.exclusive)
            .bind(i64::try_from(PAGE).unwrap_or(i64::MAX))
            .fetch_all(transaction)
            .await
            .map_err(read())?;
        self.is_over = rows.len() < PAGE;
        let candidate =
            |row: &PgRow| recorded(row).map(|known| Candidate { external: known.external, event: known.event });
        let page: Vec<Candidate> = rows.iter().map(candidate).collect::<Result<_, _>>().map_err(read())?;
        if let Some(last) = page.last() {
            self.after = last.external.position;
        }
        Ok(page)
    }
}
