//! Publishing to streams: pipelined, confirmed, mended when a stream is missing.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, Instant};

use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode, message::PublishMessage};
use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use serde::Serialize;

use crate::connection::Bus;
use crate::error::BusError;
use crate::message::{Headers, header};
use crate::meter;
use crate::retry;

/// Messages of one [`Publisher::publish_all`] that are under way at once.
const OUTSTANDING: usize = 1024;
/// How long a publish goes on being tried.
const KEEP_TRYING: Duration = Duration::from_secs(10);

/// A message to publish.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Where to, without the namespace.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub payload: Bytes,
}

impl Outgoing {
    /// A message without headers.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self { subject: subject.into(), headers: Headers::new(), payload: payload.into() }
    }

    /// A message with a JSON body.
    pub fn json<T: Serialize + ?Sized>(subject: impl Into<String>, body: &T) -> Result<Self, BusError> {
        let subject = subject.into();
        let body = serde_json::to_vec(body)
            .map_err(|source| BusError::Encode { what: format!("the body for `{subject}`"), source })?;
        Ok(Self::new(subject, body).header(header::CONTENT_TYPE, "application/json"))
    }

    /// Replaces the headers, keeping none set before.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Sets a header; see [`Headers::insert`].
    #[must_use]
    pub fn header(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Gives the message an identity: the server drops a second one within the stream's window, so that trying again
    /// is harmless.
    #[must_use]
    pub fn msg_id(self, id: impl std::fmt::Display) -> Self {
        self.header(header::MSG_ID, id)
    }

    /// Sets the W3C trace context; a malformed one is left out.
    #[must_use]
    pub fn traceparent(mut self, traceparent: &str) -> Self {
        self.headers.set_traceparent(traceparent);
        self
    }
}

/// The server's word that it took a message. It may still lose it in a power cut: it syncs its disk later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Its number in the stream.
    pub stream_seq: u64,
    /// Whether the server had a message of this identity already and dropped this one.
    pub duplicate: bool,
}

/// A message that is on its way; await it to learn whether the server took it. Dropping it doesn't call it back.
pub struct PublishAck {
    future: PublishAckFuture,
    subject: String,
    sent: Instant,
    limit: usize,
}

impl IntoFuture for PublishAck {
    type Output = Result<Ack, BusError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { future, subject, sent, limit } = self;
            match future.await {
                Ok(ack) => {
                    meter::published(&subject, sent.elapsed());
                    Ok(Ack { stream_seq: ack.sequence, duplicate: ack.duplicate })
                }
                Err(error) => {
                    meter::publish_failed(&subject);
                    Err(publish_error(&subject, limit, error))
                }
            }
        })
    }
}

/// Publishes to streams. Cheap to clone; any number of messages may be under way at once.
#[derive(Clone, Debug)]
pub struct Publisher {
    bus: Bus,
}

impl Publisher {
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// Publishes and waits until the server took the message. A missing stream is created and what may pass is tried
    /// again for about ten seconds; a message without identity is not repeated once it may have arrived.
    pub async fn publish(&self, message: Outgoing) -> Result<Ack, BusError> {
        match self.once(message.clone()).await {
            Err(error) if self.is_worth_repeating(&error, &message) => self.repeat(message, error).await,
            outcome => outcome,
        }
    }

