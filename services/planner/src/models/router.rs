//! Which provider answers: the agent's models in their order, each tried again while it is worth it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bus::retry;
use kernel::{
    RunState, TurnId,
    agent::AgentSpec,
    budget::{Spent, Usage},
    model::{ModelFailure, note},
};
use service::{Parent, Span, SpanSpec, TraceContext, Tracer, telemetry::SpanKind, telemetry::genai};

use crate::tokens::{Counter, Densities};

use super::{
    Answer, ModelError, ModelName, OnDelta, Piece, Prompt, Provider, Rule, TurnKind, meter,
    prices::Prices,
    recording::{RecordProvider, ReplayProvider},
    remote::{RemoteOptions, RemoteProvider, estimate},
    route,
    scripted::Scenarios,
};

/// Waits between tries of one model.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Most providers kept open.
const MAX_OPEN: usize = 256;

/// How models are reached.
#[derive(Clone, Debug)]
pub struct ModelsOptions {
    /// Where `<name>.yaml` of `scripted:<name>` lies.
    pub scenarios: PathBuf,
    /// Where `<name>.jsonl` of `record:<name>/…` and `replay:<name>` lies.
    pub recordings: PathBuf,
    /// How long one model is tried again after transient failures, before the next one is.
    pub retry_within: Duration,
    /// Time-outs of remote calls.
    pub remote: RemoteOptions,
}

/// A model and where it is, if not at its usual place.
type Place = (ModelName, Option<String>);

/// All models. Shared by all turns; cheap to clone.
#[derive(Clone)]
pub struct Models {
    options: Arc<ModelsOptions>,
    scenarios: Arc<Scenarios>,
    prices: Arc<Prices>,
    open: Arc<Mutex<HashMap<Place, Arc<dyn Provider>>>>,
    densities: Arc<Densities>,
}

/// An answer, and who gave it.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The answer; with what all calls cost that were made for it.
    pub answer: Answer,
    /// `provider:model`, as asked for.
    pub model: String,
    /// W3C trace context of the span of the call.
    pub traceparent: String,
    /// How long it took, in milliseconds.
    pub millis: u64,
    /// Calls before it that gave nothing usable.
    pub failures: Vec<ModelFailure>,
}

/// No answer, and what it cost all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unanswered {
    /// The failure that leaves the most hope.
    pub error: ModelError,
    /// All of them.
    pub failures: Vec<ModelFailure>,
    /// What they consumed.
    pub usage: Usage,
}

/// What all calls for one answer have in common.
#[derive(Clone, Copy)]
struct Asking<'a> {
    agent: &'a AgentSpec,
    prompt: &'a Prompt,
    site: &'a CallSite<'a>,
    tracer: &'a Tracer,
    on_delta: OnDelta<'a>,
}

/// What has become of the calls for one answer so far.
#[derive(Default)]
struct Tally {
    failures: Vec<ModelFailure>,
    spent: Spent,
}

/// What spans and log lines say about a call.
#[derive(Clone, Copy, Debug)]
pub struct CallSite<'a> {
    /// W3C trace context of what led to the call.
    pub traceparent: Option<&'a str>,
    /// Whether the run's spans are exported, if nothing led to the call that says so.
    pub sampled: bool,
    /// The turn.
    pub turn_id: TurnId,
    /// The tenant.
    pub tenant: &'a kernel::TenantId,
    /// Digest of the agent's definition.
    pub agent_digest: &'a str,
    /// What kind of thinking the call is for.
    pub kind: TurnKind,
    /// The share of its budget that the run has left, from 0 to 1.
    pub left: f64,
}

impl<'a> CallSite<'a> {
    /// A call for a turn of this run.
    #[must_use]
    pub fn of(state: &'a RunState, turn_id: TurnId, traceparent: Option<&'a str>, kind: TurnKind) -> Self {
        let (tenant, agent_digest) = (&state.tenant, state.agent_digest.as_str());
        let left = route::share_left(state);
        Self { traceparent, sampled: state.sampled, turn_id, tenant, agent_digest, kind, left }
    }
}

impl Models {
    /// Ready to open providers as agents name them.
    #[must_use]
    pub fn new(options: ModelsOptions, prices: Prices) -> Self {
        let scenarios = Arc::new(Scenarios::new(options.scenarios.clone()));
        let (options, prices) = (Arc::new(options), Arc::new(prices));
        Self { options, scenarios, prices, open: Arc::default(), densities: Arc::default() }
    }

    /// How the tokens of the model are counted that is asked first in the open turn of a run.
    #[must_use]
    pub fn counter(&self, agent: &AgentSpec, state: &RunState) -> Counter {
        let names = route::order(agent, TurnKind::of(state), route::share_left(state), 0);
        names.first().map_or(Counter::ESTIMATE, |name| self.densities.counter(&state.agent_digest, name))
    }

