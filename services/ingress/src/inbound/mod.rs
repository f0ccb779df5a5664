//! Events from outside: recorded once, then brought to the waits that want them and to the triggers that they meet.
//!
//! Recording and dispatching are two steps, and whoever does the first may die before the second: everything in the second
//! is named by the event's place, so that doing it again changes nothing. [`sweep`] does it again.

mod consumer;
mod deliver;
mod signal;
mod sweep;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bus::{CloudEvent, Publisher};
use engine::{
    AgentTrigger, Engine, EngineError, Externals, Filter, FilterError, RecordError, RecordedExternal, SubmitError,
    WaitMatch,
};
use kernel::budget::Limits;
use kernel::{Block, Rejection, TenantId, Trust, excerpt};
use serde_json::Value;
use service::telemetry::Tracer;

use crate::runs::{NewRun, Runs, triggered_run_id};

pub(crate) use consumer::handle;
pub(crate) use sweep::sweep;

/// Most bytes of an event that a run is given; the whole of it stays in the table of outside events.
const EVENT_BYTES: usize = 16 * 1024;
/// Most compiled filters of waits that are kept.
const FILTERS: usize = 1024;

/// Takes in events from outside. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Inbound {
    engine: Engine,
    externals: Externals,
    runs: Runs,
    tracer: Tracer,
    publisher: Publisher,
    filters: Arc<Mutex<HashMap<String, Filter>>>,
}

/// An event that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Its place among all events from outside.
    pub position: i64,
    /// Whether it had come before.
    pub duplicate: bool,
}

/// Why an event was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcceptError {
    /// It speaks as somebody else.
    #[error("the source `{}` is the observer's own", engine::OBSERVER)]
    Reserved,
    /// It can't be a key.
    #[error("{0}")]
    KeyTooLong(String),
    /// The stores did not take it.
    #[error(transparent)]
    Store(#[from] EngineError),
}

impl From<RecordError> for AcceptError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Engine(error) => Self::Store(error),
            error @ RecordError::KeyTooLong { .. } => Self::KeyTooLong(error.to_string()),
        }
    }
}

impl Inbound {
    pub(crate) fn new(engine: &Engine, runs: Runs, tracer: Tracer) -> Self {
        let externals = engine.externals();
        let publisher = engine.bus().publisher();
        Self { engine: engine.clone(), externals, runs, tracer, publisher, filters: Arc::default() }
    }

    /// Records the event, and dispatches it unless that was done before. Once it is recorded it counts as taken: a dispatch
    /// that fails now is made up for by the sweep.
    pub(crate) async fn accept(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
        traceparent: Option<&str>,
    ) -> Result<Accepted, AcceptError> {
        if source == engine::OBSERVER {
            return Err(AcceptError::Reserved);
        }
        let (recorded, matches) = self.externals.record_and_match(tenant, source, event, traceparent).await?;
        let accepted = Accepted { position: recorded.external.position, duplicate: !recorded.is_new };
        let outcome = if recorded.is_new { "new" } else { "duplicate" };
        metrics::counter!("ingress_events_total", "outcome" => outcome).increment(1);
        if !recorded.dispatched
            && let Err(error) = self.dispatch(&recorded, matches).await
        {
            let position = accepted.position;
            tracing::warn!(
                position,
                error = &error as &dyn std::error::Error,
                "an event is recorded and will be dispatched later"
            );
        }
        Ok(accepted)
    }

    /// Brings a recorded event to waits and triggers. `matches` are the first of the waits. What fails does not keep it from the
    /// others; the event then stays undispatched, and the sweep does again what is left.
    async fn dispatch(&self, recorded: &RecordedExternal, matches: Vec<WaitMatch>) -> Result<(), SubmitError> {
        let delivered = self.bring_to_waits(recorded, matches).await;
        let started = self.bring_to_triggers(recorded).await;
        delivered.and(started)?;
        self.externals.mark_dispatched(recorded.external.position).await?;
        Ok(())
    }

    async fn bring_to_triggers(&self, recorded: &RecordedExternal) -> Result<(), SubmitError> {
        let triggers = self.runs.agents().triggers(&recorded.tenant).await?;
        let mut result = Ok(());
        for trigger in triggers.iter() {
            if is_met(trigger, recorded) {
                result = result.and(self.start(recorded, trigger).await);
            }
        }
        result
    }

    fn is_wanted(&self, found: &WaitMatch, recorded: &RecordedExternal) -> bool {
        let Some(source) = &found.filter else { return true };
        let outcome = self.filter(source).and_then(|filter| filter.matches(&recorded.event));
        outcome.unwrap_or_else(|error| {
            metrics::counter!("ingress_filter_errors_total", "of" => "wait").increment(1);
            let position = recorded.external.position;
            tracing::warn!(run_id = %found.run_id, position, %error, "a wait's filter can't be used on an event");
            false
        })
    }

    fn filter(&self, source: &str) -> Result<Filter, FilterError> {
        let mut filters = self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filter) = filters.get(source) {
            return Ok(filter.clone());
        }
        let filter = Filter::compile(source)?;
        if filters.len() >= FILTERS {
            filters.clear();
        }
        filters.insert(source.to_owned(), filter.clone());
        Ok(filter)
    }

    /// Starts the run of a trigger.
    async fn start(&self, recorded: &RecordedExternal, trigger: &AgentTrigger) -> Result<(), SubmitError> {
        let (agent, external) = (&trigger.agent, &recorded.external);
        if let Some(service) = trigger.trigger().and_then(|trigger| trigger.signal.as_deref()) {
            let name = format!("{}/{}/{}", external.position, agent.name, trigger.index);
            return signal::publish(&self.publisher, recorded, service, &name).await;
        }
        let Some(start) = trigger.start() else { return Ok(()) };
        let run_id =
            triggered_run_id(&recorded.tenant, external.position, recorded.received_at, &agent.name, trigger.index);
        let new = NewRun {
            run_id,
            tenant: recorded.tenant.clone(),
            objective: Block::new(&start.input, Trust::Operator, format!("agent:{}", agent.name)),
            input: event_block(recorded),
            acceptance: Vec::new(),
            limits: Limits::default(),
            conversation_id: None,
            metadata: serde_json::Map::new(),
            trigger: Some(external.clone()),
            operator: None,
            traceparent: None,
        };
        match self.runs.create(new, &agent.spec, &agent.digest).await {
            Ok(_) | Err(SubmitError::Rejected(Rejection::RunExists | Rejection::Ended(_))) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn is_met(trigger: &AgentTrigger, recorded: &RecordedExternal) -> bool {
    if !trigger.wants(&recorded.external.source, &recorded.external.event_type) {
        return false;
    }
    let outcome = trigger.filter.as_ref().map_or(Ok(true), |filter| filter.matches(&recorded.event));
    outcome.unwrap_or_else(|error| {
        metrics::counter!("ingress_filter_errors_total", "of" => "trigger").increment(1);
        let (agent, position) = (&trigger.agent.name, recorded.external.position);
        tracing::warn!(agent, trigger = trigger.index, position, %error, "a trigger's filter can't be used on an event");
        false
    })
}

/// What the event says, as data.
fn event_block(recorded: &RecordedExternal) -> Block {
    let text = pretty(&recorded.event);
    let source = format!("event:{}/{}", recorded.external.source, recorded.external.id);
    Block::new(excerpt(&text, EVENT_BYTES), Trust::Untrusted, source)
}

fn pretty(event: &Value) -> String {
    serde_json::to_string_pretty(event).unwrap_or_else(|_| event.to_string())
}
