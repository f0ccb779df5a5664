//! The calls that are watched: how one is opened, kept and given back.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use engine::{Engine, EngineError, ObserverCheckpoint};
use kernel::{CallId, RunState, Seq, event::EventData};
use serde::{Deserialize, Serialize};
use service::TraceContext;

use crate::{
    book::RuleBook,
    conclude::{Report, Watch},
    meter,
    miners::Source,
    rules::Rules,
    signal::Address,
    withhold::Gate,
};

/// Events before the latest among which the start of a call is looked for.
const LOOK_BACK: u64 = 200;
/// Calls that are remembered as gone, so that what is left of their output is passed over without asking again.
const GONE: usize = 4096;

/// A call that is watched.
#[derive(Debug)]
pub(crate) struct Tracked {
    pub(crate) address: Address,
    pub(crate) tool: String,
    /// Whose lines are its background.
    pub(crate) source: Source,
    pub(crate) rules: Arc<Rules>,
    pub(crate) watch: Watch,
    /// Who is asked whether a model may be told how it ended.
    pub(crate) gate: Option<Gate>,
    /// The span that its observations hang under.
    pub(crate) traceparent: String,
    /// The event that started it.
    pub(crate) cause: Option<Seq>,
    /// The last message that it has seen.
    pub(crate) stream_seq: u64,
    /// It has changed since its checkpoint.
    pub(crate) is_dirty: bool,
}

/// A call as a checkpoint has it.
#[derive(Serialize, Deserialize)]
struct Stored {
    partition: u8,
    traceparent: String,
    cause: Option<Seq>,
    watch: Watch,
}

impl Tracked {
    /// As a checkpoint.
    pub(crate) fn checkpoint(&self, partition: u8) -> Result<ObserverCheckpoint, serde_json::Error> {
        let (traceparent, cause, watch) = (self.traceparent.clone(), self.cause, self.watch.clone());
        let state = serde_json::value::to_raw_value(&Stored { partition, traceparent, cause, watch })?;
        let Address { call_id, run_id, .. } = self.address;
        Ok(ObserverCheckpoint { call_id, run_id, stream_seq: self.stream_seq, state })
    }

    /// Whether somebody may be asked before its end is told.
    pub(crate) fn may_be_asked_about(&self) -> bool {
        self.gate.is_some() || self.watch.is_advised()
    }

    /// Whether somebody is asked before this is told.
    pub(crate) fn is_asked_about(&self, report: &Report) -> bool {
        report.doubt().is_some() || (self.gate.is_some() && matches!(report, Report::Conclude { .. }))
    }
}

/// Opens calls. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Desk {
    engine: Engine,
    book: RuleBook,
}

impl Desk {
    pub(crate) fn new(engine: Engine, book: RuleBook) -> Self {
        Self { engine, book }
    }

    /// Opens a call whose first frame has come, from its checkpoint if there is one. `None`: it has ended, or never was.
    pub(crate) async fn open(
        &self,
        address: &Address,
        traceparent: Option<&str>,
        checkpoint: Option<&ObserverCheckpoint>,
    ) -> Result<Option<Tracked>, EngineError> {
        let Some(run) = self.engine.load(address.run_id).await? else { return Ok(None) };
        let open = run.calls.get(&address.call_id).filter(|_| !run.ended && run.tenant == address.tenant);
        let Some(call) = open else { return Ok(None) };
        let tool = call.request.tool.clone();
        let (rules, gate) = (self.book.rules(&run, &tool).await?, self.book.gate(&run).await?);
        let stored = checkpoint.and_then(read);
        let stream_seq = checkpoint.map_or(0, |checkpoint| checkpoint.stream_seq);
        let (watch, traceparent, cause) = match stored {
            Some(stored) => (stored.watch, stored.traceparent, stored.cause),
            None => {
                let started_at = call.started_at.unwrap_or(run.updated_at);
                let traceparent = traceparent.map_or_else(|| root(&run), str::to_owned);
                let cause = self.started_by(address, &run).await?;
                let watch = Watch::new(address.call_id, &tool, started_at).advised(self.book.is_advised(&run).await?);
                (watch.running(&rules, &command(&call.request.arguments)), traceparent, cause)
            }
        };
        Ok(Some(Tracked {
            address: address.clone(),
            source: Source::new(&run, &tool),
            tool,
            rules,
            watch,
            gate,
            traceparent,
            cause,
            stream_seq,
            is_dirty: false,
        }))
    }

