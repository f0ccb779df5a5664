//! One turn: taken from its doorbell, shown to a model, and committed or refused.
//!
//! The lease is a hint that keeps two planners from paying for one turn; the log decides whose outcome counts.

mod asking;
mod beside;
mod compacting;
mod consumed;
mod offer;
mod recording;
mod steering;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bus::{Bus, Delivery, HandlerResult, Outcome, Subject};
use checks::{Checks, No};
use engine::{Agents, Engine, EngineError, ToolCatalog};
use kernel::{Rejection, RunId, RunState, TenantId, Timestamp, TurnId, agent::AgentSpec, event::RunRunnable};
use service::Tracer;

use crate::{
    Config,
    artifacts::{ArtifactError, Artifacts},
    gate::{Gate, read_rates},
    interrupt::{Interrupt, Interrupts},
    models::{ModelError, Models},
    preview::Preview,
    recall::Recaller,
    skills::Shelf,
    slice::{Slice, SliceInput, SliceLimits},
    tokens::Counter,
    toolbox::{BadSchema, Toolbox},
};

use beside::Around;
use consumed::Consumed;
use steering::{Before, Steered};

/// How long a turn's lease lasts without its holder: a dead planner's turn is taken up after this.
const LEASE: Duration = Duration::from_secs(8);
/// When to look again at a turn that somebody else has.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Deliveries of a doorbell after which a turn that no model answers is left to the scheduler: fewer than make a dead letter.
const PUT_OFF: u64 = 8;
/// When to ask a check again that did not answer.
const CHECK_AGAIN: Duration = Duration::from_secs(3);
/// When to look again whether a tenant has a place for a turn; later each time.
const QUEUED: Duration = Duration::from_millis(200);

/// Takes turns.
pub(crate) struct Turns {
    engine: Engine,
    /// One handle for all turns: it remembers the definitions that it has read.
    agents: Agents,
    bus: Bus,
    models: Models,
    catalog: Arc<ToolCatalog>,
    artifacts: Artifacts,
    interrupts: Interrupts,
    checks: Checks,
    preview: Arc<Preview>,
    tracer: Tracer,
    recaller: Recaller,
    shelf: Shelf,
    limits: SliceLimits,
    max_reasks: u32,
    gate: Gate,
    toolboxes: Mutex<HashMap<String, Arc<Toolbox>>>,
}

/// What turns are taken with, beside the stores and the models.
pub(crate) struct Means {
    pub(crate) catalog: Arc<ToolCatalog>,
    pub(crate) artifacts: Artifacts,
    pub(crate) interrupts: Interrupts,
    pub(crate) checks: Checks,
    pub(crate) preview: Arc<Preview>,
}

/// Why a turn came to nothing for now.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("no model answered: {0}")]
    Model(ModelError),
    #[error("{}", .0.words())]
    Check(No),
    #[error("an artifact was not stored")]
    Artifact(#[from] ArtifactError),
    #[error("the agent `{0}` with digest {1} is not in the store")]
    NoAgent(String, String),
    #[error(transparent)]
    Schema(#[from] BadSchema),
    #[error("the outcome was not committed: {0}")]
    Rejected(Rejection),
}

/// What the doorbell says.
struct Doorbell {
    run: RunId,
    tenant: String,
    opened: RunRunnable,
    /// The event that opened the turn, if the message says so.
    seq: Option<u64>,
    is_first: bool,
    traceparent: Option<String>,
}

/// What a turn is made of while it is under way.
struct Open<'a> {
    state: Arc<RunState>,
    agent: &'a AgentSpec,
    toolbox: Arc<Toolbox>,
    /// How the tokens of the model are counted that is asked first.
    counter: Counter,
    slice: Slice,
    turn_id: TurnId,
    number: u32,
    traceparent: Option<String>,
    interrupt: Interrupt,
    around: Around,
}

/// Which turn something is submitted for.
struct Asking<'a> {
    state: &'a Arc<RunState>,
    turn_id: TurnId,
    traceparent: Option<&'a str>,
}

impl Open<'_> {
    fn asking(&self) -> Asking<'_> {
        Asking { state: &self.state, turn_id: self.turn_id, traceparent: self.traceparent.as_deref() }
    }
}

/// How one answer went.
enum Tried {
    Committed,
    /// Somebody was faster, or the run has ended.
    Moot,
    Problems(Vec<String>),
    /// The policies will not let pass what it wants.
    Forbidden(Vec<String>),
    /// It wanted to read something first, and the slice has that now.
    Read,
}

