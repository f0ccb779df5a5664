//! The planner against the kernel, against stand-ins for models, and against real stores.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]
#![allow(clippy::needless_pass_by_value, reason = "tests read better with JSON by value")]

mod candidates;
mod circles;
mod costs;
mod counting;
mod endings;
mod failures;
mod forks;
mod opinions;
mod outliving;
mod previews;
mod redteam;
mod remote;
mod scenarios;
mod sim;
mod slices;
mod streams;
mod tapes;
mod turns;
