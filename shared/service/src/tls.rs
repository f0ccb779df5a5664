//! TLS where this process serves HTTP, if it is given a certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::config::ConfigError;

/// What makes connections safe, of a certificate with all that leads up to its authority, and its key, both in PEM; none if both
/// paths are empty. They are read once: a renewed certificate is for the next start.
///
/// # Errors
/// When one of the two is missing, can't be read, or does not fit the other.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<Option<TlsAcceptor>, ConfigError> {
    let (no_certificate, no_key) = (certificate.as_os_str().is_empty(), key.as_os_str().is_empty());
    if no_certificate && no_key {
        return Ok(None);
    }
    if no_certificate || no_key {
        let name = if no_certificate { "tls_certificate" } else { "tls_key" };
        return Err(invalid(name, "a certificate and its key go together: set both, or neither".to_owned()));
    }
    let unread = |name, path: &Path, error: &dyn std::fmt::Display| {
        invalid(name, format!("can't read {} as PEM: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unread("tls_certificate", certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unread("tls_key", key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| invalid("tls_certificate", format!("{} does not do: {error}", certificate.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn invalid(key: &str, message: String) -> ConfigError {
    ConfigError::Invalid { key: key.to_owned(), origin: "the configuration".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/tests/tls").join(name)
    }

    #[test]
    fn a_certificate_and_its_key_go_together() {
        let nothing = Path::new("");
        assert!(acceptor(nothing, nothing).unwrap().is_none());
        assert!(acceptor(&file("server.pem"), &file("server.key")).unwrap().is_some());
        let said = |certificate: &Path, key: &Path| acceptor(certificate, key).err().unwrap().to_string();
        assert!(said(&file("server.pem"), nothing).contains("`tls_key`"));
        assert!(said(nothing, &file("server.key")).contains("`tls_certificate`"));
        assert!(said(&file("server.pem"), &file("nowhere")).contains("nowhere"));
        let other = said(&file("stranger.pem"), &file("server.key"));
        assert!(other.contains("stranger.pem"), "{other}");
    }
}
