//! One turn: taken from its doorbell, shown to a model, and committed or refused.
//!
//! The lease is a hint that keeps two planners from paying for one turn; the log decides whose outcome counts.

mod beside;
mod consumed;
mod offer;
mod steering;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bus::{Bus, Delivery, HandlerResult, Outcome, Subject, retry};
use checks::{Checks, No};
use engine::{Agents, Engine, EngineError, SubmitError, ToolCatalog};
use kernel::{
    Cause, Command, Rejection, RunId, RunState, TenantId, Timestamp, TurnId,
    agent::AgentSpec,
    command::{RejectTurn, TurnOutcome},
    event::RunRunnable,
};
use service::Tracer;

use crate::{
    Config,
    artifacts::{ArtifactError, Artifacts},
    candidate::{self, Candidate, Reading},
    gate::{Gate, read_rates},
    interrupt::{Interrupt, Interrupts},
    live::Live,
    models::{
        FailureKind, ModelError, Models, Prompt, TurnKind, Unanswered, route,
        router::{Answered, CallSite},
    },
    recall::Recaller,
    skills::Shelf,
    slice::{Slice, SliceInput, SliceLimits},
    spawn,
    toolbox::{BadSchema, Toolbox},
};

use beside::Around;
use consumed::Consumed;
use steering::{Before, Steered};

/// How long a turn's lease lasts without its holder: a dead planner's turn is taken up after this.
const LEASE: Duration = Duration::from_secs(8);
/// When to look again at a turn that somebody else has.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long a paid outcome goes on being committed while the stores are away.
const COMMIT_WITHIN: Duration = Duration::from_secs(60);
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
    /// It wanted to read something first, and the slice has that now.
    Read,
}

