//! Tools that are HTTP requests, and the probes of calls in doubt.

use kernel::agent::Allow;
use kernel::excerpt;
use kernel::tool::{HttpRequest, Probe, Redirects};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Map, Value};

use super::{Invocation, Tools, required};
use crate::egress::{self, Egress, Request, Response};
use crate::outcome::{Content, Happened, ToolError};
use crate::secrets::Secrets;
use crate::template::{self, Places};

/// Headers that are the runtime's, whatever a model asks for.
const OWN_HEADERS: [&str; 8] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "idempotency-key",
    "traceparent",
    "proxy-authorization",
    "expect",
];
/// What is shown of an error's body.
const ERROR_BODY: usize = 2048;

/// What a probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Done,
    NotDone,
}

/// A probe's answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub finding: Finding,
    pub status: u16,
    pub body: Vec<u8>,
    pub media_type: String,
}

/// Whether the operator or the agent's file named the host that a templated request goes to.
pub(super) fn is_named(http: &HttpRequest, arguments: &Map<String, Value>, allow: &Allow) -> bool {
    let places = Places { arguments, idempotency_key: "", run: kernel::RunId(uuid::Uuid::nil()) };
    template::names_host(&http.url) || template::url(&http.url, places).is_ok_and(|url| is_allowed(&url, allow))
}

/// Whether the agent's file names the host of a URL.
pub(super) fn is_allowed(url: &str, allow: &Allow) -> bool {
    egress::parse(url).is_ok_and(|url| {
        let (host, with_port) = egress::place(&url);
        allow.hosts.iter().any(|named| named.eq_ignore_ascii_case(&host) || named.eq_ignore_ascii_case(&with_port))
    })
}

/// Whether the agent's file names the host *and port*: only then an address that isn't public may be reached.
fn allows_private(url: &Url, allow: &Allow) -> bool {
    let (_, with_port) = egress::place(url);
    allow.hosts.iter().any(|named| named.eq_ignore_ascii_case(&with_port))
}

/// A request from a tool file.
pub(super) async fn templated(
    egress: &Egress,
    secrets: &Secrets,
    http: &HttpRequest,
    invocation: Invocation<'_>,
) -> Result<Content, ToolError> {
    let request = fill(http, secrets, invocation)?;
    let response = egress.send(request).await?;
    let mut content = content(response)?;
    content.head = None;
    Ok(content)
}

/// A request as a model asks for it: `url`, `headers` and `body` from the arguments.
pub(super) async fn plain(egress: &Egress, method: Method, invocation: Invocation<'_>) -> Result<Content, ToolError> {
    let url = egress::parse(required(invocation, "url")?)?;
    let mut headers = HeaderMap::new();
    if let Some(asked) = invocation.arguments.get("headers").and_then(Value::as_object) {
        for (name, value) in asked {
            insert(&mut headers, name, value.as_str().unwrap_or_default(), false)?;
        }
    }
    if let Some(own) = OWN_HEADERS.iter().find(|name| headers.contains_key(**name)) {
        return Err(ToolError::final_("invalid_arguments", format!("`headers`: `{own}` is set by the runtime")));
    }
    let body = match invocation.arguments.get("body") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone().into_bytes()),
        Some(json) => {
            headers.entry("content-type").or_insert(HeaderValue::from_static("application/json"));
            Some(json.to_string().into_bytes())
        }
    };
    let allow_private = allows_private(&url, invocation.allow);
    let request = Request {
        method,
        url,
        headers,
        body,
        timeout: invocation.timeout,
        allow_private,
        // The agent's file writes it out with its port, or it isn't reached.
        spelled_out: allow_private,
        redirects: Redirects::Same,
        cap: None,
    };
    content(egress.send(with_own_headers(request, invocation)?).await?)
}

/// Asks a call's own read-back. An answer that says neither is an error that may pass.
pub(super) async fn probe(
    egress: &Egress,
    secrets: &Secrets,
    probe: &Probe,
    invocation: Invocation<'_>,
) -> Result<Asked, ToolError> {
    let response = egress.send(fill(&probe.http, secrets, invocation)?).await?;
    let found = match response.status {
        200..=299 => {
            let answer: Value = serde_json::from_slice(&response.body).map_err(|error| {
                ToolError::transient("probe", format!("its answer is not JSON: {error}"), Happened::No)
            })?;
            answer.pointer(&probe.done).is_some_and(|done| !matches!(done, Value::Null | Value::Bool(false)))
        }
        404 | 410 => false,
        status => return Err(ToolError::transient("probe", format!("it answered HTTP {status}"), Happened::No)),
    };
    let finding = if found { Finding::Done } else { Finding::NotDone };
    Ok(Asked { finding, status: response.status, body: response.body, media_type: response.media_type })
}

