//! All seven services in one process, for a laptop. The parts (NATS, Postgres, Redis) have to be there already.

use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use service::{Common, Running, Secret, config::Settings};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::{agents, migrate};
use crate::{
    api::Api,
    args::{DevArgs, Door},
    error::CliError,
    out::Out,
    style::Paint,
};

/// How long services may take until they are ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How often that is asked.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Runs them until a signal comes or one of them ends.
pub async fn run(args: &DevArgs, door: &Door, out: &Out) -> Result<(), CliError> {
    let begun = Instant::now();
    if !args.no_migrate {
        let settings = super::settings()?;
        futures::try_join!(migrate::database(&settings), migrate::streams(&settings))?;
    }
    let mut services = start()?;
    ready(&services).await?;
    let url = address(&mut services).await?;
    if !args.no_agents {
        let api = Api::new(&Door { url: url.clone(), token: door.token.clone() })?;
        agents::apply(&api, &agents::files()?, out).await?;
    }
    out.say(format!(
        "{} after {:.1} s. Console and API: {url}  (stop with Ctrl-C)",
        out.style().paint(Paint::Good, "All seven services are ready"),
        begun.elapsed().as_secs_f64()
    ));
    out.value(&json!({"url": url, "ready_ms": begun.elapsed().as_millis()}));
    let ended = wait(&services).await?;
    stop(services, ended).await
}

/// The services, each with its own configuration from the environment. The public door comes last, and closes first.
fn start() -> Result<Vec<Running>, CliError> {
    // One process needs no secret against itself, but the artifact service wants to know who asks.
    // Of a UUIDv7 at least 32 bits are fresh: four of them can't be guessed.
    let internal = Secret::from((0..4).map(|_| Uuid::now_v7().simple().to_string()).collect::<String>());
    let mut services = vec![
        service("artifact", &internal, |config: &mut artifact::Config| &mut config.common, artifact::run)?,
        service("approval", &internal, |config: &mut approval::Config| &mut config.common, approval::run)?,
        service("scheduler", &internal, |config: &mut scheduler::Config| &mut config.common, scheduler::run)?,
        service("observer", &internal, |config: &mut observer::Config| &mut config.common, observer::run)?,
        service(
            "tool-executor",
            &internal,
            |config: &mut tool_executor::Config| &mut config.common,
            tool_executor::run,
        )?,
        service("planner", &internal, |config: &mut planner::Config| &mut config.common, planner::run)?,
    ];
    let open = |config: &mut ingress::Config| {
        // On a loopback address, whoever reaches it is the person whose laptop this is.
        if config.tokens.as_os_str().is_empty() && config.common.listen.ip().is_loopback() {
            config.auth = ingress::AuthMode::Off;
        }
    };
    services.push(service(
        "ingress",
        &internal,
        |config: &mut ingress::Config| {
            open(config);
            &mut config.common
        },
        ingress::run,
    )?);
    Ok(services)
}

fn service<C, F, Fut, E>(
    name: &'static str,
    internal: &Secret<String>,
    common: impl FnOnce(&mut C) -> &mut Common,
    run: F,
) -> Result<Running, CliError>
where
    C: AsRef<Common> + DeserializeOwned + Default + Serialize,
    F: FnOnce(service::Ctx<C>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + 'static,
{
    // One address can't be everybody's: it is the public door's, the others keep their own.
    let mine = |variable: &OsString| name == "ingress" || variable != "ESC_LISTEN";
    let environment = std::env::vars_os().filter(|(variable, _)| mine(variable));
    let mut config = Settings::<C>::load(name, Vec::<String>::new(), environment)?.value;
    let common = common(&mut config);
    if common.internal_token.is_empty() {
        common.internal_token = internal.clone();
    }
    service::spawn(name, config, run).map_err(|error| CliError::usage(error.to_string()))
}

async fn ready(services: &[Running]) -> Result<(), CliError> {
    let deadline = Instant::now() + READY_WITHIN;
    for running in services {
        loop {
            let readiness = running.health().readiness().await;
            if readiness.ready {
                break;
            }
            let ended = tokio::time::timeout(ASK_EVERY, running.finished()).await.is_ok();
            if ended || Instant::now() > deadline {
                let why = readiness.not_ready.iter().map(|check| format!("{}: {}", check.check, check.detail));
                let why = if ended {
                    "it ended; the log above says why".to_owned()
                } else {
                    why.collect::<Vec<_>>().join("; ")
                };
                return Err(CliError::unreachable(
                    format!("{} is not ready: {why}", running.name()),
                    "`esc doctor` looks at the parts",
                ));
            }
        }
    }
    Ok(())
}

async fn address(services: &mut [Running]) -> Result<String, CliError> {
    let ingress = services.iter_mut().find(|running| running.name() == "ingress");
    let addr = match ingress {
        Some(ingress) => ingress.listening().await,
        None => None,
    };
    let addr = addr.ok_or_else(|| CliError::failed("ingress does not listen; the log above says why"))?;
    Ok(format!("http://{addr}"))
}

/// The name of the service that ended by itself, if it was not a signal.
async fn wait(services: &[Running]) -> Result<Option<&'static str>, CliError> {
    let signals = |kind| signal(kind).map_err(|error| CliError::failed(format!("can't listen to signals: {error}")));
    let (mut terminate, mut interrupt) = (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let ends = services.iter().map(|running| {
        Box::pin(async {
            running.finished().await;
            running.name()
        })
    });
    tokio::select! {
        (name, _, _) = futures::future::select_all(ends) => Ok(Some(name)),
        _ = terminate.recv() => Ok(None),
        _ = interrupt.recv() => Ok(None),
    }
}

/// The public door first, so that nothing new comes in, then the others together.
async fn stop(mut services: Vec<Running>, ended: Option<&'static str>) -> Result<(), CliError> {
    let mut failures = Vec::new();
    if let Some(ingress) = services.pop()
        && let Err(error) = ingress.stop().await
    {
        failures.push(format!("ingress: {error}"));
    }
    let stopping = services.into_iter().map(|running| async {
        let name = running.name();
        running.stop().await.err().map(|error| format!("{name}: {error}"))
    });
    failures.extend(futures::future::join_all(stopping).await.into_iter().flatten());
    match (ended, failures.is_empty()) {
        (_, false) => Err(CliError::failed(failures.join("; "))),
        (Some(name), true) => Err(CliError::failed(format!("{name} ended by itself"))),
        (None, true) => Ok(()),
    }
}
