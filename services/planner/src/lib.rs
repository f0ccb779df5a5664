//! The planner: wakes on runnable runs, shows the model a causal slice, and commits what it decides, whole or not at all.
//!
//! | to change | open |
//! | --- | --- |
//! | when a turn is taken, asked again, given up | `turn.rs` |
//! | what a model sees | `slice.rs`, `slice/` |
//! | how its tokens are counted | `tokens.rs` |
//! | what a model may say | `verbs.rs`, `verbs/`, `toolbox.rs` |
//! | what is made of an answer | `candidate.rs` |
//! | which agents a run may start, and with what | `spawn.rs` |
//! | what is recalled before a turn, and which skills there are | `recall.rs`, `skills.rs`, `slice/beside.rs` |
//! | which model is asked, and what it costs | `models/`, `prices.yaml` |
//! | when a run is done, and who says so | `acceptance.rs`, `report.rs` |
//! | what becomes of older history | `compaction.rs` |
//! | what is done about going in circles | `drift.rs` |
//! | which calls are refused before they are committed | `preview.rs` |
//! | what comes before a model is asked | `turn/steering.rs` |
//! | how runs are interrupted | `interrupt.rs` |
//! | what the observer is answered when its rules are unsure | `opinion.rs` |

pub mod acceptance;
pub mod artifacts;
pub mod candidate;
pub mod compaction;
mod config;
pub mod drift;
mod gate;
mod interrupt;
mod live;
pub mod models;
pub mod opinion;
pub mod preview;
pub mod recall;
pub mod report;
pub mod skills;
pub mod slice;
pub mod spawn;
pub mod tokens;
pub mod toolbox;
mod turn;
pub mod verbs;

use std::{sync::Arc, time::Duration};

use bus::ConsumeOptions;
use checks::Checks;
use engine::{EngineOptions, ToolCatalog};
use kernel::Role;
use service::Ctx;

pub use config::Config;

use crate::{
    artifacts::{ArtifactError, Artifacts},
    interrupt::Interrupts,
    models::{Models, prices::Prices, prices::PricesError},
    opinion::Opinions,
    preview::Preview,
    turn::{Means, Turns},
};

/// Why the planner could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the configuration.
    #[error("the planner is not set up right")]
    Config(#[from] service::ConfigError),
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] service::ConnectError),
    /// NATS does not do what it should.
    #[error("NATS is not usable")]
    Bus(#[from] bus::BusError),
    /// The tools.
    #[error("the catalogue of tools is not usable")]
    Catalog(#[from] engine::CatalogError),
    /// The list of prices.
    #[error(transparent)]
    Prices(#[from] PricesError),
    /// The artifact service.
    #[error(transparent)]
    Artifacts(#[from] ArtifactError),
    /// There is no HTTP client for checks.
    #[error("no HTTP client for checks")]
    Http(#[source] reqwest::Error),
    /// The port for health and metrics.
    #[error(transparent)]
    Serve(#[from] service::ServeError),
}

/// Runs the planner until it is asked to stop.
///
/// # Errors
/// When something that it needs cannot be had at the start.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = Arc::clone(&ctx.config);
    config.check()?;
    let common = &config.common;
    ctx.health.expect("consumer");
    ctx.serve(common.listen, axum::Router::new()).await?;

    let catalog = Arc::new(ToolCatalog::load(&common.agents_dir)?);
    let models = Models::new(config.models(), Prices::shipped()?);
    let artifacts = Artifacts::new(&common.artifact_url, common.internal_token.clone())?;
    let engine =
        ctx.connect(EngineOptions { pool_size: config.pool_size, ..common.engine_options(Role::Planner) }).await?;
    let bus = engine.bus().clone();

    let interrupts = Interrupts::listen(&bus, ctx.shutdown.closing()).await?;
    let checks = Checks::new(bus.clone()).map_err(Error::Http)?;
    let preview = Preview::new(common.policies_dir.clone(), &config.environment, engine.clone(), Arc::clone(&catalog));
    let preview = Arc::new(preview);
    ctx.shutdown.spawn_background(ctx.shutdown.closing().run_until_cancelled_owned(Arc::clone(&preview).keep_up()));
    let means = Means { catalog, artifacts, interrupts, checks, preview };
    let opinions = Opinions::new(&config, &engine, models.clone(), ctx.tracer.clone());
    let opinions = opinions.serve(&bus, ctx.shutdown.stopping()).await?;
    let turns = Arc::new(Turns::new(&config, &engine, models, means, ctx.tracer.clone()));
    let options = ConsumeOptions {
        concurrency: config.concurrency,
        drain: common.drain().saturating_sub(Duration::from_secs(2)),
        ..ConsumeOptions::default()
    };
    let handler = move |delivery| {
        let turns = Arc::clone(&turns);
        async move { turns.take(delivery).await }
    };
    let consuming = bus.consume("planner", options, handler, ctx.shutdown.stopping())?;
    ctx.health.set("consumer", true, "");
    consuming.join().await;
    opinions.join().await;
    engine.drain().await;
    if let Err(error) = bus.drain().await {
        tracing::warn!(%error, "NATS was not left in order; what was not acknowledged is delivered again");
    }
    Ok(())
}
