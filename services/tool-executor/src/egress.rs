//! Requests to the outside: no private address unless it was named, no redirect to another place, no endless body.
//!
//! The check of an address and the connection to it use the same look-up: the client's own resolver hands out only what
//! may be reached, so a name that changes its address between the two gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, Url, redirect};

/// Redirects that are followed at most, all on the same host and port.
const MAX_REDIRECTS: usize = 5;
/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Egress {
    /// Reaches public addresses only.
    guarded: reqwest::Client,
    /// Reaches any address.
    open: reqwest::Client,
    /// Bytes of a body that are read at most.
    cap: usize,
}

/// What to send.
#[derive(Clone, Debug)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: Method,
    /// Where to: absolute, `http` or `https`, without a user.
    pub url: Url,
    /// With which headers.
    pub headers: HeaderMap,
    /// With which body.
    pub body: Option<Vec<u8>>,
    /// How long it may take, with the whole body.
    pub timeout: Duration,
    /// Whether loopback and private addresses may be reached.
    pub allow_private: bool,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Media type with its parameters; empty if none was given.
    pub media_type: String,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The body, up to the cap.
    pub body: Vec<u8>,
    /// Whether there was more.
    pub truncated: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The URL is not one that may be asked for.
    #[error("the URL {0}")]
    Url(&'static str),
    /// The address is loopback, private, or otherwise not for the outside.
    #[error("`{0}` is not a public address; name it as host:port under `allow.hosts` in the agent's file to reach it")]
    Private(String),
    /// It leads elsewhere.
    #[error("it redirects to another host (`{0}`), and that is not followed")]
    Redirect(String),
    /// It redirects again and again.
    #[error("it redirects more than {MAX_REDIRECTS} times")]
    RedirectLoop,
    /// No connection came up: nothing was sent.
    #[error("could not connect: {0}")]
    Connect(String),
    /// It took too long; what was sent may have had its effect.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The connection broke; what was sent may have had its effect.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The client could not be made.
    #[error("the HTTP client can't be set up: {0}")]
    Setup(String),
}

/// An address that a name leads to and that may not be reached.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` leads to no public address")]
struct NotPublic(String);

impl Egress {
    /// Bodies are read up to `cap` bytes.
    ///
    /// # Errors
    /// If the TLS set-up fails.
    pub fn new(cap: usize) -> Result<Self, EgressError> {
        let builder = || {
            reqwest::Client::builder()
                .redirect(redirect::Policy::none())
                // A proxy would look the name up itself, behind the check.
                .no_proxy()
                .connect_timeout(CONNECT_TIMEOUT)
                .user_agent(concat!("escapement/", env!("CARGO_PKG_VERSION")))
        };
        let built =
            |builder: reqwest::ClientBuilder| builder.build().map_err(|error| EgressError::Setup(chain(&error)));
        Ok(Self { guarded: built(builder().dns_resolver(PublicOnly))?, open: built(builder())?, cap })
    }

    /// Sends, and reads the answer. Redirects within the same scheme, host and port are followed for `GET`.
    ///
    /// # Errors
    /// [`EgressError`]; an answer with an error status is none.
    pub async fn send(&self, mut request: Request) -> Result<Response, EgressError> {
        let timeout = request.timeout;
        let deadline = tokio::time::Instant::now() + timeout;
        let exchange = async {
            for _ in 0..=MAX_REDIRECTS {
                let response = self.once(&request).await?;
                match redirect_of(&request, &response)? {
                    Some(url) => request.url = url,
                    None => return self.read(response).await,
                }
            }
            Err(EgressError::RedirectLoop)
        };
        tokio::time::timeout_at(deadline, exchange).await.unwrap_or(Err(EgressError::TimedOut(timeout)))
    }

    async fn once(&self, request: &Request) -> Result<reqwest::Response, EgressError> {
        check(&request.url, request.allow_private)?;
        let client = if request.allow_private { &self.open } else { &self.guarded };
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        builder.send().await.map_err(|error| failed(&request.url, &error))
    }

