//! The load generator. Every command ends with one JSON object on the last line of its output.

#![allow(clippy::print_stdout, reason = "the figures are this program's output")]

mod agent;
mod check;
mod commands;
mod door;
mod engine_alone;
mod freeze;
mod long;
mod lost_wake;
mod observing;
mod processes;
mod service_logs;
mod slice;
mod stats;
mod streams;
mod target;
mod timers;
mod waiting;
mod wake;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::Value;

/// Measures a running stack (`ESC_URL`, `ESC_TOKEN`, `ESC_NATS_URL`), or the engine alone.
#[derive(Parser)]
#[command(name = "loadtest", version)]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
    /// Print only the JSON object.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Scenario {
    /// Runs of [create, 5 x (model step + tool step), approval, complete].
    Agent(agent::Options),
    /// The invariants over the whole log of a stack (`ESC_DATABASE_URL`, `ESC_REDIS_URL`).
    Check(check::Options),
    /// Commands through the engine alone, no services.
    Engine(engine_alone::Options),
    /// The kill switch, thrown again and again while effects happen: how long after it the last one began.
    Freeze(freeze::Options),
    /// Events published just before the wait that wants them is registered: every one wakes, once.
    Wakes(lost_wake::Options),
    /// Runs that wait: what they cost while they sleep, and how fast one of them is awake.
    Waiting(waiting::Options),
    /// Timers due within a short time: how late they fire.
    Timers(timers::Options),
    /// A build of very many lines and one failure through an observer on one core (open parts, no services).
    Observer(observing::Options),
    /// Recorded logs of services with injected faults: slices of requests, and the health watch. Needs no stack.
    ServiceLogs(service_logs::Options),
    /// Thousands of open event streams on one ingress: what each costs, and how long an event is on its way.
    Streams(streams::Options),
    /// One run with a very long log: what it costs to load it, and what its next turn costs.
    Long(long::Options),
    /// One run of a thousand turns: what a turn costs in tokens, young and old, beside a replay of the whole past.
    Slice(slice::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let figures = match arguments.scenario {
        Scenario::Agent(options) => agent::measure(&options).await,
        Scenario::Check(options) => check::check(&options).await,
        Scenario::Engine(options) => engine_alone::measure(&options).await,
        Scenario::Freeze(options) => freeze::measure(&options).await,
        Scenario::Wakes(options) => lost_wake::measure(&options).await,
        Scenario::Waiting(options) => waiting::measure(&options).await,
        Scenario::Timers(options) => timers::measure(&options).await,
        Scenario::Observer(options) => observing::measure(&options).await,
        Scenario::ServiceLogs(options) => service_logs::measure(&options).await,
        Scenario::Streams(options) => streams::measure(&options).await,
        Scenario::Long(options) => long::measure(&options).await,
        Scenario::Slice(options) => slice::measure(&options).await,
    };
    match figures {
        Ok(figures) => {
            if !arguments.json
                && let Ok(pretty) = serde_json::to_string_pretty(&figures)
            {
                println!("{pretty}");
            }
            println!("{figures}");
            if is_sound(&figures) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("loadtest: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing was found that must not be. Figures alone are never wrong.
fn is_sound(figures: &Value) -> bool {
    let none = |name: &str| figures[name].as_array().is_none_or(Vec::is_empty);
    let zero = |name: &str| figures[name].as_u64().is_none_or(|count| count == 0);
    none("violations") && zero("lost") && zero("doubled") && zero("effects_after_answer")
}
