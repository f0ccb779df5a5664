//! Models behind HTTP: asked with a stream, read as it comes, or whole where a server does not stream.
//!
//! The `genai` crate (0.7.2) was here before and went, since it loses what must not be lost, and cannot be told otherwise from
//! outside: the arguments of Gemini's calls that are written place by place (`partialArgs`, see
//! `google-stream-tool-call-arguments`), the refusals of OpenAI and of Anthropic with their reasons (`anthropic-refusal`),
//! answers that come whole to a request for a stream, calls whose message begins anew (`spliced-message-start`), the time after
//! which Google wants to be asked again (`google-429-retry-info`), and what reasoning and the writing of caches cost. What is
//! asked here is one message with rules and tools, so that asking takes thirty lines for each provider and reading a hundred;
//! `tests/streams` holds the recordings that they are held to.

use std::time::Duration;

use futures::future::BoxFuture;
use kernel::budget::Usage;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Answer, Arguments, ModelCall, ModelName, OnDelta, Piece, Prompt, Provider,
    failure::{self, FailureKind, ModelError},
    places::Place,
    wire::{Decoder, Events, Shown},
};
use crate::tokens::Counter;

/// Most bytes of a body that says what went wrong.
const ERROR_BYTES: usize = 64 * 1024;
/// Most bytes of an answer that does not stream.
const WHOLE_BYTES: usize = 32 * 1024 * 1024;
/// How long what may still come is waited for, such as the counts, once an answer is over.
const LINGER: Duration = Duration::from_secs(5);

/// How remote models are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// For the connection.
    pub connect: Duration,
    /// Until the answer begins.
    pub first: Duration,
    /// Between two pieces of it.
    pub between: Duration,
    /// For the whole answer.
    pub whole: Duration,
    /// Hosts, or `host:port`, that may be shown keys beside the providers' own and this machine.
    pub key_hosts: Vec<String>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first: Duration::from_secs(120),
            between: Duration::from_secs(60),
            whole: Duration::from_secs(600),
            key_hosts: Vec::new(),
        }
    }
}

/// One model of one provider.
pub struct RemoteProvider {
    client: reqwest::Client,
    place: Place,
    model: String,
    options: RemoteOptions,
}

/// How the body of an answer is written.
enum Body {
    /// Nothing of it has come.
    Unknown,
    /// Server-sent events.
    Stream(Events),
    /// JSON, all of it.
    Whole(Vec<u8>),
}

impl RemoteProvider {
    /// Ready to ask. `key` looks up a key by the name that the provider's own tools use, such as `OPENAI_API_KEY`.
    ///
    /// # Errors
    /// When the place can't be had: see [`Place::find`].
    pub fn open(
        name: &ModelName,
        base_url: Option<&str>,
        options: &RemoteOptions,
        key: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ModelError> {
        let place = Place::find(name, base_url, &options.key_hosts, key)?;
        // A redirect would carry prompt and key to whom nobody named.
        let client = reqwest::Client::builder()
            .connect_timeout(options.connect)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| ModelError::misconfigured(format!("no HTTP client: {error}")))?;
        Ok(Self { client, place, model: name.model.clone(), options: options.clone() })
    }

    async fn ask(&self, prompt: &Prompt, on_delta: OnDelta<'_>) -> Result<Answer, ModelError> {
        let mut response = timeout(self.options.first, self.send(prompt))
            .await
            .map_err(|_| late("no answer began", self.options.first))??;
        let (mut body, mut decoder) = (Body::Unknown, Decoder::default());
        loop {
            let wait = match (&body, decoder.is_over()) {
                (_, true) => LINGER.min(self.options.between),
                (Body::Unknown, _) => self.options.first,
                _ => self.options.between,
            };
            let piece = match timeout(wait, response.chunk()).await {
                Ok(Ok(piece)) => piece,
                // What comes after the end is not missed.
                _ if decoder.is_over() => None,
                Ok(Err(error)) => return Err(broken(&error)),
                Err(_) => return Err(late("nothing more came of the answer", wait)),
            };
            let Some(piece) = piece else { break };
            if take(&mut body, &mut decoder, &piece, on_delta)? {
                break;
            }
        }
        match body {
            Body::Unknown => {}
            Body::Stream(mut events) => {
                if let Some(last) = events.finish() {
                    tell(decoder.push(&last)?, on_delta);
                }
            }
            Body::Whole(bytes) => tell(decoder.push(&String::from_utf8_lossy(&bytes))?, on_delta),
        }
        decoder.finish(&self.model, prompt)
    }

