//! Where a consumer's messages arrive: an inbox of its own, guarded if anybody outside may have published them.

use async_nats::{Subject, Subscriber};

use crate::connection::Bus;
use crate::error::{BusError, Source};
use crate::guarded::{GuardedSubscriber, OpenError};
use crate::topology::ConsumerSpec;

/// An inbox, and what arrives in it.
pub(crate) struct Feed {
    /// The inbox.
    pub subject: Subject,
    arriving: Arriving,
}

enum Arriving {
    Client(Subscriber),
    Guarded(GuardedSubscriber),
}

impl Feed {
    /// Opens a new inbox for a consumer.
    pub(crate) async fn open(bus: &Bus, consumer: &ConsumerSpec) -> Result<Self, BusError> {
        let failed = |source: Source| BusError::Pull { consumer: consumer.name.to_string(), source };
        let subject = Subject::from(bus.client().new_inbox());
        if bus.topology().stream(&consumer.stream).is_some_and(|stream| stream.untrusted) {
            match GuardedSubscriber::open(bus.address(), &subject).await {
                Ok(subscriber) => return Ok(Self { subject, arriving: Arriving::Guarded(subscriber) }),
                Err(OpenError::Io(error)) => return Err(failed(error.into())),
                Err(error @ OpenError::WebSocket) => {
                    tracing::warn!(consumer = %consumer.name, %error, "unreadable headers from outside can stop this consumer");
                }
            }
        }
        let subscriber = bus.client().subscribe(subject.clone()).await.map_err(|error| failed(error.into()))?;
        Ok(Self { subject, arriving: Arriving::Client(subscriber) })
    }

    /// The next message; `None` once the subscription has ended. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Option<async_nats::Message> {
        use futures::StreamExt as _;
        match &mut self.arriving {
            Arriving::Client(subscriber) => subscriber.next().await,
            Arriving::Guarded(subscriber) => subscriber.next().await,
        }
    }

    /// Unsubscribes; what had arrived can still be read.
    pub(crate) async fn drain(&mut self) {
        match &mut self.arriving {
            Arriving::Client(subscriber) => {
                if let Err(error) = subscriber.drain().await {
                    tracing::debug!(%error, "could not unsubscribe");
                }
            }
            Arriving::Guarded(subscriber) => subscriber.drain(),
        }
    }
}
