//! Trying a call out before it happens, where a policy obliges to that.
//!
//! A tool's file says how: the tool itself with some arguments set, or another tool that only reads. A call that a person is
//! asked about is tried out before, and they are shown what came of it. Every call is tried out right before it happens, since
//! days may have gone by until the person said yes, and the arguments may be others. One that fails there does not happen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{EngineError, SubmitError};
use jiff::Timestamp;
use kernel::agent::{AgentSpec, Allow};
use kernel::call::{Attempt, Call, CallFailure, CallRequest, CallResult, Evidence, Observation, SignalCounts};
use kernel::command::{Command, DenyCall, FailCall};
use kernel::tool::{CallKind, DryRun, Effect};
use kernel::{Block, RunState};
use policy::{Answer, Decision, Obligation};
use serde_json::{Map, Value};

use crate::dispatch::{Dispatcher, Next};
use crate::limits::{self, Asking, Wait};
use crate::outcome::{Content, Happened, ToolError};
use crate::perform::{self, OVERTIME, SOON};
use crate::pipeline::{Looked, Pipeline, Ready};
use crate::provenance::{self, Known};
use crate::registry::{Refusal, Tool};
use crate::results::Origin;
use crate::task::Task;
use crate::tools::{Invocation, Means};

/// What is shown of what came of it.
const SHOWN: usize = 4 * 1024;
/// A dry run that fails denies the call, by this name.
const FAILED: &str = "dry_run_failed";

/// What tries a call out, ready to be done.
#[derive(Clone, Debug)]
pub(crate) struct Rehearsal {
    tool: Arc<Tool>,
    means: Means,
    arguments: Map<String, Value>,
    allow: Allow,
}

/// What came of trying a call out.
enum Tried {
    Passed(Content),
    Failed(ToolError),
    /// The call goes no further here: it has gone another way meanwhile, or is frozen.
    Moot,
    /// It can't be tried out now: the call has to wait for longer than it is held.
    Later {
        wait: Duration,
        reason: &'static str,
        /// What failed and is not in the log yet.
        attempt: Option<Attempt>,
    },
}

impl Pipeline {
    /// What tries a call out first, if what was decided obliges to that.
    pub(crate) async fn rehearsal(
        &self,
        state: &RunState,
        call: &Call,
        looked: Looked<'_>,
        decision: &Decision,
        agent: &AgentSpec,
    ) -> Result<Result<Option<Rehearsal>, Refusal>, EngineError> {
        let Looked { tool, means, arguments, .. } = looked;
        // What undoes a call was agreed to with it, and a read changes nothing.
        let is_to_be = !call.request.is_compensation() && tool.spec.effect != Effect::Read;
        if !is_to_be || !decision.obligations.contains(&Obligation::DryRunFirst) {
            return Ok(Ok(None));
        }
        let rehearsal = match &tool.spec.dry_run {
            None => Err(Refusal::new("policy", "the tool has no `dry_run`")),
            Some(DryRun::Arguments(set)) => {
                let mut arguments = arguments.clone();
                arguments.extend(set.clone());
                let (tool, means, allow) = (tool.clone(), means.clone(), agent.allow.clone());
                let checked = tool.check(&Value::Object(arguments));
                checked.map(|arguments| Rehearsal { tool, means, arguments, allow })
            }
            Some(DryRun::Tool(name)) => match self.read_by(name, arguments, agent) {
                Ok(rehearsal) => self.passes(state, call, &rehearsal, agent).await?.map(|()| rehearsal),
                refused => refused,
            },
        };
        Ok(rehearsal.map(Some).map_err(|refusal| of(tool, &refusal)))
    }

