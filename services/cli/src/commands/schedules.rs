//! Schedules.

use engine::{Cadence, CronPattern, SoundSchedule, parse_schedule};
use jiff::{Timestamp, ZonedDateTime, tz::TimeZone};
use kernel::schedule::DstPolicy;
use serde_json::{Value, json};

use super::read_file;
use crate::{
    api::{Api, NO_QUERY},
    args::{BackfillArgs, NextArgs, SchedulesCommand},
    error::CliError,
    out::Out,
    style::{Paint, clean},
    table::Table,
    views::{rows, text},
};

/// Does what was typed.
pub async fn run(
    api: impl Fn() -> Result<Api, CliError>,
    command: &SchedulesCommand,
    out: &Out,
) -> Result<(), CliError> {
    match command {
        SchedulesCommand::Apply { files } => apply(&api()?, files, out).await,
        SchedulesCommand::List => list(&api()?, out).await,
        SchedulesCommand::Show { name } => show(&api()?, name, out).await,
        SchedulesCommand::Next(next) => match &next.name {
            Some(name) => next_of(&api()?, name, next, out).await,
            None => next_of_pattern(next, out),
        },
        SchedulesCommand::Firings { name, limit } => firings(&api()?, name, *limit, out).await,
        SchedulesCommand::Pause { name } => hold(&api()?, name, "pause", out).await,
        SchedulesCommand::Resume { name } => hold(&api()?, name, "resume", out).await,
        SchedulesCommand::Delete { name } => delete(&api()?, name, out).await,
        SchedulesCommand::Backfill(range) => backfill(&api()?, range, out).await,
    }
}

/// Puts schedules in, in the order of the files. What is wrong in one is said before any is sent.
async fn apply(api: &Api, files: &[std::path::PathBuf], out: &Out) -> Result<(), CliError> {
    let mut schedules = Vec::new();
    for file in files {
        let yaml = read_file(file)?;
        let SoundSchedule { spec, .. } = parse_schedule(&yaml, Timestamp::now()).map_err(|error| {
            let place = error.place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
            let field = error.field.map(|field| format!(" (`{field}`)")).unwrap_or_default();
            CliError::usage_with(format!("{}: {place}{}{field}", file.display(), error.message), error.remedy)
        })?;
        schedules.push((spec.name, yaml));
    }
    for (name, yaml) in schedules {
        let answer: Value = api.put(&path(&name, ""), "application/yaml", yaml).await?;
        out.say(line(&answer, out));
        out.value(&answer);
    }
    Ok(())
}

