//! The observer on real parts.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod checked;
mod common;
mod conclusions;
mod crashes;
mod desk;
mod kills;
mod listening;
mod opinions;
mod services;
mod silence;
