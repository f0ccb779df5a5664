//! The tool-executor against real parts: NATS, Postgres and Redis as the environment names them.

mod activities;
mod approvals;
mod doubt;
mod house;
mod refusals;
mod requests;
mod server;
