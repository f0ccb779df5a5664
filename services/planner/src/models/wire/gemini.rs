//! Google's Gemini: `generateContent`, and answers in the form of its interactions.

use kernel::budget::Usage;
use serde_json::{Map, Value, json};

use super::draft::{Draft, count, list, text};
use crate::models::{Finish, Prompt};

/// Most entries of a list that is written place by place.
const LIST_ENTRIES: usize = 4096;
/// Most steps into a value that is written place by place.
const DEPTH: usize = 32;

/// The body of a request.
pub(super) fn request(prompt: &Prompt) -> Value {
    let tools: Vec<_> = prompt
        .tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema}))
        .collect();
    let mut body = json!({
        "systemInstruction": {"parts": [{"text": prompt.system}]},
        "contents": [{"role": "user", "parts": [{"text": prompt.user}]}],
        "generationConfig": {"maxOutputTokens": prompt.max_output_tokens},
    });
    if !tools.is_empty() {
        body["tools"] = json!([{"functionDeclarations": tools}]);
    }
    body
}

/// Takes a piece of a stream, or a whole answer: they look the same.
pub(super) fn read(draft: &mut Draft, event: &Value) {
    draft.model = text(event, "modelVersion").map(str::to_owned).or(draft.model.take());
    draft.response_id = text(event, "responseId").map(str::to_owned).or(draft.response_id.take());
    if let Some(reason) = text(&event["promptFeedback"], "blockReason") {
        draft.refusal = Some(format!("the prompt was blocked: {}", kernel::excerpt(reason, 80)));
        draft.finish = Some(Finish::Filtered);
        draft.is_over = true;
    }
    if let Some(candidate) = list(event, "candidates").next() {
        for part in list(&candidate["content"], "parts") {
            read_part(draft, part);
        }
        if let Some(reason) = text(candidate, "finishReason") {
            draft.finish = Some(finish_of(reason));
            if draft.finish == Some(Finish::Filtered) {
                let why = text(candidate, "finishMessage").unwrap_or(reason);
                draft.refusal = Some(kernel::excerpt(why, 400));
            }
            draft.open.clear();
            draft.is_over = true;
        }
    }
    let usage = &event["usageMetadata"];
    if usage.get("promptTokenCount").is_some() || usage.get("totalTokenCount").is_some() {
        draft.usage = Some(usage_of(usage));
    }
}

fn read_part(draft: &mut Draft, part: &Value) {
    if let Some(call) = part.get("functionCall").filter(|call| call.is_object()) {
        read_call(draft, call);
    } else if let Some(said) = part.get("text").and_then(Value::as_str) {
        let is_thought = part.get("thought").and_then(Value::as_bool) == Some(true);
        if is_thought { draft.reasoning.push_str(said) } else { draft.text.push_str(said) }
    } else if let Some((kind, _)) = part.as_object().and_then(|part| part.iter().next()) {
        draft.other(kind);
    }
}

/// A call: whole, or begun with its name and written place by place until it is said that nothing more comes.
fn read_call(draft: &mut Draft, said: &Value) {
    let goes_on = said.get("willContinue").and_then(Value::as_bool) == Some(true);
    if let Some(name) = text(said, "name") {
        let key = format!("#{}", draft.calls.len());
        let call = draft.call(&key);
        name.clone_into(&mut call.name);
        call.id = text(said, "id").map(str::to_owned);
        draft.opens("call");
    }
    let Some(call) = draft.calls.last_mut().filter(|_| draft.open.iter().any(|open| open == "call")) else { return };
    if let Some(arguments) = said.get("args") {
        call.set(arguments);
    }
    for piece in list(said, "partialArgs") {
        if call.is_too_large() {
            break;
        }
        let arguments = call.json.get_or_insert_with(|| Value::Object(Map::new()));
        call.places += write_at(arguments, piece);
    }
    if !goes_on {
        draft.closes("call");
    }
}

/// Writes a value at its place, such as `$.items[0].name`; a text may come in pieces. How many places it made on the way: a
/// few bytes of a path can ask for thousands.
fn write_at(root: &mut Value, piece: &Value) -> usize {
    let Some(path) = text(piece, "jsonPath") else { return 0 };
    let steps = steps_of(path);
    if steps.len() > DEPTH {
        return 0;
    }
    let mut made = 0;
    let mut place = root;
    for step in &steps {
        place = match step {
            Step::Name(name) => {
                if !place.is_object() {
                    *place = Value::Object(Map::new());
                }
                let Some(fields) = place.as_object_mut() else { return made };
                made += 1;
                fields.entry(name.clone()).or_insert(Value::Null)
            }
            Step::Index(index) if *index < LIST_ENTRIES => {
                if !place.is_array() {
                    *place = Value::Array(Vec::new());
                }
                let Some(entries) = place.as_array_mut() else { return made };
                if entries.len() <= *index {
                    made += index + 1 - entries.len();
                    entries.resize(index + 1, Value::Null);
                }
                &mut entries[*index]
            }
            Step::Index(_) => return made,
        };
    }
    let value = ["stringValue", "numberValue", "boolValue"].into_iter().find_map(|field| piece.get(field));
    match (value, &mut *place) {
        (Some(Value::String(more)), Value::String(before)) => before.push_str(more),
        (Some(value), place) => *place = value.clone(),
        // `nullValue`, which is written as a word.
        (None, place) => *place = Value::Null,
    }
    made
}

