//! What each command does.

mod agents;
mod approvals;
mod audit;
mod dev;
mod dlq;
mod doctor;
mod forks;
mod freeze;
mod health;
mod mcp;
mod memory;
mod migrate;
mod observe;
mod policies;
mod publish;
mod runs;
mod schedules;
mod schemas;
mod standing;
mod start;
mod story;
mod tokens;
mod triggers;

use std::io::Read;

use clap::CommandFactory;
use serde_json::json;

use crate::{
    api::Api,
    args::{AgentsCommand, Args, Command, DlqCommand, McpCommand, PolicyCommand, TriggersCommand},
    error::CliError,
    out::Out,
};

/// Does what was typed.
pub async fn run(args: &Args, out: &Out) -> Result<(), CliError> {
    let api = || Api::new(&args.door);
    match &args.command {
        Command::Run(run) => start::run(&api()?, run, out).await,
        Command::Publish(publish) => {
            let api = publish.follow.then(api).transpose()?;
            publish::run(api.as_ref(), publish, out).await
        }
        Command::Tail(tail) => story::tail(&api()?, tail, out).await,
        Command::Timeline(run) => story::timeline(&api()?, &run.run, out).await,
        Command::Runs(runs) => runs::list(&api()?, runs, out).await,
        Command::Waits { kind, page } => runs::waits(&api()?, *kind, page, out).await,
        Command::Approvals { state, page } => approvals::list(&api()?, *state, page, out).await,
        Command::Approve(approve) => approvals::approve(&api()?, approve, out).await,
        Command::Deny(deny) => approvals::deny(&api()?, deny, out).await,
        Command::Say { run, text } => runs::say(&api()?, run, text, out).await,
        Command::Vouch { run, from, text, reason } => {
            let vouched = json!({"from": from, "text": text, "reason": reason});
            runs::vouch(&api()?, run, &vouched, out).await
        }
        Command::Pause(control) => runs::control(&api()?, "pause", control, out).await,
        Command::Resume(control) => runs::control(&api()?, "resume", control, out).await,
        Command::Cancel(control) => runs::control(&api()?, "cancel", control, out).await,
        Command::Fork(args) => forks::fork(&api()?, args, out).await,
        Command::Rollback(args) => forks::roll_back(&api()?, args, out).await,
        Command::Freeze(args) => freeze::run(&api()?, args, out).await,
        Command::Why { run, event } => runs::why(&api()?, run, event.as_deref(), out).await,
        Command::Agents(AgentsCommand::Apply { files }) => agents::apply(&api()?, files, out).await,
        Command::Agents(AgentsCommand::List) => agents::list(&api()?, out).await,
        Command::Agents(AgentsCommand::Versions { name }) => agents::versions(&api()?, name, out).await,
        Command::Schedules(command) => schedules::run(api, command, out).await,
        Command::Memory(command) => memory::memory(&api()?, command, out).await,
        Command::Knowledge(command) => memory::knowledge(&api()?, command, out).await,
        Command::Skills => memory::skills(&api()?, out).await,
        Command::Costs { since } => memory::costs(&api()?, since.as_deref(), out).await,
        Command::Standing(command) => standing::run(&api()?, command, out).await,
        Command::Tokens(command) => tokens::run(&api()?, command, out).await,
        Command::Audit(command) => audit::run(&api()?, command, out).await,
        Command::Dlq(DlqCommand::List(page)) => dlq::list(&api()?, page, out).await,
        Command::Dlq(DlqCommand::Redrive(args)) => dlq::redrive(&api()?, args, out).await,
        Command::Mcp(McpCommand::List) => mcp::list(out),
        Command::Mcp(McpCommand::Login { server }) => mcp::login(server, out).await,
        Command::Observe(observe) => observe::run(observe, out),
        Command::Policy(PolicyCommand::Test { file, policies }) => policies::test(file, policies, out),
        Command::Triggers(TriggersCommand::Test { event, source, agents }) => {
            let api = agents.is_empty().then(api).transpose()?;
            triggers::test(api.as_ref(), event, source.as_deref(), agents, out).await
        }
        Command::Dev(dev) => dev::run(dev, &args.door, out).await,
        Command::Doctor(doctor) => doctor::run(&api()?, doctor, !args.door.token.is_empty(), out).await,
        Command::Health { target } => health::run(target, out).await,
        Command::Migrate => migrate::run(out).await,
        Command::Schemas(schemas) => schemas::run(schemas, out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "esc", &mut script);
            out.raw(&script);
            Ok(())
        }
    }
}

/// The settings that all services share, from the environment and the file it names.
fn settings() -> Result<service::Common, CliError> {
    Ok(service::load("esc", Vec::<String>::new())?)
}

/// What an argument holds: itself, `@FILE`, or `@-` for standard input.
fn text_of(argument: &str) -> Result<String, CliError> {
    match argument.strip_prefix('@') {
        Some("-") => read_stdin(),
        Some(path) => read_file(std::path::Path::new(path)),
        None => Ok(argument.to_owned()),
    }
}

fn read_file(path: &std::path::Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| CliError::usage(format!("can't read {}: {error}", path.display())))
}

fn read_stdin() -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| CliError::usage(format!("can't read standard input: {error}")))?;
    Ok(text)
}

/// The argument as JSON.
fn json_of(argument: &str, what: &str) -> Result<serde_json::Value, CliError> {
    serde_json::from_str(&text_of(argument)?)
        .map_err(|error| CliError::usage_with(format!("{what} is not JSON: {error}"), "give JSON, or @FILE"))
}
