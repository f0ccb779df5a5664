//! The metrics of the process, in Prometheus text format.
//!
//! Code reports through the [`metrics`](::metrics) facade (`metrics::counter!("planner_turns_total").increment(1)`).
//! Names begin with the service's name, or `esc_` for what the shared crates report; seconds and bytes are the units, at
//! the end of the name. One recorder serves the process: a metric that two services of one process could both report
//! carries the label `service`.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

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
/// How often samples are folded into their buckets, if nobody scrapes: else they would pile up.
const UPKEEP: Duration = Duration::from_secs(5);

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

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

/// All metrics of the process, in Prometheus text format 0.0.4.
pub fn render() -> String {
    handle().render() + &process()
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
        let buckets = |builder: PrometheusBuilder, suffix: &str, bounds: &[f64]| {
            builder.set_buckets_for_metric(Matcher::Suffix(suffix.to_owned()), bounds)
        };
        let recorder = buckets(PrometheusBuilder::new(), "_seconds", &SECONDS)
            .and_then(|builder| buckets(builder, "_size", &SIZES))
            .and_then(|builder| buckets(builder, "_token_usage", &TOKENS))
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
