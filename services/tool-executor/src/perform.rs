//! Carrying a call out: admission, attempts, and recording what came of it.
//!
//! An error is of one of three classes: the model is told; it may pass, and is tried again; or a person has to mend something.
//! What is tried again waits here only if that is soon and repeating is harmless. Otherwise the call is put off: a timer in
//! Postgres, and nobody is at it until then. Every attempt that is followed by another is in the log (`tool.progressed`), the
//! last one is the call's end.

use std::time::{Duration, Instant};

use engine::{Lease, SubmitError};
use jiff::{SignedDuration, Timestamp};
use kernel::call::{Attempt, CallFailure, ErrorClass};
use kernel::command::{Command, CompleteCall, FailCall, ProgressCall};
use kernel::excerpt;
use kernel::tool::Effect;

use crate::beside::Held;
use crate::dispatch::{Dispatcher, Next};
use crate::limits::{self, Asking, Wait};
use crate::mcp::Remote;
use crate::outcome::{Content, Happened, ToolError};
use crate::pipeline::Ready;
use crate::registry::Refusal;
use crate::task::Task;
use crate::tools::Means;

/// What waits no longer than this waits here, if repeating is harmless.
pub(crate) const SOON: Duration = Duration::from_secs(3);
/// What a tool has on top of its time-out to notice it by itself.
pub(crate) const OVERTIME: Duration = Duration::from_secs(1);
/// How long after its start was asked for an effect may still begin. A probe that finds nothing is believed a few seconds
/// after the call's time-out, so an effect that begins later than this could come after somebody has done it again.
pub(crate) const BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// How long the request may take that starts something which goes on elsewhere.
const START_WITHIN: Duration = Duration::from_secs(60);
/// What is kept of the words of an attempt that is followed by another.
const SAID: usize = 300;

/// How the attempts of a call ended for now.
enum Attempted {
    Done(Content),
    Failed(ToolError),
    /// Another one follows, later.
    PutOff {
        wait: Duration,
        reason: &'static str,
        attempt: Attempt,
        error: ToolError,
    },
}

/// One call's attempts.
struct Attempts<'a> {
    dispatcher: &'a Dispatcher,
    task: &'a Task,
    ready: &'a Ready,
    target: Option<String>,
    /// Those that failed so far, over all starts.
    failed: u32,
}

impl Dispatcher {
    /// Starts a call if it needs that, carries it out and records its end. What may or may not have happened is looked
    /// into. What it holds for itself is let go of, unless it goes on elsewhere.
    pub async fn carry_out(
        &self,
        task: &Task,
        ready: &Ready,
        lease: &mut Option<Lease>,
        held: Held,
    ) -> Result<Next, SubmitError> {
        let mut held = Some(held);
        let next = self.carry_out_holding(task, ready, lease, &mut held).await;
        if let Some(held) = held {
            held.release().await;
        }
        next
    }

