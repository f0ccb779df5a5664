//! From a doorbell to what is done about a call.
//!
//! A message only says where to look: what is to be done follows from the run as the log has it. Whoever holds the lease
//! `call/<id>` works on the call; if that lies, the log settles it.

use std::sync::Arc;
use std::time::Duration;

use bus::{Delivery, HandlerResult, Outcome};
use engine::{Engine, Lease, Pace, SubmitError};
use futures::future::join_all;
use jiff::Timestamp;
use kernel::call::{Call, CallFailure, CallStatus};
use kernel::command::{Command, DenyCall, FailCall, StartCall};
use kernel::tool::CallKind;
use kernel::{Block, CallId, Rejection, RunState, Trust};
use service::Tracer;

use crate::activity::{Activities, Activity};
use crate::beside::{Entry, Held, Locks};
use crate::claims::{Claim, Claims};
use crate::doorbell::Doorbell;
use crate::evidence;
use crate::followed::Following;
use crate::freeze::KillSwitch;
use crate::limits::Limits;
use crate::parked::Parked;
use crate::pipeline::{Pipeline, Question, Ready, Verdict};
use crate::registry::Refusal;
use crate::results::Results;
use crate::task::Task;
use crate::tools::{Builtin, Tools};

/// When a call that somebody else works on is looked at again.
const HELD_AGAIN: Duration = Duration::from_secs(2);
/// Turns that one call may take in one go: a recovery that leads to a start that leads to a doubt, and again.
const MAX_ROUNDS: usize = 4;
/// How long an outcome that is known goes on being recorded.
pub(crate) const RECORD_WITHIN: Duration = Duration::from_secs(60);

/// Does what is to be done about calls.
pub(crate) struct Dispatcher {
    pub engine: Engine,
    pub kill_switch: KillSwitch,
    pub pipeline: Pipeline,
    pub tools: Tools,
    pub results: Results,
    pub limits: Limits,
    pub activities: Activities,
    pub locks: Locks,
    pub tracer: Tracer,
    /// This process, among its like.
    pub instance: String,
    pub lease: Duration,
    /// How often what goes on elsewhere is asked about.
    pub pace: Pace,
    /// How long a call in doubt is asked about.
    pub doubt: Duration,
    /// How long after its start was asked for an effect with a read-back may still begin.
    pub begin_within: Duration,
    /// Calls that go on as tasks of MCP servers.
    pub following: Following,
    /// Calls that something is in the way of.
    pub parked: Parked,
    /// Calls that this process works on.
    pub claims: Claims,
}

/// What comes of one turn of a call.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing more to do now.
    Done(Outcome),
    /// The call stands elsewhere now: look at it again.
    Again,
}

impl Next {
    pub const ACK: Self = Self::Done(Outcome::Ack);
}

impl Dispatcher {
    /// Handles a message.
    pub async fn handle(&self, delivery: &Delivery) -> HandlerResult {
        let bell = match Doorbell::read(delivery) {
            Ok(bell) => bell,
            Err(reason) => return Ok(Outcome::dead(reason)),
        };
        match bell.wait() {
            // Most waits can't be asked about, and are nothing to an executor.
            Some((_, false)) => return Ok(Outcome::Ack),
            Some((wait, true)) => return self.verify_wait(&bell, wait).await.or_else(settle_error),
            None => {}
        }
        let loaded = match bell.seq {
            Some(seq) => {
                let rang = |state: &RunState| {
                    bell.is_of_no_call(state) || bell.calls(state).iter().any(|call| state.calls.contains_key(call))
                };
                self.engine.load_at_least(bell.run, seq, rang).await
            }
            None => self.engine.load(bell.run).await,
        };
        let state = match loaded {
            Ok(Some(state)) => state,
            Ok(None) => return Ok(Outcome::dead("there is no such run")),
            Err(error) => return settle_error(error.into()),
        };
        let calls = bell.calls(&state);
        let outcomes = join_all(calls.into_iter().map(|call| self.take(&bell, &state, call))).await;
        // What ended just now may have been the last thing that was in the way.
        if bell.is_about_ending(&state)
            && let Err(error) = self.compensate(bell.run, bell.seq).await
        {
            return settle_error(error);
        }
        // One message, one answer: what asks to be tried again wins.
        let mut answer = Outcome::Ack;
        for outcome in outcomes {
            match outcome.or_else(settle_error)? {
                Outcome::Ack => {}
                other => answer = other,
            }
        }
        Ok(answer)
    }

