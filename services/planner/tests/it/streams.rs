//! What providers have really said, whole and in pieces, through the adapter and a stand-in server: nothing is lost.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, response::Response};
use kernel::RunId;
use planner::models::{
    Answer, Arguments, ModelError, ModelName, Piece, Prompt, Provider,
    remote::{RemoteOptions, RemoteProvider},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn recorded() -> PathBuf {
    let given = std::env::var_os("ESC_TEST_STREAMS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams/recorded"))
}

/// The way in which the provider of a file is spoken to.
fn model_of(file: &str) -> &'static str {
    match file.split('/').next() {
        Some("anthropic") => "anthropic:m",
        Some("google") => "google:m",
        Some("deepseek") => "deepseek:m",
        Some("alibaba") => "qwen:m",
        Some("openai") => "openai-responses:m",
        _ => "mine:m",
    }
}

/// The recording as its server sent it; an error with the status that belongs to it.
fn body_of(path: &Path) -> (u16, &'static str, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => {
            let whole: Value = serde_json::from_slice(&bytes).unwrap();
            let error = whole.get("error").filter(|error| error.is_object());
            let status = error.map_or(200, |error| match error["code"].as_u64() {
                Some(code) => u16::try_from(code).unwrap(),
                None if error["type"] == "insufficient_quota" => 429,
                None => 400,
            });
            (status, "application/json", bytes)
        }
        Some("sse") => (200, "text/event-stream", bytes),
        _ => {
            let text = String::from_utf8(bytes).unwrap();
            let events = text.lines().filter(|line| !line.is_empty()).map(|line| format!("data: {line}\n\n"));
            (200, "text/event-stream", events.collect::<String>().into_bytes())
        }
    }
}

/// Serves one body in pieces of this size; gives its address.
async fn serve(status: u16, media_type: &'static str, body: Vec<u8>, size: usize) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let body = Arc::new(body);
    let answer = move |_: Request| {
        let pieces: Vec<_> = body.chunks(size).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        async move {
            Response::builder()
                .status(StatusCode::from_u16(status).unwrap())
                .header("content-type", media_type)
                .body(Body::from_stream(futures::stream::iter(pieces)))
                .unwrap()
        }
    };
    let router = Router::new().fallback(answer);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// Asks once; with what was told on the way.
async fn ask(model: &str, url: &str) -> (Result<Answer, ModelError>, String) {
    let name: ModelName = model.parse().unwrap();
    let provider =
        RemoteProvider::open(&name, Some(url), &RemoteOptions::default(), |_| Some("sk-test".to_owned())).unwrap();
    let prompt = Prompt {
        system: "Rules.".to_owned(),
        user: "What next?".to_owned(),
        tools: Arc::new([]),
        tool_tokens: 0,
        max_output_tokens: 500,
        run_id: RunId::mint(),
        turn: 1,
        ask: 0,
    };
    let told = Mutex::new(String::new());
    let on_delta = |piece: Piece<'_>| match piece {
        Piece::More(text) => told.lock().unwrap().push_str(text),
        Piece::Anew => told.lock().unwrap().clear(),
    };
    let answer = provider.answer(&prompt, &on_delta).await;
    let told = told.lock().unwrap().clone();
    (answer, told)
}

fn digest(text: &str) -> Value {
    json!([text.chars().count(), &hex::encode(Sha256::digest(text))[..12]])
}

/// In the words of `expected.json`.
fn found(answer: &Result<Answer, ModelError>) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return json!({"error": error.kind.as_str()}),
    };
    let calls: Vec<_> = answer
        .calls
        .iter()
        .map(|call| {
            let arguments = match &call.arguments {
                Arguments::Json(value) => value.clone(),
                Arguments::Malformed(text) => json!({"not json": text}),
            };
            json!({"id": call.id, "name": call.name, "arguments": arguments})
        })
        .collect();
    let usage = answer.usage;
    json!({
        "text": digest(&answer.text), "reasoning": digest(&answer.reasoning), "calls": calls,
        "finish": answer.finish.as_str(),
        "usage": [usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.output_tokens, usage.reasoning_tokens],
    })
}

#[tokio::test]
async fn nothing_that_providers_said_is_lost() {
    let folder = recorded();
    let expected: BTreeMap<String, Value> =
        serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    assert!(expected.len() >= 100, "{}", expected.len());
    let mut wrong = Vec::new();
    for (file, expected) in &expected {
        let (status, media_type, body) = body_of(&folder.join(file));
        // Cut within lines and letters, and all at once.
        for size in [97, usize::MAX] {
            let url = serve(status, media_type, body.clone(), size).await;
            let (answer, told) = ask(model_of(file), &url).await;
            let mut found = found(&answer);
            if expected["usage"].is_null() && found["usage"].is_array() {
                // The server did not count: it is counted here.
                assert!(found["usage"][0].as_u64() > Some(0), "{file}");
                found["usage"] = Value::Null;
            }
            if found != *expected {
                wrong.push(format!("{file} in pieces of {size}:\n  {found}\n  {expected}"));
            }
            if let Ok(answer) = &answer
                && told != answer.text
            {
                wrong.push(format!("{file}: told is not what was said"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), 2 * expected.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_stream_that_breaks_off_anywhere_is_no_answer_or_a_whole_one() {
    let folder = recorded();
    for file in ["openai/parallel-tool-call-wrapper.1.chunks.txt", "anthropic/anthropic-json-tool.2.chunks.txt"] {
        let (status, media_type, body) = body_of(&folder.join(file));
        let whole = found(&ask(model_of(file), &serve(status, media_type, body.clone(), usize::MAX).await).await.0);
        for cut in (0..body.len()).step_by(61) {
            let url = serve(status, media_type, body[..cut].to_vec(), usize::MAX).await;
            let (answer, _) = ask(model_of(file), &url).await;
            match &answer {
                // No call is acted on before all of it has come.
                Ok(answer) => {
                    let found = found(&Ok(answer.clone()));
                    assert_eq!(
                        (&found["calls"], &found["text"]),
                        (&whole["calls"], &whole["text"]),
                        "{file} cut at {cut}"
                    );
                }
                Err(error) => assert!(error.is_transient() || error.is_to_be_told(), "{file} cut at {cut}: {error:?}"),
            }
        }
    }
}
