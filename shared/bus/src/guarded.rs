//! A subscription that survives any header block.
//!
//! Anybody who may publish may send headers that are no headers, and the client library gives up its connection over
//! them, or for a stray carriage return its whole task. What comes from outside is therefore read here, on a connection
//! of its own that only receives: requests and acknowledgements go out over the client as ever. Nothing is refused at
//! this level; what can't be read as a header is made readable or left out, so that the message arrives and can be
//! judged, and kept as a dead letter, like any other.

mod wire;

use std::io;
use std::time::Duration;

use async_nats::{ServerAddr, Subject};
use bytes::BytesMut;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::wire::Op;
use crate::tls;

/// How long connecting and subscribing may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages that may wait to be read; more than any consumer asks for at once.
const CAPACITY: usize = 16 * 1024;

/// How to reach the server, and as whom.
pub(crate) struct Address {
    pub servers: Vec<ServerAddr>,
    pub credentials: Option<(String, String)>,
    pub client_name: String,
}

impl Address {
    /// Whether no connection may be in clear text: one `tls://` holds for every server, also for those without a scheme of
    /// their own and those that a cluster names later.
    pub(crate) fn tls_required(&self) -> bool {
        self.servers.iter().any(ServerAddr::tls_required)
    }
}

/// Why there is no guarded subscription.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The server is reached by a web socket, which is not spoken here.
    #[error("a server behind a web socket")]
    WebSocket,
    /// The connection failed, or the server refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Receives what is published on one subject.
pub(crate) struct GuardedSubscriber {
    messages: mpsc::Receiver<async_nats::Message>,
    draining: CancellationToken,
}

impl GuardedSubscriber {
    /// Connects and subscribes; returns when the server knows of the subscription.
    pub(crate) async fn open(address: &Address, subject: &Subject) -> Result<Self, OpenError> {
        let mut last = OpenError::Io(io::Error::new(io::ErrorKind::NotFound, "no server is named"));
        for server in &address.servers {
            let opening = tokio::time::timeout(OPEN_TIMEOUT, subscribe(server, address, subject));
            match opening.await.unwrap_or_else(|elapsed| Err(io::Error::from(elapsed).into())) {
                Ok(connection) => {
                    let (sender, messages) = mpsc::channel(CAPACITY);
                    let draining = CancellationToken::new();
                    tokio::spawn(receive(connection, sender, draining.clone()));
                    return Ok(Self { messages, draining });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The next message; `None` once the connection is lost or drained. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Option<async_nats::Message> {
        self.messages.recv().await
    }

    /// Unsubscribes. What the server had sent before can still be read.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }
}

/// What bytes go over, in clear text or not.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

struct Connection<S = Box<dyn Wire>> {
    stream: S,
    buffer: BytesMut,
}

impl<S: Wire> Connection<S> {
    fn new(stream: S) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(64 * 1024) }
    }

    async fn next(&mut self) -> io::Result<Op> {
        loop {
            if let Some(op) = wire::take(&mut self.buffer)? {
                return Ok(op);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    async fn say(&mut self, words: &str) -> io::Result<()> {
        self.stream.write_all(words.as_bytes()).await?;
        self.stream.flush().await
    }
}

/// Connects, and makes the connection safe if an address or the server wants that.
async fn connect(server: &ServerAddr, safe: bool) -> Result<Connection, OpenError> {
    if server.is_websocket() {
        return Err(OpenError::WebSocket);
    }
    let stream = TcpStream::connect((server.host(), server.port())).await?;
    stream.set_nodelay(true)?;
    let mut connection = Connection::new(stream);
    // A server says in clear text what it wants, and nothing else before it has that.
    let Op::Info { tls_required } = connection.next().await? else {
        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
    };
    if tls_required || safe {
        let safe = tls::secure(connection.stream, server.host()).await?;
        return Ok(Connection::new(Box::new(safe)));
    }
    let Connection { stream, buffer } = connection;
    Ok(Connection { stream: Box::new(stream), buffer })
}

async fn subscribe(server: &ServerAddr, address: &Address, subject: &Subject) -> Result<Connection, OpenError> {
    let mut connection = connect(server, address.tls_required()).await?;
    let mut hello = json!({
        "verbose": false,
        "pedantic": false,
        "headers": true,
        "no_responders": true,
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "name": address.client_name,
    });
    if let Some((user, password)) = &address.credentials {
        hello["user"] = json!(user);
        hello["pass"] = json!(password);
    }
    connection.say(&format!("CONNECT {hello}\r\nSUB {subject} 1\r\nPING\r\n")).await?;
    loop {
        match connection.next().await? {
            Op::Pong => return Ok(connection),
            Op::Error(error) => return Err(io::Error::new(io::ErrorKind::PermissionDenied, error).into()),
            _ => {}
        }
    }
}

/// Passes messages on until the connection is lost, the reader is gone, or all is drained.
async fn receive(mut connection: Connection, messages: mpsc::Sender<async_nats::Message>, draining: CancellationToken) {
    let mut unsubscribed = false;
    let outcome: io::Result<()> = async {
        loop {
            tokio::select! {
                op = connection.next() => match op? {
                    Op::Message(message) => {
                        if messages.send(message).await.is_err() {
                            return Ok(());
                        }
                    }
                    Op::Ping => connection.say("PONG\r\n").await?,
                    Op::Pong if unsubscribed => return Ok(()),
                    Op::Error(error) => return Err(io::Error::other(error)),
                    Op::Pong | Op::Info { .. } | Op::Ok => {}
                },
                () = draining.cancelled(), if !unsubscribed => {
                    // The answer to the ping comes behind everything that was sent before.
                    connection.say("UNSUB 1\r\nPING\r\n").await?;
                    unsubscribed = true;
                }
                () = messages.closed() => return Ok(()),
            }
        }
    }
    .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, "a guarded subscription ended");
    }
}
