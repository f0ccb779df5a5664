//! The metrics of the process, in Prometheus text format or as OpenMetrics.
//!
//! Code reports through the [`metrics`](::metrics) facade (`metrics::counter!("planner_turns_total").increment(1)`).
//! Names begin with the service's name, or `esc_` for what the shared crates report; seconds and bytes are the units, at
//! the end of the name. One recorder serves the process: a metric that two services of one process could both report
//! carries the label `service`.

mod exemplars;

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::exemplars::Exemplars;
use crate::telemetry::TraceContext;

/// Upper bounds of `*_seconds` histograms.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Upper bounds of histograms that count things (`*_size`).
const SIZES: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// Upper bounds of counts of tokens, as the conventions for generative AI advise.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// The bounds of histograms whose names end so.
const BOUNDS: [(&str, &[f64]); 3] = [("_seconds", &SECONDS), ("_size", &SIZES), ("_token_usage", &TOKENS)];
/// How often samples are folded into their buckets, if nobody scrapes: else they would pile up.
const UPKEEP: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
static EXEMPLARS: LazyLock<Exemplars> = LazyLock::new(Exemplars::default);

/// Installs the recorder, once per process, and announces `service` by the gauge `esc_build_info`.
pub fn install(service: &str) {
    handle();
    ::metrics::gauge!("esc_build_info", "service" => service.to_owned(), "version" => env!("CARGO_PKG_VERSION"))
        .set(1.0);
}

/// Shows a counter from now on, at nothing unless it has counted already: one that first shows with its first failure looks to
/// whoever asks for its increase as if it had always been there.
pub fn announce(counter: &::metrics::Counter) {
    counter.increment(0);
}

/// Says which trace a sample of a histogram came from, beside recording it: it is shown with its bucket until another one falls
/// into that. Nothing for a trace that is not sampled, or a histogram without buckets.
pub fn exemplar(name: &'static str, labels: &[(&'static str, String)], value: f64, trace: TraceContext) {
    let bounds = BOUNDS.iter().find(|(suffix, _)| name.ends_with(suffix));
    if let (Some((_, bounds)), true) = (bounds, trace.sampled) {
        EXEMPLARS.keep(name, labels, bounds, value, trace);
    }
}

/// All metrics of the process, in Prometheus text format 0.0.4.
pub fn render() -> String {
    handle().render() + &process()
}

/// The same as OpenMetrics 1.0, with exemplars, for which the text format has no place.
pub fn render_open() -> String {
    EXEMPLARS.open_metrics(&render())
}

/// Keeps the recorder's memory bounded as long as it runs.
pub(crate) async fn upkeep() {
    let mut every = tokio::time::interval(UPKEEP);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        handle().run_upkeep();
    }
}

fn handle() -> &'static PrometheusHandle {
    RECORDER.get_or_init(|| {
        let recorder = BOUNDS
            .iter()
            .try_fold(PrometheusBuilder::new(), |builder, (suffix, bounds)| {
                builder.set_buckets_for_metric(Matcher::Suffix((*suffix).to_owned()), bounds)
            })
            .unwrap_or_default()
            .build_recorder();
        let handle = recorder.handle();
        if ::metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed in this process: /metrics stays empty");
        }
        handle
    })
}

/// What the kernel knows about the process, under the names that Prometheus clients use; empty where there is no `/proc`.
fn process() -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, value: f64| text += &format!("# TYPE {name} {kind}\n{name} {value}\n\n");
    // Fields are counted after the command's name, which may hold spaces: utime and stime are the 12th and 13th.
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
        // Linux reports clock ticks of 1/100 s and pages of 4 KiB on every platform that we build for.
        if let (Some(user), Some(system), Some(threads), Some(pages)) = (number(11), number(12), number(17), number(21))
        {
            add("process_cpu_seconds_total", "counter", (user + system) / 100.0);
            add("process_threads", "gauge", threads);
            add("process_resident_memory_bytes", "gauge", pages * 4096.0);
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        add("process_open_fds", "gauge", open.count() as f64);
    }
    if let Ok((most, _)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE) {
        add("process_max_fds", "gauge", most as f64);
    }
    text
}
