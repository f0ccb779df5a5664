//! The one door: every change of a run goes `Command -> decide -> Events -> append -> publish`, and it goes through here.
//!
//! [`Engine::submit`] is all that a service calls. Inside, a task takes what has queued up, loads the runs' snapshots in one
//! round trip, decides in memory, and commits all of it in one statement; snapshots and publishing follow behind the reply.
//! A lost race is reloaded from the log and decided again.
//!
//! | to change | open |
//! | --- | --- |
//! | how commands are gathered and decided | `batch.rs` |
//! | what is written, and how | `append.rs`, `projection.rs`, `schemas/postgres/` |
//! | how a run is loaded | `load.rs`, `snapshot.rs` |
//! | how events leave | `outbox.rs` |
//! | what is known of MCP servers and their tools | `mcp/` |
//! | schedules | `schedules/` |
//! | the kill switch | `freezes.rs` |
//! | how waits meet outside events | `externals.rs`, `externals/`, `lookback.rs`, `matching.rs` |

mod actions;
mod agents;
mod append;
mod audit;
mod batch;
mod catalog;
mod digest;
mod economics;
mod engine;
mod error;
mod externals;
mod freezes;
mod gate;
mod idempotency;
mod leases;
mod limiter;
mod load;
mod lookback;
mod matching;
mod mcp;
mod migrate;
mod new_run;
mod observers;
mod options;
mod outbox;
mod pace;
#[cfg(test)]
mod plans;
mod projection;
mod reads;
mod retention;
mod schedules;
mod services;
mod snapshot;
pub mod testing;
mod timers;

pub use crate::engine::{Committed, Engine};
pub use actions::*;
pub use agents::*;
pub use audit::{AuditOptions, AuditReport, AuditViolation, audit};
pub use catalog::*;
pub use error::{EngineError, SubmitError};
pub use externals::*;
pub use freezes::{Freeze, FreezeScope, Freezes, NotAScope};
pub use gate::PublishGate;
pub use idempotency::*;
pub use leases::*;
pub use limiter::*;
pub use matching::*;
pub use mcp::*;
pub use migrate::{migrate, pending_migrations};
pub use new_run::{NewRun, is_sampled};
pub use observers::*;
pub use options::EngineOptions;
pub use outbox::{Outbox, Swept};
pub use pace::{Pace, Standing};
pub use reads::*;
pub use retention::{Removed, Retention};
pub use schedules::*;
pub use services::*;
pub use timers::*;
