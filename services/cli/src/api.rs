//! The public door, over HTTP.

use std::{io::ErrorKind, time::Duration};

use jiff::Timestamp;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url, header};
use serde::de::DeserializeOwned;
use serde_json::Value;
use service::causes::root;

use crate::{args::Door, error::CliError, style::clean};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a stream may be silent: the server gives a sign of life more often.
const SILENCE: Duration = Duration::from_secs(45);

/// A client of the API.
#[derive(Clone, Debug)]
pub struct Api {
    http: Client,
    base: Url,
    token: String,
}

/// What is asked beside the path.
pub type Query<'a> = &'a [(&'a str, Option<String>)];

/// No further question.
pub const NO_QUERY: Query<'static> = &[];

/// A client without patience for services that are not there.
pub fn client(url: &Url) -> Result<Client, CliError> {
    let builder = Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE);
    // A proxy for the internet never leads to this machine.
    let builder = if is_local(url) { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| CliError::failed(format!("can't make an HTTP client: {}", root(&error))))
}

fn is_local(url: &Url) -> bool {
    url.host_str().is_some_and(|host| matches!(host, "127.0.0.1" | "localhost" | "[::1]"))
}

impl Api {
    /// The API at the door's address.
    pub fn new(door: &Door) -> Result<Self, CliError> {
        let url: Url = door.url.trim_end_matches('/').parse().map_err(|_| bad_url(&door.url))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad_url(&door.url));
        }
        Ok(Self { http: client(&url)?, base: url, token: door.token.clone() })
    }

    /// Where it is.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Its client, if that is good for this address as well: to make one takes its time, as it reads the system's certificates.
    pub fn client_for(&self, url: &Url) -> Option<&Client> {
        (is_local(url) == is_local(&self.base)).then_some(&self.http)
    }

    /// Asks.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: Query<'_>) -> Result<T, CliError> {
        let request = self.request(Method::GET, path, query)?.timeout(ANSWER);
        self.answer(request).await
    }

    /// Asks, and hears by the way what the time is there.
    pub async fn dated(&self, path: &str) -> Result<(Value, Option<Timestamp>), CliError> {
        let response = self.send(self.request(Method::GET, path, NO_QUERY)?.timeout(ANSWER)).await?;
        let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()).map(|date| date.timestamp());
        let body = response.bytes().await.map_err(|error| self.silent(&error))?;
        let body = serde_json::from_slice(&body)
            .map_err(|_| CliError::usage(format!("{} answers, but is not the API of Escapement", self.base)))?;
        Ok((body, date))
    }

    /// Asks for something to be done.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, CliError> {
        let request = self.request(Method::POST, path, NO_QUERY)?.timeout(ANSWER);
        self.answer(request.json(body)).await
    }

    /// As [`Api::post`], once for each key however often it is sent.
    pub async fn post_once<T: DeserializeOwned>(&self, path: &str, body: &Value, key: &str) -> Result<T, CliError> {
        let request = self.request(Method::POST, path, NO_QUERY)?.timeout(ANSWER);
        self.answer(request.header("Idempotency-Key", key).json(body)).await
    }

    /// Puts a document in place.
    pub async fn put<T: DeserializeOwned>(&self, path: &str, media_type: &str, body: String) -> Result<T, CliError> {
        let request = self.request(Method::PUT, path, NO_QUERY)?.timeout(ANSWER);
        self.answer(request.header(header::CONTENT_TYPE, media_type).body(body)).await
    }

    /// Asks for something to be gone.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let request = self.request(Method::DELETE, path, NO_QUERY)?.timeout(ANSWER);
        self.answer(request).await
    }

    /// Opens a stream of events from behind the one of this id.
    pub async fn stream(&self, path: &str, last_event_id: &str) -> Result<Response, CliError> {
        let request = self.request(Method::GET, path, NO_QUERY)?.header(header::ACCEPT, "text/event-stream");
        self.send(request.header("Last-Event-ID", last_event_id)).await
    }

    fn request(&self, method: Method, path: &str, query: Query<'_>) -> Result<RequestBuilder, CliError> {
        let mut url =
            self.base.join(path).map_err(|_| CliError::usage(format!("`{}` can't stand in a path", clean(path))))?;
        let asked: Vec<_> = query.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
        if !asked.is_empty() {
            url.query_pairs_mut().extend_pairs(asked);
        }
        let request = self.http.request(method, url);
        Ok(if self.token.is_empty() { request } else { request.bearer_auth(&self.token) })
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, CliError> {
        let response = self.send(request).await?;
        let body = response.bytes().await.map_err(|error| self.silent(&error))?;
        let body = if body.is_empty() { b"null" } else { &body[..] };
        serde_json::from_slice(body)
            .map_err(|error| CliError::failed(format!("the answer of {} is not what was expected: {error}", self.base)))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request.send().await.map_err(|error| self.silent(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.silent(&error))?;
        Err(refusal(status, serde_json::from_slice(&body).ok(), &self.base))
    }

    /// What a failed exchange means.
    pub fn silent(&self, error: &reqwest::Error) -> CliError {
        CliError::unreachable(format!("no answer from {}: {}", self.base, root(error)), remedy_of(error))
    }
}

/// What to do about a failed exchange: start what does not run, or go to where it runs.
fn remedy_of(error: &reqwest::Error) -> &'static str {
    if is_refused(error) {
        return "nothing listens there: infra/up starts the local stack, `. .local/env` sets ESC_URL to where it is";
    }
    if error.is_timeout() {
        return "it does not come to an answer: `esc doctor` says what it waits for";
    }
    "something else is there, or nothing is: ESC_URL is such as http://127.0.0.1:8080, `. .local/env` sets it"
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            return true;
        }
        below = error.source();
    }
    false
}

