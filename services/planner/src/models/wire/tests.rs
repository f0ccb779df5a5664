//! Shapes that servers like the known ones send, and shapes that nobody should send.

use std::sync::Arc;

use kernel::RunId;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::models::ToolDecl;

fn prompt() -> Prompt {
    let tool = ToolDecl { name: "look".into(), description: String::new(), schema: json!({"type": "object"}) };
    Prompt {
        system: "Rules.".into(),
        user: "What next?".into(),
        tools: Arc::new([tool]),
        tool_tokens: 5,
        max_output_tokens: 100,
        run_id: RunId::mint(),
        turn: 1,
        ask: 0,
    }
}

fn read(events: &[Value]) -> Result<Answer, ModelError> {
    let mut decoder = Decoder::default();
    for event in events {
        decoder.push(&event.to_string())?;
    }
    decoder.finish("m", &prompt())
}

fn chat(delta: &Value, finish: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

/// Calls in pieces, then the end.
fn called(pieces: &[Value]) -> Vec<ModelCall> {
    let mut events: Vec<_> = pieces.iter().map(|piece| chat(&json!({"tool_calls": [piece]}), &Value::Null)).collect();
    events.push(chat(&json!({}), &json!("stop")));
    let answer = read(&events).unwrap();
    assert_eq!(answer.finish, Finish::Calls, "a call is a call, whatever the server says of the end");
    answer.calls
}

fn call(id: Option<&str>, name: &str, arguments: Value) -> ModelCall {
    ModelCall { id: id.map(str::to_owned), name: name.to_owned(), arguments: Arguments::Json(arguments) }
}

#[test]
fn calls_are_put_together_however_servers_cut_them() {
    let piece = |index: Option<u32>, id: Option<&str>, name: Option<&str>, arguments: &str| {
        let mut piece = json!({"function": {"arguments": arguments}});
        if let Some(index) = index {
            piece["index"] = json!(index);
        }
        if let Some(id) = id {
            piece["id"] = json!(id);
        }
        if let Some(name) = name {
            piece["function"]["name"] = json!(name);
        }
        piece
    };
    let two = [call(Some("a"), "look", json!({"n": 1})), call(Some("b"), "look", json!({"n": 2}))];
    for (what, pieces) in [
        (
            "side by side",
            vec![
                piece(Some(0), Some("a"), Some("look"), "{\"n"),
                piece(Some(1), Some("b"), Some("look"), "{\"n\""),
                piece(Some(0), None, None, "\":1}"),
                piece(Some(1), None, None, ":2}"),
            ],
        ),
        (
            "without an index",
            vec![
                piece(None, Some("a"), Some("look"), "{\"n\":"),
                piece(None, None, None, "1}"),
                piece(None, Some("b"), Some("look"), "{\"n\":2}"),
            ],
        ),
        (
            "all with index 0",
            vec![
                piece(Some(0), Some("a"), Some("look"), "{\"n\":1}"),
                piece(Some(0), Some("b"), Some("look"), "{\"n\":2}"),
            ],
        ),
        (
            "with the name in every piece",
            vec![
                piece(Some(0), Some("a"), Some("look"), "{\"n\":"),
                piece(Some(0), Some("a"), Some("look"), "1}"),
                piece(Some(1), Some("b"), Some("look"), "{\"n\":2}"),
            ],
        ),
    ] {
        assert_eq!(called(&pieces), two, "{what}");
    }
    assert_eq!(called(&[piece(Some(0), None, Some("look"), "")]), [call(None, "look", json!({}))]);
    let object = json!({"index": 0, "id": "a", "function": {"name": "look", "arguments": {"n": 1}}});
    assert_eq!(called(&[object]), two[..1]);
    let twice = piece(Some(0), Some("a"), Some("look"), "\"{\\\"n\\\":1}\"");
    assert_eq!(called(&[twice]), two[..1], "JSON in JSON");
    let broken = called(&[piece(Some(0), Some("a"), Some("look"), "{\"n\": ")]);
    assert_eq!(broken[0].arguments, Arguments::Malformed("{\"n\": ".into()));
}

#[test]
fn older_and_other_chats_are_understood() {
    let function = json!({"function_call": {"name": "look", "arguments": "{}"}});
    assert_eq!(read(&[chat(&function, &json!("function_call"))]).unwrap().calls, [call(None, "look", json!({}))]);
    let parts = json!({"content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "So."},
    ]});
    let answer = read(&[chat(&parts, &json!("stop"))]).unwrap();
    assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("So.", "hm"));
    let whole = json!({"choices": [{"message": {"content": null, "refusal": "I can't."}, "finish_reason": "stop"}]});
    let refused = read(&[whole]).unwrap_err();
    assert_eq!((refused.kind, refused.to_string().as_str()), (FailureKind::Refused, "refused: I can't."));
    assert_eq!(read(&[json!([])]).unwrap_err().kind, FailureKind::Reset, "nothing was said");
}

