//! The connection: made with patience, kept for ever, closed in order.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_nats::jetstream;
use futures::StreamExt as _;
use tokio::sync::{Mutex, watch};

use crate::error::{BusError, Source};
use crate::guarded::Address;
use crate::namespace::Namespace;
use crate::publish::Publisher;
use crate::retry;
use crate::subject::{self, percent_decode};
use crate::topology::Topology;

/// Publishes that may await their acknowledgement at once, over the whole connection.
const MAX_UNACKNOWLEDGED: usize = 8192;
/// Messages of one subscription that may wait to be read, beyond which the client drops.
const SUBSCRIPTION_CAPACITY: usize = 64 * 1024;

/// How to reach the server, and as whom.
#[derive(Clone)]
pub struct BusOptions {
    /// One or more `nats://[user:password@]host[:port]`, separated by commas. User and password are percent-decoded. A
    /// `tls://` among them makes every connection safe, also to servers that the cluster names later.
    pub url: String,
    /// The prefix of every subject and name; empty in production.
    pub namespace: Namespace,
    /// The name that the server shows, usually the service's.
    pub client_name: String,
    /// What replies are addressed to; `_INBOX_<user>` unless set, so that permissions can keep users apart. Without a
    /// user in the address it is the client's name.
    pub inbox_prefix: Option<String>,
    /// How long to go on trying to connect for the first time. Once connected, reconnecting never ends.
    pub connect_within: Duration,
    /// How long the server may take to answer a request to its API or to take a message, and what was written to leave
    /// the process.
    pub patience: Duration,
    /// What should exist on the server; used to re-create what is found missing. [`Bus::reconcile`] replaces it.
    pub topology: Topology,
}

impl BusOptions {
    /// Production namespace and default topology.
    pub fn new(url: impl Into<String>, client_name: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            namespace: Namespace::production(),
            client_name: client_name.into(),
            inbox_prefix: None,
            connect_within: Duration::from_secs(60),
            patience: Duration::from_secs(5),
            topology: Topology::default(),
        }
    }
}

/// The address may hold a password, so it is not shown.
impl fmt::Debug for BusOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusOptions")
            .field("url", &"***")
            .field("namespace", &self.namespace)
            .field("client_name", &self.client_name)
            .field("inbox_prefix", &self.inbox_prefix)
            .field("connect_within", &self.connect_within)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// Whether the server can be reached at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusState {
    /// Connected.
    Connected,
    /// Not connected; trying again.
    Disconnected,
    /// Drained or broken for good; nothing more will be sent.
    Closed,
}

/// A connection to NATS. Cheap to clone.
#[derive(Clone)]
pub struct Bus {
    inner: Arc<Inner>,
}

struct Inner {
    client: async_nats::Client,
    jetstream: jetstream::Context,
    namespace: Namespace,
    patience: Duration,
    address: Address,
    topology: RwLock<Arc<Topology>>,
    link: watch::Receiver<Link>,
    /// Held while something missing is re-created, so that one loss is mended once.
    mending: Mutex<()>,
}

/// What the client's events told so far.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// How often a connection was made.
    connections: u64,
    closed: bool,
}

