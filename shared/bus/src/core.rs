//! Core NATS: fire and forget, for what may be lost without harm.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};

use crate::connection::Bus;
use crate::error::BusError;
use crate::message::{Headers, Message};
use crate::namespace::Namespace;

/// The messages on a subject from now on. Ends when the bus is drained; dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {
    subscriber: async_nats::Subscriber,
    namespace: Namespace,
}

impl Stream for Subscription {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Message>> {
        let polled = self.subscriber.poll_next_unpin(cx);
        polled.map(|message| message.map(|message| Message::from_nats(message, &self.namespace)))
    }
}

impl Bus {
    /// Publishes without a word from the server: whoever is subscribed now gets it, at most once.
    pub async fn publish_core(
        &self,
        subject: &str,
        headers: Headers,
        payload: impl Into<Bytes>,
    ) -> Result<(), BusError> {
        let full = self.namespace().subject(subject);
        let payload = payload.into();
        let sent = if headers.is_empty() {
            self.client().publish(full, payload).await
        } else {
            self.client().publish_with_headers(full, headers.into_inner(), payload).await
        };
        sent.map_err(|error| match error.kind() {
            async_nats::client::PublishErrorKind::MaxPayloadExceeded => {
                BusError::TooLarge { subject: subject.to_owned(), limit: self.max_payload() }
            }
            kind => BusError::Publish {
                subject: subject.to_owned(),
                transient: kind == async_nats::client::PublishErrorKind::Send,
                source: error.into(),
            },
        })
    }

    /// Subscribes to a subject or pattern. The subscription outlives reconnects; what was published meanwhile is lost.
    pub async fn subscribe(&self, subject: &str) -> Result<Subscription, BusError> {
        let subscriber = self.client().subscribe(self.namespace().subject(subject)).await;
        self.subscription(subject, subscriber)
    }

    /// Subscribes as one of a group: each message goes to one of its members.
    pub async fn subscribe_group(&self, subject: &str, group: &str) -> Result<Subscription, BusError> {
        let group = self.namespace().name(group);
        let subscriber = self.client().queue_subscribe(self.namespace().subject(subject), group).await;
        self.subscription(subject, subscriber)
    }

    fn subscription(
        &self,
        subject: &str,
        subscriber: Result<async_nats::Subscriber, async_nats::SubscribeError>,
    ) -> Result<Subscription, BusError> {
        let subscriber =
            subscriber.map_err(|error| BusError::Subscribe { subject: subject.to_owned(), source: error.into() })?;
        Ok(Subscription { subscriber, namespace: self.namespace().clone() })
    }
}
