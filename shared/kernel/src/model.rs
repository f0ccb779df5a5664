//! What became of calls to models that gave nothing usable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most failures that are kept of one turn.
pub const MAX_FAILURES: usize = 16;

/// A call to a model that gave nothing usable, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelFailure {
    /// `provider:model`.
    pub model: String,
    /// What went wrong, as a stable word such as `rate_limited`, `timed_out`, `refused`, `malformed_arguments`.
    pub kind: String,
    /// What was done: `retried`, `next_model`, `asked_again`, `put_off` or `gave_up`.
    pub rule: String,
    /// The beginning of what was said about it.
    pub message: String,
    /// How often in a row.
    pub times: u32,
}

/// Adds a failure: one like the last raises its count, and of too many the last are counted only.
pub fn note(failures: &mut Vec<ModelFailure>, failure: ModelFailure) {
    let full = failures.len() >= MAX_FAILURES;
    match failures.last_mut() {
        Some(last)
            if full || (last.model == failure.model && last.kind == failure.kind && last.rule == failure.rule) =>
        {
            last.times = last.times.saturating_add(failure.times);
        }
        _ => failures.push(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(model: &str, kind: &str) -> ModelFailure {
        ModelFailure {
            model: model.into(),
            kind: kind.into(),
            rule: "retried".into(),
            message: String::new(),
            times: 1,
        }
    }

    #[test]
    fn the_same_in_a_row_is_counted_and_there_are_never_too_many() {
        let mut failures = Vec::new();
        for kind in ["busy", "busy", "late"] {
            note(&mut failures, failure("a:b", kind));
        }
        assert_eq!(failures.iter().map(|failure| failure.times).collect::<Vec<_>>(), [2, 1]);
        for number in 0..50 {
            note(&mut failures, failure("a:b", &number.to_string()));
        }
        assert_eq!(failures.len(), MAX_FAILURES);
        assert_eq!(failures.iter().map(|failure| failure.times).sum::<u32>(), 53);
    }
}