    /// The tool that only reads, with those of the arguments that it takes.
    fn read_by(&self, name: &str, arguments: &Map<String, Value>, agent: &AgentSpec) -> Result<Rehearsal, Refusal> {
        let tool = self.registry.now(name);
        let reads = |tool: &Arc<Tool>| tool.spec.effect == Effect::Read && tool.spec.kind == CallKind::Call;
        let Some(tool) = tool.filter(reads) else {
            return Err(Refusal::new(
                "misconfigured",
                format!("there is no tool `{name}` that answers and only reads"),
            ));
        };
        let taken = tool.spec.input.get("properties").and_then(Value::as_object);
        let is_taken = |key: &String| taken.is_none_or(|taken| taken.contains_key(key));
        let given = arguments.iter().filter(|(key, _)| is_taken(key)).map(|(key, value)| (key.clone(), value.clone()));
        let arguments = tool.check(&Value::Object(given.collect()))?;
        let means = tool.means()?.clone();
        Ok(Rehearsal { tool, means, arguments, allow: agent.allow.clone() })
    }

    /// Whether another tool may be used to try a call out: as if the model had called it, but for the agent's list of tools.
    async fn passes(
        &self,
        state: &RunState,
        call: &Call,
        rehearsal: &Rehearsal,
        agent: &AgentSpec,
    ) -> Result<Result<(), Refusal>, EngineError> {
        let Rehearsal { tool, means, arguments, allow } = rehearsal;
        if let Some(words) = policy::not_permitted(state, &tool.spec) {
            return Ok(Err(Refusal::new("not_permitted", words)));
        }
        let request = CallRequest {
            tool: tool.spec.name.clone(),
            arguments: Value::Object(arguments.clone()),
            kind: CallKind::Call,
            effect: Effect::Read,
            idempotent: tool.spec.idempotent,
            schema_digest: tool.digest.clone(),
            ..call.request.clone()
        };
        let call = Call { request, ..call.clone() };
        let known = Known { engine: &self.engine, registry: &self.registry, mcp: &self.mcp };
        let origins = provenance::trace(known, state, &call, tool, arguments, agent).await?;
        let looked = Looked { tool, means, arguments, origins: &origins, believed: call.request.trust };
        let decision = self.decide(state, &call, looked, allow);
        let free = decision.obligations.iter().all(|obligation| *obligation == Obligation::DryRunFirst);
        if decision.answer == Answer::Allow && free {
            return Ok(Ok(()));
        }
        let words = format!("the policies do not let it pass unasked: {}", decision.explanation());
        Ok(Err(Refusal::new("policy", words)))
    }
}

/// What the dry run of a call is called.
fn name(task: &Task) -> String {
    format!("{}.dry-run", task.call.request.tool)
}

/// What is asked of the limits before it is tried out, for `name` at `target`; nothing if all of it was asked for the call.
fn asking<'a>(
    task: &'a Task,
    rehearsal: &'a Rehearsal,
    (name, target): (&'a str, Option<&'a str>),
    admitted: Option<&Ready>,
) -> Option<Asking<'a>> {
    let tool = &rehearsal.tool.spec;
    let itself = tool.effect != Effect::Read;
    // What a limit on the tool counts are calls.
    let whole = Asking { tool: if itself { name } else { &tool.name }, tenant: Some(&task.state.tenant), target };
    // Of what its call was admitted for nothing is asked twice: where a limit lets one through, it would be in its own way.
    let Some(ready) = admitted else { return Some(whole) };
    let call = limits::target(ready);
    let other = target.filter(|target| call.as_deref() != Some(*target));
    (!itself).then_some(Asking { tenant: None, target: other, ..whole })
}

/// What is in the way of a tool's dry run.
fn of(tool: &Tool, refusal: &Refusal) -> Refusal {
    let Refusal { code, words } = refusal;
    let name = &tool.spec.name;
    Refusal::new(code, format!("a policy obliges to do a dry run of `{name}` first, and that can't be done: {words}"))
}