async fn list(api: &Api, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get("/v1/schedules", NO_QUERY).await?;
    let mut table = Table::new(
        ["name", "when", "zone", "does", "next", "made by"],
        "no schedules: `esc schedules apply FILE` puts one in",
    );
    for schedule in rows(&answer) {
        let spec = |field: &str| clean(text(schedule, &["spec", field]));
        table.row([
            (Paint::Bold, clean(text(schedule, &["name"]))),
            (Paint::Plain, spec("cron")),
            (Paint::Dim, spec("time_zone")),
            (Paint::Plain, what(schedule)),
            if held(schedule) { (Paint::Warn, "held".to_owned()) } else { (Paint::Plain, first_time(schedule)) },
            (Paint::Dim, clean(text(schedule, &["made_by"]))),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

async fn show(api: &Api, name: &str, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get(&path(name, ""), NO_QUERY).await?;
    out.say(line(&answer, out));
    let spec = answer.get("spec").cloned().unwrap_or_default();
    for text in serde_json::to_string_pretty(&spec).unwrap_or_default().lines() {
        out.say(clean(text));
    }
    out.value(&answer);
    Ok(())
}

async fn next_of(api: &Api, name: &str, next: &NextArgs, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get(&path(name, ""), &[("next", Some(next.count.to_string()))]).await?;
    let zone = TimeZone::get(text(&answer, &["spec", "time_zone"])).unwrap_or(TimeZone::UTC);
    let times = answer.get("next").and_then(Value::as_array).into_iter().flatten();
    let times: Vec<Timestamp> = times.filter_map(|time| time.as_str()?.parse().ok()).collect();
    if held(&answer) {
        out.say(out.style().paint(Paint::Warn, "it is held: `esc schedules resume` lets it go on"));
    }
    tell(&times, &zone, out);
    Ok(())
}

/// The times of a pattern, worked out here.
fn next_of_pattern(next: &NextArgs, out: &Out) -> Result<(), CliError> {
    let pattern = next.cron.as_deref().unwrap_or_default();
    let pattern = CronPattern::parse(pattern).map_err(|error| CliError::usage_with(error.message, error.remedy))?;
    let zone = TimeZone::get(&next.zone).map_err(|_| {
        CliError::usage_with(format!("there is no time zone `{}`", clean(&next.zone)), "give one such as Europe/London")
    })?;
    let dst: DstPolicy = serde_json::from_value(json!(next.dst)).map_err(|_| {
        CliError::usage_with(format!("`{}` is no policy", clean(&next.dst)), "give once, skip or twice")
    })?;
    let from = match &next.from {
        Some(from) => from.parse().map_err(|_| bad_time(from))?,
        None => Timestamp::now(),
    };
    let count = usize::try_from(next.count).unwrap_or(usize::MAX);
    let times: Vec<_> = Cadence::new(pattern, zone.clone(), dst).after(from).take(count).collect();
    tell(&times, &zone, out);
    Ok(())
}

fn tell(times: &[Timestamp], zone: &TimeZone, out: &Out) {
    if times.is_empty() {
        out.say(out.style().paint(Paint::Dim, "never"));
    }
    for time in times {
        let local = ZonedDateTime::new(*time, zone.clone()).strftime("%a %Y-%m-%d %H:%M:%S %Z").to_string();
        out.say(format!("{time}  {}", out.style().paint(Paint::Dim, &local)));
        out.value(time);
    }
}

async fn firings(api: &Api, name: &str, limit: u32, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.get(&path(name, "/firings"), &[("limit", Some(limit.to_string()))]).await?;
    let mut table = Table::new(["for", "state", "kind", "run", "note"], "it has not fired yet");
    for firing in rows(&answer) {
        let field = |name: &str| clean(text(firing, &[name]));
        let state = field("state");
        let paint = match state.as_str() {
            "started" | "ended" | "published" => Paint::Good,
            "failed" => Paint::Bad,
            "missed" | "skipped" => Paint::Warn,
            _ => Paint::Plain,
        };
        let run = [field("run_id"), field("run_status")].join(" ").trim().to_owned();
        table.row([
            (Paint::Bold, field("fire_at")),
            (paint, state),
            (Paint::Dim, field("kind")),
            (Paint::Plain, run),
            (Paint::Dim, field("note")),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

async fn hold(api: &Api, name: &str, verb: &str, out: &Out) -> Result<(), CliError> {
    let answer: Value = api.post(&path(name, &format!("/{verb}")), &json!({})).await?;
    out.say(line(&answer, out));
    out.value(&answer);
    Ok(())
}

async fn delete(api: &Api, name: &str, out: &Out) -> Result<(), CliError> {
    let _: Value = api.delete(&path(name, "")).await?;
    out.say(format!("{} deleted", out.style().paint(Paint::Bold, &clean(name))));
    out.value(&json!({"name": name, "deleted": true}));
    Ok(())
}

async fn backfill(api: &Api, range: &BackfillArgs, out: &Out) -> Result<(), CliError> {
    for time in [&range.from, &range.to] {
        time.parse::<Timestamp>().map_err(|_| bad_time(time))?;
    }
    let body = json!({"from": range.from, "to": range.to, "at_once": range.at_once});
    let answer: Value = api.post(&path(&range.name, "/backfill"), &body).await?;
    let count = |field: &str| answer.get(field).and_then(Value::as_u64).unwrap_or_default();
    out.say(format!("{} to fire, {} fired before", count("noted"), count("known")));
    out.value(&answer);
    Ok(())
}

fn path(name: &str, rest: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() || char == '-' { char } else { '_' };
    format!("/v1/schedules/{}{rest}", name.chars().map(plain).collect::<String>())
}

fn bad_time(text: &str) -> CliError {
    CliError::usage_with(format!("`{}` is no time", clean(text)), "give one such as 2030-01-31T09:00:00Z")
}

fn held(schedule: &Value) -> bool {
    schedule.get("paused").and_then(Value::as_bool).unwrap_or_default()
}

fn first_time(schedule: &Value) -> String {
    let next = schedule.get("next").and_then(|next| next.get(0)).and_then(Value::as_str);
    next.map_or_else(|| "never".to_owned(), clean)
}

fn what(schedule: &Value) -> String {
    match text(schedule, &["spec", "start", "agent"]) {
        "" => format!("publishes {}", clean(text(schedule, &["spec", "publish", "type"]))),
        agent => format!("starts {}", clean(agent)),
    }
}

fn line(schedule: &Value, out: &Out) -> String {
    let name = out.style().paint(Paint::Bold, &clean(text(schedule, &["name"])));
    let when = if held(schedule) { "held".to_owned() } else { format!("next {}", first_time(schedule)) };
    format!("{name}  {}  {when}", what(schedule))
}
