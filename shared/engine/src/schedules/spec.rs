//! Reading schedules as people write them, and what is wrong with one, by field.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kernel::schedule::{Overlap, ScheduleSpec, ScheduledEvent, ScheduledRun};

use super::{cadence::Cadence, cron::CronPattern};
use crate::{
    agents::{is_name, read_yaml},
    externals::MAX_RESOURCE_KEY,
};

/// Longest jitter, and longest time that is made up for.
const LONGEST: (Duration, Duration) = (Duration::from_secs(24 * 3600), Duration::from_secs(366 * 24 * 3600));
/// Longest source or type of an event, in bytes.
const TOKEN_BYTES: usize = 255;
/// How many of the coming times are looked at to see how close they are.
const LOOK_AHEAD: usize = 64;

/// A schedule that was read and found sound.
#[derive(Clone, Debug)]
pub struct SoundSchedule {
    /// What it says.
    pub spec: ScheduleSpec,
    /// When it fires.
    pub cadence: Cadence,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {remedy}")]
pub struct ScheduleFileError {
    /// Which field, such as `catch_up.within`; none when the text as a whole can't be read.
    pub field: Option<String>,
    /// Line and column, from 1, if the text can't be read there.
    pub place: Option<(u64, u64)>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

impl ScheduleFileError {
    pub(crate) fn new(field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field: Some(field.to_owned()), place: None, message: message.into(), remedy: remedy.into() }
    }
}

/// Reads a schedule, as YAML or JSON, and checks it. `now` is what "never again" is measured by.
///
/// # Errors
/// With the field that is wrong, and what would be right.
pub fn parse_schedule(text: &str, now: Timestamp) -> Result<SoundSchedule, ScheduleFileError> {
    check_schedule(read_schedule(text)?, now)
}

/// Reads a schedule, as YAML or JSON. Whether it can be is another question: see [`check_schedule`].
///
/// # Errors
/// With the place that can't be read.
pub fn read_schedule(text: &str) -> Result<ScheduleSpec, ScheduleFileError> {
    read_yaml(text).map_err(|error| ScheduleFileError {
        field: error.message.split('`').nth(1).filter(|_| error.message.contains("field")).map(str::to_owned),
        place: error.line.zip(error.column),
        message: error.message,
        remedy:
            "mend it at that place; the fields are cron, time_zone, dst, start or publish, overlap, catch_up, jitter, \
                 from, until, description"
                .to_owned(),
    })
}

/// Checks what a schedule says.
///
/// # Errors
/// As [`parse_schedule`].
pub fn check_schedule(spec: ScheduleSpec, now: Timestamp) -> Result<SoundSchedule, ScheduleFileError> {
    if !is_name(&spec.name) {
        return Err(ScheduleFileError::new(
            "name",
            format!("`{}` is not a name", spec.name.chars().take(80).collect::<String>()),
            "use 1 to 63 of a-z, 0-9 and `-`, not beginning with `-`",
        ));
    }
    match (&spec.start, &spec.publish) {
        (Some(run), None) => check_run(run)?,
        (None, Some(event)) => check_event(event, spec.overlap)?,
        (None, None) => {
            return Err(ScheduleFileError::new("start", "nothing is to be done", "give `start` or `publish`"));
        }
        (Some(_), Some(_)) => {
            return Err(ScheduleFileError::new("publish", "`start` and `publish` are both given", "leave one out"));
        }
    }
    let cadence = cadence_of(&spec)?;
    check_times(&spec, &cadence, now)?;
    Ok(SoundSchedule { spec, cadence })
}

/// The times that a schedule says.
///
/// # Errors
/// When its pattern or its zone can't be read.
pub fn cadence_of(spec: &ScheduleSpec) -> Result<Cadence, ScheduleFileError> {
    let pattern =
        CronPattern::parse(&spec.cron).map_err(|error| ScheduleFileError::new("cron", error.message, error.remedy))?;
    let remedy = "give the name of an IANA zone, such as `Australia/Melbourne` or `UTC`";
    // "Etc/Unknown" is what jiff calls a zone that it doesn't know.
    let zone = TimeZone::get(&spec.time_zone).ok().filter(|zone| !zone.is_unknown());
    let zone = zone.ok_or_else(|| {
        let given = spec.time_zone.chars().take(80).collect::<String>();
        ScheduleFileError::new("time_zone", format!("there is no time zone `{given}`"), remedy)
    })?;
    Ok(Cadence::new(pattern, zone, spec.dst).between(spec.from, spec.until))
}

fn check_run(run: &ScheduledRun) -> Result<(), ScheduleFileError> {
    if !is_name(&run.agent) {
        let message = format!("`{}` is not the name of an agent", run.agent.chars().take(80).collect::<String>());
        return Err(ScheduleFileError::new("start.agent", message, "`GET /v1/agents` lists the agents"));
    }
    let empty = run.input.is_null() || run.input.as_str().is_some_and(|text| text.trim().is_empty());
    if empty {
        let remedy = "say what the run is to do, in words or as JSON";
        return Err(ScheduleFileError::new("start.input", "the input is empty", remedy));
    }
    if run.budget.cost_usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
        let remedy = "give 0 or more dollars";
        return Err(ScheduleFileError::new("start.budget.cost_usd", "the cost is no amount", remedy));
    }
    Ok(())
}

