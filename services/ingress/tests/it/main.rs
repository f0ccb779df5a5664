//! The public door against real parts, over a real socket.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails, in its helpers too")]

mod access;
mod agents;
mod approvals;
mod artifacts;
mod audit;
mod bad_input;
mod description;
mod doors;
mod freeze;
mod harness;
mod hooks;
mod identity;
mod lines;
mod logs;
mod memory;
mod outside;
mod provider;
mod reading;
mod reports;
mod runs;
mod schedules;
mod session;
mod sse;
mod streams;
mod tenants;
mod tokens;
