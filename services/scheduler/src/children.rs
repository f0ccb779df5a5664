//! Child runs, brought in step with their parents: created when they were asked for, held, let go and ended with them, and
//! settled when they have ended.
//!
//! What is to be done, the two runs say as they stand (`kernel::child::next_step`), and each of it may be done twice. A
//! doorbell has it done at once; whatever rings for nobody, or rang when nobody listened, is found by looking.

use std::time::Duration;

use bus::{Bus, BusError, Message, Subject, Subscription, subject};
use engine::{ChildOutOfStep, Engine, EngineError, Reads, SubmitError};
use futures::{FutureExt as _, StreamExt as _, stream, stream::SelectAll};
use kernel::{
    CallId, Cause, Command, RunId, RunState,
    child::{Step, next_step},
    event::{RunCancelRequested, SubagentStarted},
};
use serde::Deserialize;
use service::telemetry::{Link, Parent, SpanKind, SpanSpec, TraceContext, Tracer, genai};
use tokio_util::sync::CancellationToken;

use crate::{leader::Leader, span_of};

/// Events that may ask for something.
const BELLS: [&str; 7] = [
    "subagent.started",
    "run.cancel_requested",
    "run.paused",
    "run.resumed",
    "run.completed",
    "run.failed",
    "run.cancelled",
];
/// Children that are seen to at once.
const AT_ONCE: usize = 64;
/// Doorbells that are answered together.
const BATCH: usize = 512;
/// Rows that are looked at together.
const PAGE: u32 = 500;
/// Steps of one child in a row: it may have to be created only to be ended.
const MAX_STEPS: usize = 4;

/// What rings.
pub(crate) type Bells = SelectAll<Subscription>;

/// Listens for what may ask for something.
pub(crate) async fn listen(bus: &Bus) -> Result<Bells, BusError> {
    let mut bells = SelectAll::new();
    for event_type in BELLS {
        bells.push(bus.subscribe(&subject::evt_of_type(event_type)).await?);
    }
    Ok(bells)
}

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bell {
    /// At one child of a run.
    Child(ChildOutOfStep),
    /// At the child of a run that has this id.
    Ended { parent: RunId, child: RunId },
    /// At all children of a run.
    Parent(RunId),
}

/// Sees to children.
pub(crate) struct Children {
    engine: Engine,
    reads: Reads,
    tracer: Tracer,
    every: Duration,
    /// Whether runs begin only when they are admitted.
    admits: bool,
}

impl Children {
    pub(crate) fn new(engine: &Engine, tracer: Tracer, every: Duration, max_running: u32) -> Self {
        Self { engine: engine.clone(), reads: engine.reads(), tracer, every, admits: max_running > 0 }
    }

