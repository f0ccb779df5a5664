//! OpenAI's chat completions, and all servers that speak like it: DeepSeek, Qwen, xAI, Mistral, vLLM, llama.cpp, Ollama, …

use kernel::budget::Usage;
use serde_json::{Value, json};

use super::draft::{Draft, count, list, text};
use crate::models::{Finish, Prompt};

/// The body of a request. OpenAI itself wants its own name for the limit of output.
pub(super) fn request(model: &str, prompt: &Prompt, is_openai: bool) -> Value {
    let tools: Vec<_> = prompt
        .tools
        .iter()
        .map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.schema,
            }})
        })
        .collect();
    let mut body = json!({
        "model": model,
        "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    body[if is_openai { "max_completion_tokens" } else { "max_tokens" }] = json!(prompt.max_output_tokens);
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    }
    body
}

/// Takes a piece of a stream, or a whole answer.
pub(super) fn read(draft: &mut Draft, event: &Value) {
    draft.model = text(event, "model").map(str::to_owned).or(draft.model.take());
    draft.response_id = text(event, "id").map(str::to_owned).or(draft.response_id.take());
    // Of several choices only the first was asked for.
    let first = list(event, "choices").find(|choice| choice.get("index").is_none_or(|index| count(index) == 0));
    if let Some(choice) = first {
        let whole = choice.get("message");
        if let Some(message) = whole.or_else(|| choice.get("delta")) {
            read_message(draft, message);
        }
        // The older completions.
        draft.text.push_str(text(choice, "text").unwrap_or_default());
        if let Some(reason) = text(choice, "finish_reason") {
            draft.finish = Some(finish_of(reason));
            draft.is_over = true;
        }
        draft.is_over |= whole.is_some();
    }
    if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
        draft.usage = Some(usage_of(usage));
    }
}

fn read_message(draft: &mut Draft, message: &Value) {
    match message.get("content") {
        Some(Value::String(text)) => draft.text.push_str(text),
        Some(Value::Array(parts)) => parts.iter().for_each(|part| read_part(draft, part)),
        _ => {}
    }
    let reasoning = ["reasoning_content", "reasoning"].into_iter().find_map(|field| text(message, field));
    draft.reasoning.push_str(reasoning.unwrap_or_default());
    if let Some(refusal) = text(message, "refusal") {
        draft.refusal.get_or_insert_default().push_str(refusal);
    }
    for (number, call) in list(message, "tool_calls").enumerate() {
        read_call(draft, call, number);
    }
    if let Some(function) = message.get("function_call").filter(|call| call.is_object()) {
        let call = draft.call("function_call");
        call.name.push_str(text(function, "name").unwrap_or_default());
        call.text.push_str(text(function, "arguments").unwrap_or_default());
    }
}

/// Mistral's content in parts.
fn read_part(draft: &mut Draft, part: &Value) {
    match text(part, "type") {
        Some("text" | "output_text") => draft.text.push_str(text(part, "text").unwrap_or_default()),
        Some("thinking") => match part.get("thinking") {
            Some(Value::String(thought)) => draft.reasoning.push_str(thought),
            _ => list(part, "thinking").for_each(|part| {
                draft.reasoning.push_str(text(part, "text").unwrap_or_default());
            }),
        },
        Some("refusal") => {
            draft.refusal.get_or_insert_default().push_str(text(part, "refusal").unwrap_or_default());
        }
        other => draft.other(other.unwrap_or("content")),
    }
}

/// A call, whole or in pieces. Pieces are addressed by index; where there is none, a new id begins a new call and a piece
/// without an id goes on with the last one.
fn read_call(draft: &mut Draft, piece: &Value, number: usize) {
    let id = text(piece, "id");
    let key = match piece.get("index").filter(|index| index.is_number()) {
        Some(index) => format!("#{}", count(index)),
        None => match (id, draft.calls.last()) {
            (Some(id), _) => id.to_owned(),
            (None, Some(last)) if piece["function"].get("name").is_none() => last.key.clone(),
            (None, _) => format!("#{number}/{}", draft.calls.len()),
        },
    };
    // A server that gives every call the same index tells them apart by id and name.
    let before = draft.calls.iter().rposition(|call| call.key == key);
    let named = text(&piece["function"], "name").is_some();
    if let Some(at) = before
        && named
        && draft.calls[at].id.as_deref().zip(id).is_some_and(|(old, new)| old != new)
    {
        draft.calls[at].key = format!("{key}/{at}");
    }
    let call = draft.call(&key);
    if call.id.is_none() {
        call.id = id.map(str::to_owned);
    }
    let function = &piece["function"];
    // Some repeat the whole name with every piece.
    let name = text(function, "name").unwrap_or_default();
    if call.name != name {
        call.name.push_str(name);
    }
    match function.get("arguments") {
        Some(Value::String(piece)) => call.text.push_str(piece),
        Some(value) => call.set(value),
        None => {}
    }
}

fn finish_of(reason: &str) -> Finish {
    match reason {
        "stop" | "end_turn" | "eos" => Finish::Stop,
        "tool_calls" | "function_call" | "tool_use" => Finish::Calls,
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" | "sensitive" | "refusal" => Finish::Filtered,
        other => Finish::Other(kernel::excerpt(other, 40)),
    }
}

fn usage_of(usage: &Value) -> Usage {
    let (input, output) = (count(&usage["prompt_tokens"]), count(&usage["completion_tokens"]));
    let cached = count(&usage["prompt_tokens_details"]["cached_tokens"]).max(count(&usage["prompt_cache_hit_tokens"]));
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
    // xAI counts reasoning beside the completion; the sum tells.
    let beside = reasoning > 0 && count(&usage["total_tokens"]) == input + output + reasoning;
    Usage {
        input_tokens: input,
        cached_tokens: cached,
        cache_write_tokens: count(&usage["prompt_tokens_details"]["cache_write_tokens"]),
        output_tokens: if beside { output + reasoning } else { output },
        reasoning_tokens: reasoning,
        ..Usage::default()
    }
}
