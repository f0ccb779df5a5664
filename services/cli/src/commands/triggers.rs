//! What an event would do, and why: asked of the system, or of agent files.

use std::path::PathBuf;

use engine::Filter;
use kernel::agent::{AgentSpec, Trigger};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{agents, json_of};
use crate::{
    api::Api,
    error::CliError,
    out::Out,
    style::{Paint, clean},
    views::text,
};

/// What one trigger, or one wait, makes of the event.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Verdict {
    /// The agent; none of a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    /// The run that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// The types that it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<String>,
    /// Whether a run starts, at once or later.
    starts: bool,
    /// `start`, `hold_back`, `wake`, `record` or `nothing`.
    would: String,
    why: String,
}

/// What the API tells.
#[derive(Deserialize)]
struct Told {
    triggers: Vec<TriggerTold>,
    waits: Vec<WaitTold>,
}

#[derive(Deserialize)]
struct TriggerTold {
    agent: String,
    on: String,
    would: String,
    why: String,
}

#[derive(Deserialize)]
struct WaitTold {
    run_id: String,
    takes: bool,
    why: String,
}

/// Says what the event would do. Without files the system is asked, which knows the runs that wait as well; if it does not answer, or
/// lets nobody in without a token, the files of ESC_AGENTS_DIR are.
pub async fn test(
    api: Option<&Api>,
    event: &str,
    source: Option<&str>,
    files: &[PathBuf],
    out: &Out,
) -> Result<(), CliError> {
    let event = json_of(event, "the event")?;
    if text(&event, &["type"]).is_empty() {
        return Err(CliError::usage_with("the event has no `type`", "give a CloudEvent in structured form"));
    }
    let verdicts = match api {
        Some(api) => match ask(api, &event, source).await {
            Err(error) if is_closed(&error) => {
                out.say(format!("{error}: tried on the agents' files"));
                of_files(files, &event)?
            }
            told => told?,
        },
        None => of_files(files, &event)?,
    };
    for verdict in &verdicts {
        let (paint, sign) = match verdict.would.as_str() {
            "start" => (Paint::Good, "starts    "),
            "hold_back" => (Paint::Good, "holds back"),
            "wake" => (Paint::Good, "wakes     "),
            "record" => (Paint::Good, "records   "),
            _ => (Paint::Dim, "no        "),
        };
        let who = verdict.agent.as_ref().or(verdict.run.as_ref()).map(|name| clean(name)).unwrap_or_default();
        let who = out.style().paint(Paint::Bold, &who);
        out.say(format!("{} {who}  {}", out.style().paint(paint, sign), clean(&verdict.why)));
    }
    if verdicts.is_empty() {
        out.say("no agent has a trigger, and no run waits for it");
    }
    out.value(&verdicts);
    if verdicts.iter().any(|verdict| verdict.would != "nothing") {
        Ok(())
    } else {
        Err(CliError::failed("the event would start nothing and wake nobody"))
    }
}

/// Nobody answers, or nobody is let in without a token.
fn is_closed(error: &CliError) -> bool {
    match error {
        CliError::Unreachable { .. } => true,
        CliError::Usage { problem: Some(problem), .. } => text(problem, &["code"]) == "missing_token",
        _ => false,
    }
}

async fn ask(api: &Api, event: &Value, source: Option<&str>) -> Result<Vec<Verdict>, CliError> {
    let told: Told = api.post("/v1/triggers:test", &json!({ "event": event, "source": source })).await?;
    let of_trigger = |told: TriggerTold| Verdict {
        agent: Some(told.agent),
        run: None,
        on: Some(told.on),
        starts: matches!(told.would.as_str(), "start" | "hold_back"),
        would: told.would,
        why: told.why,
    };
    let of_wait = |told: WaitTold| Verdict {
        agent: None,
        run: Some(told.run_id),
        on: None,
        starts: false,
        would: if told.takes { "wake" } else { "nothing" }.to_owned(),
        why: told.why,
    };
    let waits = told.waits.into_iter().map(of_wait);
    Ok(waits.chain(told.triggers.into_iter().map(of_trigger)).collect())
}

fn of_files(files: &[PathBuf], event: &Value) -> Result<Vec<Verdict>, CliError> {
    let agents = if files.is_empty() {
        agents::all()?
    } else {
        files.iter().map(|file| agents::read(file)).collect::<Result<_, _>>()?
    };
    let of_agent = |agent: &AgentSpec| {
        agent.triggers.iter().map(|trigger| judge(agent, trigger, event)).collect::<Result<Vec<_>, _>>()
    };
    Ok(agents.iter().map(of_agent).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn judge(agent: &AgentSpec, trigger: &Trigger, event: &Value) -> Result<Verdict, CliError> {
    let verdict = |would: &str, why: String| Verdict {
        agent: Some(agent.name.clone()),
        run: None,
        on: Some(trigger.on.clone()),
        starts: matches!(would, "start" | "hold_back"),
        would: would.to_owned(),
        why,
    };
    let event_type = text(event, &["type"]);
    if !engine::wants_type(&trigger.on, event_type) {
        return Ok(verdict("nothing", format!("it wants {}, this is {event_type}", trigger.on)));
    }
    let would = match &trigger.signal {
        Some(_) => "record",
        None if trigger.holds_back() => "hold_back",
        None => "start",
    };
    let Some(source) = &trigger.filter else { return Ok(verdict(would, format!("on {}", trigger.on))) };
    let filter = Filter::compile(source)
        .map_err(|error| CliError::usage(format!("agent `{}`: `{source}`: {error}", agent.name)))?;
    Ok(match filter.matches(event) {
        Ok(true) => verdict(would, format!("on {} where {source}", trigger.on)),
        Ok(false) => verdict("nothing", format!("{source} does not hold")),
        // As at the door: what can't be said to hold does not.
        Err(error) => verdict("nothing", format!("{source}: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn agent() -> AgentSpec {
        serde_json::from_value(json!({
            "name": "keeper", "model": "scripted:x", "instructions": "",
            "triggers": [{"on": "github.*", "where": "data.ref == \"main\"", "start": {"input": "go"}}],
        }))
        .unwrap()
    }

    #[test]
    fn a_trigger_says_why() {
        let agent = agent();
        let judged = |event| judge(&agent, &agent.triggers[0], &event).unwrap();
        assert!(judged(json!({"type": "github.push", "data": {"ref": "main"}})).starts);
        assert!(judged(json!({"type": "github.push", "data": {"ref": "side"}})).why.contains("does not hold"));
        assert!(judged(json!({"type": "gitlab.push", "data": {}})).why.contains("gitlab.push"));
        let missing = judged(json!({"type": "github.push", "data": {}}));
        assert!(!missing.starts, "{}", missing.why);
    }
}