fn bad_url(text: &str) -> CliError {
    CliError::usage_with(
        format!("`{}` is not the address of an API", clean(text)),
        "ESC_URL is of the form http://127.0.0.1:8080",
    )
}

/// A refusal of the API as a sentence with its remedy.
fn refusal(status: StatusCode, problem: Option<Value>, base: &Url) -> CliError {
    let text = |name: &str| problem.as_ref().and_then(|problem| problem.get(name)).and_then(Value::as_str).map(clean);
    let message = text("detail").or_else(|| text("title")).unwrap_or_else(|| format!("{base} answers {status}"));
    let message = match text("field") {
        Some(field) => format!("{message} (`{field}`)"),
        None => message,
    };
    let remedy = text("remedy");
    if status.is_server_error() {
        return CliError::unreachable(
            message,
            remedy.unwrap_or_else(|| "its log says why; `esc doctor` looks around".into()),
        );
    }
    let remedy =
        text("code").and_then(|code| by_command(&code)).map(str::to_owned).or(remedy).or_else(|| match status {
            StatusCode::UNAUTHORIZED => Some("set ESC_TOKEN (`. .local/env`)".to_owned()),
            StatusCode::NOT_FOUND if problem.is_none() => Some(format!("is {base} the API of Escapement?")),
            _ => None,
        });
    CliError::Usage { message, remedy, problem }
}

/// What to type: the API's own remedies name its calls.
fn by_command(code: &str) -> Option<&'static str> {
    Some(match code {
        "missing_token" => {
            "set ESC_TOKEN: `. .local/env` does for the local stack; an admin makes one by `esc tokens create`"
        }
        "invalid_token" => {
            "take one that is good: `. .local/env` sets that of the local stack; an admin makes one by `esc tokens create`"
        }
        "unknown_agent" => "`esc agents list` lists them, `esc agents apply FILE` puts one in",
        "unknown_run" | "no_such_run" => "`esc runs` lists the runs",
        "unknown_approval" => "`esc approvals --state all` lists the questions",
        "already_endorsed" => "let somebody else approve it: `esc approve ID` with their token; `esc deny ID` ends it",
        "endorsed_otherwise" => {
            "`esc approvals` shows what the first one has agreed to: `esc approve ID --as-changed` agrees to that if it is changed, `esc approve ID` if it is not, `esc deny ID` ends it"
        }
        "unknown_standing_approval" => "`esc standing list` lists them",
        "unknown_schedule" => "`esc schedules list` lists them, `esc schedules apply FILE` puts one in",
        "unknown_memory" => "`esc memory list` lists them",
        "unknown_document" => "`esc knowledge list` lists them",
        "unknown_token" => "`esc tokens list` lists them",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base() -> Url {
        "http://127.0.0.1:8080".parse().unwrap()
    }

    #[test]
    fn a_problem_becomes_a_sentence_and_a_remedy() {
        let problem =
            json!({"title": "Not Found", "code": "unknown_turn", "detail": "there is no turn `x`", "remedy": "look"});
        let error = refusal(StatusCode::NOT_FOUND, Some(problem), &base());
        assert_eq!((error.to_string().as_str(), error.remedy()), ("there is no turn `x`", Some("look")));
        assert_eq!(error.to_json()["exit_code"], 2);
        assert_eq!(error.to_json()["problem"]["code"], "unknown_turn");
    }

    #[test]
    fn a_remedy_is_something_to_type() {
        let problem =
            json!({"code": "unknown_run", "detail": "there is no run `x`", "remedy": "`GET /v1/runs` lists the runs"});
        let error = refusal(StatusCode::NOT_FOUND, Some(problem), &base());
        assert_eq!(error.remedy(), Some("`esc runs` lists the runs"));
    }

    #[test]
    fn what_fails_there_counts_as_unreachable() {
        let error = refusal(StatusCode::SERVICE_UNAVAILABLE, None, &base());
        assert_eq!(error.to_json()["exit_code"], 3);
        assert!(error.remedy().is_some());
    }

    #[test]
    fn an_address_that_is_none_is_said() {
        let door = |url: &str| Door { url: url.into(), token: String::new() };
        for url in ["", "nonsense", "ftp://x", "postgres://127.0.0.1/x"] {
            assert!(Api::new(&door(url)).is_err(), "{url}");
        }
        assert!(Api::new(&door("http://127.0.0.1:8080/")).is_ok());
    }
}
