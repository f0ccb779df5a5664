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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::wire::Op;

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

/// Why there is no guarded subscription.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The server wants TLS, which is not spoken here.
    #[error("the server wants TLS")]
    Tls,
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

struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Connection {
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
}

async fn subscribe(server: &ServerAddr, address: &Address, subject: &Subject) -> Result<Connection, OpenError> {
    if server.tls_required() || server.is_websocket() {
        return Err(OpenError::Tls);
    }
    let stream = TcpStream::connect((server.host(), server.port())).await?;
    stream.set_nodelay(true)?;
    let mut connection = Connection { stream, buffer: BytesMut::with_capacity(64 * 1024) };
    match connection.next().await? {
        Op::Info { tls_required: true } => return Err(OpenError::Tls),
        Op::Info { .. } => {}
        _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    }
    let mut connect = json!({
        "verbose": false,
        "pedantic": false,
        "headers": true,
        "no_responders": true,
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
        "name": address.client_name,
    });
    if let Some((user, password)) = &address.credentials {
        connect["user"] = json!(user);
        connect["pass"] = json!(password);
    }
    let hello = format!("CONNECT {connect}\r\nSUB {subject} 1\r\nPING\r\n");
    connection.stream.write_all(hello.as_bytes()).await?;
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
                    Op::Ping => connection.stream.write_all(b"PONG\r\n").await?,
                    Op::Pong if unsubscribed => return Ok(()),
                    Op::Error(error) => return Err(io::Error::other(error)),
                    Op::Pong | Op::Info { .. } | Op::Ok => {}
                },
                () = draining.cancelled(), if !unsubscribed => {
                    // The answer to the ping comes behind everything that was sent before.
                    connection.stream.write_all(b"UNSUB 1\r\nPING\r\n").await?;
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
