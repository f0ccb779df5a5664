use kernel::{agent::ObserveRule, units};

use super::*;
use crate::rules::Limits;

const STEP: i64 = 100;

/// A watch that is fed lines at times in milliseconds.
struct Told {
    watch: Watch,
    rules: Rules,
    miner: Miner,
    offset: u64,
    reports: Vec<Report>,
}

impl Told {
    fn new(rule: &ObserveRule) -> Self {
        let start = Timestamp::UNIX_EPOCH;
        let watch = Watch::new(CallId::from_uuid(uuid::Uuid::nil()), "shell.run", start);
        Self {
            watch,
            rules: Rules::compile(rule, Limits::default()),
            miner: Miner::default(),
            offset: 0,
            reports: Vec::new(),
        }
    }

    fn feed(&mut self, at: i64, body: &str, exit: Option<Exit>) {
        let at = Timestamp::from_millisecond(at).unwrap();
        let body = body.as_bytes();
        let frame = Frame { offset: self.offset, first_line: None, at, read_at: at, body, exit };
        self.offset += body.len() as u64;
        self.reports.extend(self.watch.frame(&self.rules, &mut self.miner, &frame));
    }

    fn wait(&mut self, until: i64) {
        self.reports.extend(self.watch.due(&self.rules, Timestamp::from_millisecond(until).unwrap()));
    }

    fn exit(&mut self, at: i64, code: i32) {
        let exit = self.ended("exited", Some(code));
        self.feed(at, "", Some(exit));
    }

    fn ended(&self, reason: &str, code: Option<i32>) -> Exit {
        Exit { code, signal: None, reason: reason.into(), bytes: self.offset, lines: 0 }
    }

    fn phases(&self) -> Vec<(&str, bool)> {
        let shown = |report: &Report| report.observation().decision.is_some();
        self.reports.iter().map(|report| (report.observation().phase.as_str(), shown(report))).collect()
    }
}

fn cargo() -> ObserveRule {
    ObserveRule { packs: vec!["cargo".into()], ..ObserveRule::default() }
}

#[test]
fn a_failure_before_the_end_is_told_once_with_the_end() {
    let mut told = Told::new(&cargo());
    told.feed(0, "   Compiling x v1\nerror[E0308]: mismatched types\n --> src/lib.rs:3:5\n", None);
    told.wait(1900);
    told.exit(1950, 101);
    told.wait(1_000_000);
    assert_eq!(told.phases(), [("failed", true)]);
    let observation = told.reports[0].observation();
    assert!(observation.evidence[0].excerpt.contains("mismatched"));
    assert_eq!((observation.evidence[0].line, observation.evidence[0].offset), (2, 18));
    assert!(
        observation.changed.contains("status 101") && observation.changed.contains("at line 2"),
        "{observation:#?}"
    );
    let Report::Conclude { duration_ms, .. } = &told.reports[0] else { panic!("{:?}", told.reports) };
    assert_eq!(*duration_ms, 1950);
}

#[test]
fn a_failure_long_before_the_end_wakes_once_and_the_end_tells_only_what_is_new() {
    let mut told = Told::new(&cargo());
    told.feed(0, "test a ... FAILED\n", None);
    for step in 1..600 {
        told.feed(step * STEP, &format!("test t{step} ... ok\n"), None);
    }
    told.feed(60_000, "test b ... FAILED\n", None);
    told.wait(100_000);
    told.exit(100_000, 101);
    assert_eq!(told.phases(), [("failure", true), ("failed", true)]);
    let texts = told.reports.iter().map(|report| report.observation().evidence[0].excerpt.as_str());
    assert!(texts.zip(["test a", "test b"]).all(|(text, wanted)| text.contains(wanted)));
}

#[test]
fn failures_without_end_wake_ever_more_seldom() {
    let mut told = Told::new(&ObserveRule { failure: vec!["ALARM \\w+".into()], ..ObserveRule::default() });
    for step in 0..72_000 {
        let word: String = step.to_string().chars().map(|digit| char::from(b'a' + digit as u8 - b'0')).collect();
        told.feed(step * STEP, &format!("ALARM {word}\nx\nx\nx\nx\nx\n"), None);
    }
    assert!((3..=6).contains(&told.reports.len()), "{} wakes in two hours", told.reports.len());
}

