//! For tests against a real server: a bus in a namespace of its own, and its end.

use std::ops::Deref;
use std::time::Duration;

use uuid::Uuid;

use crate::connection::{Bus, BusOptions};
use crate::error::BusError;
use crate::namespace::Namespace;
use crate::retry;
use crate::topology::{Limits, Topology};

/// Where tests find a server, unless the environment says otherwise.
const DEFAULT_URL: &str = "nats://127.0.0.1:14222";
/// How long the server may take to answer: tests are not about how busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// The address of the server to test against: `ESC_TEST_NATS_URL`.
pub fn url() -> String {
    std::env::var("ESC_TEST_NATS_URL").unwrap_or_else(|_| DEFAULT_URL.to_owned())
}

/// A namespace that nobody else uses.
pub fn namespace() -> Namespace {
    let id = Uuid::now_v7().simple().to_string();
    // The second half is the random one. Sixteen hex digits always make a namespace.
    Namespace::new(format!("t{}", &id[16..])).unwrap_or_default()
}

/// The system's streams and consumers, small enough for many tests side by side.
pub fn topology() -> Topology {
    Topology::standard(&Limits::for_tests())
}

/// Options for a connection to the server under test, in this namespace.
pub fn options(namespace: Namespace) -> BusOptions {
    BusOptions {
        namespace,
        connect_within: Duration::from_secs(60),
        patience: PATIENCE,
        topology: topology(),
        ..BusOptions::new(url(), "test")
    }
}

/// A bus in a namespace of its own, with the streams and consumers of [`topology`]. Reads like the [`Bus`] it holds;
/// [`TestBus::end`] removes its streams, and so does dropping it, with less certainty.
pub struct TestBus {
    bus: Bus,
    ended: bool,
}

impl TestBus {
    /// Connects and creates the streams and consumers.
    pub async fn start() -> Result<Self, BusError> {
        Self::start_with(topology()).await
    }

    /// As [`TestBus::start`], with another topology.
    pub async fn start_with(topology: Topology) -> Result<Self, BusError> {
        let bus = Bus::connect(options(namespace())).await?;
        bus.reconcile(&topology).await?;
        Ok(Self::adopt(bus))
    }

    /// Takes charge of a bus that is already there.
    pub fn adopt(bus: Bus) -> Self {
        Self { bus, ended: false }
    }

    /// Loses a stream, as a server does that comes back without its disk.
    pub async fn lose(&self, stream: &str) -> Result<(), BusError> {
        self.bus.delete_stream(stream).await
    }

    /// Removes the streams, with all that is in them. What was not answered is tried again: a stream that is gone by
    /// then was removed.
    pub async fn end(mut self) -> Result<(), BusError> {
        self.ended = true;
        let policy = retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(2));
        retry::when(policy.within(PATIENCE * 3), BusError::is_transient, || self.bus.delete_streams()).await
    }
}

impl Deref for TestBus {
    type Target = Bus;

    fn deref(&self) -> &Bus {
        &self.bus
    }
}

impl Drop for TestBus {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The test's runtime may be ending, so the streams are removed over a connection and a runtime of their own.
        let namespace = self.bus.namespace().clone();
        let topology = (*self.bus.topology()).clone();
        let removing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                // Whoever fails is not held up for long by a server that is gone.
                let (connect_within, patience) = (Duration::from_secs(10), Duration::from_secs(5));
                let options = BusOptions { topology, connect_within, patience, ..options(namespace) };
                let bus = Bus::connect(options).await.ok()?;
                bus.delete_streams().await.ok()
            })
        });
        let _ = removing.join();
    }
}
