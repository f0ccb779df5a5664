//! Spans with the ids that the runtime gives them.
//!
//! No span is current by thread or task: a span's parent is always said, since it may have ended days ago in another
//! process.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use opentelemetry::trace::{Span as _, SpanBuilder, SpanId, Status, TraceContextExt, TraceId, Tracer as _};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer};
use tracing::Instrument;
use tracing::instrument::Instrumented;

pub use opentelemetry::KeyValue;
pub use opentelemetry::trace::SpanKind;

use super::context::{Hex, TraceContext};

/// Makes the spans of one service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tracer {
    service: Arc<str>,
    /// `None` if nothing is exported; ids are made and passed on all the same.
    sdk: Option<SdkTracer>,
}

/// What a span is to be.
#[derive(Clone, Debug)]
pub struct SpanSpec<'a> {
    /// Name with few variants, such as `execute_tool shell.run`.
    pub name: Cow<'static, str>,
    /// Which side of which exchange it is; [`SpanKind::Internal`] by default.
    pub kind: SpanKind,
    /// Where it hangs.
    pub parent: Parent<'a>,
    /// Causes in other traces, such as the outside event.
    pub links: Vec<Link>,
    /// First attributes.
    pub attributes: Vec<KeyValue>,
    /// When it began; now if `None`.
    pub start: Option<SystemTime>,
    /// The run it belongs to, for log lines. [`SpanSpec::new`] takes it from the trace id of a run's own trace.
    pub run: Option<[u8; 16]>,
}

/// Where a span hangs. The sampling decision is the parent's.
#[derive(Clone, Copy, Debug)]
pub enum Parent<'a> {
    /// Under the span of a `traceparent` header. If the text is not one, as with [`Parent::New`].
    Traceparent(&'a str),
    /// Under this span of a run.
    Span(TraceContext),
    /// Nowhere: it is the root of a run's trace, and this is its own place in it.
    Root(TraceContext),
    /// Nowhere: it begins a trace of its own, with random ids, sampled.
    New,
}

/// A cause in another trace.
#[derive(Clone, Debug)]
pub struct Link {
    /// The span that is linked to.
    pub context: TraceContext,
    /// What the link means.
    pub attributes: Vec<KeyValue>,
}

/// A span that is open. It ends by [`Span::end`] or when it is dropped.
pub struct Span {
    service: Arc<str>,
    context: TraceContext,
    run: Option<[u8; 16]>,
    /// `None` if it is not exported.
    sdk: Option<Mutex<opentelemetry_sdk::trace::Span>>,
}

impl<'a> SpanSpec<'a> {
    /// A span of kind [`SpanKind::Internal`] that starts now.
    pub fn new(name: impl Into<Cow<'static, str>>, parent: Parent<'a>) -> Self {
        let run = match parent {
            Parent::Span(context) | Parent::Root(context) => Some(context.trace_id),
            Parent::Traceparent(_) | Parent::New => None,
        };
        Self {
            name: name.into(),
            kind: SpanKind::Internal,
            parent,
            links: Vec::new(),
            attributes: Vec::new(),
            start: None,
            run,
        }
    }

    /// Which side of which exchange it is.
    #[must_use]
    pub fn kind(mut self, kind: SpanKind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }

    /// Adds a link.
    #[must_use]
    pub fn link(mut self, link: impl Into<Option<Link>>) -> Self {
        self.links.extend(link.into());
        self
    }

    /// When it began, if not now.
    #[must_use]
    pub fn start(mut self, start: SystemTime) -> Self {
        self.start = Some(start);
        self
    }

    /// The run it belongs to, by the bytes of its id.
    #[must_use]
    pub fn run(mut self, run: [u8; 16]) -> Self {
        self.run = Some(run);
        self
    }
}

impl Link {
    /// A link to the span of a `traceparent`; `None` if the text is not one.
    pub fn to(traceparent: &str) -> Option<Self> {
        Some(Self { context: traceparent.parse().ok()?, attributes: Vec::new() })
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attribute(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(key, value));
        self
    }
}

impl Tracer {
    pub(super) fn new(service: &str, sdk: Option<SdkTracer>) -> Self {
        Self { service: service.into(), sdk }
    }

    /// A tracer that exports nothing: ids, `traceparent`s and log fields only.
    pub fn disabled(service: &str) -> Self {
        Self::new(service, None)
    }

    /// The name of the service whose spans these are.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Opens a span.
    pub fn span(&self, spec: SpanSpec<'_>) -> Span {
        let (parent, context) = spec.parent.resolve();
        let sdk = self.sdk.as_ref().filter(|_| context.sampled).map(|tracer| {
            let parent = parent
                .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent.span_context(true)));
            let mut builder = SpanBuilder::from_name(spec.name).with_kind(spec.kind).with_attributes(spec.attributes);
            builder.start_time = spec.start;
            if !spec.links.is_empty() {
                builder = builder.with_links(spec.links.into_iter().map(Into::into).collect());
            }
            Mutex::new(GivenIds::with(&context, || tracer.build_with_context(builder, &parent)))
        });
        Span { service: Arc::clone(&self.service), context, run: spec.run, sdk }
    }
}