    /// Answers doorbells and looks around until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, mut bells: Bells, stop: CancellationToken) {
        let mut looks = tokio::time::interval(self.every);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(first) = bells.next() => {
                    let mut rung = vec![first];
                    while rung.len() < BATCH
                        && let Some(Some(next)) = bells.next().now_or_never()
                    {
                        rung.push(next);
                    }
                    if leader.leads() {
                        self.answer(&rung).await;
                    }
                }
                _ = looks.tick() => {
                    if leader.leads()
                        && let Err(error) = self.look().await
                    {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "can't look for children that are out of step at the moment");
                    }
                }
            }
        }
    }

    async fn answer(&self, rung: &[Message]) {
        self.see_to_all(rung.iter().filter_map(read)).await;
    }

    async fn look(&self) -> Result<(), EngineError> {
        let mut after = None;
        loop {
            let page = self.reads.children_out_of_step(after, PAGE).await?;
            after = page.last().map(|last| last.child_id);
            let full = page.len() >= PAGE as usize;
            self.see_to_all(page.into_iter().map(Bell::Child)).await;
            if !full {
                return Ok(());
            }
        }
    }

    async fn see_to_all(&self, bells: impl Iterator<Item = Bell>) {
        let seeing: Vec<_> = bells.map(|bell| self.see_to_bell(bell)).collect();
        let mut under_way = stream::iter(seeing).buffer_unordered(AT_ONCE);
        while under_way.next().await.is_some() {}
    }

    /// What fails is found again by looking.
    async fn see_to_bell(&self, bell: Bell) {
        let parent = match bell {
            Bell::Child(child) => child.run_id,
            Bell::Ended { parent, .. } | Bell::Parent(parent) => parent,
        };
        if let Err(error) = self.see_to(parent, bell).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(run_id = %parent, error, "a child could not be brought in step, it is tried again");
        }
    }

    async fn see_to(&self, parent: RunId, bell: Bell) -> Result<(), SubmitError> {
        let Some(state) = self.engine.load(parent).await? else { return Ok(()) };
        let is_meant = |call: CallId, child: RunId| match bell {
            Bell::Child(meant) => meant.call_id == call,
            Bell::Ended { child: ended, .. } => ended == child,
            Bell::Parent(_) => true,
        };
        let known = state.children.iter().map(|(call, child)| (*call, child.child_id));
        let meant: Vec<_> = known.filter(|(call, child)| is_meant(*call, *child)).collect();
        let tending: Vec<_> = meant.into_iter().map(|(call, child)| self.tend(&state, call, child)).collect();
        let mut under_way = stream::iter(tending).buffer_unordered(AT_ONCE);
        let mut result = Ok(());
        while let Some(tended) = under_way.next().await {
            result = result.and(tended);
        }
        result
    }

    /// Does what is to be done about one child, step by step.
    async fn tend(&self, parent: &RunState, call: CallId, child: RunId) -> Result<(), SubmitError> {
        let hold = self.admits.then_some("its turn has to come");
        for _ in 0..MAX_STEPS {
            let state = self.engine.load(child).await?;
            let Some(step) = next_step(parent, call, state.as_deref(), hold) else { return Ok(()) };
            let creates = matches!(step.command, Command::Create(_));
            self.take(parent, step).await?;
            // Only what was created to be ended has more to come.
            if !creates || parent.ending.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn take(&self, parent: &RunState, step: Step) -> Result<(), SubmitError> {
        let Step { run_id, command, key } = step;
        let name = command.name();
        let created = match &command {
            Command::Create(create) => Some(create.created.agent.clone()),
            _ => None,
        };
        let (span, cause) = match &created {
            Some(_) => (None, root_cause(run_id, parent.sampled)),
            None => {
                let (span, cause) = span_of(&self.tracer, "tend child", run_id, parent.sampled);
                (Some(span), cause)
            }
        };
        match self.engine.submit(run_id, command, key, cause).await {
            Ok(committed) => {
                if let Some(agent) = created.filter(|_| !committed.duplicate) {
                    // Short, and over before anything else of the run begins.
                    self.tracer.span(root_span(parent, run_id, &agent)).end();
                }
                metrics::counter!("scheduler_children_total", "step" => name).increment(1);
                // It waited for its children with undoing what it did. Nobody is to hear of this: the reaper rings as well.
                if name == "settle_child" && committed.state.to_compensate().is_some() {
                    self.engine.outbox().ring(run_id).await?;
                }
                Ok(())
            }
            // It has gone another way meanwhile, or somebody was faster.
            Err(SubmitError::Rejected(rejection)) => {
                tracing::debug!(%run_id, step = name, %rejection, "a child is not brought in step by this");
                Ok(())
            }
            Err(error) => {
                if let Some(span) = &span {
                    span.record_error("submit", &error);
                }
                Err(error)
            }
        }
    }
}

fn root_cause(run: RunId, sampled: bool) -> Cause {
    let root = TraceContext::of_run(run, sampled);
    Cause { service: "scheduler".to_owned(), traceparent: Some(root.to_string()), ..Cause::default() }
}

/// The root span of a child's own trace, linked to its parent's.
fn root_span(parent: &RunState, run: RunId, agent: &str) -> SpanSpec<'static> {
    let above = TraceContext::of_run(parent.run_id, parent.sampled);
    let link = Link::to(&above.to_string()).map(|link| link.attribute("escapement.link", "parent"));
    let root = TraceContext::of_run(run, parent.sampled);
    SpanSpec::new(format!("{} {agent}", genai::INVOKE_AGENT), Parent::Root(root))
        .kind(SpanKind::Server)
        .attribute(genai::OPERATION_NAME, genai::INVOKE_AGENT)
        .attribute(genai::AGENT_NAME, agent.to_owned())
        .attribute(genai::RUN_ID, run.to_string())
        .attribute(genai::TENANT, parent.tenant.to_string())
        .link(link)
}

/// What the end of a run says, as far as it is about its parent.
#[derive(Deserialize)]
struct End {
    #[serde(default)]
    parent: Option<RunId>,
}

/// Where a message says to look.
fn read(message: &Message) -> Option<Bell> {
    let Subject::Event { entity, verb, run, .. } = Subject::parse(&message.subject).ok()? else { return None };
    let run: RunId = run.parse().ok()?;
    let data = &message.payload;
    match (entity.as_str(), verb.as_str()) {
        ("subagent", _) => {
            let started: SubagentStarted = serde_json::from_slice(data).ok()?;
            let (child_id, call_id) = (started.child_id, started.spawn.call_id);
            Some(Bell::Child(ChildOutOfStep { child_id, run_id: run, call_id }))
        }
        (_, "cancel_requested") => {
            let requested: RunCancelRequested = serde_json::from_slice(data).ok()?;
            (!requested.open_children.is_empty()).then_some(Bell::Parent(run))
        }
        (_, "paused" | "resumed") => Some(Bell::Parent(run)),
        _ => {
            let end: End = serde_json::from_slice(data).ok()?;
            end.parent.map(|parent| Bell::Ended { parent, child: run })
        }
    }
}