    /// Asks the models that the agent has for this kind of turn, in their order, until one answers. What each failure leads to
    /// is in [`super::FailureKind::rule`].
    ///
    /// # Errors
    /// [`Unanswered`] if no model answers: transient if any may answer later.
    pub async fn answer(
        &self,
        agent: &AgentSpec,
        prompt: &Prompt,
        site: &CallSite<'_>,
        tracer: &Tracer,
        on_delta: OnDelta<'_>,
    ) -> Result<Answered, Unanswered> {
        let asking = Asking { agent, prompt, site, tracer, on_delta };
        let mut tally = Tally::default();
        let mut failure: Option<ModelError> = None;
        let names = route::order(agent, site.kind, site.left, prompt.ask);
        let first_provider =
            agent.model.all().first().and_then(|name| name.split_once(':')).map(|(provider, _)| provider);
        for (number, name) in names.iter().enumerate() {
            // Another provider is not where the agent's file says that this one is.
            let is_there = name.split_once(':').map(|(provider, _)| provider) == first_provider;
            let base_url = agent.base_url.as_deref().filter(|_| is_there);
            let asked = match self.open(name, base_url) {
                Ok(provider) => self.ask(&*provider, asking, &mut tally).await,
                Err(error) => Err(error),
            };
            let error = match asked {
                Ok(mut answered) => {
                    if answered.answer.is_counted {
                        let tokens = answered.answer.usage.input_tokens;
                        self.densities.learn(site.agent_digest, name, prompt, tokens);
                    }
                    tally.spent.add(&answered.answer.usage);
                    answered.answer.usage = tally.spent.usage;
                    answered.failures = tally.failures;
                    return Ok(answered);
                }
                Err(error) => error,
            };
            let told = error.is_to_be_told();
            let done = match (told, number + 1 < names.len(), error.is_transient()) {
                (true, ..) => "asked_again",
                (_, true, _) => "next_model",
                (_, _, true) => "put_off",
                _ => "gave_up",
            };
            tracing::warn!(model = name, kind = error.kind.as_str(), %error, done, "a model did not answer");
            let model =
                name.parse().unwrap_or_else(|_| ModelName { provider: "unknown".into(), model: (*name).to_owned() });
            note(&mut tally.failures, error.noted(&model, done));
            failure = Some(error.or_better(failure));
            if told {
                break;
            }
        }
        let error = failure.unwrap_or_else(|| ModelError::misconfigured("the agent names no model"));
        Err(Unanswered { error, failures: tally.failures, usage: tally.spent.usage })
    }

    /// What a call to a model costs that is not waited for any longer, at the most that can be told: what was sent.
    #[must_use]
    pub fn unheard(&self, model: &str, prompt: &Prompt) -> Usage {
        let mut usage = Usage { model_calls: 1, ..estimate(model, prompt, "", &[]) };
        if let Ok(name) = model.parse::<ModelName>() {
            usage.cost_microusd = self.prices.cost(&name.provider, &name.model, &usage).unwrap_or(0);
        }
        usage
    }

    /// One model, tried again while its failures may pass and there is time.
    async fn ask(
        &self,
        provider: &dyn Provider,
        asking: Asking<'_>,
        tally: &mut Tally,
    ) -> Result<Answered, ModelError> {
        let began = Instant::now();
        let mut waits = retry::exponential(RETRY_MIN, RETRY_MAX);
        loop {
            let error = match self.ask_once(provider, asking).await {
                Ok(answered) => return Ok(answered),
                Err(error) => error,
            };
            tally.spent.add(&error.usage);
            // What it said before it failed does not count.
            (asking.on_delta)(Piece::Anew);
            if error.kind.rule() != Rule::Retry {
                return Err(error);
            }
            let wait = waits.next().unwrap_or(RETRY_MAX).max(error.retry_after.unwrap_or_default());
            if began.elapsed() + wait > self.options.retry_within {
                return Err(error);
            }
            metrics::counter!("planner_model_retries_total", "kind" => error.kind.as_str()).increment(1);
            let name = ModelName { provider: provider.provider().to_owned(), model: provider.model().to_owned() };
            note(&mut tally.failures, error.noted(&name, "retried"));
            tokio::time::sleep(wait).await;
        }
    }

    /// One call: every call to a model goes out here.
    async fn ask_once(&self, provider: &dyn Provider, asking: Asking<'_>) -> Result<Answered, ModelError> {
        let span = open_span(provider, asking);
        let began = Instant::now();
        let result = span.instrument(provider.answer(asking.prompt, asking.on_delta)).await;
        let outcome = result.as_ref().map_or_else(|error| error.kind.as_str(), |_| "answered");
        let labels = [("provider", provider.provider().to_owned()), ("outcome", outcome.to_owned())];
        metrics::counter!("planner_model_calls_total", &labels).increment(1);
        metrics::histogram!("planner_model_call_seconds", "provider" => provider.provider().to_owned())
            .record(began.elapsed());
        meter::asked(provider, &result, began.elapsed(), span.context());
        let mut answer = match result {
            Ok(answer) => answer,
            Err(mut error) => {
                span.record_error(error.kind.as_str(), &error);
                if error.usage.tokens() > 0 {
                    self.price(provider, asking, &mut error.usage);
                }
                return Err(error);
            }
        };
        self.price(provider, asking, &mut answer.usage);
        if !answer.others.is_empty() {
            tracing::debug!(model = provider.model(), others = ?answer.others, "content that is nothing to the runtime");
        }
        describe_answer(&span, &answer);
        Ok(Answered {
            answer,
            model: format!("{}:{}", provider.provider(), provider.model()),
            traceparent: span.traceparent(),
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            failures: Vec::new(),
        })
    }

