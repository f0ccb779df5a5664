//! The tool-executor against real parts: NATS, Postgres and Redis as the environment names them.

#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not take for tests")]

mod activities;
mod answers;
mod approvals;
mod beside;
mod canaries;
mod desk;
mod doubt;
mod drills;
mod dry_runs;
mod elsewhere;
mod freeze;
mod gates;
mod house;
mod later;
mod limits;
mod look;
mod mcp;
mod mcp_http;
mod mcp_servers;
mod provenance;
mod recall;
mod refusals;
mod replays;
mod requests;
mod schedules;
mod server;
mod two_people;
mod verify;
