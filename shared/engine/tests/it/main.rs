//! The door and what is behind it, against real Postgres, NATS and Redis.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod agents;
mod audit;
mod core;
mod cron;
mod externals;
mod foreign;
mod freezes;
mod history;
mod keeping;
mod leases;
mod limiter;
mod mcp;
mod outliving;
mod parsers;
mod people;
mod reads;
mod schedules;
mod support;
mod timers;
mod versions;
mod waits;
