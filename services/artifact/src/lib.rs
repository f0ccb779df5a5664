//! Keeps what is large: the artifacts of runs by the hash of their content, and the raw output of their activities.
//!
//! It speaks HTTP to the other services only. Content never goes through the bus, and no run is changed here: whoever
//! stores an artifact commits the reference that it gets back.
//!
//! | to change | open |
//! | --- | --- |
//! | where content is kept | `store.rs` |
//! | how artifacts come in and out | `content.rs`, `names.rs` |
//! | how raw output is kept | `archive.rs`, `gather.rs`, `segment.rs` |
//! | how raw output is read back | `signals.rs` |
//! | how the logs of services are kept and read back | `logs/` |
//! | what is removed, and when | `janitor.rs` |
//! | who may ask | `auth.rs` |

mod archive;
mod auth;
mod config;
mod content;
mod gather;
mod janitor;
mod logs;
mod names;
mod problem;
mod segment;
mod signals;
pub mod store;

use axum::{Router, routing};
use bus::BusError;
use engine::{Engine, EngineOptions};
use kernel::Role;
use service::{ConfigError, ConnectError, Ctx, Health, ServeError, Tracer, chain};

pub use config::Config;

use archive::Keeper;
use auth::Gate;
use janitor::Janitor;
use logs::LogKeeper;
use store::Store;

/// Why the artifact service could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can't be served.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// NATS does not do what it should.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The address can't be listened on.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// What requests are answered with. Cheap to clone.
#[derive(Clone)]
struct App {
    engine: Engine,
    store: Store,
    tracer: Tracer,
    max_bytes: u64,
}

/// Runs the artifact service until it is told to stop.
///
/// # Errors
/// When it can't start. Once started, it outlives whatever its stores do.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = &ctx.config;
    let gate = Gate::new(&config.common.internal_token, config.common.listen)?;
    let store = Store::open(&config.common.artifacts_url).map_err(|error| bad_address(&error))?;
    let engine = ctx
        .connect(EngineOptions { pool_size: config.pool_size.max(2), ..config.common.engine_options(Role::Artifact) })
        .await?;
    let bus = engine.bus().clone();
    watch(&ctx.health, &store);
    let (tracer, max_bytes) = (ctx.tracer.clone(), config.artifact_max_bytes);
    let app = App { engine: engine.clone(), store: store.clone(), tracer: tracer.clone(), max_bytes };
    ctx.serve(config.common.listen, router(app, gate)).await?;

    match store.clean_up().await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed uploads that a crash had left behind"),
        Err(error) => tracing::warn!(%error, "could not look for uploads that a crash left behind"),
    }
    let janitor = Janitor { store: store.clone(), engine: engine.clone(), retain_logs: config.retain_logs() };
    let stop = ctx.shutdown.stopping();
    let logs = LogKeeper { store: store.clone(), services: engine.services() };
    let keeper = Keeper { store, segments: engine.segments(), tracer };
    let keeping = archive::run(&bus, keeper, logs, config, stop.clone());
    let cleaning = async {
        janitor.run(stop).await;
        Ok::<_, BusError>(())
    };
    futures::try_join!(keeping, cleaning)?;
    engine.drain().await;
    bus.drain().await?;
    Ok(())
}

fn router(app: App, gate: Gate) -> Router {
    Router::new()
        .route("/internal/artifacts", routing::put(content::put))
        .route("/internal/artifacts/{id}", routing::get(content::get))
        .route("/internal/signals", routing::get(logs::read::get))
        .route("/internal/signals/{call_id}", routing::get(signals::get))
        .layer(axum::middleware::from_fn_with_state(gate, auth::check))
        .with_state(app)
}

/// Whether content can be kept and read back, beside what every service asks.
fn watch(health: &Health, store: &Store) {
    let store = store.clone();
    health.check("objects", move || {
        let store = store.clone();
        async move { store.ping().await.map_err(|error| chain(&error)) }
    });
}

fn bad_address(error: &store::OpenError) -> ConfigError {
    let (key, origin) = ("artifacts_url".to_owned(), "the configuration".to_owned());
    ConfigError::Invalid { key, origin, message: chain(error) }
}
