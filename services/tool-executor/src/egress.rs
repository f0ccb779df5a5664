//! Requests to the outside: no private address unless it was named, no redirect to another place, no endless body.
//!
//! The check of an address and the connection to it use the same look-up: the client's own resolver hands out only what
//! may be reached, so a name that changes its address between the two gains nothing.

mod addresses;
mod answer;

use std::net::IpAddr;
use std::time::Duration;

use kernel::tool::Redirects;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Url, redirect};

use addresses::{NotReachable, is_no_link};
pub(crate) use addresses::{Only, is_public};
pub use answer::Response;
pub(crate) use answer::pause;

/// Redirects that are followed at most.
const MAX_REDIRECTS: usize = 5;
/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Egress {
    /// Reaches public addresses only.
    guarded: reqwest::Client,
    /// Reaches any address but those of this very link, where clouds keep the keys of their machines.
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
    /// Whether a person wrote the host out, so that even an address of this link is meant.
    pub spelled_out: bool,
    /// Which redirects are followed.
    pub redirects: Redirects,
    /// Bytes of the body that are read at most, if fewer than usual.
    pub cap: Option<usize>,
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
    /// The address is one of this link.
    #[error(
        "`{0}` is an address of this link, where clouds keep the keys of their machines; write it out as the host of the tool's `url` to reach it"
    )]
    Link(String),
    /// It leads elsewhere.
    #[error("it redirects (`{0}`), and that is not followed: see `redirects` in the tool's file")]
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

impl Egress {
    /// Bodies are read up to `cap` bytes, also as they are once unpacked.
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
                .default_headers(
                    [(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))].into_iter().collect(),
                )
                .user_agent(concat!("escapement/", env!("CARGO_PKG_VERSION")))
        };
        let built =
            |builder: reqwest::ClientBuilder| builder.build().map_err(|error| EgressError::Setup(chain(&error)));
        let guarded = built(builder().dns_resolver(Only(is_public)))?;
        let open = built(builder().dns_resolver(Only(is_no_link)))?;
        Ok(Self { guarded, open, cap })
    }

    /// Sends, and reads the answer. Redirects are followed as far as the request says, if it has no body and changes
    /// nothing.
    ///
    /// # Errors
    /// [`EgressError`]; an answer with an error status is none.
    pub async fn send(&self, mut request: Request) -> Result<Response, EgressError> {
        let timeout = request.timeout;
        let deadline = tokio::time::Instant::now() + timeout;
        let cap = request.cap.map_or(self.cap, |cap| cap.min(self.cap));
        let exchange = async {
            for _ in 0..=MAX_REDIRECTS {
                let response = self.once(&request).await?;
                match redirect_of(&request, &response)? {
                    Some(url) => request.go_on_to(url),
                    None => return answer::read(response, cap).await,
                }
            }
            Err(EgressError::RedirectLoop)
        };
        tokio::time::timeout_at(deadline, exchange).await.unwrap_or(Err(EgressError::TimedOut(timeout)))
    }

    async fn once(&self, request: &Request) -> Result<reqwest::Response, EgressError> {
        check(request)?;
        let client = if request.allow_private { &self.open } else { &self.guarded };
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        let response = builder.send().await.map_err(|error| failed(&request.url, &error))?;
        // The resolver has seen to it; this is the address that was really spoken to.
        match response.remote_addr() {
            Some(address) if !request.allow_private && !is_public(address.ip()) => {
                Err(EgressError::Private(request.url.host_str().unwrap_or_default().to_owned()))
            }
            _ => Ok(response),
        }
    }
}

impl Request {
    /// The same request to where it was redirected. Another place gets nothing that was meant for the first one, and only
    /// if it is public.
    fn go_on_to(&mut self, url: Url) {
        if !is_same_place(&self.url, &url) {
            self.headers.clear();
            self.allow_private = false;
            self.spelled_out = false;
        }
        self.url = url;
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

fn is_same_place(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme() && place(one) == place(other)
}

/// The name of a host is checked when it is looked up; an address that stands for itself is checked here.
fn check(request: &Request) -> Result<(), EgressError> {
    let host = request.url.host_str().unwrap_or_default();
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) if !request.allow_private && !is_public(address) => Err(EgressError::Private(host.to_owned())),
        Ok(address) if !request.spelled_out && !is_no_link(address) => Err(EgressError::Link(host.to_owned())),
        _ => Ok(()),
    }
}

fn redirect_of(request: &Request, response: &reqwest::Response) -> Result<Option<Url>, EgressError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(header::LOCATION) else { return Ok(None) };
    let location = String::from_utf8_lossy(location.as_bytes());
    let refused = || EgressError::Redirect(location.chars().take(200).collect());
    let target = request.url.join(&location).map_err(|_| refused())?;
    let target = parse(target.as_str()).map_err(|_| refused())?;
    let weaker = request.url.scheme() == "https" && target.scheme() != "https";
    let repeatable = matches!(request.method, Method::GET | Method::HEAD) && request.body.is_none();
    let allowed = match request.redirects {
        Redirects::None => false,
        Redirects::Same => is_same_place(&request.url, &target),
        Redirects::Any => !weaker,
    };
    if allowed && repeatable { Ok(Some(target)) } else { Err(refused()) }
}

fn failed(url: &Url, error: &reqwest::Error) -> EgressError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<NotReachable>() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(url: &str, allow_private: bool) -> Request {
        Request {
            method: Method::GET,
            url: parse(url).unwrap(),
            headers: HeaderMap::new(),
            body: None,
            timeout: Duration::from_secs(5),
            allow_private,
            spelled_out: false,
            redirects: Redirects::Same,
            cap: None,
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
            assert!(matches!(check(&request(url, false)), Err(EgressError::Private(_))), "{url}");
            assert!(check(&request(url, true)).is_ok());
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
        // Nobody listens on the port of "discard".
        let request = |allow_private| request("http://localhost:9/", allow_private);
        let refused = egress.send(request(false)).await.unwrap_err();
        assert!(matches!(&refused, EgressError::Private(host) if host == "localhost"), "{refused}");
        let unreached = egress.send(request(true)).await.unwrap_err();
        assert!(matches!(unreached, EgressError::Connect(_)), "{unreached}");
    }

    #[test]
    fn what_a_cloud_keeps_for_its_machines_is_reached_only_if_it_is_written_out() {
        for url in [
            "http://169.254.169.254/latest",
            "http://[fe80::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[fd00:ec2::254]/",
        ] {
            assert!(matches!(check(&request(url, true)), Err(EgressError::Link(_))), "{url}");
            assert!(check(&Request { spelled_out: true, ..request(url, true) }).is_ok(), "{url}");
            assert!(matches!(check(&request(url, false)), Err(EgressError::Private(_))), "{url}");
        }
        assert!(check(&request("http://10.0.0.1/", true)).is_ok());
    }

    #[test]
    fn another_place_gets_nothing_that_was_meant_for_the_first() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer x"));
        let asked = Request { headers, spelled_out: true, ..request("http://a.example/x", true) };
        let went = |url: &str| {
            let mut asked = asked.clone();
            asked.go_on_to(parse(url).unwrap());
            (asked.headers.len(), asked.allow_private, asked.spelled_out)
        };
        assert_eq!(went("http://a.example/y"), (1, true, true));
        for url in ["http://b.example/", "http://a.example:81/", "https://a.example/"] {
            assert_eq!(went(url), (0, false, false), "{url}");
        }
    }
}
