//! Runs as they stand, and a hand on them.

use jiff::Timestamp;
use kernel::RunId;
use serde_json::{Value, json};

use crate::{
    api::{Api, NO_QUERY},
    args::{ControlArgs, PageArgs, RunsArgs, Wake},
    error::CliError,
    out::Out,
    style::{Paint, clean},
    table::Table,
    timeline::words::{ago, span},
    views::{rows, text},
};

/// Lists runs.
pub async fn list(api: &Api, args: &RunsArgs, out: &Out) -> Result<(), CliError> {
    let query = [
        ("status", args.status.clone()),
        ("agent", args.agent.clone()),
        ("wake", args.wake.map(|wake| wake.as_str().to_owned())),
        ("q", args.query.clone()),
        ("since", args.since.as_deref().map(since).transpose()?),
        ("limit", Some(args.limit.to_string())),
        ("cursor", args.cursor.clone()),
    ];
    let page: Value = api.get("/v1/runs", &query).await?;
    let mut table = Table::new(["run", "agent", "status", "age", "turns", "tokens", "objective"], "no runs");
    for run in rows(&page) {
        let status = text(run, &["status"]);
        let number =
            |name: &str| run.get("usage").and_then(|usage| usage.get(name)).and_then(Value::as_u64).unwrap_or(0);
        table.row([
            (Paint::Plain, text(run, &["run_id"]).to_owned()),
            (Paint::Bold, text(run, &["agent"]).to_owned()),
            (paint_of(status), shown_status(run)),
            (Paint::Dim, age(run, "created_at")),
            (Paint::Plain, number("turns").to_string()),
            (Paint::Plain, (number("input_tokens") + number("output_tokens")).to_string()),
            (Paint::Plain, one_line(text(run, &["objective"]))),
        ]);
    }
    out.table(&page, &table);
    more(&page, out);
    Ok(())
}

/// Says how the next page is had, if there is one.
pub fn more(page: &Value, out: &Out) {
    if let Some(next) = page.get("next").filter(|next| !next.is_null()) {
        let next = next.as_str().map_or_else(|| next.to_string(), str::to_owned);
        out.say(out.style().paint(Paint::Dim, &format!("more: --cursor {next}")));
    }
}

/// Lists what runs wait for.
pub async fn waits(api: &Api, kind: Option<Wake>, page: &PageArgs, out: &Out) -> Result<(), CliError> {
    let query = [
        ("kind", kind.map(|kind| kind.as_str().to_owned())),
        ("limit", Some(page.limit.to_string())),
        ("cursor", page.cursor.clone()),
    ];
    let answer: Value = api.get("/v1/waits", &query).await?;
    let mut table = Table::new(["run", "agent", "since", "wakes on", "until", "why"], "nothing waits");
    for wait in rows(&answer) {
        table.row([
            (Paint::Plain, text(wait, &["run_id"]).to_owned()),
            (Paint::Bold, text(wait, &["agent"]).to_owned()),
            (Paint::Dim, age(wait, "since")),
            (Paint::Plain, wakes_on(wait)),
            (Paint::Plain, until(wait)),
            (Paint::Plain, one_line(text(wait, &["why"]))),
        ]);
    }
    out.table(&answer, &table);
    more(&answer, out);
    Ok(())
}

/// Pauses, resumes or ends a run.
pub async fn control(api: &Api, verb: &str, args: &ControlArgs, out: &Out) -> Result<(), CliError> {
    let run = resolve(api, &args.run).await?;
    let body = args.reason.as_ref().map_or_else(|| json!({}), |reason| json!({"reason": reason}));
    let answer: Value = api.post(&format!("/v1/runs/{run}/{verb}"), &body).await?;
    let status = text(&answer, &["status"]);
    out.say(format!("{run} is {}", if status.is_empty() { verb } else { status }));
    out.value(&answer);
    Ok(())
}

/// Vouches for a text that came from outside.
pub async fn vouch(api: &Api, run: &str, vouched: &Value, out: &Out) -> Result<(), CliError> {
    let run = resolve(api, run).await?;
    let answer: Value = api.post(&format!("/v1/runs/{run}/declassify"), vouched).await?;
    out.say(format!("{run} believes it from now on"));
    out.value(&answer);
    Ok(())
}

/// Writes into a run.
pub async fn say(api: &Api, run: &str, words: &str, out: &Out) -> Result<(), CliError> {
    let run = resolve(api, run).await?;
    let answer: Value = api.post(&format!("/v1/runs/{run}/messages"), &json!({"text": words})).await?;
    out.say(format!("told {run}"));
    out.value(&answer);
    Ok(())
}