    async fn carry_out_holding(
        &self,
        task: &Task,
        ready: &Ready,
        lease: &mut Option<Lease>,
        held: &mut Option<Held>,
    ) -> Result<Next, SubmitError> {
        let target = limits::target(ready);
        let attempts = Attempts { dispatcher: self, task, ready, target, failed: task.call.failed_attempts };
        if let Err(wait) = attempts.admission().await {
            return self.not_admitted(&attempts, wait).await;
        }
        if let Some(next) = self.rehearse_first(task, ready, true).await? {
            return Ok(next);
        }
        let asked = Instant::now();
        let heard = self.kill_switch.heard();
        let tool = &task.call.request.tool;
        let started;
        let task = if task.call.needs_start() {
            let state = match self.start(task, ready).await? {
                Ok(state) => state,
                Err(next) => return Ok(next),
            };
            if let Some(scope) = self.kill_switch.thrown_since(heard, &state, tool).await? {
                return self.leave_be(task, &scope).await;
            }
            let Some(call) = state.calls.get(&task.id()).cloned() else { return Ok(Next::ACK) };
            started = task.after(state, call);
            if ready.tool.probe.is_some() && asked.elapsed() > self.begin_within {
                return self.doubt(&started, "its start was recorded too late to go on").await;
            }
            fail::fail_point!("executor.before_effect");
            &started
        } else {
            // No start in the log refuses it. If the switch can't be looked at, it does not happen either.
            if task.call.request.effect != Effect::Read
                && let Some(scope) = self.kill_switch.holds(&task.state, tool).await?
            {
                tracing::info!(call = %task.id(), scope, "a call is not started: frozen");
                return Ok(Next::ACK);
            }
            task
        };
        let began = Instant::now();
        let outcome = Attempts { task, ..attempts }.run().await?;
        fail::fail_point!("executor.after_effect");
        let done = matches!(outcome, Attempted::Done(_));
        let unseen = done && ready.verify && !self.shows(task, ready).await?;
        match outcome {
            Attempted::Done(_) if unseen => {
                self.doubt(task, "it said that it was done, and its read-back does not show it").await
            }
            Attempted::Done(Content { task: Some(remote_task), .. }) => {
                let Means::Mcp(remote) = &ready.means else { return Ok(Next::ACK) };
                let held = held.take().unwrap_or_default();
                Ok(self.follow_task(task, remote_task, Remote::clone(remote), lease, held))
            }
            Attempted::Done(content) if ready.tool.is_remote() && !task.call.request.is_compensation() => {
                self.goes_on_elsewhere(task, content, lease, held.take().unwrap_or_default()).await
            }
            Attempted::Done(content) => self.complete(task, content, began.elapsed()).await,
            Attempted::Failed(error) if leaves_doubt(task, ready, &error) => {
                task.ended("in_doubt", Some((error.code, &error.message)));
                self.doubt(task, &format!("{}: {error}", error.code)).await
            }
            Attempted::Failed(error) => self.fail(task, &error, began.elapsed()).await,
            Attempted::PutOff { wait, reason, attempt, error } => {
                match self.put_off(task, wait, reason, Some(attempt)).await? {
                    Some(next) => Ok(next),
                    // The run is ending: there is no later, and what came of the call is known.
                    None => self.fail(task, &error, began.elapsed()).await,
                }
            }
        }
    }

    pub(crate) async fn complete(&self, task: &Task, content: Content, took: Duration) -> Result<Next, SubmitError> {
        let result = self.results.complete(task.origin(), content, took).await;
        let result = self.told(&task.state, &task.call, result).await.map_err(SubmitError::Engine)?;
        task.ended("completed", None);
        self.record(task, Command::CompleteCall(CompleteCall { call_id: task.id(), result }), "end").await
    }

    pub(crate) async fn fail(&self, task: &Task, error: &ToolError, took: Duration) -> Result<Next, SubmitError> {
        let failure = self.results.fail(task.origin(), error, took);
        let mut failure = self.told_failure(&task.state, &task.call, failure).await.map_err(SubmitError::Engine)?;
        explain(&mut failure, error.class());
        task.ended("failed", Some((error.code, &failure.block.text)));
        self.record(task, Command::FailCall(FailCall { call_id: task.id(), failure }), "end").await
    }

    /// What is done about a call that may not begin yet.
    async fn not_admitted(&self, attempts: &Attempts<'_>, wait: Wait) -> Result<Next, SubmitError> {
        let task = attempts.task;
        let Wait { wait, reason, words } = wait;
        // A target that is left alone is an attempt that need not be made; a limit that is reached only makes a line.
        let attempt = (reason == "circuit_open").then(|| {
            let error = ToolError::transient("circuit_open", words.clone(), Happened::No);
            attempts.failed(&error, Timestamp::now(), Duration::ZERO)
        });
        if attempt.is_some() && attempts.failed + 1 >= attempts.policy().attempts {
            return self.refuse(task, Refusal::new("circuit_open", words)).await;
        }
        Ok(self.put_off(task, wait, reason, attempt).await?.unwrap_or(Next::ACK))
    }

