//! The only public door: HTTP API, CloudEvents from NATS, event streams.
//!
//! | to change | open |
//! | --- | --- |
//! | who may call, and with what role | `auth/` |
//! | what is entered in the audit trail | `audit.rs` |
//! | a call of the API | `api/`, one module per resource |
//! | how errors look | `problem.rs` |
//! | how a run is started | `runs.rs` |
//! | what an event from outside does | `inbound/` |
//! | who may deliver webhooks, and what becomes of them | `hooks/`, `api/hooks.rs` |
//! | log records and metrics on their way in | `logs.rs`, `api/logs.rs` |
//! | streams of a run | `stream.rs`, `live.rs` |

mod api;
mod audit;
mod auth;
mod body;
mod config;
mod console;
mod hooks;
mod inbound;
mod live;
mod logs;
mod pacing;
mod packing;
mod problem;
mod runs;
mod snapshot;
mod stream;
mod tails;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bus::{Bus, CloudEventLimits, ConsumeOptions};
use engine::{Engine, EngineOptions};
use kernel::Role;
use service::Ctx;
use tokio_util::task::TaskTracker;

use api::actions::ActionsApi;
use api::approvals::ApprovalsApi;
use api::artifacts::ArtifactsApi;
use api::cloudevents::EventsInApi;
use api::control::ControlApi;
use api::conversations::ConversationsApi;
use api::events::EventsApi;
use api::forks::ForksApi;
use api::freeze::FreezeApi;
use api::hooks::HooksApi;
use api::logs::LogsApi;
use api::memory::MemoryApi;
use api::runs::RunsApi;
use api::schedules::SchedulesApi;
use api::services::ServicesApi;
use api::tokens::TokensApi;
use api::triggers::TriggersApi;
use audit::Audit;
use auth::{Auth, IssuerFileError, Issuers, Revocations, TokenFileError, Tokens};
use hooks::{Hooks, Secrets};
use inbound::Inbound;
use live::Live;
use logs::Logs;
use pacing::{Pacing, Strangers};
use runs::Runs;
use snapshot::Snapshots;
use stream::Streams;
use tails::Tails;

pub use api::openapi::text as openapi;
pub use config::{AuthMode, Config};

/// Events from NATS that are handled at once.
const CONCURRENCY: usize = 64;
/// What the consumer leaves of the time to drain for what comes after it.
const DRAIN_MARGIN: Duration = Duration::from_secs(2);