/// Follows an event back to what caused it; the last one unless another is named.
pub async fn why(api: &Api, run: &str, event: Option<&str>, out: &Out) -> Result<(), CliError> {
    let run = shown(api, run).await?;
    let event = match event {
        Some(event) => event.to_owned(),
        None => {
            let stands: Value = api.get(&format!("/v1/runs/{run}"), NO_QUERY).await?;
            stands.get("seq").and_then(Value::as_u64).unwrap_or_default().to_string()
        }
    };
    let answer: Value = api.get(&format!("/v1/runs/{run}/why/{event}"), NO_QUERY).await?;
    out.value(&answer);
    let style = out.style();
    for link in answer.get("chain").and_then(Value::as_array).into_iter().flatten() {
        let seq = link.get("seq").and_then(Value::as_u64).unwrap_or_default();
        let head = format!("{seq:>5}  {}", style.paint(Paint::Bold, &clean(text(link, &["type"]))));
        let service = style.paint(Paint::Dim, &format!("by {}", clean(text(link, &["service"]))));
        out.say(format!("{head}  {service}  {}", one_line(text(link, &["summary"]))));
        for because in link.get("because").and_then(Value::as_array).into_iter().flatten() {
            let seq = because.get("seq").and_then(Value::as_u64).unwrap_or_default();
            let how = text(because, &["how"]).replace('_', " ");
            out.say(style.paint(Paint::Dim, &format!("       └ {how} {seq}")));
        }
    }
    for origin in answer.get("origins").and_then(Value::as_array).into_iter().flatten() {
        let (paint, words) = match text(origin, &["kind"]) {
            "event" => {
                let (name, source) = (text(origin, &["event", "event_type"]), text(origin, &["event", "resource_key"]));
                (Paint::World, format!("event {name} from {source}"))
            }
            _ => (Paint::Person, format!("operator {}", text(origin, &["name"]))),
        };
        out.say(format!("origin  {}", style.paint(paint, &clean(&words))));
    }
    Ok(())
}

/// The word for the run that was created last.
const LAST: &str = "last";

/// As [`resolve`], for whoever only looks: others may create runs too, so that nothing is done to whichever came `last`.
pub async fn shown(api: &Api, run: &str) -> Result<String, CliError> {
    if run != LAST {
        return resolve(api, run).await;
    }
    let page: Value = api.get("/v1/runs", &[("limit", Some("1".to_owned()))]).await?;
    rows(&page).first().map(|row| text(row, &["run_id"]).to_owned()).ok_or_else(|| {
        let remedy = "`esc run AGENT INPUT` starts one, and so does an event that a trigger wants";
        CliError::usage_with("there is no run yet", remedy)
    })
}

/// The id of a run from its beginning.
pub async fn resolve(api: &Api, run: &str) -> Result<String, CliError> {
    if run.parse::<RunId>().is_ok() {
        return Ok(run.to_owned());
    }
    let wrong = |what: &str| CliError::usage_with(format!("`{}` {what}", clean(run)), "`esc runs` lists the runs");
    if run.len() < 4 || !run.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return Err(wrong("is not the id of a run"));
    }
    let query = [("q", Some(run.to_owned())), ("limit", Some("50".to_owned()))];
    let page: Value = api.get("/v1/runs", &query).await?;
    let ids = rows(&page).iter().map(|row| text(row, &["run_id"])).filter(|id| id.starts_with(run));
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(wrong("is the beginning of no run's id")),
        _ => Err(wrong("is the beginning of several runs' ids")),
    }
}

fn shown_status(run: &Value) -> String {
    let kinds = run.get("wake_kinds").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let kinds: Vec<_> = kinds.map(|kind| kind.replace('_', " ")).collect();
    let status = text(run, &["status"]);
    if status == "waiting" && !kinds.is_empty() { format!("waiting ({})", kinds.join(", ")) } else { status.to_owned() }
}

fn paint_of(status: &str) -> Paint {
    match status {
        "completed" => Paint::Good,
        "failed" | "cancelled" => Paint::Bad,
        "running" | "runnable" => Paint::Model,
        "paused" | "cancelling" | "queued" => Paint::Warn,
        _ => Paint::Plain,
    }
}

fn wakes_on(wait: &Value) -> String {
    let kind = text(wait, &["kind"]).replace('_', " ");
    let (event_type, key) = (text(wait, &["event_type"]), text(wait, &["resource_key"]));
    if event_type.is_empty() { kind } else { format!("{event_type} of {key}") }
}

fn until(wait: &Value) -> String {
    let at =
        ["due", "deadline"].map(|name| text(wait, &[name])).into_iter().find_map(|at| at.parse::<Timestamp>().ok());
    at.map(|at| {
        let left = at.duration_since(Timestamp::now());
        if left.is_negative() { format!("{} over", span(left.abs())) } else { format!("in {}", span(left)) }
    })
    .unwrap_or_default()
}

fn age(row: &Value, name: &str) -> String {
    text(row, &[name]).parse::<Timestamp>().map(ago).unwrap_or_default()
}

fn one_line(words: &str) -> String {
    clean(&words.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A time, or an age, as a time.
pub fn since(words: &str) -> Result<String, CliError> {
    if words.parse::<Timestamp>().is_ok() {
        return Ok(words.to_owned());
    }
    let age: kernel::units::Duration = words.parse().map_err(|_| {
        CliError::usage_with(
            format!("`{}` is neither a time nor an age", clean(words)),
            "such as 2h or 2026-01-31T12:00:00Z",
        )
    })?;
    let age = jiff::SignedDuration::from_millis(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    Ok(Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_an_age() {
        let hour_ago: Timestamp = since("1h").unwrap().parse().unwrap();
        let age = Timestamp::now().duration_since(hour_ago);
        assert!((3599..3700).contains(&age.as_secs()), "{age}");
        assert_eq!(since("2026-01-31T12:00:00Z").unwrap(), "2026-01-31T12:00:00Z");
        assert!(since("yesterday").is_err());
    }

    #[test]
    fn a_waiting_run_says_on_what() {
        let run = json!({"status": "waiting", "wake_kinds": ["task_result", "timer"]});
        assert_eq!(shown_status(&run), "waiting (task result, timer)");
        assert_eq!(shown_status(&json!({"status": "running", "wake_kinds": []})), "running");
    }
}