impl Turns {
    pub(crate) fn new(config: &Config, engine: &Engine, models: Models, means: Means, tracer: Tracer) -> Self {
        let Means { catalog, artifacts, interrupts, checks } = means;
        Self {
            engine: engine.clone(),
            agents: engine.agents(),
            bus: engine.bus().clone(),
            models,
            catalog,
            artifacts,
            interrupts,
            checks,
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
                    self.refuse(&asking, "provider", vec![error.to_string()], Consumed::default()).await?
                }
                result => result?,
            },
            None => "stale",
        };
        // Given up in the background: the next turn has a lease of its own.
        drop(lease);
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
        let slice = self.slice(&state, &version.spec, &toolbox, &around);
        let mut open = Open {
            state,
            agent: &version.spec,
            toolbox,
            slice,
            turn_id: doorbell.opened.turn_id,
            number: doorbell.opened.number,
            traceparent: doorbell.traceparent.clone(),
            interrupt,
            around,
        };
        self.ask_until_usable(&mut open).await
    }

    fn slice(&self, state: &RunState, agent: &AgentSpec, toolbox: &Toolbox, around: &Around) -> Slice {
        Slice::build(&SliceInput {
            state,
            agent,
            tool_tokens: toolbox.tokens(),
            missing_tools: toolbox.missing(),
            tools_trust: toolbox.trust(),
            beside: &around.all(),
            digests: &[state.agent_digest.clone(), toolbox.digest().to_owned()],
            now: Timestamp::now(),
            limits: self.limits,
        })
    }

    async fn ask_until_usable(&self, open: &mut Open<'_>) -> Result<&'static str, TurnError> {
        let mut consumed = Consumed::default();
        let first = open.agent.model.all().first().map_or("", String::as_str);
        if let Some(wait) = self.gate.wait(first).await {
            let words = "the provider has had its tokens for this minute";
            let error = ModelError::new(FailureKind::RateLimited, words);
            return Err(TurnError::Model(ModelError { retry_after: Some(wait), ..error }));
        }
        let (mut said, mut problems) = (String::new(), Vec::new());
        let mut again = 0;
        while again <= self.max_reasks {
            if open.interrupt.is_paused() {
                // A held run opens its turn again when it goes on.
                return Ok("paused");
            }
            let user = if again == 0 {
                open.slice.user.clone()
            } else {
                metrics::counter!("planner_reasks_total").increment(1);
                open.slice.user_with_problems(&said, &problems)
            };
            let is_last = again == self.max_reasks;
            let Some(answered) = open.interrupt.or_ended(self.ask(open, user, consumed.asks)).await else {
                return Ok("aborted");
            };
            consumed.asks += 1;
            let mut answered = match answered {
                Ok(answered) => answered,
                Err(unanswered) => {
                    let error = consumed.waste(unanswered, is_last);
                    if error.is_to_be_told() {
                        again += 1;
                        (said, problems) = (String::new(), vec![error.message]);
                        continue;
                    }
                    if error.is_transient() {
                        return Err(TurnError::Model(error));
                    }
                    // Who will not answer this will not answer it later either, and not for want of trying.
                    let code = if error.kind == FailureKind::Refused { "safety" } else { "provider" };
                    return self.refuse(&open.asking(), code, vec![error.to_string()], consumed).await;
                }
            };
            fail::fail_point!("planner.after_model");
            self.gate.charge(&answered.model, answered.answer.usage.tokens()).await;
            consumed.add(&mut answered);
            match self.try_commit(open, &answered, &consumed).await? {
                Tried::Committed => return Ok("committed"),
                Tried::Moot => return Ok("superseded"),
                // It is shown what it wanted to read, and asked as if for the first time.
                Tried::Read => {}
                Tried::Problems(found) => {
                    again += 1;
                    tracing::info!(run_id = %open.state.run_id, turn = open.number, problems = ?found, "an answer cannot be used");
                    consumed.unusable(&answered, open, &found, is_last);
                    said = answered.answer.text;
                    problems = found;
                }
            }
        }
        self.refuse(&open.asking(), "invalid_output", problems, consumed).await
    }

    async fn ask(&self, open: &Open<'_>, user: String, ask: u32) -> Result<Answered, Unanswered> {
        let prompt = Prompt {
            system: open.slice.system.clone(),
            user,
            tools: open.toolbox.declarations(),
            tool_tokens: open.toolbox.tokens(),
            max_output_tokens: self.limits.output_tokens,
            run_id: open.state.run_id,
            turn: open.number,
            ask,
        };
        let site = CallSite {
            traceparent: open.traceparent.as_deref(),
            sampled: open.state.sampled,
            turn_id: open.turn_id,
            tenant: &open.state.tenant,
            agent_digest: &open.state.agent_digest,
            kind: TurnKind::of(&open.state),
            left: route::share_left(&open.state),
        };
        let live = Live::open(&self.bus, &open.state, (open.turn_id, open.number), ask);
        self.models.answer(open.agent, &prompt, &site, &self.tracer, &|piece| live.push(piece)).await
    }

    async fn try_commit(
        &self,
        open: &mut Open<'_>,
        answered: &Answered,
        consumed: &Consumed,
    ) -> Result<Tried, TurnError> {
        let read = candidate::read(
            &answered.answer,
            &Reading {
                state: &open.state,
                agent: open.agent,
                toolbox: &open.toolbox,
                slice: &open.slice,
                turn_id: open.turn_id,
                now: Timestamp::now(),
                model: &answered.model,
                usage: consumed.usage,
                model_ms: consumed.millis,
                failures: &consumed.failures,
            },
        );
        let candidate = match read {
            Ok(candidate) => candidate,
            Err(problems) => return Ok(Tried::Problems(problems)),
        };
        if let Some(tried) = self.open_skills(open, &candidate).await? {
            return Ok(tried);
        }
        let Candidate { mut outcome, drafts, spawns, .. } = candidate;
        outcome.skills.clone_from(&open.around.opened);
        if !spawns.is_empty() {
            match spawn::resolve(&self.agents, &open.state, open.agent, &spawns).await? {
                Ok(resolved) => outcome.spawns = resolved,
                Err(problems) => return Ok(Tried::Problems(problems)),
            }
        }
        let problems = self.complete_outcome(open, &mut outcome).await?;
        if !problems.is_empty() {
            return Ok(Tried::Problems(problems));
        }
        if !drafts.is_empty() {
            // Nothing is stored for an outcome that the rules refuse.
            if let Some(problems) = refused(&open.state, &outcome) {
                return Ok(Tried::Problems(problems));
            }
            for draft in &drafts {
                match self.artifacts.store(&open.state, draft, open.slice.trust).await {
                    Ok(stored) => outcome.artifacts.push(stored),
                    Err(error) if error.is_transient() => return Err(error.into()),
                    Err(error) => {
                        return Ok(Tried::Problems(vec![format!("`create_artifact` {}: {error}", draft.name)]));
                    }
                }
            }
        }
        self.extract(open, &mut outcome).await;
        self.commit(open, outcome, &answered.traceparent).await
    }

    async fn commit(&self, open: &mut Open<'_>, outcome: TurnOutcome, traceparent: &str) -> Result<Tried, TurnError> {
        let key = format!("turn/{}/{}", open.turn_id, uuid::Uuid::now_v7());
        let is_false_wake = kernel::economics::changes_nothing(&open.state, &outcome);
        let command = Command::CommitTurn(Box::new(outcome));
        match self.submit(&Asking { traceparent: Some(traceparent), ..open.asking() }, command, &key).await {
            Ok(committed) => {
                let is_ours = |event: &kernel::Event| matches!(event.data, kernel::EventData::TurnCompleted(_));
                let ours = committed.duplicate || committed.events.iter().any(is_ours);
                if ours && is_false_wake {
                    metrics::counter!("planner_false_wakes_total").increment(1);
                }
                Ok(if ours { Tried::Committed } else { Tried::Moot })
            }
            Err(SubmitError::Rejected(Rejection::InvalidOutcome(problems))) => {
                // The run has moved on since the slice was made: what is read next is read against it as it is.
                if let Some(state) = self.engine.load(open.state.run_id).await? {
                    open.state = state;
                }
                Ok(Tried::Problems(problems))
            }
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok(Tried::Moot),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    async fn refuse(
        &self,
        asking: &Asking<'_>,
        code: &'static str,
        problems: Vec<String>,
        consumed: Consumed,
    ) -> Result<&'static str, TurnError> {
        let Asking { state, turn_id, .. } = asking;
        let Consumed { usage, failures, .. } = consumed;
        tracing::warn!(run_id = %state.run_id, %turn_id, code, ?problems, "a turn is given up");
        let reject = RejectTurn { turn_id: *turn_id, code: code.to_owned(), problems, usage, failures };
        let key = format!("turn/{turn_id}/{}", uuid::Uuid::now_v7());
        match self.submit(asking, Command::RejectTurn(reject), &key).await {
            Ok(_) => Ok("rejected"),
            Err(SubmitError::Rejected(rejection)) if is_moot(&rejection) => Ok("superseded"),
            Err(SubmitError::Rejected(rejection)) => Err(TurnError::Rejected(rejection)),
            Err(SubmitError::Engine(error)) => Err(error.into()),
        }
    }

    /// Submits for a while: what a model was paid for is not thrown away because the stores blink.
    async fn submit(&self, asking: &Asking<'_>, command: Command, key: &str) -> Result<engine::Committed, SubmitError> {
        let opened_by =
            asking.state.turn.as_ref().filter(|turn| turn.turn_id == asking.turn_id).map(|turn| turn.opened_by);
        let cause = Cause {
            service: "planner".to_owned(),
            seq: opened_by,
            traceparent: asking.traceparent.map(str::to_owned),
            operator: None,
        };
        let policy =
            retry::Policy::exponential(Duration::from_millis(100), Duration::from_secs(3)).within(COMMIT_WITHIN);
        let submit = || self.engine.submit_on(asking.state, command.clone(), key, cause.clone());
        retry::when(policy, SubmitError::is_transient, submit).await
    }
}

/// Whether nothing is left to do for the turn.
const fn is_moot(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::Ended(_) | Rejection::Ending | Rejection::StaleTurn(_) | Rejection::NoSuchRun | Rejection::Paused
    )
}

/// What the rules would say to an outcome, without asking for it.
fn refused(state: &RunState, outcome: &TurnOutcome) -> Option<Vec<String>> {
    let command = Command::CommitTurn(Box::new(outcome.clone()));
    match kernel::decide(state.run_id, Some(state), &command, Timestamp::now()) {
        Err(Rejection::InvalidOutcome(problems)) => Some(problems),
        _ => None,
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