impl Parent<'_> {
    /// The parent, if there is one, and the ids of the new span.
    fn resolve(self) -> (Option<TraceContext>, TraceContext) {
        let random = RandomIdGenerator::default();
        let child =
            |parent: TraceContext| (Some(parent), TraceContext { span_id: random.new_span_id().to_bytes(), ..parent });
        let new = || {
            let (trace_id, span_id) = (random.new_trace_id().to_bytes(), random.new_span_id().to_bytes());
            (None, TraceContext { trace_id, span_id, sampled: true })
        };
        match self {
            Self::Traceparent(text) => text.parse().map_or_else(|_| new(), child),
            Self::Span(context) => child(context),
            Self::Root(context) => (None, context),
            Self::New => new(),
        }
    }
}

impl Span {
    /// Its place in the trace.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// The trace it is in.
    pub fn trace_id(&self) -> [u8; 16] {
        self.context.trace_id
    }

    /// Its own id.
    pub fn span_id(&self) -> [u8; 8] {
        self.context.span_id
    }

    /// The `traceparent` that makes others its children.
    pub fn traceparent(&self) -> String {
        self.context.to_string()
    }

    /// Whether it will be exported: else costly attributes need not be made.
    pub fn is_recording(&self) -> bool {
        self.sdk.is_some()
    }

    /// Sets an attribute.
    pub fn set_attribute(&self, key: &'static str, value: impl Into<Value>) {
        self.with_sdk(|span| span.set_attribute(KeyValue::new(key, value)));
    }

    /// Adds an event that happened now.
    pub fn add_event(&self, name: impl Into<Cow<'static, str>>, attributes: Vec<KeyValue>) {
        self.with_sdk(|span| span.add_event(name, attributes));
    }

    /// Marks it as failed: `error_type` is a name with few variants (`error.type`), `message` is for people.
    pub fn record_error(&self, error_type: impl Into<Cow<'static, str>>, message: impl fmt::Display) {
        self.with_sdk(|span| {
            span.set_attribute(KeyValue::new(super::genai::ERROR_TYPE, error_type.into()));
            span.set_status(Status::error(message.to_string()));
        });
    }

    /// Runs `f` with the span's service, trace and run on every log line.
    pub fn in_scope<R>(&self, f: impl FnOnce() -> R) -> R {
        self.log_span().in_scope(f)
    }

    /// `future` with the span's service, trace and run on every log line. It does not keep the span open.
    pub fn instrument<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.log_span())
    }

    /// Ends it now.
    pub fn end(self) {
        drop(self);
    }

    /// Ends it at a time past.
    pub fn end_at(self, time: SystemTime) {
        self.with_sdk(|span| span.end_with_timestamp(time));
    }

    /// At the level of errors, so that no filter that lets a line through takes its trace away.
    fn log_span(&self) -> tracing::Span {
        let (service, trace_id) = (&*self.service, Hex(&self.context.trace_id));
        match self.run {
            Some(run) => tracing::error_span!("op", service, %trace_id, run_id = %uuid::Uuid::from_bytes(run)),
            None => tracing::error_span!("op", service, %trace_id),
        }
    }

    fn with_sdk(&self, f: impl FnOnce(&mut opentelemetry_sdk::trace::Span)) {
        if let Some(span) = &self.sdk {
            f(&mut span.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("service", &self.service).field("context", &self.context).finish_non_exhaustive()
    }
}

impl From<Link> for opentelemetry::trace::Link {
    fn from(link: Link) -> Self {
        Self::new(link.context.span_context(true), link.attributes, 0)
    }
}

thread_local! {
    /// The ids of the span that this thread is opening.
    static GIVEN: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Hands the SDK the ids of the span that is being opened: the SDK takes no ids with a span, only from its generator.
#[derive(Debug, Default)]
pub(super) struct GivenIds {
    otherwise: RandomIdGenerator,
}

impl GivenIds {
    /// Runs `f`, in which one span is opened, and it gets the ids of `context`.
    fn with<R>(context: &TraceContext, f: impl FnOnce() -> R) -> R {
        GIVEN.set(Some((TraceId::from_bytes(context.trace_id), SpanId::from_bytes(context.span_id))));
        let result = f();
        GIVEN.set(None);
        result
    }
}

impl IdGenerator for GivenIds {
    fn new_trace_id(&self) -> TraceId {
        GIVEN.get().map_or_else(|| self.otherwise.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        GIVEN.get().map_or_else(|| self.otherwise.new_span_id(), |(_, span)| span)
    }
}
