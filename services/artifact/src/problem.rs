//! Errors as RFC 9457 says them.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use engine::EngineError;

use crate::store::PutError;

/// A request that was not carried out.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    pub(crate) fn bad(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn missing(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::json!({
            "type": format!("urn:escapement:problem:{}", self.code),
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        tracing::error!("a request failed: {}", service::chain(&error));
        if error.is_transient() {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "a store does not answer; try again")
        } else {
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the log has the reason")
        }
    }
}

impl From<object_store::Error> for Problem {
    fn from(error: object_store::Error) -> Self {
        tracing::error!(%error, "the object store failed");
        match error {
            object_store::Error::NotFound { .. } => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "content_missing",
                "the store lacks content that is recorded",
            ),
            _ => Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "the object store does not answer"),
        }
    }
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Self {
        match error {
            PutError::TooLarge(max) => {
                let detail = format!("the content has more than {max} bytes (artifact_max_bytes)");
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
            }
            PutError::Body(error) => Self::bad("broken_off", format!("the content broke off: {error}")),
            PutError::Store(error) => error.into(),
        }
    }
}
