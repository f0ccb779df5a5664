//! What a turn costs in tokens when its run is young and when it is old, beside what a replay of the whole past would cost.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    stats::hundredth,
    target::{Error, Seen, Target},
};

/// The event types that the driver waits for.
const HEARD: [&str; 2] = ["run.completed", "run.failed"];
/// How long the whole run may take.
const PATIENCE: Duration = Duration::from_secs(900);
/// Turns that are looked at.
const TURNS: [u64; 3] = [10, 100, 1000];
/// Wakes that a figure is the mean of: history is shown in full, and then summarised, in less than that.
const WINDOW: u64 = 10;
/// The turn that needs what turn 3 found.
const NEEDS: u64 = 900;

/// Nothing to choose.
#[derive(clap::Args)]
pub struct Options {}

/// A turn, as the log has it.
struct Turn {
    number: u64,
    /// Tokens that the model was shown and wrote, re-asks included.
    tokens: u64,
    /// Tokens that the rules, the tools, the instructions and the objective take: what a replay sends each time.
    standing: u64,
    /// Tokens that this turn adds to the past: what it said, what it asked for, what came of it.
    adds: u64,
}

/// Lets one run live for a thousand turns.
pub async fn measure(_: &Options) -> Result<Value, Error> {
    let target = Target::from_env(&HEARD).await?;
    target.put_agent("long-work", include_str!("../agents/long-work.yaml")).await?;
    let began = Instant::now();
    let (run, mut events) = target.start("long-work", "read on").await?;
    let end = tokio::time::timeout(PATIENCE, events.recv()).await?.ok_or("no more events")?;
    let seconds = began.elapsed().as_secs_f64();
    if end.event_type != "run.completed" {
        return Err(format!("run {run} has failed: {}", end.data).into());
    }
    let log = target.all_events(&run).await?;
    let turns = turns(&log);
    let summaries: Vec<u64> = log
        .iter()
        .filter(|event| event.event_type == "context.compacted")
        .map(|event| number(&event.data["usage"]["input_tokens"]) + number(&event.data["usage"]["output_tokens"]))
        .collect();
    let at: Vec<Value> = TURNS.iter().map(|turn| figures(&turns, *turn)).collect();
    let means: Vec<u64> = at.iter().map(|figures| number(&figures["tokens_per_wake"])).collect();
    let (least, most) = (means.iter().min().copied().unwrap_or(0), means.iter().max().copied().unwrap_or(0));
    let ours: u64 = turns.iter().map(|turn| turn.tokens).sum::<u64>() + summaries.iter().sum::<u64>();
    let replayed: u64 = turns.iter().map(|turn| replay(&turns, turn.number)).sum();
    let code = format!("K-{run}");
    let known = log.iter().any(|event| {
        let asked = event.data["call"]["arguments"]["text"].as_str().unwrap_or_default();
        event.event_type == "tool.requested" && asked == format!("with the code {code}")
    });
    let mut violations = Vec::new();
    if most * 10 > least * 11 {
        violations.push(format!("tokens per wake differ by more than 10%: {means:?}"));
    }
    if !known {
        violations.push(format!("turn {NEEDS} does not know what turn 3 found"));
    }
    Ok(json!({
        "scenario": "slice",
        "turns": turns.len(),
        "seconds": hundredth(seconds),
        "at": at,
        "spread_percent": hundredth((most as f64 / least.max(1) as f64 - 1.0) * 100.0),
        "fact_of_turn_3_used_at_turn_900": known,
        "summaries": summaries.len(),
        "tokens_of_summaries": summaries.iter().sum::<u64>(),
        "tokens_in_all": ours,
        "tokens_in_all_by_full_replay": replayed,
        "violations": violations,
    }))
}

/// The mean over the wakes from this one on, and what a full replay would have sent at this turn.
fn figures(turns: &[Turn], from: u64) -> Value {
    let window: Vec<&Turn> = turns.iter().filter(|turn| (from..from + WINDOW).contains(&turn.number)).collect();
    let sum: u64 = window.iter().map(|turn| turn.tokens).sum();
    let this = turns.iter().find(|turn| turn.number == from).map_or(0, |turn| turn.tokens);
    json!({
        "turn": from,
        "tokens_per_wake": sum / (window.len() as u64).max(1),
        "tokens_of_this_turn": this,
        "full_replay": replay(turns, from),
    })
}

/// What a turn would send that is shown everything that went before.
fn replay(turns: &[Turn], at: u64) -> u64 {
    let past: u64 = turns.iter().filter(|turn| turn.number < at).map(|turn| turn.adds).sum();
    turns.iter().find(|turn| turn.number == at).map_or(0, |turn| turn.standing + past)
}

fn turns(log: &[Seen]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for event in log {
        let adds = match event.event_type.as_str() {
            "turn.completed" => {
                let usage = &event.data["usage"];
                let sections = event.data["manifest"]["sections"].as_array().cloned().unwrap_or_default();
                let stands = |section: &&Value| {
                    matches!(section["name"].as_str(), Some("tools" | "rules" | "instructions" | "objective"))
                };
                turns.push(Turn {
                    number: number(&event.data["number"]),
                    tokens: number(&usage["input_tokens"]) + number(&usage["output_tokens"]),
                    standing: sections.iter().filter(stands).map(|section| number(&section["tokens"])).sum(),
                    adds: 0,
                });
                text(&event.data["text"]["text"])
            }
            "tool.requested" => text(&event.data["call"]["arguments"]),
            "tool.completed" => text(&event.data["result"]["block"]["text"]),
            _ => 0,
        };
        if let Some(turn) = turns.last_mut() {
            turn.adds += adds;
        }
    }
    turns
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Tokens of a text, or of a value as text, counted as the planner counts.
fn text(value: &Value) -> u64 {
    let bytes = match value {
        Value::Null => 0,
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    };
    (bytes as u64).div_ceil(4)
}
