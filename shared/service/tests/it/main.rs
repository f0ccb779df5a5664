//! What a process does as a whole: over real sockets, with real signals, against a real OTLP receiver.

#![allow(clippy::unwrap_used, reason = "a helper that fails is its test's failure")]

mod collector;
mod config;
mod health;
mod http;
mod process;
mod telemetry;
