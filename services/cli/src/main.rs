//! `esc`: everything that a person does with Escapement from a shell.
//!
//! `args/` says what can be typed, `commands/` does it, `api.rs` speaks to the public door, `timeline/` tells the story of
//! a run. The exit code is 0 when it is done, 1 when the run (or a check) failed, 2 for a wrong request, 3 when something
//! could not be reached.

mod api;
mod args;
mod commands;
mod error;
mod follow;
mod out;
mod sse;
mod style;
mod table;
mod timeline;
mod views;

use std::process::ExitCode;

use clap::Parser;

use args::Args;
use out::Out;

fn main() -> ExitCode {
    let args = Args::parse();
    let out = Out::new(args.json, args.no_color);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return out.fail(&error::CliError::failed(format!("can't start the async runtime: {error}"))),
    };
    match runtime.block_on(commands::run(&args, &out)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => out.fail(&error),
    }
}
