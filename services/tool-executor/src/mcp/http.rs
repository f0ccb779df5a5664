//! A server behind HTTP: no private address unless its file allows it, no redirect to another place, no endless answer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use engine::{McpHttp, McpServer};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Url, redirect};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;

use super::error::OpenError;
use crate::egress::{self, EgressError, Only};
use crate::secrets::Secrets;
use crate::template;

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing at all may come while a body is read; servers send a sign of life in between.
const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Redirects that are followed at most.
const MAX_REDIRECTS: usize = 5;

/// The address of a server, if it may be reached.
pub(super) fn address(http: &McpHttp) -> Result<Url, OpenError> {
    let refused = |error: EgressError| OpenError::misconfigured(format!("`{}`: {error}", http.url));
    let filled = template::with_env(&http.url, |name| std::env::var(name).ok());
    let filled = filled.map_err(|error| OpenError::misconfigured(error.to_string()))?;
    let url = egress::parse(&filled).map_err(refused)?;
    if is_refused(&url, http.allow_private) {
        return Err(private(&url));
    }
    Ok(url)
}

fn private(url: &Url) -> OpenError {
    OpenError::misconfigured(format!(
        "`{}` is not a public address; `allow_private: true` in the server's file lets it be reached",
        url.host_str().unwrap_or_default()
    ))
}

/// Whether a URL names an address that may not be reached. Names are looked at when they are looked up.
pub(super) fn is_refused(url: &Url, allow_private: bool) -> bool {
    let host = url.host_str().unwrap_or_default();
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    !allow_private && literal.is_ok_and(|address| !egress::is_public(address))
}

/// The client that speaks to a server.
pub(super) fn client(http: &McpHttp) -> Result<reqwest::Client, OpenError> {
    let redirects = if http.redirects { redirect::Policy::custom(same_place) } else { redirect::Policy::none() };
    let mut builder = reqwest::Client::builder()
        .redirect(redirects)
        // A proxy would look the name up itself, behind the check.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .user_agent(concat!("escapement/", env!("CARGO_PKG_VERSION")));
    if !http.allow_private {
        builder = builder.dns_resolver(Only(egress::is_public));
    }
    builder.build().map_err(|error| OpenError::misconfigured(format!("the HTTP client can't be set up: {error}")))
}

fn same_place(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let same = attempt.previous().first().is_some_and(|first| {
        first.scheme() == attempt.url().scheme() && egress::place(first) == egress::place(attempt.url())
    });
    if same && attempt.previous().len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
}

/// How the transport behaves.
pub(super) fn config(
    server: &McpServer,
    http: &McpHttp,
    url: &Url,
    secrets: &Secrets,
) -> Result<StreamableHttpClientTransportConfig, OpenError> {
    let most = server.limits.message_bytes;
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(headers(http, secrets)?)
        .max_concurrent_requests(server.limits.concurrent.saturating_add(2))
        .max_sse_event_size(most)
        .max_json_response_size(most)
        // A session that is gone takes its calls along: they are not sent once more by themselves.
        .reinit_on_expired_session(false);
    Ok(config)
}

fn headers(http: &McpHttp, secrets: &Secrets) -> Result<HashMap<HeaderName, HeaderValue>, OpenError> {
    let header = |(name, value): (&String, &String)| {
        let wrong = || OpenError::misconfigured(format!("`{name}` in `headers` is not a header that can be sent"));
        let resolved = secrets.resolve(value).map_err(|error| OpenError::misconfigured(error.to_string()))?;
        let (text, sensitive) = resolved;
        let mut filled = HeaderValue::from_str(&text).map_err(|_| wrong())?;
        filled.set_sensitive(sensitive);
        Ok((HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, filled))
    };
    http.headers.iter().map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(url: &str) -> McpHttp {
        McpHttp {
            url: url.to_owned(),
            headers: [("Authorization".to_owned(), "Bearer secret:TOKEN".to_owned())].into(),
            allow_private: false,
            redirects: false,
            oauth: None,
        }
    }

    #[test]
    fn private_addresses_need_the_servers_file() {
        for url in ["http://127.0.0.1:9/mcp", "http://[::1]/mcp", "http://169.254.169.254/", "http://10.0.0.1/"] {
            let refused = address(&http(url)).unwrap_err();
            assert!(refused.words.contains("allow_private"), "{url}: {refused}");
            assert!(address(&McpHttp { allow_private: true, ..http(url) }).is_ok());
        }
        for url in ["ftp://h/", "https://u:p@h/", "{env:NOT_SET_ANYWHERE}/mcp"] {
            assert_eq!(address(&http(url)).unwrap_err().code, "misconfigured");
        }
        assert!(address(&http("https://mcp.example.com/mcp")).is_ok());
    }

    #[test]
    fn secrets_go_into_headers_and_are_never_shown() {
        let secrets = Secrets::new([("ESC_SECRET_TOKEN".to_owned(), "s3cr3t-value".to_owned())], None);
        let headers = headers(&http("https://h/"), &secrets).unwrap();
        let value = &headers[&HeaderName::from_static("authorization")];
        assert_eq!(value.to_str().unwrap(), "Bearer s3cr3t-value");
        assert_eq!(format!("{value:?}"), "Sensitive");
        let missing = super::headers(&http("https://h/"), &Secrets::default()).unwrap_err();
        assert!(missing.words.contains("ESC_SECRET_TOKEN"), "{missing}");
    }
}
