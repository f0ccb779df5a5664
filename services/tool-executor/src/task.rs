//! One call at hand: what is known of it, under which names its steps are committed, and its span.

use std::sync::Arc;
use std::time::Instant;

use kernel::agent::Allow;
use kernel::call::Call;
use kernel::{CallId, Cause, RunState, Seq};
use serde_json::{Map, Value};
use service::telemetry::{SpanKind, genai};
use service::{Parent, Span, SpanSpec, TraceContext, Tracer};

use crate::results::Origin;
use crate::tools::Invocation;

/// A call as it stood when it was looked at.
pub(crate) struct Task {
    pub state: Arc<RunState>,
    pub call: Call,
    pub span: Arc<Span>,
    /// What goes out with every attempt.
    pub idempotency_key: String,
    traceparent: String,
    seq: Option<Seq>,
    began: Instant,
}

impl Task {
    /// Opens the span of the call, under what rang.
    pub fn new(tracer: &Tracer, state: Arc<RunState>, call: Call, seq: Option<Seq>, rang: Option<&str>) -> Self {
        let run = state.run_id;
        let root = Parent::Span(TraceContext::of_run(run, state.sampled));
        let spec = SpanSpec::new(format!("execute_tool {}", call.request.tool), rang.map_or(root, Parent::Traceparent))
            .kind(SpanKind::Internal)
            .run(run.0.into_bytes())
            .attribute(genai::OPERATION_NAME, genai::EXECUTE_TOOL)
            .attribute(genai::TOOL_NAME, call.request.tool.clone())
            .attribute(genai::TOOL_CALL_ID, call.request.call_id.to_string())
            .attribute(genai::TOOL_TYPE, "function")
            .attribute(genai::AGENT_NAME, state.agent.clone())
            .attribute(genai::RUN_ID, run.to_string())
            .attribute(genai::TENANT, state.tenant.to_string());
        let span = Arc::new(tracer.span(spec));
        let (traceparent, idempotency_key) = (span.traceparent(), call.idempotency_key());
        Self { state, call, span, idempotency_key, traceparent, seq, began: Instant::now() }
    }

    /// The same call after a step.
    pub fn after(&self, state: Arc<RunState>, call: Call) -> Self {
        let (idempotency_key, traceparent) = (self.idempotency_key.clone(), self.traceparent.clone());
        Self { state, call, span: self.span.clone(), idempotency_key, traceparent, seq: self.seq, began: self.began }
    }

    pub fn id(&self) -> CallId {
        self.call.request.call_id
    }

    /// The event that rang.
    pub fn seq(&self) -> Option<Seq> {
        self.seq
    }

    /// The name under which a step of this attempt is committed, once.
    pub fn key(&self, step: &str) -> String {
        format!("{}/{step}/{}", self.id(), self.call.attempts)
    }

    pub fn cause(&self) -> Cause {
        Cause {
            service: "tool-executor".to_owned(),
            seq: self.seq,
            traceparent: Some(self.traceparent.clone()),
            operator: None,
        }
    }

    pub fn origin(&self) -> Origin<'_> {
        Origin {
            tenant: &self.state.tenant,
            run: self.state.run_id,
            call: self.id(),
            tool: &self.call.request.tool,
            traceparent: &self.traceparent,
        }
    }

    pub fn invocation<'a>(&'a self, arguments: &'a Map<String, Value>, allow: &'a Allow) -> Invocation<'a> {
        Invocation {
            tenant: &self.state.tenant,
            run: self.state.run_id,
            agent: &self.state.agent,
            trust: self.call.request.trust,
            call: self.id(),
            arguments,
            idempotency_key: &self.idempotency_key,
            traceparent: &self.traceparent,
            allow,
            timeout: self.call.request.timeout.std(),
        }
    }

    /// Counts what came of it, and says so in its span.
    pub fn ended(&self, outcome: &'static str, error: Option<(&'static str, &str)>) {
        if let Some((code, words)) = error {
            self.span.record_error(code, words);
        }
        // A name that a model made up is no label.
        let tool =
            if error.is_some_and(|(code, _)| code == "unknown_tool") { "unknown" } else { &self.call.request.tool };
        let labels = [("tool", tool.to_owned()), ("outcome", outcome.to_owned())];
        metrics::counter!("tool_executor_calls_total", &labels).increment(1);
        let took = self.began.elapsed();
        metrics::histogram!("tool_executor_call_seconds", &labels).record(took);
        service::metrics::exemplar("tool_executor_call_seconds", &labels, took.as_secs_f64(), self.span.context());
        let error = error.map(|(code, _)| code);
        self.span.in_scope(|| tracing::debug!(tool, call = %self.id(), outcome, error, "a call was worked on"));
    }
}
