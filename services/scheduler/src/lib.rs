//! Keeps time, and sees to it that nothing stays undone: durable timers, schedules, the outbox, work whose worker is gone, queued runs,
//! what is old enough to be forgotten.
//!
//! Stateless and plural. Timers and schedules are claimed row by row, so any number of schedulers fire them together, each once. The rest
//! is upkeep whose repetition is harmless; one of the schedulers does it, by a lease that saves the others the work.
//!
//! | to change | open |
//! | --- | --- |
//! | when and how timers fire | `timers.rs` |
//! | when schedules fire, and what then | `schedules.rs`, `firing.rs` |
//! | when starts begin that triggers hold back | `gatherings.rs` |
//! | what a crash left unpublished | `outbox.rs` |
//! | what is rung for again | `reaper.rs` |
//! | what is asked about outside | `reconcile.rs` |
//! | when queued runs begin | `admission.rs` |
//! | how children follow their parents | `children.rs` |
//! | what is forgotten | `retention.rs` |

mod admission;
mod children;
mod config;
mod firing;
mod gatherings;
mod leader;
mod outbox;
mod reaper;
mod reconcile;
mod retention;
mod schedules;
mod timers;

use bus::BusError;
use engine::EngineOptions;
use kernel::{Cause, Role, RunId};
use service::{ConnectError, Ctx, Parent, ServeError, Span, SpanSpec, TraceContext, Tracer, telemetry::genai};

pub use config::Config;

use leader::Leader;

/// Why the scheduler could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NATS or a store is not there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// NATS does not do what it should.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The address for health and metrics can't be listened on.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Runs a scheduler until it is told to stop.
///
/// # Errors
/// When it can't start. Once started, it outlives whatever its stores do.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = &ctx.config;
    let engine = ctx
        .connect(EngineOptions { pool_size: config.pool_size, ..config.common.engine_options(Role::Scheduler) })
        .await?;
    let bus = engine.bus().clone();
    let bells = timers::Bells::listen(&bus).await?;
    let queued = bus.subscribe(&bus::subject::evt_of_type("run.queued")).await?;
    let families = children::listen(&bus).await?;
    ctx.serve(config.common.listen, axum::Router::new()).await?;

    let stop = ctx.shutdown.stopping();
    let leader = Leader::new(&engine);
    let timers = timers::Timers::new(&engine, ctx.tracer.clone(), config);
    let schedules = schedules::Keeper::new(&engine, ctx.tracer.clone(), config);
    let starter = gatherings::Starter::new(&engine, ctx.tracer.clone(), config);
    let outbox = outbox::Sweeper::new(&engine, config.sweep_after());
    let reaper = reaper::Reaper::new(&engine, config.reap_every(), config.neglect());
    let reconciler = reconcile::Reconciler::new(&engine, config.reap_every(), config.pace());
    let admission = admission::Admission::new(&engine, ctx.tracer.clone(), config.max_running);
    let children = children::Children::new(&engine, ctx.tracer.clone(), config.tend_every(), config.max_running);
    let retention = retention::Retention::new(&engine, config.ages());
    // Each in a place of its own: together they are too much to be handed from stack to stack.
    futures::join!(
        Box::pin(timers.run(bells, stop.clone())),
        Box::pin(schedules.run(stop.clone())),
        Box::pin(starter.run(stop.clone())),
        Box::pin(outbox.run(&leader, stop.clone())),
        Box::pin(reaper.run(&leader, stop.clone())),
        Box::pin(reconciler.run(&leader, stop.clone())),
        Box::pin(admission.run(&leader, queued, stop.clone())),
        Box::pin(children.run(&leader, families, stop.clone())),
        Box::pin(retention.run(&leader, stop.clone())),
        Box::pin(leader.keep(stop.clone())),
    );
    engine.drain().await;
    bus.drain().await?;
    Ok(())
}

/// A span in the trace of a run, and the cause that commits in it carry.
fn span_of(tracer: &Tracer, name: &'static str, run: RunId, sampled: bool) -> (Span, Cause) {
    let parent = Parent::Span(TraceContext::of_run(run, sampled));
    let span = tracer.span(SpanSpec::new(name, parent).attribute(genai::RUN_ID, run.to_string()));
    let cause = Cause { service: "scheduler".to_owned(), traceparent: Some(span.traceparent()), ..Cause::default() };
    (span, cause)
}
