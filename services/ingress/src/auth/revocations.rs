//! Tells open streams that tokens were revoked: here, or at another instance.

use std::time::Duration;

use bus::{Bus, BusError, Headers, subject};
use futures::StreamExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a stream may not have heard of a revocation whose message was lost.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Tells of revoked tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Revocations {
    changes: watch::Sender<u64>,
}

/// Hears of revoked tokens.
pub(crate) struct Listener {
    changes: watch::Receiver<u64>,
}

impl Revocations {
    pub(crate) fn new() -> Self {
        Self { changes: watch::Sender::new(0) }
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener { changes: self.changes.subscribe() }
    }

    /// Something changed here.
    pub(crate) fn tell(&self) {
        self.changes.send_modify(|change| *change = change.wrapping_add(1));
    }

    /// Tells all instances, this one among them.
    pub(crate) async fn tell_all(&self, bus: &Bus) {
        self.tell();
        if let Err(error) = bus.publish_core(&subject::svc("ingress", "revoked"), Headers::new(), "{}").await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "other instances were not told of a revoked token: their open streams find out by looking"
            );
        }
    }

    /// Listens to what other instances tell until the token is cancelled.
    pub(crate) async fn hear(
        &self,
        bus: &Bus,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = ()> + use<>, BusError> {
        let mut messages = bus.subscribe(&subject::svc("ingress", "revoked")).await?;
        let told = self.clone();
        Ok(async move {
            let hearing = async {
                while messages.next().await.is_some() {
                    told.tell();
                }
            };
            let _ = stop.run_until_cancelled(hearing).await;
        })
    }
}

impl Listener {
    /// Comes back when there is something to look at, or it is time to look anyway.
    pub(crate) async fn next(&mut self) {
        match tokio::time::timeout(LOOK_EVERY, self.changes.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            // Nobody tells any more: this instance ends.
            Ok(Err(_)) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
