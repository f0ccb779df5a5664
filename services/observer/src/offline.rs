//! The same rules over a log that is there already: for trying out rules, and for scoring them.

use jiff::Timestamp;
use kernel::{
    CallId,
    agent::ObserveRule,
    call::{Exit, Observation},
};

use crate::{
    conclude::{Frame, Watch},
    rules::{Limits, Rules},
};

/// Bytes of a log that are looked at in one go.
const CHUNK: usize = 64 * 1024;

/// What the observer would conclude from this log, in order. Time stands still in it, so nothing is silent and a failure is
/// held until the end.
///
/// `pack` is added to those of the rule. Without the status with which the program ended, it is guessed from whether the
/// output shows a failure that is worth waking for.
#[must_use]
pub fn observe(log: &[u8], rule: &ObserveRule, pack: Option<&str>, exit: Option<i32>) -> Vec<Observation> {
    let mut rule = rule.clone();
    rule.packs.extend(pack.map(str::to_owned));
    observe_with(log, &Rules::compile(&rule, Limits::default()), exit)
}

/// As [`observe`], with rules that are compiled already.
#[must_use]
pub fn observe_with(log: &[u8], rules: &Rules, exit: Option<i32>) -> Vec<Observation> {
    let call_id = CallId::from_uuid(uuid::Uuid::nil());
    let at = Timestamp::UNIX_EPOCH;
    let mut watch = Watch::new(call_id, "the program", at);
    let mut observations = Vec::new();
    let mut offset = 0;
    for body in log.chunks(CHUNK) {
        let frame = Frame { offset, first_line: None, at, read_at: at, body, exit: None };
        observations.extend(watch.frame(rules, &frame).into_iter().map(|report| report.observation().clone()));
        offset += body.len() as u64;
    }
    let code = exit.unwrap_or_else(|| i32::from(watch.shows_failure()));
    let counts = watch.counts();
    let exit =
        Exit { code: Some(code), signal: None, reason: "exited".to_owned(), bytes: counts.bytes, lines: counts.lines };
    let last = Frame { offset, first_line: None, at, read_at: at, body: b"", exit: Some(exit) };
    observations.extend(watch.frame(rules, &last).into_iter().map(|report| report.observation().clone()));
    observations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_log_gives_one_observation_with_its_cause() {
        let mut log: String = (0..5000).map(|step| format!("test t{step} ... ok\r\n")).collect();
        log += "thread 'a' panicked at src/lib.rs:7:9:\nassertion failed\n";
        let observations = observe(log.as_bytes(), &ObserveRule::default(), Some("cargo"), None);
        assert_eq!(observations.len(), 1);
        assert_eq!(observations[0].phase, "failed");
        assert_eq!(observations[0].evidence[0].line, 5000, "with the line before it");
        assert_eq!(observations[0].counts.lines, 5002);
    }

    #[test]
    fn a_passing_log_asks_for_nothing() {
        let log = "   Compiling a v1\ntest result: ok. 3 passed; 0 failed; 0 ignored\n";
        let observations = observe(log.as_bytes(), &ObserveRule::default(), None, None);
        assert_eq!(observations.len(), 1);
        assert_eq!((observations[0].phase.as_str(), observations[0].decision.as_ref()), ("completed", None));
    }

    #[test]
    fn anything_at_all_is_survived() {
        for log in [&b""[..], b"\n", b"\r\r\n\0\xff\x1b[", &[b'x'; 200_000]] {
            assert_eq!(observe(log, &ObserveRule::default(), None, Some(1)).len(), 1);
        }
    }
}
