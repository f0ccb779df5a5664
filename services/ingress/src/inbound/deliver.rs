//! Bringing an event to the waits that want it.
//!
//! A line of waits may be long: it is read in pages, and many deliveries are under way at once, which the engine commits
//! together. Of the exclusive waits one has the event, by a claim (see `engine`'s `externals/claim.rs`).

use std::collections::HashSet;

use engine::{EventClaim, MATCHES, RecordedExternal, SubmitError, WaitMatch};
use futures::{StreamExt as _, stream};
use kernel::command::DeliverExternal;
use kernel::{Cause, Command, Event, EventData, Rejection, RunId, WaitId};
use service::telemetry::{Link, Parent, SpanSpec, genai};

use super::{Inbound, event_block};

/// Deliveries of one event under way at once.
const UNDER_WAY: usize = 256;

/// Which condition of which wait of which run.
type Condition = (RunId, WaitId, u16);

/// How far the exclusive waits are with an event.
#[derive(Default)]
struct Exclusive {
    /// A run has it, or whether one has it can't be found out now.
    is_over: bool,
    /// A claim was given back: who came meanwhile saw the event claimed, and has to be looked for once more.
    was_released: bool,
    /// Those that turned out not to take it.
    passed: HashSet<Condition>,
}

impl Inbound {
    /// Brings a recorded event to the waits that want it. `first` is the first page of them.
    pub(super) async fn bring_to_waits(
        &self,
        recorded: &RecordedExternal,
        first: Vec<WaitMatch>,
    ) -> Result<(), SubmitError> {
        let mut exclusive = Exclusive::default();
        let mut result = self.walk(recorded, first, &mut exclusive).await;
        while std::mem::take(&mut exclusive.was_released) && !exclusive.is_over && result.is_ok() {
            let again = self.externals.matching(recorded, None).await?;
            result = self.walk(recorded, again, &mut exclusive).await;
        }
        result
    }

    /// Goes along the line of waits, page by page.
    async fn walk(
        &self,
        recorded: &RecordedExternal,
        mut page: Vec<WaitMatch>,
        exclusive: &mut Exclusive,
    ) -> Result<(), SubmitError> {
        let mut result = Ok(());
        loop {
            let (alone, shared): (Vec<_>, Vec<_>) =
                page.iter().filter(|wait| self.is_wanted(wait, recorded)).partition(|wait| wait.exclusive);
            result = result.and(self.deliver_all(recorded, shared).await);
            for wait in alone {
                let offered = self.offer(recorded, wait, exclusive).await;
                exclusive.is_over |= offered.is_err();
                result = result.and(offered);
            }
            let last = page.last().filter(|_| page.len() >= MATCHES);
            let Some(last) = last else { return result };
            page = self.externals.matching(recorded, Some(last)).await?;
        }
    }

    async fn deliver_all(&self, recorded: &RecordedExternal, waits: Vec<&WaitMatch>) -> Result<(), SubmitError> {
        let deliveries: Vec<_> = waits.into_iter().map(|wait| self.deliver(recorded, wait)).collect();
        let mut under_way = stream::iter(deliveries).buffer_unordered(UNDER_WAY);
        let mut result = Ok(());
        while let Some(delivered) = under_way.next().await {
            result = result.and(delivered.map(drop));
        }
        result
    }

    /// Offers the event to an exclusive wait, after whoever has a claim on it.
    async fn offer(
        &self,
        recorded: &RecordedExternal,
        wait: &WaitMatch,
        exclusive: &mut Exclusive,
    ) -> Result<(), SubmitError> {
        while !exclusive.is_over && !exclusive.passed.contains(&condition(wait)) {
            let claimer = match self.externals.claim(recorded, wait).await? {
                EventClaim::Won => wait.clone(),
                EventClaim::Held(other) => *other,
                EventClaim::Taken => {
                    exclusive.is_over = true;
                    return Ok(());
                }
                EventClaim::Gone => return Ok(()),
            };
            if self.deliver(recorded, &claimer).await? {
                exclusive.is_over = true;
            } else {
                self.externals.release(recorded, &claimer).await?;
                exclusive.was_released = true;
                exclusive.passed.insert(condition(&claimer));
            }
        }
        Ok(())
    }

    /// Delivers the event to a wait. Tells whether the wait took it, now or before.
    async fn deliver(&self, recorded: &RecordedExternal, wait: &WaitMatch) -> Result<bool, SubmitError> {
        let external = recorded.external.clone();
        let parent = Parent::Ids {
            trace_id: wait.run_id.0.into_bytes(),
            span_id: wait.run_id.root_span_id(),
            sampled: wait.sampled,
        };
        let link = external.traceparent.as_deref().and_then(Link::to);
        let spec = SpanSpec::new("deliver event", parent)
            .attribute(genai::RUN_ID, wait.run_id.to_string())
            .attribute(genai::EVENT_ID, format!("{}/{}", external.source, external.id))
            .attribute("escapement.event.type", external.event_type.clone())
            .link(link);
        let span = self.tracer.span(spec);
        let cause = Cause { service: "ingress".into(), traceparent: Some(span.traceparent()), ..Cause::default() };
        let key = format!("ext/{}/{}/{}", external.position, wait.wait_id, wait.leaf);
        let deliver =
            DeliverExternal { external, wait_id: wait.wait_id, leaf: wait.leaf, block: event_block(recorded) };
        let submitted = self.engine.submit(wait.run_id, Command::DeliverExternal(Box::new(deliver)), key, cause).await;
        match submitted {
            Ok(committed) => {
                let is_match = |event: &Event| matches!(event.data, EventData::ExternalMatched(_));
                Ok(committed.duplicate || committed.events.iter().any(is_match))
            }
            // The run has ended, or is about to: it waits for nothing.
            Err(SubmitError::Rejected(Rejection::Ended(_) | Rejection::Ending | Rejection::NoSuchRun)) => Ok(false),
            Err(error) => {
                span.record_error("not_delivered", &error);
                Err(error)
            }
        }
    }
}

fn condition(wait: &WaitMatch) -> Condition {
    (wait.run_id, wait.wait_id, wait.leaf)
}
