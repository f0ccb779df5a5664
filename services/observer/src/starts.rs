//! Calls that have started and said nothing: their silence begins with the start.
//!
//! A message is held until output has come or the silence is long enough. It counts as no attempt, is taken over by another
//! instance if this one dies, and needs no other memory.

use std::time::Duration;

use bus::{Bus, BusError, ConsumeOptions, Consuming, Delivery, HandlerResult, Outcome, Subject};
use engine::{Engine, EngineError};
use kernel::{RunState, Timestamp, event::ToolStarted, tool::CallKind, units};
use tokio_util::sync::CancellationToken;

use crate::{
    book::RuleBook,
    call::{Desk, Tracked, root},
    conclude::Watch,
    miners::Source,
    signal::Address,
    tell::Teller,
    windows::CallWindows,
};

/// How often it is looked whether output has come.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// What is held at the end is given back at once: a handler that has begun needs no longer than this.
const DRAIN: Duration = Duration::from_secs(1);
/// Calls that may be held at once; as many as the server hands out.
const HELD: usize = 4096;

/// Hears of starts.
#[derive(Clone)]
pub(crate) struct Starts {
    pub(crate) engine: Engine,
    pub(crate) desk: Desk,
    pub(crate) book: RuleBook,
    pub(crate) teller: Teller,
    pub(crate) windows: CallWindows,
}

impl Starts {
    /// Listens until told to stop.
    pub(crate) fn listen(self, bus: &Bus, stop: CancellationToken) -> Result<Consuming, BusError> {
        let options = ConsumeOptions { concurrency: HELD, drain: DRAIN, ..ConsumeOptions::default() };
        let handler = move |delivery: Delivery| {
            let starts = self.clone();
            async move { starts.handle(&delivery).await }
        };
        bus.consume("observer-events", options, handler, stop)
    }

    async fn handle(&self, delivery: &Delivery) -> HandlerResult {
        let Ok(Subject::Event { entity, verb, tenant, run }) = Subject::parse(&delivery.subject) else {
            return Ok(Outcome::dead("its subject is no event's"));
        };
        if (entity.as_str(), verb.as_str()) != ("tool", "started") {
            return Ok(Outcome::Ack);
        }
        let started: ToolStarted = match delivery.json() {
            Ok(started) => started,
            Err(error) => return Ok(Outcome::dead(error.to_string())),
        };
        let (Ok(tenant), Ok(run_id)) = (tenant.parse(), run.parse()) else {
            return Ok(Outcome::dead("its subject names no run"));
        };
        let seq = delivery.headers.get("ce-id").and_then(|id| id.rsplit('-').next()?.parse().ok()).unwrap_or(0);
        let address = Address { tenant, run_id, call_id: started.call_id };
        let looked = match self.windows.open(&address, seq).await {
            Ok(()) => self.look(&address, seq).await,
            Err(error) => Err(error),
        };
        match looked {
            Ok(None) => Ok(Outcome::Ack),
            Ok(Some(after)) => Ok(Outcome::Defer { after: Some(after), reason: "no output yet".to_owned() }),
            Err(error) if error.is_transient() => Ok(Outcome::defer(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is more to wait for, and how long.
    async fn look(&self, address: &Address, seq: kernel::Seq) -> Result<Option<Duration>, EngineError> {
        let is_open = |run: &RunState| !run.ended && run.calls.contains_key(&address.call_id);
        let Some(run) = self.engine.load_at_least(address.run_id, seq, is_open).await? else { return Ok(None) };
        let Some(call) = run.calls.get(&address.call_id).filter(|_| !run.ended) else { return Ok(None) };
        if call.request.kind != CallKind::Activity {
            return Ok(None);
        }
        let tool = call.request.tool.clone();
        let rules = self.book.rules(&run, &tool).await?;
        let Some(silence) = rules.silence else { return Ok(None) };
        // Once there is output, the reader of its partition listens to its silence.
        if !self.desk.checkpoints(&[address.call_id]).await?.is_empty() {
            return Ok(None);
        }
        let started_at = call.started_at.unwrap_or(run.updated_at);
        let millis = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        let due = units::later(started_at, units::Duration::from_millis(millis));
        let now = Timestamp::now();
        if now < due {
            let left = Duration::try_from(due.duration_since(now)).unwrap_or(LOOK_EVERY);
            return Ok(Some(left.min(LOOK_EVERY)));
        }
        let mut watch = Watch::new(address.call_id, &tool, started_at);
        let reports = watch.due(&rules, now);
        let (address, traceparent) = (address.clone(), root(&run));
        let call = Tracked {
            address,
            source: Source::new(&run, &tool),
            tool,
            rules,
            watch,
            // It has said nothing.
            gate: None,
            traceparent,
            cause: Some(seq).filter(|seq| *seq > 0),
            stream_seq: 0,
            is_dirty: false,
        };
        for report in reports {
            self.teller.tell(&call, report).await;
        }
        Ok(None)
    }
}
