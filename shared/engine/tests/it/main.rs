//! The door and what is behind it, against real Postgres, NATS and Redis.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod core;
