//! `esc` as a program: what it prints and how it ends.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod doctor;
mod documents;
mod people;
mod program;
mod two_people;
