//! Turns a flood of signals into a few sound observations, and wakes nobody without need.
//!
//! Each partition of the signals is read in order by one observer at a time. Frames become lines, lines meet the rules of
//! the agent, and a state machine per call decides what is worth telling: progress is folded, failures are held until the
//! end or more evidence, silence is noticed, and the end concludes the call. It says what changed, never what to do.
//!
//! | to change | open |
//! | --- | --- |
//! | how output becomes lines | `lines.rs`, `text.rs`, `prefix.rs` |
//! | what a line means | `packs/`, `rules/`, `records.rs` |
//! | what only time tells | `timed.rs` |
//! | what kinds of lines are usual | `templates.rs`, `miners.rs` |
//! | what the pace of lines tells by itself | `seen.rs`, `beats.rs`, of services `services/pace.rs` |
//! | what is shown as evidence | `evidence.rs`, `findings.rs` |
//! | what a call's lines change, when something is told, and in which words | `conclude/reading.rs`, `conclude.rs`, `conclude/report.rs` |
//! | when a model is asked, and what that changes | `conclude/doubt.rs`, `asking.rs` |
//! | what happens at a crash | `partition.rs`, `call.rs` |
//! | who reads what | `partitions.rs` |
//! | how the logs of services are watched | `services/` |
//! | what came of an action on a service | `windows/` |
//! | calls that never say anything | `starts.rs` |
//! | `esc observe FILE` | `offline.rs`, `stamps.rs` |

mod asking;
mod beats;
mod book;
mod call;
pub mod conclude;
mod config;
pub mod evidence;
pub mod findings;
pub mod lines;
mod literals;
mod losses;
mod meter;
mod miners;
pub mod offline;
pub mod packs;
mod partition;
mod partitions;
pub mod prefix;
mod records;
pub mod rules;
mod seen;
pub mod services;
mod signal;
mod stamps;
mod starts;
mod tell;
pub mod templates;
pub mod text;
pub mod timed;
pub mod windows;
mod withhold;

use bus::BusError;
use engine::EngineOptions;
use kernel::Role;
use service::{ConnectError, Ctx, ServeError};

pub use config::Config;

use asking::Adviser;
use book::RuleBook;
use call::Desk;
use partition::Means;
use partitions::{Held, Partitions};
use services::{LogMeans, alarm::Herald, watches::WatchBook};
use starts::Starts;
use tell::Teller;
use windows::{CallWindows, Closer, OpenWindows};

/// Why the observer could not start.
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

/// Runs an observer until it is told to stop.
///
/// # Errors
/// When it can't start. Once started, it outlives whatever its stores do.
pub async fn run(ctx: Ctx<Config>) -> Result<(), Error> {
    let config = &ctx.config;
    let engine = ctx
        .connect(EngineOptions { pool_size: config.pool_size.max(2), ..config.common.engine_options(Role::Observer) })
        .await?;
    let bus = engine.bus().clone();
    meter::announce();
    let held = Held::default();
    ctx.serve(config.common.listen, partitions_route(engine.options().instance.clone(), held.clone())).await?;

    // What is a task of its own must not outlive this: whoever is cut off says nothing more.
    let stop = ctx.shutdown.stopping().child_token();
    let _gone = stop.clone().drop_guard();
    let book = RuleBook::new(engine.agents(), config.limits());
    let desk = Desk::new(engine.clone(), book.clone());
    let teller = Teller::new(engine.clone(), ctx.tracer.clone());
    let starts = Starts {
        engine: engine.clone(),
        desk: desk.clone(),
        book,
        teller: teller.clone(),
        windows: CallWindows::new(engine.clone()),
    };
    let starts = starts.listen(&bus, stop.clone())?;
    let (bus_of_parts, engine_of_parts) = (bus.clone(), engine.clone());
    let checkpoint_every = config.checkpoint_every();
    let watches = WatchBook::new(engine.agents());
    let windows = OpenWindows::new(engine.actions(), watches.clone());
    let herald = Herald::new(bus.clone(), engine.externals(), engine.services());
    let tracer = ctx.tracer.clone();
    let closer = Closer::new(bus.clone(), engine.clone(), watches.clone(), herald.clone(), tracer, config.lease());
    let per_second = config.records_per_second;
    let logs = LogMeans { engine: engine.clone(), book: watches, windows: windows.clone(), herald, per_second };
    let adviser = Adviser::new(bus.clone(), config.opinion(), config.checks());
    let means = Means { bus: bus_of_parts, engine: engine_of_parts, desk, teller, adviser, logs, checkpoint_every };
    futures::join!(
        Partitions::new(means, config.lease(), held).run(stop.clone()),
        windows.follow(stop.clone()),
        closer.run(stop.clone()),
        starts.join()
    );
    engine.drain().await;
    bus.drain().await?;
    Ok(())
}

/// `GET /partitions`: which part of the signals this instance reads, for people who look for a stuck one.
fn partitions_route(instance: String, held: Held) -> axum::Router {
    let answer = move || {
        let answer = serde_json::json!({ "instance": instance, "partitions": held.numbers() });
        std::future::ready(axum::Json(answer))
    };
    axum::Router::new().route("/partitions", axum::routing::get(answer))
}
