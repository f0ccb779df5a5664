//! The same rules over a log that is there already: for trying out rules, and for scoring them.

use jiff::Timestamp;
use kernel::{
    CallId,
    agent::ObserveRule,
    call::{Exit, Observation},
};

use crate::{
    conclude::{Frame, Report, Watch},
    findings::Found,
    prefix,
    rules::{Limits, Rules},
    stamps::Clock,
    templates::Miner,
    text,
};

/// Bytes of a log that are looked at in one go.
const CHUNK: usize = 64 * 1024;

/// What was concluded from a log.
#[derive(Clone, Debug)]
pub struct Concluded {
    /// What would be told, in order.
    pub observations: Vec<Observation>,
    /// The packs whose programs were recognised.
    pub packs: Vec<String>,
}

/// What the observer would conclude from this log, in order. Time goes on as the stamps in front of its lines say. Where there
/// are none it stands still, so nothing is silent and a failure is held until the end.
///
/// `pack` is added to those of the rule. Without the status with which the program ended, it is guessed from what the output
/// says.
#[must_use]
pub fn observe(log: &[u8], rule: &ObserveRule, pack: Option<&str>, exit: Option<i32>) -> Vec<Observation> {
    let mut rule = rule.clone();
    rule.packs.extend(pack.map(str::to_owned));
    let rules = Rules::compile(&rule, Limits::default());
    observe_with(log, &rules, &mut Miner::default(), "", exit).observations
}

/// As [`observe`], with rules that are compiled already, what was learned before, and the command.
#[must_use]
pub fn observe_with(log: &[u8], rules: &Rules, miner: &mut Miner, command: &str, exit: Option<i32>) -> Concluded {
    let call_id = CallId::from_uuid(uuid::Uuid::nil());
    let mut watch = Watch::new(call_id, "the program", Timestamp::UNIX_EPOCH).running(rules, command);
    let mut observations = Vec::new();
    let mut tell = |reports: Vec<Report>| {
        observations.extend(reports.into_iter().map(|report| report.observation().clone()));
    };
    let (mut offset, mut at) = (0, Timestamp::UNIX_EPOCH);
    for (body, until) in pieces(log) {
        if until > at {
            at = until;
            tell(watch.due(rules, at));
        }
        tell(watch.frame(rules, miner, &Frame { offset, first_line: None, at, read_at: at, body, exit: None }));
        offset += body.len() as u64;
    }
    let code = exit.unwrap_or_else(|| i32::from(watch.shows_failure()));
    let counts = watch.counts();
    let exit =
        Exit { code: Some(code), signal: None, reason: "exited".to_owned(), bytes: counts.bytes, lines: counts.lines };
    let last = Frame { offset, first_line: None, at, read_at: at, body: b"", exit: Some(exit) };
    tell(watch.frame(rules, miner, &last));
    let packs = rules.names_of(watch.active()).map(str::to_owned).collect();
    Concluded { observations, packs }
}

/// A log in pieces, as it was written: each with the time at which it was.
fn pieces(log: &[u8]) -> Vec<(&[u8], Timestamp)> {
    let mut clock = Clock::default();
    let mut pieces: Vec<(usize, usize, i64)> = Vec::new();
    let mut start = 0;
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let (end, at) = (start + line.len(), clock.at(line));
        match pieces.last_mut() {
            Some((from, to, since)) if *since == at && end - *from <= CHUNK => *to = end,
            _ => pieces.push((start, end, at)),
        }
        start = end;
    }
    let time = |millis| Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX);
    pieces.into_iter().map(|(from, to, at)| (&log[from..to], time(at))).collect()
}

/// Learns from a log that ended well what is usual.
pub fn learn(log: &[u8], rules: &Rules, miner: &mut Miner, command: &str) {
    drop(observe_with(log, rules, miner, command, Some(0)));
}

/// Where a log says that something is wrong in a file: all that compilers and linters wrote.
#[must_use]
pub fn findings(log: &[u8], rules: &Rules) -> Vec<Found> {
    let lines: Vec<_> = log.split(|byte| *byte == b'\n').map(|line| text::visible(line.trim_ascii_end())).collect();
    rules.finder.find(lines.iter().map(|line| line.get(prefix::len(line.as_bytes())..).unwrap_or(line)))
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
        assert!(observations[0].changed.contains("src/lib.rs:7:9"), "{}", observations[0].changed);
    }

    #[test]
    fn time_goes_on_as_the_log_says() {
        let mut log = String::new();
        for beat in 0..20 {
            log += &format!("2026-07-30T10:{:02}:{:02}Z still waiting for the leader\n", beat / 6, beat % 6 * 10);
        }
        log += "2026-07-30T10:09:00Z there it is\n2026-07-30T10:09:01Z error: it is the wrong one\n";
        log += "2026-07-30T10:30:00Z done\n";
        let told = observe(log.as_bytes(), &ObserveRule::default(), None, Some(1));
        let phases: Vec<_> = told.iter().map(|told| (told.phase.as_str(), told.decision.is_some())).collect();
        assert_eq!(phases, [("heartbeat", true), ("failed", true)], "{told:#?}");
        assert!(told[0].changed.contains("every 10 s") && told[1].changed.contains("in 1800.0 s"), "{told:#?}");
    }

    #[test]
    fn a_passing_log_asks_for_nothing() {
        let log = "   Compiling a v1\ntest result: ok. 3 passed; 0 failed; 0 ignored\n";
        let observations = observe(log.as_bytes(), &ObserveRule::default(), None, None);
        assert_eq!(observations.len(), 1);
        assert_eq!((observations[0].phase.as_str(), observations[0].decision.as_ref()), ("completed", None));
    }

    #[test]
    fn what_was_there_when_all_went_well_is_no_cause() {
        let rules = Rules::compile(&ObserveRule::default(), Limits::default());
        let mut miner = Miner::default();
        let noise = "starting\nerror: could not upload report 17: access denied\nworking on it\n";
        for _ in 0..3 {
            let passed = observe_with(noise.as_bytes(), &rules, &mut miner, "./ci", Some(0));
            assert_eq!(passed.observations[0].decision, None);
        }
        let failing = format!("{noise}\n\n\n\n\n\n\nthe frobnicator says: 7 is not what was wanted\n{noise}");
        let failed = observe_with(failing.as_bytes(), &rules, &mut miner, "./ci", Some(1)).observations.remove(0);
        assert!(failed.evidence[0].excerpt.contains("frobnicator"), "{failed:#?}");
        assert!(failed.changed.contains("1 kinds of lines are new"), "{}", failed.changed);
    }

    #[test]
    fn a_packet_is_small_whatever_the_log() {
        let mut log = String::new();
        for number in 0..3000 {
            log += &format!(
                "src/a{number}.rs:{number}:1: error: {} is wrong\n{}\n",
                "x".repeat(number % 700),
                "y".repeat(300)
            );
        }
        let told = observe(log.as_bytes(), &ObserveRule::default(), None, Some(1)).remove(0);
        let words = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let said: usize = told.evidence.iter().map(|evidence| evidence.excerpt.len() + evidence.rule.len()).sum();
        assert!(told.changed.len() + words(&told.decision) + words(&told.missing) + said <= 2048, "{told:#?}");
    }

    #[test]
    fn anything_at_all_is_survived() {
        for log in [&b""[..], b"\n", b"\r\r\n\0\xff\x1b[", &[b'x'; 200_000]] {
            assert_eq!(observe(log, &ObserveRule::default(), None, Some(1)).len(), 1);
        }
    }
}