    /// Works on one call until there is nothing more to do about it now.
    async fn take(&self, bell: &Doorbell, state: &Arc<RunState>, call_id: CallId) -> Result<Outcome, SubmitError> {
        let Some(call) = state.calls.get(&call_id) else { return Ok(Outcome::Ack) };
        if is_instant(call) && is_open(call) && call.put_off.is_none() && !state.paused {
            let task = self.task(state.clone(), call.clone(), bell);
            if let Next::Done(outcome) = self.dispatch(&task, &mut None).await? {
                return Ok(outcome);
            }
        }
        let Some(_claim) = self.claim(call_id) else { return Ok(held(call)) };
        let acquired = self.engine.leases().acquire(&format!("call/{call_id}"), &self.instance, self.lease).await?;
        let Some(lease) = acquired else { return Ok(held(call)) };
        let mut lease = Some(lease);
        let outcome = Box::pin(self.rounds(bell, call_id, &mut lease)).await;
        if let Some(lease) = lease {
            lease.release().await;
        }
        outcome
    }

    async fn rounds(
        &self,
        bell: &Doorbell,
        call_id: CallId,
        lease: &mut Option<Lease>,
    ) -> Result<Outcome, SubmitError> {
        for _ in 0..MAX_ROUNDS {
            // Only now is it certain that nobody else is at it, so only now the state counts.
            let Some(state) = self.engine.load(bell.run).await? else { return Ok(Outcome::Ack) };
            let Some(call) = state.calls.get(&call_id).cloned() else { return Ok(Outcome::Ack) };
            // Its doorbell rings again when it is approved or the run is resumed; an ending run has cancelled it.
            let held_back = (state.paused || state.ending.is_some()) && !call.request.is_compensation();
            // Its timer rings when its time comes.
            let too_soon = call.put_off.is_some_and(|put_off| put_off.until > Timestamp::now());
            if call.status == CallStatus::AwaitingApproval || (is_open(&call) && held_back) || too_soon {
                return Ok(Outcome::Ack);
            }
            let task = self.task(state, call, bell);
            let next = if is_open(&task.call) {
                self.dispatch(&task, lease).await?
            } else {
                self.recover(&task, lease).await?
            };
            if let Next::Done(outcome) = next {
                return Ok(outcome);
            }
        }
        Ok(Outcome::retry("the call does not settle"))
    }

    /// Judges a call and does what comes of it.
    pub async fn dispatch(&self, task: &Task, lease: &mut Option<Lease>) -> Result<Next, SubmitError> {
        if task.state.simulated && task.call.needs_start() {
            return self.simulate(task).await;
        }
        match self.pipeline.judge(&task.state, &task.call).await? {
            Verdict::Refused(refusal) => self.refuse(task, refusal).await,
            Verdict::Ask(question) => self.ask(task, *question).await,
            Verdict::Go(ready) => {
                let held = match self.enter(task, &ready).await? {
                    Ok(held) => held,
                    Err(blocked) => return Ok(blocked),
                };
                if task.call.request.kind == CallKind::Activity && !ready.tool.is_remote() {
                    return self.start_activity(task, &ready, lease, held).await;
                }
                self.carry_out(task, &ready, lease, held).await
            }
        }
    }

    /// Takes what the call needs for itself; what is in its way makes it come again later.
    async fn enter(&self, task: &Task, ready: &Ready) -> Result<Result<Held, Next>, SubmitError> {
        // One that has started is in the others' way, not they in its.
        if !task.call.is_started()
            && let Some(other) = self.ahead(&task.state, &task.call).await?
        {
            return Ok(Err(self.later(task, &format!("`{}` of the same turn goes first", other.request.tool))));
        }
        let needs = ready.tool.needs(task.state.run_id, &ready.arguments, ready.means.host(&ready.arguments));
        match self.locks.enter(&task.state.tenant, task.id(), &needs).await? {
            Entry::Free(held) => {
                self.parked.forget(task.id());
                Ok(Ok(held))
            }
            Entry::Blocked(reason) => Ok(Err(self.later(task, &reason))),
        }
    }

