//! Whether a call will certainly be denied, looked at before it is committed: so no event, no dispatch and no question to a
//! person is wasted on it, and the model hears the reason at once.
//!
//! This is advice. The tool-executor decides, next to the effect, and knows what is not known here: what a call reaches, how
//! it is confined, what else was spent. So only what holds whatever those turn out to be is taken for a denial. A call that a
//! model insists on goes on to the tool-executor, and stands in the log as denied by it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use engine::{Engine, EngineError, ToolCatalog};
use kernel::{
    RunState, Seq, Timestamp,
    agent::AgentSpec,
    call::CallRequest,
    tool::{ToolRun, ToolSpec},
};
use policy::{
    ArgumentProvenance, Foreseen, Judged, Labels, LogPage, Origin, Policies, PolicyStore, Request, RunLog, SEEN_PAGE,
    Seen, Traced, Unknown,
};
use serde_json::Value;

use crate::toolbox::{Offered, Toolbox};

/// How often it is looked whether the policies have changed.
const EVERY: Duration = Duration::from_secs(1);
/// Labels that are kept.
const MAX_LABELS: usize = 1024;

/// Looks at calls.
pub struct Preview {
    dir: PathBuf,
    /// Where calls are carried out, such as `production`; none if that is not known here.
    environment: Option<String>,
    /// None as long as there is nothing to read.
    policies: RwLock<Option<PolicyStore>>,
    /// What authors of tools say about arguments and results, by the digests of their declarations.
    labels: Mutex<HashMap<String, Arc<Labels>>>,
    engine: Engine,
    catalog: Arc<ToolCatalog>,
}

/// A run whose calls are looked at.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The run.
    pub state: &'a RunState,
    /// Its agent.
    pub agent: &'a AgentSpec,
    /// What it was offered.
    pub toolbox: &'a Toolbox,
}

/// A call with all that is known of it without the log.
struct Known<'a> {
    call: &'a CallRequest,
    spec: &'a ToolSpec,
    arguments: Value,
    labels: Arc<Labels>,
    now: Timestamp,
}

impl Preview {
    /// With the policies of a folder, if they can be read. Otherwise calls go unseen to the tool-executor, until they can.
    /// `environment` is empty if it is not known.
    #[must_use]
    pub fn new(dir: PathBuf, environment: &str, engine: Engine, catalog: Arc<ToolCatalog>) -> Self {
        let environment = Some(environment.to_owned()).filter(|environment| !environment.is_empty());
        let preview = Self { dir, environment, policies: RwLock::new(None), labels: Mutex::default(), engine, catalog };
        match PolicyStore::open(&preview.dir) {
            Ok(policies) => preview.take(policies),
            Err(error) => {
                metrics::gauge!("planner_previews").set(0);
                let dir = preview.dir.display();
                tracing::warn!(%dir, %error, "the policies can't be read here: no call is looked at before it is committed");
            }
        }
        preview
    }

