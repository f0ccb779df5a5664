//! Errors as callers see them: RFC 9457 problem details with a stable `code`.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{EngineError, ReadError, SubmitError};
use kernel::Rejection;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Media type of problem details.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// The answer to a call that failed.
#[derive(Debug)]
pub(crate) struct Problem {
    // Boxed, so that results stay small where all goes well.
    details: Box<ProblemDetails>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// The code of a problem, left on its answer for whoever passes it on.
#[derive(Clone, Debug)]
pub(crate) struct ProblemCode(pub String);

/// RFC 9457 problem details. Further members may stand beside these.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Problem")]
pub(crate) struct ProblemDetails {
    /// `urn:escapement:problem:<code>`.
    #[serde(rename = "type")]
    kind: String,
    /// The status in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// A stable word for programs.
    code: Cow<'static, str>,
    /// What happened, for people.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Which part of the request is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    more: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, detail: impl Display) -> Self {
        let code = code.into();
        let details = ProblemDetails {
            kind: format!("urn:escapement:problem:{code}"),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code,
            detail: detail.to_string(),
            remedy: None,
            field: None,
            more: Map::new(),
        };
        Self { details: Box::new(details), headers: Vec::new() }
    }

    pub(crate) fn bad_request(code: &'static str, detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub(crate) fn conflict(code: impl Into<Cow<'static, str>>, detail: impl Display) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn unprocessable(code: &'static str, detail: impl Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
    }

    /// For what the caller can do nothing about but wait.
    pub(crate) fn unavailable(code: &'static str, detail: impl Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
            .remedy("try again in a moment")
            .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// For faults of ours. The caller gets no details; the log does.
    pub(crate) fn internal(error: &(dyn Error + 'static)) -> Self {
        tracing::error!(error, "a request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request failed here, and the log says why")
    }

    pub(crate) fn unknown_run(id: impl Display) -> Self {
        Self::not_found("unknown_run", format!("there is no run `{id}`")).remedy("`GET /v1/runs` lists the runs")
    }

    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.details.remedy = Some(remedy.into());
        self
    }

    #[must_use]
    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        self.details.field = Some(field.into());
        self
    }

    /// A member of its own.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.more.insert(name.to_owned(), value.into());
        self
    }

    /// Whether the same request would be refused again, as far as anybody can tell.
    pub(crate) fn is_refusal(&self) -> bool {
        self.details.status < 500
    }

    /// The stable word.
    pub(crate) fn code(&self) -> &str {
        &self.details.code
    }

    /// What happened, for people.
    pub(crate) fn detail(&self) -> &str {
        &self.details.detail
    }

    #[must_use]
    pub(crate) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.details.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self.details).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], Body::from(body)).into_response();
        response.extensions_mut().insert(ProblemCode(self.details.code.into_owned()));
        response.headers_mut().extend(self.headers);
        response
    }
}

impl From<Rejection> for Problem {
    fn from(rejection: Rejection) -> Self {
        match &rejection {
            Rejection::NoSuchRun => Self::not_found("unknown_run", &rejection).remedy("`GET /v1/runs` lists the runs"),
            Rejection::InvalidOutcome(_) | Rejection::CannotVouch(_) => {
                Self::unprocessable(rejection.code(), &rejection)
            }
            Rejection::NotAllowed(..) => Self::new(StatusCode::FORBIDDEN, rejection.code(), &rejection),
            _ => Self::conflict(rejection.code(), &rejection).remedy("`GET /v1/runs/{id}` shows where the run stands"),
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        if error.is_transient() {
            tracing::warn!(error = &error as &dyn std::error::Error, "a request failed for now");
            Self::unavailable("store_unavailable", "the log can't be reached at the moment")
        } else {
            Self::internal(&error)
        }
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Engine(error) => error.into(),
            ReadError::Cursor(error) => Self::bad_request("invalid_cursor", error)
                .field("cursor")
                .remedy("send `next` of the page before, or leave `cursor` out to begin anew"),
        }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Rejected(rejection) => rejection.into(),
            SubmitError::Engine(error) => error.into(),
        }
    }
}
