//! The scheduler over real parts: everything it does, done once, whatever died before.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod admission;
mod children;
mod common;
mod gatherings;
mod retention;
mod rings;
mod schedules;
mod timers;
