//! From `main` to the exit code.

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::causes::chain;
use crate::config::{Common, ConfigError, Settings};
use crate::health::Health;
use crate::http::{ServeError, http_server};
use crate::shutdown::{Drained, KillOnDrop, Shutdown};
use crate::telemetry::{Telemetry, TelemetryError, Tracer};
use crate::{EX_FAILURE, EX_OK, EX_TEMPFAIL, EX_USAGE, metrics, tls};

/// What telemetry gets for its flush at the least, when the drain took all the time there was.
const FLUSH_AT_LEAST: Duration = Duration::from_secs(1);
/// How long blocking calls may hold the process after everything else has ended.
const RUNTIME_END: Duration = Duration::from_secs(1);

/// What a service's `run` is given: its configuration and the four things every process has.
#[derive(Clone, Debug)]
pub struct Ctx<C> {
    /// Name of the service, as in [`SERVICES`](crate::config::SERVICES).
    pub name: &'static str,
    /// The service's configuration.
    pub config: Arc<C>,
    /// When to stop.
    pub shutdown: Shutdown,
    /// What to say to `/readyz`.
    pub health: Health,
    /// Makes the service's spans.
    pub tracer: Tracer,
    listening: watch::Sender<Option<SocketAddr>>,
}

/// A service that was started by [`spawn`]. Dropping it cuts the service off at once, as a crash would.
#[derive(Debug)]
pub struct Running {
    name: &'static str,
    health: Health,
    shutdown: Shutdown,
    telemetry: Telemetry,
    listening: watch::Receiver<Option<SocketAddr>>,
    task: JoinHandle<Option<Result<(), RunError>>>,
    ended: CancellationToken,
    _kill: KillOnDrop,
}

/// How a service failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// `run` returned an error.
    #[error("{}", chain(&**.0))]
    Failed(#[source] Box<dyn Error + Send + Sync>),
    /// `run` panicked.
    #[error("panicked: {0}")]
    Panicked(String),
}

impl RunError {
    /// Whether the configuration is to blame: `run` returned a [`ConfigError`], or an error that one caused.
    pub fn is_config(&self) -> bool {
        std::iter::successors(self.source(), |error| (*error).source()).any(|error| error.is::<ConfigError>())
    }
}

impl<C: AsRef<Common>> Ctx<C> {
    /// Serves `router`, and health and metrics beside it, on `listen`, by TLS if there is a certificate, until everything in
    /// flight has ended. The address
    /// is logged, known to [`Running::listening`], and returned with the port that was taken.
    pub async fn serve(&self, listen: SocketAddr, router: Router) -> Result<SocketAddr, ServeError> {
        let common = (*self.config).as_ref();
        let tls = tls::acceptor(&common.tls_certificate, &common.tls_key)?;
        let server = http_server(listen, router.merge(self.health.router()), tls, self.shutdown.closing()).await?;
        let addr = server.addr();
        self.shutdown.spawn_background(server.finished());
        tracing::info!(service = self.name, %addr, "listening");
        self.listening.send_replace(Some(addr));
        Ok(addr)
    }
}

