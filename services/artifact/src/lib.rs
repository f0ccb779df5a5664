//! Keeps content: artifacts by the hash of their bytes, and every line that an activity wrote.
//!
//! Content goes over this service's internal HTTP, streamed, never through NATS. What an artifact is called and which versions
//! it has is in the log; the bytes are here, once for each content, whoever stored it.
//!
//! | to change | open |
//! | --- | --- |
//! | the HTTP calls of the other services | `api.rs` |
//! | where and how content is kept | `blobs.rs` |
//! | how raw output is archived and read again | `archive.rs`, `segments.rs` |

mod api;
mod archive;
mod blobs;
mod config;
mod segments;

use std::sync::Arc;

use bus::{Bus, BusError, BusOptions, BusState, ConsumeOptions, InvalidNamespace, Namespace};
use engine::{Engine, EngineError, EngineOptions};
use kernel::Role;
use service::{ConfigError, Ctx, Health, ServeError};

pub use config::Config;

/// Why the artifact service could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can't work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The namespace is none.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
    /// NATS does not do what it should.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A store does not do what it should.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The object store can't be used.
    #[error(transparent)]
    Blobs(#[from] blobs::BlobError),
    /// The address can't be listened on.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Runs an artifact service until it is told to stop.
///
/// # Errors
/// When it can't start. Once started, it outlives whatever its stores do.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = &ctx.config;
    config.check()?;
    let common = &config.common;
    let namespace = Namespace::new(common.namespace.clone())?;
    let bus = Bus::connect(BusOptions { namespace, ..BusOptions::new(common.nats_url.expose(), "artifact") }).await?;
    let engine = Engine::start(
        EngineOptions {
            namespace: common.namespace.clone(),
            schema: common.schema.clone(),
            pool_size: config.pool_size,
            ..EngineOptions::new(Role::Artifact, common.database_url.expose(), common.redis_url.expose())
        },
        bus.clone(),
    )
    .await?;
    let blobs = blobs::Blobs::open(&common.artifacts_url, config.max_bytes)?;
    watch(&ctx.health, &bus, &engine);

    let api = api::Api::new(&engine, blobs.clone(), ctx.tracer.clone(), common.internal_token.clone());
    ctx.serve(common.listen, api::router(api)).await?;

    let archive = Arc::new(archive::Archive::start(&engine, blobs, ctx.tracer.clone(), config));
    let options = ConsumeOptions { concurrency: archive::FRAMES_HELD, ..ConsumeOptions::default() };
    let keeping = Arc::clone(&archive);
    let handler = move |delivery| {
        let archive = Arc::clone(&keeping);
        async move { archive.keep(delivery).await }
    };
    let consuming = bus.consume("artifact", options, handler, ctx.shutdown.stopping())?;
    ctx.shutdown.stopping().cancelled().await;
    archive.flush();
    consuming.join().await;
    engine.drain().await;
    bus.drain().await?;
    Ok(())
}

fn watch(health: &Health, bus: &Bus, engine: &Engine) {
    let bus = bus.clone();
    health.check("nats", move || {
        let state = bus.state();
        async move { if state == BusState::Connected { Ok(()) } else { Err(format!("{state:?}")) } }
    });
    let engine = engine.clone();
    health.check("stores", move || {
        let engine = engine.clone();
        async move { engine.ping().await.map_err(|error| error.to_string()) }
    });
}
