//! Telling that a service is not well, or well again: an event like one from outside, recorded once under its own name.
//!
//! Ingress brings it to the runs that wait for it, and starts the run that the agent's file asks for. The observer itself may
//! do neither.

use std::time::Duration;

use bus::{Bus, CloudEvent, Outgoing, subject};
use engine::{
    Alert, EngineError, Externals, HEALTH_FIRING, HEALTH_NOTICED, HEALTH_RECOVERED, OBSERVER, RecordError, Services,
};
use kernel::{TenantId, call::Evidence};
use serde_json::{Value, json};

use super::{health::Change, watches::CompiledWatch};
use crate::meter;

/// Most bytes of evidence in an alarm.
const EVIDENCE_BYTES: usize = 1536;
/// Waits between two tries.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// What the observer says beside runs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Herald {
    bus: Bus,
    externals: Externals,
    services: Services,
}

impl Herald {
    pub(crate) fn new(bus: Bus, externals: Externals, services: Services) -> Self {
        Self { bus, externals, services }
    }

    /// Tells of a change, however long the stores are away: what was seen must not get lost.
    pub(crate) async fn health(
        &self,
        tenant: &TenantId,
        service: &str,
        watch: &CompiledWatch,
        rule: &str,
        change: &Change,
    ) {
        let state = if change.firing { "firing" } else { "recovered" };
        let mut left = EVIDENCE_BYTES;
        let evidence: Vec<Evidence> = change
            .evidence
            .iter()
            .map_while(|line| {
                let taken = (left > 40).then(|| line.evidence(service, rule, left))?;
                left = left.saturating_sub(taken.excerpt.len());
                Some(taken)
            })
            .collect();
        let data = json!({
            "agent": watch.agent, "watch": watch.index, "service": service, "rule": rule, "state": state,
            "since": change.since, "at": change.at, "what": change.what, "evidence": evidence,
        });
        // The same episode has the same name, whoever comes to it and however often.
        let again = if change.firing && change.again { "/again" } else { "" };
        let id = format!(
            "health/{}/{rule}/{service}/{}-{}/{state}{again}",
            watch.agent,
            change.since.as_millisecond(),
            change.episode
        );
        let event_type = match (change.wakes, change.firing) {
            (true, true) => HEALTH_FIRING,
            (true, false) => HEALTH_RECOVERED,
            (false, _) => HEALTH_NOTICED,
        };
        let alert = Alert {
            tenant: tenant.clone(),
            service: service.to_owned(),
            agent: watch.agent.clone(),
            rule: rule.to_owned(),
            state: state.to_owned(),
            since: change.since,
            changed_at: change.at,
            what: change.what.clone(),
        };
        let mut delays = bus::retry::exponential(RETRY_MIN, RETRY_MAX);
        while let Err(error) = self.services.set_alert(&alert).await {
            tracing::warn!(%error, service, rule, "an alarm could not be kept, trying again");
            tokio::time::sleep(delays.next().unwrap_or(RETRY_MAX)).await;
        }
        self.say(tenant, event_type, &id, service, data).await;
        meter::alarm(state, change.wakes);
        tracing::info!(%tenant, service, agent = watch.agent, rule, state, what = change.what, "the health of a service changed");
    }

    /// Records an event under its name and rings for ingress, however long the stores are away.
    pub(crate) async fn say(&self, tenant: &TenantId, event_type: &str, id: &str, subject_of: &str, data: Value) {
        let mut event = CloudEvent::new(id, "urn:escapement:observer", event_type).with_json(data);
        event.subject = Some(subject_of.to_owned());
        event.time = Some(kernel::Timestamp::now());
        let mut delays = bus::retry::exponential(RETRY_MIN, RETRY_MAX);
        loop {
            match self.record(tenant, &event).await {
                Ok(()) => break,
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, id, "what was seen could not be recorded, trying again");
                    tokio::time::sleep(delays.next().unwrap_or(RETRY_MAX)).await;
                }
                Err(error) => {
                    tracing::error!(%error, id, "what was seen can't be recorded");
                    meter::passed_over("not_recorded");
                    return;
                }
            }
        }
        // Only a bell: if it gets lost, ingress finds the event some seconds later.
        let bell = Outgoing::new(subject::in_(tenant, OBSERVER, event_type), "{}");
        if let Err(error) = self.bus.publisher().publish(bell).await {
            tracing::debug!(%error, "could not ring for ingress");
        }
    }

    async fn record(&self, tenant: &TenantId, event: &CloudEvent) -> Result<(), RecordError> {
        self.externals.record(tenant, OBSERVER, event, None).await.map(drop)
    }

    /// Notes that signals are missing. If that can't be noted, the log says so.
    pub(crate) async fn gap(&self, gap: &engine::SignalGap) {
        metrics::counter!("observer_gap_signals_total", "why" => gap.why.clone()).increment(gap.messages);
        tracing::warn!(service = gap.service, messages = gap.messages, why = gap.why, "signals are missing");
        let noted: Result<(), EngineError> = self.services.note_gap(gap).await;
        if let Err(error) = noted {
            tracing::error!(%error, messages = gap.messages, "missing signals could not be noted");
        }
    }
}