fn check_event(event: &ScheduledEvent, overlap: Option<Overlap>) -> Result<(), ScheduleFileError> {
    for (field, text) in [("publish.type", &event.event_type), ("publish.source", &event.source)] {
        if !(1..=TOKEN_BYTES).contains(&text.len()) || text.chars().any(char::is_control) {
            let message = format!("it is empty, longer than {TOKEN_BYTES} bytes, or has control characters");
            return Err(ScheduleFileError::new(field, message, "give a short name, such as `report.due`"));
        }
    }
    if event.event_type.split('.').any(str::is_empty) {
        let message = format!("`{}` has an empty part", event.event_type);
        return Err(ScheduleFileError::new("publish.type", message, "write parts joined by single dots"));
    }
    if event.source.len() + event.subject.len() >= MAX_RESOURCE_KEY {
        let message = "source and subject are too long together";
        return Err(ScheduleFileError::new(
            "publish.subject",
            message,
            format!("keep them below {MAX_RESOURCE_KEY} bytes"),
        ));
    }
    match overlap {
        None | Some(Overlap::Allow) => Ok(()),
        Some(_) => Err(ScheduleFileError::new(
            "overlap",
            "an event is over at once, so nothing can overlap with it",
            "leave `overlap` out, or `start` a run",
        )),
    }
}

fn check_times(spec: &ScheduleSpec, cadence: &Cadence, now: Timestamp) -> Result<(), ScheduleFileError> {
    if let (Some(from), Some(until)) = (spec.from, spec.until)
        && from > until
    {
        return Err(ScheduleFileError::new("until", "it ends before it begins", "give an `until` after `from`"));
    }
    if spec.until.is_some_and(|until| until <= now) {
        return Err(ScheduleFileError::new("until", "it is over already", "give a time to come, or leave it out"));
    }
    let coming: Vec<_> = cadence.after(now).take(LOOK_AHEAD).collect();
    if coming.is_empty() {
        let bound = spec.from.is_some() || spec.until.is_some();
        let remedy = if bound {
            "give a pattern that has a time between `from` and `until`"
        } else {
            "give days that their month has, and no year that is over"
        };
        return Err(ScheduleFileError::new("cron", format!("`{}` never fires", spec.cron.trim()), remedy));
    }
    check_spans(spec, closest(&coming))
}

/// The shortest time between two of them.
fn closest(times: &[Timestamp]) -> Option<Duration> {
    let between = |two: &[Timestamp]| two[1].duration_since(two[0]);
    times.windows(2).map(between).min().and_then(|shortest: SignedDuration| Duration::try_from(shortest).ok())
}

fn check_spans(spec: &ScheduleSpec, closest: Option<Duration>) -> Result<(), ScheduleFileError> {
    let jitter = spec.jitter.std();
    let most = closest.map_or(LONGEST.0, |closest| closest.min(LONGEST.0));
    if jitter > most {
        let message = format!("a firing could be put off by {}, beyond the one after it", spec.jitter);
        return Err(ScheduleFileError::new("jitter", message, format!("give {most:?} at most")));
    }
    if spec.catch_up.within.std() > LONGEST.1 {
        let message = format!("{} is longer than a year", spec.catch_up.within);
        return Err(ScheduleFileError::new("catch_up.within", message, "give 366d at most"));
    }
    Ok(())
}