    /// Takes in changed policies, for ever.
    pub async fn keep_up(self: Arc<Self>) {
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            let preview = Arc::clone(&self);
            // Files are read and policies compiled, which takes a while.
            if tokio::task::spawn_blocking(move || preview.look_again()).await.is_err() {
                tracing::error!("looking for changed policies failed");
            }
        }
    }

    fn look_again(&self) {
        let Some(policies) = self.store() else {
            // Said when it began; it is news when it can be had.
            if let Ok(policies) = PolicyStore::open(&self.dir) {
                self.take(policies);
                tracing::info!("the policies can be read now: calls are looked at before they are committed");
            }
            return;
        };
        match policies.reload_if_changed() {
            Ok(Some(version)) => tracing::info!(version, "the policies have changed"),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the changed policies can't be used; those before stay in force"),
        }
    }

    fn take(&self, policies: PolicyStore) {
        *self.policies.write().unwrap_or_else(PoisonError::into_inner) = Some(policies);
        metrics::gauge!("planner_previews").set(1);
    }

    fn store(&self) -> Option<PolicyStore> {
        self.policies.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in the way of calls, in words for the model. Nothing of most, which is no promise: also when the log can't be read
    /// that says where arguments come from, since no answer that is paid for is worth less than advice about it.
    pub async fn refusals(&self, asking: Asking<'_>, calls: &[CallRequest]) -> Vec<String> {
        let mut refusals = Vec::new();
        if calls.is_empty() {
            return refusals;
        }
        let Some(policies) = self.store().map(|store| store.current()) else { return refusals };
        // What the run has seen is the same for all of them.
        let mut seen = None;
        for call in calls {
            let Some(Offered::Tool(tool)) = asking.toolbox.find(&call.tool).map(|offer| &offer.offered) else {
                continue;
            };
            match self.refusal(&policies, asking, call, &tool.spec, &mut seen).await {
                Ok(words) => refusals.extend(words.map(|words| format!("`{}`: {words}", call.tool))),
                Err(error) => {
                    // The tool-executor looks at all of them anyway.
                    tracing::debug!(run_id = %asking.state.run_id, %error, "calls go on unseen: where their arguments come from can't be read");
                    break;
                }
            }
        }
        if !refusals.is_empty() {
            metrics::counter!("planner_previewed_denials_total").increment(1);
        }
        refusals
    }

    async fn refusal(
        &self,
        policies: &Policies,
        asking: Asking<'_>,
        call: &CallRequest,
        spec: &ToolSpec,
        seen: &mut Option<Seen>,
    ) -> Result<Option<String>, EngineError> {
        if let Some(words) = policy::not_permitted(asking.state, spec) {
            return Ok(Some(words));
        }
        // A label that means nothing keeps its tool from being used: that is not the policies' to say.
        let Some(labels) = self.labels(&call.schema_digest, spec) else { return Ok(None) };
        let traced = Traced::of(call.trust, spec, &labels);
        let mut arguments = call.arguments.clone();
        policy::with_defaults(&mut arguments, &spec.input);
        let known = Known { call, spec, arguments, labels, now: Timestamp::now() };
        let is_unknown = traced != Traced::Nothing;
        let mut foreseen = self.foresee(policies, asking.state, &known, &[], is_unknown);
        if let (true, Traced::Arguments(care)) = (foreseen.hinges_on_origins, traced) {
            if seen.is_none() {
                *seen = Some(Seen::read(&Log { preview: self, state: asking.state }, asking.agent).await?);
            }
            let origins = seen
                .as_ref()
                .map(|seen| policy::trace(&known.arguments, &known.labels, seen.sources(), care))
                .unwrap_or_default();
            let matters: Vec<_> = origins.iter().filter_map(Origin::deciding).collect();
            foreseen = self.foresee(policies, asking.state, &known, &matters, false);
        }
        Ok(words(&foreseen, spec))
    }

    fn foresee(
        &self,
        policies: &Policies,
        state: &RunState,
        known: &Known<'_>,
        matters: &[ArgumentProvenance],
        origins: bool,
    ) -> Foreseen {
        let Known { call, spec, arguments, now, .. } = known;
        let judged = Judged { state, request: call, spec, arguments, matters, believed: call.trust, now: *now };
        let environment = self.environment.as_deref();
        let request = Request { environment: environment.unwrap_or_default(), ..judged.request() };
        policies.foresee(&request, Unknown { origins, environment: environment.is_none() })
    }

    /// The labels of a tool that was called: of one of our own as it is now, of a server's as it was then.
    async fn labels_of(&self, call: &CallRequest) -> Result<Option<Arc<Labels>>, EngineError> {
        if let (Some(spec), Some(digest)) = (self.catalog.get(&call.tool), self.catalog.digest(&call.tool)) {
            return Ok(self.labels(digest, &spec));
        }
        if let Some(kept) = self.kept().get(&call.schema_digest) {
            return Ok(Some(Arc::clone(kept)));
        }
        let version = self.engine.mcp().version(&call.tool, &call.schema_digest).await?;
        let version = version.filter(|version| matches!(version.spec.run, ToolRun::Mcp(_)));
        Ok(version.and_then(|version| self.labels(&version.digest, &version.spec)))
    }

    fn labels(&self, digest: &str, spec: &ToolSpec) -> Option<Arc<Labels>> {
        if let Some(kept) = self.kept().get(digest) {
            return Some(Arc::clone(kept));
        }
        let labels = Arc::new(Labels::new(&spec.input, spec.output.as_ref()).ok()?);
        let mut kept = self.kept();
        if kept.len() >= MAX_LABELS {
            kept.clear();
        }
        kept.insert(digest.to_owned(), Arc::clone(&labels));
        Some(labels)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Labels>>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The log of a run.
struct Log<'a> {
    preview: &'a Preview,
    state: &'a RunState,
}

impl RunLog for Log<'_> {
    type Error = EngineError;

    async fn page(&self, after: Seq) -> Result<LogPage, EngineError> {
        let RunState { tenant, run_id, .. } = self.state;
        let page = self.preview.engine.reads().events(tenant, *run_id, after, SEEN_PAGE).await?;
        Ok(page.iter().map(|stored| (stored.seq, stored.decode())).collect())
    }

    async fn labels(&self, call: &CallRequest) -> Result<Option<Arc<Labels>>, EngineError> {
        self.preview.labels_of(call).await
    }
}

/// What is foreseen, in words for the model.
fn words(foreseen: &Foreseen, spec: &ToolSpec) -> Option<String> {
    if let Some(denial) = &foreseen.denial {
        let policies: Vec<_> = denial.reasons.iter().map(|reason| reason.policy.as_str()).collect();
        return Some(format!("the policies do not let it pass ({}): {}", policies.join(", "), denial.explanation()));
    }
    let unmet = policy::unmet(&foreseen.obligations, spec)?;
    Some(format!("the policies do not let it pass: they oblige to {unmet}"))
}