    fn price(&self, provider: &dyn Provider, Asking { agent, site, .. }: Asking<'_>, usage: &mut Usage) {
        usage.model_calls = 1;
        match self.prices.cost(provider.provider(), provider.model(), usage) {
            Some(cost) => usage.cost_microusd = cost,
            None => {
                metrics::counter!("planner_unpriced_calls_total", "model" => provider.model().to_owned()).increment(1);
                tracing::warn!(model = provider.model(), "the price of this model is not known: counted as 0");
            }
        }
        let model = format!("{}:{}", provider.provider(), provider.model());
        for (direction, count) in [
            ("input", usage.input_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("output", usage.output_tokens),
            ("reasoning", usage.reasoning_tokens),
        ] {
            if count > 0 {
                metrics::counter!("planner_tokens_total", "direction" => direction, "model" => model.clone())
                    .increment(count);
            }
        }
        let labels = [("model", model), ("agent", agent.name.clone()), ("tenant", site.tenant.to_string())];
        metrics::counter!("planner_cost_microusd_total", &labels).increment(usage.cost_microusd);
    }

    fn open(&self, name: &str, base_url: Option<&str>) -> Result<Arc<dyn Provider>, ModelError> {
        let name: ModelName = name.parse()?;
        let key = (name.clone(), base_url.map(str::to_owned));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(provider) = open.get(&key) {
            return Ok(Arc::clone(provider));
        }
        let provider = self.provider(&name, base_url)?;
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(key, Arc::clone(&provider));
        Ok(provider)
    }

    fn provider(&self, name: &ModelName, base_url: Option<&str>) -> Result<Arc<dyn Provider>, ModelError> {
        let recordings = &self.options.recordings;
        Ok(match name.provider.as_str() {
            "scripted" => Arc::new(Scenarios::provider(&self.scenarios, &name.model)),
            "replay" => Arc::new(ReplayProvider::new(recordings, &name.model)?),
            "record" => {
                let (recording, model) = name.model.split_once('/').ok_or_else(|| {
                    ModelError::misconfigured("a recorded model is named `record:<name>/<provider>:<model>`")
                })?;
                let inner: ModelName = model.parse()?;
                if inner.provider == "record" {
                    return Err(ModelError::misconfigured("a recording is not recorded again"));
                }
                Arc::new(RecordProvider::new(recordings, recording, self.provider(&inner, base_url)?)?)
            }
            _ => Arc::new(RemoteProvider::open(name, base_url, &self.options.remote, |key| std::env::var(key).ok())?),
        })
    }
}

fn open_span(provider: &dyn Provider, Asking { agent, prompt, site, tracer, .. }: Asking<'_>) -> Span {
    let parent = match site.traceparent {
        Some(traceparent) => Parent::Traceparent(traceparent),
        None => Parent::Span(TraceContext::of_run(prompt.run_id, site.sampled)),
    };
    let max_tokens = i64::try_from(prompt.max_output_tokens).unwrap_or(i64::MAX);
    tracer.span(
        SpanSpec::new(format!("chat {}", provider.model()), parent)
            .kind(SpanKind::Client)
            .run(*prompt.run_id.0.as_bytes())
            .attribute(genai::OPERATION_NAME, genai::CHAT)
            .attribute(genai::PROVIDER_NAME, provider.provider().to_owned())
            .attribute(genai::REQUEST_MODEL, provider.model().to_owned())
            .attribute(genai::REQUEST_MAX_TOKENS, max_tokens)
            .attribute(genai::AGENT_NAME, agent.name.clone())
            .attribute(genai::AGENT_ID, site.agent_digest.to_owned())
            .attribute(genai::RUN_ID, prompt.run_id.to_string())
            .attribute(genai::TURN_ID, site.turn_id.to_string())
            .attribute(genai::TENANT, site.tenant.to_string()),
    )
}

fn describe_answer(span: &Span, answer: &Answer) {
    let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
    span.set_attribute(genai::RESPONSE_MODEL, answer.model.clone());
    span.set_attribute(genai::RESPONSE_FINISH_REASONS, genai::texts([answer.finish.as_str()]));
    span.set_attribute(genai::USAGE_INPUT_TOKENS, count(answer.usage.input_tokens));
    span.set_attribute(genai::USAGE_OUTPUT_TOKENS, count(answer.usage.output_tokens));
    if answer.usage.cached_tokens > 0 {
        span.set_attribute(genai::USAGE_CACHE_READ_INPUT_TOKENS, count(answer.usage.cached_tokens));
    }
    if answer.usage.cache_write_tokens > 0 {
        span.set_attribute(genai::USAGE_CACHE_CREATION_INPUT_TOKENS, count(answer.usage.cache_write_tokens));
    }
    if let Some(id) = &answer.response_id {
        span.set_attribute(genai::RESPONSE_ID, id.clone());
    }
}
