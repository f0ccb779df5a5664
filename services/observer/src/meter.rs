//! What waking costs and saves, as metrics: signals in, observations out.

use kernel::{Timestamp, call::Observation, opinion::SecondOpinion};

/// Shows from the start on that nothing is missing.
pub(crate) fn announce() {
    service::metrics::announce(&metrics::counter!("observer_gap_bytes_total"));
    for why in ["dropped", "throttled"] {
        service::metrics::announce(&metrics::counter!("observer_gap_signals_total", "why" => why));
    }
}

/// A batch of signals was read.
pub(crate) fn signals(frames: u64, lines: u64, bytes: u64) {
    metrics::counter!("observer_frames_total").increment(frames);
    metrics::counter!("observer_lines_total").increment(lines);
    metrics::counter!("observer_bytes_total").increment(bytes);
}

/// Records of services were read.
pub(crate) fn records(records: u64, bytes: u64) {
    metrics::counter!("observer_records_total").increment(records);
    metrics::counter!("observer_record_bytes_total").increment(bytes);
}

/// Services that this instance watches, in one partition.
pub(crate) fn services(partition: u8, watched: usize) {
    metrics::gauge!("observer_watched_services", "partition" => partition.to_string()).set(watched as f64);
}

/// A service is not well, or well again; `wakes`: a run is started for it.
pub(crate) fn alarm(state: &'static str, wakes: bool) {
    metrics::counter!("observer_alarms_total", "state" => state).increment(1);
    if wakes && state == "firing" {
        metrics::counter!("observer_wakes_total").increment(1);
    }
}

/// Lines of services that would have been told of, had that not been told already or passed by itself.
pub(crate) fn folded(lines: u64) {
    metrics::counter!("observer_suppressed_total").increment(lines);
}

/// There is a conclusion about an action.
pub(crate) fn concluded(outcome: &'static str, opened_at: Timestamp) {
    metrics::counter!("observer_actions_total", "outcome" => outcome).increment(1);
    let seconds = Timestamp::now().duration_since(opened_at).as_secs_f64();
    metrics::histogram!("observer_action_seconds").record(seconds.max(0.0));
}

/// A message was passed over.
pub(crate) fn passed_over(why: &'static str) {
    metrics::counter!("observer_passed_over_total", "why" => why).increment(1);
}

/// An observation is in the log.
pub(crate) fn observed(observation: &Observation, is_end: bool) {
    let phase = match observation.phase.as_str() {
        "progress" => "progress",
        "failure" => "failure",
        "silence" => "silence",
        "threshold" => "threshold",
        "stage" => "stage",
        "heartbeat" => "heartbeat",
        "burst" => "burst",
        "completed" => "completed",
        "failed" => "failed",
        _ => "other",
    };
    metrics::counter!("observer_observations_total", "phase" => phase).increment(1);
    if observation.decision.is_some() {
        metrics::counter!("observer_wakes_total").increment(1);
    }
    if is_end {
        let counts = observation.counts;
        metrics::counter!("observer_suppressed_total").increment(counts.suppressed);
        metrics::counter!("observer_gap_bytes_total").increment(counts.gap_bytes);
        let told: usize = observation.evidence.iter().map(|evidence| evidence.excerpt.len()).sum();
        // Bytes read for each byte that the model is shown.
        metrics::histogram!("observer_compression_ratio")
            .record(counts.bytes as f64 / (told + observation.changed.len()).max(1) as f64);
    }
}

/// A model was asked for a second opinion.
pub(crate) fn asked(opinion: &SecondOpinion) {
    let outcome = match opinion.said {
        Some(said) if said.decision_needed => "decision",
        Some(said) if said.anomaly => "anomaly",
        Some(_) => "nothing",
        None => "none",
    };
    metrics::counter!("observer_opinions_total", "outcome" => outcome).increment(1);
}

/// The operator's checks were asked whether a model may be told how an activity ended.
pub(crate) fn checked(is_withheld: bool) {
    let outcome = if is_withheld { "withheld" } else { "told" };
    metrics::counter!("observer_checked_total", "outcome" => outcome).increment(1);
}

/// An observation came too late: its call or run has ended.
pub(crate) fn refused(code: &'static str) {
    metrics::counter!("observer_refused_total", "code" => code).increment(1);
}

/// Partitions that this instance reads.
pub(crate) fn partitions(held: usize) {
    metrics::gauge!("observer_partitions").set(held as f64);
}

/// Calls that this instance watches, in one partition.
pub(crate) fn calls(partition: u8, open: usize) {
    metrics::gauge!("observer_open_calls", "partition" => partition.to_string()).set(open as f64);
}
