//! Anthropic's messages.

use kernel::budget::Usage;
use serde_json::{Value, json};

use super::draft::{Draft, count, list, text};
use crate::models::{Finish, Prompt};

/// The body of a request. Tools and rules are the same for every turn of an agent: the provider is asked to keep them.
pub(super) fn request(model: &str, prompt: &Prompt) -> Value {
    let tools: Vec<_> = prompt
        .tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema}))
        .collect();
    let mut body = json!({
        "model": model,
        "max_tokens": prompt.max_output_tokens,
        "system": [{"type": "text", "text": prompt.system, "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": prompt.user}],
        "stream": true,
    });
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    }
    body
}

/// Takes an event of a stream.
pub(super) fn read(draft: &mut Draft, kind: &str, event: &Value) {
    match kind {
        "message_start" => start(draft, &event["message"]),
        "content_block_start" => {
            let key = format!("#{}", count(&event["index"]));
            draft.opens(&key);
            read_block(draft, &key, &event["content_block"]);
        }
        "content_block_delta" => read_delta(draft, &event["delta"], count(&event["index"])),
        "content_block_stop" => draft.closes(&format!("#{}", count(&event["index"]))),
        "message_delta" => {
            read_stop(draft, &event["delta"]);
            read_usage(draft, &event["usage"]);
        }
        "message_stop" => draft.is_over = true,
        // `ping`, and what is yet to be invented.
        _ => {}
    }
}

/// A message begins. If another one was under way it was given up: nothing of it counts.
fn start(draft: &mut Draft, message: &Value) {
    let anew = !draft.calls.is_empty() || !draft.text.is_empty() || !draft.reasoning.is_empty();
    if anew {
        let garbled = draft.garbled;
        *draft = Draft { restarted: true, garbled, ..Draft::default() };
    }
    draft.model = text(message, "model").map(str::to_owned);
    draft.response_id = text(message, "id").map(str::to_owned);
    read_usage(draft, &message["usage"]);
}

/// Takes a whole message.
pub(super) fn whole(draft: &mut Draft, message: &Value) {
    start(draft, message);
    for (number, block) in list(message, "content").enumerate() {
        read_block(draft, &format!("#{number}"), block);
    }
    read_stop(draft, message);
    draft.is_over = true;
}

fn read_block(draft: &mut Draft, key: &str, block: &Value) {
    match text(block, "type") {
        Some("text") => draft.text.push_str(text(block, "text").unwrap_or_default()),
        Some("thinking") => draft.reasoning.push_str(text(block, "thinking").unwrap_or_default()),
        Some("tool_use") => {
            let call = draft.call(key);
            call.id = text(block, "id").map(str::to_owned);
            text(block, "name").unwrap_or_default().clone_into(&mut call.name);
            call.set(&block["input"]);
        }
        // What the provider does by itself, and what only it understands.
        other => draft.other(other.unwrap_or("block")),
    }
}

fn read_delta(draft: &mut Draft, delta: &Value, index: u64) {
    match text(delta, "type") {
        Some("text_delta") => draft.text.push_str(text(delta, "text").unwrap_or_default()),
        Some("thinking_delta") => draft.reasoning.push_str(text(delta, "thinking").unwrap_or_default()),
        Some("input_json_delta") => {
            let key = format!("#{index}");
            // Also the tools that run at the provider get their arguments so.
            if draft.calls.iter().any(|call| call.key == key) {
                draft.call(&key).text.push_str(text(delta, "partial_json").unwrap_or_default());
            }
        }
        // Signatures, citations and the like.
        _ => {}
    }
}

fn read_stop(draft: &mut Draft, said: &Value) {
    let Some(reason) = text(said, "stop_reason") else { return };
    draft.finish = Some(match reason {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "tool_use" => Finish::Calls,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::Filtered,
        other => Finish::Other(kernel::excerpt(other, 40)),
    });
    if reason == "refusal" {
        let details = &said["stop_details"];
        let why = text(details, "explanation").or_else(|| text(details, "category")).unwrap_or("the model refused");
        draft.refusal = Some(why.to_owned());
    }
}

/// Counts that come later replace those before, one by one.
fn read_usage(draft: &mut Draft, usage: &Value) {
    if !usage.is_object() {
        return;
    }
    let before = draft.usage.unwrap_or_default();
    let fresh = before.input_tokens.saturating_sub(before.cached_tokens).saturating_sub(before.cache_write_tokens);
    let given = |field: &str, before: u64| usage.get(field).filter(|value| value.is_number()).map_or(before, count);
    let (mut cached, mut written) = (
        given("cache_read_input_tokens", before.cached_tokens),
        given("cache_creation_input_tokens", before.cache_write_tokens),
    );
    let mut input = given("input_tokens", fresh);
    let mut output = given("output_tokens", before.output_tokens);
    // The counts of the message leave out what was spent beside it, such as on making the context shorter.
    let beside = list(usage, "iterations")
        .filter(|iteration| !matches!(text(iteration, "type"), Some("message" | "fallback_message")));
    for iteration in beside {
        for (sum, field) in [
            (&mut input, "input_tokens"),
            (&mut output, "output_tokens"),
            (&mut cached, "cache_read_input_tokens"),
            (&mut written, "cache_creation_input_tokens"),
        ] {
            *sum = sum.saturating_add(count(&iteration[field]));
        }
    }
    draft.usage = Some(Usage {
        input_tokens: input.saturating_add(cached).saturating_add(written),
        cached_tokens: cached,
        cache_write_tokens: written,
        output_tokens: output,
        reasoning_tokens: count(&usage["output_tokens_details"]["thinking_tokens"]).max(before.reasoning_tokens),
        ..Usage::default()
    });
}