/// Starts `run` in this process with a configuration built in code. Several can run side by side, also of one service.
pub fn spawn<C, F, Fut, E>(name: &'static str, config: C, run: F) -> Result<Running, TelemetryError>
where
    C: AsRef<Common>,
    F: FnOnce(Ctx<C>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    let common = config.as_ref();
    let telemetry = Telemetry::init(name, common)?;
    metrics::install(name);
    let shutdown = Shutdown::new(common.drain());
    let health = Health::new(name, shutdown.draining());
    let (sender, listening) = watch::channel(None);
    let ctx = Ctx {
        name,
        config: Arc::new(config),
        shutdown: shutdown.clone(),
        health: health.clone(),
        tracer: telemetry.tracer(),
        listening: sender,
    };
    // In a box: a service is large, and each layer around it would have room for another on the stack that it is polled on.
    let work = Box::pin(run(ctx));
    let ended = CancellationToken::new();
    let end = ended.clone().drop_guard();
    let work = async move {
        let _end = end;
        work.await.map_err(|error| RunError::Failed(error.into()))
    };
    // Lines outside of any span of a run still say whose they are.
    let task = shutdown.spawn(work.instrument(tracing::error_span!("service", service = name)));
    let closing = shutdown.closing();
    shutdown.spawn_background(async move { closing.run_until_cancelled_owned(metrics::upkeep()).await });
    let _kill = shutdown.kill_on_drop();
    Ok(Running { name, health, shutdown, telemetry, listening, task, ended, _kill })
}

impl Running {
    /// Name of the service.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its health, to ask for readiness.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Its end.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Where it listens, as soon as it does; `None` if it ended before.
    pub async fn listening(&mut self) -> Option<SocketAddr> {
        self.listening.wait_for(Option::is_some).await.ok().and_then(|addr| *addr)
    }

    /// Comes back when `run` has returned or was cut off; [`Running::stop`] says with what.
    pub async fn finished(&self) {
        self.ended.cancelled().await;
    }

    /// Ends it in order, flushes its telemetry, and says how it went. At once, if `run` has returned already.
    pub async fn stop(self) -> Result<Drained, RunError> {
        let drained = self.shutdown.drain().await;
        let result = match self.task.await {
            Ok(Some(result)) => result,
            Ok(None) => Ok(()),
            Err(error) => Err(RunError::Panicked(panic_message(error))),
        };
        let rest = self.shutdown.remaining().max(FLUSH_AT_LEAST);
        self.telemetry.shutdown(rest).await;
        result.map(|()| drained)
    }
}

/// Raises the soft limit of open files of this process to the hard one, and says what it is then: the soft one is often 1024, for the
/// sake of programs that use `select`, and each connection takes one.
///
/// # Errors
/// When the system refuses, which it does to nobody who stays within the hard limit.
pub fn raise_open_files() -> std::io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The whole `main` of a service:
///
/// ```no_run
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Default, Serialize, Deserialize)]
/// # struct Config { #[serde(flatten)] common: service::Common }
/// # impl AsRef<service::Common> for Config { fn as_ref(&self) -> &service::Common { &self.common } }
/// # mod planner { pub async fn run(_: service::Ctx<super::Config>) -> Result<(), std::io::Error> { Ok(()) } }
/// fn main() -> std::process::ExitCode {
///     service::main("planner", planner::run)
/// }
/// ```
///
/// Reads the configuration, starts the runtime, telemetry and `run`, waits for its end, SIGTERM or SIGINT, and drains.
/// A second signal ends the process at once. The exit code is one of the `EX_` constants of this crate.
pub fn main<C, F, Fut, E>(name: &'static str, run: F) -> ExitCode
where
    C: AsRef<Common> + DeserializeOwned + Default + Serialize,
    F: FnOnce(Ctx<C>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    main_with(name, std::env::args_os().skip(1), run).into()
}

/// As [`main`], with the arguments after the program's name given, and the exit code as a number.
pub fn main_with<C, F, Fut, E>(name: &'static str, args: impl IntoIterator<Item = impl Into<OsString>>, run: F) -> u8
where
    C: AsRef<Common> + DeserializeOwned + Default + Serialize,
    F: FnOnce(Ctx<C>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    let config = match Settings::<C>::load(name, args, std::env::vars_os()) {
        Ok(settings) => settings.value,
        Err(error) => {
            let code = error.exit_code();
            say(&error, code == EX_OK);
            return code;
        }
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(match config.as_ref().worker_threads {
        0 => std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1)),
        threads => threads,
    });
    let runtime = match builder.enable_all().thread_name(name).build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format_args!("can't start the async runtime: {error}"), false);
            return EX_FAILURE;
        }
    };
    let code = runtime.block_on(supervise(name, config, run));
    runtime.shutdown_timeout(RUNTIME_END);
    code
}

/// Runs the service to its end and gives the exit code.
async fn supervise<C, F, Fut, E>(name: &'static str, config: C, run: F) -> u8
where
    C: AsRef<Common>,
    F: FnOnce(Ctx<C>) -> Fut,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            say(&format_args!("can't listen to signals: {error}"), false);
            return EX_FAILURE;
        }
    };
    let running = match spawn(name, config, run) {
        Ok(running) => running,
        Err(error) => {
            say(&error, false);
            return EX_USAGE;
        }
    };
    tracing::info!(service = name, version = env!("CARGO_PKG_VERSION"), "started");
    tokio::select! {
        () = running.finished() => {}
        signal = signals.next() => tracing::info!(service = name, signal, "draining"),
    }
    tokio::select! {
        ended = running.stop() => report(name, ended),
        signal = signals.next() => {
            tracing::warn!(service = name, signal, "second signal: ending at once");
            // Not by returning: what is still running must not be waited for.
            std::process::exit(EX_TEMPFAIL.into());
        }
    }
}

fn report(name: &str, ended: Result<Drained, RunError>) -> u8 {
    match ended {
        Ok(Drained::Clean) => {
            tracing::info!(service = name, "stopped");
            EX_OK
        }
        Ok(Drained::Overdue) => {
            tracing::warn!(service = name, "stopped at the drain deadline; what was in flight is delivered again");
            EX_TEMPFAIL
        }
        Err(error) => {
            tracing::error!(service = name, %error, "failed");
            if error.is_config() { EX_USAGE } else { EX_FAILURE }
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Tells whoever started the process, before there are log lines or instead of them. If that can't be done, there is nobody
/// to tell.
fn say(text: &dyn std::fmt::Display, asked_for: bool) {
    let text = text.to_string();
    let text = text.trim_end();
    let _ = if asked_for { writeln!(std::io::stdout(), "{text}") } else { writeln!(std::io::stderr(), "{text}") };
}

fn panic_message(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned()),
        Err(error) => error.to_string(),
    }
}
