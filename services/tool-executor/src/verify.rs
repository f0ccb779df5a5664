//! Asking the outside about what is waited for, should the event that would tell of it be lost.
//!
//! A wait may name a tool that only reads, and an expression over its result. It goes the way of any call: schema, permissions
//! and policies; what they would ask a person about is not asked here. What it finds is an observation; the wait stays as it is.

use std::sync::Arc;

use bus::Outcome;
use engine::{Filter, SubmitError};
use kernel::call::{Call, CallRequest, CallResult, Evidence, Observation, SignalCounts};
use kernel::command::Command;
use kernel::tool::{CallKind, Effect};
use kernel::wait::{Condition, ExternalPattern, Verify, Wait};
use kernel::{Block, CallId, RunState, Trust, TurnId, WaitId, excerpt};
use serde_json::{Value, json};

use crate::dispatch::Dispatcher;
use crate::doorbell::Doorbell;
use crate::limits::{self, Asking};
use crate::outcome::ToolError;
use crate::pipeline::{Ready, Verdict};
use crate::registry::Tool;
use crate::task::Task;

/// What is shown of the answer.
const EVIDENCE: usize = 2048;

/// What came of asking.
enum Asked {
    /// It has happened.
    Happened(String),
    NotYet,
    /// It can't be asked like this: a person or the model has to change something.
    Unusable(String),
    /// Nobody answered.
    Nothing(ToolError),
}

impl Dispatcher {
    /// Asks about the conditions of a wait that can be asked about.
    pub async fn verify_wait(&self, bell: &Doorbell, wait_id: WaitId) -> Result<Outcome, SubmitError> {
        let Some(state) = self.engine.load(bell.run).await? else { return Ok(Outcome::Ack) };
        let Some(wait) = state.wait.clone().filter(|wait| wait.wait_id == wait_id) else { return Ok(Outcome::Ack) };
        if state.paused || state.ending.is_some() || wait.on.is_met() {
            return Ok(Outcome::Ack);
        }
        for (number, leaf) in wait.on.leaves().into_iter().enumerate() {
            if let Condition::External(pattern) = &leaf.condition
                && let Some(verify) = pattern.verify.as_deref().filter(|_| leaf.met_by.is_none())
            {
                self.verify_leaf(bell, &state, &wait, number, pattern, verify).await?;
            }
        }
        Ok(Outcome::Ack)
    }

