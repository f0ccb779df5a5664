//! A connection to a server: opened, listed, used by several calls at once, and ended with all that belongs to it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine::{Elicitation, Handshake, McpServer, McpTransport};
use futures::future::BoxFuture;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationCapability, ErrorData, FormElicitationCapability, Implementation,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, Prompt, ProtocolVersion, Request, RequestId,
    ServerResult, SubscriptionFilter, TASKS_EXTENSION_ID, Tool,
};
use rmcp::service::{
    ClientLifecycleMode, InboundStreamOrigin, NotificationContext, PeerRequestOptions, RequestContext, RequestHandle,
    RunningService, serve_client_with_lifecycle_and_ct,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientHandler, Peer, RoleClient, ServiceError};
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::error::{self, OpenError};
use super::oauth::{self, Tokens};
use super::stdio::{self, LastWords, Process};
use super::{http, words};
use crate::config::Config;
use crate::outcome::{Happened, ToolError};
use crate::secrets::Secrets;

/// Pages of a list that are read at most.
const MAX_PAGES: usize = 64;
/// How long the list of tools may take after the server said that it changed.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// What is shown of what a server logs.
const LOG_WORDS: usize = 500;

/// What connections are made with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Means {
    secrets: Secrets,
    tokens: Tokens,
    folder: PathBuf,
}

impl Means {
    /// With these secrets; servers that are processes run in folders below `folder`, tokens are kept in `tokens`.
    fn new(secrets: Secrets, tokens: PathBuf, folder: PathBuf) -> Self {
        Self { tokens: Tokens::new(tokens, secrets.clone()), secrets, folder }
    }

    /// As an executor that is configured like this makes them.
    ///
    /// # Errors
    /// If there is no current folder that relative paths could start from.
    pub fn of(config: &Config) -> std::io::Result<Self> {
        let dir = Some(config.secrets_dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
        // What is not text is no secret of ours.
        let env =
            std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self::with(config, Secrets::new(env, dir))
    }

    /// The same, with secrets that are there already.
    pub(crate) fn with(config: &Config, secrets: Secrets) -> std::io::Result<Self> {
        let folder = std::path::absolute(config.common.workspaces.join(".mcp"))?;
        let own = config.secrets_dir.as_os_str().is_empty();
        let tokens = if own { folder.join("tokens") } else { config.secrets_dir.clone() };
        Ok(Self::new(secrets, tokens, folder))
    }

    /// For whoever is no executor: with the secrets of an environment (`ESC_SECRET_<NAME>`).
    #[must_use]
    pub fn standalone(env: impl IntoIterator<Item = (String, String)>, tokens: PathBuf, folder: PathBuf) -> Self {
        let secrets = Secrets::new(env, Some(tokens.clone()));
        Self::new(secrets, tokens, folder)
    }

    /// Where tokens are kept.
    #[must_use]
    pub const fn tokens(&self) -> &Tokens {
        &self.tokens
    }
}

/// A step that a server reports while it works on a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// How far it is.
    pub progress: f64,
    /// Of how much.
    pub total: Option<f64>,
    /// In the server's words.
    pub message: Option<String>,
}

/// What a server wants to know from a person while it works on a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// In the server's words.
    pub message: String,
    /// JSON Schema of the answer: an object of plain values.
    pub schema: Value,
}

impl Form {
    /// The answer as far as the schema itself gives one.
    #[must_use]
    pub fn defaults(&self) -> Value {
        let defaults = self.schema["properties"].as_object().into_iter().flatten();
        let defaults = defaults.filter_map(|(name, field)| Some((name.clone(), field.get("default")?.clone())));
        Value::Object(defaults.collect())
    }
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// This.
    Given(Value),
    /// Nothing, and the server may go on without.
    Declined,
    /// Nothing: nobody was there to ask.
    Nobody,
}

/// Whoever a call is made for.
pub trait Caller: Send + Sync {
    /// Hears of a step.
    fn progress(&self, progress: Progress);
    /// Gets an answer.
    fn answer(&self, form: Form) -> BoxFuture<'_, Answer>;
}

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

/// Our side of a connection.
struct Ours {
    server: Arc<McpServer>,
    config: ClientConfig,
    flights: Mutex<HashMap<RequestId, Flight>>,
    in_flight: AtomicUsize,
    /// The list of tools is not what was read any more.
    stale: AtomicBool,
    became_stale: Notify,
}

/// A call under way.
#[derive(Clone)]
struct Flight {
    token: ProgressToken,
    caller: Arc<dyn Caller>,
    /// How many questions to a person are open: its time stands still meanwhile.
    asking: watch::Sender<usize>,
}

