//! Puts together what all readers have found about actions, judges, and tells: one observer at a time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bus::{Bus, PARTITIONS};
use engine::{ACTION_CONCLUDED, ActionState, Actions, Engine, EngineError, Lease, SubmitError};
use jiff::SignedDuration;
use kernel::{
    ActionId, Cause, Command, RunId, TenantId, Timestamp,
    action::{Action, ActionConclusion, ActionOutcome, Verified},
};
use serde_json::json;
use service::{Parent, SpanSpec, TraceContext, Tracer, telemetry::genai};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    judge::{Found, Next, Reading, conclude, judge},
    open::Window,
    slice::Slice,
    verify,
};
use crate::{
    meter,
    services::{
        alarm::Herald,
        watches::{CompiledWatch, WatchBook},
    },
};

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The wait when somebody else looks, or the leases can't be reached.
const LOOK_AGAIN: Duration = Duration::from_millis(1000);
/// Actions that are looked after at once.
const MOST: u32 = 4096;
/// Looks at the world, as long as it does not show what the logs say: an effect may take a moment to be seen.
const TRIES: u32 = 3;
/// How long all must have been read before silence counts: what was read last is on its way here.
const SETTLED: Duration = Duration::from_secs(2);
/// How much longer than it may take an action waits for logs that are not read.
const UNREAD: Duration = Duration::from_secs(120);
const NAME: &str = "observer/actions";

/// Concludes about actions.
pub(crate) struct Closer {
    pub(crate) bus: Bus,
    pub(crate) engine: Engine,
    pub(crate) book: WatchBook,
    pub(crate) herald: Herald,
    pub(crate) tracer: Tracer,
    pub(crate) lease: Duration,
    looks: HashMap<ActionId, Looks>,
    looked_at: Option<Instant>,
    read_since: Option<Instant>,
}

/// Looks at the world for one action.
#[derive(Default)]
struct Looks {
    tries: u32,
    under_way: Option<JoinHandle<Vec<Verified>>>,
    not_before: Option<Instant>,
}

impl Closer {
    pub(crate) fn new(
        bus: Bus,
        engine: Engine,
        book: WatchBook,
        herald: Herald,
        tracer: Tracer,
        lease: Duration,
    ) -> Self {
        Self { bus, engine, book, herald, tracer, lease, looks: HashMap::new(), looked_at: None, read_since: None }
    }

