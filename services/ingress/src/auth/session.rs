//! The session of a browser: a token in a cookie that no script can read. It is kept nowhere else, so it holds at every
//! instance, and ends when the token does.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};

const NAME: &str = "esc_session";
/// How long the browser keeps it at most: a working day.
const KEPT: Duration = Duration::from_secs(12 * 3600);
/// Longest value of the cookie, in bytes. Browsers drop one of more than 4096 with its name, without a word.
const MOST_BYTES: usize = 4000;

/// The token in the request's cookie. Hex in there, since a token may hold what a cookie may not; a signed one holds nothing of
/// the kind, and is long enough as it is.
pub(super) fn token(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == NAME)?;
    if value.contains('.') {
        return is_plain(value).then(|| value.to_owned());
    }
    String::from_utf8(hex::decode(value).ok()?).ok()
}

/// Whether a page of this server sent it. `SameSite` keeps other sites from using the cookie, but another port of this host is
/// the same site.
pub(super) fn is_own(request: &Request) -> bool {
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    match (header("sec-fetch-site"), header("origin"), header("host")) {
        (Some(site), ..) => site == "same-origin" || (site == "none" && is_safe(request.method())),
        (None, Some(origin), Some(host)) => {
            origin.split_once("://").is_some_and(|(_, of)| of.eq_ignore_ascii_case(host))
        }
        (None, None, _) => is_safe(request.method()),
        _ => false,
    }
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// What makes the browser keep the token, for as long as it is good if that is known; none if it is too long for that. `Secure`
/// unless the server is called by a name of this very machine, which has no TLS in front of it.
pub(crate) fn kept(token: &str, good_for: Option<Duration>, headers: &HeaderMap) -> Option<String> {
    let value = if token.contains('.') && is_plain(token) { token.to_owned() } else { hex::encode(token) };
    if value.len() > MOST_BYTES {
        return None;
    }
    let kept = good_for.map_or(KEPT, |good_for| good_for.min(KEPT)).as_secs();
    let secure = if is_local(headers) { "" } else { "; Secure" };
    Some(format!("{NAME}={value}; Path=/v1; HttpOnly; SameSite=Strict; Max-Age={kept}{secure}"))
}

/// Whether it may stand in a cookie as it is: so do all signed tokens.
fn is_plain(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// What makes the browser forget it.
pub(crate) fn forgotten() -> String {
    format!("{NAME}=; Path=/v1; HttpOnly; SameSite=Strict; Max-Age=0")
}

fn is_local(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
    matches!(name.map_or(host, |(name, _)| name), "127.0.0.1" | "localhost" | "[::1]")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(method: Method, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().method(method);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn what_is_kept_is_found_again_among_other_cookies() {
        let signed = format!("eyJhbGciOiJFUzI1NiJ9.{}.c2ln-_", "a".repeat(3000));
        for text in ["a token; with = signs", "esc_0123", "a.b;c", "plain", &signed] {
            let set = kept(text, None, &HeaderMap::new()).unwrap();
            let pair = set.split(';').next().unwrap();
            let cookies = format!("theme=dark; {pair};other=1");
            let request = request(Method::GET, &[("cookie", &cookies)]);
            assert_eq!(token(request.headers()).as_deref(), Some(text));
        }
        for wrong in [
            "",
            "esc_session",
            "esc_session=",
            "esc_session=zz",
            "esc_session=ff",
            "xesc_session=61",
            "esc_session=a.b\"",
        ] {
            let request = self::request(Method::GET, &[("cookie", wrong)]);
            assert!(token(request.headers()).unwrap_or_default().is_empty(), "{wrong}");
        }
    }

    #[test]
    fn it_is_kept_no_longer_than_it_is_good_and_not_at_all_if_a_browser_would_not() {
        let none = HeaderMap::new();
        let lasts = |good_for| kept("t", good_for, &none).unwrap();
        assert!(lasts(None).contains("Max-Age=43200") && lasts(Some(2 * KEPT)).contains("Max-Age=43200"));
        assert!(lasts(Some(Duration::from_millis(299_999))).contains("Max-Age=299;"));
        assert!(lasts(Some(Duration::ZERO)).contains("Max-Age=0;"));
        let of = |size: usize| format!("e.{}", "a".repeat(size - 2));
        assert!(kept(&of(MOST_BYTES), None, &none).is_some() && kept(&of(MOST_BYTES + 1), None, &none).is_none());
    }

    #[test]
    fn only_a_machine_that_calls_itself_does_without_tls() {
        for (host, secure) in
            [("127.0.0.1:8080", false), ("localhost", false), ("[::1]:1", false), ("esc.example.com", true), ("", true)]
        {
            let request = request(Method::GET, &[("host", host)]);
            assert_eq!(kept("t", None, request.headers()).unwrap().contains("Secure"), secure, "{host}");
        }
    }

    type Headers = &'static [(&'static str, &'static str)];

    #[test]
    fn another_page_is_not_our_own() {
        let cases: [(Method, Headers, bool); 9] = [
            (Method::POST, &[("sec-fetch-site", "same-origin")], true),
            (Method::POST, &[("sec-fetch-site", "same-site")], false),
            (Method::GET, &[("sec-fetch-site", "cross-site")], false),
            (Method::GET, &[("sec-fetch-site", "none")], true),
            (Method::POST, &[("sec-fetch-site", "none")], false),
            (Method::POST, &[("origin", "http://127.0.0.1:8080"), ("host", "127.0.0.1:8080")], true),
            (Method::POST, &[("origin", "http://127.0.0.1:9999"), ("host", "127.0.0.1:8080")], false),
            (Method::POST, &[("host", "127.0.0.1:8080")], false),
            (Method::GET, &[("host", "127.0.0.1:8080")], true),
        ];
        for (method, headers, own) in cases {
            assert_eq!(is_own(&request(method.clone(), headers)), own, "{method} {headers:?}");
        }
    }
}
