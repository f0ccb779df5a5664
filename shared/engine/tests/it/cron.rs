//! Patterns as the specification has them, and fire times against those that something else worked out.

use engine::{Cadence, CronPattern};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use kernel::schedule::DstPolicy;
use serde::Deserialize;
use sha2::{Digest, Sha256};

const PATTERNS: &str = include_str!("../cron/patterns.json");
const FIRE_TIMES: &str = include_str!("../cron/fire_times.json");

/// What the Open Cron Pattern Specification, in the version `of`, says of a pattern.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    of: String,
    pattern: String,
    #[serde(default)]
    fits: Vec<DateTime>,
    #[serde(default)]
    not: Vec<DateTime>,
    /// Another pattern of the same times.
    same: Option<String>,
    /// The field whose fault it is; empty for the whole.
    refused: Option<String>,
    #[serde(default)]
    never: bool,
}

/// Made by `fire_times.py`.
#[derive(Deserialize)]
struct Expected {
    zone: String,
    pattern: String,
    dst: DstPolicy,
    years: Vec<usize>,
    sha256: String,
}

fn utc(pattern: &str) -> Cadence {
    let pattern = CronPattern::parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
    Cadence::new(pattern, TimeZone::UTC, DstPolicy::Once)
}

fn first_of(year: i16) -> Timestamp {
    format!("{year}-01-01T00:00:00Z").parse().unwrap()
}

#[test]
fn patterns_mean_what_the_specification_says() {
    let cases: Vec<Case> = serde_json::from_str(PATTERNS).unwrap();
    let from = first_of(2025);
    for case in cases {
        let name = format!("{} `{}`", case.of, case.pattern);
        if let Some(field) = case.refused {
            let error = CronPattern::parse(&case.pattern).expect_err(&name);
            assert_eq!(error.field.unwrap_or_default(), field, "{name}: {error}");
            assert!(!error.remedy.is_empty());
            continue;
        }
        let pattern = CronPattern::parse(&case.pattern).unwrap_or_else(|error| panic!("{name}: {error}"));
        for wall in case.fits {
            assert!(pattern.matches(wall), "{name} fits {wall}");
        }
        for wall in case.not {
            assert!(!pattern.matches(wall), "{name} does not fit {wall}");
        }
        if let Some(same) = case.same {
            let times = |pattern: &str| utc(pattern).after(from).take(200).collect::<Vec<_>>();
            assert_eq!(times(&case.pattern), times(&same), "{name} is `{same}`");
        }
        assert_eq!(utc(&case.pattern).next_after(from).is_none(), case.never, "{name}");
    }
}

#[test]
fn fire_times_of_ten_years_are_those_that_something_else_worked_out() {
    let expected: Vec<Expected> = serde_json::from_str(FIRE_TIMES).unwrap();
    assert!(expected.len() >= 180);
    for Expected { zone, pattern, dst, years, sha256 } in expected {
        let name = format!("{zone} `{pattern}` {dst:?}");
        let cadence = Cadence::new(CronPattern::parse(&pattern).unwrap(), TimeZone::get(&zone).unwrap(), dst);
        let before = first_of(2015).checked_sub(std::time::Duration::from_nanos(1)).unwrap();
        let (mut counts, mut hash) = (vec![0; years.len()], Sha256::new());
        for time in cadence.after(before).take_while(|time| *time < first_of(2025)) {
            counts[usize::try_from(time.to_string()[..4].parse::<i16>().unwrap() - 2015).unwrap()] += 1;
            hash.update(format!("{}\n", time.as_second()));
        }
        assert_eq!(counts, years, "{name}: how many in each year");
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, sha256, "{name}: the right number, at the wrong times");
    }
}

/// The table of the scheduler's README: zone, a moment of the day before, a wall clock time, and when it fires in the day after
/// that under each policy.
const CHANGES: &[(&str, &str, &str, [&[&str]; 3])] = &[
    ("Australia/Melbourne", "2026-10-03T12:00:00Z", "30 2", [&["03:00+11:00"], &[], &["03:00+11:00"]]),
    (
        "Australia/Melbourne",
        "2026-04-04T12:00:00Z",
        "30 2",
        [&["02:30+11:00"], &["02:30+11:00"], &["02:30+11:00", "02:30+10:00"]],
    ),
    ("Australia/Lord_Howe", "2026-10-03T12:00:00Z", "15 2", [&["02:30+11:00"], &[], &["02:30+11:00"]]),
    (
        "Australia/Lord_Howe",
        "2026-04-04T12:00:00Z",
        "45 1",
        [&["01:45+11:00"], &["01:45+11:00"], &["01:45+11:00", "01:45+10:30"]],
    ),
    ("America/New_York", "2026-03-08T00:00:00Z", "30 2", [&["03:00-04:00"], &[], &["03:00-04:00"]]),
    (
        "America/New_York",
        "2026-11-01T00:00:00Z",
        "30 1",
        [&["01:30-04:00"], &["01:30-04:00"], &["01:30-04:00", "01:30-05:00"]],
    ),
    ("Europe/London", "2026-03-28T12:00:00Z", "30 1", [&["02:00+01:00"], &[], &["02:00+01:00"]]),
    (
        "Europe/London",
        "2026-10-24T12:00:00Z",
        "30 1",
        [&["01:30+01:00"], &["01:30+01:00"], &["01:30+01:00", "01:30+00:00"]],
    ),
    ("America/Sao_Paulo", "2018-11-03T12:00:00Z", "0 0", [&["01:00-02:00"], &[], &["01:00-02:00"]]),
    (
        "America/Sao_Paulo",
        "2019-02-16T12:00:00Z",
        "30 23",
        [&["23:30-02:00"], &["23:30-02:00"], &["23:30-02:00", "23:30-03:00"]],
    ),
    ("Asia/Kathmandu", "2026-03-28T12:00:00Z", "30 2", [&["02:30+05:45"], &["02:30+05:45"], &["02:30+05:45"]]),
];

#[test]
fn changes_of_the_clock_are_as_documented() {
    for (zone, from, wall, expected) in CHANGES {
        for (dst, expected) in [DstPolicy::Once, DstPolicy::Skip, DstPolicy::Twice].into_iter().zip(expected) {
            let zone = TimeZone::get(zone).unwrap();
            let pattern = CronPattern::parse(&format!("{wall} * * *")).unwrap();
            let from: Timestamp = from.parse().unwrap();
            let until = from.checked_add(std::time::Duration::from_secs(22 * 3600)).unwrap();
            let told = |time| jiff::ZonedDateTime::new(time, zone.clone()).strftime("%H:%M%:z").to_string();
            let cadence = Cadence::new(pattern, zone.clone(), dst);
            let fired = cadence.after(from).take_while(|time| *time < until);
            assert_eq!(fired.map(told).collect::<Vec<_>>(), *expected, "{wall} in {zone:?}, {dst:?}");
        }
    }
}