#[test]
fn success_wakes_nobody() {
    let mut told = Told::new(&cargo());
    told.feed(0, "   Compiling x v1\nwarning: an error was mentioned\ntest result: ok. 3 passed; 0 failed\n", None);
    told.exit(3000, 0);
    assert_eq!(told.phases(), [("completed", false)]);
    let observation = told.reports[0].observation();
    assert!(observation.evidence.is_empty() && !observation.anomaly);
    assert!(observation.changed.contains("test result: ok"), "{}", observation.changed);
}

#[test]
fn success_that_its_output_contradicts_is_doubted() {
    let mut told = Told::new(&cargo());
    told.feed(0, "test a ... FAILED\n", None);
    told.exit(1000, 0);
    assert_eq!(told.phases(), [("completed", true)]);
    assert!(told.reports[0].observation().anomaly);
}

#[test]
fn progress_is_noted_seldom_and_only_if_the_phase_changed() {
    let mut told = Told::new(&cargo());
    for step in 0..300 {
        let phase = if step < 150 { "Compiling" } else { "Running" };
        told.feed(step * STEP, &format!("   {phase} x{step}\n"), None);
    }
    assert_eq!(told.phases(), [("progress", false), ("progress", false)]);
    assert!(told.reports[1].observation().changed.contains("Running"));
    assert!(told.reports[1].observation().counts.suppressed >= 1);
}

#[test]
fn silence_wakes_once_until_there_is_output_again() {
    let silence = Some(units::Duration::from_secs(60));
    let mut told = Told::new(&ObserveRule { silence, ..ObserveRule::default() });
    told.wait(59_000);
    told.feed(59_000, "working\n", None);
    told.wait(118_000);
    assert!(told.reports.is_empty());
    told.wait(119_000);
    told.wait(500_000);
    assert_eq!(told.phases(), [("silence", true)]);
    told.feed(500_000, "again\n", None);
    told.wait(560_000);
    assert_eq!(told.reports.len(), 2);
    assert_ne!(told.reports[0].key(), told.reports[1].key());
}

#[test]
fn an_end_without_evidence_shows_the_tail_and_a_cancelled_one_wakes_nobody() {
    let mut told = Told::new(&cargo());
    told.feed(0, "one\ntwo", None);
    told.exit(100, 3);
    assert_eq!(told.reports[0].observation().evidence[0].excerpt, "one\ntwo");
    let mut told = Told::new(&cargo());
    told.feed(0, "error: x\n", None);
    let cancelled = told.ended("cancelled", None);
    told.feed(100, "", Some(cancelled));
    assert_eq!(told.phases(), [("cancelled", false)]);
}

#[test]
fn what_is_missing_is_said() {
    let mut told = Told::new(&cargo());
    told.feed(0, "one\n", None);
    told.offset += 50;
    told.feed(0, "two\n", None);
    let mut exit = told.ended("lost", None);
    exit.bytes += 7;
    told.feed(100, "", Some(exit));
    let observation = told.reports[0].observation();
    assert_eq!(observation.counts.gap_bytes, 57);
    assert!(observation.missing.as_ref().unwrap().contains("57 bytes") && observation.anomaly);
}

#[test]
fn going_on_from_a_checkpoint_tells_the_same() {
    let lines: Vec<String> = (0..400)
        .map(|step| match step {
            37 => "test a ... FAILED\n".to_owned(),
            200 => "thread 'b' panicked at src/x.rs:1:1:\nboom\n".to_owned(),
            _ => format!("   Compiling x{step}\r{step}%\n"),
        })
        .collect();
    let run = |restart: Option<usize>| {
        let mut told = Told::new(&cargo());
        for (step, line) in lines.iter().enumerate() {
            if restart == Some(step) {
                let stored = serde_json::to_string(&told.watch).unwrap();
                told.watch = serde_json::from_str(&stored).unwrap();
                // The frame before comes again.
                told.offset -= lines[step - 1].len() as u64;
                told.feed(step as i64 * STEP - STEP, &lines[step - 1], None);
            }
            told.feed(step as i64 * STEP, line, None);
        }
        told.exit(41_000, 101);
        told.reports
    };
    let whole = run(None);
    assert!(whole.len() >= 3);
    for restart in [1, 38, 60, 201, 399] {
        assert_eq!(run(Some(restart)), whole, "{restart}");
    }
}
