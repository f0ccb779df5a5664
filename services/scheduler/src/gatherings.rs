//! Starts that triggers hold back: begun when they are due and nothing is in their way, each once.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use engine::{
    AgentVersion, Engine, EngineError, Gathering, Gatherings, Hindrance, NewRun, RecordedExternal, SubmitError,
};
use futures::{StreamExt as _, stream};
use kernel::{Block, Cause, Command, Timestamp, Trust, agent::Trigger, command::CreateRun, excerpt};
use serde_json::{Map, json};
use service::{
    Parent, SpanSpec, Tracer,
    telemetry::{Link, SpanKind, TraceContext, genai},
};
use tokio_util::sync::CancellationToken;

use crate::Config;

/// Longest time without a look at the table.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Starts that are claimed at once.
const BATCH: u32 = 64;
/// Starts that are carried out side by side.
const SIDE_BY_SIDE: usize = 16;
/// How long a claimed start is nobody else's; a scheduler that dies leaves it for so long.
const CLAIM: Duration = Duration::from_secs(10);
/// Most bytes of all events together that a run is given; the whole of them stays in the table of outside events.
const EVENT_BYTES: usize = 16 * 1024;

/// Begins what is held back.
pub(crate) struct Starter {
    engine: Engine,
    gatherings: Gatherings,
    tracer: Tracer,
    max_running: u32,
    trace_ratio: f64,
}

impl Starter {
    pub(crate) fn new(engine: &Engine, tracer: Tracer, config: &Config) -> Self {
        let (max_running, trace_ratio) = (config.max_running, config.trace_ratio);
        Self { engine: engine.clone(), gatherings: engine.gatherings(), tracer, max_running, trace_ratio }
    }

    /// Begins what is due until told to stop.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.look().await {
                Ok(pause) => pause,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "can't look at what triggers hold back at the moment");
                    LOOK_EVERY
                }
            };
            let _ = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Begins what is due. Says how long there is nothing more to do.
    async fn look(&self) -> Result<Duration, EngineError> {
        let now = Timestamp::now();
        let Some(due) = self.gatherings.next_due().await? else { return Ok(LOOK_EVERY) };
        if due > now {
            return Ok(Duration::try_from(due.duration_since(now)).unwrap_or_default().min(LOOK_EVERY));
        }
        let claimed = self.gatherings.claim_due(now, BATCH, CLAIM).await?;
        let found = claimed.len();
        let begun: Vec<_> = claimed.iter().map(|gathering| self.begin(gathering)).collect();
        let begun = stream::iter(begun).buffer_unordered(SIDE_BY_SIDE).filter(|begun| futures::future::ready(*begun));
        // Behind each that began the next of its line may stand.
        let begun = begun.count().await;
        Ok(if found > 0 && begun > 0 { Duration::ZERO } else { LOOK_EVERY })
    }

    /// Begins one. Says whether it is out of the way. What fails is claimed again, under the same names.
    async fn begin(&self, gathering: &Gathering) -> bool {
        let outcome = match self.decide(gathering).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let (run, error) = (gathering.run_id, &*error as &dyn std::error::Error);
                tracing::warn!(%run, error, "a start that was held back failed, it is tried again");
                return false;
            }
        };
        metrics::counter!("scheduler_gatherings_total", "outcome" => outcome).increment(1);
        outcome != "put_off"
    }

    async fn decide(&self, gathering: &Gathering) -> Result<&'static str, Box<dyn std::error::Error + Send + Sync>> {
        let now = Timestamp::now();
        let (Some(agent), Some(trigger)) = (&gathering.agent, gathering.trigger()) else {
            self.gatherings.drop(gathering, now, "the version of the agent is not stored any more").await?;
            return Ok("dropped");
        };
        let hindrance = self.gatherings.hindrance(gathering, now).await?;
        let mut events = self.gatherings.events(gathering).await?;
        if events.is_empty() {
            let (run, key) = (gathering.run_id, &gathering.key);
            tracing::warn!(%run, agent = agent.name, key, "a start that was held back has none of its events any more");
            self.gatherings.drop(gathering, now, "its events were forgotten before it could start").await?;
            return Ok("forgotten");
        }
        if trigger.wake {
            let mut left = Vec::with_capacity(events.len());
            for event in events {
                if !self.gatherings.is_taken(&gathering.tenant, &agent.name, &event.external).await? {
                    left.push(event);
                }
            }
            events = left;
        }
        if events.is_empty() {
            self.gatherings.drop(gathering, now, "a run that waited has taken the events").await?;
            return Ok("dropped");
        }
        if let Some(hindrance) = hindrance {
            self.gatherings.put_off(gathering, hindrance, now).await?;
            metrics::counter!("scheduler_gatherings_put_off_total", "why" => word(hindrance)).increment(1);
            return Ok("put_off");
        }
        self.start(gathering, agent, trigger, &events).await?;
        self.gatherings.started(gathering, Timestamp::now()).await?;
        Ok("started")
    }

    async fn start(
        &self,
        gathering: &Gathering,
        agent: &AgentVersion,
        trigger: &Trigger,
        events: &[RecordedExternal],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let begun = SystemTime::now();
        let run = gathering.run_id;
        let sampled = engine::is_sampled(run, self.trace_ratio);
        let root = TraceContext::of_run(run, sampled);
        let created = new_run(gathering, &agent.name, trigger, events).created(&agent.spec, &agent.digest, sampled);
        // The scheduler admits it, as soon as there is room.
        let hold = (self.max_running > 0).then(|| "its tenant runs as much as it may, or soon would".to_owned());
        let cause = Cause { service: "scheduler".to_owned(), traceparent: Some(root.to_string()), ..Cause::default() };
        let command = Command::Create(Box::new(CreateRun { created, hold }));
        match self.engine.submit(run, command, "create", cause).await {
            Ok(committed) if committed.duplicate => Ok(()),
            Ok(_) => {
                self.tracer.span(root_span(gathering, agent, events, root).start(begun)).end();
                Ok(())
            }
            // It was made before, so long ago that this is forgotten.
            Err(SubmitError::Rejected(rejection)) => match self.engine.load(run).await? {
                Some(_) => Ok(()),
                None => Err(rejection.to_string().into()),
            },
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }
}

