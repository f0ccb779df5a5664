//! Reading what the log led to: the projections, and the log itself. Nothing here writes.
//!
//! Whatever a person asks for is asked for by tenant, and another tenant's rows are as if they did not exist. What the
//! services need for themselves ([`Reads::attention_after`], [`Reads::started_calls_after`], [`Reads::counts`]) is over all tenants.

mod approvals;
mod artifacts;
pub(crate) mod children;
mod costs;
mod cursor;
pub(crate) mod events;
mod queue;
pub(crate) mod row;
mod runs;
pub(crate) mod upkeep;
mod waits;

use crate::pool::Pool;

pub use approvals::ApprovalRow;
pub use artifacts::ArtifactRow;
pub use children::ChildOutOfStep;
pub use costs::AgentCost;
pub use cursor::InvalidCursor;
pub use events::StoredEvent;
pub use queue::Queued;
pub use runs::{Page, ReadError, RunFilter, RunRow};
pub use upkeep::{AttentionRow, Counts, StartedCall, VerifiedWait};
pub use waits::WaitRow;

/// Most rows that one read returns, whatever the limit asked for.
pub const MAX_ROWS: u32 = 1000;

/// The read side. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reads {
    pool: Pool,
}

impl Reads {
    pub(crate) fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

/// The limit as it goes into a query.
fn limit(asked: u32) -> i64 {
    i64::from(asked.clamp(1, MAX_ROWS))
}
