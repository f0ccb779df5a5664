//! Starting runs, for callers of the API and for triggers alike.

use std::time::SystemTime;

use engine::{Agents, Committed, Engine, Reads, RunFilter, SubmitError};
use kernel::agent::{AgentSpec, Criterion};
use kernel::budget::Limits;
use kernel::command::{CreateRun, ForkRun};
use kernel::event::{ExternalRef, RunCreated, RunForked};
use kernel::{Block, Cause, Command, ConversationId, RunId, Status, TenantId};
use service::telemetry::{Link, Parent, SpanKind, SpanSpec, TraceContext, Tracer, genai};

/// Starts runs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runs {
    engine: Engine,
    reads: Reads,
    agents: Agents,
    tracer: Tracer,
    max_running: u64,
    trace_ratio: f64,
}

/// What a run is to be.
#[derive(Debug)]
pub(crate) struct NewRun {
    pub run_id: RunId,
    pub tenant: TenantId,
    /// What is to be reached: a person's words, or the agent file's.
    pub objective: Block,
    /// What it starts with.
    pub input: Block,
    /// How it is known that the objective is reached; the agent's own criteria if there are none here.
    pub acceptance: Vec<Criterion>,
    /// What it may spend, if that is less than the agent's own limits.
    pub limits: Limits,
    pub conversation_id: Option<ConversationId>,
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The outside event behind it.
    pub trigger: Option<ExternalRef>,
    /// The person behind it.
    pub operator: Option<String>,
    /// That person's roles.
    pub roles: Vec<String>,
    /// The span that led to it, in whatever trace.
    pub traceparent: Option<String>,
}

/// A run that is to go on from where another one stood.
#[derive(Debug)]
pub(crate) struct NewFork {
    pub run_id: RunId,
    /// The run as if it were new.
    pub created: RunCreated,
    /// What it brings along.
    pub forked: RunForked,
    /// The person behind it.
    pub operator: String,
}

impl Runs {
    pub(crate) fn new(engine: &Engine, agents: Agents, tracer: Tracer, max_running: u64, trace_ratio: f64) -> Self {
        Self { engine: engine.clone(), reads: engine.reads(), agents, tracer, max_running, trace_ratio }
    }

    /// The agents that runs are started with.
    pub(crate) fn agents(&self) -> &Agents {
        &self.agents
    }

    /// Starts a run. Starting one with the same id again changes nothing.
    pub(crate) async fn create(&self, new: NewRun, agent: &AgentSpec, digest: &str) -> Result<Committed, SubmitError> {
        let begun = SystemTime::now();
        let run_id = new.run_id;
        let sampled = engine::is_sampled(run_id, self.trace_ratio);
        let root = TraceContext::of_run(run_id, sampled);
        let cause = Cause {
            service: "ingress".into(),
            seq: None,
            traceparent: Some(root.to_string()),
            operator: new.operator.clone(),
        };
        let hold = self.hold(&new.tenant).await?;
        let mut spec = self.root_span(&new, &agent.name, digest, root).start(begun);
        let created = new.into_created(agent, digest, sampled);
        let conversation = created.conversation_id;
        let command = Command::Create(Box::new(CreateRun { created, hold }));
        let committed = self.engine.submit(run_id, command, "create", cause).await?;
        if !committed.duplicate {
            if let Some(conversation) = conversation {
                spec = spec.attribute(genai::CONVERSATION_ID, conversation.to_string());
            }
            // Short, and over before anything else of the run begins: no span is held open across a wait.
            self.tracer.span(spec).end();
            metrics::counter!("ingress_runs_created_total").increment(1);
        }
        Ok(committed)
    }

