//! An HTTP server that slow clients can't hold and that ends in order.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower_http::timeout::RequestBodyTimeoutLayer;

/// Longest time for the head of a request; also how long an idle connection is kept.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time between two pieces of a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "can't listen on {listen}: {source}. Free the port, or set `listen` (ESC_LISTEN) to another; port 0 takes a free one"
)]
pub struct ServeError {
    listen: SocketAddr,
    source: io::Error,
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
/// A client that is slow to send its head or body is cut off after 30 s. HTTP/1.1 only: TLS and HTTP/2 are a proxy's.
pub async fn http_server(
    listen: SocketAddr,
    router: Router,
    stop: CancellationToken,
) -> Result<HttpServer, ServeError> {
    let error = |source| ServeError { listen, source };
    let listener = TcpListener::bind(listen).await.map_err(error)?;
    let addr = listener.local_addr().map_err(error)?;
    let router = router.layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT));
    let task = AbortOnDropHandle::new(tokio::spawn(serve(listener, router, stop)));
    Ok(HttpServer { addr, task })
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), graceful.watcher()));
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

async fn connection(stream: TcpStream, router: Router, watcher: hyper_util::server::graceful::Watcher) {
    // Without it an answer in several writes waits for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let served = watcher.watch(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    if let Err(error) = served.await {
        // The client's doing, mostly: it went away or was too slow.
        tracing::debug!(error = &*error, "a connection ended badly");
    }
}
