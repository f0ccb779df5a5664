use kernel::agent::ObserveRule;

use super::*;
use crate::rules::{Active, Limits};

fn collect(packs: &[&str], text: &str) -> Collector {
    let packs = packs.iter().map(|pack| (*pack).to_owned()).collect();
    let rules = Rules::compile(&ObserveRule { packs, ..ObserveRule::default() }, Limits::default());
    let active = Active(u32::MAX);
    let mut collector = Collector::default();
    let mut offset = 0;
    for (number, line) in text.lines().enumerate() {
        let spot = Spot { offset, number: number as u64, text: line.as_bytes(), quoted: false, is_background: false };
        if collector.listens_for_passes() {
            collector.passed(spot.text);
        }
        match rules.look(line.as_bytes(), active).failure {
            Some(failure) => drop(collector.hit(&spot, failure, &rules)),
            None => collector.plain(&spot),
        }
        offset += line.len() as u64 + 1;
    }
    collector
}

#[test]
fn a_failure_comes_with_its_context_and_its_place() {
    let text = "a\nb\nc\nerror[E0308]: mismatched types\n --> src/lib.rs:3:5\n  |\n3 |     1u8\n  |     ^^^\n\nd";
    let evidence = collect(&["cargo"], text).take(2048);
    assert_eq!(evidence.len(), 1);
    assert_eq!(evidence[0].rule, "cargo.rustc_error");
    assert_eq!((evidence[0].line, evidence[0].offset), (4, 6));
    assert!(evidence[0].excerpt.starts_with("error[E0308]") && evidence[0].excerpt.contains("src/lib.rs:3:5"));
}

#[test]
fn evidence_is_bounded_and_repetitions_are_told() {
    let mut text = String::new();
    for number in 0..2000 {
        text += &format!("step {number}\nerror: connection {number} refused by {}\n", "x".repeat(500));
    }
    let mut collector = collect(&["generic"], &text);
    assert_eq!(collector.summary(), Summary { failures: 1, waking: 0, first_line: 2 });
    let evidence = collector.take(2048);
    assert!(evidence.iter().map(|evidence| evidence.excerpt.len()).sum::<usize>() <= 2048);
    assert!(evidence[0].excerpt.contains("connection 0 refused"));
    assert!(collector.take(2048).is_empty(), "told once");
    assert!(collector.found_any());
}

#[test]
fn the_likelier_cause_comes_first_and_noise_is_left_out() {
    let words =
        ["alpha", "beta", "gamma", "delta"].map(|word| format!("of {word} an error was mentioned\n1\n2\n3\n4\n"));
    let text = words.concat() + "main.c:3:5: error: expected ';'\nx\ny\nz\nu\nv\nw\nmake: *** [all] Error 1\n";
    let evidence = collect(&["gcc"], &text).take(2048);
    assert_eq!(evidence[0].rule, "gcc.compiler");
    assert!(evidence.iter().all(|evidence| evidence.rule != "generic.mentioned"), "{evidence:#?}");
}

#[test]
fn a_flood_of_weak_findings_does_not_push_the_cause_out() {
    let mut text = String::from("thread 'main' panicked at src/main.rs:1:1:\nboom\n");
    for number in 0..200 {
        let word: String = number.to_string().chars().map(|digit| char::from(b'a' + digit as u8 - b'0')).collect();
        text += &format!("quiet\nquiet\nquiet\nquiet\nquiet\nquiet\nquiet\nquiet\nan error in {word}\n");
    }
    let mut collector = collect(&["cargo"], &text);
    let evidence = collector.take(2048);
    assert!(evidence[0].excerpt.contains("boom"));
    assert!(collector.found.len() <= FINDINGS && collector.recent.len() <= RECENT);
}

