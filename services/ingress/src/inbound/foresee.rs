//! What an event would do if it came now. The same questions are asked as when one comes, and nothing is written.

use bus::CloudEvent;
use engine::{AgentTrigger, EngineError, RecordedExternal, WaitMatch, wants_type};
use kernel::agent::{Debounce, Trigger};
use kernel::event::ExternalRef;
use kernel::{TenantId, Timestamp, wait};

use super::Inbound;
use crate::api::triggers::{TriggerVerdict, WaitVerdict, Would};

/// What an event would do.
pub(crate) struct Foreseen {
    /// One for each trigger of each agent.
    pub triggers: Vec<TriggerVerdict>,
    /// One for each wait about the resource, of the type.
    pub waits: Vec<WaitVerdict>,
}

impl Inbound {
    pub(crate) async fn foresee(
        &self,
        tenant: &TenantId,
        source: &str,
        event: &CloudEvent,
    ) -> Result<Foreseen, EngineError> {
        let supposed = RecordedExternal {
            tenant: tenant.clone(),
            external: ExternalRef {
                // After all that there are.
                position: i64::MAX,
                source: source.to_owned(),
                id: event.id.clone(),
                event_type: event.event_type.clone(),
                resource_key: wait::resource_key(source, event.subject.as_deref().unwrap_or_default()),
                traceparent: None,
            },
            event: event.to_json(),
            received_at: Timestamp::now(),
            is_new: true,
            dispatched: false,
        };
        let matches = self.externals.matching(&supposed, None).await?;
        let waits: Vec<_> = matches.iter().map(|wait| self.foresee_wait(wait, &supposed)).collect();
        let mut triggers = Vec::new();
        for trigger in self.runs.agents().triggers(tenant).await?.iter() {
            let Some(rule) = trigger.trigger() else { continue };
            let woken = rule.wake && self.is_waited_for(tenant, &trigger.agent.name, &waits).await?;
            triggers.push(foresee_trigger(trigger, rule, &supposed, woken));
        }
        Ok(Foreseen { triggers, waits })
    }

    /// Whether one of the waits that take the event is of a run of this agent.
    async fn is_waited_for(&self, tenant: &TenantId, agent: &str, waits: &[WaitVerdict]) -> Result<bool, EngineError> {
        for wait in waits.iter().filter(|wait| wait.takes) {
            if self.engine.reads().run(tenant, wait.run_id).await?.is_some_and(|run| run.agent == agent) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn foresee_wait(&self, found: &WaitMatch, supposed: &RecordedExternal) -> WaitVerdict {
        let verdict = |takes, why: String| WaitVerdict { run_id: found.run_id, wait_id: found.wait_id, takes, why };
        let key = &supposed.external.resource_key;
        let Some(source) = &found.filter else {
            return verdict(true, format!("it waits for `{}` of `{key}`", found.event_type));
        };
        match self.filter(source).and_then(|filter| filter.matches(&supposed.event)) {
            Ok(true) => verdict(true, format!("it waits for `{}` of `{key}` where {source}", found.event_type)),
            Ok(false) => verdict(false, format!("`{source}` does not hold")),
            Err(error) => verdict(false, format!("`{source}`: {error}")),
        }
    }
}

fn foresee_trigger(trigger: &AgentTrigger, rule: &Trigger, supposed: &RecordedExternal, woken: bool) -> TriggerVerdict {
    let verdict = |would, why: String, key| TriggerVerdict {
        agent: trigger.agent.name.clone(),
        on: rule.on.clone(),
        would,
        why,
        key,
    };
    let event_type = &supposed.external.event_type;
    if !wants_type(&rule.on, event_type) {
        return verdict(Would::Nothing, format!("it is for `{}`, and this is `{event_type}`", rule.on), None);
    }
    if let (Some(filter), Some(source)) = (&trigger.filter, &rule.filter) {
        match filter.matches(&supposed.event) {
            Ok(true) => {}
            Ok(false) => return verdict(Would::Nothing, format!("`{source}` does not hold"), None),
            Err(error) => return verdict(Would::Nothing, format!("`{source}`: {error}"), None),
        }
    }
    let met = match &rule.filter {
        Some(source) => format!("on `{}` where {source}", rule.on),
        None => format!("on `{}`", rule.on),
    };
    if let Some(service) = &rule.signal {
        return verdict(Would::Record, format!("{met}: a record in the log of `{service}`"), None);
    }
    if woken {
        return verdict(Would::Wake, format!("{met}: a run of the agent waits for it"), None);
    }
    if !rule.holds_back() {
        return verdict(Would::Start, met, None);
    }
    match engine::gathering_key(trigger, &supposed.event) {
        Ok(key) => {
            let words = format!("{met}: {}, by the key `{key}`", how_held_back(rule));
            verdict(Would::HoldBack, words, Some(key))
        }
        Err(error) => {
            let words = format!("{met}: {}; the key can't be had, and counts as empty: {error}", how_held_back(rule));
            verdict(Would::HoldBack, words, Some(String::new()))
        }
    }
}

/// What a trigger does before it starts a run, in words.
pub(crate) fn how_held_back(rule: &Trigger) -> String {
    let debounce = rule.debounce.map(|debounce: Debounce| {
        format!(
            "starts {} after the last event, {} after the first at the latest",
            debounce.quiet(),
            debounce.at_most()
        )
    });
    let batch = rule.batch.map(|batch| format!("gathers {} events, or for {}", batch.size, batch.within));
    let throttle = rule.throttle.map(|throttle| format!("starts {} runs in {} at most", throttle.runs, throttle.per));
    let concurrency = rule.concurrency.map(|most| format!("has {most} runs under way at most"));
    [debounce, batch, throttle, concurrency].into_iter().flatten().collect::<Vec<_>>().join("; ")
}
