//! The tool-executor: requested calls become effects, and effects become recorded results.
//!
//! A call goes through registry, schema and policy before anything happens ([`pipeline`](crate)), is started in the log
//! if its repetition could be seen outside, carried out under its time-out, and ends in one commit. A call of which nobody
//! knows whether it happened is asked about by its tool's own read-back, never repeated blindly. A command goes on by
//! itself, and its output is followed by whichever executor is there.
//!
//! | to change | open |
//! | --- | --- |
//! | what is done about a call | `dispatch.rs`, `perform.rs` |
//! | what a call has to pass | `pipeline.rs`, `registry.rs`, `schema.rs` |
//! | what may run beside what, and what waits for that | `beside.rs`, `claims.rs`, `parked.rs` |
//! | how often and when it is tried | `perform.rs`, `limits.rs` |
//! | looks at the world for the observer | `look.rs` |
//! | whether a model may be told how an activity ended | `check.rs` |
//! | what happens after a crash | `recover.rs`, `adopt.rs` |
//! | what is asked about while a run waits | `verify.rs` |
//! | what is tried out before it happens | `dry_run.rs` |
//! | what is undone when a run fails | `compensate.rs` |
//! | a tool | `tools/` |
//! | how the kill switch is heard | `freeze.rs` |
//! | what is done with MCP servers | `mcp/`; calls that became tasks there: `followed.rs` |
//! | how HTTP goes out | `egress.rs`, `template.rs`, `secrets.rs` |
//! | how commands run and are followed | `activity/`; programs that only answer: `activity/answer.rs` |
//! | what commands may touch | `confine.rs` |
//! | what goes on elsewhere and is asked about | `elsewhere.rs`, `activity/remote.rs` |
//! | what a result looks like | `results.rs`, `outcome.rs` |

mod activity;
mod adopt;
mod artifacts;
mod beside;
mod check;
mod claims;
mod compensate;
mod config;
mod confine;
mod dispatch;
mod doorbell;
mod dry_run;
mod egress;
mod elsewhere;
mod evidence;
mod followed;
mod freeze;
mod limits;
mod look;
pub mod mcp;
mod outcome;
mod parked;
mod perform;
mod pipeline;
mod preview;
mod provenance;
mod recover;
mod registry;
mod results;
mod schema;
mod secrets;
mod simulate;
mod task;
mod template;
mod tools;
mod verify;
mod workspace;

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError, ConsumeOptions, Outcome, Subject};
use checks::Checks;
use engine::{CatalogError, Engine, EngineError, McpServers, ToolCatalog};
use futures::StreamExt as _;
use kernel::{CallId, Role};
use policy::{PolicyError, PolicyStore};
use service::{ConnectError, Ctx, ServeError};
use tokio::sync::mpsc::UnboundedReceiver;

use activity::{Activities, ActivityLimits, Caps, Groups, PerProcess};
use artifacts::ArtifactClient;
use beside::Locks;
use confine::Confinement;
use dispatch::Dispatcher;
use egress::{Egress, EgressError};
use followed::Following;
use freeze::KillSwitch;
use limits::Limits;
use mcp::Mcp;
use pipeline::Pipeline;
use registry::Registry;
use results::Results;
use secrets::Secrets;
use tools::{ProcessOptions, Recall, Tools};
use workspace::Workspaces;

pub use activity::NoGroups;
pub use config::Config;
pub use confine::{Confine, Unconfined};

/// Times that a message may ask to be tried again before it is put aside: a call in doubt is asked about again and again.
const MAX_ATTEMPTS: u64 = 100;
/// How often it is looked whether the policies have changed.
const POLICIES_EVERY: Duration = Duration::from_secs(1);

