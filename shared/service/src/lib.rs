//! What every Escapement process needs besides its own work: configuration in layers, its connections, traces and logs,
//! health and metrics over HTTP, and an ordered end.
//!
//! A service crate offers `pub async fn run(ctx: Ctx<Config>) -> Result<(), E>`, and its `main` is
//! `service::main("planner", planner::run)`. The same `run` starts several times in one process with configurations
//! built in code ([`spawn`]): that is how `esc dev` and the tests do it.
//!
//! Two things are per process because the facades behind them are: the log subscriber ([`tracing`]) and the metrics
//! recorder ([`metrics`]). Both are installed once, by whoever comes first; log lines carry the field `service`, and a
//! metric that two services of one process could both report carries the label `service`. Traces are per service.

/// Most of what a service does is to take messages and states apart and to put them together again, on several threads. The
/// system's allocator took a quarter of a loaded service's time for that; this one takes less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub mod causes;
pub mod config;
mod connect;
pub mod health;
pub mod http;
pub mod metrics;
pub mod process;
pub mod shutdown;
pub mod telemetry;
pub mod testing;
mod tls;

pub use causes::chain;
pub use config::{Common, ConfigError, Secret, load};
pub use connect::ConnectError;
pub use health::Health;
pub use http::{HttpServer, ServeError, http_server};
pub use process::{Ctx, RunError, Running, main, main_with, raise_open_files, spawn};
pub use shutdown::{Drained, InFlight, Shutdown};
pub use telemetry::{Link, Parent, Span, SpanSpec, Telemetry, TraceContext, Tracer};

/// Exit code of a run that ended as asked.
pub const EX_OK: u8 = 0;
/// Exit code of a service that failed; the last log line says why.
pub const EX_FAILURE: u8 = 1;
/// Exit code of bad configuration or bad flags (`EX_USAGE` of `sysexits.h`); stderr says which and how to mend it.
pub const EX_USAGE: u8 = 64;
/// Exit code of an end that cut work off: the drain deadline passed or a second signal came (`EX_TEMPFAIL`). Nothing is
/// lost, what was in flight is delivered again.
pub const EX_TEMPFAIL: u8 = 75;
