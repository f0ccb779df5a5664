//! Request and reply, for questions that need an answer at once.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_nats::service::endpoint::Endpoint;
use async_nats::service::{NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Service, ServiceExt as _};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connection::Bus;
use crate::error::BusError;
use crate::message::{Headers, Message};
use crate::subject;

/// A refusal, told in the headers of the reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Problem {
    /// With the meaning of an HTTP status.
    pub code: u16,
    /// For people; one line.
    pub message: String,
}

impl Problem {
    /// A problem with this code.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// 400: the request itself is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// 404: there is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, message)
    }

    /// 500: the service failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, message)
    }
}

/// What to serve: `svc.<service>.<verb>`.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The service's name.
    pub service: String,
    /// What it is asked for.
    pub verb: String,
    /// Requests go to one member of this group; the service's name unless set.
    pub queue_group: Option<String>,
    /// Requests handled at once.
    pub concurrency: usize,
}

impl ServeOptions {
    /// Sixteen requests at once, shared between the instances of the service.
    pub fn new(service: impl Into<String>, verb: impl Into<String>) -> Self {
        Self { service: service.into(), verb: verb.into(), queue_group: None, concurrency: 16 }
    }
}

/// An endpoint that is being served until its token is cancelled.
#[derive(Debug)]
pub struct Serving {
    task: JoinHandle<()>,
}

impl Serving {
    /// Waits until the endpoint has stopped and every request it had taken is answered.
    pub async fn join(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task behind an endpoint ended badly");
        }
    }
}

impl Bus {
    /// Asks and waits for the answer. [`BusError::Refused`] if the service answers with a problem.
    pub async fn request(&self, subject: &str, body: impl Into<Bytes>, timeout: Duration) -> Result<Message, BusError> {
        self.request_with_headers(subject, Headers::new(), body, timeout).await
    }

    /// As [`Bus::request`], with headers such as the trace context.
    pub async fn request_with_headers(
        &self,
        subject: &str,
        headers: Headers,
        body: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Message, BusError> {
        use async_nats::RequestErrorKind as Kind;
        let mut request = async_nats::Request::new().payload(body.into()).timeout(Some(timeout));
        if !headers.is_empty() {
            request = request.headers(headers.into_inner());
        }
        let full = self.namespace().subject(subject);
        let reply = self.client().send_request(full, request).await.map_err(|error| {
            let subject = subject.to_owned();
            match error.kind() {
                Kind::TimedOut => BusError::RequestTimedOut { subject, after: timeout },
                Kind::NoResponders => BusError::NoResponders { subject },
                Kind::MaxPayloadExceeded => BusError::TooLarge { subject, limit: self.max_payload() },
                _ => BusError::Request { subject, source: error.into() },
            }
        })?;
        let reply = Message::from_nats(reply, self.namespace());
        match reply.headers.get(NATS_SERVICE_ERROR_CODE) {
            None => Ok(reply),
            Some(code) => Err(BusError::Refused {
                subject: subject.to_owned(),
                code: code.parse().unwrap_or(500),
                message: reply.headers.get(NATS_SERVICE_ERROR).unwrap_or_default().to_owned(),
            }),
        }
    }

    /// Asks in JSON and reads the answer as JSON.
    pub async fn request_json<Q, A>(&self, subject: &str, question: &Q, timeout: Duration) -> Result<A, BusError>
    where
        Q: Serialize + ?Sized,
        A: DeserializeOwned,
    {
        let body = serde_json::to_vec(question)
            .map_err(|source| BusError::Encode { what: format!("the request to `{subject}`"), source })?;
        let answer = self.request(subject, body, timeout).await?;
        serde_json::from_slice(&answer.payload)
            .map_err(|source| BusError::Decode { what: format!("the answer of `{subject}`"), source })
    }

    /// Answers `svc.<service>.<verb>` until the token is cancelled, then finishes what it had begun. A handler that
    /// panics answers 500. The endpoint shows in the server's service discovery.
    pub async fn serve<H, F>(
        &self,
        options: ServeOptions,
        handler: H,
        token: CancellationToken,
    ) -> Result<Serving, BusError>
    where
        H: Fn(Message) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, Problem>> + Send + 'static,
    {
        let (service, endpoint) = self.open(&options).await?;
        let bus = self.clone();
        let task = tokio::spawn(async move {
            let answering = endpoint.for_each_concurrent(options.concurrency.max(1), |request| {
                let message = Message::from_nats(request.message.clone(), bus.namespace());
                let answer = AssertUnwindSafe(async { handler(message).await }).catch_unwind();
                async move {
                    let answer = answer.await.unwrap_or_else(|_| Err(Problem::internal("the handler panicked")));
                    let answer = answer.map_err(|problem| wire_problem(&problem));
                    if let Err(error) = request.respond(answer).await {
                        tracing::warn!(subject = %request.message.subject, %error, "could not answer a request");
                    }
                }
            });
            let stopping = async {
                token.cancelled().await;
                if let Err(error) = service.stop().await {
                    tracing::warn!(%error, "could not stop an endpoint");
                }
            };
            tokio::pin!(answering);
            tokio::select! {
                // The bus was drained.
                () = &mut answering => {}
                // The stream of requests ends once those taken are answered.
                () = stopping => answering.await,
            }
        });
        Ok(Serving { task })
    }

    /// As [`Bus::serve`], with question and answer in JSON. A body that is not the question answers 400.
    pub async fn serve_json<Q, A, H, F>(
        &self,
        options: ServeOptions,
        handler: H,
        token: CancellationToken,
    ) -> Result<Serving, BusError>
    where
        Q: DeserializeOwned + Send + 'static,
        A: Serialize + 'static,
        H: Fn(Q) -> F + Send + Sync + 'static,
        F: Future<Output = Result<A, Problem>> + Send + 'static,
    {
        let handler = std::sync::Arc::new(handler);
        let answer = move |message: Message| {
            let handler = handler.clone();
            async move {
                let question = serde_json::from_slice(&message.payload)
                    .map_err(|error| Problem::bad_request(format!("the request can't be read: {error}")))?;
                let answer = handler(question).await?;
                serde_json::to_vec(&answer)
                    .map(Bytes::from)
                    .map_err(|error| Problem::internal(format!("the answer can't be written: {error}")))
            }
        };
        self.serve(options, answer, token).await
    }

    async fn open(&self, options: &ServeOptions) -> Result<(Service, Endpoint), BusError> {
        let subject = subject::svc(&options.service, &options.verb);
        let failed = |source| BusError::Serve { subject: subject.clone(), source };
        let group = options.queue_group.as_deref().unwrap_or(&options.service);
        let service = self
            .client()
            .service_builder()
            .queue_group(self.namespace().name(group))
            .metadata(HashMap::from([("verb".to_owned(), options.verb.clone())]))
            .start(self.namespace().name(&options.service), env!("CARGO_PKG_VERSION"))
            .await
            .map_err(failed)?;
        let endpoint = service.endpoint(self.namespace().subject(&subject)).await.map_err(failed)?;
        // Whoever is told that this service is there may ask at once. Without a connection, the next one subscribes again.
        if let Err(error) = self.round_trip().await {
            tracing::debug!(subject, %error, "an endpoint is not in force yet");
        }
        Ok((service, endpoint))
    }
}

/// The problem in a shape that fits header lines.
fn wire_problem(problem: &Problem) -> async_nats::service::error::Error {
    async_nats::service::error::Error {
        code: usize::from(problem.code),
        status: problem.message.replace(['\r', '\n'], " "),
    }
}