/// The request with its places filled and its secrets in.
fn fill(http: &HttpRequest, secrets: &Secrets, invocation: Invocation<'_>) -> Result<Request, ToolError> {
    let places = Tools::places(invocation);
    let url = egress::parse(&template::url(&http.url, places)?)?;
    let method: Method = http
        .method
        .parse()
        .map_err(|_| ToolError::final_("misconfigured", "the tool's `method` is not an HTTP method"))?;
    let mut headers = HeaderMap::new();
    for (name, value) in &http.headers {
        let value = template::header(name, value, places, secrets)?;
        insert(&mut headers, name, &value.text, value.sensitive)?;
    }
    let body = match &http.body {
        Some(body) => Some(template::body(body, places)),
        None if has_body(&method) => Some(Value::Object(invocation.arguments.clone())),
        None => None,
    };
    if body.is_some() {
        headers.entry("content-type").or_insert(HeaderValue::from_static("application/json"));
    }
    let body = body.map(|body| body.to_string().into_bytes());
    let allow_private = http.allow_private || allows_private(&url, invocation.allow);
    let request = Request {
        method,
        url,
        headers,
        body,
        timeout: invocation.timeout,
        allow_private,
        spelled_out: template::names_host(&http.url),
        redirects: http.redirects,
        cap: http.max_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
    };
    with_own_headers(request, invocation)
}

/// The host that a request goes to, as far as it is known before it is sent.
pub(super) fn host(template: &str, arguments: &Map<String, Value>) -> Option<String> {
    let places = Places { arguments, idempotency_key: "", run: kernel::RunId(uuid::Uuid::nil()) };
    place(&template::url(template, places).ok()?)
}

/// `host:port` of a URL.
pub(super) fn place(url: &str) -> Option<String> {
    Some(egress::place(&egress::parse(url).ok()?).1)
}

fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// What goes out with every request: a key by which the other side can tell a repetition, and the trace.
fn with_own_headers(mut request: Request, invocation: Invocation<'_>) -> Result<Request, ToolError> {
    insert(&mut request.headers, "idempotency-key", invocation.idempotency_key, false)?;
    insert(&mut request.headers, "traceparent", invocation.traceparent, false)?;
    Ok(request)
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str, sensitive: bool) -> Result<(), ToolError> {
    let wrong = || ToolError::final_("invalid_arguments", format!("`{name}` is not a header that can be sent"));
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
    let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
    value.set_sensitive(sensitive);
    headers.insert(name, value);
    Ok(())
}

/// A good answer is the content; another is an error with what it says.
fn content(response: Response) -> Result<Content, ToolError> {
    let Response { status, media_type, retry_after, body, truncated } = response;
    if status < 400 {
        let value = media_type.contains("json").then(|| serde_json::from_slice(&body).ok()).flatten();
        let head = Some(format!("HTTP {status}"));
        return Ok(Content { head, value, truncated, ..Content::outside(body, media_type) });
    }
    let passes = matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504);
    let happened = if status >= 500 || status == 408 { Happened::Perhaps } else { Happened::No };
    let said = excerpt(&String::from_utf8_lossy(&body), ERROR_BODY);
    let doubt = if happened == Happened::Perhaps { " (it may have been carried out all the same)" } else { "" };
    let pause = retry_after.map(|pause| format!("; it asks to wait {} s", pause.as_secs())).unwrap_or_default();
    Err(ToolError {
        code: "http_status",
        message: format!("HTTP {status}{doubt}{pause}\n\n{said}").trim_end().to_owned(),
        trust: kernel::Trust::Untrusted,
        happened,
        again: passes.then(|| retry_after.unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allow(hosts: &[&str]) -> Allow {
        Allow { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..Allow::default() }
    }

    #[test]
    fn hosts_are_named_with_or_without_their_port() {
        assert!(is_allowed("https://docs.rs/x", &allow(&["docs.rs"])));
        assert!(is_allowed("http://DOCS.rs:8080/x", &allow(&["docs.rs"])));
        assert!(is_allowed("https://docs.rs/x", &allow(&["docs.rs:443"])));
        for url in ["https://docs.rs.evil.com/", "https://evil.com/docs.rs", "https://docs.rs@evil.com/", "x"] {
            assert!(!is_allowed(url, &allow(&["docs.rs"])), "{url}");
        }
        assert!(!is_allowed("http://docs.rs/", &allow(&["docs.rs:443"])));
    }

    #[test]
    fn a_private_address_needs_its_port_named() {
        let url = egress::parse("http://127.0.0.1:9000/x").unwrap();
        assert!(allows_private(&url, &allow(&["127.0.0.1:9000"])));
        assert!(!allows_private(&url, &allow(&["127.0.0.1", "127.0.0.1:90"])));
    }

    #[test]
    fn statuses_are_classed() {
        let answer = |status| {
            let media_type = "application/json".to_owned();
            content(Response { status, media_type, retry_after: None, body: b"{\"a\":1}".to_vec(), truncated: false })
        };
        assert_eq!(answer(200).unwrap().value, Some(json!({"a": 1})));
        let classed = |status| answer(status).map_err(|error| (error.happened, error.again.is_some())).unwrap_err();
        assert_eq!(classed(404), (Happened::No, false));
        assert_eq!(classed(429), (Happened::No, true));
        assert_eq!(classed(500), (Happened::Perhaps, true));
        assert_eq!(classed(501), (Happened::Perhaps, false));
    }
}
