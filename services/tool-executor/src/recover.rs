//! Calls that were started and whose executor is gone, or does not know what it did.

use std::time::Duration;

use bus::Outcome;
use engine::{Lease, SubmitError};
use jiff::Timestamp;
use kernel::call::{CallResult, CallStatus};
use kernel::command::{CancelCall, Command, DoubtCall, ReconcileCall};
use kernel::event::Finding;
use kernel::tool::{CallKind, Probe};
use kernel::{Block, Rejection, Trust};
use serde_json::{Map, Value};

use crate::activity::{Activity, Attached};
use crate::dispatch::{Dispatcher, Next};
use crate::outcome::Content;
use crate::pipeline::Ready;
use crate::task::Task;
use crate::tools::{self, Asked};

/// What is added to the moment from which "not done" is believed, for clocks that differ.
const CLOCKS: Duration = Duration::from_millis(100);

impl Dispatcher {
    /// Nobody is at a started call. Activities go on by themselves and are taken up; what may be done twice is done again;
    /// everything else is in doubt.
    pub async fn recover(&self, task: &Task, lease: &mut Option<Lease>) -> Result<Next, SubmitError> {
        let request = &task.call.request;
        if request.kind == CallKind::Activity {
            let tool = self.pipeline.registry.now(&request.tool);
            if tool.is_some_and(|tool| tool.is_remote()) {
                if task.call.handle.is_some() {
                    return Ok(self.follow_elsewhere(task, lease, self.retake(&task.state, &task.call).await).await?);
                }
                // Whether it was started, and where it goes on, is not known.
            } else {
                return Ok(self.take_up(task, lease).await);
            }
        }
        if let Some((remote_task, remote)) = self.tools.mcp.task_of(&task.call).await {
            let held = self.retake(&task.state, &task.call).await;
            return Ok(self.follow_task(task, remote_task, remote, lease, held));
        }
        if !request.idempotent {
            return self.doubt(task, "its executor is gone").await;
        }
        if task.state.ending.is_some() && !request.is_compensation() {
            let reason = "the run is ending, and its executor is gone".to_owned();
            let cancel = Command::CancelCall(CancelCall { call_id: task.id(), reason });
            return self.record(task, cancel, "cancel").await;
        }
        if task.state.paused && !request.is_compensation() {
            return Ok(Next::ACK);
        }
        tracing::info!(call = %task.id(), tool = request.tool, "doing a call again whose executor is gone");
        self.dispatch(task, lease).await
    }

    async fn take_up(&self, task: &Task, lease: &mut Option<Lease>) -> Next {
        let Some(lease) = lease.take() else { return Next::ACK };
        let held = self.retake(&task.state, &task.call).await;
        let activity = Activity::of(&task.state, &task.call);
        match self.activities.attach(activity, task.span.traceparent(), lease, held) {
            // Held or elsewhere: whoever looks after started calls rings again if nobody is on it then.
            Ok(Attached::Following | Attached::Held | Attached::Elsewhere) => Next::ACK,
            Err(error) => Next::Done(Outcome::retry(format!("the files of an activity can't be used: {error}"))),
        }
    }

    /// Parks a call in doubt and looks into it: by its tool's own read-back, or not at all.
    pub async fn doubt(&self, task: &Task, reason: &str) -> Result<Next, SubmitError> {
        if task.call.status == CallStatus::Started {
            let doubt = Command::DoubtCall(DoubtCall { call_id: task.id(), reason: reason.to_owned() });
            match self.engine.submit_on(&task.state, doubt, task.key("doubt"), task.cause()).await {
                Ok(_) => {}
                Err(SubmitError::Rejected(_)) => return Ok(Next::ACK),
                Err(error) => return Err(error),
            }
        }
        // As it is declared now: a tool that changed meanwhile may still say what has happened.
        // What undoes a call has no read-back: that of its tool tells of the call.
        let tool = match task.call.request.is_compensation() {
            true => None,
            false => self.pipeline.registry.now(&task.call.request.tool),
        };
        let Some((tool, probe)) = tool.as_ref().and_then(|tool| Some((tool, tool.probe.as_ref()?))) else {
            return self.reconcile(task, Finding::Unknown, Timestamp::now(), "there is no way to find out", None).await;
        };
        let raw = || task.call.request.arguments.as_object().cloned().unwrap_or_default();
        let arguments = tool.check(&task.call.request.arguments).unwrap_or_else(|_| raw());
        let as_of = Timestamp::now();
        match self.probe(task, probe, &arguments).await? {
            Ok(Asked { finding: tools::Finding::Done, body, .. }) if tool.is_remote() => {
                // It was started: where it goes on is in the answer.
                let answer = serde_json::from_slice(&body).unwrap_or(Value::Null);
                self.goes_on(task, answer).await
            }
            Ok(Asked { finding: tools::Finding::Done, status, body, media_type }) => {
                let result = self.found(task, status, body, media_type).await;
                let result = self.told(&task.state, &task.call, result).await.map_err(SubmitError::Engine)?;
                self.reconcile(task, Finding::Done, as_of, "its own read-back says that it is done", Some(result)).await
            }
            Ok(Asked { finding: tools::Finding::NotDone, status, .. }) => {
                let words = format!("its own read-back says that it is not done (HTTP {status})");
                self.reconcile(task, Finding::NotDone, as_of, &words, None).await
            }
            Err(words) if self.asked_long_enough(task) => {
                let words = format!("its own read-back gave no answer: {words}");
                self.reconcile(task, Finding::Unknown, as_of, &words, None).await
            }
            Err(words) => {
                let reason = format!("a call in doubt could not be asked about: {words}");
                Ok(Next::Done(Outcome::Retry { after: None, reason }))
            }
        }
    }

