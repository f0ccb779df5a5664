//! Bringing an event to the waits that want it.
//!
//! A line of waits may be long: it is read in pages, and many deliveries are under way at once, which the engine commits
//! together. Of the exclusive waits one has the event, by a claim (see `engine`'s `externals/claim.rs`).
//!
//! Events about one thing may be under way at the same time, and a run that takes them one by one would not see the earlier
//! again once it had the later. So each wait is brought the oldest event that it means, of those under way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::{EngineError, EventClaim, MATCHES, RecordedExternal, SubmitError, WaitMatch};
use futures::{StreamExt as _, stream};
use kernel::command::DeliverExternal;
use kernel::{Cause, Command, Event, EventData, Rejection, RunId, WaitId};
use service::telemetry::{Link, Parent, SpanSpec, TraceContext, genai};

use super::{Inbound, event_block};

/// Deliveries of one event under way at once.
const UNDER_WAY: usize = 256;

/// Which condition of which wait of which run.
type Condition = (RunId, WaitId, u16);

/// How far the exclusive waits are with each event, by its place.
type Exclusives = HashMap<i64, Exclusive>;

/// How far the exclusive waits are with an event.
struct Exclusive {
    event: Arc<RecordedExternal>,
    /// A run has it, or whether one has it can't be found out now.
    is_over: bool,
    /// A claim was given back: who came meanwhile saw the event claimed, and has to be looked for once more.
    was_released: bool,
    /// Those that turned out not to take it.
    passed: HashSet<Condition>,
}

impl Exclusive {
    fn new(event: &Arc<RecordedExternal>) -> Self {
        Self { event: Arc::clone(event), is_over: false, was_released: false, passed: HashSet::new() }
    }

    /// The event, if its line has to be walked once more.
    fn take_released(&mut self) -> Option<Arc<RecordedExternal>> {
        (std::mem::take(&mut self.was_released) && !self.is_over).then(|| Arc::clone(&self.event))
    }
}

/// A wait, and the events that it means: oldest first, the last of them the one that is being dispatched.
struct Wanted<'a> {
    wait: &'a WaitMatch,
    events: Vec<Arc<RecordedExternal>>,
}

impl Inbound {
    /// Brings a recorded event to the waits that want it. `first` is the first page of them.
    pub(super) async fn bring_to_waits(
        &self,
        recorded: &RecordedExternal,
        first: Vec<WaitMatch>,
    ) -> Result<(), SubmitError> {
        if first.is_empty() {
            return Ok(());
        }
        let mut exclusives = Exclusives::new();
        self.walk(&Arc::new(recorded.clone()), first, &mut exclusives).await?;
        while let Some(event) = exclusives.values_mut().find_map(Exclusive::take_released) {
            let again = self.externals.matching(&event, None).await?;
            self.walk(&event, again, &mut exclusives).await?;
        }
        Ok(())
    }

    /// Goes along the line of waits, page by page. A delivery that fails does not keep the event from the others.
    async fn walk(
        &self,
        event: &Arc<RecordedExternal>,
        mut page: Vec<WaitMatch>,
        exclusives: &mut Exclusives,
    ) -> Result<(), SubmitError> {
        let mut result = Ok(());
        loop {
            let wanted = self.wanted(event, &page).await?;
            let (alone, shared): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|wanted| wanted.wait.exclusive);
            result = result.and(self.deliver_all(shared).await);
            for wanted in alone {
                result = result.and(self.offer_oldest(&wanted, exclusives).await);
            }
            let last = page.last().filter(|_| page.len() >= MATCHES);
            let Some(last) = last else { return result };
            page = self.externals.matching(event, Some(last)).await?;
        }
    }

    /// Those of the waits that want the event, each with the earlier ones under way that it means as well.
    async fn wanted<'a>(
        &self,
        event: &Arc<RecordedExternal>,
        page: &'a [WaitMatch],
    ) -> Result<Vec<Wanted<'a>>, EngineError> {
        let wants = page.iter().filter(|wait| self.is_wanted(wait, event));
        let mut wanted: Vec<_> = wants.map(|wait| Wanted { wait, events: Vec::new() }).collect();
        let mut place = 0;
        while !wanted.is_empty() {
            let earlier = self.externals.under_way_before(event, place).await?;
            let Some(last) = earlier.last() else { break };
            place = last.external.position;
            for earlier in earlier.into_iter().map(Arc::new) {
                for wanted in &mut wanted {
                    if wanted.wait.is_about(&earlier) && self.is_wanted(wanted.wait, &earlier) {
                        wanted.events.push(Arc::clone(&earlier));
                    }
                }
            }
        }
        wanted.iter_mut().for_each(|wanted| wanted.events.push(Arc::clone(event)));
        Ok(wanted)
    }

    async fn deliver_all(&self, wanted: Vec<Wanted<'_>>) -> Result<(), SubmitError> {
        let deliveries: Vec<_> = wanted.into_iter().map(|wanted| self.deliver_oldest(wanted)).collect();
        let mut under_way = stream::iter(deliveries).buffer_unordered(UNDER_WAY);
        let mut result = Ok(());
        while let Some(delivered) = under_way.next().await {
            result = result.and(delivered);
        }
        result
    }

    /// Delivers the first event that the wait takes. One that its run had before is none.
    async fn deliver_oldest(&self, wanted: Wanted<'_>) -> Result<(), SubmitError> {
        for event in &wanted.events {
            if self.deliver(event, wanted.wait).await? {
                break;
            }
        }
        Ok(())
    }

    /// Offers an exclusive wait the first event that it can have.
    async fn offer_oldest(&self, wanted: &Wanted<'_>, exclusives: &mut Exclusives) -> Result<(), SubmitError> {
        for event in &wanted.events {
            let exclusive = exclusives.entry(event.external.position).or_insert_with(|| Exclusive::new(event));
            let offered = self.offer(event, wanted.wait, exclusive).await;
            exclusive.is_over |= offered.is_err();
            if offered? {
                break;
            }
        }
        Ok(())
    }

    /// Offers an event to an exclusive wait, after whoever has a claim on it. Tells whether this wait took it.
    async fn offer(
        &self,
        event: &RecordedExternal,
        wait: &WaitMatch,
        exclusive: &mut Exclusive,
    ) -> Result<bool, SubmitError> {
        while !exclusive.is_over && !exclusive.passed.contains(&condition(wait)) {
            let claimer = match self.externals.claim(event, wait).await? {
                EventClaim::Won => wait.clone(),
                EventClaim::Held(other) => *other,
                EventClaim::Taken => {
                    exclusive.is_over = true;
                    return Ok(false);
                }
                EventClaim::Gone => return Ok(false),
            };
            if self.deliver(event, &claimer).await? {
                exclusive.is_over = true;
                return Ok(condition(&claimer) == condition(wait));
            }
            self.externals.release(event, &claimer).await?;
            exclusive.was_released = true;
            exclusive.passed.insert(condition(&claimer));
        }
        Ok(false)
    }

    /// Delivers the event to a wait. Tells whether the wait took it, now or before.
    async fn deliver(&self, recorded: &RecordedExternal, wait: &WaitMatch) -> Result<bool, SubmitError> {
        let external = recorded.external.clone();
        let parent = Parent::Span(TraceContext::of_run(wait.run_id, wait.sampled));
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
