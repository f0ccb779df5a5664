//! A service as a process: signals, the order of its end, exit codes.
//!
//! The processes are this test binary, started again with [`child`] as the only test.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get as get_route, post};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use service::config::{Common, ConfigError};
use service::{Ctx, Parent, SpanSpec, TraceContext};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::Notify;

use crate::collector::Collector;
use crate::http::{get, request};

const KIND: &str = "SERVICE_TEST_CHILD";
const DEADLINE: Duration = Duration::from_secs(60);
const RUN: [u8; 16] = [7; 16];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Not a test of its own: what the processes that the tests start do.
#[test]
fn child() {
    let Ok(kind) = std::env::var(KIND) else { return };
    let args: Vec<&str> = kind.split(' ').skip(1).collect();
    let code = match kind.split(' ').next() {
        Some("fails") => service::main_with("planner", args, fails),
        Some("misconfigured") => service::main_with("planner", args, misconfigured),
        Some("panics") => service::main_with("planner", args, panics),
        Some("returns") => service::main_with("planner", args, async |_: Ctx<Common>| Ok::<_, Failure>(())),
        _ => service::main_with("planner", args, works),
    };
    std::process::exit(code.into());
}

async fn fails(_: Ctx<Common>) -> Result<(), Failure> {
    Err("the disk is on fire".into())
}

async fn misconfigured(_: Ctx<Common>) -> Result<(), ConfigError> {
    let (key, origin, message) = ("agents_dir".into(), "the environment".into(), "not a folder".into());
    Err(ConfigError::Invalid { key, origin, message })
}

async fn panics(_: Ctx<Common>) -> Result<(), Failure> {
    panic!("out of cheese")
}

/// The settings of a process that waits long for the collector: no span is lost because the machine is busy.
#[derive(Clone, Default, Serialize)]
struct Patient(Common);

impl<'de> Deserialize<'de> for Patient {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Common { patience: Some(DEADLINE), ..Common::deserialize(deserializer)? }))
    }
}

impl AsRef<Common> for Patient {
    fn as_ref(&self) -> &Common {
        &self.0
    }
}

/// Takes up work at `POST /begin`, ends it at `POST /end`, and says at `GET /pulling` whether it would take more.
async fn works(ctx: Ctx<Patient>) -> Result<(), Failure> {
    let end = Arc::new(Notify::new());
    let begin = {
        let (ctx, end) = (ctx.clone(), Arc::clone(&end));
        move || async move {
            let (shutdown, tracer) = (ctx.shutdown.clone(), ctx.tracer.clone());
            shutdown.spawn(async move {
                let root = Parent::Root(TraceContext { trace_id: RUN, span_id: [1; 8], sampled: true });
                let span = tracer.span(SpanSpec::new("work", root));
                span.instrument(async {
                    end.notified().await;
                    tracing::info!("work has ended");
                })
                .await;
            });
        }
    };
    let pulling = {
        let stopping = ctx.shutdown.stopping();
        move || async move { (!stopping.is_cancelled()).to_string() }
    };
    let router = Router::new()
        .route("/begin", post(begin))
        .route("/end", post(async move || end.notify_one()))
        .route("/pulling", get_route(pulling));
    ctx.serve("127.0.0.1:0".parse()?, router).await?;
    ctx.shutdown.stopping().cancelled().await;
    tracing::info!("pulls no more");
    ctx.shutdown.spawn_background({
        let closing = ctx.shutdown.closing();
        async move {
            closing.cancelled().await;
            tracing::info!("closes");
        }
    });
    Ok(())
}

/// A process of the given kind, its log lines as they come.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    seen: Vec<String>,
}

impl Process {
    fn start(kind: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::child", "--nocapture", "--test-threads=1"])
            .env(KIND, kind)
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines, seen: Vec::new() }
    }

    /// The next line that contains `text`.
    async fn line(&mut self, text: &str) -> String {
        let next = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.seen.push(line.clone());
                if line.contains(text) {
                    return Some(line);
                }
            }
            None
        };
        let found = tokio::time::timeout(DEADLINE, next).await;
        match found {
            Ok(Some(line)) => line,
            other => panic!("{text:?} in {:#?} ({other:?})", self.seen),
        }
    }

    async fn addr(&mut self) -> SocketAddr {
        let line: Value = serde_json::from_str(&self.line("listening").await).unwrap();
        line["addr"].as_str().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().unwrap().cast_signed()), signal).unwrap();
    }

    /// The exit code, and every line.
    async fn ended(mut self) -> (i32, Vec<String>) {
        let lines = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.seen.push(line);
            }
        };
        tokio::time::timeout(DEADLINE, lines).await.expect("ends in time");
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await.unwrap().unwrap();
        (status.code().unwrap_or_default(), self.seen)
    }
}

