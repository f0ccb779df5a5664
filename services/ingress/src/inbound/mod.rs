//! Events from outside: recorded once, then brought to the waits that want them and to the triggers that they meet.
//!
//! Recording and dispatching are two steps, and whoever does the first may die before the second: everything in the second
//! is named by the event's place, so that doing it again changes nothing. [`sweep`] does it again.

mod consumer;
mod deliver;
mod foresee;
mod signal;
mod sweep;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bus::{CloudEvent, Headers, Publisher, subject};
use engine::{
    AgentTrigger, Engine, EngineError, Externals, Filter, FilterError, Gatherings, RecordError, RecordedExternal,
    SubmitError, WaitMatch, triggered_run_id,
};
use kernel::budget::Limits;
use kernel::{Block, Rejection, TenantId, Timestamp, Trust, excerpt};
use serde_json::Value;
use service::telemetry::Tracer;
use tokio::sync::Semaphore;

use crate::runs::{NewRun, Runs};

pub(crate) use consumer::handle;
pub(crate) use foresee::Foreseen;
pub(crate) use sweep::sweep;

/// Most bytes of an event that a run is given; the whole of it stays in the table of outside events.
const EVENT_BYTES: usize = 16 * 1024;
/// Most events that are dispatched behind their answers at once; beyond, whoever hands one in waits for it.
const BEHIND: usize = 256;
/// Most compiled filters of waits that are kept.
const FILTERS: usize = 1024;

/// Takes in events from outside. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Inbound {
    engine: Engine,
    externals: Externals,
    gatherings: Gatherings,
    runs: Runs,
    tracer: Tracer,
    publisher: Publisher,
    filters: Arc<Mutex<HashMap<String, Filter>>>,
    /// Room for events that are dispatched behind their answers.
    behind: Arc<Semaphore>,
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
        Self {
            engine: engine.clone(),
            externals,
            gatherings: engine.gatherings(),
            runs,
            tracer,
            publisher,
            filters: Arc::default(),
            behind: Arc::new(Semaphore::new(BEHIND)),
        }
    }

    /// Whether an event can be taken, as far as it depends on the event.
    pub(crate) fn check(source: &str, event: &CloudEvent) -> Result<(), AcceptError> {
        if source == engine::OBSERVER {
            return Err(AcceptError::Reserved);
        }
        Ok(Externals::check(source, event)?)
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
        let (recorded, matches) = self.record(tenant, source, event, traceparent).await?;
        let accepted = Accepted { position: recorded.external.position, duplicate: !recorded.is_new };
        self.try_dispatch(&recorded, matches).await;
        Ok(accepted)
    }

    /// As [`Inbound::accept`], but comes back once the event is recorded: what it leads to happens behind the answer.
    pub(crate) async fn accept_later(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
        traceparent: Option<&str>,
    ) -> Result<Accepted, AcceptError> {
        let (recorded, matches) = self.record(tenant, source, event, traceparent).await?;
        let accepted = Accepted { position: recorded.external.position, duplicate: !recorded.is_new };
        match Arc::clone(&self.behind).try_acquire_owned() {
            Ok(room) => {
                let inbound = self.clone();
                // If the process ends first, the sweep does it.
                tokio::spawn(async move {
                    inbound.try_dispatch(&recorded, matches).await;
                    drop(room);
                });
            }
            Err(_) => self.try_dispatch(&recorded, matches).await,
        }
        Ok(accepted)
    }

    async fn record(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
        traceparent: Option<&str>,
    ) -> Result<(RecordedExternal, Vec<WaitMatch>), AcceptError> {
        Self::check(source, event)?;
        let (recorded, matches) = self.externals.record_and_match(tenant, source, event, traceparent).await?;
        let outcome = if recorded.is_new { "new" } else { "duplicate" };
        metrics::counter!("ingress_events_total", "outcome" => outcome).increment(1);
        Ok((recorded, matches))
    }

    /// Dispatches an event unless that was done. One that fails is left to the sweep.
    async fn try_dispatch(&self, recorded: &RecordedExternal, matches: Vec<WaitMatch>) {
        if !recorded.dispatched
            && let Err(error) = self.dispatch(recorded, matches).await
        {
            let position = recorded.external.position;
            let error = &error as &dyn std::error::Error;
            tracing::warn!(position, error, "an event is recorded and will be dispatched later");
        }
    }

    /// Brings a recorded event to waits and triggers. `matches` are the first of the waits. What fails does not keep it from the
    /// others; the event then stays undispatched, and the sweep does again what is left.
    async fn dispatch(&self, recorded: &RecordedExternal, matches: Vec<WaitMatch>) -> Result<(), SubmitError> {
        self.tell_executors(recorded).await;
        let delivered = self.bring_to_waits(recorded, matches).await;
        let started = self.bring_to_triggers(recorded).await;
        delivered.and(started)?;
        self.externals.mark_dispatched(recorded.external.position).await?;
        Ok(())
    }

    /// What goes on elsewhere may be called back about; whoever follows it then asks how it stands. Not heard, it is asked later.
    async fn tell_executors(&self, recorded: &RecordedExternal) {
        let subject = subject::svc("tool-executor", "happened");
        let resource = &recorded.external.resource_key;
        let body = serde_json::json!({ "tenant": recorded.tenant, "resource": resource }).to_string();
        if let Err(error) = self.engine.bus().publish_core(&subject, Headers::new(), body).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "executors were not told of an event");
        }
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
        let rule = trigger.trigger();
        if rule.is_some_and(|rule| rule.wake)
            && self.gatherings.is_taken(&recorded.tenant, &agent.name, external).await?
        {
            metrics::counter!("ingress_triggers_total", "outcome" => "woke").increment(1);
            return Ok(());
        }
        if rule.is_some_and(kernel::agent::Trigger::holds_back) {
            return self.hold_back(recorded, trigger).await;
        }
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
            roles: Vec::new(),
            traceparent: None,
        };
        match self.runs.create(new, &agent.spec, &agent.digest).await {
            Ok(_) | Err(SubmitError::Rejected(Rejection::RunExists | Rejection::Ended(_))) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Leaves the start to whoever begins those that are held back, when they may.
    async fn hold_back(&self, recorded: &RecordedExternal, trigger: &AgentTrigger) -> Result<(), SubmitError> {
        let key = engine::gathering_key(trigger, &recorded.event).unwrap_or_else(|error| {
            metrics::counter!("ingress_filter_errors_total", "of" => "key").increment(1);
            let (agent, position) = (&trigger.agent.name, recorded.external.position);
            tracing::warn!(agent, trigger = trigger.index, position, %error, "a trigger's key can't be had from an event");
            String::new()
        });
        self.gatherings.add(recorded, trigger, &key, Timestamp::now()).await?;
        metrics::counter!("ingress_triggers_total", "outcome" => "held_back").increment(1);
        Ok(())
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
