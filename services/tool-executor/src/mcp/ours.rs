//! Our side of a connection: what a server may ask of us, and tell us.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::{Elicitation, McpServer};
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
    ErrorData, FormElicitationCapability, Implementation, ProgressNotificationParam, ProtocolVersion, RequestId,
    SubscriptionFilter, TASKS_EXTENSION_ID,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext};
use rmcp::{ClientHandler, Peer, RoleClient};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::caller::{Answer, Form, Progress};
use super::flight::Flight;
use super::words;

/// What is shown of what a server logs.
pub(super) const LOG_WORDS: usize = 500;

/// Our side of a connection.
pub(super) struct Ours {
    pub server: Arc<McpServer>,
    config: ClientConfig,
    flights: Mutex<HashMap<RequestId, Flight>>,
    pub in_flight: AtomicUsize,
    /// The list of tools is not what was read any more.
    pub stale: AtomicBool,
    pub became_stale: Notify,
}

/// Our side, as the library wants it.
#[derive(Clone)]
pub(super) struct Handler(pub Arc<Ours>);

impl Ours {
    pub fn new(server: &Arc<McpServer>) -> Self {
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

    pub fn flights(&self) -> MutexGuard<'_, HashMap<RequestId, Flight>> {
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

/// Newer servers say what has changed only to those who asked for it.
pub(super) fn hear_of_changes(peer: &Peer<RoleClient>, ours: &Arc<Ours>, end: &CancellationToken) {
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