impl SoundSchedule {
    /// The shortest time between two of the next firings.
    #[must_use]
    pub fn closest_after(&self, now: Timestamp) -> Option<Duration> {
        closest(&self.cadence.after(now).take(LOOK_AHEAD).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIGHTLY: &str = r#"
name: nightly
cron: "30 2 * * MON-FRI"
time_zone: Australia/Melbourne
start: { agent: reporter, input: "Report.", budget: { turns: 3 } }
overlap: queue
catch_up: { within: 6h, missed: all }
jitter: 5m
"#;

    fn now() -> Timestamp {
        "2026-11-30T00:00:00Z".parse().unwrap()
    }

    fn error(text: &str) -> ScheduleFileError {
        parse_schedule(text, now()).unwrap_err()
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let sound = parse_schedule(NIGHTLY, now()).unwrap();
        assert_eq!(sound.spec.overlap(), Overlap::Queue);
        assert_eq!(sound.cadence.next_after(now()).unwrap().to_string(), "2026-11-30T15:30:00Z");
        let json = serde_json::to_string(&sound.spec).unwrap();
        assert_eq!(parse_schedule(&json, now()).unwrap().spec, sound.spec);
        let event = r#"{"name": "tick", "cron": "@hourly", "publish": {"type": "clock.struck", "data": {"bells": 8}}}"#;
        let event = parse_schedule(event, now()).unwrap().spec;
        assert_eq!((event.publish.as_ref().unwrap().source.as_str(), event.overlap()), ("schedule", Overlap::Allow));
    }

    #[test]
    fn each_mistake_names_its_field_and_a_remedy() {
        for (from, to, field, word) in [
            ("name: nightly", "name: Nightly!", "name", "a-z"),
            ("\"30 2 * * MON-FRI\"", "\"0 30 2 31 2 *\"", "cron", "never fires"),
            ("\"30 2 * * MON-FRI\"", "\"60 2 * * *\"", "cron", "minute"),
            ("\"30 2 * * MON-FRI\"", "\"30 25 * * *\"", "cron", "hour"),
            ("\"30 2 * * MON-FRI\"", "\"30 2 * * FUNDAY\"", "cron", "day of week"),
            ("\"30 2 * * MON-FRI\"", "\"30 2 * JAN1 *\"", "cron", "JAN1"),
            ("\"30 2 * * MON-FRI\"", "\"30 2 * *\"", "cron", "4 fields"),
            ("\"30 2 * * MON-FRI\"", "\"@Daily\"", "cron", "lower case"),
            ("\"30 2 * * MON-FRI\"", "\"@reboot\"", "cron", "start-up"),
            ("Australia/Melbourne", "Australia/Atlantis", "time_zone", "IANA"),
            ("agent: reporter", "agent: \"\"", "start.agent", "agent"),
            ("\"Report.\"", "\" \"", "start.input", "empty"),
            ("jitter: 5m", "jitter: 25h", "jitter", "put off"),
            ("within: 6h", "within: 400d", "catch_up.within", "year"),
            ("jitter: 5m", "until: 2020-01-01T00:00:00Z", "until", "over already"),
            ("jitter: 5m", "from: 2030-01-01T00:00:00Z\nuntil: 2029-01-01T00:00:00Z", "until", "before it begins"),
            ("jitter: 5m", "publish: { type: a.b }", "publish", "both"),
            ("start: { agent: reporter, input: \"Report.\", budget: { turns: 3 } }", "", "start", "nothing"),
            (
                "start: { agent: reporter, input: \"Report.\", budget: { turns: 3 } }",
                "publish: { type: a..b }",
                "publish.type",
                "empty part",
            ),
            (
                "start: { agent: reporter, input: \"Report.\", budget: { turns: 3 } }",
                "publish: { type: a.b }",
                "overlap",
                "overlap",
            ),
        ] {
            let text = NIGHTLY.replacen(from, to, 1);
            assert_ne!(text, NIGHTLY, "{from}");
            let error = error(&text);
            assert_eq!(error.field.as_deref(), Some(field), "{to}: {error}");
            assert!(error.to_string().contains(word), "{to}: {error}");
        }
        let unknown = error(&NIGHTLY.replace("time_zone:", "timezone:"));
        assert_eq!(unknown.place.map(|(line, _)| line), Some(4), "{unknown}");
        assert!(unknown.message.contains("timezone"), "{unknown}");
        assert!(error("cron: [").place.is_some());
        assert!(error(&NIGHTLY.replace("6h", "6")).to_string().contains("duration"));
    }

    #[test]
    fn how_close_firings_come_is_seen() {
        let sound =
            parse_schedule(&NIGHTLY.replace("30 2 * * MON-FRI", "*/20 * 8 * * *").replace("jitter: 5m", ""), now());
        assert_eq!(sound.unwrap().closest_after(now()), Some(Duration::from_secs(20)));
    }
}
