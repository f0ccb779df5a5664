//! The artifact service on real parts.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod archive;
mod artifacts;
mod common;
mod logs;
mod retention;
