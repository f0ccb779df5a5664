//! What is remembered of agents, so that an event from outside costs no query.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kernel::{
    TenantId,
    agent::{Start, Trigger},
    watch::Watch,
};

use super::AgentVersion;
use crate::{
    externals::{ACTION_CONCLUDED, HEALTH_FIRING, wants_type},
    matching::Filter,
};

/// How long triggers are believed.
const FRESH: Duration = Duration::from_secs(1);
/// Definitions, and tenants, that are remembered at most.
const MOST: usize = 1024;

/// A trigger of an agent, ready to be tried. What an agent watches is one too: for what the observer concludes about it.
#[derive(Clone, Debug)]
pub struct AgentTrigger {
    /// The agent that it starts.
    pub agent: Arc<AgentVersion>,
    /// Which of the agent's triggers, from 0; what it watches is counted after them.
    pub index: usize,
    /// The filter; none if it takes every event of the type.
    pub filter: Option<Filter>,
    /// What tells apart the events that it holds back; the subject if there is none.
    pub key: Option<Filter>,
}

impl AgentTrigger {
    /// The triggers of a definition. One whose filter this version cannot compile is left out.
    pub(super) fn all_of(agent: &Arc<AgentVersion>) -> Vec<Self> {
        let compile = |(index, trigger): (usize, &Trigger)| {
            let compile = |expression: &Option<String>| {
                let compiled = expression.as_deref().map(Filter::compile).transpose();
                compiled.inspect_err(|error| {
                    let error = error as &dyn std::error::Error;
                    tracing::error!(agent = agent.name, index, error, "a trigger is left out");
                })
            };
            let (filter, key) = (compile(&trigger.filter).ok()?, compile(&trigger.key).ok()?);
            Some(Self { agent: Arc::clone(agent), index, filter, key })
        };
        let watching =
            AgentWatch::all_of(agent).into_iter().filter(|watch| watch.watch().is_some_and(|it| it.start.is_some()));
        let watching = watching.filter_map(|watch| {
            // Names of agents need no escape.
            let filter = format!("data.agent == \"{}\" && data.watch == {}", agent.name, watch.index);
            let filter = Some(Filter::compile(&filter).ok()?);
            Some(Self { agent: Arc::clone(agent), index: agent.spec.triggers.len() + watch.index, filter, key: None })
        });
        agent.spec.triggers.iter().enumerate().filter_map(compile).chain(watching).collect()
    }

    /// What the agent's file says; none if it is what the agent watches.
    #[must_use]
    pub fn trigger(&self) -> Option<&Trigger> {
        self.agent.spec.triggers.get(self.index)
    }

    /// What a run starts with.
    #[must_use]
    pub fn start(&self) -> Option<&Start> {
        match self.trigger() {
            Some(trigger) => Some(&trigger.start),
            None => self.watch()?.start.as_ref(),
        }
    }

    fn watch(&self) -> Option<&Watch> {
        self.agent.spec.watch.get(self.index.checked_sub(self.agent.spec.triggers.len())?)
    }

    /// Whether it is for events of this source and type. Whether the filter holds is another question.
    #[must_use]
    pub fn wants(&self, source: &str, event_type: &str) -> bool {
        match self.trigger() {
            Some(trigger) => wants_type(&trigger.on, event_type),
            // Nobody else may speak as the observer.
            None => source == crate::externals::OBSERVER && [HEALTH_FIRING, ACTION_CONCLUDED].contains(&event_type),
        }
    }
}

/// A service that an agent watches.
#[derive(Clone, Debug)]
pub struct AgentWatch {
    /// The agent.
    pub agent: Arc<AgentVersion>,
    /// Which of what it watches, from 0.
    pub index: usize,
}

impl AgentWatch {
    pub(super) fn all_of(agent: &Arc<AgentVersion>) -> Vec<Self> {
        (0..agent.spec.watch.len()).map(|index| Self { agent: Arc::clone(agent), index }).collect()
    }

    /// What the agent's file says.
    #[must_use]
    pub fn watch(&self) -> Option<&Watch> {
        self.agent.spec.watch.get(self.index)
    }
}

/// The triggers of a tenant, and when they were read.
type Triggers = (Instant, Arc<[AgentTrigger]>);

/// What a tenant's agents watch, and when it was read.
type Watches = (Instant, Arc<[AgentWatch]>);

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Cache {
    versions: Mutex<HashMap<(TenantId, String), Arc<AgentVersion>>>,
    triggers: Mutex<HashMap<TenantId, Triggers>>,
    watches: Mutex<HashMap<TenantId, Watches>>,
    reading: tokio::sync::Mutex<()>,
}

impl Cache {
    pub(super) fn version(&self, tenant: &TenantId, digest: &str) -> Option<Arc<AgentVersion>> {
        lock(&self.versions).get(&(tenant.clone(), digest.to_owned())).cloned()
    }

    pub(super) fn keep_version(&self, tenant: &TenantId, version: &Arc<AgentVersion>) {
        let mut versions = lock(&self.versions);
        make_room(&mut versions);
        versions.insert((tenant.clone(), version.digest.clone()), Arc::clone(version));
    }

    pub(super) fn triggers(&self, tenant: &TenantId) -> Option<Arc<[AgentTrigger]>> {
        let triggers = lock(&self.triggers);
        let (since, known) = triggers.get(tenant)?;
        (since.elapsed() < FRESH).then(|| Arc::clone(known))
    }

    pub(super) fn keep_triggers(&self, tenant: &TenantId, known: &Arc<[AgentTrigger]>) {
        let mut triggers = lock(&self.triggers);
        make_room(&mut triggers);
        triggers.insert(tenant.clone(), (Instant::now(), Arc::clone(known)));
    }

    pub(super) fn forget_triggers(&self, tenant: &TenantId) {
        lock(&self.triggers).remove(tenant);
        lock(&self.watches).remove(tenant);
    }

    pub(super) fn watches(&self, tenant: &TenantId) -> Option<Arc<[AgentWatch]>> {
        let watches = lock(&self.watches);
        let (since, known) = watches.get(tenant)?;
        (since.elapsed() < FRESH).then(|| Arc::clone(known))
    }

    pub(super) fn keep_watches(&self, tenant: &TenantId, known: &Arc<[AgentWatch]>) {
        let mut watches = lock(&self.watches);
        make_room(&mut watches);
        watches.insert(tenant.clone(), (Instant::now(), Arc::clone(known)));
    }

    pub(super) async fn reading(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.reading.lock().await
    }
}

/// Forgets everything rather than grow: it is read again when it is wanted.
fn make_room<K, V>(known: &mut HashMap<K, V>) {
    if known.len() >= MOST {
        known.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