    /// Concludes whenever it is this instance's turn, until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let holder = self.engine.options().instance.clone();
        loop {
            let lease = match self.engine.leases().acquire(NAME, &holder, self.lease).await {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::warn!(%error, "can't see who concludes about actions");
                    None
                }
            };
            match lease {
                Some(lease) => {
                    self.conclude_while(&lease, &stop).await;
                    self.looks.clear();
                    lease.release().await;
                }
                None => drop(stop.run_until_cancelled(tokio::time::sleep(LOOK_AGAIN)).await),
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    async fn conclude_while(&mut self, lease: &Lease, stop: &CancellationToken) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = lease.lost() => return,
                _ = every.tick() => {}
            }
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "can't look after actions now");
            }
        }
    }

    async fn round(&mut self) -> Result<(), EngineError> {
        let actions = self.engine.actions();
        let rows = actions.unfinished(MOST).await?;
        let open: Vec<ActionId> =
            rows.iter().filter(|row| row.state == ActionState::Open).map(|row| row.action.action_id).collect();
        let mut slices = found(&actions, &open).await?;
        let known: HashSet<ActionId> = open.into_iter().collect();
        self.looks.retain(|id, _| known.contains(id));
        for row in rows {
            let tenant = row.action.tenant.clone();
            let watches = self.book.of(&tenant).await?;
            match row.state {
                ActionState::Open => {
                    let slices = slices.remove(&row.action.action_id).unwrap_or_default();
                    let window = Window::new(row, &watches);
                    if let Some(conclusion) = self.close(&window, &slices).await?
                        && actions.decide(window.id(), &conclusion).await?
                    {
                        meter::concluded(conclusion.outcome.as_str(), window.opened_at);
                        self.tell(&window.action, &conclusion, &watches).await?;
                    }
                }
                // Whoever decided died before it told.
                ActionState::Decided => {
                    if let Some(conclusion) = &row.conclusion {
                        self.tell(&row.action, conclusion, &watches).await?;
                    }
                }
                ActionState::Told => {}
            }
        }
        Ok(())
    }

    /// The conclusion, if it is time for one.
    async fn close(
        &mut self,
        window: &Window,
        slices: &[(String, Slice)],
    ) -> Result<Option<ActionConclusion>, EngineError> {
        let now = Timestamp::now();
        let found = Found { slices, gaps: 0 };
        let Next::Close(reading) = judge(window.rule(), window.opened_at, &found, now) else { return Ok(None) };
        let is_sure = matches!(reading.outcome, ActionOutcome::TookEffect | ActionOutcome::Failed);
        // That nothing was said is only known once all that was said is read; but nobody waits for that for ever.
        let last = window.opened_at.checked_add(window.rule().within * 2 + UNREAD).unwrap_or(Timestamp::MAX);
        if !is_sure && now < last && !self.is_all_read().await {
            return Ok(None);
        }
        let Some(verified) = self.verified(window, &reading).await else { return Ok(None) };
        let gaps = self.gaps(&window.action).await?;
        let found = Found { slices, gaps };
        Ok(Some(conclude(&window.action, window.rule(), &found, &reading, verified)))
    }

    /// Whether all partitions have readers, and these have been given all there is, for a while.
    async fn is_all_read(&mut self) -> bool {
        if self.looked_at.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.looked_at = Some(Instant::now());
            let is_read = self.looks_read().await;
            self.read_since = if is_read { self.read_since.or(Some(Instant::now())) } else { None };
        }
        self.read_since.is_some_and(|since| since.elapsed() >= SETTLED)
    }

    async fn looks_read(&self) -> bool {
        let names: Vec<String> = (0..PARTITIONS).map(|number| format!("observer/{number}")).collect();
        let held = self.engine.leases().held_many(&names).await;
        if !held.is_ok_and(|held| held.iter().all(|is_held| *is_held)) {
            return false;
        }
        for number in 0..PARTITIONS {
            let status = self.bus.consumer_status(&format!("observer-{number}")).await;
            if !status.is_ok_and(|status| status.pending == 0) {
                return false;
            }
        }
        true
    }

    /// What the world shows; none as long as it is being looked at.
    async fn verified(&mut self, window: &Window, reading: &Reading) -> Option<Vec<Verified>> {
        let (rule, agent) = (window.rule(), window.agent());
        let Some(agent) = agent.filter(|_| !rule.verify.is_empty()) else { return Some(Vec::new()) };
        let looks = self.looks.entry(window.id()).or_default();
        match looks.under_way.take_if(|looking| looking.is_finished()) {
            Some(looking) => {
                let verified = looking.await.unwrap_or_default();
                let shows_it = !verified.is_empty() && verified.iter().all(|look| look.holds == Some(true));
                // That it did not happen needs no second look, unless the logs say that it did.
                let is_settled = shows_it
                    || (reading.outcome == ActionOutcome::Failed && verified.iter().any(|look| look.holds.is_some()));
                if is_settled || looks.tries >= TRIES {
                    return Some(verified);
                }
                looks.not_before = Some(Instant::now() + rule.settle);
                None
            }
            None if looks.under_way.is_some() || looks.not_before.is_some_and(|then| Instant::now() < then) => None,
            None => {
                looks.tries += 1;
                let (bus, agent, action, steps) =
                    (self.bus.clone(), agent.to_owned(), window.action.clone(), rule.verify.clone());
                looks.under_way = Some(tokio::spawn(async move {
                    let mut verified = Vec::new();
                    for step in &steps {
                        verified.push(verify::look(&bus, &agent, &action, step).await);
                    }
                    verified
                }));
                None
            }
        }
    }

    /// Signals that are missing from the time of an action and may have been its own.
    async fn gaps(&self, action: &Action) -> Result<u64, EngineError> {
        let since = action.at.checked_sub(SignedDuration::from_secs(5)).unwrap_or(action.at);
        let gaps = self.engine.services().gaps(&action.tenant, since, engine::MAX_ROWS).await?;
        let own = gaps.iter().filter(|gap| gap.service.as_ref().is_none_or(|service| *service == action.service));
        Ok(own.map(|gap| gap.messages).sum())
    }

    /// Tells whoever asked, or whoever watches the service. Doing it again changes nothing.
    async fn tell(
        &self,
        action: &Action,
        conclusion: &ActionConclusion,
        watches: &[Arc<CompiledWatch>],
    ) -> Result<(), EngineError> {
        match action.run_id {
            Some(run) => self.tell_run(run, action, conclusion).await?,
            None => self.tell_watchers(&action.tenant, action, conclusion, watches).await,
        }
        self.engine.actions().told(action.action_id).await
    }

    async fn tell_run(&self, run: RunId, action: &Action, conclusion: &ActionConclusion) -> Result<(), EngineError> {
        let Some(state) = self.engine.load(run).await?.filter(|state| state.tenant == action.tenant) else {
            return Ok(());
        };
        let parent = Parent::Span(TraceContext::of_run(run, state.sampled));
        let spec = SpanSpec::new("observe action", parent)
            .attribute(genai::RUN_ID, run.to_string())
            .attribute(genai::TENANT, action.tenant.to_string())
            .attribute("escapement.action", action.action_id.to_string())
            .attribute("escapement.observation.phase", conclusion.outcome.as_str());
        let span = self.tracer.span(spec);
        let cause = Cause { service: "observer".to_owned(), traceparent: Some(span.traceparent()), ..Cause::default() };
        let command = Command::Observe(conclusion.observation.clone());
        let told = self.engine.submit(run, command, format!("action/{}", action.action_id), cause).await;
        let told = match told {
            Ok(committed) => {
                if !committed.duplicate {
                    meter::observed(&conclusion.observation, false);
                }
                Ok(())
            }
            // It has ended, and wants to hear nothing more.
            Err(SubmitError::Rejected(rejection)) => {
                tracing::debug!(%rejection, %run, "a run does not hear what came of an action");
                Ok(())
            }
            Err(SubmitError::Engine(error)) => Err(error),
        };
        span.end();
        told
    }

    async fn tell_watchers(
        &self,
        tenant: &TenantId,
        action: &Action,
        conclusion: &ActionConclusion,
        watches: &[Arc<CompiledWatch>],
    ) {
        let watching = watches.iter().filter(|watch| watch.actions.is_some() && watch.watch.is_about(&action.service));
        let watching: Vec<_> = watching.map(|watch| Some((watch.agent.as_str(), watch.index))).collect();
        let everybody = if watching.is_empty() { vec![None] } else { watching };
        for who in everybody {
            let (name, agent, index) = match who {
                Some((agent, index)) => (format!("{agent}/{index}"), Some(agent), Some(index)),
                None => (String::new(), None, None),
            };
            let id = format!("action/{}/{name}", action.action_id);
            let data = json!({
                "agent": agent, "watch": index, "service": action.service, "action": action,
                "outcome": conclusion.outcome, "stage": conclusion.stage, "changed": conclusion.observation.changed,
                "anomaly": conclusion.observation.anomaly, "evidence": conclusion.observation.evidence,
                "missing": conclusion.observation.missing, "verified": conclusion.verified,
            });
            self.herald.say(tenant, ACTION_CONCLUDED, &id, &action.service, data).await;
        }
    }
}

/// What was found about actions, in the logs of which services.
async fn found(actions: &Actions, ids: &[ActionId]) -> Result<HashMap<ActionId, Vec<(String, Slice)>>, EngineError> {
    let mut found: HashMap<ActionId, BTreeMap<String, Slice>> = HashMap::new();
    for slice in actions.slices(ids).await? {
        match serde_json::from_str(slice.state.get()) {
            Ok(state) => drop(found.entry(slice.action_id).or_default().insert(slice.service, state)),
            Err(error) => {
                tracing::warn!(action = %slice.action_id, %error, "what was found about an action can't be read");
                meter::passed_over("slice");
            }
        }
    }
    Ok(found.into_iter().map(|(id, slices)| (id, slices.into_iter().collect())).collect())
}
