//! Observation windows: what came of an action on a service, from the logs of all services that had to do with it.
//!
//! An action opens a window, a row in Postgres. Whoever reads the log of a service gathers the action's lines from it and keeps
//! them beside its checkpoint (`slice.rs`); one observer at a time puts together what all have found, judges it (`judge.rs`),
//! has the world itself looked at (`verify.rs`), and tells (`closer.rs`). Each step can be done again by another observer: the
//! first conclusion is kept, and it is told under its own name.

mod calls;
mod closer;
pub mod judge;
mod open;
pub mod slice;
mod verify;

pub(crate) use calls::CallWindows;
pub(crate) use closer::Closer;
pub(crate) use open::{OpenWindows, TenantWindows, Window, WindowSet};
