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
                json!({
                    "steps": {
                        "type": "array", "minItems": 1, "maxItems": MAX_STEPS,
                        "items": object(&["title", "status"], json!({
                            "title": {"type": "string"},
                            "status": {"type": "string", "enum": ["pending", "in_progress", "done", "dropped"]},
                        })),
                    },
                    "reason": {"type": "string", "description": "Why the plan changes, if it does."},
                }),
            ),
        ),
        Verb::WaitFor => (
            "Sleep until something happens. Give exactly one of: any, all, timer, task, external, operator.",
            wait_for(),
        ),
        Verb::Say => {
            ("Tell the operator something, without waiting.", object(&["text"], json!({"text": {"type": "string"}})))
        }
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
        Verb::Remember => (
            "Keep something for later runs. The same key again replaces it; `forget` removes it.",
            object(
                &["key"],
                json!({
                    "key": {"type": "string", "description": "What it is about, in a few words."},
                    "text": {"type": "string"},
                    "scope": {"type": "string", "enum": ["agent", "user", "tenant"], "description": "Who else sees it: runs of this agent (the default), runs for this user, or all."},
                    "expires": {"type": "string", "description": "When to forget it, such as 30d."},
                    "forget": {"type": "boolean"},
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
        Verb::SpawnAgent => return spawn_declaration(&[]),
        Verb::UseSkill => return skill_declaration(&[]),
    };
    ToolDecl { name: verb.name().to_owned(), description: description.to_owned(), schema }
}

/// How the starting of these agents is declared to the model.
#[must_use]
pub fn spawn_declaration(agents: &[String]) -> ToolDecl {
    let count = json!({"type": "integer", "minimum": 1});
    let budget = object(
        &[],
        json!({"turns": count, "tokens": count, "cost_usd": {"type": "number"}, "tool_calls": count, "wall": {"type": "string"}}),
    );
    let mut properties = json!({
        "agent": {"type": "string"},
        "task": {"type": "string", "description": "All that it needs to know: it sees nothing of this run."},
        "budget": budget,
        "on_failure": {
            "type": "string", "enum": ["continue", "fail", "retry"],
            "description": "What becomes of this run if it fails: you are told and go on, this run fails too, or another one takes over.",
        },
    });
    if !agents.is_empty() {
        properties["agent"]["enum"] = json!(agents);
    }
    properties["budget"]["description"] = json!(
        "What it may spend at most, out of what is left of yours: turns, tokens, cost_usd, tool_calls, wall such as 2h."
    );
    ToolDecl {
        name: Verb::SpawnAgent.name().to_owned(),
        description:
            "Start another agent on a task of its own. It works beside you; its end wakes you, or wait for it with \
                      `wait_for` and its name as `task`."
                .to_owned(),
        schema: object(&["agent", "task"], properties),
    }
}

/// How the opening of these skills is declared to the model.
#[must_use]
pub fn skill_declaration(skills: &[String]) -> ToolDecl {
    let mut properties = json!({
        "name": {"type": "string"},
        "file": {"type": "string", "description": "A file of the skill; its SKILL.md if none is named."},
    });
    if !skills.is_empty() {
        properties["name"]["enum"] = json!(skills);
    }
    ToolDecl {
        name: Verb::UseSkill.name().to_owned(),
        description: "Read a skill before you do what it is about. You see it at once, and for the rest of the run."
            .to_owned(),
        schema: object(&["name"], properties),
    }
}

fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({"type": "object", "required": required, "additionalProperties": false});
    schema["properties"] = properties;
    schema
}

fn wait_for() -> Value {
    let mut properties = json!({
        "any": {"type": "array", "minItems": 1, "items": nested(NESTING), "description": "The first of several conditions."},
        "all": {"type": "array", "minItems": 1, "items": nested(NESTING), "description": "All of several conditions."},
        "timer": {"type": "string", "description": "A span such as 3s, 15m, 2h, or a time such as 2030-01-31T09:00:00Z."},
        "jitter": {"type": "string", "description": "Put the timer off by up to this span, so that many don't go off together."},
        "task": {"type": "string", "description": "The end of a call: a tool's name, #2 for the second call of this answer, or the id of an open call."},
        "external": external(),
        "operator": {"type": "boolean", "description": "A message of the operator."},
        "why": {"type": "string", "description": "Why you pause; you read it when you wake."},
        "assumes": {"type": "string", "description": "What you take for granted."},
        "expects": {"type": "string", "description": "What you expect to see then."},
        "deadline": {"type": "string", "description": "When to give up waiting: 30m, or 2030-01-31T09:00:00Z."},
    });
    properties["external"]["description"] = json!(
        "An event from outside, by source, CloudEvent type (a * at the end stands for any rest), subject, and CEL that must hold, such as data.action == \"closed\". `verify` is asked now and then, should the event be lost: a tool that only reads, its arguments, and CEL over its result, such as data.merged."
    );
    object(&["why"], properties)
}

/// A condition within `any` or `all`; what its parts mean is said once, at the top.
fn nested(depth: u32) -> Value {
    let mut properties = json!({
        "timer": {"type": "string"},
        "jitter": {"type": "string"},
        "task": {"type": "string"},
        "external": external(),
        "operator": {"type": "boolean"},
    });
    if depth > 1 {
        let within = json!({"type": "array", "minItems": 1, "items": nested(depth - 1)});
        properties["any"] = within.clone();
        properties["all"] = within;
    }
    object(&[], properties)
}

fn external() -> Value {
    object(
        &["source", "type"],
        json!({
            "source": {"type": "string"},
            "type": {"type": "string"},
            "subject": {"type": "string"},
            "where": {"type": "string"},
            "exclusive": {"type": "boolean"},
            "verify": object(
                &["tool", "when"],
                json!({
                    "tool": {"type": "string"},
                    "arguments": {"type": "object"},
                    "when": {"type": "string"},
                }),
            ),
        }),
    )
}