#[test]
fn what_was_said_before_the_first_sign_of_failure_is_shown_if_nothing_explains_it() {
    let mut text: String = (0..30).map(|step| format!("step {step}\n")).collect();
    text += "Your change is 3174 lines, and 2000 is the most\nplease split it up\n\n##[error]Process completed with exit code 1.\n";
    text += "cleaning up\nan error of the clean-up was mentioned\n";
    let evidence = collect(&[], &text).take(2048);
    assert!(evidence[0].excerpt.contains("3174 lines"), "{evidence:#?}");
}

#[test]
fn a_test_that_passes_when_it_is_tried_again_is_no_failure() {
    let failed = "tests/a.py::test_one FAILED [ 10%]\n";
    let other = "1\n2\n3\n4\n5\n6\n7\ntests/a.py::test_one[x] PASSED\ntests/a.py::test_one_more PASSED\n";
    assert_eq!(collect(&["pytest"], &format!("{failed}{other}")).summary().waking, 1);
    let retried = format!("{failed}{other}tests/a.py::test_one PASSED [ 99%]\n");
    assert_eq!(collect(&["pytest"], &retried).summary().waking, 0);
}

#[test]
fn of_a_stack_trace_the_end_and_the_last_frames_are_shown() {
    let frames: String =
        (0..40).map(|frame| format!("  File \"a{frame}.py\", line {frame}, in f\n    call({frame})\n")).collect();
    let text = format!("Traceback (most recent call last):\n{frames}ValueError: 7 is too much\nbye\n");
    let evidence = collect(&["python"], &text).take(2048);
    assert_eq!((evidence.len(), evidence[0].rule.as_str()), (1, "traces.exception"), "{evidence:#?}");
    let excerpt = &evidence[0].excerpt;
    assert!(excerpt.contains("ValueError: 7 is too much") && excerpt.contains("a39.py") && !excerpt.contains("a20.py"));
    assert_eq!(excerpt.matches('\u{2026}').count(), 1, "{excerpt}");
}

#[test]
fn a_stack_trace_that_passes_on_a_failure_is_no_cause() {
    let text = "WidgetTest - failed. It does not extend the class that it should.\n1\n2\n3\nTraceback (most recent call last):\n  \
                File \"run.py\", line 3, in main\n    check()\nRuntimeError: tests/widget failed!\n";
    let evidence = collect(&["python"], text).take(2048);
    assert!(evidence[0].excerpt.contains("does not extend"), "{evidence:#?}");
}

#[test]
fn what_touches_is_shown_as_one() {
    let text = "x\n##[error]The archive could not be got: timed out after 3 tries\n\n\n##[error]No archive\n"
        .replace("\n\n\n", "\nlook\nthere\n");
    let evidence = collect(&[], &text).take(2048);
    assert_eq!(evidence.len(), 1, "{evidence:#?}");
    assert!(evidence[0].excerpt.contains("timed out") && evidence[0].excerpt.contains("No archive"));
}

#[test]
fn what_was_quoted_counts_where_it_is_said() {
    let rules = Rules::compile(&ObserveRule::default(), Limits::default());
    let mut collector = Collector::default();
    for (number, quoted) in [(0, true), (50, false)] {
        let text = b"ValueError: it is wrong";
        let spot = Spot { offset: number, number, text, quoted, is_background: false };
        collector.hit(&spot, rules.look(text, Active(u32::MAX)).failure.unwrap(), &rules);
        for blank in 1..30 {
            collector.plain(&Spot { offset: number + blank, number: number + blank, text: b"x", ..spot });
        }
    }
    assert_eq!(collector.summary().failures, 1);
    // With the lines before the second one, and not at the first.
    assert!(collector.take(2048)[0].line > 20);
}

#[test]
fn the_tail_stands_in() {
    let collector = collect(&[], "one\ntwo\n\nthree\n");
    let tail = collector.tail(2048, "tail").unwrap();
    assert_eq!((tail.excerpt.as_str(), tail.line, tail.offset), ("one\ntwo\nthree", 1, 0));
    assert!(Collector::default().tail(2048, "tail").is_none());
}
