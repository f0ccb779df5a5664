//! Calls whose end is not told yet, since a model or the operator's checks are asked about it first. Meanwhile the partition is read on.
//!
//! Until it is told, the end counts as not read: such a call's checkpoint is the one before its end, and no message from its last
//! one on is acknowledged. Whoever takes over reads the end again and asks again; it counts once.

use std::{collections::HashMap, time::Duration};

use bus::{Bus, BusError, subject};
use engine::ObserverCheckpoint;
use kernel::{CallId, RunId, TenantId, call::Observation, opinion::SecondOpinion};
use serde::Serialize;
use tokio::task::{JoinError, JoinSet};

use crate::{call::Tracked, conclude::Report, meter, tell::Teller};

/// What is asked of the planner, who has the models: `svc.planner.classify`.
#[derive(Serialize)]
struct Question<'a> {
    tenant: &'a TenantId,
    run_id: RunId,
    call_id: CallId,
    packet: &'a Observation,
    traceparent: &'a str,
    /// How long the answer is waited for.
    within_ms: u64,
}

/// Whom to ask. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Adviser {
    bus: Bus,
    within: Duration,
    checks: Duration,
}

/// The calls of a partition about which somebody is asked.
#[derive(Default)]
pub(crate) struct Asking {
    held: HashMap<CallId, Held>,
    tasks: JoinSet<CallId>,
}

struct Held {
    /// The message that ended the call.
    end: u64,
    /// Its state before that, until it is stored.
    before: Option<ObserverCheckpoint>,
}

impl Asking {
    /// From here on the end of this call, which came with the message `end`, counts as not read.
    pub(crate) fn hold(&mut self, call: CallId, end: u64, before: Option<ObserverCheckpoint>) {
        self.held.insert(call, Held { end, before });
    }

    /// Asks about the end of a call that is held, and tells it then.
    pub(crate) fn begin(&mut self, adviser: &Adviser, teller: &Teller, call: Tracked, report: Report) {
        let (adviser, teller) = (adviser.clone(), teller.clone());
        self.tasks.spawn(async move {
            let report = adviser.complete(&call, report).await;
            teller.tell(&call, report).await;
            call.address.call_id
        });
    }

    /// The next call whose end has been told. `None`: there is none.
    pub(crate) async fn next(&mut self) -> Option<Result<CallId, JoinError>> {
        self.tasks.join_next().await
    }

    /// The end of this call has been told.
    pub(crate) fn release(&mut self, call: CallId) {
        self.held.remove(&call);
    }

    /// The states of calls before their ends that are not stored yet.
    pub(crate) fn take_unstored(&mut self) -> impl Iterator<Item = ObserverCheckpoint> {
        self.held.values_mut().filter_map(|held| held.before.take())
    }

    /// Through which message all may be acknowledged, given that all was read through `read`.
    pub(crate) fn through(&self, read: u64) -> u64 {
        self.held.values().map(|held| held.end.saturating_sub(1)).fold(read, u64::min)
    }
}

impl Adviser {
    /// Asks over this bus: waits so long for an opinion, and looks so long for somebody who asks the operator's checks.
    pub(crate) fn new(bus: Bus, within: Duration, checks: Duration) -> Self {
        Self { bus, within, checks }
    }

    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    pub(crate) fn reaches_within(&self) -> Duration {
        self.checks
    }

    /// The report as it is told. What a check keeps from the run's model, no other model is shown either.
    async fn complete(&self, call: &Tracked, report: Report) -> Report {
        if let Some(gate) = &call.gate
            && let Some(why) = self.withheld(gate, call, &report).await
        {
            return report.without_words(&format!("It has ended. What it said is withheld: {why}"));
        }
        let Some(packet) = report.doubt() else { return report };
        let opinion = self.ask(call, packet).await;
        report.with_opinion(&call.tool, opinion)
    }

    /// Asks; whatever goes wrong is told in place of an opinion.
    async fn ask(&self, call: &Tracked, packet: &Observation) -> SecondOpinion {
        let address = &call.address;
        let question = Question {
            tenant: &address.tenant,
            run_id: address.run_id,
            call_id: address.call_id,
            packet,
            traceparent: &call.traceparent,
            within_ms: u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX),
        };
        let asked = self.bus.request_json(&subject::svc("planner", "classify"), &question, self.within).await;
        let opinion = asked.unwrap_or_else(|error: BusError| {
            tracing::warn!(run_id = %address.run_id, call_id = %address.call_id, %error, "no second opinion: the rules' word stands");
            SecondOpinion::none(match error {
                BusError::RequestTimedOut { .. } => "late",
                BusError::Refused { .. } => "refused",
                BusError::Decode { .. } => "garbled",
                _ => "unreachable",
            })
        });
        meter::asked(&opinion);
        opinion
    }
}