impl Dispatcher {
    /// Tries a call out that is about to begin, if a policy wants that, and says in the log what came of it. `admitted`: the call
    /// has been, and this is a part of it. `Some`: it goes no further now.
    pub async fn rehearse_first(
        &self,
        task: &Task,
        ready: &Ready,
        admitted: bool,
    ) -> Result<Option<Next>, SubmitError> {
        // One that has started may have happened already, and what is to be tried out would find that.
        let Some(rehearsal) = ready.rehearsal.as_ref().filter(|_| !task.call.is_started()) else { return Ok(None) };
        let shown = match Box::pin(self.rehearse(task, rehearsal, admitted.then_some(ready))).await? {
            Ok(shown) => shown,
            Err(next) => return Ok(Some(next)),
        };
        // The log is what the next turn is made of.
        let said = CallResult { block: shown.clone(), value: None, artifact: None, duration_ms: 0 };
        let excerpt = match self.pipeline.check_result(&task.state, &task.call, &said).await? {
            Ok(()) => shown.text,
            Err(no) => format!("What came of it is withheld: {}", no.words()),
        };
        let evidence = Evidence { excerpt, line: 1, rule: "dry_run".to_owned(), ..Evidence::default() };
        let observation = Observation {
            call_id: Some(task.id()),
            phase: "dry_run".to_owned(),
            changed: format!(
                "`{}` was tried out before it began, and nothing spoke against it.",
                task.call.request.tool
            ),
            anomaly: false,
            decision: None,
            evidence: vec![evidence],
            missing: None,
            counts: SignalCounts::default(),
        };
        // Once for what was agreed to, however often its start is refused.
        let agreed = task.call.approval_id.map(|id| id.to_string()).unwrap_or_default();
        let (key, command) = (task.key(&format!("dry_run/{agreed}")), Command::Observe(observation));
        match self.engine.submit_on(&task.state, command, key, task.cause()).await {
            // A rejection means that the call has gone another way meanwhile: its start will be refused as well.
            Ok(_) | Err(SubmitError::Rejected(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tries a call out: what a person or the log is shown of it, or what has become of the call instead. `admitted` is the
    /// call, if that has been.
    pub async fn rehearse(
        &self,
        task: &Task,
        rehearsal: &Rehearsal,
        admitted: Option<&Ready>,
    ) -> Result<Result<Block, Next>, SubmitError> {
        let name = name(task);
        let origin = Origin { tool: &name, ..task.origin() };
        let began = Instant::now();
        let outcome = match self.try_out(task, rehearsal, admitted).await? {
            Tried::Passed(content) => Ok(content),
            Tried::Failed(error) => Err(error),
            Tried::Moot => return Ok(Err(Next::ACK)),
            // Of a run that is ending there is no later.
            Tried::Later { wait, reason, attempt } => {
                return Ok(Err(self.put_off(task, wait, reason, attempt).await?.unwrap_or(Next::ACK)));
            }
        };
        let word = if outcome.is_ok() { "passed" } else { "failed" };
        metrics::counter!("tool_executor_dry_runs_total", "tool" => task.call.request.tool.clone(), "outcome" => word)
            .increment(1);
        match outcome {
            Ok(content) => {
                let CallResult { block, .. } = self.results.complete(origin, content, began.elapsed()).await;
                let text = format!("Dry run: {}", block.text);
                Ok(Ok(Block { text, ..block }.excerpt(SHOWN)))
            }
            Err(error) => {
                let failure = self.results.fail(origin, &error, began.elapsed());
                let failure = self.told_failure(&task.state, &task.call, failure).await?;
                self.deny(task, failure).await.map(Err)
            }
        }
    }

    /// Attempts, until as many have failed as the file of the tool that tries it out allows: as long as the pauses between them
    /// are short, or again later. Like those of the call, each that is followed by another is in the log.
    async fn try_out(
        &self,
        task: &Task,
        rehearsal: &Rehearsal,
        admitted: Option<&Ready>,
    ) -> Result<Tried, SubmitError> {
        let Rehearsal { tool, means, arguments, allow } = rehearsal;
        let target = limits::target_of(means, arguments);
        let name = name(task);
        let asking = asking(task, rehearsal, (&name, target.as_deref()), admitted);
        // The other side must not take the call itself for a repetition of this.
        let key = format!("{}-dry-run", task.idempotency_key);
        let timeout = tool.spec.timeout.std();
        let invocation = Invocation { idempotency_key: &key, timeout, ..task.invocation(arguments, allow) };
        let policy = tool.spec.retry.unwrap_or_default();
        let failure = |before: u32, error: &ToolError, began: Timestamp, took: Duration| {
            let said = self.results.fail(Origin { tool: &name, ..task.origin() }, error, took).block.text;
            let failed = perform::failed(before, target.as_deref(), (error, &said), (began, took));
            Attempt { dry_run: true, ..failed }
        };
        let before = task.call.failed_dry_runs;
        let mut failed = before;
        loop {
            if let Some(asking) = asking
                && let Err(Wait { wait, reason, words }) = self.admitted(asking).await
            {
                // A target that is left alone is an attempt that need not be made.
                let spared = (failed == before && reason == "circuit_open")
                    .then(|| ToolError::transient(reason, words, Happened::No));
                let attempt = spared.as_ref().map(|error| failure(failed, error, Timestamp::now(), Duration::ZERO));
                return Ok(match spared.filter(|_| failed + 1 >= policy.attempts) {
                    Some(error) => Tried::Failed(error),
                    None => Tried::Later { wait, reason, attempt },
                });
            }
            if self.is_frozen(task, rehearsal).await? {
                return Ok(Tried::Moot);
            }
            let (began, clock) = (Timestamp::now(), Instant::now());
            let outcome = self.once(tool, means, invocation).await;
            self.limits.tell(target.as_deref(), outcome.as_ref().err()).await;
            let error = match outcome {
                Ok(content) => return Ok(Tried::Passed(content)),
                Err(error) => error,
            };
            // What asks for more patience than the tool's file has is told, as of the call itself.
            let most = policy.most.std();
            let asked = error.again.filter(|asked| failed + 1 < policy.attempts && *asked <= most);
            let Some(asked) = asked else { return Ok(Tried::Failed(error)) };
            let attempt = failure(failed, &error, began, clock.elapsed());
            failed += 1;
            let wait = bus::retry::full_jitter(policy.first.std(), most, failed).max(asked);
            if wait > SOON {
                return Ok(Tried::Later { wait, reason: "retry", attempt: Some(attempt) });
            }
            if !self.record_attempt(task, attempt).await? {
                return Ok(Tried::Moot);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Whether the kill switch holds the tool itself, which is used with other arguments.
    async fn is_frozen(&self, task: &Task, Rehearsal { tool, .. }: &Rehearsal) -> Result<bool, SubmitError> {
        if tool.spec.effect == Effect::Read {
            return Ok(false);
        }
        let scope = self.kill_switch.holds(&task.state, &tool.spec.name).await?;
        if let Some(scope) = &scope {
            // It is rung for again, until it may.
            tracing::info!(call = %task.id(), scope, "a call is not tried out: frozen");
        }
        Ok(scope.is_some())
    }

    async fn once(&self, tool: &Tool, means: &Means, invocation: Invocation<'_>) -> Result<Content, ToolError> {
        let running = self.tools.run(means, invocation);
        let content = tokio::time::timeout(invocation.timeout + OVERTIME, running).await.unwrap_or_else(|_| {
            let words = format!("it took longer than {:?}", invocation.timeout);
            Err(ToolError::transient("timeout", words, Happened::Unknown))
        })?;
        if content.task.is_some() {
            let words = format!("the dry run by `{}` goes on by itself: a dry run has to answer", tool.spec.name);
            return Err(ToolError::final_("misconfigured", words));
        }
        Ok(content)
    }

    /// Ends a call whose dry run failed. What came of it may be a stranger's words.
    async fn deny(&self, task: &Task, failure: CallFailure) -> Result<Next, SubmitError> {
        let CallFailure { block, code, .. } = &failure;
        let tool = &task.call.request.tool;
        let words = format!(
            "`{tool}` was tried out first, and that failed ({code}), so it was not carried out: {}",
            block.text
        );
        task.ended("denied", Some((FAILED, &words)));
        let (call_id, block) = (task.id(), Block { text: words, ..block.clone() });
        let command = if task.call.is_started() {
            Command::FailCall(FailCall {
                call_id,
                failure: CallFailure { block, code: FAILED.to_owned(), duration_ms: 0 },
            })
        } else {
            Command::DenyCall(DenyCall { call_id, code: FAILED.to_owned(), reason: block })
        };
        self.record(task, command, "deny").await
    }
}
