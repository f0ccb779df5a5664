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
//! | starts that triggers hold back | `gatherings/` |
//! | forks | `forks.rs` |
//! | what outlives runs: memories, documents, opened skills | `memories.rs`, `knowledge.rs`, `skills.rs` |
//! | the kill switch | `freezes.rs` |
//! | what tools ask databases that are not ours | `foreign.rs` |
//! | standing approvals, and when people are told of a question | `standing.rs`, `notices.rs` |
//! | API tokens, and the audit trail | `tokens.rs`, `trail.rs` |
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
mod foreign;
mod forks;
mod freezes;
mod gate;
mod gatherings;
mod idempotency;
mod knowledge;
mod leases;
mod limiter;
mod load;
mod lookback;
mod matching;
mod mcp;
mod memories;
mod migrate;
mod new_run;
mod notices;
mod observers;
mod options;
mod outbox;
mod pace;
#[cfg(test)]
mod plans;
mod pool;
mod projection;
mod reads;
mod redis_state;
mod retention;
mod schedules;
mod services;
mod skills;
mod snapshot;
mod standing;
pub mod testing;
mod timers;
mod tokens;
mod trail;

pub use crate::engine::{Committed, Engine};
pub use actions::*;
pub use agents::*;
pub use audit::{AuditOptions, AuditReport, AuditViolation, audit};
pub use catalog::*;
pub use error::{EngineError, SubmitError};
pub use externals::*;
pub use foreign::*;
pub use forks::{ForkPoint, Forks};
pub use freezes::{Freeze, FreezeScope, Freezes, NotAScope, UnderWay};
pub use gate::PublishGate;
pub use gatherings::{Gathered, Gathering, Gatherings, Hindrance, gathering_key, triggered_run_id};
pub use idempotency::*;
pub use knowledge::*;
pub use leases::*;
pub use limiter::*;
pub use matching::*;
pub use mcp::*;
pub use memories::{Circle, Memories, Memory, MemoryFilter};
pub use migrate::{SchemaState, migrate, schema_state};
pub use new_run::{NewRun, is_sampled};
pub use notices::*;
pub use observers::*;
pub use options::EngineOptions;
pub use outbox::{Outbox, Swept};
pub use pace::{Pace, Standing};
pub use reads::*;
pub use redis_state::{RedisState, redis_state};
pub use retention::{Removed, Retention};
pub use schedules::*;
pub use services::*;
pub use skills::*;
pub use standing::*;
pub use timers::*;
pub use tokens::*;
pub use trail::*;
