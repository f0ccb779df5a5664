use kernel::{
    ActionId, TenantId,
    observe::Anomaly,
    watch::{ActionRule, ActionStage},
};
use signals::Record;

use super::*;
use crate::{services::pace::Learned, windows::slice::By};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

fn action() -> Action {
    Action {
        action_id: ActionId::mint(),
        tenant: TenantId::default(),
        service: "orders".into(),
        actor: "ann".into(),
        what: "POST /orders".into(),
        expects: None,
        request_id: Some("r-12345".into()),
        session_id: None,
        trace_id: None,
        components: Vec::new(),
        at: at(0),
        run_id: None,
        call_id: None,
        recorded_by: "test".into(),
    }
}

fn rule() -> CompiledAction {
    let stage = |name: &str| ActionStage { name: name.into(), pattern: name.into() };
    CompiledAction::new(&ActionRule {
        success: vec!["shipped".into()],
        failure: vec!["rejected".into()],
        stages: vec![stage("accepted"), stage("packed")],
        ..ActionRule::default()
    })
}

/// Lines as (said at, arrived at, text).
fn slices(lines: &[(i64, i64, &str)]) -> Vec<(String, Slice)> {
    let mut slice = Slice::default();
    for (number, (said, arrived, text)) in lines.iter().enumerate() {
        let record = Record { time: Some(at(*said)), ..Record::from_text(text) };
        slice.take(&rule(), &record, Line::new(&record, number as u64, 0, at(*arrived)), By::Id);
    }
    vec![("orders".to_owned(), slice)]
}

fn judged(lines: &[(i64, i64, &str)], now: i64) -> Next {
    judge(&rule(), at(0), &Found { slices: &slices(lines), gaps: 0 }, at(now))
}

fn concluded(lines: &[(i64, i64, &str)], verified: &[Option<bool>]) -> ActionConclusion {
    let slices = slices(lines);
    let found = Found { slices: &slices, gaps: 0 };
    let Next::Close(reading) = judge(&rule(), at(0), &found, at(300_000)) else { panic!("it waits") };
    let look = |holds: &Option<bool>| Verified { tool: "http.get".into(), holds: *holds, words: "state: new".into() };
    conclude(&action(), &rule(), &found, &reading, verified.iter().map(look).collect())
}

const ACCEPTED: (i64, i64, &str) = (100, 200, "INFO accepted r-12345");
const SHIPPED: (i64, i64, &str) = (900, 1000, "INFO shipped r-12345");
const REJECTED: (i64, i64, &str) = (500, 3000, "WARN rejected r-12345: no stock");

#[test]
fn a_sign_waits_for_others() {
    assert_eq!(judged(&[ACCEPTED, SHIPPED], 1_500), Next::Wait(at(3_000)));
    let Next::Close(reading) = judged(&[ACCEPTED, SHIPPED], 3_000) else { panic!() };
    assert_eq!((reading.outcome, reading.stage.as_deref()), (ActionOutcome::TookEffect, Some("accepted")));
}

#[test]
fn the_later_sign_counts_whenever_it_arrives() {
    // The refusal was said before the success, and came after it.
    let Next::Close(reading) = judged(&[SHIPPED, REJECTED], 10_000) else { panic!() };
    assert_eq!((reading.outcome, reading.mixed), (ActionOutcome::TookEffect, true));
    let Next::Close(reading) = judged(&[(400, 400, "shipped"), REJECTED], 10_000) else { panic!() };
    assert_eq!(reading.outcome, ActionOutcome::Failed);
}

#[test]
fn quiet_and_time_close_a_window_without_a_sign() {
    assert_eq!(judged(&[], 100), Next::Wait(at(60_000)));
    assert_eq!(judged(&[ACCEPTED], 5_000), Next::Wait(at(10_200)));
    let Next::Close(reading) = judged(&[ACCEPTED], 10_200) else { panic!() };
    assert_eq!((reading.outcome, reading.stage.as_deref()), (ActionOutcome::Unsure, Some("accepted")));
    let Next::Close(reading) = judged(&[], 60_000) else { panic!() };
    assert_eq!(reading.outcome, ActionOutcome::Unsure);
    let busy: Vec<_> = (1..15).map(|n| (n * 9_000, n * 9_000, "INFO working on r-12345")).collect();
    assert!(matches!(judged(&busy[..7], 63_500), Next::Wait(_)), "it is given more time while it speaks");
    let Next::Close(reading) = judged(&busy, 126_500) else { panic!() };
    assert_eq!(reading.outcome, ActionOutcome::InProgress);
}

