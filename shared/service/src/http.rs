//! An HTTP server that slow clients can't hold and that ends in order.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower_http::add_extension::AddExtension;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::config::ConfigError;

/// Longest time for the head of a request, and between two pieces of its body; an idle connection is kept as long.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer that wait in this process for a client that does not take them, and the longest head of a request: what
/// lies in the socket's own buffers comes on top.
const BUFFER: usize = 128 * 1024;
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Nobody can be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be listened on.
    #[error(
        "can't listen on {listen}: {source}. Free the port, or set `listen` (ESC_LISTEN) to another; port 0 takes a free one"
    )]
    Listen {
        /// Where.
        listen: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate or its key won't do. Not transparent: whoever gives the exit code looks for the source.
    #[error("TLS is not set up right: {0}")]
    Tls(#[from] ConfigError),
}

/// A server that runs. Dropping it closes its connections at once.
#[derive(Debug)]
pub struct HttpServer {
    addr: SocketAddr,
    task: AbortOnDropHandle<()>,
}

impl HttpServer {
    /// Where it listens, with the port that it got.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Comes back when the token was cancelled and the last request has been answered.
    pub async fn finished(self) {
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the HTTP server ended by itself");
        }
    }
}

/// Serves `router` on `listen` (port 0 takes a free port) until `stop` is cancelled; requests that are being answered then
/// are still answered. Streams without end have to watch for the shutdown themselves.
///
/// A client that is slow to shake hands, or to send its head or body, is cut off after 30 s. HTTP/1.1 only: HTTP/2 is a proxy's.
pub async fn http_server(
    listen: SocketAddr,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) -> Result<HttpServer, ServeError> {
    let error = |source| ServeError::Listen { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(error)?;
    let addr = listener.local_addr().map_err(error)?;
    let serving = serve(listener, router, tls, stop, READ_TIMEOUT);
    let task = AbortOnDropHandle::new(tokio::spawn(serving));
    Ok(HttpServer { addr, task })
}

async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
    read: Duration,
) {
    let router = router.layer(RequestBodyTimeoutLayer::new(read));
    // HTTP/1 only: told apart by its first bytes, a connection could stay silent for ever.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(read).max_buf_size(BUFFER);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Whoever asks for it is told where the connection comes from.
                    let router = AddExtension::new(router.clone(), ConnectInfo(peer));
                    let (builder, watcher) = (builder.clone(), graceful.watcher());
                    // Without it an answer in several writes waits for the client's delayed acknowledgement.
                    let _ = stream.set_nodelay(true);
                    match tls.clone() {
                        None => connections.spawn(connection(stream, builder, router, watcher)),
                        Some(tls) => {
                            let stop = stop.clone();
                            connections.spawn(async move {
                                let hands = stop.run_until_cancelled(tokio::time::timeout(read, tls.accept(stream)));
                                // Whoever does not get that far has asked for nothing yet.
                                if let Some(Ok(Ok(stream))) = hands.await {
                                    connection(stream, builder, router, watcher).await;
                                }
                            })
                        }
                    };
                }
                Err(error) => {
                    tracing::warn!(%error, "can't accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Nobody new gets in while the last ones are served.
    drop(listener);
    graceful.shutdown().await;
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    builder: Builder<TokioExecutor>,
    router: AddExtension<Router, ConnectInfo<SocketAddr>>,
    watcher: Watcher,
) {
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        // The client's doing, mostly: it went away or was too slow.
        tracing::debug!(error = &*error, "a connection ended badly");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// A server, where it listens, and its end.
    async fn server(router: Router) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        server_that_waits(router, READ_TIMEOUT).await
    }

    /// As [`server`], with another patience for slow clients.
    async fn server_that_waits(
        router: Router,
        read: Duration,
    ) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, router, None, stop.clone(), read));
        (addr, stop, task)
    }

    /// What comes back until the server closes, after `text` was sent.
    async fn exchange(addr: SocketAddr, text: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        // Whoever is cut off before everything was sent hears of it by an error.
        let _ = stream.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("closed in time");
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn slow_clients_are_cut_off() {
        let router = Router::new().route("/", post(async |body: Bytes| body.len().to_string()));
        let (addr, _stop, _task) = server_that_waits(router.clone(), Duration::from_millis(200)).await;
        assert_eq!(exchange(addr, "").await, "", "said nothing");
        assert!(!exchange(addr, "POST / HTT").await.contains("200"), "half a head");
        let half = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf";
        assert!(!exchange(addr, half).await.contains("200 OK"), "half a body");
        // Nobody who is quick is cut off, and no hiccup makes anybody slow.
        let (addr, _stop, _task) = server(router).await;
        let whole = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\nhalf";
        assert!(exchange(addr, whole).await.contains("200 OK"), "a whole body");
    }

    #[tokio::test]
    async fn requests_in_flight_are_answered_before_the_end() {
        let (begun, end) = (CancellationToken::new(), CancellationToken::new());
        let handler = {
            let (begun, end) = (begun.clone(), end.clone());
            move || async move {
                begun.cancel();
                end.cancelled().await;
                "answered"
            }
        };
        let (addr, stop, task) = server(Router::new().route("/", get(handler))).await;
        let request = tokio::spawn(exchange(addr, "GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
        begun.cancelled().await;
        stop.cancel();
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(!task.is_finished(), "the request is still there");
        end.cancel();
        assert!(request.await.unwrap().contains("answered"));
        tokio::time::timeout(DEADLINE, task).await.expect("ends by itself").unwrap();
    }

    #[tokio::test]
    async fn a_handler_can_tell_where_a_connection_comes_from() {
        let handler = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string();
        let (addr, _stop, _task) = server(Router::new().route("/", get(handler))).await;
        let answer = exchange(addr, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(answer.ends_with("127.0.0.1"), "{answer}");
    }

    #[tokio::test]
    async fn a_taken_port_is_said_with_its_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = taken.local_addr().unwrap();
        let error = http_server(addr, Router::new(), None, CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains("ESC_LISTEN"), "{error}");
    }
}
