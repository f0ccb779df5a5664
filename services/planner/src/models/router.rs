//! Which provider answers: the agent's models in their order, each tried again while it is worth it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bus::retry;
use kernel::agent::AgentSpec;
use service::{Parent, Span, SpanSpec, Tracer, telemetry::SpanKind, telemetry::genai};

use super::{
    Answer, ModelError, ModelName, OnDelta, Prompt, Provider,
    prices::Prices,
    remote::{RemoteOptions, RemoteProvider},
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
    /// How long one model is tried again after transient failures, before the next one is.
    pub retry_within: Duration,
    /// Time-outs of remote calls.
    pub remote: RemoteOptions,
}

/// A model and where it is, if not at its usual place.
type Place = (ModelName, Option<String>);

/// All models. Shared by all turns.
pub struct Models {
    options: ModelsOptions,
    scenarios: Arc<Scenarios>,
    prices: Prices,
    open: Mutex<HashMap<Place, Arc<dyn Provider>>>,
}

/// An answer, and who gave it.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The answer, with its cost.
    pub answer: Answer,
    /// `provider:model`, as asked for.
    pub model: String,
    /// W3C trace context of the span of the call.
    pub traceparent: String,
    /// How long it took, in milliseconds.
    pub millis: u64,
}

/// What spans and log lines say about a call.
#[derive(Clone, Copy, Debug)]
pub struct CallSite<'a> {
    /// W3C trace context of what led to the call.
    pub traceparent: Option<&'a str>,
    /// Whether the run's spans are exported, if nothing led to the call that says so.
    pub sampled: bool,
    /// The turn.
    pub turn_id: kernel::TurnId,
    /// The tenant.
    pub tenant: &'a kernel::TenantId,
    /// Digest of the agent's definition.
    pub agent_digest: &'a str,
}

impl Models {
    /// Ready to open providers as agents name them.
    #[must_use]
    pub fn new(options: ModelsOptions, prices: Prices) -> Self {
        let scenarios = Arc::new(Scenarios::new(options.scenarios.clone()));
        Self { options, scenarios, prices, open: Mutex::default() }
    }

    /// Asks the agent's models in their order until one answers.
    ///
    /// # Errors
    /// The last failure, if no model answers: transient if any model may answer later.
    pub async fn answer(
        &self,
        agent: &AgentSpec,
        prompt: &Prompt,
        site: &CallSite<'_>,
        tracer: &Tracer,
        on_delta: OnDelta<'_>,
    ) -> Result<Answered, ModelError> {
        let mut failure: Option<ModelError> = None;
        for name in agent.model.all() {
            let provider = match self.open(name, agent.base_url.as_deref()) {
                Ok(provider) => provider,
                Err(error) => {
                    failure = Some(graver(failure, error));
                    continue;
                }
            };
            match self.ask(&*provider, prompt, site, agent, tracer, on_delta).await {
                Ok(answered) => return Ok(answered),
                Err(error) => {
                    tracing::warn!(model = name, class = error.class(), %error, "a model did not answer");
                    failure = Some(graver(failure, error));
                }
            }
        }
        Err(failure.unwrap_or_else(|| ModelError::Permanent("the agent names no model".to_owned())))
    }

