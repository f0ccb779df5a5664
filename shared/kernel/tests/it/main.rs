//! The rules of a run, tested from outside: by property, by example, and against stored logs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![allow(clippy::needless_pass_by_value, reason = "tests read better with commands by value")]

mod audit;
mod authority;
mod build;
mod children;
mod forks;
mod golden;
mod growth;
mod later;
mod properties;
mod steering;
mod stories;
mod trust;
mod two_people;