/// Why the tool-executor can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// NATS does not do what it should.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A store does not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A tool file is wrong.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A setting makes no sense. Not transparent: whoever gives the exit code looks for the source.
    #[error("the tool-executor is not set up right")]
    Config(#[from] service::ConfigError),
    /// A policy is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The port can't be had.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// HTTP clients can't be made.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The address of the artifact service is none.
    #[error("`artifact_url` is not an absolute URL: {0}")]
    ArtifactUrl(String),
    /// The client of the artifact service can't be made.
    #[error("the client of the artifact service can't be set up")]
    Artifacts(#[source] reqwest::Error),
    /// The client of the operator's own checks can't be made.
    #[error("the client of checks can't be set up")]
    Checks(#[source] reqwest::Error),
    /// Commands can't be confined, though they have to be.
    #[error(transparent)]
    Unconfined(#[from] Unconfined),
    /// The processes of commands can't be counted, though they have to be.
    #[error(transparent)]
    NoGroups(#[from] NoGroups),
    /// The workspaces can't be made.
    #[error("the folder of workspaces `{path}` can't be used")]
    Workspaces {
        /// Where they should be.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// Runs the tool-executor until it is asked to stop.
///
/// # Errors
/// [`Error`], if it can't begin.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    ctx.health.expect("consumer");
    ctx.serve(ctx.config.common.listen, axum::Router::new()).await?;
    let config = &ctx.config;
    let engine = ctx.connect(config.common.engine_options(Role::ToolExecutor)).await?;
    let bus = engine.bus().clone();
    let (kill_switch, stopped) = KillSwitch::listen(engine.freezes(), &bus, &ctx.shutdown).await?;
    let (following, begun) = Following::new();
    let dispatcher = Arc::new(dispatcher(&ctx, &engine, kill_switch, following)?);
    ctx.shutdown.spawn(followed::follow_all(dispatcher.clone(), begun, ctx.shutdown.clone()));
    ctx.shutdown.spawn_background(
        ctx.shutdown.closing().run_until_cancelled_owned(end_stopped(dispatcher.activities.clone(), stopped)),
    );
    let policies = dispatcher.pipeline.policies.clone();
    ctx.shutdown.spawn_background(ctx.shutdown.closing().run_until_cancelled_owned(reload(policies)));
    hear_of_endings(&ctx, &bus, &dispatcher).await?;
    elsewhere::hear(dispatcher.activities.clone(), &bus, &ctx.shutdown).await?;
    let mcp = dispatcher.tools.mcp.clone();
    ctx.shutdown.spawn_background(ctx.shutdown.closing().run_until_cancelled_owned(mcp.clone().discover()));
    ctx.shutdown.spawn_background(ctx.shutdown.closing().run_until_cancelled_owned(mcp.clone().tidy()));
    let parking = dispatcher.clone();
    let ringing = async move { parked::ring(&parking).await };
    ctx.shutdown.spawn_background(ctx.shutdown.stopping().run_until_cancelled_owned(ringing));
    let (adopting, shutdown) = (dispatcher.clone(), ctx.shutdown.clone());
    ctx.shutdown.spawn(async move { adopt::adopt(&adopting, &shutdown).await });

    let looking = look::serve(&bus, dispatcher.clone(), ctx.shutdown.stopping()).await?;
    let previewing = preview::serve(&bus, dispatcher.clone(), ctx.shutdown.stopping()).await?;
    let checking = check::serve(&bus, dispatcher.clone(), ctx.shutdown.stopping()).await?;

    let consuming = {
        let (dispatcher, cut_off) = (dispatcher.clone(), ctx.shutdown.cut_off());
        let handle = move |delivery: bus::Delivery| {
            let (dispatcher, cut_off) = (dispatcher.clone(), cut_off.clone());
            async move {
                let handled = cut_off.run_until_cancelled(dispatcher.handle(&delivery)).await;
                handled.unwrap_or_else(|| Ok(Outcome::retry("the executor was cut off")))
            }
        };
        let options = ConsumeOptions {
            concurrency: config.concurrency,
            max_attempts: MAX_ATTEMPTS,
            // What is left is given back while there is still time to say so.
            drain: config.common.drain().mul_f64(0.9),
            ..ConsumeOptions::default()
        };
        bus.consume("tool-executor", options, handle, ctx.shutdown.stopping())?
    };
    ctx.health.set("consumer", true, "");
    futures::join!(consuming.join(), looking.join(), previewing.join(), checking.join());
    mcp.close().await;
    engine.drain().await;
    Ok(())
}

fn dispatcher(
    ctx: &Ctx<Config>,
    engine: &Engine,
    kill_switch: KillSwitch,
    following: Following,
) -> Result<Dispatcher, Error> {
    let config = &ctx.config;
    let root = &config.common.workspaces;
    let unusable = |source| Error::Workspaces { path: root.display().to_string(), source };
    std::fs::create_dir_all(root).map_err(unusable)?;
    let workspaces = Workspaces::new(std::path::absolute(root).map_err(unusable)?);
    activity::tidy(&workspaces.apart());
    let secrets_dir = Some(config.secrets_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
    // What is not text is no secret of ours.
    let env = std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let secrets = Secrets::new(env, secrets_dir);
    secrets.hide("internal token", config.common.internal_token.expose());
    let artifact_url =
        config.common.artifact_url.parse().map_err(|_| Error::ArtifactUrl(config.common.artifact_url.clone()))?;
    let artifacts =
        ArtifactClient::new(artifact_url, config.common.internal_token.clone()).map_err(Error::Artifacts)?;
    let catalog = ToolCatalog::load(&config.common.agents_dir)?;
    let mcp = mcp(config, engine, catalog.servers().clone(), &secrets, &artifacts)?;
    let specs =
        catalog.all().into_iter().filter_map(|spec| Some((spec.clone(), catalog.digest(&spec.name)?.to_owned())));
    let confinement = Confinement::new(config.confine, &config.process_read)?;
    let groups = Groups::new(config.control_groups, &config.control_group)?;
    let process = process_options(config, &confinement, &groups);
    let limits = ActivityLimits {
        concurrent: config.activities,
        caps: process.caps,
        kill_grace: Duration::from_millis(config.kill_grace_ms),
    };
    let publisher = engine.bus().publisher();
    let instance = engine.options().instance.clone();
    let activities = Activities::new(
        engine.clone(),
        publisher,
        workspaces.clone(),
        limits,
        (confinement.clone(), groups),
        secrets.clone(),
        ctx.shutdown.clone(),
    );
    Ok(Dispatcher {
        engine: engine.clone(),
        kill_switch,
        pipeline: Pipeline {
            engine: engine.clone(),
            registry: Registry::new(specs, |name| std::env::var(name).ok()),
            mcp: mcp.clone(),
            policies: PolicyStore::open_or_embedded(&config.common.policies_dir)?,
            checks: Checks::new(engine.bus().clone()).map_err(Error::Checks)?,
            environment: config.environment.clone(),
            confinement,
        },
        tools: Tools {
            egress: Egress::new(config.http_cap)?,
            secrets: secrets.clone(),
            workspaces,
            checkout_root: config.checkout_root.clone(),
            file_cap: config.file_cap,
            artifacts: artifacts.clone(),
            reads: engine.reads(),
            process,
            mcp,
            schedules: engine.schedules(),
            recall: Recall::new(engine),
            max_schedules: config.max_schedules,
        },
        results: Results::new(artifacts, secrets),
        limits: Limits::new(engine.limiter(), &config.rate_limits, config.breaker())?,
        activities,
        locks: Locks::new(engine.leases(), config.lease()),
        tracer: ctx.tracer.clone(),
        instance,
        lease: config.lease(),
        pace: config.pace(),
        doubt: Duration::from_secs(config.doubt_seconds),
        begin_within: config.begin_within,
        following,
        parked: Default::default(),
        claims: Default::default(),
    })
}

fn mcp(
    config: &Config,
    engine: &Engine,
    declared: McpServers,
    secrets: &Secrets,
    artifacts: &ArtifactClient,
) -> Result<Mcp, Error> {
    let unusable = |source| Error::Workspaces { path: config.common.workspaces.display().to_string(), source };
    let means = mcp::Means::with(config, secrets.clone()).map_err(unusable)?;
    Ok(Mcp::new(engine, declared, means, artifacts.clone(), secrets.clone(), config.mcp_servers))
}

fn process_options(config: &Config, confinement: &Confinement, groups: &Groups) -> ProcessOptions {
    ProcessOptions {
        env: ProcessOptions::env(&config.env_allow),
        limits: PerProcess {
            open_files: config.open_files,
            file_bytes: config.file_bytes,
            cpu: tools::cpu(config.process_cpu_seconds),
        },
        caps: Caps { output: config.output_cap, processes: config.process_count, memory: config.process_memory },
        confinement: confinement.clone(),
        groups: groups.clone(),
    }
}

/// Ends the activities of runs that are ending. What is not heard is found out by looking now and then.
async fn hear_of_endings(ctx: &Ctx<Config>, bus: &Bus, dispatcher: &Arc<Dispatcher>) -> Result<(), BusError> {
    let mut endings = bus.subscribe(&bus::subject::evt_of_type("run.cancel_requested")).await?;
    let (activities, mcp) = (dispatcher.activities.clone(), dispatcher.tools.mcp.clone());
    let hearing = async move {
        while let Some(message) = endings.next().await {
            if let Ok(Subject::Event { run, .. }) = Subject::parse(&message.subject)
                && let Ok(run) = run.parse()
            {
                activities.cancel_run(run);
                mcp.cancel_run(run);
            }
        }
    };
    ctx.shutdown.spawn_background(ctx.shutdown.closing().run_until_cancelled_owned(hearing));
    Ok(())
}

/// Ends activities that a freeze does not only keep from starting.
async fn end_stopped(activities: Activities, mut stopped: UnboundedReceiver<Vec<CallId>>) {
    while let Some(calls) = stopped.recv().await {
        activities.cancel_calls(&calls);
    }
}

/// Takes in changed policies.
async fn reload(policies: PolicyStore) {
    let mut every = tokio::time::interval(POLICIES_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let store = policies.clone();
        match tokio::task::spawn_blocking(move || store.reload_if_changed()).await {
            Ok(Ok(Some(version))) => tracing::info!(version, "the policies have changed"),
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) => tracing::error!(%error, "the changed policies can't be used; those before stay in force"),
        }
    }
}
