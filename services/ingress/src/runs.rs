//! Starting runs, for callers of the API and for triggers alike.

use std::time::SystemTime;

use engine::{Agents, Committed, Engine, Reads, RunFilter, SubmitError};
use kernel::agent::{AgentSpec, Criterion};
use kernel::budget::Limits;
use kernel::command::CreateRun;
use kernel::event::{ExternalRef, RunCreated};
use kernel::{Block, Cause, Command, ConversationId, RunId, Status, TenantId, Timestamp};
use service::telemetry::{Link, Parent, SpanKind, SpanSpec, TraceContext, Tracer, genai};
use sha2::{Digest, Sha256};
use uuid::Uuid;

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
    /// The span that led to it, in whatever trace.
    pub traceparent: Option<String>,
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
        let sampled = is_sampled(new.run_id, self.trace_ratio);
        let root = TraceContext { trace_id: new.run_id.0.into_bytes(), span_id: new.run_id.root_span_id(), sampled };
        let cause = Cause {
            service: "ingress".into(),
            seq: None,
            traceparent: Some(root.to_string()),
            operator: new.operator.clone(),
        };
        let hold = self.hold(&new.tenant).await?;
        let mut spec = self.root_span(&new, &agent.name, digest, root).start(begun);
        let created = new.into_created(agent, digest, sampled);
        let run_id = RunId(Uuid::from_bytes(root.trace_id));
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
        let parent = Parent::Root { trace_id: root.trace_id, span_id: root.span_id, sampled: root.sampled };
        let cause = new.trigger.as_ref().and_then(|trigger| trigger.traceparent.as_deref());
        let link = |text: &str| Link::to(text).map(|link| link.attribute("escapement.link", "cause"));
        let spec = SpanSpec::new(format!("{} {agent}", genai::INVOKE_AGENT), parent)
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
        let acceptance = if self.acceptance.is_empty() { agent.acceptance.clone() } else { self.acceptance };
        RunCreated {
            tenant: self.tenant,
            agent: agent.name.clone(),
            agent_digest: digest.to_owned(),
            objective: self.objective,
            input: self.input,
            acceptance,
            limits: stricter(&agent.budget, &self.limits),
            conversation_id: self.conversation_id,
            metadata: self.metadata,
            parallel_wake: agent.parallel_wake,
            debounce: agent.debounce,
            sampled,
            trigger: self.trigger,
        }
    }
}

/// Of each limit the lower one.
pub(crate) fn stricter(a: &Limits, b: &Limits) -> Limits {
    fn lower<T: PartialOrd + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
        match (a, b) {
            (Some(a), Some(b)) => Some(if b < a { b } else { a }),
            (a, b) => a.or(b),
        }
    }
    Limits {
        turns: lower(a.turns, b.turns),
        tokens: lower(a.tokens, b.tokens),
        cost_usd: lower(a.cost_usd, b.cost_usd),
        wall: lower(a.wall, b.wall),
        tool_calls: lower(a.tool_calls, b.tool_calls),
    }
}

/// The id of the run that a trigger starts: the same whenever and wherever the event is handled again.
///
/// Shaped as a UUIDv7, so that it sorts among the others: the time is when the event was received, and in the place of
/// the random bits stand those of a hash over tenant, event, agent and the trigger's place in the agent's file.
pub(crate) fn triggered_run_id(
    tenant: &TenantId,
    position: i64,
    received_at: Timestamp,
    agent: &str,
    trigger: usize,
) -> RunId {
    let hash = Sha256::digest(format!("{tenant}/{position}/{agent}/{trigger}"));
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    let millis = u64::try_from(received_at.as_millisecond()).unwrap_or_default();
    RunId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// Whether the spans of a run are exported: by its id, so that who asks twice hears the same.
fn is_sampled(run: RunId, ratio: f64) -> bool {
    let mut tail = [0; 4];
    tail.copy_from_slice(&run.0.as_bytes()[12..]);
    f64::from(u32::from_be_bytes(tail)) < ratio * 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_holds() {
        let agent = Limits { turns: Some(10), cost_usd: Some(2.0), ..Limits::default() };
        let asked = Limits { turns: Some(20), cost_usd: Some(0.5), tokens: Some(100), ..Limits::default() };
        let both = stricter(&agent, &asked);
        assert_eq!((both.turns, both.cost_usd, both.tokens, both.tool_calls), (Some(10), Some(0.5), Some(100), None));
    }

    #[test]
    fn a_triggered_run_has_one_id_that_sorts_by_time() {
        let tenant = TenantId::default();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let id = triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 0);
        assert_eq!(id, triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 0));
        assert_eq!(id.0.get_version_num(), 7);
        for other in [
            triggered_run_id(&tenant, 8, at(1_750_000_000_000), "a", 0),
            triggered_run_id(&tenant, 7, at(1_750_000_000_000), "b", 0),
            triggered_run_id(&tenant, 7, at(1_750_000_000_000), "a", 1),
            triggered_run_id(&"other".parse().unwrap(), 7, at(1_750_000_000_000), "a", 0),
        ] {
            assert_ne!(id, other);
        }
        assert!(id < triggered_run_id(&tenant, 7, at(1_750_000_000_001), "a", 0));
    }

    #[test]
    fn the_ratio_is_kept_at_its_ends() {
        let runs: Vec<RunId> = (0..1000).map(|_| RunId::mint()).collect();
        assert!(runs.iter().all(|run| is_sampled(*run, 1.0)));
        assert!(!runs.iter().any(|run| is_sampled(*run, 0.0)));
        let half = runs.iter().filter(|run| is_sampled(**run, 0.5)).count();
        assert!((350..650).contains(&half), "{half}");
    }
}