    /// Waits until an attempt may begin, if that is soon.
    pub(crate) async fn admitted(&self, asking: Asking<'_>) -> Result<(), Wait> {
        let began = Instant::now();
        loop {
            match self.limits.admit(asking).await {
                Ok(()) => return Ok(()),
                Err(wait) if began.elapsed() + wait.wait > SOON => return Err(wait),
                Err(wait) => tokio::time::sleep(wait.wait.max(Duration::from_millis(1))).await,
            }
        }
    }

    /// Records a failed attempt that is followed by another one at once. Says whether the call is still open to one.
    pub(crate) async fn record_attempt(&self, task: &Task, attempt: Attempt) -> Result<bool, SubmitError> {
        let key = task.key(&format!("attempt/{}", attempt.began.as_microsecond()));
        let progress = ProgressCall { attempt: Some(attempt), ..ProgressCall::of(task.id()) };
        let command = Command::ProgressCall(Box::new(progress));
        match self.engine.submit_on(&task.state, command, key, task.cause()).await {
            Ok(_) => Ok(true),
            // It has gone another way meanwhile: its end will be refused as well.
            Err(SubmitError::Rejected(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets go of a call until later. None if the run is ending: then there is no later.
    pub(crate) async fn put_off(
        &self,
        task: &Task,
        wait: Duration,
        reason: &'static str,
        attempt: Option<Attempt>,
    ) -> Result<Option<Next>, SubmitError> {
        let until = Timestamp::now().saturating_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX));
        let until = until.unwrap_or(Timestamp::MAX);
        let call_id = task.id();
        let progress = ProgressCall {
            attempt,
            put_off: Some(until),
            starts: task.call.attempts,
            reason: Some(reason.to_owned()),
            ..ProgressCall::of(call_id)
        };
        let key = task.key(&format!("put_off/{}", until.as_microsecond()));
        match self.engine.submit_on(&task.state, Command::ProgressCall(Box::new(progress)), key, task.cause()).await {
            Ok(_) => {
                task.ended("put_off", None);
                metrics::counter!("tool_executor_put_off_total", "reason" => reason).increment(1);
                tracing::info!(call = %call_id, reason, %until, "a call is put off");
                Ok(Some(Next::ACK))
            }
            Err(SubmitError::Rejected(kernel::Rejection::Ending)) => Ok(None),
            Err(SubmitError::Rejected(rejection)) => {
                tracing::info!(call = %call_id, code = rejection.code(), "a call is not put off");
                Ok(Some(Next::ACK))
            }
            Err(error) => Err(error),
        }
    }
}

impl Attempts<'_> {
    fn policy(&self) -> kernel::tool::Retry {
        self.ready.tool.spec.retry.unwrap_or_default()
    }

    /// Whether doing it twice is the same as doing it once.
    fn is_harmless(&self) -> bool {
        let spec = &self.ready.tool.spec;
        (spec.idempotent || spec.effect == Effect::Read) && !self.task.call.request.is_compensation()
    }

    /// Waits until an attempt may begin, if that is soon.
    async fn admission(&self) -> Result<(), Wait> {
        let asking = Asking {
            tool: &self.task.call.request.tool,
            tenant: Some(&self.task.state.tenant),
            target: self.target.as_deref(),
        };
        self.dispatcher.admitted(asking).await
    }

    /// Tries, and again as far as that is soon and can't double an effect.
    async fn run(mut self) -> Result<Attempted, SubmitError> {
        loop {
            let (began, clock) = (Timestamp::now(), Instant::now());
            let outcome = self.once().await;
            self.dispatcher.limits.tell(self.target.as_deref(), outcome.as_ref().err()).await;
            let error = match outcome {
                Ok(content) => return Ok(self.checked(content)),
                Err(error) => error,
            };
            let Some(mut wait) = self.pause(&error) else { return Ok(Attempted::Failed(error)) };
            let attempt = self.failed(&error, began, clock.elapsed());
            metrics::counter!("tool_executor_retries_total", "tool" => self.ready.tool.spec.name.clone()).increment(1);
            // An effect that may not be doubled is started anew each time, so that the log knows when it began.
            if wait > SOON || (self.task.call.needs_start() && !self.is_harmless()) {
                return Ok(Attempted::PutOff { wait, reason: "retry", attempt, error });
            }
            tokio::time::sleep(wait).await;
            let mut reason = None;
            if let Err(refused) = self.admission().await {
                (wait, reason) = (refused.wait, Some(refused.reason));
            }
            if let Some(reason) = reason {
                return Ok(Attempted::PutOff { wait, reason, attempt, error });
            }
            if !self.dispatcher.record_attempt(self.task, attempt).await? {
                return Ok(Attempted::Failed(error));
            }
            self.failed += 1;
        }
    }

    /// A result as its tool declares it; what undoes, or only starts something, declares none.
    fn checked(&self, content: Content) -> Attempted {
        if content.task.is_some() || self.ready.tool.is_remote() || self.task.call.request.is_compensation() {
            return Attempted::Done(content);
        }
        match self.ready.tool.checked(content) {
            Ok(content) => Attempted::Done(content),
            Err(error) => Attempted::Failed(error),
        }
    }

    async fn once(&self) -> Result<Content, ToolError> {
        let mut invocation = self.task.invocation(&self.ready.arguments, &self.ready.allow);
        if self.ready.tool.is_remote() {
            // Its time-out is for all of it, not for the request that starts it.
            invocation.timeout = invocation.timeout.min(START_WITHIN);
        }
        let running = self.dispatcher.tools.run(&self.ready.means, invocation);
        if self.ready.means.keeps_time() {
            return running.await;
        }
        tokio::time::timeout(invocation.timeout + OVERTIME, running).await.unwrap_or_else(|_| {
            let words = format!("it took longer than {:?}", invocation.timeout);
            Err(ToolError::transient("timeout", words, Happened::Unknown))
        })
    }

    /// How long the next attempt waits; none if there is none. Drawn evenly, so that those who failed together do not come
    /// back together; the other side may ask for more, up to the longest pause that the tool allows.
    fn pause(&self, error: &ToolError) -> Option<Duration> {
        let policy = self.policy();
        let asked = error.again.filter(|_| error.class() == ErrorClass::Retry)?;
        let may = self.is_harmless() || error.happened == Happened::No;
        let left = self.failed + 1 < policy.attempts;
        let most = policy.most.std();
        if !may || !left || asked > most {
            return None;
        }
        Some(bus::retry::full_jitter(policy.first.std(), most, self.failed + 1).max(asked))
    }

    fn failed(&self, error: &ToolError, began: Timestamp, took: Duration) -> Attempt {
        // As the model would be shown it: without secrets.
        let said = self.dispatcher.results.fail(self.task.origin(), error, took).block.text;
        failed(self.failed, self.target.as_deref(), (error, &said), (began, took))
    }
}

/// An attempt that failed after `before` others, with what may be shown of its error.
pub(crate) fn failed(
    before: u32,
    target: Option<&str>,
    (error, said): (&ToolError, &str),
    (began, took): (Timestamp, Duration),
) -> Attempt {
    Attempt {
        number: before + 1,
        began,
        took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        class: error.class(),
        code: error.code.to_owned(),
        said: excerpt(said, SAID),
        target: target.map(str::to_owned),
        dry_run: false,
    }
}

/// Tells the model what there is no use in.
fn explain(failure: &mut CallFailure, class: ErrorClass) {
    if class == ErrorClass::Stop {
        failure.block.text.push_str("\n\n(A person has to mend this: calling it again or otherwise will not help.)");
    }
}

/// Whether nobody can say from here what a failed call did. An answer that says "I failed" is believed, unless the tool has
/// a better way to find out.
fn leaves_doubt(task: &Task, ready: &Ready, error: &ToolError) -> bool {
    let undoes = task.call.request.is_compensation();
    let lasting = task.call.needs_start() && (undoes || !ready.tool.spec.idempotent);
    lasting
        && match error.happened {
            Happened::No => false,
            Happened::Perhaps => ready.tool.probe.is_some() && !undoes,
            Happened::Unknown => true,
        }
}