    /// Whether the read-back of a call shows what its answer says, as a policy wants to know.
    pub async fn shows(&self, task: &Task, ready: &Ready) -> Result<bool, SubmitError> {
        let Some(probe) = &ready.tool.probe else { return Ok(false) };
        let asked = self.probe(task, probe, &ready.arguments).await?;
        Ok(asked.is_ok_and(|asked| asked.finding == tools::Finding::Done))
    }

    /// Asks; in words why there is no answer.
    async fn probe(
        &self,
        task: &Task,
        probe: &Probe,
        arguments: &Map<String, Value>,
    ) -> Result<Result<Asked, String>, SubmitError> {
        let allow = self.pipeline.allow(&task.state).await?;
        let asked = self.tools.probe(probe, task.invocation(arguments, &allow)).await;
        Ok(asked.map_err(|error| error.message))
    }

    /// The result of a call, from what its probe found.
    async fn found(&self, task: &Task, status: u16, body: Vec<u8>, media_type: String) -> CallResult {
        let mut content = Content::outside(body, media_type);
        content.value = serde_json::from_slice(&content.bytes).ok();
        content.head =
            Some(format!("It has happened: its answer was lost, but its read-back says so (HTTP {status})."));
        self.results.complete(task.origin(), content, Duration::ZERO).await
    }

    async fn reconcile(
        &self,
        task: &Task,
        finding: Finding,
        as_of: Timestamp,
        words: &str,
        result: Option<CallResult>,
    ) -> Result<Next, SubmitError> {
        let (name, outcome) = match finding {
            Finding::Done => ("done", "reconciled_done"),
            Finding::NotDone => ("not_done", "reconciled_not_done"),
            Finding::Unknown => ("unknown", "reconciled_unknown"),
        };
        let evidence = Block::new(words, Trust::System, "runtime");
        let command = Command::ReconcileCall(ReconcileCall { call_id: task.id(), finding, as_of, evidence, result });
        let key = task.key(&format!("reconcile/{name}"));
        match self.engine.submit_on(&task.state, command, key, task.cause()).await {
            Ok(_) => {
                tracing::info!(call = %task.id(), tool = task.call.request.tool, finding = name, words, "looked into a call in doubt");
                task.ended(outcome, None);
                // Not done: it is as good as asked for anew.
                Ok(if finding == Finding::NotDone { Next::Again } else { Next::ACK })
            }
            Err(SubmitError::Rejected(Rejection::TooEarly(_, settled))) => {
                let left = Duration::try_from(settled.duration_since(Timestamp::now())).unwrap_or_default() + CLOCKS;
                let reason = "a call in doubt may still be under way".to_owned();
                Ok(Next::Done(Outcome::Retry { after: Some(left), reason }))
            }
            Err(SubmitError::Rejected(rejection)) => {
                tracing::info!(call = %task.id(), code = rejection.code(), "a call in doubt has gone another way");
                Ok(Next::ACK)
            }
            Err(error) => Err(error),
        }
    }

    fn asked_long_enough(&self, task: &Task) -> bool {
        let since = task.call.started_at.unwrap_or(task.state.updated_at);
        Duration::try_from(Timestamp::now().duration_since(since)).is_ok_and(|asked| asked > self.doubt)
    }
}
