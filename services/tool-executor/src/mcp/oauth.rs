//! Servers that want to know on whose behalf we come: authorisation by OAuth.
//!
//! A person agrees once, in a browser ([`login`]); what the authorisation server gives for it is kept in the folder of
//! secrets and renewed from there. Or this installation comes on its own behalf. Every request that this takes goes the
//! guarded way: the addresses are the server's to name.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::{McpHttp, McpOauth, McpServer, McpTransport, OauthGrant};
use futures::future::BoxFuture;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthClient, AuthError, AuthorizationManager, AuthorizationRequest, AuthorizationSession, ClientCredentialsConfig,
    CredentialStore, OAuthClientConfig, OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture, OAuthHttpRequest,
    StoredCredentials,
};
use service::chain;

use super::error::OpenError;
use super::http;
use crate::secrets::Secrets;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read.
const CAP: usize = 1 << 20;
/// Who we say we are.
const CLIENT_NAME: &str = "Escapement";

/// Where the tokens of servers are kept: one file each.
#[derive(Clone, Debug)]
pub struct Tokens {
    folder: PathBuf,
    secrets: Secrets,
}

impl Tokens {
    /// In a folder, which is made when it is first needed. What is kept there is taken out of results.
    #[must_use]
    pub const fn new(folder: PathBuf, secrets: Secrets) -> Self {
        Self { folder, secrets }
    }

    fn of(&self, server: &str) -> TokenFile {
        TokenFile { path: self.folder.join(format!("mcp-{server}.json")), secrets: self.secrets.clone() }
    }
}

/// The token of one server, in a file that only we may read.
struct TokenFile {
    path: PathBuf,
    secrets: Secrets,
}

impl TokenFile {
    fn read(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        };
        let stored: StoredCredentials = serde_json::from_str(&text).map_err(|error| self.failed(&error))?;
        self.hide(&stored);
        Ok(Some(stored))
    }

    /// Whole or not at all.
    fn write(&self, credentials: &StoredCredentials) -> Result<(), AuthError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        self.hide(credentials);
        let text = serde_json::to_vec(credentials).map_err(|error| self.failed(&error))?;
        let fresh = self.path.with_extension(format!("{}.new", std::process::id()));
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(folder).and_then(|()| {
            let mut file =
                std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.path)
        });
        written.map_err(|error| self.failed(&error))
    }

    fn hide(&self, credentials: &StoredCredentials) {
        let tokens = serde_json::to_value(&credentials.token_response).unwrap_or_default();
        for name in ["access_token", "refresh_token"] {
            self.secrets.hide(&format!("{name} of an MCP server"), tokens[name].as_str().unwrap_or_default());
        }
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> AuthError {
        AuthError::CredentialStoreError(format!("{}: {error}", self.path.display()))
    }
}

impl CredentialStore for TokenFile {
    fn load<'s, 'f>(&'s self) -> BoxFuture<'f, Result<Option<StoredCredentials>, AuthError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(std::future::ready(self.read()))
    }

    fn save<'s, 'f>(&'s self, credentials: StoredCredentials) -> BoxFuture<'f, Result<(), AuthError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(std::future::ready(self.write(&credentials)))
    }

    fn clear<'s, 'f>(&'s self) -> BoxFuture<'f, Result<(), AuthError>>
    where
        's: 'f,
        Self: 'f,
    {
        let removed = match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.failed(&error)),
            _ => Ok(()),
        };
        Box::pin(std::future::ready(removed))
    }
}

/// Requests to the authorisation server, whose address somebody outside names.
struct Guarded {
    client: reqwest::Client,
    allow_private: bool,
}

impl OAuthHttpClient for Guarded {
    fn execute(&self, asked: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let boxed = |error: reqwest::Error| Box::new(error) as OAuthHttpClientError;
            let request = reqwest::Request::try_from(asked.request).map_err(boxed)?;
            if http::is_refused(request.url(), self.allow_private) {
                return Err(
                    format!("`{}` is not a public address", request.url().host_str().unwrap_or_default()).into()
                );
            }
            let sending = tokio::time::timeout(TIMEOUT, self.client.execute(request));
            let mut response = sending.await?.map_err(boxed)?;
            // Redirects are never followed: none of these requests needs one.
            let mut answer = ::http::Response::builder().status(response.status());
            for (name, value) in response.headers() {
                answer = answer.header(name, value);
            }
            let mut body = Vec::new();
            while let Some(chunk) = tokio::time::timeout(TIMEOUT, response.chunk()).await?.map_err(boxed)? {
                body.extend_from_slice(&chunk);
                if body.len() > CAP {
                    return Err(format!("the answer has more than {CAP} bytes").into());
                }
            }
            Ok(answer.body(body)?)
        })
    }
}

/// A client that sends the server's token along.
pub(super) async fn authorised(
    server: &McpServer,
    http: &McpHttp,
    oauth: &McpOauth,
    url: &Url,
    tokens: &Tokens,
) -> Result<AuthClient<reqwest::Client>, OpenError> {
    let mut manager = manager(server, http, url, tokens).await?;
    let failed = |error: AuthError| of_auth(server, &error);
    match oauth.grant {
        OauthGrant::AuthorizationCode => {
            if manager.initialize_from_store().await.map_err(failed)?
                && let Some(config) = preregistered(oauth, tokens)?
            {
                manager.configure_client(config).map_err(failed)?;
            }
        }
        OauthGrant::ClientCredentials => {
            let resolved = manager.resolve_metadata().await.map_err(failed)?;
            manager.set_metadata(resolved.metadata);
            let config = ClientCredentialsConfig::ClientSecret {
                client_id: oauth.client_id.clone().unwrap_or_default(),
                client_secret: secret(oauth, tokens)?.unwrap_or_default(),
                scopes: oauth.scopes.clone(),
                resource: Some(url.to_string()),
            };
            manager.configure_client_credentials(&config).map_err(failed)?;
            manager.exchange_client_credentials(&config).await.map_err(failed)?;
        }
    }
    Ok(AuthClient::new(http::client(http)?, manager))
}