    /// One model, tried again while its failures are transient and there is time.
    async fn ask(
        &self,
        provider: &dyn Provider,
        prompt: &Prompt,
        site: &CallSite<'_>,
        agent: &AgentSpec,
        tracer: &Tracer,
        on_delta: OnDelta<'_>,
    ) -> Result<Answered, ModelError> {
        let began = Instant::now();
        let mut waits = retry::exponential(RETRY_MIN, RETRY_MAX);
        loop {
            let error = match self.ask_once(provider, prompt, site, agent, tracer, on_delta).await {
                Ok(answered) => return Ok(answered),
                Err(error) => error,
            };
            let ModelError::Transient { retry_after, .. } = &error else { return Err(error) };
            let wait = waits.next().unwrap_or(RETRY_MAX).max(retry_after.unwrap_or_default());
            if began.elapsed() + wait > self.options.retry_within {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn ask_once(
        &self,
        provider: &dyn Provider,
        prompt: &Prompt,
        site: &CallSite<'_>,
        agent: &AgentSpec,
        tracer: &Tracer,
        on_delta: OnDelta<'_>,
    ) -> Result<Answered, ModelError> {
        let span = open_span(provider, prompt, site, agent, tracer);
        let began = Instant::now();
        let result = span.instrument(provider.answer(prompt, on_delta)).await;
        let outcome = result.as_ref().map_or_else(|error| error.class(), |_| "answered");
        let labels = [("provider", provider.provider().to_owned()), ("outcome", outcome.to_owned())];
        metrics::counter!("planner_model_calls_total", &labels).increment(1);
        metrics::histogram!("planner_model_call_seconds", "provider" => provider.provider().to_owned())
            .record(began.elapsed());
        let mut answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                span.record_error(error.class(), &error);
                return Err(error);
            }
        };
        self.price(provider, &mut answer);
        describe_answer(&span, &answer);
        Ok(Answered {
            answer,
            model: format!("{}:{}", provider.provider(), provider.model()),
            traceparent: span.traceparent(),
            millis: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }

    fn price(&self, provider: &dyn Provider, answer: &mut Answer) {
        let usage = &mut answer.usage;
        usage.model_calls = 1;
        match self.prices.cost(provider.provider(), provider.model(), usage) {
            Some(cost) => usage.cost_microusd = cost,
            None => {
                metrics::counter!("planner_unpriced_calls_total", "model" => provider.model().to_owned()).increment(1);
                tracing::warn!(model = provider.model(), "the price of this model is not known: counted as 0");
            }
        }
        for (direction, count) in
            [("input", usage.input_tokens), ("cached", usage.cached_tokens), ("output", usage.output_tokens)]
        {
            metrics::counter!("planner_tokens_total", "direction" => direction).increment(count);
        }
        metrics::counter!("planner_cost_microusd_total").increment(usage.cost_microusd);
    }

    fn open(&self, name: &str, base_url: Option<&str>) -> Result<Arc<dyn Provider>, ModelError> {
        let name: ModelName = name.parse()?;
        let key = (name.clone(), base_url.map(str::to_owned));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(provider) = open.get(&key) {
            return Ok(Arc::clone(provider));
        }
        let provider: Arc<dyn Provider> = if name.provider == "scripted" {
            Arc::new(Scenarios::provider(&self.scenarios, &name.model))
        } else {
            Arc::new(RemoteProvider::open(&name, base_url, &self.options.remote, |key| std::env::var(key).ok())?)
        };
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(key, Arc::clone(&provider));
        Ok(provider)
    }
}

/// Of two failures the one that leaves more hope: what may pass is tried again.
fn graver(before: Option<ModelError>, now: ModelError) -> ModelError {
    match before {
        Some(before @ ModelError::Transient { .. }) if !matches!(now, ModelError::Transient { .. }) => before,
        _ => now,
    }
}

fn open_span(
    provider: &dyn Provider,
    prompt: &Prompt,
    site: &CallSite<'_>,
    agent: &AgentSpec,
    tracer: &Tracer,
) -> Span {
    let parent = match site.traceparent {
        Some(traceparent) => Parent::Traceparent(traceparent),
        None => Parent::Ids {
            trace_id: *prompt.run_id.0.as_bytes(),
            span_id: prompt.run_id.root_span_id(),
            sampled: site.sampled,
        },
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
    span.set_attribute(genai::RESPONSE_FINISH_REASONS, answer.finish.as_str().to_owned());
    span.set_attribute(genai::USAGE_INPUT_TOKENS, count(answer.usage.input_tokens));
    span.set_attribute(genai::USAGE_OUTPUT_TOKENS, count(answer.usage.output_tokens));
    if answer.usage.cached_tokens > 0 {
        span.set_attribute(genai::USAGE_CACHE_READ_INPUT_TOKENS, count(answer.usage.cached_tokens));
    }
    if let Some(id) = &answer.response_id {
        span.set_attribute(genai::RESPONSE_ID, id.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_worth_more_than_what_will_not() {
        let transient = ModelError::transient("busy");
        let permanent = ModelError::Permanent("no key".to_owned());
        assert_eq!(graver(Some(transient.clone()), permanent.clone()), transient);
        assert_eq!(graver(Some(permanent.clone()), transient.clone()), transient);
        assert_eq!(graver(None, permanent.clone()), permanent);
    }
}
