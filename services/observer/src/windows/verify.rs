//! A look at the world: a call of a tool that only reads, made by the tool-executor. The observer opens no connection of its own.

use std::time::Duration;

use bus::{Bus, BusError, subject};
use engine::Filter;
use kernel::{
    TenantId,
    action::{Action, Verified},
    watch::VerifyStep,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How long the tool-executor may take to answer.
const WITHIN: Duration = Duration::from_secs(30);
/// Most bytes of what was seen that are told.
const SEEN_BYTES: usize = 320;

/// Why a place can't be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Unfilled {
    /// Nothing is known that belongs there.
    #[error("the action names no {0}")]
    Unknown(&'static str),
    /// What belongs there could say more than its place lets it.
    #[error(
        "the {0} of the action holds more than letters, digits and `-_.:@/+=`, so it can't stand within a longer text: give it \
         an argument of its own"
    )]
    Unsafe(&'static str),
}

/// What is asked of the tool-executor: `svc.tool-executor.verify`.
#[derive(Debug, Serialize)]
struct Question<'a> {
    tenant: &'a TenantId,
    agent: &'a str,
    tool: &'a str,
    arguments: &'a Map<String, Value>,
    /// What it is for, such as an action.
    purpose: String,
}

/// What the tool gave.
#[derive(Debug, Deserialize)]
struct Answer {
    /// As text.
    text: String,
    /// As JSON, if it is some.
    #[serde(default)]
    value: Value,
}

/// Takes a step. Whatever goes wrong, the effect is not known, and the reason is told.
pub(super) async fn look(bus: &Bus, agent: &str, action: &Action, step: &VerifyStep) -> Verified {
    let tool = step.tool.clone();
    let arguments = match filled(&step.arguments, action) {
        Ok(arguments) => arguments,
        Err(unfilled) => return Verified { tool, holds: None, words: unfilled.to_string() },
    };
    match ask(bus, agent, action, step, &arguments).await {
        Ok(answer) => {
            let words = crate::text::window(answer.text.trim(), 0, SEEN_BYTES).into_owned();
            // A page that says that one has to log in, say, shows neither the one nor the other.
            if answer.value.is_null() && step.expect.contains("data.result") {
                return Verified { tool, holds: None, words: format!("its answer is no JSON: {words}") };
            }
            match holds(step, action, &answer) {
                Ok(holds) => Verified { tool, holds: Some(holds), words },
                Err(error) => {
                    Verified { tool, holds: None, words: format!("`expect` can't be used on its answer: {error}") }
                }
            }
        }
        Err(BusError::Refused { message, .. }) => Verified { tool, holds: None, words: message },
        Err(error) => Verified { tool, holds: None, words: error.to_string() },
    }
}

async fn ask(
    bus: &Bus,
    agent: &str,
    action: &Action,
    step: &VerifyStep,
    arguments: &Map<String, Value>,
) -> Result<Answer, BusError> {
    let question = Question {
        tenant: &action.tenant,
        agent,
        tool: &step.tool,
        arguments,
        purpose: format!("action {}", action.action_id),
    };
    bus.request_json(&subject::svc("tool-executor", "verify"), &question, WITHIN).await
}

/// Whether the answer shows the effect.
fn holds(step: &VerifyStep, action: &Action, answer: &Answer) -> Result<bool, engine::FilterError> {
    let action = serde_json::to_value(action).unwrap_or_default();
    let data = json!({ "result": answer.value, "text": answer.text, "action": action });
    let event = json!({ "id": "", "source": "observer", "type": "verify", "subject": "", "time": "", "data": data });
    Filter::compile(&step.expect)?.matches(&event)
}

/// The arguments with what is known of the action in their places.
fn filled(arguments: &Map<String, Value>, action: &Action) -> Result<Map<String, Value>, Unfilled> {
    arguments.iter().map(|(name, value)| Ok((name.clone(), filled_value(value, action)?))).collect()
}

