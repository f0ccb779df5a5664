//! Pulling from a durable consumer: asks for as much as there is room for, notices silence, mends what is missing.
//!
//! The client's own batch and message streams are not used: the one stops listening after an idle heartbeat, the other
//! asks ahead of what the handlers can take, so that messages grow stale in a buffer.

use std::time::Duration;

use async_nats::jetstream::consumer::pull::BatchConfig;
use async_nats::{StatusCode, Subject};
use futures::FutureExt as _;
use tokio::time::Instant;

use crate::connection::{Bus, Reconnects};
use crate::error::BusError;
use crate::feed::Feed;
use crate::message::Delivery;
use crate::retry::{self, Delays};
use crate::topology::ConsumerSpec;

/// How long the server keeps a request for messages open.
const EXPIRES: Duration = Duration::from_secs(30);
/// How often the server says that an open request is still known.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// After how much silence an open request is taken for lost.
const SILENCE: Duration = Duration::from_secs(12);

/// How long the server may take to answer when the pulling stops.
const ANSWER: Duration = Duration::from_secs(1);
/// A request for messages that is no JSON.
const UNREADABLE: &str = "{";
/// The status of the answer to it.
const BAD_REQUEST: u16 = 400;

/// Pulls from one consumer.
pub(crate) struct Puller {
    bus: Bus,
    spec: ConsumerSpec,
    /// Where requests for messages go.
    next_subject: Subject,
    inbox: Option<Feed>,
    reconnects: Reconnects,
    /// Messages asked for and not yet received.
    outstanding: usize,
    heard: Instant,
    broken: Option<Broken>,
    delays: Delays,
    /// How often deliveries may have been lost on the way, or the consumer was made anew.
    repairs: u64,
}

/// Something is wrong with the consumer; it is looked after at this time.
struct Broken {
    mend_at: Instant,
    reason: String,
}

impl Puller {
    pub(crate) fn new(bus: &Bus, spec: ConsumerSpec) -> Self {
        let namespace = bus.namespace();
        let (stream, consumer) = (namespace.name(&spec.stream), namespace.name(&spec.name));
        Self {
            next_subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            reconnects: bus.reconnects(),
            bus: bus.clone(),
            spec,
            inbox: None,
            outstanding: 0,
            heard: Instant::now(),
            broken: None,
            delays: retry::exponential(Duration::from_millis(50), Duration::from_secs(5)),
            repairs: 0,
        }
    }

    pub(crate) fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Waits for messages and moves all that are there into `into`, having asked the server for as many as there is
    /// `room` for. Returns when there is at least one, or when something was mended. May be dropped and called again.
    pub(crate) async fn pull(&mut self, room: usize, into: &mut Vec<Delivery>) {
        loop {
            if let Some(broken) = &self.broken {
                tokio::time::sleep_until(broken.mend_at).await;
                self.mend().await;
                return;
            }
            if let Err(error) = self.ask(room).await {
                self.fail(format!("could not ask for messages: {error}"));
                continue;
            }
            let Some(inbox) = &mut self.inbox else { continue };
            let silent = self.heard + SILENCE;
            tokio::select! {
                biased;
                message = inbox.next() => match message {
                    Some(message) => self.take(message, into),
                    None => self.fail("the subscription ended".to_owned()),
                },
                () = self.reconnects.next() => {
                    // The server may or may not have kept the open requests: leave them behind.
                    self.take_ready(into);
                    self.repairs += 1;
                    self.inbox = None;
                }
                () = tokio::time::sleep_until(silent), if self.outstanding > 0 => {
                    self.fail("the server has gone silent".to_owned());
                }
            }
            self.take_ready(into);
            if !into.is_empty() {
                return;
            }
        }
    }

    /// Stops asking and returns what the server had sent by then.
    pub(crate) async fn stop(mut self) -> Vec<Delivery> {
        let mut rest = Vec::new();
        self.take_ready(&mut rest);
        let Some(mut inbox) = self.inbox.take() else { return rest };
        let namespace = self.bus.namespace();
        // The answer to a request that can't be read comes at once, behind everything that the server sent before.
        let (next, reply) = (self.next_subject.clone(), inbox.subject.clone());
        if self.bus.client().publish_with_reply(next, reply, UNREADABLE.into()).await.is_ok() {
            let answered = async {
                while let Some(message) = inbox.next().await {
                    if message.status.is_some_and(|status| status.as_u16() == BAD_REQUEST) && message.reply.is_none() {
                        return;
                    }
                    rest.extend(Delivery::from_nats(message, namespace));
                }
            };
            // Without an answer the rest comes again once its time is up.
            let _ = tokio::time::timeout(ANSWER, answered).await;
        }
        inbox.drain().await;
        while let Some(message) = inbox.next().await {
            rest.extend(Delivery::from_nats(message, namespace));
        }
        rest
    }