    /// Something else is in the way of a call: it is rung for again when that is gone.
    fn later(&self, task: &Task, reason: &str) -> Next {
        if task.call.is_started() {
            // Its executor is gone, so this message is what there is of it.
            return Next::Done(Outcome::retry(reason));
        }
        self.parked.park(task.state.run_id, task.id(), std::time::Instant::now());
        task.ended("parked", None);
        tracing::debug!(run_id = %task.state.run_id, call = %task.id(), reason, "a call waits");
        Next::ACK
    }

    /// What an activity holds whose executor is gone, for whoever follows it now.
    pub async fn retake(&self, state: &RunState, call: &Call) -> Held {
        let Some(tool) = self.pipeline.registry.now(&call.request.tool) else { return Held::default() };
        let Ok(arguments) = tool.check(&call.request.arguments) else { return Held::default() };
        let host = tool.means.as_ref().ok().and_then(|means| means.host(&arguments));
        self.locks.retake(&state.tenant, call.request.call_id, &tool.needs(state.run_id, &arguments, host)).await
    }

    pub async fn refuse(&self, task: &Task, refusal: Refusal) -> Result<Next, SubmitError> {
        let Refusal { code, words } = refusal;
        task.ended("denied", Some((code, &words)));
        let call_id = task.id();
        let block = Block::new(words, Trust::System, "runtime");
        let command = if task.call.is_started() {
            // It can't be denied any more, only not be done again.
            let failure = CallFailure { block, code: code.to_owned(), duration_ms: 0 };
            Command::FailCall(FailCall { call_id, failure })
        } else {
            Command::DenyCall(DenyCall { call_id, code: code.to_owned(), reason: block })
        };
        self.record(task, command, "deny").await
    }

    async fn ask(&self, task: &Task, question: Question) -> Result<Next, SubmitError> {
        let Question { mut approval, rehearsal } = question;
        if task.call.is_started() {
            let words = "the policies ask a person by now, and it may have happened already: it is not done again";
            return self.refuse(task, Refusal::new("policy", words)).await;
        }
        evidence::show(&self.engine, &task.state, &task.call, &mut approval.shown).await?;
        if let Some(rehearsal) = &rehearsal {
            match Box::pin(self.rehearse(task, rehearsal, None)).await? {
                Ok(shown) => approval.shown.evidence.push(shown),
                Err(next) => return Ok(next),
            }
        }
        task.ended("asked", None);
        let step = format!("ask/{}", approval.approval_id);
        self.record(task, Command::AskApproval(Box::new(approval)), &step).await
    }

    /// Commits `tool.started`. The state after it, or what else is to be done.
    pub async fn start(&self, task: &Task, ready: &Ready) -> Result<Result<Arc<RunState>, Next>, SubmitError> {
        let executor = self.instance.clone();
        let command = Command::StartCall(StartCall { call_id: task.id(), executor, binding: ready.binding.clone() });
        // Of one process, since the second of two starts would otherwise be taken for the first one's echo.
        let step = format!("start/{}/{}", task.call.attempts + 1, self.instance);
        match self.engine.submit_on(&task.state, command, task.key(&step), task.cause()).await {
            Ok(committed) => Ok(Ok(committed.state)),
            Err(SubmitError::Rejected(Rejection::GrantMismatch(_))) => {
                // A dry run before this has moved the log on.
                let Some(state) = self.engine.load(task.state.run_id).await? else { return Ok(Err(Next::ACK)) };
                let Some(call) = state.calls.get(&task.id()).cloned() else { return Ok(Err(Next::ACK)) };
                let question = Question { approval: ready.approval.clone(), rehearsal: ready.rehearsal.clone() };
                Ok(Err(self.ask(&task.after(state, call), question).await?))
            }
            // A frozen one waits as it stands: it is rung for again, until it may.
            Err(SubmitError::Rejected(rejection)) => {
                tracing::info!(call = %task.id(), code = rejection.code(), "a call is not started");
                Ok(Err(Next::ACK))
            }
            Err(error) => Err(error),
        }
    }