impl Bus {
    /// Connects, trying again with backoff until [`BusOptions::connect_within`] has passed; a wrong address or user fails
    /// at once. Afterwards the connection is made again for ever whenever it breaks.
    pub async fn connect(options: BusOptions) -> Result<Self, BusError> {
        crate::tls::settle_cryptography();
        let (events, link) = watch::channel(Link::default());
        let events = Arc::new(events);
        let policy = retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(2))
            .within(options.connect_within);
        let address = address(&options)?;
        let client = retry::when(policy, BusError::is_transient, || dial(&options, &address, events.clone())).await?;
        let jetstream = jetstream::context::ContextBuilder::new()
            .timeout(options.patience)
            .max_ack_inflight(MAX_UNACKNOWLEDGED)
            .backpressure_on_inflight(true)
            .build(client.clone());
        let inner = Inner {
            client,
            jetstream,
            namespace: options.namespace,
            patience: options.patience,
            address,
            topology: RwLock::new(Arc::new(options.topology)),
            link,
            mending: Mutex::new(()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The namespace that every subject and name is in.
    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    /// What should exist on the server.
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.topology.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the server can be reached at the moment.
    pub fn state(&self) -> BusState {
        let link = &self.inner.link;
        match self.inner.client.connection_state() {
            // Nobody is left to tell of events: the client's own task has ended, whatever it said last.
            _ if link.borrow().closed || link.has_changed().is_err() => BusState::Closed,
            async_nats::connection::State::Connected => BusState::Connected,
            _ => BusState::Disconnected,
        }
    }

    /// The largest message that the server takes, headers and body together, in bytes.
    pub fn max_payload(&self) -> usize {
        self.inner.client.max_payload()
    }

    /// A handle to publish stored messages with.
    pub fn publisher(&self) -> Publisher {
        Publisher::new(self.clone())
    }

    /// Waits until everything written so far, acknowledgements too, has left this process.
    pub async fn flush(&self) -> Result<(), BusError> {
        tokio::time::timeout(self.inner.patience, self.inner.client.flush())
            .await
            .map_err(|elapsed| BusError::Flush { source: elapsed.into() })?
            .map_err(|error| BusError::Flush { source: error.into() })
    }

    /// Waits until the server has seen everything written so far: what was subscribed to is in force then, also for messages
    /// that come over other connections.
    pub async fn round_trip(&self) -> Result<(), BusError> {
        let failed = |source| BusError::Flush { source };
        // The end of a subscription is told by the server's answer to a ping behind it.
        let inbox = self.inner.client.new_inbox();
        let mut subscriber = self.inner.client.subscribe(inbox).await.map_err(|error| failed(error.into()))?;
        subscriber.drain().await.map_err(|error| failed(error.into()))?;
        let ended = async { while subscriber.next().await.is_some() {} };
        tokio::time::timeout(self.inner.patience, ended).await.map_err(|elapsed| failed(elapsed.into()))
    }

    /// Flushes, ends every subscription and closes the connection for good. Stop the consumers first.
    pub async fn drain(&self) -> Result<(), BusError> {
        self.flush().await?;
        self.inner.client.drain().await.map_err(|error| BusError::Drain { source: error.into() })?;
        let mut link = self.inner.link.clone();
        let closed = tokio::time::timeout(self.inner.patience, link.wait_for(|link| link.closed)).await;
        match closed {
            // A sender that is gone means that the client is, too.
            Ok(_) => Ok(()),
            Err(elapsed) => Err(BusError::Drain { source: elapsed.into() }),
        }
    }

    pub(crate) fn client(&self) -> &async_nats::Client {
        &self.inner.client
    }

    pub(crate) fn jetstream(&self) -> &jetstream::Context {
        &self.inner.jetstream
    }

    /// How long the server may take to answer.
    pub(crate) fn patience(&self) -> Duration {
        self.inner.patience
    }

    pub(crate) fn address(&self) -> &Address {
        &self.inner.address
    }

    pub(crate) fn set_topology(&self, topology: Topology) {
        *self.inner.topology.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(topology);
    }

    pub(crate) fn mending(&self) -> &Mutex<()> {
        &self.inner.mending
    }

    /// Tells of every new connection.
    pub(crate) fn reconnects(&self) -> Reconnects {
        let link = self.inner.link.clone();
        let seen = link.borrow().connections;
        Reconnects { link, seen }
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("namespace", self.namespace()).field("state", &self.state()).finish_non_exhaustive()
    }
}

/// Notices that the connection was made anew.
pub(crate) struct Reconnects {
    link: watch::Receiver<Link>,
    seen: u64,
}

impl Reconnects {
    /// Waits for the next new connection. Safe to drop and call again.
    pub(crate) async fn next(&mut self) {
        let seen = self.seen;
        let connections = self.link.wait_for(|link| link.connections > seen).await.map(|link| link.connections);
        match connections {
            Ok(connections) => self.seen = connections,
            // The client is gone and will never connect again.
            Err(_) => std::future::pending().await,
        }
    }
}

fn address(options: &BusOptions) -> Result<Address, BusError> {
    let refuse = |source: Source| BusError::Connect { transient: false, source };
    let servers = options
        .url
        .split(',')
        .map(|url| url.trim().parse::<async_nats::ServerAddr>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| refuse(error.into()))?;
    let credentials = credentials(&servers).map_err(|error| refuse(error.into()))?;
    Ok(Address { servers, credentials, client_name: options.client_name.clone() })
}

async fn dial(
    options: &BusOptions,
    address: &Address,
    events: Arc<watch::Sender<Link>>,
) -> Result<async_nats::Client, BusError> {
    let user = address.credentials.as_ref().map_or(&options.client_name, |(user, _)| user);
    let inbox = options.inbox_prefix.clone().unwrap_or_else(|| format!("_INBOX_{}", subject::token(user)));
    let client_name = options.client_name.clone();
    let mut connect = async_nats::ConnectOptions::new()
        .name(&options.client_name)
        .require_tls(address.tls_required())
        .custom_inbox_prefix(inbox)
        .request_timeout(Some(options.patience))
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .ping_interval(Duration::from_secs(10))
        .reconnect_delay_callback(|attempts| {
            let attempts = u64::try_from(attempts).unwrap_or(u64::MAX);
            retry::delay(Duration::from_millis(10), Duration::from_secs(2), attempts)
        })
        .event_callback(move |event| {
            on_event(&client_name, &event, &events);
            std::future::ready(())
        });
    if let Some((user, password)) = &address.credentials {
        connect = connect.user_and_password(user.clone(), password.clone());
    }
    connect.connect(address.servers.as_slice()).await.map_err(|error| {
        use async_nats::ConnectErrorKind as Kind;
        let transient = matches!(error.kind(), Kind::Dns | Kind::TimedOut | Kind::Io | Kind::MaxReconnects);
        BusError::Connect { transient, source: error.into() }
    })
}

fn on_event(client_name: &str, event: &async_nats::Event, link: &watch::Sender<Link>) {
    use async_nats::Event;
    match event {
        Event::Connected => {
            tracing::info!(client = client_name, "connected to NATS");
            metrics::counter!("bus_connections_total").increment(1);
            link.send_modify(|link| link.connections += 1);
        }
        Event::Closed => {
            tracing::info!(client = client_name, "NATS connection closed");
            link.send_modify(|link| link.closed = true);
        }
        Event::Disconnected => tracing::warn!(client = client_name, "lost the connection to NATS, reconnecting"),
        Event::SlowConsumer(_) => {
            metrics::counter!("bus_slow_subscriptions_total").increment(1);
            tracing::warn!(client = client_name, %event, "a subscription is read too slowly, messages were dropped");
        }
        Event::ServerError(_) | Event::ClientError(_) => {
            tracing::warn!(client = client_name, %event, "NATS reported an error")
        }
        Event::LameDuckMode | Event::Draining => {
            tracing::info!(client = client_name, %event, "NATS connection changes")
        }
    }
}

/// The first user and password in the addresses, percent-decoded.
fn credentials(servers: &[async_nats::ServerAddr]) -> Result<Option<(String, String)>, &'static str> {
    let Some(server) = servers.iter().find(|server| server.has_user_pass()) else { return Ok(None) };
    let decode = |text: Option<&str>| percent_decode(text.unwrap_or_default()).ok_or("user or password is not UTF-8");
    Ok(Some((decode(server.username())?, decode(server.password())?)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn shows_no_password() {
        let options = BusOptions::new("nats://planner:s3cret@127.0.0.1:14222", "planner");
        assert!(!format!("{options:?}").contains("s3cret"));
    }

    #[test]
    fn reads_user_and_password_from_the_address() {
        let servers = ["nats://127.0.0.1:14222", "nats://plan%40ner:p%3Aw%2f%@127.0.0.1:14222"];
        let servers: Vec<async_nats::ServerAddr> = servers.iter().map(|url| url.parse().unwrap()).collect();
        assert_eq!(credentials(&servers), Ok(Some(("plan@ner".into(), "p:w/%".into()))));
        assert_eq!(credentials(&servers[..1]), Ok(None));
    }

    /// A server that says in clear text that clear text will do, and what a client sends it then.
    async fn heard_by_a_server(url: impl Fn(u16) -> String) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = BusOptions::new(url(port), "planner");
        let address = address(&options).unwrap();
        let listening = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let info = br#"INFO {"server_id":"x","version":"2.10.0","max_payload":1024,"tls_required":false}"#;
            stream.write_all(&[info.as_slice(), b"\r\n"].concat()).await.unwrap();
            let mut heard = vec![0; 4096];
            let length = stream.read(&mut heard).await.unwrap();
            heard.truncate(length);
            heard
        };
        let (events, _link) = watch::channel(Link::default());
        let asking = async { dial(&options, &address, Arc::new(events)).await.map(drop) };
        tokio::pin!(listening);
        tokio::select! {
            heard = &mut listening => heard,
            _ = asking => listening.await,
        }
    }

    #[tokio::test]
    async fn what_is_safe_for_one_server_is_safe_for_all() {
        crate::tls::settle_cryptography();
        let clear = heard_by_a_server(|port| format!("nats://u:s3cret@127.0.0.1:{port}")).await;
        assert!(clear.starts_with(b"CONNECT ") && String::from_utf8_lossy(&clear).contains("s3cret"));
        // Nobody listens on the port of "discard", whichever is tried first.
        let safe = heard_by_a_server(|port| format!("tls://u:s3cret@127.0.0.1:9,127.0.0.1:{port}")).await;
        // The first byte of a TLS handshake.
        assert_eq!(safe.first(), Some(&0x16), "{}", String::from_utf8_lossy(&safe));
    }
}
