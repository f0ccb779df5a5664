//! The verbs' declarations: JSON Schemas without references and recursion, since not every provider takes those.

use serde_json::{Value, json};

use super::{MAX_STEPS, Verb};
use crate::models::ToolDecl;

/// How deep `any` and `all` may be declared to nest.
const NESTING: u32 = 2;

/// How a verb is declared to the model.
#[must_use]
pub fn declaration(verb: Verb) -> ToolDecl {
    let (description, schema) = match verb {
        Verb::UpdatePlan => (
            "Replace the plan with these steps. Keep what you must remember in their titles.",
            object(
                &["steps"],
                json!({"steps": {
                    "type": "array", "minItems": 1, "maxItems": MAX_STEPS,
                    "items": object(&["title", "status"], json!({
                        "title": {"type": "string"},
                        "status": {"type": "string", "enum": ["pending", "in_progress", "done", "dropped"]},
                    })),
                }}),
            ),
        ),
        Verb::WaitFor => (
            "Sleep until something happens. Give exactly one of: any, all, timer, task, external, operator.",
            wait_for(),
        ),
        Verb::Say => ("Tell the operator something, without waiting.", object(&["text"], json!({"text": {"type": "string"}}))),
        Verb::AskOperator => (
            "Ask the operator and sleep until there is an answer.",
            object(
                &["question"],
                json!({
                    "question": {"type": "string"},
                    "expires": {"type": "string", "description": "How long the question stays open, such as 2h."},
                }),
            ),
        ),
        Verb::CreateArtifact => (
            "Keep a text under a name, for people and for later. The same name again is the next version.",
            object(
                &["name", "content"],
                json!({
                    "name": {"type": "string"},
                    "content": {"type": "string"},
                    "media_type": {"type": "string", "description": "Such as text/markdown."},
                }),
            ),
        ),
        Verb::Complete => (
            "End the run: the objective is reached. Say what was done and what shows it.",
            object(&["summary"], json!({"summary": {"type": "string"}})),
        ),
        Verb::Fail => (
            "End the run: the objective cannot be reached. Say why.",
            object(&["reason"], json!({"reason": {"type": "string"}})),
        ),
    };
    ToolDecl { name: verb.name().to_owned(), description: description.to_owned(), schema }
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn wait_for() -> Value {
    let mut properties = conditions(NESTING);
    let words = json!({
        "why": {"type": "string", "description": "Why you pause; you read it when you wake."},
        "assumes": {"type": "string", "description": "What you take for granted."},
        "expects": {"type": "string", "description": "What you expect to see then."},
        "deadline": {"type": "string", "description": "When to give up waiting: 30m, or 2030-01-31T09:00:00Z."},
    });
    if let (Value::Object(all), Value::Object(words)) = (&mut properties, words) {
        all.extend(words);
    }
    object(&["why"], properties)
}

/// The ways to say a condition, `any` and `all` nested `depth` deep.
fn conditions(depth: u32) -> Value {
    let mut properties = json!({
        "timer": {"type": "string", "description": "A span such as 3s, 15m, 2h, or a time such as 2030-01-31T09:00:00Z."},
        "task": {"type": "string", "description": "The end of a call: a tool's name, #2 for the second call of this answer, or the id of an open call."},
        "external": object(&["source", "type"], json!({
            "source": {"type": "string", "description": "The publishing system, such as github."},
            "type": {"type": "string", "description": "CloudEvent type; a * at the end stands for any rest."},
            "subject": {"type": "string", "description": "CloudEvent subject, exactly."},
            "where": {"type": "string", "description": "CEL over the event that must hold, such as data.action == \"closed\"."},
            "exclusive": {"type": "boolean", "description": "Only one waiting run may have the event."},
        })),
        "operator": {"type": "boolean", "description": "A message of the operator."},
    });
    if let (Value::Object(all), true) = (&mut properties, depth > 0) {
        let nested = json!({"type": "array", "minItems": 1, "items": object(&[], conditions(depth - 1))});
        all.insert("any".to_owned(), nested.clone());
        all.insert("all".to_owned(), nested);
    }
    properties
}
