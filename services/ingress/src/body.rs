//! Requests taken apart: bodies, query strings and path segments, with every fault told as a [`Problem`].

use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kernel::{IdError, RunId};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize as _, Deserializer};
use serde_json::error::Category;

use crate::problem::Problem;

/// A JSON body. An empty body reads as `{}`, so that calls without anything to say need none.
pub(crate) struct JsonBody<T>(pub T);

/// The query string.
pub(crate) struct Params<T>(pub T);

/// The segments of the path that the route names.
pub(crate) struct Segments<T>(pub T);

/// The whole body, within the limit.
pub(crate) struct RawBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        Bytes::from_request(request, state).await.map(Self).map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload_too_large",
                "the body is larger than this server takes",
            )
            .remedy("send less, or keep large content elsewhere and send a link; `body_limit_bytes` sets the limit"),
            StatusCode::REQUEST_TIMEOUT => {
                Problem::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the body did not come in time")
            }
            _ => Problem::bad_request("unreadable_body", rejection.body_text()),
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let media_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_json = media_type.is_none_or(is_json);
        let RawBody(body) = RawBody::from_request(request, state).await?;
        if !is_json && !body.is_empty() {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body is not declared as JSON",
            )
            .field("Content-Type")
            .remedy("send `Content-Type: application/json`"));
        }
        parse(&body).map(Self)
    }
}

fn is_json(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json") || essence.to_ascii_lowercase().ends_with("+json")
}

/// Reads JSON, naming the place of what is wrong. NUL can't be stored, so it is replaced here.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    if body.trim_ascii_start().starts_with(b"[") {
        // Read as fields in their order otherwise, which nobody ever means.
        return Err(Problem::unprocessable("invalid_field", "the body is an array").remedy("send one JSON object"));
    }
    let result = serde_json::from_slice(body);
    if body.windows(6).any(|escape| escape == br"\u0000") {
        let mut value = serde_json::from_slice(body).map_err(|error| json_problem(&error))?;
        bus::clean_nul(&mut value);
        return serde_json::from_value(value).map_err(|error| json_problem(&error));
    }
    result.map_err(|error| located::<T>(body, json_problem(&error)))
}

/// Names the field whose value does not fit, unless it is named. For that the body is read again: keeping paths takes time.
fn located<T: DeserializeOwned>(body: &[u8], problem: Problem) -> Problem {
    if problem.code() != "invalid_field" {
        return problem;
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Err(error) if error.path().iter().next().is_some() => problem.field(error.path().to_string()),
        _ => problem,
    }
}

/// An object, and nothing else: by itself serde also takes an array of the fields in their order, so that `[]` would be a filter
/// without conditions.
pub(crate) fn object<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let members = serde_json::Map::deserialize(deserializer)?;
    T::deserialize(serde_json::Value::Object(members)).map_err(D::Error::custom)
}

fn json_problem(error: &serde_json::Error) -> Problem {
    let place = |problem: Problem| {
        if error.line() == 0 { problem } else { problem.with("line", error.line()).with("column", error.column()) }
    };
    let text = error.to_string();
    match error.classify() {
        Category::Syntax | Category::Eof | Category::Io => {
            place(Problem::bad_request("malformed_json", format!("the body is not valid JSON: {text}")))
                .remedy("send one JSON object")
        }
        Category::Data => {
            let (code, remedy) = if text.starts_with("unknown field") {
                ("unknown_field", "leave the field out, or see `/openapi.json` for its right name")
            } else if text.starts_with("missing field") {
                ("missing_field", "add the field")
            } else {
                ("invalid_field", "see `/openapi.json` for what is expected")
            };
            let problem = place(Problem::unprocessable(code, &text)).remedy(remedy);
            match named(&text).filter(|_| code != "invalid_field") {
                Some(field) => problem.field(field),
                None => problem,
            }
        }
    }
}

/// The first name in backticks.
fn named(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if parts.uri.query().is_some_and(holds_nul) {
            return Err(Problem::bad_request(
                "invalid_query",
                "a parameter holds NUL, which nothing that is kept does",
            )
            .remedy("leave `%00` out"));
        }
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(params)| Self(params)).map_err(|rejection| {
            let text = rejection.body_text();
            let detail = text.rsplit_once(": ").map_or(text.as_str(), |(_, detail)| detail);
            let problem = Problem::bad_request("invalid_query", &text).remedy("see `/openapi.json` for the parameters");
            match named(detail) {
                Some(field) => problem.field(field),
                None => problem,
            }
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if holds_nul(parts.uri.path()) {
            return Err(Problem::bad_request("invalid_path", "the path holds NUL, which no name does")
                .remedy("leave `%00` out"));
        }
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(segments)| Self(segments))
            .map_err(|rejection| Problem::bad_request("invalid_path", rejection.body_text()))
    }
}

/// Whether a part of an address holds NUL once it is decoded: Postgres takes no text with it.
fn holds_nul(encoded: &str) -> bool {
    encoded.contains("%00")
}

/// An answer under its tag, or word that the caller has it already.
pub(crate) fn unless_known(headers: &HeaderMap, tag: &str, answer: impl IntoResponse) -> Response {
    // Compared weakly, as reads are: whether `W/` stands before a tag makes no difference.
    let opaque = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known =
        known.flat_map(|value| value.split(',')).any(|known| known.trim() == "*" || opaque(known) == opaque(tag));
    let answer = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { answer.into_response() };
    let private = (header::CACHE_CONTROL, "private, no-cache".to_owned());
    ([private, (header::ETAG, tag.to_owned())], answer).into_response()
}

/// What a segment that is no run id stands for: no run.
pub(crate) fn run_id(segment: &str) -> Result<RunId, Problem> {
    segment.parse().map_err(|error: IdError| Problem::unknown_run(&error.text).remedy(error.remedy))
}

/// An id in a path or a query; `unknown` is the code of the answer if it is none.
pub(crate) fn id<T: FromStr<Err = IdError>>(segment: &str, unknown: &'static str) -> Result<T, Problem> {
    segment.parse().map_err(|error: IdError| Problem::not_found(unknown, &error).remedy(error.remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        #[expect(dead_code, reason = "only parsed")]
        name: String,
    }

    fn problem(body: &str) -> serde_json::Value {
        let response = parse::<Wanted>(body.as_bytes()).unwrap_err();
        let response = axum::response::IntoResponse::into_response(response);
        let bytes = futures::executor::block_on(axum::body::to_bytes(response.into_body(), 10_000)).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn every_fault_is_named_with_its_place() {
        let malformed = problem("{\n  \"name\": }");
        assert_eq!((&malformed["code"], &malformed["line"]), (&"malformed_json".into(), &2.into()));
        assert_eq!(problem("{\"name\": \"a\"").get("code"), Some(&"malformed_json".into()));
        let unknown = problem(r#"{"name":"a","nmae":"b"}"#);
        assert_eq!((&unknown["code"], &unknown["field"]), (&"unknown_field".into(), &"nmae".into()));
        let missing = problem("");
        assert_eq!(
            (&missing["code"], &missing["field"], &missing["status"]),
            (&"missing_field".into(), &"name".into(), &422.into())
        );
        let misfit = problem(r#"{"name":1}"#);
        assert_eq!((&misfit["code"], &misfit["field"]), (&"invalid_field".into(), &"name".into()));
        assert_eq!(problem(r#" ["a"]"#)["code"], "invalid_field", "fields are named");
    }
}
