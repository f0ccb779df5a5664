//! The whole house in one process, on real parts: the main job through every room of it, and the trace that it leaves; and what
//! takes two rooms that know nothing of each other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod forge;
mod harness;
mod health;
mod main_job;
mod readback;
mod receiver;
mod second_opinion;
mod two_people;