#[test]
fn gemini_says_in_many_ways_that_it_will_not() {
    let ended = |reason: &str| json!({"candidates": [{"content": {"parts": []}, "finishReason": reason}]});
    for (event, kind) in [
        (json!({"promptFeedback": {"blockReason": "SAFETY"}}), FailureKind::Refused),
        (ended("PROHIBITED_CONTENT"), FailureKind::Refused),
        (ended("MALFORMED_FUNCTION_CALL"), FailureKind::MalformedCall),
        (ended("STOP"), FailureKind::Empty),
    ] {
        assert_eq!(read(std::slice::from_ref(&event)).unwrap_err().kind, kind, "{event}");
    }
    let pieces = json!([
        {"candidates": [{"content": {"parts": [{"text": "a"}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "b"}]}, "finishReason": "MAX_TOKENS"}]},
    ]);
    let cut = read(&[pieces]).unwrap();
    assert_eq!((cut.text.as_str(), cut.finish), ("ab", Finish::Length));
}

#[test]
fn few_bytes_cannot_ask_for_endless_arguments() {
    let piece = |place: usize| json!({"jsonPath": format!("$.a{place}{}", "[4095]".repeat(30)), "stringValue": "x"});
    let call = json!({"name": "look", "willContinue": true, "partialArgs": (0..1000).map(piece).collect::<Vec<_>>()});
    let event = json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]});
    let error = read(&[json!([event])]).unwrap_err();
    assert!(error.to_string().contains("larger"), "{error}");
}

#[test]
fn responses_say_why_they_ended() {
    let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "half"});
    let ended = |reason: &str| {
        let response = json!({"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": {"input_tokens": 7, "output_tokens": 3}});
        json!({"type": "response.incomplete", "response": response})
    };
    assert_eq!(read(&[text.clone(), ended("max_output_tokens")]).unwrap().finish, Finish::Length);
    let refused = read(&[text, ended("content_filter")]).unwrap_err();
    assert_eq!((refused.kind, refused.usage.input_tokens), (FailureKind::Refused, 7), "it was paid for all the same");
    let said = json!({"type": "response.refusal.delta", "output_index": 0, "delta": "No."});
    let done = json!({"type": "response.completed", "response": {"status": "completed", "output": []}});
    assert_eq!(read(&[said, done]).unwrap_err().message, "No.");
}

#[test]
fn several_calls_in_one_are_unfolded_unless_there_is_such_a_tool() {
    let uses = json!({"tool_uses": [{"recipient_name": "functions.look", "parameters": {"n": 1}}]});
    let wrapper = call(Some("a"), "multi_tool_use.parallel", uses.clone());
    assert_eq!(unwrapped(wrapper), [call(Some("a_0"), "look", json!({"n": 1}))]);
    let empty = call(Some("a"), "parallel", json!({"tool_uses": []}));
    assert_eq!(unwrapped(empty.clone()), [empty]);
    let other = call(Some("a"), "look", uses);
    assert_eq!(unwrapped(other.clone()), [other]);
}

