//! What goes wrong between us and a server.

use std::time::Duration;

use jiff::Timestamp;
use kernel::Trust;
use rmcp::ServiceError;
use rmcp::model::ErrorCode;
use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::{HttpStatusError, StreamableHttpError};
use service::chain;

use crate::egress;
use crate::outcome::{Happened, ToolError};

/// What is shown of a server's words in an error.
const WORDS: usize = 2048;

/// Why a server can't be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{words}")]
pub struct OpenError {
    /// A stable word: `misconfigured`, `unreachable`, `unauthorized`, `busy`.
    pub code: &'static str,
    /// What is wrong. May hold the server's own words.
    pub words: String,
    /// Whether another try may work, and after how long at the least.
    pub again: Option<Duration>,
    /// What the server asks for, if it wants us to be authorised (`WWW-Authenticate`).
    pub challenge: Option<String>,
}

impl OpenError {
    /// The server's file, or something that it refers to, is wrong.
    pub(super) fn misconfigured(words: impl Into<String>) -> Self {
        Self { code: "misconfigured", words: words.into(), again: None, challenge: None }
    }

    /// It does not answer as it should; that may pass.
    pub(super) fn unreachable(words: impl Into<String>) -> Self {
        Self { code: "unreachable", words: words.into(), again: Some(Duration::ZERO), challenge: None }
    }

    /// It does not know us, or not well enough.
    pub(super) fn unauthorized(words: impl Into<String>, challenge: Option<String>) -> Self {
        Self { code: "unauthorized", words: words.into(), again: None, challenge }
    }

    /// From a connection that did not come about.
    pub(super) fn from_start(error: &ClientInitializeError) -> Self {
        if error.is_authorization_required() || error.auth_challenge().is_some() {
            let challenge = error.auth_challenge().map(str::to_owned);
            return Self::unauthorized(
                "it wants us to be authorised: log in, or give it a header in its file",
                challenge,
            );
        }
        let words = kernel::excerpt(&chain(error), WORDS);
        match error {
            ClientInitializeError::NoCompatibleProtocolVersion { .. } => Self::misconfigured(words),
            _ => Self::unreachable(words),
        }
    }
}

impl OpenError {
    /// For whoever is no executor.
    pub(super) fn of_call(error: ToolError) -> Self {
        Self { code: error.code, words: error.message, again: error.again, challenge: None }
    }
}

impl From<OpenError> for ToolError {
    fn from(error: OpenError) -> Self {
        let OpenError { code, words, again, .. } = error;
        Self { code, message: words, trust: Trust::Untrusted, happened: Happened::No, again }
    }
}

/// From a request that got no result. `Unknown` unless there is a reason to say otherwise: a request may have arrived though
/// its answer did not.
pub(super) fn of_request(error: &ServiceError) -> ToolError {
    let words = kernel::excerpt(&chain(error), WORDS);
    let outside =
        |code, happened, again| ToolError { code, message: words.clone(), trust: Trust::Untrusted, happened, again };
    match error {
        ServiceError::McpError(said) => {
            let words = kernel::excerpt(&said.message, WORDS);
            let (code, happened) = match said.code {
                ErrorCode::INVALID_PARAMS => ("invalid_arguments", Happened::No),
                ErrorCode::METHOD_NOT_FOUND | ErrorCode::RESOURCE_NOT_FOUND => ("not_found", Happened::No),
                ErrorCode::INVALID_REQUEST | ErrorCode::PARSE_ERROR => ("protocol", Happened::No),
                _ => ("tool_error", Happened::Perhaps),
            };
            ToolError { message: words, ..outside(code, happened, None) }
        }
        ServiceError::TransportSend(_) if error.auth_challenge().is_some() || error.is_authorization_required() => {
            outside("unauthorized", Happened::No, None)
        }
        ServiceError::TransportSend(sent) => match http_error(sent.error.as_ref()) {
            Some(StreamableHttpError::HttpStatus(answered)) => of_status(answered),
            Some(StreamableHttpError::SessionExpired) => {
                let words = "the server has forgotten the session, as after a restart; a new one is opened".to_owned();
                ToolError { message: words, ..outside("session_lost", Happened::No, Some(Duration::ZERO)) }
            }
            Some(StreamableHttpError::ResponseBodyTooLarge { max_size }) => {
                let words = format!("its answer is larger than the {max_size} bytes that are read");
                ToolError { message: words, ..outside("too_large", Happened::Unknown, None) }
            }
            Some(StreamableHttpError::UnexpectedServerResponse(_) | StreamableHttpError::UnexpectedContentType(_)) => {
                outside("protocol", Happened::Unknown, None)
            }
            _ if never_connected(sent.error.as_ref()) => outside("unreachable", Happened::No, Some(Duration::ZERO)),
            _ => outside("connection_broken", Happened::Unknown, Some(Duration::ZERO)),
        },
        ServiceError::Timeout { .. } => outside("timeout", Happened::Unknown, Some(Duration::ZERO)),
        ServiceError::UnexpectedResponse => outside("protocol", Happened::Unknown, None),
        _ => outside("server_died", Happened::Unknown, Some(Duration::ZERO)),
    }
}

