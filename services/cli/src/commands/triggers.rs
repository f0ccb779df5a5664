//! Trying the triggers of agents on an event.

use std::path::PathBuf;

use engine::Filter;
use kernel::agent::{AgentSpec, Trigger};
use serde::Serialize;
use serde_json::Value;

use super::{agents, json_of};
use crate::{
    error::CliError,
    out::Out,
    style::{Paint, clean},
    views::text,
};

/// What one trigger makes of the event.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Verdict {
    agent: String,
    on: String,
    starts: bool,
    why: String,
}

/// Says which agents the event would start, and why the others not.
pub fn test(event: &str, files: &[PathBuf], out: &Out) -> Result<(), CliError> {
    let event = json_of(event, "the event")?;
    if text(&event, &["type"]).is_empty() {
        return Err(CliError::usage_with("the event has no `type`", "give a CloudEvent in structured form"));
    }
    let agents = if files.is_empty() {
        agents::all()?
    } else {
        files.iter().map(|file| agents::read(file)).collect::<Result<_, _>>()?
    };
    let verdicts: Vec<_> = agents
        .iter()
        .flat_map(|agent| agent.triggers.iter().map(|trigger| judge(agent, trigger, &event)))
        .collect::<Result<_, _>>()?;
    for verdict in &verdicts {
        let (paint, sign) = if verdict.starts { (Paint::Good, "starts") } else { (Paint::Dim, "no    ") };
        let agent = out.style().paint(Paint::Bold, &verdict.agent);
        out.say(format!("{} {agent}  {}", out.style().paint(paint, sign), clean(&verdict.why)));
    }
    if verdicts.is_empty() {
        out.say("no agent has a trigger");
    }
    out.value(&verdicts);
    if verdicts.iter().any(|verdict| verdict.starts) {
        Ok(())
    } else {
        Err(CliError::failed("the event would start nothing"))
    }
}

fn judge(agent: &AgentSpec, trigger: &Trigger, event: &Value) -> Result<Verdict, CliError> {
    let verdict = |starts, why: String| Verdict { agent: agent.name.clone(), on: trigger.on.clone(), starts, why };
    let event_type = text(event, &["type"]);
    let matches = match trigger.on.strip_suffix('*') {
        Some(start) => event_type.starts_with(start),
        None => trigger.on == event_type,
    };
    if !matches {
        return Ok(verdict(false, format!("it wants {}, this is {event_type}", trigger.on)));
    }
    let Some(source) = &trigger.filter else { return Ok(verdict(true, format!("on {}", trigger.on))) };
    let filter = Filter::compile(source)
        .map_err(|error| CliError::usage(format!("agent `{}`: `{source}`: {error}", agent.name)))?;
    Ok(match filter.matches(event) {
        Ok(true) => verdict(true, format!("on {} where {source}", trigger.on)),
        Ok(false) => verdict(false, format!("{source} does not hold")),
        // As at the door: what can't be said to hold does not.
        Err(error) => verdict(false, format!("{source}: {error}")),
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