const fn word(hindrance: Hindrance) -> &'static str {
    match hindrance {
        Hindrance::Throttled(_) => "throttled",
        Hindrance::Occupied => "occupied",
    }
}

fn root_span(
    gathering: &Gathering,
    agent: &AgentVersion,
    events: &[RecordedExternal],
    root: TraceContext,
) -> SpanSpec<'static> {
    let last = events.last().and_then(|event| event.external.traceparent.as_deref());
    SpanSpec::new(format!("{} {}", genai::INVOKE_AGENT, agent.name), Parent::Root(root))
        .kind(SpanKind::Internal)
        .attribute(genai::OPERATION_NAME, genai::INVOKE_AGENT)
        .attribute(genai::AGENT_NAME, agent.name.clone())
        .attribute(genai::AGENT_ID, agent.digest.clone())
        .attribute(genai::RUN_ID, gathering.run_id.to_string())
        .attribute(genai::TENANT, gathering.tenant.to_string())
        .link(last.and_then(Link::to).map(|link| link.attribute("escapement.link", "cause")))
}

fn new_run(gathering: &Gathering, agent: &str, trigger: &Trigger, events: &[RecordedExternal]) -> NewRun {
    let mut metadata = Map::new();
    if gathering.events > 1 {
        metadata.insert("events".to_owned(), json!(gathering.events));
    }
    let source = events.last().map(|event| format!("event:{}/{}", event.external.source, event.external.id));
    NewRun {
        tenant: gathering.tenant.clone(),
        objective: Block::new(&trigger.start.input, Trust::Operator, format!("agent:{agent}")),
        input: Block::new(told(gathering, events), Trust::Untrusted, source.unwrap_or_default()),
        acceptance: Vec::new(),
        limits: Default::default(),
        conversation_id: None,
        roles: Vec::new(),
        metadata,
        trigger: events.last().map(|event| event.external.clone()),
    }
}

/// What the events say, as data: each whole if there is room for it, and the newest last.
fn told(gathering: &Gathering, events: &[RecordedExternal]) -> String {
    let each = EVENT_BYTES / events.len().max(1);
    let missing = usize::try_from(gathering.events).unwrap_or(usize::MAX).saturating_sub(events.len());
    let mut text = String::new();
    if missing > 0 {
        let _ = writeln!(text, "{} events, of which {missing} are not shown.", gathering.events);
    }
    for event in events {
        let pretty = serde_json::to_string_pretty(&event.event).unwrap_or_else(|_| event.event.to_string());
        if events.len() > 1 {
            let _ = writeln!(text, "--- received at {}", event.received_at);
        }
        let _ = writeln!(text, "{}", excerpt(&pretty, each));
    }
    text.truncate(text.trim_end().len());
    text
}