    async fn verify_leaf(
        &self,
        bell: &Doorbell,
        state: &Arc<RunState>,
        wait: &Wait,
        number: usize,
        pattern: &ExternalPattern,
        verify: &Verify,
    ) -> Result<(), SubmitError> {
        let asked = self.ask_outside(bell, state, wait, number, verify).await?;
        let what = format!("`{}` from `{}`, subject `{}`", pattern.event_type, pattern.source, pattern.subject);
        let (word, observation) = match asked {
            Asked::NotYet => ("not_yet", None),
            Asked::Nothing(error) => {
                tracing::debug!(run_id = %state.run_id, tool = verify.tool, %error, "what is waited for could not be asked about");
                ("no_answer", None)
            }
            Asked::Happened(answer) => {
                let call = pseudo_call(state, wait, number, verify, None);
                let block = Block::new(answer, Trust::Untrusted, format!("tool:{}", verify.tool));
                let result = CallResult { block, value: None, artifact: None, duration_ms: 0 };
                let answer = self.told(state, &call, result).await.map_err(SubmitError::Engine)?.block.text;
                let changed = format!("No event {what} came, but `{}` says that it has happened.", verify.tool);
                let decision = "what is waited for has happened, and its event was lost or never sent".to_owned();
                ("happened", Some(observation("verified", changed, Some(decision), answer, verify)))
            }
            Asked::Unusable(why) => {
                let changed = format!("Whether {what} has happened can't be asked as `verify` says: {why}");
                ("unusable", Some(observation("not_verifiable", changed, None, String::new(), verify)))
            }
        };
        metrics::counter!("tool_executor_waits_verified_total", "outcome" => word).increment(1);
        let Some(observation) = observation else { return Ok(()) };
        // Once for each condition: the wait stays, and is asked about again.
        let key = format!("verify/{}/{number}/{word}", wait.wait_id);
        let task = self.task(state.clone(), pseudo_call(state, wait, number, verify, None), bell);
        match self.engine.submit_on(state, Command::Observe(observation), key, task.cause()).await {
            Ok(_) | Err(SubmitError::Rejected(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn ask_outside(
        &self,
        bell: &Doorbell,
        state: &Arc<RunState>,
        wait: &Wait,
        number: usize,
        verify: &Verify,
    ) -> Result<Asked, SubmitError> {
        let filter = match Filter::compile(&verify.when) {
            Ok(filter) => filter,
            Err(error) => return Ok(Asked::Unusable(format!("`when`: {error}"))),
        };
        let Some(tool) = self.pipeline.registry.meant(&verify.tool) else {
            return Ok(Asked::Unusable(format!("there is no tool `{}`", verify.tool)));
        };
        if tool.spec.effect != Effect::Read || tool.spec.kind != CallKind::Call {
            return Ok(Asked::Unusable(format!("`{}` does more than read", tool.spec.name)));
        }
        let call = pseudo_call(state, wait, number, verify, Some(&*tool));
        let ready = match self.pipeline.judge(state, &call).await? {
            Verdict::Go(ready) if ready.verify || ready.rehearsal.is_some() => {
                return Ok(Asked::Unusable(
                    "the policies oblige to more than a look, beforehand or afterwards".to_owned(),
                ));
            }
            Verdict::Go(ready) => ready,
            Verdict::Refused(refusal) => return Ok(Asked::Unusable(refusal.words)),
            Verdict::Ask(_) => return Ok(Asked::Unusable("a person would have to agree each time".to_owned())),
        };
        let task = self.task(state.clone(), call, bell);
        Ok(match self.read_once(&task, &ready).await {
            Err(error) => Asked::Nothing(error),
            Ok(answer) => match filter.matches(&json!({ "data": answer })) {
                Ok(true) => Asked::Happened(excerpt(&answer.to_string(), EVIDENCE)),
                Ok(false) => Asked::NotYet,
                Err(error) => Asked::Unusable(format!("`when`: {error}")),
            },
        })
    }

    /// One attempt: the next look is the next one.
    async fn read_once(&self, task: &Task, ready: &Ready) -> Result<Value, ToolError> {
        let target = limits::target(ready);
        let tool = &task.call.request.tool;
        let asking = Asking { tool, tenant: Some(&task.state.tenant), target: target.as_deref() };
        self.limits.admit(asking).await.map_err(|wait| ToolError::final_(wait.reason, wait.words))?;
        let invocation = task.invocation(&ready.arguments, &ready.allow);
        let outcome = tokio::time::timeout(invocation.timeout, self.tools.run(&ready.means, invocation)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            Err(ToolError::transient("timeout", "it took too long", crate::outcome::Happened::Unknown))
        });
        self.limits.tell(target.as_deref(), outcome.as_ref().err()).await;
        let content = outcome?;
        let text = || Value::from(String::from_utf8_lossy(&content.bytes).into_owned());
        Ok(self.results.visible(content.value.clone().unwrap_or_else(text)))
    }
}

/// The question as a call: the pipeline judges calls. It is in no log.
fn pseudo_call(state: &RunState, wait: &Wait, number: usize, verify: &Verify, tool: Option<&Tool>) -> Call {
    let name = format!("verify/{}/{number}", wait.wait_id);
    let request = CallRequest {
        call_id: CallId::derive(state.run_id, &name),
        tool: tool.map_or_else(|| verify.tool.clone(), |tool| tool.spec.name.clone()),
        arguments: verify.arguments.clone(),
        kind: CallKind::Call,
        effect: Effect::Read,
        idempotent: true,
        schema_digest: tool.map(|tool| tool.digest.clone()).unwrap_or_default(),
        // A model wrote it down, having seen all that the run has.
        trust: state.lowest_trust,
        timeout: tool.map(|tool| tool.spec.timeout).unwrap_or_default(),
        compensation: Default::default(),
    };
    Call::requested(request, TurnId::derive(state.run_id, &name), state.seq)
}

fn observation(phase: &str, changed: String, decision: Option<String>, answer: String, verify: &Verify) -> Observation {
    let evidence = Evidence { excerpt: answer, line: 1, rule: excerpt(&verify.when, 200), ..Evidence::default() };
    Observation {
        call_id: None,
        phase: phase.to_owned(),
        changed,
        anomaly: true,
        decision,
        evidence: if evidence.excerpt.is_empty() { Vec::new() } else { vec![evidence] },
        missing: None,
        counts: SignalCounts::default(),
    }
}