    /// The checkpoints of these calls.
    pub(crate) async fn checkpoints(&self, calls: &[CallId]) -> Result<Vec<ObserverCheckpoint>, EngineError> {
        if calls.is_empty() { Ok(Vec::new()) } else { self.engine.checkpoints().load(calls).await }
    }

    /// The open calls of a partition that have a checkpoint: what an observer takes over from the one before.
    pub(crate) async fn left_behind(&self, partition: u8) -> Result<Vec<Tracked>, EngineError> {
        let (reads, mut after) = (self.engine.reads(), None);
        let mut tracked = Vec::new();
        loop {
            let started = reads.started_calls_after(after, engine::MAX_ROWS).await?;
            let Some(last) = started.last() else { return Ok(tracked) };
            after = Some((last.started_at, last.call_id));
            let activities: HashMap<_, _> =
                started.iter().filter(|call| call.activity).map(|call| (call.call_id, call)).collect();
            let calls: Vec<CallId> = activities.keys().copied().collect();
            let checkpoints = self.checkpoints(&calls).await?;
            for checkpoint in checkpoints.iter().filter(|checkpoint| of_partition(checkpoint, partition)) {
                let Some(call) = activities.get(&checkpoint.call_id) else { continue };
                let address = Address { tenant: call.tenant.clone(), run_id: call.run_id, call_id: call.call_id };
                tracked.extend(self.open(&address, None, Some(checkpoint)).await?);
            }
        }
    }

    /// The `tool.started` behind a call: the last one among the latest events.
    async fn started_by(&self, address: &Address, run: &RunState) -> Result<Option<Seq>, EngineError> {
        let after = run.seq.saturating_sub(LOOK_BACK);
        let most = u32::try_from(LOOK_BACK).unwrap_or(u32::MAX);
        let events = self.engine.reads().events(&address.tenant, address.run_id, after, most).await?;
        let started = events.iter().rev().filter(|event| event.event_type == "tool.started");
        let mut started = started.filter_map(|event| event.decode().ok());
        Ok(started
            .find(|event| matches!(&event.data, EventData::ToolStarted(start) if start.call_id == address.call_id))
            .map(|event| event.seq))
    }
}

/// The run's root span, if nothing nearer is known.
pub(crate) fn root(run: &RunState) -> String {
    TraceContext::of_run(run.run_id, run.sampled).to_string()
}

/// The command that a call runs, as far as its arguments say.
fn command(arguments: &serde_json::Value) -> String {
    match arguments.get("command").or_else(|| arguments.get("cmd")) {
        Some(serde_json::Value::String(command)) => command.clone(),
        Some(serde_json::Value::Array(words)) => {
            words.iter().filter_map(serde_json::Value::as_str).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

fn of_partition(checkpoint: &ObserverCheckpoint, partition: u8) -> bool {
    read(checkpoint).is_some_and(|stored| stored.partition == partition)
}

/// A checkpoint of another version is as good as none: the call is watched anew from what output is still there.
fn read(checkpoint: &ObserverCheckpoint) -> Option<Stored> {
    serde_json::from_str(checkpoint.state.get())
        .inspect_err(|error| {
            tracing::warn!(call = %checkpoint.call_id, %error, "a checkpoint can't be read, the call is watched anew");
            meter::passed_over("checkpoint");
        })
        .ok()
}

/// Calls whose output is passed over.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    known: HashSet<CallId>,
    oldest: VecDeque<CallId>,
}

impl Gone {
    pub(crate) fn add(&mut self, call: CallId) {
        if !self.known.insert(call) {
            return;
        }
        self.oldest.push_back(call);
        if self.oldest.len() > GONE
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub(crate) fn has(&self, call: CallId) -> bool {
        self.known.contains(&call)
    }
}
