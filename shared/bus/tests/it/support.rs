//! What several tests need: deadlines, a place to note what happened, a connection that can be cut.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::testing::{self, TestBus};
use bus::{Bus, ConsumerStatus, Outgoing, Topology, subject};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// How long anything may take before a test fails. Long, since the machine may be busy; nothing waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for the event itself, and fails if it doesn't come.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {DEADLINE:?}"),
    }
}

/// Asks again and again until the answer is yes.
pub async fn until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Notes what happened, in order, for tests to wait for.
#[derive(Clone, Default)]
pub struct Notes(Arc<(Mutex<Vec<String>>, Notify)>);

impl Notes {
    pub fn add(&self, note: impl Into<String>) {
        self.0.0.lock().unwrap().push(note.into());
        self.0.1.notify_waiters();
    }

    pub fn all(&self) -> Vec<String> {
        self.0.0.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.0.0.lock().unwrap().len()
    }

    /// Waits until there are so many notes.
    pub async fn wait_for(&self, count: usize) -> Vec<String> {
        let enough = async {
            loop {
                let notified = self.0.1.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if self.count() >= count {
                    return self.all();
                }
                notified.await;
            }
        };
        match tokio::time::timeout(DEADLINE, enough).await {
            Ok(notes) => notes,
            Err(_) => panic!("only {} of {count} notes: {:?}", self.count(), self.all()),
        }
    }
}

/// Waits until the server holds so many messages for the consumer. It counts a message in a while after it stored it.
pub async fn holds(bus: &Bus, consumer: &str, pending: u64) {
    until("the count of messages", async || status(bus, consumer, |status| status.pending == pending).await).await;
}

/// Waits until the consumer has nothing left. The server takes acknowledgements in a while after it received them.
pub async fn settled(bus: &Bus, consumer: &str) {
    let nothing = |status: ConsumerStatus| (status.pending, status.unacknowledged) == (0, 0);
    until("every acknowledgement", async || status(bus, consumer, nothing).await).await;
}

/// Whether the consumer stands like this by now, for those who ask again: without an answer it does not.
pub async fn status(bus: &Bus, consumer: &str, like: impl Fn(ConsumerStatus) -> bool) -> bool {
    bus.consumer_status(consumer).await.is_ok_and(like)
}

/// Whether there are so many dead letters by now.
pub async fn are_dead(bus: &Bus, count: usize) -> bool {
    bus.dlq_list(10, None).await.is_ok_and(|page| page.letters.len() == count)
}

/// A bus whose consumers hear of a silent worker after two seconds, so that tests of it are quick.
pub async fn impatient() -> TestBus {
    TestBus::start_with(impatient_topology()).await.unwrap()
}

pub fn impatient_topology() -> Topology {
    topology_that_waits(Duration::from_secs(2))
}

/// A bus whose consumers wait for a silent worker far longer than tests do for anything: what is delivered again is so for
/// another reason.
pub async fn patient() -> TestBus {
    TestBus::start_with(topology_that_waits(Duration::from_secs(600))).await.unwrap()
}

fn topology_that_waits(ack_wait: Duration) -> Topology {
    let mut topology = testing::topology();
    for consumer in &mut topology.consumers {
        consumer.ack_wait = ack_wait;
    }
    topology
}

/// The client library itself, as patient as a [`TestBus`].
pub async fn jetstream() -> async_nats::jetstream::Context {
    let options = async_nats::ConnectOptions::new().connection_timeout(DEADLINE);
    let client = options.connect(testing::url()).await.unwrap();
    async_nats::jetstream::context::ContextBuilder::new().timeout(DEADLINE).build(client)
}

/// The event that wakes the planner for this run.
pub fn runnable(run: &str) -> Outgoing {
    Outgoing::new(subject::evt("run.runnable", "default", run), run.to_owned()).msg_id(format!("{run}-1"))
}

/// One frame of output.
pub fn frame(call: &str, offset: usize) -> Outgoing {
    Outgoing::new(subject::sig("default", "run", call), format!("{call} {offset}")).msg_id(format!("{call}:{offset}"))
}

/// Stands between the bus and the server; can cut the connection and hold it down.
pub struct Proxy {
    pub url: String,
    up: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub async fn start() -> Self {
        let server = testing::url().rsplit(['/', '@']).next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (up, watch) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut watch) = (server.clone(), watch.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        _ = watch.wait_for(|up| !up) => {}
                        () = relay(client, &server) => {}
                    }
                });
            }
        });
        Self { url, up: Arc::new(up) }
    }

    pub fn cut(&self) {
        self.up.send_replace(false);
    }

    pub fn restore(&self) {
        self.up.send_replace(true);
    }
}

async fn relay(mut client: TcpStream, server: &str) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}