    async fn ask(&mut self, room: usize) -> Result<(), BusError> {
        if self.inbox.is_none() {
            self.listen().await?;
        }
        let Some(inbox) = &self.inbox else { return Ok(()) };
        let missing = room.saturating_sub(self.outstanding);
        // While a request is open, small gaps wait until they are worth another one.
        if missing == 0 || (self.outstanding > 0 && missing < room.div_ceil(2)) {
            return Ok(());
        }
        let failed = |source| BusError::Pull { consumer: self.spec.name.to_string(), source };
        let request =
            BatchConfig { batch: missing, expires: Some(EXPIRES), idle_heartbeat: HEARTBEAT, ..BatchConfig::default() };
        let request = serde_json::to_vec(&request).map_err(|error| failed(error.into()))?;
        self.bus
            .client()
            .publish_with_reply(self.next_subject.clone(), inbox.subject.clone(), request.into())
            .await
            .map_err(|error| failed(error.into()))?;
        if self.outstanding == 0 {
            self.heard = Instant::now();
        }
        self.outstanding += missing;
        Ok(())
    }

    /// Opens a new inbox, so that nothing that was asked for before counts any more.
    async fn listen(&mut self) -> Result<(), BusError> {
        self.inbox = Some(Feed::open(&self.bus, &self.spec).await?);
        self.outstanding = 0;
        Ok(())
    }

    fn take_ready(&mut self, into: &mut Vec<Delivery>) {
        while let Some(message) = self.inbox.as_mut().and_then(|inbox| inbox.next().now_or_never()).flatten() {
            self.take(message, into);
        }
    }

    fn take(&mut self, message: async_nats::Message, into: &mut Vec<Delivery>) {
        self.heard = Instant::now();
        // What has a place in the stream is a message, even if its publisher made it look like a word of the server.
        let status = match message.status.filter(|_| message.reply.is_none()) {
            Some(status) => status,
            None => {
                match Delivery::from_nats(message, self.bus.namespace()) {
                    Some(delivery) => {
                        self.outstanding = self.outstanding.saturating_sub(1);
                        self.delays.reset();
                        into.push(delivery);
                    }
                    None => tracing::warn!(consumer = %self.spec.name, "skipped a message without delivery details"),
                }
                return;
            }
        };
        let unfilled = || {
            let headers = message.headers.as_ref()?;
            headers.get("Nats-Pending-Messages")?.as_str().parse::<usize>().ok()
        };
        let description = message.description.as_deref().unwrap_or_default();
        match status {
            StatusCode::IDLE_HEARTBEAT => {}
            // A request ran out, or there was nothing to give.
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => {
                self.outstanding = self.outstanding.saturating_sub(unfilled().unwrap_or(self.outstanding));
            }
            StatusCode::NO_RESPONDERS => self.fail("the stream or the consumer is gone".to_owned()),
            // A request was ended by the server and the rest of it is void.
            StatusCode::REQUEST_TERMINATED if unfilled().is_some() => {
                self.outstanding = self.outstanding.saturating_sub(unfilled().unwrap_or_default());
            }
            status => self.fail(format!("the server says {status} {description}")),
        }
    }

    fn fail(&mut self, reason: String) {
        if self.broken.is_none() {
            let delay = self.delays.next().unwrap_or(HEARTBEAT);
            self.broken = Some(Broken { mend_at: Instant::now() + delay, reason });
        }
    }

    async fn mend(&mut self) {
        let reason = self.broken.as_ref().map(|broken| broken.reason.clone()).unwrap_or_default();
        match self.bus.mend_consumer(&self.spec).await {
            Ok(()) => {
                tracing::info!(consumer = %self.spec.name, reason, "resumed pulling");
                self.broken = None;
                self.inbox = None;
                self.repairs += 1;
            }
            Err(error) => {
                tracing::warn!(consumer = %self.spec.name, reason, %error, "can't pull at the moment, will try again");
                self.broken = None;
                self.fail(reason);
            }
        }
    }
}
