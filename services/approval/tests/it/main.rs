//! The approval service over real parts: one decision, by whoever may, in time.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod common;
mod decisions;
mod expiry;
mod notices;
mod standing;
mod two_people;
