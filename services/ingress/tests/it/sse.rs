//! A small reader of server-sent events.

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use crate::harness::{Door, PATIENCE};

/// One event, or a comment (then `event` is empty).
#[derive(Clone, Debug, PartialEq)]
pub struct Sse {
    pub event: String,
    pub id: Option<u64>,
    pub data: Value,
}

/// An open stream.
pub struct Reader {
    body: futures::stream::BoxStream<'static, Result<bytes::Bytes, reqwest::Error>>,
    buffer: String,
}

impl Reader {
    /// Opens the stream of a run behind event `last`.
    pub async fn open(door: &Door, run: kernel::RunId, last: Option<u64>) -> Self {
        let request = door.request(Method::GET, &format!("/v1/runs/{run}/stream"), "viewer");
        let request = match last {
            Some(last) => request.header("last-event-id", last.to_string()),
            None => request,
        };
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self::of(response)
    }

    /// What comes by an open stream.
    pub fn of(response: reqwest::Response) -> Self {
        Self { body: response.bytes_stream().boxed(), buffer: String::new() }
    }

    /// The next event, comments too; none at the end.
    pub async fn next(&mut self) -> Option<Sse> {
        let next = async {
            loop {
                if let Some((frame, rest)) = self.buffer.split_once("\n\n") {
                    let (frame, rest) = (frame.to_owned(), rest.to_owned());
                    self.buffer = rest;
                    return Some(parse(&frame));
                }
                match self.body.next().await {
                    Some(Ok(piece)) => self.buffer.push_str(std::str::from_utf8(&piece).unwrap()),
                    Some(Err(_)) | None => return None,
                }
            }
        };
        tokio::time::timeout(PATIENCE, next).await.expect("the stream is silent")
    }

    /// The next event of this name; others are passed over.
    pub async fn until(&mut self, event: &str) -> Sse {
        loop {
            let next = self.next().await.unwrap_or_else(|| panic!("the stream ended before `{event}`"));
            if next.event == event {
                return next;
            }
        }
    }
}

fn parse(frame: &str) -> Sse {
    let mut sse = Sse { event: String::new(), id: None, data: Value::Null };
    for line in frame.lines() {
        let (field, value) = line.split_once(':').unwrap();
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => sse.event = value.to_owned(),
            "id" => sse.id = Some(value.parse().unwrap()),
            "data" => sse.data = serde_json::from_str(value).unwrap(),
            _ => {}
        }
    }
    sse
}
