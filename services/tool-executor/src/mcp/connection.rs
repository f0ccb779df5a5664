//! A connection to a server: opened, listed, used by several calls at once, and ended with all that belongs to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::{Handshake, McpServer, McpTransport};
use rmcp::model::{
    CallToolRequestParams, ClientRequest, PaginatedRequestParams, Prompt, ProtocolVersion, Request, ServerResult, Tool,
};
use rmcp::service::{ClientLifecycleMode, PeerRequestOptions, RunningService, serve_client_with_lifecycle_and_ct};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{Peer, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::caller::Caller;
use super::error::{self, OpenError};
use super::flight::{Departed, Flight};
use super::means::Means;
use super::ours::{Handler, LOG_WORDS, Ours, hear_of_changes};
use super::sessions::Sessions;
use super::stdio::{self, LastWords, Process};
use super::{http, oauth, words};
use crate::outcome::{Happened, ToolError};
use crate::secrets::Secrets;

/// Pages of a list that are read at most.
const MAX_PAGES: usize = 64;
/// How long the list of tools may take after the server said that it changed.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// A connection. Ends when it is closed or dropped, or when the server goes away.
pub struct Connection {
    server: Arc<McpServer>,
    peer: Peer<RoleClient>,
    ours: Arc<Ours>,
    /// Cancelled to end it.
    end: CancellationToken,
    /// Cancelled once it has ended.
    ended: CancellationToken,
    last_words: Option<LastWords>,
    burst: Option<Arc<AtomicBool>>,
    challenge: Mutex<Option<String>>,
    opened: Instant,
}

impl Connection {
    /// Opens a connection, within the server's time for it.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub async fn open(server: &Arc<McpServer>, means: &Means, tenant: &str) -> Result<Self, OpenError> {
        let within = server.timeouts.start.std();
        match tokio::time::timeout(within, Self::open_slowly(server, means, tenant)).await {
            Ok(opened) => opened,
            Err(_) => Err(OpenError::unreachable(format!("it was not ready within {within:?}"))),
        }
    }

    async fn open_slowly(server: &Arc<McpServer>, means: &Means, tenant: &str) -> Result<Self, OpenError> {
        let end = CancellationToken::new();
        // Whoever gives up on opening ends it.
        let guard = end.clone().drop_guard();
        let ours = Arc::new(Ours::new(server));
        let handler = Handler(ours.clone());
        let (mode, ct) = (lifecycle(server.handshake), end.clone());
        let (running, process, burst) = match &server.transport {
            McpTransport::Stdio(stdio) => {
                let folder = means.folder.join(tenant).join(&server.name);
                let most = server.limits.message_bytes;
                let (stdout, stdin, process) = stdio::start(stdio, &folder, most, &means.secrets)?;
                let burst = stdout.burst();
                let transport = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(usize::MAX);
                let served = serve_client_with_lifecycle_and_ct(handler, transport, mode, ct).await;
                match served {
                    Ok(running) => (running, Some(process), Some(burst)),
                    Err(error) => {
                        let last_words = process.last_words();
                        process.end().await;
                        return Err(said(OpenError::from_start(&error), &last_words, &means.secrets));
                    }
                }
            }
            McpTransport::Http(http) => {
                let url = http::address(http)?;
                let config = http::config(server, http, &url, &means.secrets)?;
                let served = match &http.oauth {
                    None => {
                        let transport =
                            StreamableHttpClientTransport::with_client(Sessions::new(http::client(http)?), config);
                        serve_client_with_lifecycle_and_ct(handler, transport, mode, ct).await
                    }
                    Some(oauth) => {
                        let client = oauth::authorised(server, http, oauth, &url, &means.tokens).await?;
                        let transport = StreamableHttpClientTransport::with_client(Sessions::new(client), config);
                        serve_client_with_lifecycle_and_ct(handler, transport, mode, ct).await
                    }
                };
                (served.map_err(|error| OpenError::from_start(&error))?, None, None)
            }
        };
        let end = guard.disarm();
        let peer = running.peer().clone();
        let last_words = process.as_ref().map(Process::last_words);
        let ended = CancellationToken::new();
        tokio::spawn(keep(running, process, ended.clone()));
        hear_of_changes(&peer, &ours, &end);
        let (server, challenge, opened) = (server.clone(), Mutex::default(), Instant::now());
        Ok(Self { server, peer, ours, end, ended, last_words, burst, challenge, opened })
    }

    /// Whether it can be used.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.ended.is_cancelled() && !self.end.is_cancelled() && !self.peer.is_transport_closed()
    }

    /// How long it has been there.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Calls under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.ours.in_flight.load(Ordering::Relaxed)
    }

    /// Ends it, and waits until all that belongs to it has ended.
    pub async fn close(&self) {
        self.end.cancel();
        self.closed().await;
    }

    /// Waits until it has ended.
    pub async fn closed(&self) {
        self.ended.cancelled().await;
    }

    /// Waits until the server says that its tools have changed, or the connection has ended. False if it has ended.
    pub async fn changed(&self) -> bool {
        tokio::select! {
            () = self.ours.became_stale.notified() => true,
            () = self.ended.cancelled() => false,
        }
    }

    /// Whether what was listed may be out of date.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.ours.stale.load(Ordering::Acquire)
    }

    /// What the server can do beside tools: list resources, list prompts.
    #[must_use]
    pub fn offers(&self) -> (bool, bool) {
        self.peer
            .peer_info()
            .map_or((false, false), |info| (info.capabilities.resources.is_some(), info.capabilities.prompts.is_some()))
    }

    /// What the server asked for when it last refused us for want of a right (`WWW-Authenticate`).
    #[must_use]
    pub fn challenge(&self) -> Option<String> {
        self.challenge.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its tools, for whoever is no executor.
    ///
    /// # Errors
    /// If the server does not give them.
    pub async fn list(&self) -> Result<Vec<Tool>, OpenError> {
        self.tools().await.map_err(OpenError::of_call)
    }

    /// Calls a tool, for whoever is no executor. A tool that says that it failed has answered.
    ///
    /// # Errors
    /// If the server does not answer as it should.
    pub async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        caller: Arc<dyn Caller>,
    ) -> Result<(), OpenError> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(Request::new(params));
        let within = self.server.timeouts.call.std();
        self.request(request, caller, within, &CancellationToken::new()).await.map(drop).map_err(OpenError::of_call)
    }

    /// Its tools, at most a few more than may be offered.
    pub(super) async fn tools(&self) -> Result<Vec<Tool>, ToolError> {
        self.ours.stale.store(false, Ordering::Release);
        if self.peer.peer_info().is_none_or(|info| info.capabilities.tools.is_none()) {
            return Ok(Vec::new());
        }
        let most = self.server.limits.tools.saturating_mul(4);
        let listing = async {
            let (mut tools, mut cursor) = (Vec::new(), None);
            for _ in 0..MAX_PAGES {
                let page = self.peer.list_tools(page(cursor)).await?;
                tools.extend(page.tools);
                cursor = page.next_cursor;
                if cursor.is_none() || tools.len() >= most {
                    break;
                }
            }
            Ok(tools)
        };
        let listed = tokio::time::timeout(LIST_WITHIN, listing).await;
        let listed = listed.unwrap_or(Err(ServiceError::Timeout { timeout: LIST_WITHIN }));
        listed.map_err(|error| {
            self.ours.stale.store(true, Ordering::Release);
            ToolError { happened: Happened::No, ..self.failed(&error) }
        })
    }

    /// Its prompts, by name.
    pub(super) async fn prompts(&self) -> Result<Vec<Prompt>, ServiceError> {
        let (mut prompts, mut cursor) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = self.peer.list_prompts(page(cursor)).await?;
            prompts.extend(page.prompts);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(prompts)
    }

    pub(super) const fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    /// Sends a request on behalf of a caller, and waits for its result for `timeout`, in which the time of questions to a
    /// person does not count. Whatever ends it early, the server is told.
    pub(super) async fn request(
        &self,
        request: ClientRequest,
        caller: Arc<dyn Caller>,
        timeout: Duration,
        cancelled: &CancellationToken,
    ) -> Result<ServerResult, ToolError> {
        let sent = self.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let handle = sent.map_err(|error| self.failed(&error))?;
        let (asking, mut watched) = watch::channel(0);
        let flight = Flight { token: handle.progress_token.clone(), caller, asking };
        let mut departed = Departed::new(self.ours.clone(), handle, flight);
        let mut left = timeout;
        let gone = loop {
            let (began, stands) = (Instant::now(), *watched.borrow_and_update() > 0);
            let Some(handle) = departed.handle.as_mut() else { break "it is over" };
            tokio::select! {
                answer = &mut handle.rx => {
                    departed.handle = None;
                    let answer = answer.unwrap_or(Err(ServiceError::TransportClosed));
                    return answer.map_err(|error| self.failed(&error));
                }
                () = tokio::time::sleep(left), if !stands => break "timeout",
                () = cancelled.cancelled() => break "cancelled",
                _ = watched.changed() => {}
            }
            left = if stands { left } else { left.saturating_sub(began.elapsed()) };
        };
        departed.abandon(gone).await;
        Err(match gone {
            "timeout" => ToolError::transient("timeout", format!("no answer within {timeout:?}"), Happened::Unknown),
            _ => ToolError { happened: Happened::Unknown, ..ToolError::final_("cancelled", "it was cancelled") },
        })
    }

    /// What it means that a request got no result, with what is known of the server's end.
    pub(super) fn failed(&self, error: &ServiceError) -> ToolError {
        if let Some(challenge) = error.auth_challenge() {
            *self.challenge.lock().unwrap_or_else(PoisonError::into_inner) = Some(challenge.to_owned());
        }
        if error::loses_session(error) {
            // Nothing can come of it any more: whoever needs the server next opens a new one.
            self.end.cancel();
        }
        let mut error = error::of_request(error);
        if self.burst.as_ref().is_some_and(|burst| burst.load(Ordering::Relaxed)) {
            error.code = "too_large";
            error.message =
                format!("it sent a message of more than {} bytes and was stopped", self.server.limits.message_bytes);
            error.again = None;
        } else if error.code == "server_died" {
            let last = self.last_words.as_ref().map(LastWords::text).filter(|words| !words.is_empty());
            let last =
                last.map(|words| format!("; its last words: {}", words::clean(&words, LOG_WORDS))).unwrap_or_default();
            error.message = format!("the server went away in the middle of it{last}");
        }
        error
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn page(cursor: Option<String>) -> Option<PaginatedRequestParams> {
    cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)))
}

fn said(mut error: OpenError, last_words: &LastWords, secrets: &Secrets) -> OpenError {
    let last = last_words.text();
    if !last.is_empty() {
        error.words = format!("{}; it said: {}", error.words, words::clean(&secrets.redact(&last), LOG_WORDS));
    }
    error
}

fn lifecycle(handshake: Handshake) -> ClientLifecycleMode {
    let newest = || vec![ProtocolVersion::V_2026_07_28];
    match handshake {
        Handshake::Initialize => ClientLifecycleMode::Initialize,
        Handshake::Discover => ClientLifecycleMode::Discover { preferred_versions: newest() },
        Handshake::Auto => ClientLifecycleMode::Auto { preferred_versions: newest(), legacy_version: None },
    }
}

/// Stays until the connection ends, and ends what belongs to it.
async fn keep(running: RunningService<RoleClient, Handler>, process: Option<Process>, ended: CancellationToken) {
    // It can't fail in a way that matters here: it is over.
    let _ = running.waiting().await;
    if let Some(process) = process {
        process.end().await;
    }
    ended.cancel();
}
