//! A build with very many lines and one failure, through a real observer on one core; and how far that is from the limits.

mod alone;
mod build;

use std::{
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kernel::{RunId, TenantId, call::Observation, event::EventData};
use serde_json::{Value, json};

use crate::{processes, stats::hundredth, target::Error};
use build::World;

/// How long the observer may take to be there, and to conclude.
const START: Duration = Duration::from_secs(60);
const CONCLUDE: Duration = Duration::from_secs(600);
/// How often it is asked how far it is.
const LOOK: Duration = Duration::from_millis(5);

/// How large a build.
#[derive(clap::Args)]
pub struct Options {
    /// Lines of output, of 120 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    lines: u64,
    /// The core that the observer is bound to (with `taskset`, if there is one).
    #[arg(long, default_value_t = 0)]
    core: u32,
    /// The observer; the one beside this program unless given.
    #[arg(long)]
    observer: Option<PathBuf>,
    #[command(flatten)]
    stores: build::Stores,
}

/// Publishes the build, lets the observer read it, and measures the parts of its work by themselves.
pub async fn measure(options: &Options) -> Result<Value, Error> {
    let world = World::open(&options.stores).await?;
    let frames = build::frames(options.lines);
    let published = Instant::now();
    world.publish(&frames).await?;
    let published = published.elapsed();
    let alone = alone::measure(&world, &frames, options.lines).await?;
    let read = observe(options, &world).await?;
    let observations = world.observations().await?;
    let violations = violations(options, &observations);
    let evidence = observations.last().and_then(|last| last.evidence.first());
    let figures = json!({
        "scenario": "observer",
        "lines": options.lines,
        "bytes": frames.iter().map(|frame| frame.len()).sum::<usize>(),
        "frames": frames.len(),
        "published_lines_per_s": rate(options.lines, published),
        "observer": read,
        "alone": alone,
        "observations": observations.len(),
        "wakes": wakes(&observations),
        "evidence": evidence.map(|evidence| json!({ "line": evidence.line, "rule": evidence.rule })),
        "violations": violations,
    });
    world.close().await?;
    Ok(figures)
}

/// Lets a real observer read it, and says how fast it did and what it took.
async fn observe(options: &Options, world: &World) -> Result<Value, Error> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut observer = Observer(start(options, world, port)?);
    let metrics = format!("http://127.0.0.1:{port}/metrics");
    let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
    let began = Instant::now();
    let (first, idle_cpu) = loop {
        if let Some(status) = observer.0.try_wait()? {
            return Err(format!("the observer ended ({status})").into());
        }
        if began.elapsed() > START {
            return Err("the observer has read nothing within a minute".into());
        }
        let cpu = processes::cpu_seconds(observer.0.id()).unwrap_or_default();
        if lines_read(&client, &metrics).await > 0 {
            break (Instant::now(), cpu);
        }
        tokio::time::sleep(LOOK).await;
    };
    while !world.is_concluded().await? {
        if first.elapsed() > CONCLUDE {
            return Err("the observer has not concluded within ten minutes".into());
        }
        tokio::time::sleep(LOOK).await;
    }
    let (took, cpu) = (first.elapsed(), processes::cpu_seconds(observer.0.id()).unwrap_or_default() - idle_cpu);
    Ok(json!({
        "lines_per_s": rate(options.lines, took),
        "lines_per_cpu_s": hundredth(options.lines as f64 / cpu.max(0.01)),
        "cpu_percent": hundredth(100.0 * cpu / took.as_secs_f64().max(0.001)),
        "concluded_after_s": hundredth(took.as_secs_f64()),
        "memory_peak_mib": processes::memory_peak_mib(observer.0.id()).map(hundredth),
    }))
}

/// The observer's process; dropping it ends it.
struct Observer(Child);

impl Drop for Observer {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for, so that nothing is left.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(options: &Options, world: &World, port: u16) -> Result<Child, Error> {
    let program = match &options.observer {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("observer"),
    };
    let mut command = if on_path("taskset") {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(options.core.to_string()).arg(&program);
        command
    } else {
        Command::new(&program)
    };
    world.environment(&mut command);
    command.env("ESC_LISTEN", format!("127.0.0.1:{port}")).env("ESC_LOG", "warn").stdout(Stdio::null());
    command.spawn().map_err(|error| format!("can't start {}: {error}", program.display()).into())
}

fn on_path(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// What the observer says it has read.
async fn lines_read(client: &reqwest::Client, url: &str) -> u64 {
    let Ok(answer) = client.get(url).send().await else { return 0 };
    let text = answer.text().await.unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("observer_lines_total"));
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).map_or(0, |lines| lines as u64)
}

/// What must hold of such a build: nothing missed, nothing told twice, the cause shown.
fn violations(options: &Options, observations: &[Observation]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            violations.push(what);
        }
    };
    let ends = observations.iter().filter(|observation| observation.phase == "failed").count();
    must(ends == 1, format!("concluded {ends} times"));
    must(wakes(observations) <= 3, format!("{} wakes", wakes(observations)));
    let lines = observations.last().map_or(0, |last| last.counts.lines);
    must(lines == options.lines, format!("{lines} of {} lines were seen", options.lines));
    let gaps: u64 = observations.last().map_or(0, |last| last.counts.gap_bytes);
    must(gaps == 0, format!("{gaps} bytes were lost"));
    let shown = observations.iter().flat_map(|observation| &observation.evidence);
    let wanted = build::failing_line(options.lines);
    let holds = shown.into_iter().any(|evidence| {
        let lines = evidence.line..evidence.line + evidence.excerpt.lines().count() as u64;
        lines.contains(&(wanted + 1)) && evidence.excerpt.contains(build::FAILURE)
    });
    must(holds, "the failure is not in the evidence".to_owned());
    violations
}

fn wakes(observations: &[Observation]) -> usize {
    observations.iter().filter(|observation| observation.decision.is_some()).count()
}

fn rate(lines: u64, took: Duration) -> f64 {
    (lines as f64 / took.as_secs_f64().max(1e-9)).round()
}

/// The observations of a run, as the log has them.
async fn recorded(engine: &engine::Engine, run: RunId) -> Result<Vec<Observation>, Error> {
    let events = engine.reads().events(&TenantId::default(), run, 0, engine::MAX_ROWS).await?;
    let mut observations = Vec::new();
    for event in events.iter().filter(|event| event.event_type == "observation.recorded") {
        if let EventData::ObservationRecorded(recorded) = event.decode()?.data {
            observations.push(recorded.observation);
        }
    }
    Ok(observations)
}