    async fn send(&self, prompt: &Prompt) -> Result<reqwest::Response, ModelError> {
        let wire = self.place.wire;
        let address = format!("{}{}", self.place.url, wire.path(&self.model));
        let mut request = self.client.post(address).json(&wire.request(&self.model, prompt));
        // A server of one's own may want none; the header is sent all the same.
        for (name, value) in wire.headers(self.place.key.as_deref().unwrap_or("none")) {
            let mut value = reqwest::header::HeaderValue::from_str(&value).map_err(|_| {
                ModelError::misconfigured(format!("the key of {} is no text for a header", self.place.provider))
            })?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let mut response = request.send().await.map_err(|error| broken(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let headers = response.headers().clone();
        let mut said = Vec::new();
        let until = Instant::now() + self.options.between;
        while said.len() < ERROR_BYTES {
            match timeout_at(until, response.chunk()).await {
                Ok(Ok(Some(piece))) => said.extend_from_slice(&piece),
                _ => break,
            }
        }
        Err(failure::with_status(status.as_u16(), &headers, &String::from_utf8_lossy(&said)))
    }
}

/// Takes a piece of the body; whether the server says that nothing more comes.
fn take(body: &mut Body, decoder: &mut Decoder, piece: &[u8], on_delta: OnDelta<'_>) -> Result<bool, ModelError> {
    if matches!(body, Body::Unknown) {
        let text = piece.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(piece);
        match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{' | b'[') => *body = Body::Whole(Vec::new()),
            Some(_) => *body = Body::Stream(Events::default()),
            None => return Ok(false),
        }
    }
    match body {
        Body::Stream(events) => {
            let whole = events.push(piece).map_err(|_| {
                ModelError::new(FailureKind::Garbled, "an event of the answer is larger than any can be")
            })?;
            for data in whole {
                if data.trim() == "[DONE]" {
                    return Ok(true);
                }
                tell(decoder.push(&data)?, on_delta);
            }
        }
        Body::Whole(bytes) => {
            bytes.extend_from_slice(piece);
            if bytes.len() > WHOLE_BYTES {
                return Err(ModelError::new(FailureKind::Garbled, "the answer is larger than any answer can be"));
            }
        }
        Body::Unknown => {}
    }
    Ok(false)
}

fn tell(shown: Shown<'_>, on_delta: OnDelta<'_>) {
    let piece = match shown {
        Shown::More(piece) => piece,
        Shown::Anew(piece) => {
            on_delta(Piece::Anew);
            piece
        }
    };
    if !piece.is_empty() {
        on_delta(Piece::More(piece));
    }
}

impl Provider for RemoteProvider {
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let whole = timeout(self.options.whole, self.ask(prompt, on_delta)).await;
            whole.map_err(|_| late("no whole answer came", self.options.whole))?
        })
    }

    fn provider(&self) -> &str {
        &self.place.provider
    }

    fn model(&self) -> &str {
        &self.model
    }
}

fn late(what: &str, after: Duration) -> ModelError {
    ModelError::new(FailureKind::TimedOut, format!("{what} within {} ms", after.as_millis()))
}

/// A connection that failed. The address is left out: it may hold what is secret.
fn broken(error: &reqwest::Error) -> ModelError {
    let kind = if error.is_timeout() {
        FailureKind::TimedOut
    } else if error.is_connect() {
        FailureKind::Unreachable
    } else {
        FailureKind::Reset
    };
    let what = if kind == FailureKind::Unreachable { "no connection" } else { "the answer broke off" };
    ModelError::new(kind, format!("{what}: {}", kernel::excerpt(&service::causes::root(error), 200)))
}

/// What a call of this model consumed, for servers that do not count.
pub(super) fn estimate(model: &str, prompt: &Prompt, text: &str, calls: &[ModelCall]) -> Usage {
    let counter = Counter::of(model);
    let written = calls.iter().map(|call| match &call.arguments {
        Arguments::Json(value) => counter.count(&value.to_string()),
        Arguments::Malformed(text) => counter.count(text),
    });
    Usage {
        input_tokens: counter.count(&prompt.system) + counter.count(&prompt.user) + prompt.tool_tokens,
        output_tokens: counter.count(text) + written.sum::<u64>(),
        ..Usage::default()
    }
}