    /// Publishes all, pipelined; they leave in this order, and the results are in the same order. What fails is tried
    /// again as by [`Publisher::publish`], after the others.
    pub async fn publish_all(&self, messages: Vec<Outgoing>) -> Vec<Result<Ack, BusError>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for outcome in self.pipeline(&messages).await.into_iter().zip(messages) {
            outcomes.push(match outcome {
                (Err(error), message) if self.is_worth_repeating(&error, &message) => self.repeat(message, error).await,
                (outcome, _) => outcome,
            });
        }
        outcomes
    }

    /// Sends one after the other while the answers to those before come in: waiting for room to send must not keep the
    /// answers from being taken, since each answer makes room.
    async fn pipeline(&self, messages: &[Outgoing]) -> Vec<Result<Ack, BusError>> {
        let mut outcomes: Vec<_> = messages.iter().map(|_| None).collect();
        let mut answers = FuturesUnordered::new();
        for (index, message) in messages.iter().enumerate() {
            let mut sending = std::pin::pin!(self.send(message.clone()));
            loop {
                let room = answers.len() < OUTSTANDING;
                tokio::select! {
                    biased;
                    sent = &mut sending, if room => {
                        match sent {
                            Ok(answer) => answers.push(answer.into_future().map(move |answer| (index, answer))),
                            Err(error) => outcomes[index] = Some(Err(error)),
                        }
                        break;
                    }
                    Some((index, answer)) = answers.next() => outcomes[index] = Some(answer),
                }
            }
        }
        while let Some((index, answer)) = answers.next().await {
            outcomes[index] = Some(answer);
        }
        outcomes.into_iter().flatten().collect()
    }

    async fn repeat(&self, message: Outgoing, error: BusError) -> Result<Ack, BusError> {
        tracing::debug!(subject = %message.subject, %error, "publishing again");
        let policy = retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(2)).within(KEEP_TRYING);
        let again = || async {
            // The stream may be what is missing; what is wrong then shows in the publish itself.
            if let Err(error) = self.bus.mend_stream_for(&message.subject).await {
                tracing::debug!(subject = %message.subject, %error, "could not mend the stream");
            }
            self.once(message.clone()).await
        };
        retry::when(policy, |error| self.is_worth_repeating(error, &message), again).await
    }

    /// Hands the message to the connection, waiting only if too many are unconfirmed. Await the result for the server's
    /// word; nothing is tried again.
    pub async fn send(&self, message: Outgoing) -> Result<PublishAck, BusError> {
        let Outgoing { subject, headers, payload } = message;
        let mut outgoing = PublishMessage::build().payload(payload);
        // An empty header block would count towards the server's limit, which the client does not see.
        if !headers.is_empty() {
            outgoing = outgoing.headers(headers.into_inner());
        }
        let sent = Instant::now();
        let limit = self.bus.max_payload();
        let future = self
            .bus
            .jetstream()
            .send_publish(self.bus.namespace().subject(&subject), outgoing)
            .await
            .map_err(|error| publish_error(&subject, limit, error))?;
        Ok(PublishAck { future, subject, sent, limit })
    }

    /// Whether another try may help and can't double the message.
    fn is_worth_repeating(&self, error: &BusError, message: &Outgoing) -> bool {
        match error {
            BusError::NoStream { subject } => self.bus.topology().stream_for(subject).is_some(),
            // What timed out may have been stored: only the server's de-duplication makes another try safe.
            BusError::Publish { transient, .. } => *transient && message.headers.get(header::MSG_ID).is_some(),
            _ => false,
        }
    }

    async fn once(&self, message: Outgoing) -> Result<Ack, BusError> {
        self.send(message).await?.await
    }
}

fn publish_error(subject: &str, limit: usize, error: PublishError) -> BusError {
    let subject = subject.to_owned();
    match error.kind() {
        PublishErrorKind::StreamNotFound => BusError::NoStream { subject },
        PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge { subject, limit },
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
            BusError::Publish { subject, transient: true, source: error.into() }
        }
        _ => match jetstream_cause(&error).map(|cause| (cause.error_code(), cause.code())) {
            Some((ErrorCode::STREAM_STORE_FAILED, _)) => BusError::StreamFull { subject, source: error.into() },
            Some((_, code)) => BusError::Publish { subject, transient: code >= 500, source: error.into() },
            None => BusError::Publish { subject, transient: false, source: error.into() },
        },
    }
}

fn jetstream_cause(error: &PublishError) -> Option<&jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}