    /// Starts a run that goes on from where another one stood. Starting one with the same id again changes nothing.
    pub(crate) async fn fork(&self, new: NewFork) -> Result<Committed, SubmitError> {
        let begun = SystemTime::now();
        let NewFork { run_id, mut created, forked, operator } = new;
        created.sampled = engine::is_sampled(run_id, self.trace_ratio);
        let sampled = created.sampled;
        let root = TraceContext::of_run(run_id, sampled);
        let origin = forked.origin.run_id;
        // The trace of the run that it comes from is another one, and stays what it is.
        let link = TraceContext::of_run(origin, sampled);
        let spec = SpanSpec::new(format!("{} {}", genai::INVOKE_AGENT, created.agent), Parent::Root(root))
            .kind(SpanKind::Server)
            .attribute(genai::OPERATION_NAME, genai::INVOKE_AGENT)
            .attribute(genai::AGENT_NAME, created.agent.clone())
            .attribute(genai::AGENT_ID, created.agent_digest.clone())
            .attribute(genai::RUN_ID, run_id.to_string())
            .attribute(genai::TENANT, created.tenant.to_string())
            .link(Link::to(&link.to_string()).map(|link| link.attribute("escapement.link", "fork")))
            .start(begun);
        let cause = Cause {
            service: "ingress".into(),
            seq: None,
            traceparent: Some(root.to_string()),
            operator: Some(operator),
        };
        let hold = self.hold(&created.tenant).await?;
        let command = Command::Fork(Box::new(ForkRun { create: CreateRun { created, hold }, forked }));
        let committed = self.engine.submit(run_id, command, "create", cause).await?;
        if !committed.duplicate {
            self.tracer.span(spec).end();
            metrics::counter!("ingress_runs_forked_total").increment(1);
        }
        Ok(committed)
    }

    /// Why the run has to queue, if it has to. A count, not a lock: a burst may overshoot a little.
    async fn hold(&self, tenant: &TenantId) -> Result<Option<String>, SubmitError> {
        let Ok(most) = u32::try_from(self.max_running) else { return Ok(None) };
        if most == 0 {
            return Ok(None);
        }
        let filter = RunFilter { status: Some(Status::Runnable), limit: most, ..RunFilter::default() };
        let runnable = self.reads.runs(tenant, &filter).await.map_err(|error| match error {
            engine::ReadError::Engine(error) => error,
            engine::ReadError::Cursor(_) => engine::EngineError::Config("no cursor was given".into()),
        })?;
        let full = runnable.items.len() as u64 >= u64::from(most);
        Ok(full.then(|| format!("{most} runs of `{tenant}` are under way, and no more may be")))
    }

    fn root_span(&self, new: &NewRun, agent: &str, digest: &str, root: TraceContext) -> SpanSpec<'static> {
        let cause = new.trigger.as_ref().and_then(|trigger| trigger.traceparent.as_deref());
        let link = |text: &str| Link::to(text).map(|link| link.attribute("escapement.link", "cause"));
        let spec = SpanSpec::new(format!("{} {agent}", genai::INVOKE_AGENT), Parent::Root(root))
            .kind(SpanKind::Server)
            .attribute(genai::OPERATION_NAME, genai::INVOKE_AGENT)
            .attribute(genai::AGENT_NAME, agent.to_owned())
            .attribute(genai::AGENT_ID, digest.to_owned())
            .attribute(genai::RUN_ID, new.run_id.to_string())
            .attribute(genai::TENANT, new.tenant.to_string())
            .link(cause.or(new.traceparent.as_deref()).and_then(link));
        match &new.trigger {
            Some(trigger) => spec.attribute(genai::EVENT_ID, format!("{}/{}", trigger.source, trigger.id)),
            None => spec,
        }
    }
}

impl NewRun {
    fn into_created(self, agent: &AgentSpec, digest: &str, sampled: bool) -> RunCreated {
        let Self { tenant, objective, input, acceptance, limits, conversation_id, metadata, trigger, roles, .. } = self;
        let new =
            engine::NewRun { tenant, objective, input, acceptance, limits, conversation_id, metadata, trigger, roles };
        new.created(agent, digest, sampled)
    }
}
