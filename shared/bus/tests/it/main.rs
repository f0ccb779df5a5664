//! The bus against a real server (`ESC_TEST_NATS_URL`), each test in a namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod consume;
mod core;
mod deadletter;
mod ordered;
mod outage;
mod permissions;
mod poison;
mod publish;
mod rpc;
mod shutdown;
mod support;
mod topology;
