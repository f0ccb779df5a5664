//! Sessions of servers behind HTTP: nothing is asked before they can ask back, and forgotten ones are known as such.
//!
//! A server may put a question to the client while it works on a call, on the stream that the client listens to. What it says
//! before that stream is open is lost, and the call hangs: so the first requests of a session wait for it.
//!
//! A server that has forgotten a session, as after a restart, answers 404 by the protocol. Their reference implementation answers
//! an error that names no request, which nobody waits for: without this, a call would hang until its time is over, and so would
//! each one after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage};
use rmcp::transport::common::client_side_sse::BoxedSseResponse;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use tokio::sync::watch;

/// Longest words of a server that are kept of such an error.
const WORDS: usize = 256;
/// How long the first requests wait. Some servers say nothing on that stream, not even that it is open, until they have to.
const LISTEN_WITHIN: Duration = Duration::from_secs(3);

/// A client that takes care of its session.
#[derive(Clone)]
pub(super) struct Sessions<C> {
    client: C,
    /// Whether the server's own stream was asked for, and answered in whichever way.
    listening: Arc<watch::Sender<bool>>,
}

impl<C> Sessions<C> {
    pub fn new(client: C) -> Self {
        Self { client, listening: Arc::new(watch::Sender::new(false)) }
    }

    /// Waits until the server can ask back; once in the life of a connection.
    async fn listened(&self, asks: Asks) {
        if asks.waits && asks.in_session && !*self.listening.borrow() {
            let mut listening = self.listening.subscribe();
            let _ = tokio::time::timeout(LISTEN_WITHIN, listening.wait_for(|listening| *listening)).await;
            self.listening.send_replace(true);
        }
    }
}

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
        self.listened(asks).await;
        answered(asks, self.client.post_message(uri, message, session, auth, headers).await)
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
        self.listened(asks).await;
        let posting = self.client.post_message_with_response_limits(uri, message, session, auth, headers, limits);
        answered(asks, posting.await)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), StreamableHttpError<C::Error>> {
        self.client.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, StreamableHttpError<C::Error>> {
        let stream = self.client.get_stream(uri, session, last_event, auth, headers).await;
        self.listening.send_replace(true);
        stream
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
        let stream =
            self.client.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, most).await;
        self.listening.send_replace(true);
        stream
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