fn filled_value(value: &Value, action: &Action) -> Result<Value, Unfilled> {
    Ok(match value {
        Value::String(text) => Value::String(filled_text(text, action)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| filled_value(item, action)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(filled(map, action)?),
        other => other.clone(),
    })
}

/// What stands in a place was written by others. In a URL it stays one segment of it, whatever it is; as a whole argument it is
/// the tool's to keep apart from what its author wrote. Within any other text, such as a query, it must be plain: nobody knows
/// here what ends a text there.
fn filled_text(text: &str, action: &Action) -> Result<String, Unfilled> {
    let is_url = text.starts_with("http://") || text.starts_with("https://");
    let id = action.action_id.to_string();
    let places = [
        ("request_id", action.request_id.as_deref()),
        ("session_id", action.session_id.as_deref()),
        ("trace_id", action.trace_id.as_deref()),
        ("action_id", Some(id.as_str())),
        ("service", Some(action.service.as_str())),
        ("actor", Some(action.actor.as_str())),
    ];
    let mut rest = text;
    let mut filled = String::with_capacity(text.len());
    // One pass: what was filled in is no place for anything.
    while let Some((before, inside)) = rest.split_once('{') {
        filled.push_str(before);
        let place = inside.split_once('}').and_then(|(name, after)| {
            places.iter().find(|(known, _)| *known == name).map(|(name, value)| (*name, *value, after))
        });
        match place {
            Some((name, value, after)) => {
                // Nothing is as good as unknown: to a query it might mean all there is.
                let value = value.filter(|value| !value.is_empty()).ok_or(Unfilled::Unknown(name))?;
                let is_whole = before.is_empty() && filled.is_empty() && after.is_empty();
                if !is_url && !is_whole && !is_plain(value) {
                    return Err(Unfilled::Unsafe(name));
                }
                filled.push_str(&if is_url { subject::token(value) } else { value.to_owned() });
                rest = after;
            }
            None => {
                filled.push('{');
                rest = inside;
            }
        }
    }
    Ok(filled + rest)
}

fn is_plain(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphanumeric() || "-_.:@/+=".contains(letter))
}

#[cfg(test)]
mod tests {
    use kernel::{ActionId, Timestamp};

    use super::*;

    fn action() -> Action {
        Action {
            action_id: ActionId::mint(),
            tenant: TenantId::default(),
            service: "orders".into(),
            actor: "{request_id}".into(),
            what: "POST".into(),
            expects: None,
            request_id: Some("../a?b".into()),
            session_id: None,
            trace_id: None,
            components: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
            run_id: None,
            call_id: None,
            recorded_by: "test".into(),
        }
    }

    #[test]
    fn what_others_wrote_stays_in_its_place() {
        let text = |text: &str| filled_text(text, &action()).unwrap();
        assert_eq!(text("http://h/{service}/{request_id}/x"), "http://h/orders/%2E%2E%2Fa%3Fb/x");
        assert_eq!(text("{request_id}"), "../a?b", "what is an argument by itself is the tool's to look after");
        assert_eq!(text("state of {service} {other}"), "state of orders {other}");
        assert_eq!(filled_text("{trace_id}", &action()), Err(Unfilled::Unknown("trace_id")));
        let nameless = Action { request_id: Some(String::new()), ..action() };
        assert_eq!(filled_text("{request_id}", &nameless), Err(Unfilled::Unknown("request_id")));
        let query =
            |id: &str| filled_text("up{id=\"{request_id}\"}", &Action { request_id: Some(id.into()), ..action() });
        assert_eq!(query("req-1.a:b/c").unwrap(), "up{id=\"req-1.a:b/c\"}");
        for id in ["x\"} or vector(1) #", "x\\", "x'", "1 or true", "x\n", "{actor}"] {
            assert_eq!(query(id), Err(Unfilled::Unsafe("request_id")), "{id}");
        }
    }

    #[test]
    fn an_answer_is_held_against_what_is_expected() {
        let step = |expect: &str| VerifyStep { expect: expect.into(), ..VerifyStep::default() };
        let answer = Answer { text: "{\"state\":\"shipped\"}".into(), value: json!({ "state": "shipped" }) };
        assert_eq!(holds(&step("data.result.state == \"shipped\""), &action(), &answer), Ok(true));
        assert_eq!(holds(&step("data.result.state == \"new\""), &action(), &answer), Ok(false));
        assert_eq!(holds(&step("data.action.service == \"orders\""), &action(), &answer), Ok(true));
        assert_eq!(holds(&step("data.result.nothing == 1"), &action(), &answer), Ok(false));
    }
}
