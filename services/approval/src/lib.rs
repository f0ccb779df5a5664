//! Asks a person, takes the decision, and says no when nobody decides in time.
//!
//! Decisions come by request-reply from the public door, which has authenticated the person; a question is announced by a
//! signed webhook, if one is configured, and stays open on the API whatever becomes of that.
//!
//! | to change | open |
//! | --- | --- |
//! | who may decide what | `decide/question.rs` |
//! | how a decision is taken, and what is answered | `decide.rs` |
//! | what is allowed once and for all | `standing.rs` |
//! | how people hear of a question, again and again | `notify.rs`, `webhook.rs` |
//! | what happens when nobody answers | `expiry.rs` |

mod config;
mod decide;
mod expiry;
mod notify;
mod standing;
mod webhook;

use std::time::Duration;

use bus::{BusError, ConsumeOptions, ServeOptions};
use engine::EngineOptions;
use kernel::{Cause, Role, RunState};
use service::{
    ConfigError, ConnectError, Ctx, Parent, ServeError, Span, SpanSpec, TraceContext, Tracer, telemetry::genai,
};

pub use config::Config;

/// Decisions that are taken at once.
const DECISIONS: usize = 256;
/// Questions that are heard of at once.
const HEARD: usize = 32;

/// Why the approval service could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration makes no sense.
    #[error("approval is not set up right")]
    Config(#[from] ConfigError),
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// NATS does not do what it should.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The address for health and metrics can't be listened on.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The client for webhooks can't be made.
    #[error("can't make a client for webhooks")]
    Webhook(#[source] reqwest::Error),
}

/// Runs the approval service until it is told to stop.
///
/// # Errors
/// When it can't start. Once started, it outlives whatever its stores do.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = &ctx.config;
    config.check()?;
    let targets = notify::Targets::new(config).map_err(Error::Webhook)?;
    let engine = ctx
        .connect(EngineOptions { pool_size: config.pool_size, ..config.common.engine_options(Role::Approval) })
        .await?;
    let bus = engine.bus().clone();

    let stop = ctx.shutdown.stopping();
    let steward = standing::Steward::new(&engine, ctx.tracer.clone());
    let decider = decide::Decider::new(&engine, steward.clone(), ctx.tracer.clone());
    let options = ServeOptions { concurrency: DECISIONS, ..ServeOptions::new("approval", "decide") };
    let deciding = bus.serve(options, move |message| decider.clone().answer(message), stop.clone()).await?;
    let notifying = notify::Notifying::new(targets, &engine, steward.clone());
    let options = ConsumeOptions { concurrency: HEARD, ..ConsumeOptions::default() };
    let listener = notifying.clone();
    let hearing = bus.consume("approval", options, move |delivery| listener.clone().hear(delivery), stop.clone())?;
    let every = Duration::from_secs(config.expiry_seconds.max(1));
    let expiry = expiry::Expiry::new(&engine, steward, ctx.tracer.clone(), every);
    ctx.serve(config.common.listen, axum::Router::new()).await?;

    futures::join!(expiry.run(stop.clone()), notifying.run(every, stop));
    futures::join!(deciding.join(), hearing.join());
    engine.drain().await;
    bus.drain().await?;
    Ok(())
}

/// A span in the trace of a run, and the cause that commits in it carry.
fn span_of(tracer: &Tracer, name: &'static str, run: &RunState) -> (Span, Cause) {
    let parent = Parent::Span(TraceContext::of_run(run.run_id, run.sampled));
    let span = tracer.span(SpanSpec::new(name, parent).attribute(genai::RUN_ID, run.run_id.to_string()));
    let cause = Cause { service: "approval".to_owned(), traceparent: Some(span.traceparent()), ..Cause::default() };
    (span, cause)
}
