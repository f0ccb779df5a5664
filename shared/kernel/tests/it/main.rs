//! The rules of a run, tested from outside: by property, by example, and against stored logs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::needless_pass_by_value, reason = "tests read better with commands by value")]

mod audit;
mod build;
mod children;
mod golden;
mod growth;
mod later;
mod properties;
mod stories;