enum Step {
    Name(String),
    Index(usize),
}

fn steps_of(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let Some((inside, after)) = after.split_once(']') else { break };
            let quoted = inside.trim_matches(['"', '\'']);
            steps.push(inside.parse().map_or_else(|_| Step::Name(quoted.to_owned()), Step::Index));
            rest = after;
        } else {
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let end = after.find(['.', '[']).unwrap_or(after.len());
            if end > 0 {
                steps.push(Step::Name(after[..end].to_owned()));
            }
            rest = &after[end..];
            if end == 0 && !rest.starts_with('[') {
                rest = rest.get(1..).unwrap_or_default();
            }
        }
    }
    steps
}

fn finish_of(reason: &str) -> Finish {
    match reason {
        "STOP" => Finish::Stop,
        "MAX_TOKENS" => Finish::Length,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
            Finish::Filtered
        }
        other => Finish::Other(kernel::excerpt(&other.to_ascii_lowercase(), 40)),
    }
}

fn usage_of(usage: &Value) -> Usage {
    let thoughts = count(&usage["thoughtsTokenCount"]);
    let said = count(&usage["candidatesTokenCount"]).max(count(&usage["responseTokenCount"]));
    Usage {
        input_tokens: count(&usage["promptTokenCount"]) + count(&usage["toolUsePromptTokenCount"]),
        cached_tokens: count(&usage["cachedContentTokenCount"]),
        output_tokens: said + thoughts,
        reasoning_tokens: thoughts,
        ..Usage::default()
    }
}

/// Takes an event of a streamed interaction.
pub(super) fn read_step(draft: &mut Draft, kind: &str, event: &Value) {
    let key = format!("#{}", count(&event["index"]));
    match kind {
        "step.start" => {
            draft.opens(&key);
            begin_step(draft, &key, &event["step"]);
        }
        "step.delta" => {
            let delta = &event["delta"];
            match text(delta, "type") {
                Some("text") => draft.text.push_str(text(delta, "text").unwrap_or_default()),
                Some("thought" | "thought_summary") => draft.reasoning.push_str(thought_of(delta)),
                Some("arguments_delta") if draft.calls.iter().any(|call| call.key == key) => {
                    draft.call(&key).text.push_str(text(delta, "arguments").unwrap_or_default());
                }
                _ => {}
            }
        }
        "step.stop" => draft.closes(&key),
        "interaction.completed" | "interaction.complete" => end_interaction(draft, &event["interaction"]),
        _ => {
            let interaction = &event["interaction"];
            draft.model = text(interaction, "model").map(str::to_owned).or(draft.model.take());
            draft.response_id = text(interaction, "id").map(str::to_owned).or(draft.response_id.take());
        }
    }
}

fn thought_of(value: &Value) -> &str {
    text(value, "text").or_else(|| text(&value["content"], "text")).unwrap_or_default()
}

fn begin_step(draft: &mut Draft, key: &str, step: &Value) {
    match text(step, "type") {
        Some("function_call") => {
            let call = draft.call(key);
            call.id = text(step, "id").map(str::to_owned);
            text(step, "name").unwrap_or_default().clone_into(&mut call.name);
            call.set(&step["arguments"]);
        }
        Some("model_output") => {
            for part in list(step, "content") {
                match text(part, "type") {
                    Some("text") => draft.text.push_str(text(part, "text").unwrap_or_default()),
                    other => draft.other(other.unwrap_or("content")),
                }
            }
        }
        Some("thought") => {
            for part in list(step, "summary") {
                draft.reasoning.push_str(text(part, "text").unwrap_or_default());
            }
        }
        other => draft.other(other.unwrap_or("step")),
    }
}

/// Takes a whole interaction.
pub(super) fn whole(draft: &mut Draft, interaction: &Value) {
    for (number, step) in list(interaction, "steps").enumerate() {
        begin_step(draft, &format!("#{number}"), step);
    }
    end_interaction(draft, interaction);
}

fn end_interaction(draft: &mut Draft, interaction: &Value) {
    draft.model = text(interaction, "model").map(str::to_owned).or(draft.model.take());
    draft.response_id = text(interaction, "id").map(str::to_owned).or(draft.response_id.take());
    let usage = &interaction["usage"];
    if usage.is_object() {
        let thoughts = count(&usage["total_thought_tokens"]);
        draft.usage = Some(Usage {
            input_tokens: count(&usage["total_input_tokens"]) + count(&usage["total_tool_use_tokens"]),
            cached_tokens: count(&usage["total_cached_tokens"]),
            output_tokens: count(&usage["total_output_tokens"]) + thoughts,
            reasoning_tokens: thoughts,
            ..Usage::default()
        });
    }
    draft.finish = match text(interaction, "status") {
        Some("completed" | "requires_action") | None => None,
        Some("incomplete") => Some(Finish::Length),
        Some(other) => Some(Finish::Other(kernel::excerpt(other, 40))),
    };
    draft.open.clear();
    draft.is_over = true;
}
