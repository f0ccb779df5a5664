//! Following a run over a connection that may break: every event once, in order, without a gap.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use reqwest::{Response, StatusCode};
use serde_json::Value;

use crate::{
    api::Api,
    error::CliError,
    sse::{Frame, Parser},
    views::{EventView, text},
};

/// How long a run is followed without an answer before that is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a stream tells.
#[derive(Clone, Debug)]
pub enum News {
    /// How the run stands was told: the connection is made.
    Connected,
    /// What was committed.
    Event(Box<EventView>),
    /// A piece of text that the model is writing.
    Delta(String),
    /// The connection broke and is being made again.
    Broken(String),
    /// The run has ended and all of it was told.
    Ended,
}

/// A run being followed.
#[derive(Debug)]
pub struct Follow {
    api: Api,
    path: String,
    /// The last event seen.
    seen: u64,
    open: Option<(Response, Parser)>,
    ready: VecDeque<Frame>,
    waits: bus::retry::Delays,
    heard: Instant,
    pause: Option<Duration>,
    ended: bool,
}

impl Follow {
    /// Follows `run` from behind the event `after`.
    pub fn new(api: &Api, run: &str, after: u64) -> Self {
        Self {
            api: api.clone(),
            path: format!("/v1/runs/{run}/stream"),
            seen: after,
            open: None,
            ready: VecDeque::new(),
            waits: bus::retry::exponential(Duration::from_millis(100), Duration::from_secs(3)),
            heard: Instant::now(),
            pause: None,
            ended: false,
        }
    }

    /// Waits for what comes next. The stream has no end of its own: who has seen the run end stops asking.
    pub async fn next(&mut self) -> Result<News, CliError> {
        loop {
            if self.ended {
                return Ok(News::Ended);
            }
            if let Some(frame) = self.ready.pop_front() {
                match self.read(&frame)? {
                    Some(news) => return Ok(news),
                    None => continue,
                }
            }
            if let Some(pause) = self.pause.take() {
                tokio::time::sleep(pause).await;
            }
            if let Err(error) = self.advance().await {
                return self.broken(error);
            }
        }
    }

    /// Reads a piece of the stream, which is opened if need be.
    async fn advance(&mut self) -> Result<(), CliError> {
        if self.open.is_none() {
            let last = self.seen.to_string();
            let response = self.api.stream(&self.path, &last).await?;
            self.ended = response.status() == StatusCode::NO_CONTENT;
            self.open = Some((response, Parser::after(Some(last))));
        }
        let Some((response, parser)) = self.open.as_mut().filter(|_| !self.ended) else { return Ok(()) };
        match response.chunk().await {
            Ok(Some(piece)) => {
                self.heard = Instant::now();
                self.waits.reset();
                let frames = parser.feed(&piece).map_err(|error| CliError::failed(error.to_string()))?;
                self.ready.extend(frames);
                Ok(())
            }
            // The server ends a stream that is too slow, or when it stops.
            Ok(None) => Err(CliError::unreachable("the stream ended", "it is opened again")),
            Err(error) => Err(self.api.silent(&error)),
        }
    }

    /// A refusal is final; silence is not, for a while.
    fn broken(&mut self, error: CliError) -> Result<News, CliError> {
        let asked = self.open.take().and_then(|(_, parser)| parser.retry()).map(Duration::from_millis);
        if !matches!(error, CliError::Unreachable { .. }) || self.heard.elapsed() > PATIENCE {
            return Err(error);
        }
        self.pause = asked.max(self.waits.next());
        Ok(News::Broken(error.to_string()))
    }

    fn read(&mut self, frame: &Frame) -> Result<Option<News>, CliError> {
        let malformed = |error: serde_json::Error| {
            CliError::failed(format!("the stream holds something that is no event of this version: {error}"))
        };
        if frame.event == "snapshot" {
            return Ok(Some(News::Connected));
        }
        let value: Value = serde_json::from_str(&frame.data).map_err(malformed)?;
        match frame.event.as_str() {
            "delta" => Ok(value.get("text").is_some().then(|| News::Delta(text(&value, &["text"]).to_owned()))),
            _ if value.get("seq").is_some() && value.get("type").is_some() => {
                let event: EventView = serde_json::from_value(value).map_err(malformed)?;
                if event.seq <= self.seen {
                    return Ok(None);
                }
                self.seen = event.seq;
                Ok(Some(News::Event(Box::new(event))))
            }
            // Ticks, and what a later server may tell.
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::{
        Router,
        extract::State,
        http::{HeaderMap, StatusCode},
        response::{IntoResponse, Response},
        routing::get,
    };

    use super::*;
    use crate::args::Door;

    /// What the server was asked to go on from, call by call.
    type Asked = Arc<Mutex<Vec<String>>>;

    fn event(seq: u64, event_type: &str) -> String {
        let data =
            serde_json::json!({"seq": seq, "type": event_type, "version": 1, "at": "2026-01-31T12:00:00Z", "data": {}});
        format!("id: {seq}\nevent: {event_type}\ndata: {data}\n\n")
    }

    /// Breaks off in the middle of an event, repeats one, and says that there is nothing more.
    async fn stream(State(asked): State<Asked>, headers: HeaderMap) -> Response {
        let last = headers["last-event-id"].to_str().unwrap().to_owned();
        let call = {
            let mut asked = asked.lock().unwrap();
            asked.push(last);
            asked.len()
        };
        let body = match call {
            1 => {
                let delta = "event: delta\ndata: {\"text\": \"Hel\"}\n\n";
                format!(
                    "retry: 10\nevent: snapshot\ndata: {{}}\n\n{}{delta}{}data: {{\"se",
                    event(1, "run.created"),
                    event(2, "a.b")
                )
            }
            2 => format!("{}: heartbeat\n\n{}", event(2, "a.b"), event(3, "run.completed")),
            _ => return StatusCode::NO_CONTENT.into_response(),
        };
        ([("content-type", "text/event-stream")], body).into_response()
    }

    async fn api(asked: &Asked) -> Api {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/runs/r/stream", get(stream)).with_state(Arc::clone(asked));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Api::new(&Door { url, token: String::new() }).unwrap()
    }

    #[tokio::test]
    async fn a_broken_stream_goes_on_without_gap_or_repeat() {
        let asked = Asked::default();
        let mut follow = Follow::new(&api(&asked).await, "r", 0);
        let mut told = Vec::new();
        loop {
            match follow.next().await.unwrap() {
                News::Event(event) => told.push(event.seq.to_string()),
                News::Delta(text) => told.push(text),
                News::Connected | News::Broken(_) => {}
                News::Ended => break,
            }
        }
        assert_eq!(told, ["1", "Hel", "2", "3"]);
        assert_eq!(*asked.lock().unwrap(), ["0", "2", "3"]);
    }

    #[tokio::test]
    async fn a_refusal_is_final() {
        let mut follow = Follow::new(&api(&Asked::default()).await, "other", 0);
        assert!(matches!(follow.next().await, Err(CliError::Usage { .. })));
    }
}
