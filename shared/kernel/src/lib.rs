//! The rules of a run, and nothing else: no I/O, no clock, no randomness, no async.
//!
//! [`decide`] turns a [`Command`] into [`Event`]s, [`apply`] folds events into a [`RunState`]. Everything that a service
//! may do to a run goes through the two, so they can be tested and simulated by the million.

pub mod acceptance;
pub mod action;
pub mod agent;
mod apply;
pub mod audit;
pub mod budget;
pub mod call;
pub mod child;
pub mod command;
pub mod context;
mod decide;
pub mod drift;
pub mod economics;
pub mod event;
pub mod fork;
pub mod ids;
pub mod memory;
pub mod model;
#[cfg(not(feature = "mutants"))]
mod mutants;
#[cfg(feature = "mutants")]
pub mod mutants;
pub mod observe;
pub mod opinion;
mod rejection;
pub mod report;
pub mod schedule;
pub mod slice;
pub mod state;
mod status;
pub mod tool;
mod trust;
pub mod units;
mod upcast;
pub mod wait;
pub mod watch;

pub use apply::{HeadlessLog, apply};
pub use command::{Command, Role};
pub use decide::{Decision, decide};
pub use event::{Cause, DecodeError, Event, EventData, Recorded};
pub use ids::{
    ActionId, ApprovalId, ArtifactId, CallId, ConversationId, IdError, MemoryId, RunId, Seq, StandingId, TenantId,
    TimerId, TurnId, WaitId,
};
pub use jiff::Timestamp;
pub use rejection::Rejection;
pub use state::{RunState, STATE_VERSION};
pub use status::Status;
pub use trust::{Block, Trust, excerpt};
