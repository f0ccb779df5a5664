//! Servers behind HTTP that have forgotten a session, as after a restart.
//!
//! By the protocol they answer 404. Their reference implementation answers an error that names no request, which nobody waits
//! for: without this, a call would hang until its time is over, and so would each one after it.

use std::collections::HashMap;
use std::sync::Arc;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};

/// Longest words of a server that are kept of such an error.
const WORDS: usize = 256;

/// A client that knows a forgotten session when it sees one.
#[derive(Clone)]
pub(super) struct Sessions<C>(pub C);

impl<C: StreamableHttpClient + Sync> StreamableHttpClient for Sessions<C> {
    type Error = C::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        let asks = Asks::of(&message, session.as_deref());
        answered(asks, self.0.post_message(uri, message, session, auth, headers).await)
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<C::Error>> {
        let asks = Asks::of(&message, session.as_deref());
        let posting = self.0.post_message_with_response_limits(uri, message, session, auth, headers, limits);
        answered(asks, posting.await)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), StreamableHttpError<C::Error>> {
        self.0.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, StreamableHttpError<C::Error>> {
        self.0.get_stream(uri, session, last_event, auth, headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        most: usize,
    ) -> Result<BoxedSseResponse, StreamableHttpError<C::Error>> {
        self.0.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, most).await
    }
}

/// What was sent, as far as its answer is judged by it.
#[derive(Clone, Copy)]
struct Asks {
    /// It is a request, so somebody waits.
    waits: bool,
    in_session: bool,
}

impl Asks {
    fn of(message: &ClientJsonRpcMessage, session: Option<&str>) -> Self {
        Self { waits: matches!(message, JsonRpcMessage::Request(_)), in_session: session.is_some() }
    }
}

/// An error that names no request is the answer to the one that was sent: nothing was made of that.
fn answered<E: std::error::Error + Send + Sync + 'static>(
    asks: Asks,
    answer: Result<StreamableHttpPostResponse, StreamableHttpError<E>>,
) -> Result<StreamableHttpPostResponse, StreamableHttpError<E>> {
    let said = match &answer {
        Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), _)) if asks.waits && error.id.is_none() => {
            kernel::excerpt(&error.error.message, WORDS)
        }
        _ => return answer,
    };
    if asks.in_session && said.to_ascii_lowercase().contains("session") {
        return Err(StreamableHttpError::SessionExpired);
    }
    Err(StreamableHttpError::UnexpectedServerResponse(said.into()))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ErrorCode, ErrorData, JsonRpcError, JsonRpcVersion2_0, RequestId};

    use super::*;

    type Answer = Result<StreamableHttpPostResponse, StreamableHttpError<std::io::Error>>;

    fn error(id: Option<i64>, words: &'static str) -> Answer {
        let error = ErrorData::new(ErrorCode(-32000), words, None);
        let id = id.map(RequestId::Number);
        let error = JsonRpcError { jsonrpc: JsonRpcVersion2_0, id, error };
        Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), None))
    }

    #[test]
    fn an_error_that_names_no_request_answers_the_one_that_was_sent() {
        let asks = Asks { waits: true, in_session: true };
        let forgotten = "Bad Request: No valid session ID provided";
        assert!(matches!(answered(asks, error(None, forgotten)), Err(StreamableHttpError::SessionExpired)));
        let other = answered(asks, error(None, "Parse error"));
        assert!(matches!(other, Err(StreamableHttpError::UnexpectedServerResponse(words)) if words == "Parse error"));
        // What is somebody's is given to them, and what nobody waits for is not lost on anybody.
        assert!(answered(asks, error(Some(1), forgotten)).is_ok());
        assert!(answered(Asks { waits: false, ..asks }, error(None, forgotten)).is_ok());
        let early = answered(Asks { in_session: false, ..asks }, error(None, forgotten));
        assert!(matches!(early, Err(StreamableHttpError::UnexpectedServerResponse(_))));
    }
}