/// Our side, as the library wants it.
#[derive(Clone)]
struct Handler(Arc<Ours>);

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
                        let transport = StreamableHttpClientTransport::with_client(http::client(http)?, config);
                        serve_client_with_lifecycle_and_ct(handler, transport, mode, ct).await
                    }
                    Some(oauth) => {
                        let client = oauth::authorised(server, http, oauth, &url, &means.tokens).await?;
                        let transport = StreamableHttpClientTransport::with_client(client, config);
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

/// Newer servers say what has changed only to those who asked for it.
fn hear_of_changes(peer: &Peer<RoleClient>, ours: &Arc<Ours>, end: &CancellationToken) {
    if peer.peer_info().is_none_or(|info| info.protocol_version.has_initialize()) {
        return;
    }
    let (peer, ours) = (peer.clone(), ours.clone());
    let hearing = async move {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let mut subscription = match peer.listen(filter).await {
            Ok(subscription) => subscription,
            Err(error) => return tracing::debug!(server = ours.server.name, %error, "its changes can't be heard"),
        };
        while let Ok(Some(_)) = subscription.next().await {
            ours.tools_changed();
        }
    };
    tokio::spawn(end.clone().run_until_cancelled_owned(hearing));
}

/// A request that is under way. If it is dropped, the server is told that nobody waits any more.
struct Departed {
    ours: Arc<Ours>,
    handle: Option<RequestHandle<RoleClient>>,
    id: RequestId,
}

impl Departed {
    fn new(ours: Arc<Ours>, handle: RequestHandle<RoleClient>, flight: Flight) -> Self {
        let id = handle.id.clone();
        ours.flights().insert(id.clone(), flight);
        ours.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { ours, handle: Some(handle), id }
    }

    async fn abandon(&mut self, reason: &'static str) {
        if let Some(handle) = self.handle.take()
            && let Err(error) = handle.cancel(Some(reason.to_owned())).await
        {
            tracing::debug!(server = self.ours.server.name, %error, "it could not be told that a call is given up");
        }
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        self.ours.flights().remove(&self.id);
        self.ours.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let (Some(handle), Ok(runtime)) = (self.handle.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(handle.cancel(Some("nobody waits for it any more".to_owned())));
        }
    }
}

impl Ours {
    fn new(server: &Arc<McpServer>) -> Self {
        let mut capabilities = ClientCapabilities::default();
        capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), Default::default())].into());
        if server.elicitation == Elicitation::Ask {
            capabilities.elicitation = Some(
                ElicitationCapability::new().with_form(FormElicitationCapability::new().with_schema_validation(true)),
            );
        }
        let ourselves = Implementation::new("escapement", env!("CARGO_PKG_VERSION"));
        let config =
            ClientConfig::new(capabilities, ourselves).with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
        Self {
            server: server.clone(),
            config,
            flights: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            stale: AtomicBool::new(true),
            became_stale: Notify::new(),
        }
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<RequestId, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tools_changed(&self) {
        self.stale.store(true, Ordering::Release);
        self.became_stale.notify_one();
    }

    /// The call that a request of the server belongs to: the one whose stream it came on, or the only one there is. None: it
    /// can't be told.
    fn flight_of(&self, context: &RequestContext<RoleClient>) -> Option<Flight> {
        let flights = self.flights();
        match context.extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) if flights.contains_key(id) => flights.get(id).cloned(),
            _ => flights.values().next().filter(|_| flights.len() == 1).cloned(),
        }
    }

    async fn ask(&self, request: ElicitRequestParams, flight: Option<Flight>) -> ElicitResult {
        let server = &self.server.name;
        let (
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. },
            Some(flight),
            Elicitation::Ask,
        ) = (request, flight, self.server.elicitation)
        else {
            tracing::info!(
                server,
                "a question of an MCP server is declined: it is off, no form, or of no certain call"
            );
            return ElicitResult::new(ElicitationAction::Decline);
        };
        let schema = serde_json::to_value(requested_schema).unwrap_or_default();
        match flight.answer(Form { message, schema }).await {
            Answer::Given(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content),
            Answer::Declined => ElicitResult::new(ElicitationAction::Decline),
            Answer::Nobody => ElicitResult::new(ElicitationAction::Cancel),
        }
    }
}

impl Flight {
    /// Gets an answer, while the call's time stands still.
    async fn answer(&self, form: Form) -> Answer {
        struct Asking<'a>(&'a watch::Sender<usize>);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|open| *open -= 1);
            }
        }
        self.asking.send_modify(|open| *open += 1);
        let _asking = Asking(&self.asking);
        self.caller.answer(form).await
    }
}

impl ClientHandler for Handler {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let flight = self.0.flight_of(&context);
        let answered = context.ct.run_until_cancelled(self.0.ask(request, flight)).await;
        Ok(answered.unwrap_or_else(|| ElicitResult::new(ElicitationAction::Cancel)))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let caller = {
            let flights = self.0.flights();
            let flight = flights.values().find(|flight| flight.token == params.progress_token);
            flight.map(|flight| flight.caller.clone())
        };
        if let Some(caller) = caller {
            let message = params.message.map(|message| words::clean(&message, LOG_WORDS));
            caller.progress(Progress { progress: params.progress, total: params.total, message });
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.tools_changed();
    }

    #[expect(deprecated, reason = "servers in use still log this way")]
    async fn on_logging_message(
        &self,
        params: rmcp::model::LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let said = words::clean(&params.data.to_string(), LOG_WORDS);
        tracing::debug!(server = self.0.server.name, said, "an MCP server logs");
    }

    fn get_info(&self) -> ClientConfig {
        self.0.config.clone()
    }
}