#[test]
fn requests_are_written_as_each_provider_wants_them() {
    let asked = prompt();
    let body = |wire: Wire| wire.request("m", &asked);
    assert_eq!(body(Wire::Chat(false))["max_tokens"], 100);
    assert_eq!(body(Wire::Chat(true))["max_completion_tokens"], 100);
    assert_eq!(body(Wire::Chat(false))["tools"][0]["function"]["name"], "look");
    let responses = body(Wire::Responses);
    assert_eq!((&responses["store"], &responses["tools"][0]["strict"]), (&json!(false), &json!(false)));
    assert_eq!(responses["instructions"], "Rules.");
    assert_eq!(body(Wire::Anthropic)["system"][0]["cache_control"]["type"], "ephemeral");
    assert_eq!(body(Wire::Gemini)["tools"][0]["functionDeclarations"][0]["name"], "look");
    assert_eq!(Wire::Gemini.path("g"), "models/g:streamGenerateContent?alt=sse");
    assert_eq!(Wire::Gemini.path("../../x?y#"), "models/xy:streamGenerateContent?alt=sse");
}

fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "type",
        "choices",
        "delta",
        "tool_calls",
        "function",
        "index",
        "id",
        "name",
        "arguments",
        "content",
        "candidates",
        "parts",
        "functionCall",
        "partialArgs",
        "jsonPath",
        "stringValue",
        "willContinue",
        "message",
        "usage",
        "item",
        "output_index",
        "response",
        "output",
        "content_block",
        "event_type",
        "step",
        "interaction",
        "steps",
        "error",
        "status",
        "object",
        "iterations",
        "input_tokens",
        "cache_read_input_tokens",
        "prompt_tokens",
        "finish_reason",
    ]);
    let values = prop::sample::select(vec![
        "message_start",
        "message_delta",
        "content_block_start",
        "content_block_delta",
        "input_json_delta",
        "tool_use",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
        "function_call",
        "step.start",
        "step.delta",
        "interaction.completed",
        "chat.completion",
        "$.a[3].b",
        "$[99999999]",
        "$..[",
        "stop",
        "message",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        values.prop_map(Value::from),
        "\\PC{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((words.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    /// Whatever a server sends: no panic.
    #[test]
    fn nothing_that_is_sent_makes_it_panic(events in prop::collection::vec(any_json(), 0..12)) {
        let _ = read(&events);
    }
}

#[test]
fn counts_that_nobody_can_have_counted_are_added_up_all_the_same() {
    let most = json!(u64::MAX);
    let anthropic = json!({"input_tokens": most, "output_tokens": most, "cache_read_input_tokens": most,
        "cache_creation_input_tokens": most, "iterations": [{"type": "compaction", "input_tokens": most, "output_tokens": most}]});
    let chat = json!({"prompt_tokens": most, "completion_tokens": most, "total_tokens": most,
        "completion_tokens_details": {"reasoning_tokens": most}});
    let gemini = json!({"promptTokenCount": most, "toolUsePromptTokenCount": most, "candidatesTokenCount": most,
        "thoughtsTokenCount": most});
    let responses = json!({"input_tokens": most, "output_tokens": most});
    for event in [
        json!({"type": "message_start", "message": {"usage": anthropic}}),
        json!({"type": "message_delta", "delta": {}, "usage": {"output_tokens": most}}),
        json!({"choices": [], "usage": chat}),
        json!({"usageMetadata": gemini}),
        json!({"type": "response.completed", "response": {"status": "completed", "usage": responses}}),
    ] {
        let mut decoder = Decoder::default();
        for _ in 0..3 {
            decoder.push(&event.to_string()).unwrap();
        }
        assert!(decoder.draft.usage.is_some_and(|usage| usage.tokens() > 1 << 20), "{event}");
    }
}