#[test]
fn the_world_outweighs_the_logs() {
    use ActionOutcome::{Failed, TookEffect, Unsure};
    type Case<'a> = (&'a [(i64, i64, &'a str)], &'a [Option<bool>], ActionOutcome, bool);
    let cases: [Case<'_>; 8] = [
        (&[ACCEPTED, SHIPPED], &[], TookEffect, false),
        (&[ACCEPTED, SHIPPED], &[Some(true)], TookEffect, false),
        // It says success, and nothing has changed.
        (&[ACCEPTED, SHIPPED], &[Some(true), Some(false)], Failed, true),
        (&[ACCEPTED, SHIPPED], &[None], Unsure, false),
        (&[REJECTED], &[Some(true)], TookEffect, true),
        (&[REJECTED], &[None], Failed, true),
        // The logs are missing.
        (&[], &[Some(true)], TookEffect, false),
        (&[], &[Some(false)], Failed, true),
    ];
    for (lines, verified, outcome, anomaly) in cases {
        let conclusion = concluded(lines, verified);
        assert_eq!(
            (conclusion.outcome, conclusion.observation.anomaly),
            (outcome, anomaly),
            "{verified:?} {conclusion:#?}"
        );
    }
}

#[test]
fn a_conclusion_is_small_and_says_what_is_missing() {
    let mut lines = vec![ACCEPTED];
    let long = format!("ERROR {}", "x".repeat(5_000));
    lines.extend((0..100).map(|n| (1_000 + n, 1_000 + n, long.as_str())));
    let observation = concluded(&lines, &[Some(false)]).observation;
    let bytes: usize = observation.evidence.iter().map(|evidence| evidence.excerpt.len()).sum();
    assert!(bytes <= EVIDENCE_BYTES, "{bytes}");
    assert_eq!(observation.evidence[0].rule, "verify http.get");
    assert_eq!(observation.evidence[1].rule, "failure");
    assert_eq!(observation.evidence[1].service.as_deref(), Some("orders"));
    let missing = observation.missing.unwrap();
    assert!(missing.contains("packed") && missing.contains("took effect"), "{missing}");
    assert!(!observation.decision.unwrap().contains("POST"), "what others wrote is no word of the runtime");
}

#[test]
fn what_the_pace_of_the_service_tells_meanwhile_is_shown_and_decides_nothing() {
    let mut slices = slices(&[ACCEPTED, SHIPPED]);
    let record = Record::from_text("WARN retrying the bank");
    let learned = Learned {
        anomaly: Anomaly::Burst,
        what: "Lines of a kind came 600 times within a minute; 6 is usual for them.".into(),
        line: Line::new(&record, 77, 3, at(950)),
        lasts: Some(120_000),
    };
    assert!(slices[0].1.learn(&learned) && !slices[0].1.learn(&learned), "once");
    let found = Found { slices: &slices, gaps: 0 };
    let Next::Close(reading) = judge(&rule(), at(0), &found, at(300_000)) else { panic!("it waits") };
    let conclusion = conclude(&action(), &rule(), &found, &reading, Vec::new());
    assert_eq!((conclusion.outcome, conclusion.observation.anomaly), (ActionOutcome::TookEffect, true));
    assert!(
        conclusion
            .observation
            .changed
            .ends_with("Meanwhile at `orders`: Lines of a kind came 600 times within a minute; 6 is usual for them.")
    );
    let shown = conclusion.observation.evidence.iter().find(|evidence| evidence.rule == "learned").unwrap();
    assert_eq!((shown.excerpt.as_str(), shown.offset, shown.line), ("WARN retrying the bank", 77, 4));
    assert_eq!(conclusion.observation.counts.lines, 2, "it is no line of the action");
}