    async fn read(&self, mut response: reqwest::Response) -> Result<Response, EgressError> {
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let media_type = text(header::CONTENT_TYPE).unwrap_or_default();
        let retry_after = text(header::RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let status = response.status().as_u16();
        let mut body = Vec::new();
        let mut truncated = false;
        while let Some(chunk) = response.chunk().await.map_err(|error| EgressError::Broken(chain(&error)))? {
            let room = self.cap - body.len();
            truncated = chunk.len() > room;
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if truncated {
                break;
            }
        }
        Ok(Response { status, media_type, retry_after, body, truncated })
    }
}

/// Parses a URL that a request may go to.
///
/// # Errors
/// [`EgressError::Url`], saying what is wrong.
pub fn parse(url: &str) -> Result<Url, EgressError> {
    let url: Url = url.parse().map_err(|_| EgressError::Url("is not absolute or not well-formed"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(EgressError::Url("is neither http nor https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EgressError::Url("has a user in it"));
    }
    Ok(url)
}

/// `host` and `host:port`, as they are named in an agent's file.
#[must_use]
pub fn place(url: &Url) -> (String, String) {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    let port = url.port_or_known_default().unwrap_or_default();
    let with_port = format!("{host}:{port}");
    (host, with_port)
}

/// The name of a host is checked when it is looked up; an address that stands for itself is checked here.
fn check(url: &Url, allow_private: bool) -> Result<(), EgressError> {
    let host = url.host_str().unwrap_or_default();
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    match literal {
        Ok(address) if !allow_private && !is_public(address) => Err(EgressError::Private(host.to_owned())),
        _ => Ok(()),
    }
}

fn redirect_of(request: &Request, response: &reqwest::Response) -> Result<Option<Url>, EgressError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()) else {
        return Ok(None);
    };
    let elsewhere = || EgressError::Redirect(location.chars().take(200).collect());
    let target = request.url.join(location).map_err(|_| elsewhere())?;
    let same = target.scheme() == request.url.scheme() && place(&target) == place(&request.url);
    if same && request.method == Method::GET { Ok(Some(target)) } else { Err(elsewhere()) }
}

fn failed(url: &Url, error: &reqwest::Error) -> EgressError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<NotPublic>() {
            return EgressError::Private(url.host_str().unwrap_or_default().to_owned());
        }
        source = cause.source();
    }
    let words = chain(&error);
    if error.is_connect() { EgressError::Connect(words) } else { EgressError::Broken(words) }
}

/// An error with its causes, without the URL: that may hold what should not be shown.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push(cause.to_string());
        source = cause.source();
    }
    if words.is_empty() { "no cause was given".to_owned() } else { words.join(": ") }
}

/// Looks names up and hands out public addresses only.
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<_> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublic(name.as_str().to_owned()).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is one of the public internet.
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Addresses that carry an IPv4 one: mapped, compatible, translated, 6to4.
    let carried = match segments {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = carried {
        return is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    }
    // Global unicast, without documentation and Teredo.
    (segments[0] & 0xe000) == 0x2000 && !(segments[0] == 0x2001 && matches!(segments[1], 0 | 0x0db8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        for address in ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::127.0.0.1",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn odd_spellings_of_an_address_are_seen_through() {
        for url in [
            "http://127.1/",
            "http://0x7f000001/",
            "http://2130706433/",
            "http://[::ffff:7f00:1]/",
            "http://127.0.0.1:80",
        ] {
            let url = parse(url).unwrap();
            assert!(matches!(check(&url, false), Err(EgressError::Private(_))), "{url}");
            assert!(check(&url, true).is_ok());
        }
    }

    #[test]
    fn only_plain_web_urls_are_urls() {
        for url in ["file:///etc/passwd", "ftp://h/", "http://u:p@h/", "http://u@h/", "/x", "http://", "gopher://h"] {
            assert!(parse(url).is_err(), "{url}");
        }
        assert_eq!(place(&parse("HTTPS://Example.COM/x").unwrap()), ("example.com".into(), "example.com:443".into()));
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_refused() {
        let egress = Egress::new(1024).unwrap();
        let request = |allow_private| Request {
            method: Method::GET,
            // Nobody listens on the port of "discard".
            url: parse("http://localhost:9/").unwrap(),
            headers: HeaderMap::new(),
            body: None,
            timeout: Duration::from_secs(5),
            allow_private,
        };
        let refused = egress.send(request(false)).await.unwrap_err();
        assert!(matches!(&refused, EgressError::Private(host) if host == "localhost"), "{refused}");
        let unreached = egress.send(request(true)).await.unwrap_err();
        assert!(matches!(unreached, EgressError::Connect(_)), "{unreached}");
    }
}