    async fn start_activity(
        &self,
        task: &Task,
        ready: &Ready,
        lease: &mut Option<Lease>,
        held: Held,
    ) -> Result<Next, SubmitError> {
        let Some(room) = self.activities.room() else {
            return Ok(self.later(task, "as many activities as may are running here"));
        };
        match self.rehearse_first(task, ready, false).await {
            Ok(None) => {}
            over => {
                held.release().await;
                return over.map(|next| next.unwrap_or(Next::ACK));
            }
        }
        let command = match self.tools.command(&ready.means, task.invocation(&ready.arguments, &ready.allow)) {
            Ok(command) => command,
            Err(error) => return self.refuse(task, Refusal::new(error.code, error.message)).await,
        };
        let heard = self.kill_switch.heard();
        let started = match self.start(task, ready).await? {
            Ok(state) => state,
            Err(next) => return Ok(next),
        };
        if let Some(scope) = self.kill_switch.thrown_since(heard, &started, &task.call.request.tool).await? {
            return self.leave_be(task, &scope).await;
        }
        let (Some(call), Some(lease)) = (started.calls.get(&task.id()), lease.take()) else { return Ok(Next::ACK) };
        let activity = Activity::of(&started, call);
        match self.activities.start(activity, &command, task.span.traceparent(), lease, held, room).await {
            Ok(()) => {
                task.ended("started", None);
                Ok(Next::ACK)
            }
            Err(error) => {
                let words = format!("the command could not be started: {error}");
                task.ended("failed", Some(("spawn", &words)));
                let block = Block::new(words, Trust::System, "runtime");
                let failure = CallFailure { block, code: "spawn".to_owned(), duration_ms: 0 };
                self.record(task, Command::FailCall(FailCall { call_id: task.id(), failure }), "end").await
            }
        }
    }

    /// The kill switch was thrown between a call's start and its effect, which has not begun.
    pub async fn leave_be(&self, task: &Task, scope: &str) -> Result<Next, SubmitError> {
        let words = format!("frozen by an operator (`{scope}`) before it began: nothing has happened");
        task.ended("failed", Some(("frozen", &words)));
        let block = Block::new(words, Trust::System, "runtime");
        let failure = CallFailure { block, code: "frozen".to_owned(), duration_ms: 0 };
        self.record(task, Command::FailCall(FailCall { call_id: task.id(), failure }), "end").await
    }

    /// Commits what is known. A rejection means that the call has gone another way meanwhile, and is final.
    pub async fn record(&self, task: &Task, command: Command, step: &str) -> Result<Next, SubmitError> {
        let policy = bus::retry::Policy::exponential(Duration::from_millis(50), Duration::from_secs(2));
        let submit = || {
            let (command, key, cause) = (command.clone(), task.key(step), task.cause());
            self.engine.submit_on(&task.state, command, key, cause)
        };
        match bus::retry::when(policy.within(RECORD_WITHIN), SubmitError::is_transient, submit).await {
            Ok(committed) => {
                // It may have been the last thing that was in the way of undoing.
                if committed.state.to_compensate().is_some() {
                    Box::pin(self.compensate(committed.state.run_id, task.seq())).await?;
                }
                Ok(Next::ACK)
            }
            Err(SubmitError::Rejected(rejection)) => {
                let (call, command) = (task.id(), command.name());
                tracing::info!(%call, command, code = rejection.code(), "came too late");
                Ok(Next::ACK)
            }
            Err(error) => Err(error),
        }
    }

    pub fn task(&self, state: Arc<RunState>, call: Call, bell: &Doorbell) -> Task {
        Task::new(&self.tracer, state, call, bell.seq, bell.traceparent.as_deref())
    }

    /// A call that nobody rang for.
    pub fn task_of(&self, state: Arc<RunState>, call: Call) -> Task {
        Task::new(&self.tracer, state, call, None, None)
    }

    /// The call, if nobody in this process is at it or follows it.
    fn claim(&self, call: CallId) -> Option<Claim<'_>> {
        self.claims.take(call).filter(|_| !self.activities.follows(call) && !self.following.has(call))
    }
}

pub(crate) fn is_open(call: &Call) -> bool {
    matches!(call.status, CallStatus::Requested | CallStatus::Approved)
}

/// Over at once, without effect: done without a lease, since doing it twice costs less than taking one.
fn is_instant(call: &Call) -> bool {
    !call.needs_start() && call.request.tool.parse() == Ok(Builtin::Echo)
}

/// Somebody is at it. If they fail before it has started, this message is what is left of it.
fn held(call: &Call) -> Outcome {
    if call.is_started() {
        return Outcome::Ack;
    }
    Outcome::Defer { after: Some(HELD_AGAIN), reason: "another executor is at it".to_owned() }
}

/// What is down will be up again; what else fails is not the message's fault either, but must not go on for ever.
fn settle_error(error: SubmitError) -> HandlerResult {
    if error.is_transient() { Ok(Outcome::defer(service::chain(&error))) } else { Err(error.into()) }
}