impl Turns {
    pub(crate) fn new(config: &Config, engine: &Engine, models: Models, means: Means, tracer: Tracer) -> Self {
        let Means { catalog, artifacts, interrupts, checks, preview } = means;
        Self {
            engine: engine.clone(),
            agents: engine.agents(),
            bus: engine.bus().clone(),
            models,
            catalog,
            artifacts,
            interrupts,
            checks,
            preview,
            tracer,
            recaller: Recaller::new(engine),
            shelf: Shelf::new(config.skills_dir.clone(), Some(engine.skills())),
            limits: config.slice_limits(),
            max_reasks: config.max_reasks,
            gate: Gate::new(
                engine.limiter(),
                config.max_turns_per_tenant,
                read_rates(&config.provider_tokens_per_minute).unwrap_or_default(),
            ),
            toolboxes: Mutex::default(),
        }
    }

    /// Handles one doorbell.
    pub(crate) async fn take(&self, delivery: Delivery) -> HandlerResult {
        let doorbell = match read_doorbell(&delivery) {
            Ok(doorbell) => doorbell,
            Err(reason) => return Ok(Outcome::dead(reason)),
        };
        if let Some(wait) = doorbell.opened.not_before.and_then(time_until) {
            return Ok(Outcome::Defer { after: Some(wait), reason: "the turn is not to be taken yet".to_owned() });
        }
        let Some(_seat) = self.gate.enter(&doorbell.tenant) else {
            metrics::counter!("planner_turns_queued_total").increment(1);
            if delivery.delivered >= PUT_OFF {
                return Ok(Outcome::Ack);
            }
            // Given back, since whoever waits here would take the place of others; at last it is left to the scheduler.
            let doublings = u32::try_from(delivery.delivered.saturating_sub(1)).unwrap_or(u32::MAX);
            let reason = "the tenant has all the turns under way that it may have at once".to_owned();
            return Ok(Outcome::Retry { after: Some(QUEUED * 2_u32.saturating_pow(doublings)), reason });
        };
        match Box::pin(self.run(&doorbell)).await {
            Ok(outcome) => Ok(outcome),
            Err(TurnError::Model(error)) => {
                // The turn stays open and is taken again, here or elsewhere, until a model answers or the run is ended.
                metrics::counter!("planner_turns_put_off_total", "kind" => error.kind.as_str()).increment(1);
                if delivery.delivered >= PUT_OFF {
                    // The scheduler rings again for runs that nobody takes: an outage of a provider makes no dead letters.
                    tracing::warn!(run_id = %doorbell.run, %error, "no model answers: the turn waits to be called again");
                    return Ok(Outcome::Ack);
                }
                Ok(Outcome::Retry { after: error.retry_after, reason: error.message })
            }
            Err(TurnError::Check(no)) => {
                // Silence is no verdict: the turn stays open, and is taken again.
                if delivery.delivered >= PUT_OFF {
                    return Ok(Outcome::Ack);
                }
                Ok(Outcome::Retry { after: Some(CHECK_AGAIN), reason: no.words() })
            }
            Err(TurnError::Engine(error)) if error.is_transient() => Ok(Outcome::defer(error.to_string())),
            Err(error) => Ok(Outcome::retry(error.to_string())),
        }
    }

    async fn run(&self, doorbell: &Doorbell) -> Result<Outcome, TurnError> {
        let turn_id = doorbell.opened.turn_id;
        let (leases, holder) = (self.engine.leases(), &self.engine.options().instance);
        let name = format!("turn/{turn_id}");
        // Side by side: what is read may be a moment older than the lease, and the commit finds out.
        let (lease, state, remembers) = futures::join!(
            leases.acquire(&name, holder, LEASE),
            self.load(doorbell),
            self.recaller.remembers(&doorbell.tenant)
        );
        let lease = match lease {
            Ok(None) => {
                let reason = "another planner has the turn".to_owned();
                return Ok(Outcome::Defer { after: Some(LOOK_AGAIN), reason });
            }
            Ok(Some(lease)) => Some(lease),
            Err(error) => {
                // Without leases two planners may pay for one turn; still only one outcome counts.
                tracing::warn!(%error, "no lease on a turn");
                None
            }
        };
        let began = Instant::now();
        let interrupt = self.interrupts.of(doorbell.run);
        let outcome = match state? {
            Some(state) => match self.turn(doorbell, Arc::clone(&state), interrupt, remembers).await {
                Err(error @ (TurnError::NoAgent(..) | TurnError::Schema(_))) => {
                    // It will not get better by itself: the run ends and says why.
                    let asking = Asking { state: &state, turn_id, traceparent: doorbell.traceparent.as_deref() };
                    self.refuse(&asking, "provider", vec![error.to_string()], &mut Consumed::of(turn_id)).await?
                }
                result => result?,
            },
            None => "stale",
        };
        // The next turn has a lease of its own, and nobody wants one on a turn that is over. Else it is given up in the background.
        if let Some(lease) = lease.filter(|_| outcome == "committed") {
            lease.leave();
        }
        metrics::counter!("planner_turns_total", "outcome" => outcome).increment(1);
        metrics::histogram!("planner_turn_seconds").record(began.elapsed());
        Ok(Outcome::Ack)
    }

