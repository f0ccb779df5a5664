//! Exemplars: of each bucket of a histogram the trace of the last sample that fell into it, for whoever sees a peak and wants to
//! see one of those.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::telemetry::{Hex, TraceContext};

/// The exemplars of a process. As many as its histograms have buckets, so as bounded as their labels are.
#[derive(Default)]
pub(super) struct Exemplars {
    of: Mutex<HashMap<Series, Vec<(Bound, Exemplar)>>>,
}

/// The name of a histogram and its labels as text, in order.
type Series = (String, Vec<String>);
/// The upper bound of a bucket, by its bits; infinity for the last.
type Bound = u64;

#[derive(Clone, Copy)]
struct Exemplar {
    value: f64,
    at: SystemTime,
    trace: TraceContext,
}

impl Exemplars {
    /// Keeps a sample as that of its bucket.
    pub(super) fn keep(
        &self,
        name: &str,
        labels: &[(&'static str, String)],
        bounds: &[f64],
        value: f64,
        trace: TraceContext,
    ) {
        let bound = bounds.iter().copied().find(|bound| value <= *bound).unwrap_or(f64::INFINITY).to_bits();
        let mut texts: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        texts.sort_unstable();
        let exemplar = Exemplar { value, at: SystemTime::now(), trace };
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets = of.entry((name.to_owned(), texts)).or_default();
        match buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, kept)) => *kept = exemplar,
            None => buckets.push((bound, exemplar)),
        }
    }

    /// The text format 0.0.4 of Prometheus as OpenMetrics 1.0, with the exemplars.
    pub(super) fn open_metrics(&self, text: &str) -> String {
        let mut open = String::with_capacity(text.len() + text.len() / 8);
        for line in text.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix('#') {
                Some(said) => open += &described(said),
                None => self.add_sample(&mut open, line),
            }
            open.push('\n');
        }
        open += "# EOF\n";
        open
    }

    fn add_sample(&self, open: &mut String, line: &str) {
        let Some((name, labels, value)) = parts(line) else {
            *open += line;
            return;
        };
        let labels: Vec<String> = labels.iter().map(|label| canonical(label)).collect();
        let _ = write!(open, "{name}{{{}}} {value}", labels.join(","));
        if let Some(exemplar) = name.strip_suffix("_bucket").and_then(|name| self.of_bucket(name, labels)) {
            let Exemplar { value, at, trace } = exemplar;
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let (trace, span) = (Hex(&trace.trace_id), Hex(&trace.span_id));
            let _ = write!(open, " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {value} {at:.3}");
        }
    }

    fn of_bucket(&self, name: &str, mut labels: Vec<String>) -> Option<Exemplar> {
        let place = labels.iter().position(|label| label.starts_with("le="))?;
        let bound: f64 = labels.swap_remove(place).strip_prefix("le=")?.trim_matches('"').parse().ok()?;
        labels.sort_unstable();
        let of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let buckets = of.get(&(name.to_owned(), labels))?;
        buckets.iter().find(|(known, _)| *known == bound.to_bits()).map(|(_, exemplar)| *exemplar)
    }
}

/// A comment line: the family of a counter has its name without the `_total` of its samples.
fn described(said: &str) -> String {
    match said.strip_suffix(" counter").map(|family| (family, family.strip_suffix("_total"))) {
        Some((_, Some(family))) => format!("#{family} counter"),
        Some((family, None)) => format!("#{family} unknown"),
        None => format!("#{said}"),
    }
}

/// A sample with labels: its name, each of them, and its value.
fn parts(line: &str) -> Option<(&str, Vec<&str>, &str)> {
    let (name, rest) = line.split_once('{')?;
    let (mut labels, mut from) = (Vec::new(), 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' | '}' if !quoted => {
                labels.push(&rest[from..at]);
                from = at + 1;
                if c == '}' {
                    return Some((name, labels, rest[from..].trim()));
                }
            }
            _ => {}
        }
    }
    None
}

/// A bound or a quantile is a float for OpenMetrics, and so has a point.
fn canonical(label: &str) -> String {
    let number = ["le=\"", "quantile=\""].iter().find_map(|key| label.strip_prefix(key)?.strip_suffix('"'));
    match number {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{}.0\"", &label[..label.len() - 1])
        }
        _ => label.to_owned(),
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: TraceContext = TraceContext { trace_id: [0xab; 16], span_id: [0xcd; 8], sampled: true };

    #[test]
    fn a_bucket_shows_the_last_sample_that_fell_into_it() {
        let exemplars = Exemplars::default();
        let labels = [("tool", r#"a "b", {c}"#.to_owned()), ("outcome", "done".to_owned())];
        for value in [0.7, 3.0, 0.9, 7.5] {
            exemplars.keep("x_seconds", &labels, &[1.0, 5.0], value, TRACE);
        }
        let text = "# TYPE x_seconds histogram\n\
                    x_seconds_bucket{outcome=\"done\",tool=\"a \\\"b\\\", {c}\",le=\"1\"} 2\n\
                    x_seconds_bucket{outcome=\"done\",tool=\"a \\\"b\\\", {c}\",le=\"+Inf\"} 4\n\
                    x_seconds_bucket{outcome=\"failed\",le=\"1\"} 1\n\
                    x_seconds_sum{outcome=\"done\"} 12.1\n";
        let open = exemplars.open_metrics(text);
        let lines: Vec<_> = open.lines().collect();
        let ids = format!("{{trace_id=\"{}\",span_id=\"{}\"}}", "ab".repeat(16), "cd".repeat(8));
        assert!(lines[1].contains(&format!(",le=\"1.0\"}} 2 # {ids} 0.9 ")), "{open}");
        assert!(lines[2].contains(&format!(",le=\"+Inf\"}} 4 # {ids} 7.5 ")), "{open}");
        assert_eq!(
            lines[3..],
            ["x_seconds_bucket{outcome=\"failed\",le=\"1.0\"} 1", "x_seconds_sum{outcome=\"done\"} 12.1", "# EOF"]
        );
    }

    #[test]
    fn families_of_counters_have_no_suffix_and_nothing_is_blank() {
        let text = "# TYPE x_total counter\nx_total 1\n\n# TYPE y counter\ny{a=\"}\"} 2\n\n# TYPE z summary\nz{quantile=\"0.5\"} 1\nz{quantile=\"1\"} 1\n";
        let open = Exemplars::default().open_metrics(text);
        assert_eq!(
            open,
            "# TYPE x counter\nx_total 1\n# TYPE y unknown\ny{a=\"}\"} 2\n# TYPE z summary\nz{quantile=\"0.5\"} 1\nz{quantile=\"1.0\"} 1\n# EOF\n"
        );
    }
}
