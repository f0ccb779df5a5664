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
        Self::with(Rules::compile(rule, Limits::default()))
    }

    fn with(rules: Rules) -> Self {
        let watch = Watch::new(CallId::from_uuid(uuid::Uuid::nil()), "shell.run", Timestamp::UNIX_EPOCH);
        Self { watch, rules, miner: Miner::default(), offset: 0, reports: Vec::new() }
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
fn what_only_shipped_rules_take_for_failures_wakes_once_in_a_job_and_with_its_end() {
    let mut told = Told::new(&cargo());
    for minute in 0..90 {
        let word = "abcdefghij".chars().nth(minute % 10).unwrap();
        told.feed(minute as i64 * 60_000, &format!("test {word}{word} ... FAILED\n"), None);
        told.wait(minute as i64 * 60_000 + 30_000);
    }
    told.exit(5_400_000, 101);
    assert_eq!(told.phases(), [("failure", true), ("failed", true)]);
    // What the agent itself calls a failure is not held back for so long.
    let mut told = Told::new(&ObserveRule { failure: vec!["lost node".into()], ..cargo() });
    told.feed(0, "test a ... FAILED\n", None);
    told.wait(10_000);
    told.feed(20_000, "lost node 7\n", None);
    told.wait(400_000);
    assert_eq!(told.phases(), [("failure", true), ("failure", true)]);
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

/// Beats every five seconds for a minute, with other lines between them.
fn beating(told: &mut Told) {
    for beat in 0..13_i64 {
        told.feed(1000 + beat * 5000, &format!("still waiting for the leader, {} s\n", beat * 5), None);
        told.feed(1001 + beat * 5000, &format!("line {beat}\n"), None);
    }
}

#[test]
fn a_heartbeat_that_nobody_declared_and_that_was_the_last_sign_of_life_wakes_once_in_a_call() {
    let mut told = Told::new(&cargo());
    beating(&mut told);
    told.wait(120_000);
    assert!(told.reports.is_empty(), "59 s are a pause");
    told.wait(122_000);
    told.wait(600_000);
    assert_eq!(told.phases(), [("heartbeat", true)]);
    let observation = told.reports[0].observation();
    assert_eq!((observation.evidence[0].line, observation.evidence[0].rule.as_str()), (25, "learned"));
    assert_eq!(observation.evidence[0].excerpt, "still waiting for the leader, 60 s");
    let changed = "Lines like line 25 came every 5 s, and none for 61 s. Nothing else has come for 60 s.";
    assert_eq!(observation.changed, changed);
    // It comes back and goes away again: one wake is enough to look at it.
    for beat in 0..20 {
        told.feed(601_000 + beat * 5000, "still waiting for the leader, 9 s\n", None);
    }
    told.wait(1_000_000);
    told.exit(1_000_000, 1);
    assert_eq!(told.phases(), [("heartbeat", true), ("failed", true)]);
    assert!(!told.reports[1].observation().changed.contains("came every"), "told before");
}

#[test]
fn who_was_not_listened_to_was_not_silent() {
    let mut told = Told::new(&cargo());
    beating(&mut told);
    // Ten minutes without an observer, then one that has read all that there is.
    told.watch.hears_from(Timestamp::from_millisecond(660_000).unwrap());
    told.wait(719_000);
    assert!(told.reports.is_empty(), "what was said meanwhile may still be on its way");
    told.wait(721_000);
    assert_eq!(told.phases(), [("heartbeat", true)]);
}

#[test]
fn a_step_that_is_over_wakes_nobody_and_is_shown_with_a_failure_alone() {
    for (code, phase, shown) in [(0, "completed", false), (1, "failed", true)] {
        let mut told = Told::new(&cargo());
        beating(&mut told);
        let mut now = 61_001;
        for step in 0..200 {
            now += [300, 9000, 2500][step % 3];
            told.feed(now, &format!("step {step} of the next part\n"), None);
            told.wait(now);
        }
        told.wait(1_400_000);
        assert!(told.reports.is_empty(), "the last lines came at no pace: {:?}", told.reports);
        told.exit(1_400_000, code);
        assert_eq!(told.phases(), [(phase, code != 0)]);
        let observation = told.reports[0].observation();
        assert_eq!(observation.changed.contains("Lines like line 26 came every 5 s"), shown, "{observation:#?}");
        assert_eq!(observation.evidence.iter().any(|evidence| evidence.rule == "learned"), shown);
        let bytes: usize = observation.evidence.iter().map(|evidence| evidence.excerpt.len()).sum();
        assert!(observation.changed.len() + bytes <= 2048);
    }
}

#[test]
fn a_loop_that_waited_until_something_was_there_has_not_vanished() {
    for (last, phases) in [("it is there\n", &[][..]), ("", &[("heartbeat", true)][..])] {
        let mut told = Told::new(&cargo());
        for beat in 1..=15_i64 {
            told.feed(beat * 2000, &format!("not there yet, try {beat}\n"), None);
        }
        told.feed(30_100, last, None);
        told.wait(300_000);
        assert_eq!(told.phases(), phases, "{last}");
    }
}

#[test]
fn an_agent_that_says_what_life_is_is_not_second_guessed() {
    let heartbeats = "heartbeats: [{ id: alive, match: \"never printed\", every: 10m }]";
    for yaml in ["silence: 1h", heartbeats, "escalate: [{ on: [heartbeat], rule: learned, wake: end }]"] {
        let mut told = Told::new(&serde_saphyr::from_str(&format!("packs: [cargo]\n{yaml}")).unwrap());
        beating(&mut told);
        told.wait(600_000);
        assert!(told.reports.is_empty(), "{yaml}: {:?}", told.reports);
    }
}

#[test]
fn a_burst_is_told_once_and_wakes_only_who_asks_for_it() {
    for (yaml, wakes) in [("packs: [cargo]", false), ("packs: [cargo]\nescalate: [{ on: [burst], wake: now }]", true)] {
        let mut told = Told::new(&serde_saphyr::from_str(yaml).unwrap());
        for minute in 0..12_i64 {
            let lines = if minute % 4 == 3 && minute > 3 { 2000 } else { 6 };
            for line in 0..lines {
                let at = 1 + minute * 60_000 + line * 60_000 / lines;
                told.feed(at, &format!("request {line} took a while\n"), None);
            }
        }
        assert_eq!(told.phases(), [("burst", wakes)], "{yaml}");
        let observation = told.reports[0].observation();
        assert_eq!((observation.anomaly, observation.evidence[0].rule.as_str()), (true, "learned"));
        assert_eq!(observation.evidence[0].excerpt, "request 99 took a while");
        assert!(observation.changed.contains("100 times within a minute; 6 is usual"), "{}", observation.changed);
        told.exit(800_000, 0);
        assert_eq!(told.phases().len(), 2);
    }
}

#[test]
fn what_is_told_of_pace_has_one_key_in_a_call_wherever_the_reading_began() {
    let whole = {
        let mut told = Told::new(&cargo());
        beating(&mut told);
        told.wait(200_000);
        told.reports
    };
    // The next observer has the checkpoint, and a miner that knows nothing.
    let mut told = Told::new(&cargo());
    beating(&mut told);
    told.watch = serde_json::from_str(&serde_json::to_string(&told.watch).unwrap()).unwrap();
    told.miner = Miner::default();
    told.wait(300_000);
    assert_eq!(told.phases(), [("heartbeat", true)]);
    assert_eq!(told.reports[0].key(), whole[0].key());
}

#[test]
fn what_is_to_be_heard_of_with_the_end_is_shown_with_it() {
    let yaml = "packs: [cargo]\nthresholds: [{ id: retries, match: retrying, count: 3, within: 10s }]\n\
                escalate: [{ on: [burst, heartbeat, threshold], wake: end }]";
    for code in [0, 1] {
        let mut told = Told::new(&serde_saphyr::from_str(yaml).unwrap());
        beating(&mut told);
        told.wait(200_000);
        for line in 0..3 {
            told.feed(200_000 + line, "retrying\n", None);
        }
        for minute in 4..10_i64 {
            let lines = if minute == 9 { 2000 } else { 6 };
            for line in 0..lines {
                told.feed(1 + minute * 60_000 + line * 60_000 / lines, &format!("request {line} took a while\n"), None);
            }
        }
        assert!(told.reports.is_empty(), "{:?}", told.reports);
        // A checkpoint keeps it.
        told.watch = serde_json::from_str(&serde_json::to_string(&told.watch).unwrap()).unwrap();
        told.exit(600_000, code);
        assert_eq!(told.reports.len(), 1);
        let observation = told.reports[0].observation();
        for words in ["came every 5 s", "Threshold `retries` was passed", "100 times within a minute; 6 is usual"] {
            assert_eq!(observation.changed.matches(words).count(), 1, "{words}: {}", observation.changed);
        }
        assert_eq!((observation.anomaly, observation.decision.is_some()), (true, code == 1));
        let shown: Vec<_> = observation.evidence.iter().map(|evidence| evidence.excerpt.as_str()).collect();
        for line in ["request 99 took a while", "retrying", "still waiting for the leader, 60 s"] {
            assert!(shown.contains(&line), "{line}: {shown:?}");
        }
    }
}

#[test]
fn what_comes_with_the_last_of_the_output_is_shown_with_the_end() {
    let yaml = "thresholds: [{ id: retries, match: retrying, count: 2, within: 10s }]";
    let mut told = Told::new(&serde_saphyr::from_str(yaml).unwrap());
    let exit = Exit { bytes: 18, ..told.ended("exited", Some(0)) };
    told.feed(1000, "retrying\nretrying\n", Some(exit));
    assert_eq!(told.phases(), [("completed", false)]);
    assert!(told.reports[0].observation().changed.contains("Threshold `retries`"), "{:?}", told.reports);
}

#[test]
fn a_build_that_pauses_for_long_after_lines_at_an_even_pace_wakes_nobody() {
    type Line = fn(i64) -> String;
    let lines: [Line; 6] = [
        |step| format!("[{step}/96] Building CXX object src/part{step}.cpp.o\n"),
        |step| format!("epoch {step} of 50: loss 0.{}\n", 900 - step),
        |_| "   Compiling syn v2.0.1\n".to_owned(),
        |step| format!("ok {step} - waits for the leader\n"),
        |step| format!("batch {step} done\n"),
        |step| format!("progress: {}%\n", step * 2),
    ];
    let mut rules = Rules::compile(&ObserveRule::default(), Limits::default());
    for line in lines {
        for every in [2000, 5000, 30_000] {
            let mut told = Told::with(rules);
            let mut now = 1000;
            for part in ["library", "program", "package"] {
                for step in 1..=40 {
                    now += every;
                    told.feed(now, &line(step), None);
                    told.wait(now);
                }
                // It links, packs, or keeps what it has learned.
                for _ in 0..20 {
                    now += 60_000;
                    told.wait(now);
                }
                now += 5000;
                told.feed(now, &format!("the {part} is there\n"), None);
            }
            told.exit(now, 0);
            assert_eq!(told.phases().iter().filter(|(_, wakes)| *wakes).count(), 0, "{}: {:#?}", line(1), told.reports);
            let learned = |report: &Report| report.observation().evidence.iter().any(|one| one.rule == "learned");
            assert!(!told.reports.iter().any(learned), "{}: {:#?}", line(1), told.reports);
            rules = told.rules;
        }
    }
}

#[test]
fn the_pace_of_logs_of_what_ended_well_tells_nothing_however_fast_they_come_and_however_long_they_pause() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../loadtest/observing/passing");
    let logs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(logs.len() >= 8);
    let mut rules = Rules::compile(&ObserveRule::default(), Limits::default());
    for (log, every) in logs.iter().flat_map(|log| [3, 400, 1000, 5000, 20_000].map(|every| (log, every))) {
        let text = String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned();
        let mut told = Told::with(rules);
        let (mut now, tenth) = (1_i64, (text.lines().count() / 10).max(1));
        for (number, line) in text.lines().enumerate() {
            // Pauses of ten minutes, as when something large is linked or got.
            now += if number % tenth == 0 { 600_000 } else { every };
            told.wait(now);
            told.feed(now, &format!("{line}\n"), None);
        }
        told.exit(now + 50_000, 0);
        let found = |report: &&Report| report.observation().evidence.iter().any(|evidence| evidence.rule == "learned");
        let found: Vec<_> = told.reports.iter().filter(found).collect();
        assert!(found.is_empty(), "{} at {every} ms a line: {found:#?}", log.display());
        rules = told.rules;
    }
}

#[test]
fn own_wakes_do_not_make_a_guess_wait() {
    let mut told = Told::new(&ObserveRule { failure: vec!["lost node".into()], ..cargo() });
    let mut now = 0;
    for word in ["a", "b", "c", "d"] {
        told.feed(now, &format!("lost node {word}{word}{word}\n"), None);
        told.wait(now + 10_000);
        now += 1_500_000;
    }
    assert_eq!(told.reports.len(), 4, "{:?}", told.phases());
    told.feed(now, "error[E0308]: mismatched types\n --> src/lib.rs:3:5\n", None);
    // A checkpoint keeps whose wakes they were.
    told.watch = serde_json::from_str(&serde_json::to_string(&told.watch).unwrap()).unwrap();
    told.wait(now + 1_000_000);
    assert_eq!(told.reports.len(), 5, "forty minutes after the last one, not sixteen hours");
    told.feed(now + 1_000_001, "test a ... FAILED\n", None);
    told.wait(now + 7_000_000);
    assert_eq!(told.reports.len(), 5, "now a guess has woken");
    told.wait(now + 8_300_000);
    assert_eq!(told.reports.len(), 6);
}

#[test]
fn an_end_that_is_well_shows_what_was_held_where_nobody_is_asked() {
    for (advised, body, shown) in [
        (false, "panic: the cache is gone\n", true),
        (true, "panic: the cache is gone\n", false),
        (false, "panic: the cache is gone\nBUILD SUCCESSFUL\n", false),
        (false, "all is well\n", false),
    ] {
        let mut told = Told::new(&ObserveRule::default());
        told.watch = told.watch.advised(advised);
        told.feed(0, body, None);
        told.exit(1000, 0);
        assert_eq!(told.phases(), [("completed", false)], "{body}");
        let changed = &told.reports[0].observation().changed;
        assert_eq!(changed.contains("Its output shows a failure, at line 1."), shown, "{changed}");
    }
}
