//! Telling the story of a run, whole or as it happens.

use serde_json::{Value, json};

use super::runs::shown;
use crate::{
    api::{Api, NO_QUERY},
    args::TailArgs,
    error::CliError,
    follow::{Follow, News},
    out::Out,
    style::{Paint, clean, cut},
    timeline::Timeline,
    views::{EventView, text},
};

/// Events read at once.
const PAGE: u32 = 1000;

/// Tells what has happened so far.
pub async fn timeline(api: &Api, run: &str, out: &Out) -> Result<(), CliError> {
    let run = shown(api, run).await?;
    let mut timeline = Timeline::new(out.style());
    let (mut after, mut events) = (0, 0_u64);
    loop {
        let query = [("after", Some(after.to_string())), ("limit", Some(PAGE.to_string()))];
        let answer: Value = api.get(&format!("/v1/runs/{run}/events"), &query).await?;
        let page = crate::views::rows(&answer);
        for row in page {
            let event: EventView = serde_json::from_value(row.clone())
                .map_err(|error| CliError::failed(format!("an event is not as this version knows it: {error}")))?;
            timeline.feed(&event).iter().for_each(|line| out.say(line));
            after = event.seq;
            events += 1;
        }
        if page.len() < PAGE as usize {
            break;
        }
    }
    timeline.summary().iter().for_each(|line| out.say(line));
    out.value(&json!({"run_id": run, "events": events, "economics": timeline.economics()}));
    Ok(())
}

/// Follows a run to its end.
pub async fn tail(api: &Api, args: &TailArgs, out: &Out) -> Result<(), CliError> {
    let run = shown(api, &args.run).await?;
    if args.trace {
        trace(api, &run, out).await?;
    }
    follow(api, &run, args.after, out).await
}

/// Says which trace a run is, and where that can be looked at.
async fn trace(api: &Api, run: &str, out: &Out) -> Result<(), CliError> {
    let shown: Value = api.get(&format!("/v1/runs/{run}"), NO_QUERY).await?;
    let url = shown.get("trace_url").and_then(Value::as_str);
    let place =
        url.unwrap_or("nobody has told the API where traces are (ESC_TRACE_URL), or this run's are not exported");
    out.say(format!("trace {}  {}", clean(text(&shown, &["trace_id"])), out.style().paint(Paint::Dim, &clean(place))));
    out.value(&json!({"trace_id": shown.get("trace_id"), "trace_url": url}));
    Ok(())
}

/// Tells what happens in a run as it happens. Fails if the run does.
pub async fn follow(api: &Api, run: &str, after: u64, out: &Out) -> Result<(), CliError> {
    let mut timeline = Timeline::new(out.style());
    let mut follow = Follow::new(api, run, after);
    let mut draft = String::new();
    loop {
        match follow.next().await? {
            News::Event(event) => {
                out.fleeting("");
                draft.clear();
                out.value(&event);
                timeline.feed(&event).iter().for_each(|line| out.say(line));
                if event.is_terminal() {
                    timeline.summary().iter().for_each(|line| out.say(line));
                    return ended(&event);
                }
            }
            News::Delta(text) => {
                draft.push_str(&text);
                out.fleeting(&last_words(&draft, out.style().width()));
            }
            News::Broken(why) => out.fleeting(&cut(&clean(&format!("{why}; trying again")), out.style().width())),
            News::Connected => out.fleeting(""),
            News::Ended => return Ok(()),
        }
    }
}

/// The end of what the model has written so far, in one line.
fn last_words(draft: &str, width: usize) -> String {
    let line = clean(&draft.split_whitespace().collect::<Vec<_>>().join(" "));
    let length = line.chars().count();
    let skip = length.saturating_sub(width.saturating_sub(4));
    let shown: String = line.chars().skip(skip).collect();
    if skip > 0 { format!("  …{shown}") } else { format!("  {shown}") }
}

fn ended(event: &EventView) -> Result<(), CliError> {
    if !event.is_failure() {
        return Ok(());
    }
    let how = if event.event_type == "run.cancelled" { "was cancelled" } else { "failed" };
    let why = text(&event.data, &["ending", "text", "text"]);
    Err(CliError::failed(format!("the run {how}: {}", clean(why.lines().next().unwrap_or_default()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_shows_its_end() {
        assert_eq!(last_words("Hello\nworld", 40), "  Hello world");
        assert_eq!(last_words(&"x".repeat(100), 14), format!("  …{}", "x".repeat(10)));
    }
}