/// What an HTTP status means that was answered instead of a result.
fn of_status(answered: &HttpStatusError) -> ToolError {
    let asked = answered.retry_after.as_deref().and_then(|text| egress::pause(text.trim(), Timestamp::now()));
    let (happened, again) = match answered.status {
        429 => (Happened::No, Some(asked.unwrap_or(Duration::from_secs(1)))),
        503 => (Happened::Perhaps, Some(asked.unwrap_or_default())),
        _ => (Happened::Perhaps, Some(Duration::ZERO)),
    };
    let pause = asked.map(|asked| format!("; it asks to wait {} s", asked.as_secs())).unwrap_or_default();
    let message = format!("the server answered HTTP {}{pause}", answered.status);
    ToolError { code: "http_status", message, trust: Trust::Untrusted, happened, again }
}

/// Whether the server no longer knows the session, so that no call of the connection can ever work again.
pub(super) fn loses_session(error: &ServiceError) -> bool {
    let ServiceError::TransportSend(sent) = error else { return false };
    matches!(http_error(sent.error.as_ref()), Some(StreamableHttpError::SessionExpired))
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

fn http_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a StreamableHttpError<reqwest::Error>> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn never_connected(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<reqwest::Error>()).any(reqwest::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use rmcp::transport::DynamicTransportError;

    use super::*;

    fn sent(error: StreamableHttpError<reqwest::Error>) -> ServiceError {
        let parts = DynamicTransportError::from_parts("http", std::any::TypeId::of::<()>(), Box::new(error));
        ServiceError::TransportSend(parts)
    }

    #[test]
    fn statuses_say_what_happened_and_how_long_to_wait() {
        let status = |status, wait: Option<&str>| {
            let error = of_request(&sent(HttpStatusError::new(status, wait.map(str::to_owned)).into()));
            assert_eq!(error.code, "http_status");
            (error.happened, error.again.map(|again| again.as_secs()))
        };
        assert_eq!(status(429, Some("7")), (Happened::No, Some(7)));
        assert_eq!(status(429, Some("soon")), (Happened::No, Some(1)));
        assert_eq!(status(503, Some("3")), (Happened::Perhaps, Some(3)));
        assert_eq!(status(500, None), (Happened::Perhaps, Some(0)));
        let large = of_request(&sent(StreamableHttpError::ResponseBodyTooLarge { max_size: 7 }));
        assert_eq!((large.code, large.happened, large.again), ("too_large", Happened::Unknown, None));
    }

    #[test]
    fn a_forgotten_session_is_known_and_nothing_was_done_then() {
        let expired = sent(StreamableHttpError::SessionExpired);
        assert!(loses_session(&expired) && !loses_session(&sent(StreamableHttpError::UnexpectedEndOfStream)));
        let error = of_request(&expired);
        assert_eq!((error.code, error.happened, error.again), ("session_lost", Happened::No, Some(Duration::ZERO)));
    }
}
