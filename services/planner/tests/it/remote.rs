//! Remote models, against a stand-in that speaks the formats of OpenAI and Anthropic and fails as they do.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use kernel::RunId;
use planner::models::{
    Answer, Arguments, FailureKind, Finish, ModelError, ModelName, Piece, Prompt, Provider, Rule, ToolDecl,
    remote::{RemoteOptions, RemoteProvider},
};
use serde_json::{Value, json};

/// What the stand-in does with the next request.
enum Reply {
    /// Streams these pieces, split anywhere.
    Stream(Vec<String>),
    /// Streams this and then breaks the connection off.
    Break(String),
    /// Streams this and then says nothing more.
    Hang(String),
    /// Refuses.
    Status(u16, Vec<(&'static str, &'static str)>, Value),
}

#[derive(Clone, Default)]
struct StandIn {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    seen: Arc<Mutex<Vec<(String, String, Value)>>>,
}

impl StandIn {
    async fn start(replies: Vec<Reply>) -> (Self, String) {
        let stand_in = Self { replies: Arc::new(Mutex::new(replies.into())), ..Self::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(stand_in.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (stand_in, url)
    }

    fn seen(&self) -> (String, String, Value) {
        self.seen.lock().unwrap().last().expect("a request").clone()
    }
}

async fn answer(State(stand_in): State<StandIn>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let key = ["authorization", "x-api-key"].iter().find_map(|name| request.headers().get(*name));
    let key = key.map(|key| key.to_str().unwrap().to_owned()).unwrap_or_default();
    let body = axum::body::to_bytes(request.into_body(), 1 << 22).await.unwrap();
    stand_in.seen.lock().unwrap().push((path, key, serde_json::from_slice(&body).unwrap()));
    let reply = stand_in.replies.lock().unwrap().pop_front().expect("one more request than replies");
    let stream = |pieces: Vec<Result<String, std::io::Error>>, hang: bool| {
        let pieces = futures::stream::iter(pieces).then(|piece| async {
            tokio::task::yield_now().await;
            piece
        });
        let body =
            if hang { Body::from_stream(pieces.chain(futures::stream::pending())) } else { Body::from_stream(pieces) };
        Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    };
    match reply {
        Reply::Stream(pieces) => stream(pieces.into_iter().map(Ok).collect(), false),
        Reply::Break(piece) => stream(vec![Ok(piece), Err(std::io::Error::other("gone"))], false),
        Reply::Hang(piece) => stream(vec![Ok(piece)], true),
        Reply::Status(status, headers, body) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
            for (name, value) in headers {
                response.headers_mut().insert(name, value.parse().unwrap());
            }
            response
        }
    }
}

fn data(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn chunk(delta: Value, finish: Value) -> Value {
    json!({"id": "c1", "object": "chat.completion.chunk", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn tool_delta(index: u32, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    let mut call = json!({"index": index, "function": {"arguments": arguments}});
    if let (Some(id), Some(name)) = (id, name) {
        call["id"] = json!(id);
        call["type"] = json!("function");
        call["function"]["name"] = json!(name);
    }
    chunk(json!({"tool_calls": [call]}), Value::Null)
}

fn openai_stream(arguments: &[&str]) -> String {
    let mut chunks = vec![
        chunk(json!({"role": "assistant", "content": ""}), Value::Null),
        chunk(json!({"content": "I look "}), Value::Null),
        chunk(json!({"content": "first. ✓"}), Value::Null),
        tool_delta(0, Some("call_a"), Some("file_read"), ""),
    ];
    chunks.extend(arguments.iter().map(|piece| tool_delta(0, None, None, piece)));
    chunks.push(tool_delta(1, Some("call_b"), Some("say"), "{\"text\":\"hi\"}"));
    chunks.push(chunk(json!({}), json!("tool_calls")));
    chunks.push(json!({
        "id": "c1", "choices": [],
        "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150, "prompt_tokens_details": {"cached_tokens": 64}},
    }));
    data(&chunks) + "data: [DONE]\n\n"
}

/// The text in pieces that end in the middle of lines and letters' neighbours.
fn pieces(text: &str, size: usize) -> Vec<String> {
    text.chars().collect::<Vec<_>>().chunks(size).map(|piece| piece.iter().collect()).collect()
}

fn prompt() -> Prompt {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let tool = |name: &str| ToolDecl { name: name.to_owned(), description: "Does.".to_owned(), schema: schema.clone() };
    Prompt {
        system: "Rules.".to_owned(),
        user: "What next?".to_owned(),
        tools: [tool("file_read"), tool("say")].into(),
        tool_tokens: 60,
        max_output_tokens: 500,
        run_id: RunId::mint(),
        turn: 1,
        ask: 0,
    }
}

/// A provider whose answers may stop for so long in the middle.
fn provider(name: &str, url: &str, between: Duration) -> RemoteProvider {
    let options = RemoteOptions { connect: Duration::from_secs(60), between, ..RemoteOptions::default() };
    let name: ModelName = name.parse().unwrap();
    RemoteProvider::open(&name, Some(url), &options, |_| Some("sk-test".to_owned())).unwrap()
}

/// Asks once; beside the answer, the pieces that were told on the way.
async fn ask(name: &str, reply: Reply) -> (Result<Answer, ModelError>, Vec<String>, (String, String, Value)) {
    // Only what hangs is waited out: a machine that stands still for a while is nothing of the kind.
    let between = Duration::from_secs(if matches!(reply, Reply::Hang(_)) { 2 } else { 60 });
    let (stand_in, url) = StandIn::start(vec![reply]).await;
    let told = Mutex::new(Vec::new());
    let on_delta = |piece: Piece<'_>| match piece {
        Piece::More(text) => told.lock().unwrap().push(text.to_owned()),
        Piece::Anew => told.lock().unwrap().clear(),
    };
    let answer = provider(name, &url, between).answer(&prompt(), &on_delta).await;
    (answer, told.into_inner().unwrap(), stand_in.seen())
}

async fn fails(name: &str, reply: Reply) -> ModelError {
    ask(name, reply).await.0.unwrap_err()
}

#[tokio::test]
async fn openai_streams_text_calls_and_usage() {
    let text = openai_stream(&["{\"pa", "th\":\"a", ".py\"}"]);
    let (answer, told, (path, key, body)) = ask("openai:m-1", Reply::Stream(pieces(&text, 37))).await;
    let answer = answer.unwrap();
    assert_eq!(answer.text, "I look first. ✓");
    assert_eq!(told.concat(), answer.text);
    assert!(told.len() > 1, "in pieces: {told:?}");
    let [read, say] = &answer.calls[..] else { panic!("{:?}", answer.calls) };
    assert_eq!((read.id.as_deref(), read.name.as_str()), (Some("call_a"), "file_read"));
    assert_eq!(read.arguments, Arguments::Json(json!({"path": "a.py"})));
    assert_eq!(say.arguments, Arguments::Json(json!({"text": "hi"})));
    assert_eq!((answer.usage.input_tokens, answer.usage.cached_tokens, answer.usage.output_tokens), (120, 64, 30));
    assert_eq!(answer.finish, Finish::Calls);

    assert_eq!((path.as_str(), key.as_str()), ("/v1/chat/completions", "Bearer sk-test"));
    assert_eq!((&body["model"], &body["stream"]), (&json!("m-1"), &json!(true)));
    assert_eq!(body["tools"][0]["function"]["name"], "file_read");
    assert_eq!(body["tools"][0]["function"]["parameters"]["required"], json!(["path"]));
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Rules."}));
    assert_eq!(body["messages"][1]["content"], "What next?");
}

#[tokio::test]
async fn broken_arguments_stay_the_text_that_they_were() {
    let text = openai_stream(&["{\"path\": \"a", ".py"]);
    let answer = ask("mine:m-1", Reply::Stream(vec![text])).await.0.unwrap();
    assert_eq!(answer.calls[0].arguments, Arguments::Malformed("{\"path\": \"a.py".to_owned()));
}

fn anthropic_stream() -> String {
    let events = [
        json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [],
            "usage": {"input_tokens": 50, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 0, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look "}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "first."}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "file_read", "input": {}}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"path\":"}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": " \"a.py\"}"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 42}}),
        json!({"type": "message_stop"}),
    ];
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn anthropic_streams_text_calls_and_usage() {
    let (answer, told, (path, key, body)) =
        ask("anthropic:claude-x", Reply::Stream(pieces(&anthropic_stream(), 61))).await;
    let answer = answer.unwrap();
    assert_eq!((answer.text.as_str(), told.concat().as_str()), ("I look first.", "I look first."));
    assert_eq!(answer.calls.len(), 1);
    assert_eq!(answer.calls[0].id.as_deref(), Some("toolu_1"));
    assert_eq!(answer.calls[0].arguments, Arguments::Json(json!({"path": "a.py"})));
    assert_eq!((answer.usage.input_tokens, answer.usage.cached_tokens, answer.usage.output_tokens), (120, 70, 42));
    assert_eq!(answer.finish, Finish::Calls);

    assert_eq!((path.as_str(), key.as_str()), ("/v1/messages", "sk-test"));
    assert_eq!((&body["max_tokens"], &body["stream"]), (&json!(500), &json!(true)));
    assert_eq!(body["tools"][0]["name"], "file_read");
    assert!(body["system"].to_string().contains("Rules."));
}

#[tokio::test]
async fn overload_passes_and_says_when_to_come_again() {
    let body = json!({"error": {"message": "slow down", "type": "rate_limit_error"}});
    let error = fails("openai:m", Reply::Status(429, vec![("retry-after", "7")], body)).await;
    assert_eq!((error.kind, error.retry_after), (FailureKind::RateLimited, Some(Duration::from_secs(7))));
    assert!(error.message.contains("slow down"), "{error}");
    for status in [500, 502, 503, 529] {
        let error = fails("anthropic:m", Reply::Status(status, vec![], json!({}))).await;
        assert_eq!(error.kind.rule(), Rule::Retry, "{status}: {error:?}");
    }
}

#[tokio::test]
async fn what_will_never_work_is_not_tried_again() {
    for status in [400, 401, 403, 404] {
        let error = fails("openai:m", Reply::Status(status, vec![], json!({"error": {"message": "no"}}))).await;
        assert_eq!(error.kind.rule(), Rule::NextOrStop, "{status}: {error:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_tried_again() {
    let begun = data(&[chunk(json!({"content": "I look"}), Value::Null)]);
    for (reply, kind) in [
        (Reply::Break(begun.clone()), FailureKind::Reset),
        (Reply::Stream(vec![begun.clone()]), FailureKind::Reset),
        (Reply::Hang(begun), FailureKind::TimedOut),
    ] {
        assert_eq!(fails("openai:m", reply).await.kind, kind);
    }
}

#[tokio::test]
async fn errors_in_the_middle_of_a_stream_are_heard() {
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    let begun: String = anthropic_stream().split_inclusive("\n\n").take(4).collect();
    let error = fails("anthropic:m", Reply::Stream(vec![begun, format!("event: error\ndata: {overloaded}\n\n")])).await;
    assert_eq!(error.kind, FailureKind::Overloaded);
    let invalid = json!({"error": {"type": "invalid_request_error", "message": "no such tool"}});
    let error = fails("openai:m", Reply::Stream(vec![data(&[invalid])])).await;
    assert_eq!(error.kind, FailureKind::Rejected);
}

#[tokio::test]
async fn empty_cut_off_and_withheld_answers_are_told_apart() {
    let ended = |text: &str, finish: &str| {
        let chunks = [chunk(json!({"content": text}), Value::Null), chunk(json!({}), json!(finish))];
        Reply::Stream(vec![data(&chunks) + "data: [DONE]\n\n"])
    };
    assert_eq!(fails("openai:m", ended("", "stop")).await.kind, FailureKind::Empty);
    assert_eq!(fails("openai:m", ended("", "content_filter")).await.kind, FailureKind::Refused);
    let cut = ask("openai:m", ended("half an", "length")).await.0.unwrap();
    assert_eq!((cut.finish, cut.text.as_str()), (Finish::Length, "half an"));
    assert!(cut.usage.input_tokens > 0, "counted here, since the server did not");
    let garbled = fails("openai:m", Reply::Stream(vec!["data: {not json\n\n".to_owned()])).await;
    assert_eq!(garbled.kind, FailureKind::Garbled);
}

#[tokio::test]
async fn nobody_there_is_transient() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let error = provider("openai:m", &url, Duration::from_secs(60)).answer(&prompt(), &|_| {}).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Unreachable);
}