/// Why ingress could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the configuration. Not transparent: whoever gives the exit code looks for the source.
    #[error("ingress is not set up right")]
    Config(#[from] service::ConfigError),
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] service::ConnectError),
    /// NATS does not do what it should.
    #[error("NATS is not usable")]
    Bus(#[from] bus::BusError),
    /// The client for the artifact service.
    #[error("can't make an HTTP client")]
    Http(#[from] reqwest::Error),
    /// The port.
    #[error(transparent)]
    Serve(#[from] service::ServeError),
}

/// Runs the public door until it is asked to stop.
///
/// # Errors
/// When something that it needs can't be had at the start.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = Arc::clone(&ctx.config);
    config.check()?;
    make_room_for_streams();
    let (tokens, issuers) = (token_file(&ctx)?, issuers(&ctx)?);
    let hooks = hooks(&ctx)?;
    let engine = ctx
        .connect(EngineOptions { pool_size: config.pool_size, ..config.common.engine_options(Role::Ingress) })
        .await?;
    let bus = engine.bus().clone();
    let revocations = Revocations::new();
    ctx.shutdown.spawn_background(revocations.hear(&bus, ctx.shutdown.closing()).await?);
    let auth = auth(&ctx, tokens, issuers, &engine, &revocations);

    let live = Live::default();
    ctx.shutdown.spawn_background(live.listen(&bus, ctx.shutdown.closing()).await?);
    let runs = Runs::new(&engine, engine.agents(), ctx.tracer.clone(), config.max_running, config.trace_ratio);
    let inbound = Inbound::new(&engine, runs.clone(), ctx.tracer.clone());
    let requests = TaskTracker::new();
    let resources = resources(&ctx, &engine, &runs, &inbound, live, &revocations)?;
    let pacing = Pacing::new(config.requests_per_second);
    let open = api::hooks::router(HooksApi {
        hooks,
        inbound: inbound.clone(),
        limits: event_limits(config.body_limit_bytes),
        pacing: pacing.clone(),
        strangers: Strangers::new(config.unsigned_posts_per_second),
    });
    let (audit, keeping) = Audit::new(engine.trail(), ctx.shutdown.closing());
    ctx.shutdown.spawn_background(keeping);
    ctx.serve(
        config.common.listen,
        api::router(resources, open, pacing, auth, audit, config.body_limit_bytes, requests.clone()),
    )
    .await?;
    close_last(&ctx, requests, &engine, &bus);

    let stopping = ctx.shutdown.stopping();
    let sweeping = tokio::spawn(inbound::sweep(inbound.clone(), config.sweep(), stopping.clone()));
    let options = ConsumeOptions {
        concurrency: CONCURRENCY,
        drain: config.common.drain().saturating_sub(DRAIN_MARGIN),
        ..ConsumeOptions::default()
    };
    let handler = move |delivery| {
        let inbound = inbound.clone();
        async move { Ok(inbound::handle(inbound, delivery).await) }
    };
    bus.consume("ingress", options, handler, stopping)?.join().await;
    if let Err(error) = sweeping.await {
        tracing::error!(%error, "the sweep ended badly");
    }
    Ok(())
}

/// Each open stream takes a file descriptor.
fn make_room_for_streams() {
    match service::raise_open_files() {
        Ok(most) => tracing::debug!(most, "so many files and connections may be open at once"),
        Err(error) => tracing::warn!(%error, "can't raise the limit of open files; each open stream takes one"),
    }
}

fn event_limits(body: usize) -> CloudEventLimits {
    CloudEventLimits { max_bytes: body, ..CloudEventLimits::default() }
}

fn hooks(ctx: &Ctx<Config>) -> Result<Hooks, service::ConfigError> {
    let dir = ctx.config.common.agents_dir.join("hooks");
    let hooks = Hooks::load(&dir, Secrets::new(ctx.config.secrets_dir.clone()));
    let hooks = hooks.map_err(|error| config::invalid("agents_dir", error.to_string()))?;
    ctx.shutdown.spawn_background(hooks.clone().follow(ctx.shutdown.closing()));
    Ok(hooks)
}

/// The tokens of the file; none if there is no file, or everybody may come in.
fn token_file(ctx: &Ctx<Config>) -> Result<Option<Arc<Tokens>>, service::ConfigError> {
    let path = &ctx.config.tokens;
    if ctx.config.auth == AuthMode::Off || path.as_os_str().is_empty() {
        return Ok(None);
    }
    let tokens = Tokens::load(path).map_err(|error: TokenFileError| config::invalid("tokens", error.to_string()))?;
    Ok(Some(Arc::new(tokens)))
}

/// The issuers of the file; none if there is no file, or everybody may come in.
fn issuers(ctx: &Ctx<Config>) -> Result<Option<Issuers>, service::ConfigError> {
    let path = &ctx.config.issuers;
    if ctx.config.auth == AuthMode::Off || path.as_os_str().is_empty() {
        return Ok(None);
    }
    let issuers = Issuers::load(path);
    issuers.map(Some).map_err(|error: IssuerFileError| config::invalid("issuers", error.to_string()))
}

fn auth(
    ctx: &Ctx<Config>,
    file: Option<Arc<Tokens>>,
    issuers: Option<Issuers>,
    engine: &Engine,
    revocations: &Revocations,
) -> Auth {
    if ctx.config.auth == AuthMode::Off {
        tracing::warn!("authentication is off: everybody who reaches this port is an operator");
        return Auth::Off;
    }
    if let Some(file) = &file {
        ctx.shutdown.spawn_background(Arc::clone(file).follow(revocations.clone(), ctx.shutdown.closing()));
    }
    if let Some(issuers) = &issuers {
        ctx.shutdown.spawn_background(issuers.clone().follow(revocations.clone(), ctx.shutdown.closing()));
    }
    Auth::Tokens { file, kept: engine.tokens(), issuers, revocations: revocations.clone() }
}

/// The routes below `/v1`, each resource with what it uses.
fn resources(
    ctx: &Ctx<Config>,
    engine: &Engine,
    runs: &Runs,
    inbound: &Inbound,
    live: Live,
    revocations: &Revocations,
) -> Result<Vec<Router>, Error> {
    let config = &ctx.config;
    let (reads, bus) = (engine.reads(), engine.bus().clone());
    let logs = Logs::new(&bus, config.log_records_per_second);
    ctx.shutdown.spawn_background(logs.clone().follow_readers(bus.clone(), ctx.shutdown.closing()));
    let tails = Tails::new(engine);
    ctx.shutdown.spawn_background(tails.clone().look(config.heartbeat(), ctx.shutdown.closing()));
    let snapshots = Snapshots::new(engine).linking(&config.trace_url);
    let streams = Streams::new(snapshots.clone(), tails, live, config.heartbeat(), ctx.shutdown.stopping());
    let limits = event_limits(config.body_limit_bytes);
    let common = &config.common;
    let artifacts = ArtifactsApi::new(engine, &common.artifact_url, common.internal_token.clone())?;
    let publisher = bus.publisher();
    let control = ControlApi { engine: engine.clone(), reads: reads.clone(), tracer: ctx.tracer.clone() };
    Ok(vec![
        api::runs::router(RunsApi {
            runs: runs.clone(),
            reads: reads.clone(),
            snapshots: snapshots.clone(),
            idempotency: engine.idempotency(),
        }),
        api::events::router(EventsApi { reads: reads.clone(), streams }),
        api::control::router(control.clone()),
        api::bulk::router(control),
        api::forks::router(ForksApi { engine: engine.clone(), runs: runs.clone(), idempotency: engine.idempotency() }),
        api::conversations::router(ConversationsApi { reads: reads.clone(), snapshots }),
        api::dlq::router(bus.clone()),
        api::triggers::router(TriggersApi { inbound: inbound.clone(), limits }),
        api::freeze::router(FreezeApi { freezes: engine.freezes(), bus: bus.clone() }),
        api::waits::router(reads.clone()),
        api::approvals::router(ApprovalsApi {
            reads: reads.clone(),
            bus: bus.clone(),
            idempotency: engine.idempotency(),
            tokens: engine.tokens(),
        }),
        api::standing::router(engine.standing()),
        api::tokens::router(TokensApi { tokens: engine.tokens(), revocations: revocations.clone(), bus }),
        api::audit::router(engine.trail()),
        api::artifacts::router(artifacts.clone()),
        api::services::router(ServicesApi { services: engine.services(), artifacts }),
        api::actions::router(ActionsApi { actions: engine.actions(), reads, publisher }),
        api::logs::router(LogsApi { logs, limit: config.log_body_limit_bytes }),
        api::cloudevents::router(EventsInApi { inbound: inbound.clone(), limits }),
        api::agents::router(runs.agents().clone()),
        api::costs::router(engine.reads()),
        api::memory::router(MemoryApi {
            memories: engine.memories(),
            knowledge: engine.knowledge(),
            skills: engine.skills(),
        }),
        api::session::router(),
        api::schedules::router(SchedulesApi { schedules: engine.schedules(), agents: runs.agents().clone() }),
    ])
}

/// Once the last request is answered: commits what was accepted, and leaves NATS in order.
fn close_last(ctx: &Ctx<Config>, requests: TaskTracker, engine: &Engine, bus: &Bus) {
    let (closing, engine, bus) = (ctx.shutdown.closing(), engine.clone(), bus.clone());
    ctx.shutdown.spawn_background(async move {
        closing.cancelled().await;
        requests.close();
        requests.wait().await;
        engine.drain().await;
        if let Err(error) = bus.drain().await {
            tracing::warn!(%error, "NATS was not left in order; what was not acknowledged is delivered again");
        }
    });
}
