//! OpenAI's responses, and servers that speak like it.

use kernel::budget::{Spent, Usage};
use serde_json::{Value, json};

use super::draft::{Draft, count, list, text};
use crate::models::{Finish, Prompt};

/// The body of a request. Nothing is kept at the provider.
pub(super) fn request(model: &str, prompt: &Prompt) -> Value {
    let tools: Vec<_> = prompt
        .tools
        .iter()
        .map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema,
                // The provider would otherwise rewrite schemas that have fields that need not be given.
                "strict": false,
            })
        })
        .collect();
    let mut body = json!({
        "model": model,
        "instructions": prompt.system,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": prompt.user}]}],
        "max_output_tokens": prompt.max_output_tokens,
        "store": false,
        "stream": true,
    });
    if !tools.is_empty() {
        body["tools"] = Value::Array(tools);
    }
    body
}

/// Takes an event of a stream.
pub(super) fn read(draft: &mut Draft, kind: &str, event: &Value) {
    let delta = || text(event, "delta").unwrap_or_default();
    match kind {
        "response.output_text.delta" => {
            let (key, begins) = (key_of(draft, event), draft.text.len());
            draft.begun.entry(key).or_insert(begins);
            draft.text.push_str(delta());
        }
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            let key = key_of(draft, event);
            draft.streamed.insert(key);
            draft.reasoning.push_str(delta());
        }
        "response.refusal.delta" => {
            let key = key_of(draft, event);
            draft.streamed.insert(key);
            draft.refusal.get_or_insert_default().push_str(delta());
        }
        "response.output_item.added" => {
            let key = key_of(draft, event);
            draft.opens(&key);
            begin_item(draft, &key, &event["item"]);
        }
        "response.output_item.done" => {
            let key = key_of(draft, event);
            draft.closes(&key);
            end_item(draft, &key, &event["item"]);
        }
        "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
            let key = key_of(draft, event);
            if draft.calls.iter().any(|call| call.key == key) {
                draft.call(&key).text.push_str(delta());
            }
        }
        "response.created" | "response.in_progress" | "response.queued" => {
            // Several answers in one stream go on from each other: their parts are numbered anew.
            draft.answers += usize::from(std::mem::take(&mut draft.is_over));
            about(draft, &event["response"]);
        }
        "response.completed" | "response.incomplete" => whole(draft, &event["response"], true),
        // Beginnings and ends of parts, and what the provider does by itself: all of it comes with its item.
        _ => {}
    }
}

/// What later events about the same item have in common: some servers give each another id.
fn key_of(draft: &Draft, event: &Value) -> String {
    match event.get("output_index") {
        Some(index) if index.is_number() => format!("{}#{}", draft.answers, count(index)),
        _ => text(event, "item_id").or_else(|| text(&event["item"], "id")).unwrap_or_default().to_owned(),
    }
}

fn begin_item(draft: &mut Draft, key: &str, item: &Value) {
    if call_name(item).is_some() {
        let call = draft.call(key);
        call.id = text(item, "call_id").or_else(|| text(item, "id")).map(str::to_owned);
        call.name = call_name(item).unwrap_or_default();
    }
}