    /// The run, if the doorbell's turn is still its open one and may be taken.
    async fn load(&self, doorbell: &Doorbell) -> Result<Option<Arc<RunState>>, TurnError> {
        let may_be_taken =
            |state: &RunState| state.is_open_turn(doorbell.opened.turn_id) && state.ending.is_none() && !state.paused;
        let state = match doorbell.seq.filter(|_| doorbell.is_first) {
            // The first time, a snapshot that knows of the turn is new enough: what it lacks, the commit finds out.
            Some(seq) => self.engine.load_at_least(doorbell.run, seq, may_be_taken).await?,
            None => self.engine.load(doorbell.run).await?,
        };
        Ok(state.filter(|state| may_be_taken(state)))
    }

    async fn turn(
        &self,
        doorbell: &Doorbell,
        state: Arc<RunState>,
        interrupt: Interrupt,
        remembers: bool,
    ) -> Result<&'static str, TurnError> {
        let wake = doorbell.opened.wake.map_or("start", kernel::wait::WakeKind::as_str);
        metrics::counter!("planner_wakes_total", "kind" => wake).increment(1);
        let version = self.agents.by_digest(&state.tenant, &state.agent, &state.agent_digest).await?;
        let version = version.ok_or_else(|| TurnError::NoAgent(state.agent.clone(), state.agent_digest.clone()))?;
        let toolbox = self.toolbox(&state, &version.spec).await?;
        let before = Before {
            agent: &version.spec,
            turn_id: doorbell.opened.turn_id,
            number: doorbell.opened.number,
            traceparent: doorbell.traceparent.as_deref(),
            interrupt: &interrupt,
        };
        let state = match Box::pin(self.steer(&before, state)).await? {
            Steered::Ask(state) => state,
            Steered::Over(how) => return Ok(how),
        };
        let around = self.around(&state, &version.spec, remembers).await;
        let counter = self.models.counter(&version.spec, &state);
        counter.ready().await;
        let slice = self.slice(&state, &version.spec, (&toolbox, counter), &around);
        let mut open = Open {
            state,
            agent: &version.spec,
            toolbox,
            counter,
            slice,
            turn_id: doorbell.opened.turn_id,
            number: doorbell.opened.number,
            traceparent: doorbell.traceparent.clone(),
            interrupt,
            around,
        };
        self.ask_until_usable(&mut open).await
    }

    fn slice(
        &self,
        state: &RunState,
        agent: &AgentSpec,
        (toolbox, counter): (&Toolbox, Counter),
        around: &Around,
    ) -> Slice {
        Slice::build(&SliceInput {
            state,
            agent,
            counter,
            tool_tokens: toolbox.tokens(counter),
            missing_tools: toolbox.missing(),
            tools_trust: toolbox.trust(),
            beside: &around.all(),
            digests: &[state.agent_digest.clone(), toolbox.digest().to_owned()],
            now: Timestamp::now(),
            limits: self.limits,
        })
    }
}

fn read_doorbell(delivery: &Delivery) -> Result<Doorbell, String> {
    let subject = Subject::parse(&delivery.subject).map_err(|error| error.to_string())?;
    let Subject::Event { run, tenant, .. } = subject else { return Err("not an event of a run".to_owned()) };
    let run: RunId = run.parse().map_err(|error: kernel::IdError| error.to_string())?;
    let tenant = tenant.parse::<TenantId>().map_err(|error| error.to_string())?.to_string();
    let opened: RunRunnable = delivery.json().map_err(|error| error.to_string())?;
    let seq = delivery.msg_id().and_then(|id| id.rsplit_once('-')).and_then(|(_, seq)| seq.parse().ok());
    let traceparent = delivery.traceparent().map(str::to_owned);
    Ok(Doorbell { run, tenant, opened, seq, is_first: delivery.delivered <= 1, traceparent })
}

/// How long it is until then, if it is not over.
fn time_until(at: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(Timestamp::now())).ok().filter(|wait| !wait.is_zero())
}