/// Lets a person agree in a browser, and keeps what the authorisation server gives for it.
///
/// `browse` is given the address that the person has to visit, and gives back the one to which they were sent in the end: an
/// address that begins with `redirect`. `challenge` is what the server said when it refused us (`WWW-Authenticate`), if it
/// did.
///
/// # Errors
/// [`OpenError`], if the server is not set up for it, or says no.
pub async fn login<F>(
    server: &McpServer,
    tokens: &Tokens,
    challenge: Option<&str>,
    redirect: &str,
    browse: impl FnOnce(String) -> F,
) -> Result<(), OpenError>
where
    F: Future<Output = Result<String, OpenError>>,
{
    let McpTransport::Http(http) = &server.transport else {
        return Err(OpenError::misconfigured("only servers behind HTTP are authorised"));
    };
    let oauth = http.oauth.clone().unwrap_or_default();
    let url = http::address(http)?;
    let failed = |error: AuthError| of_auth(server, &error);
    let mut manager = manager(server, http, &url, tokens).await?;
    let resolved = match challenge {
        Some(challenge) => manager.resolve_metadata_from_challenge(Some(challenge)).await,
        None => manager.resolve_metadata().await,
    };
    manager.set_metadata(resolved.map_err(failed)?.metadata);
    let mut request = AuthorizationRequest::new(redirect).with_client_name(CLIENT_NAME).with_scopes(&oauth.scopes);
    if let Some(url) = &oauth.client_metadata_url {
        request = request.with_client_metadata_url(url);
    }
    if let Some(client_id) = &oauth.client_id {
        request = request.with_preregistered_client(client_id);
    }
    if let Some(secret) = secret(&oauth, tokens)? {
        request = request.with_client_secret(secret);
    }
    let session = AuthorizationSession::new(manager, request).await.map_err(|(_, error)| failed(error))?;
    let back = browse(session.get_authorization_url().to_owned()).await?;
    session.handle_callback_url(&back).await.map_err(failed)?;
    Ok(())
}

async fn manager(
    server: &McpServer,
    http: &McpHttp,
    url: &Url,
    tokens: &Tokens,
) -> Result<AuthorizationManager, OpenError> {
    // Never along a redirect, whatever the server's file says about its own: a code or a secret may be in it.
    let client = http::client(&McpHttp { redirects: false, ..http.clone() })?;
    let guarded = Arc::new(Guarded { client, allow_private: http.allow_private });
    let manager = AuthorizationManager::new_with_oauth_http_client(url.clone(), guarded).await;
    let mut manager = manager.map_err(|error| of_auth(server, &error))?;
    manager.set_credential_store(tokens.of(&server.name));
    Ok(manager)
}

fn preregistered(oauth: &McpOauth, tokens: &Tokens) -> Result<Option<OAuthClientConfig>, OpenError> {
    let Some(client_id) = &oauth.client_id else { return Ok(None) };
    let config = OAuthClientConfig::new(client_id, "http://127.0.0.1/").with_scopes(oauth.scopes.clone());
    Ok(Some(match secret(oauth, tokens)? {
        Some(secret) => config.with_client_secret(secret),
        None => config,
    }))
}

fn secret(oauth: &McpOauth, tokens: &Tokens) -> Result<Option<String>, OpenError> {
    let filled = oauth.client_secret.as_ref().map(|secret| tokens.secrets.resolve(secret).map(|(text, _)| text));
    filled.transpose().map_err(|error| OpenError::misconfigured(error.to_string()))
}

fn of_auth(server: &McpServer, error: &AuthError) -> OpenError {
    let words = chain(error);
    match error {
        AuthError::AuthorizationRequired | AuthError::TokenExpired | AuthError::TokenRefreshRejected(_) => {
            let words = format!("{words}: `esc mcp login {}` lets a person agree", server.name);
            OpenError::unauthorized(words, None)
        }
        AuthError::HttpError(_) | AuthError::DiscoveryRequestFailed { .. } | AuthError::TokenRefreshFailed(_) => {
            OpenError::unreachable(words)
        }
        AuthError::CredentialStoreError(_) => OpenError::misconfigured(words),
        _ => OpenError::unauthorized(words, None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn tokens_are_kept_for_us_alone_and_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let secrets = Secrets::default();
        let file = Tokens::new(folder.path().join("secrets"), secrets.clone()).of("forge");
        assert!(file.read().unwrap().is_none());
        let token = serde_json::json!({"access_token": "t0ken-value", "token_type": "bearer"});
        let stored = serde_json::json!({"client_id": "c", "token_response": token});
        file.write(&serde_json::from_value(stored).unwrap()).unwrap();
        let mode = std::fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(file.read().unwrap().unwrap().client_id, "c");
        assert!(!secrets.redact("t0ken-value").contains("t0ken"));
    }
}