/// A finished item: of a call it has the last word; texts that did not come in pieces are taken from it.
fn end_item(draft: &mut Draft, key: &str, item: &Value) {
    if let Some(name) = call_name(item) {
        let call = draft.call(key);
        call.id = text(item, "call_id").or_else(|| text(item, "id")).map(str::to_owned);
        call.name = name;
        let arguments = call_arguments(item);
        if !arguments.is_null() {
            call.set(&arguments);
        }
        return;
    }
    let streamed = draft.streamed.contains(key);
    match text(item, "type") {
        Some("message") => {
            let mut whole = String::new();
            for part in list(item, "content") {
                match text(part, "type") {
                    Some("output_text" | "text") => whole.push_str(text(part, "text").unwrap_or_default()),
                    Some("refusal") if streamed => {}
                    Some("refusal") => {
                        draft.refusal.get_or_insert_default().push_str(text(part, "refusal").unwrap_or_default());
                    }
                    other => draft.other(other.unwrap_or("content")),
                }
            }
            let begins = draft.begun.remove(key).unwrap_or(draft.text.len()).min(draft.text.len());
            // Pieces may be missing or, worse, be others.
            if let Some(rest) = whole.strip_prefix(draft.text.get(begins..).unwrap_or_default()) {
                draft.text.push_str(rest);
            } else if !whole.is_empty() && draft.text.is_char_boundary(begins) {
                draft.text.replace_range(begins.., &whole);
                draft.restarted = true;
            }
        }
        Some("reasoning") if !streamed => {
            for part in list(item, "summary").chain(list(item, "content")) {
                draft.reasoning.push_str(text(part, "text").unwrap_or_default());
            }
        }
        Some("reasoning") => {}
        other => draft.other(other.unwrap_or("item")),
    }
}

/// The name of an item that the runtime is to carry out; none for what is no call, or what the provider does itself.
fn call_name(item: &Value) -> Option<String> {
    let is_ours = match text(item, "type")? {
        "function_call" | "custom_tool_call" => return Some(text(item, "name").unwrap_or_default().to_owned()),
        "local_shell_call" | "apply_patch_call" | "computer_call" => true,
        "tool_search_call" => text(item, "execution") == Some("client"),
        "shell_call" => !matches!(text(&item["environment"], "type"), Some(kind) if kind.starts_with("container")),
        _ => false,
    };
    // Nobody offered these: the model is told that there is no such tool.
    is_ours.then(|| text(item, "type").unwrap_or_default().trim_end_matches("_call").to_owned())
}

fn call_arguments(item: &Value) -> Value {
    ["arguments", "input", "action", "operation"]
        .into_iter()
        .filter_map(|field| item.get(field))
        .find(|value| !value.is_null())
        .cloned()
        .unwrap_or(Value::Null)
}

/// Name and model of an answer.
fn about(draft: &mut Draft, response: &Value) {
    draft.response_id = text(response, "id").map(str::to_owned).or(draft.response_id.take());
    draft.model = text(response, "model").map(str::to_owned).or(draft.model.take());
}

/// Takes a whole answer, at the end of a stream or by itself.
pub(super) fn whole(draft: &mut Draft, response: &Value, streamed: bool) {
    about(draft, response);
    let seen = !draft.calls.is_empty() || !draft.text.is_empty();
    if !streamed || !seen {
        for (number, item) in list(response, "output").enumerate() {
            end_item(draft, &format!("#{number}"), item);
        }
    }
    if response.get("usage").is_some_and(Value::is_object) {
        let before = draft.usage.unwrap_or_default();
        let mut spent = Spent { usage: usage_of(&response["usage"]), ..Spent::default() };
        spent.add(&before);
        draft.usage = Some(spent.usage);
    }
    draft.finish = match text(response, "status") {
        Some("incomplete") => match text(&response["incomplete_details"], "reason") {
            Some("max_output_tokens") => Some(Finish::Length),
            Some("content_filter") => Some(Finish::Filtered),
            other => Some(Finish::Other(kernel::excerpt(other.unwrap_or("incomplete"), 40))),
        },
        Some(other @ ("cancelled" | "in_progress" | "queued")) => Some(Finish::Other(other.to_owned())),
        _ => None,
    };
    draft.open.clear();
    draft.is_over = true;
}

fn usage_of(usage: &Value) -> Usage {
    Usage {
        input_tokens: count(&usage["input_tokens"]),
        cached_tokens: count(&usage["input_tokens_details"]["cached_tokens"]),
        cache_write_tokens: count(&usage["input_tokens_details"]["cache_write_tokens"]),
        output_tokens: count(&usage["output_tokens"]),
        reasoning_tokens: count(&usage["output_tokens_details"]["reasoning_tokens"]),
        ..Usage::default()
    }
}
