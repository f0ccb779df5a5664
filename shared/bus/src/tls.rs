//! TLS: whose cryptography it uses, and whom a connection of our own believes.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Settles whose cryptography the TLS of this process uses, if that is not settled yet. More than one kind is linked in, and a
/// library that has to choose between them panics: to be called before anything that may speak TLS is connected to.
pub fn settle_cryptography() {
    // An error says that it is settled.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Makes a connection safe: the server must show a certificate for `host` that the machine's authorities vouch for, or those
/// in the file `SSL_CERT_FILE`, as everywhere else in this process.
pub(crate) async fn secure(stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
    settle_cryptography();
    let authorities = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.certs);
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
