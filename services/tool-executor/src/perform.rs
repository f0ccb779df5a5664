//! Carrying a call out, and recording what came of it.

use std::time::{Duration, Instant};

use engine::SubmitError;
use kernel::command::{Command, CompleteCall, FailCall};
use kernel::tool::Effect;

use crate::dispatch::{Dispatcher, Next};
use crate::outcome::{Content, Happened, ToolError};
use crate::pipeline::Ready;
use crate::task::Task;

/// Tries of one start, if trying again is harmless.
const MAX_TRIES: usize = 3;
/// The longest that another side may make us wait before the next try; beyond that the model is told.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// What a tool has on top of its time-out to notice it by itself.
const OVERTIME: Duration = Duration::from_secs(1);
/// How long after its start was asked for an effect may still begin. A probe that finds nothing is believed a few seconds
/// after the call's time-out, so an effect that begins later than this could come after somebody has done it again.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);

impl Dispatcher {
    /// Starts a call if it needs that, carries it out and records its end. What may or may not have happened is looked
    /// into.
    pub async fn carry_out(&self, task: &Task, ready: &Ready) -> Result<Next, SubmitError> {
        let asked = Instant::now();
        let started;
        let task = if task.call.needs_start() {
            let state = match self.start(task, ready).await? {
                Ok(state) => state,
                Err(next) => return Ok(next),
            };
            let Some(call) = state.calls.get(&task.id()).cloned() else { return Ok(Next::ACK) };
            started = task.after(state, call);
            if ready.tool.probe.is_some() && asked.elapsed() > BEGIN_WITHIN {
                return self.doubt(&started, "its start was recorded too late to go on").await;
            }
            &started
        } else {
            task
        };
        let began = Instant::now();
        let outcome = self.tries(task, ready).await.and_then(|content| ready.tool.checked(content));
        fail::fail_point!("executor.after_effect");
        match outcome {
            Ok(content) => self.complete(task, content, began.elapsed()).await,
            Err(error) if leaves_doubt(task, ready, &error) => {
                task.ended("in_doubt", Some((error.code, &error.message)));
                self.doubt(task, &format!("{}: {error}", error.code)).await
            }
            Err(error) => self.fail(task, &error, began.elapsed()).await,
        }
    }

    async fn complete(&self, task: &Task, content: Content, took: Duration) -> Result<Next, SubmitError> {
        let result = self.results.complete(task.origin(), content, took).await;
        task.ended("completed", None);
        self.record(task, Command::CompleteCall(CompleteCall { call_id: task.id(), result }), "end").await
    }

    async fn fail(&self, task: &Task, error: &ToolError, took: Duration) -> Result<Next, SubmitError> {
        let failure = self.results.fail(task.origin(), error, took);
        task.ended("failed", Some((error.code, &failure.block.text)));
        self.record(task, Command::FailCall(FailCall { call_id: task.id(), failure }), "end").await
    }

    /// Tries, and again if the failure may pass and trying again can't double an effect.
    async fn tries(&self, task: &Task, ready: &Ready) -> Result<Content, ToolError> {
        let spec = &ready.tool.spec;
        let harmless = spec.idempotent || spec.effect == Effect::Read;
        let invocation = task.invocation(&ready.arguments, &ready.allow);
        let mut delays = bus::retry::exponential(Duration::from_millis(200), Duration::from_secs(2));
        for left in (0..MAX_TRIES).rev() {
            let running = self.tools.run(&ready.means, invocation);
            let outcome = match tokio::time::timeout(invocation.timeout + OVERTIME, running).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let words = format!("it took longer than {:?}", invocation.timeout);
                    Err(ToolError::transient("timeout", words, Happened::Unknown))
                }
            };
            let error = match outcome {
                Ok(content) => return Ok(content),
                Err(error) => error,
            };
            let wait = error.again.map(|asked| asked.max(delays.next().unwrap_or_default()));
            let may = harmless || error.happened == Happened::No;
            match wait.filter(|wait| left > 0 && may && *wait <= MAX_WAIT) {
                None => return Err(error),
                Some(wait) => {
                    tracing::debug!(call = %task.id(), code = error.code, %error, "a try failed, trying again");
                    metrics::counter!("tool_executor_retries_total", "tool" => spec.name.clone()).increment(1);
                    tokio::time::sleep(wait).await;
                }
            }
        }
        Err(ToolError::final_("unreachable", "it was not tried"))
    }
}

/// Whether nobody can say from here what a failed call did. An answer that says "I failed" is believed, unless the tool has
/// a better way to find out.
fn leaves_doubt(task: &Task, ready: &Ready, error: &ToolError) -> bool {
    let lasting = task.call.needs_start() && !ready.tool.spec.idempotent;
    lasting
        && match error.happened {
            Happened::No => false,
            Happened::Perhaps => ready.tool.probe.is_some(),
            Happened::Unknown => true,
        }
}