#[tokio::test]
async fn sigterm_in_the_middle_of_work_ends_in_order() {
    let mut collector = Collector::start().await;
    let mut process = Process::start("works", &[("ESC_OTLP_ENDPOINT", &collector.endpoint)]);
    let addr = process.addr().await;
    assert_eq!(get(addr, "/readyz").await.0, 200);
    assert_eq!(get(addr, "/pulling").await.1, "true");
    request(addr, "POST", "/begin").await.unwrap();

    process.signal(Signal::SIGTERM);
    process.line("pulls no more").await;
    let (status, body) = get(addr, "/readyz").await;
    assert!(status == 503 && body.contains("draining"), "not ready, but still answering: {body}");
    assert_eq!(get(addr, "/healthz").await.0, 200);
    assert_eq!(get(addr, "/pulling").await.1, "false");

    request(addr, "POST", "/end").await.unwrap();
    let (code, lines) = process.ended().await;
    assert_eq!(code, 0, "{lines:#?}");
    let position = |text: &str| {
        let found = lines.iter().position(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text} in {lines:#?}"))
    };
    let order = ["draining", "pulls no more", "work has ended", "closes", "stopped"];
    assert!(order.map(position).is_sorted(), "{lines:#?}");
    assert_eq!(collector.spans(1).await["work"].span.trace_id, RUN, "flushed at the end");

    let line: Value = serde_json::from_str(&lines[position("work has ended")]).unwrap();
    assert_eq!(line["span"]["service"], "planner");
    assert_eq!(line["span"]["trace_id"], "07".repeat(16));
    assert_eq!(line["span"]["run_id"], "07070707-0707-0707-0707-070707070707");
    let line: Value = serde_json::from_str(&lines[position("pulls no more")]).unwrap();
    assert_eq!(line["span"]["service"], "planner", "outside of a run too");
}

#[tokio::test]
async fn work_beyond_the_deadline_is_cut_off() {
    let mut process = Process::start("works", &[("ESC_DRAIN_SECONDS", "1")]);
    let addr = process.addr().await;
    request(addr, "POST", "/begin").await.unwrap();
    let begun = Instant::now();
    process.signal(Signal::SIGINT);
    let (code, lines) = process.ended().await;
    assert_eq!(code, 75, "{lines:#?}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(lines.iter().any(|line| line.contains("drain deadline")), "{lines:#?}");
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut process = Process::start("works", &[("ESC_DRAIN_SECONDS", "3600")]);
    let addr = process.addr().await;
    request(addr, "POST", "/begin").await.unwrap();
    process.signal(Signal::SIGTERM);
    process.line("pulls no more").await;
    process.signal(Signal::SIGTERM);
    assert_eq!(process.ended().await.0, 75);
}

#[tokio::test]
async fn the_exit_code_says_what_happened() {
    for (kind, env, expected, said) in [
        ("returns", &[][..], 0, "stopped"),
        ("fails", &[], 1, "the disk is on fire"),
        ("panics", &[], 1, "out of cheese"),
        ("misconfigured", &[], 64, "not a folder"),
        ("works", &[("ESC_LISTEN", "nowhere")], 64, "ESC_LISTEN"),
        ("works --unheard-of", &[], 64, "--unheard-of"),
        ("works --print-config", &[], 0, ""),
    ] {
        let (code, lines) = Process::start(kind, env).ended().await;
        assert_eq!(code, expected, "{kind}: {lines:#?}");
        assert!(said.is_empty() || lines.iter().any(|line| line.contains(said)), "{kind}: {lines:#?}");
    }
}

#[tokio::test]
async fn a_dropped_service_is_cut_off_like_a_crash() {
    let common = Common { drain_seconds: 3600, ..Common::default() };
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let running = service::spawn("planner", common, async move |_| {
        let _held = sender;
        std::future::pending::<Result<(), Failure>>().await
    })
    .unwrap();
    let stopping = running.shutdown().stopping();
    drop(running);
    let ended = tokio::time::timeout(DEADLINE, receiver).await.expect("cut off");
    assert!(ended.is_err(), "its work was dropped, not finished");
    // What goes on in tasks of its own, such as a consumer, hears of it by this.
    assert!(stopping.is_cancelled(), "it takes nothing new");
}
