//! Activities that go on elsewhere: from the answer to their start to somebody who asks about them.

use std::sync::Arc;

use bus::{Bus, BusError, Outcome, subject};
use engine::{EngineError, Lease, SubmitError};
use futures::StreamExt as _;
use kernel::TenantId;
use kernel::agent::Allow;
use kernel::command::{Command, ProgressCall};
use kernel::units::later;
use serde::Deserialize;
use serde_json::Value;
use service::Shutdown;

use crate::activity::{Activities, Activity, Attached, Elsewhere, handle};
use crate::beside::Held;
use crate::dispatch::{Dispatcher, Next};
use crate::outcome::Content;
use crate::task::Task;
use crate::template::{self, Places};

/// What ingress says of an outside event that it has recorded.
#[derive(Debug, Deserialize)]
struct Happened {
    tenant: TenantId,
    resource: String,
}

/// Hears of outside events, until the shutdown. What is not heard is found by asking in time.
pub(crate) async fn hear(activities: Activities, bus: &Bus, shutdown: &Shutdown) -> Result<(), BusError> {
    let mut happenings = bus.subscribe(&subject::svc("tool-executor", "happened")).await?;
    let hearing = async move {
        while let Some(message) = happenings.next().await {
            if let Ok(Happened { tenant, resource }) = message.json() {
                activities.called_back(&tenant, &resource);
            }
        }
    };
    shutdown.spawn_background(shutdown.closing().run_until_cancelled_owned(hearing));
    Ok(())
}

impl Dispatcher {
    /// It was started: keeps where it goes on, and follows it.
    pub async fn goes_on_elsewhere(
        &self,
        task: &Task,
        content: Content,
        lease: &mut Option<Lease>,
        held: Held,
    ) -> Result<Next, SubmitError> {
        match self.keep_handle(task, content.value).await? {
            Ok(started) => Ok(self.follow_elsewhere(&started, lease, held).await?),
            Err(next) => Ok(next),
        }
    }

    /// It was found where it goes on, after a doubt whether it was started.
    pub async fn goes_on(&self, task: &Task, answer: Value) -> Result<Next, SubmitError> {
        Ok(match self.keep_handle(task, Some(answer)).await? {
            Ok(_) => Next::Again,
            Err(next) => next,
        })
    }

    async fn keep_handle(&self, task: &Task, answer: Option<Value>) -> Result<Result<Task, Next>, SubmitError> {
        let handle = self.results.visible(handle(answer));
        let progress = ProgressCall { handle: Some(handle), ..ProgressCall::of(task.id()) };
        let command = Command::ProgressCall(Box::new(progress));
        let policy =
            bus::retry::Policy::exponential(std::time::Duration::from_millis(50), std::time::Duration::from_secs(2));
        let submit = || self.engine.submit_on(&task.state, command.clone(), task.key("handle"), task.cause());
        let kept = bus::retry::when(policy.within(crate::dispatch::RECORD_WITHIN), SubmitError::is_transient, submit);
        match kept.await {
            Ok(committed) => Ok(match committed.state.calls.get(&task.id()).cloned() {
                Some(call) => Ok(task.after(committed.state, call)),
                None => Err(Next::ACK),
            }),
            Err(SubmitError::Rejected(rejection)) => {
                tracing::info!(call = %task.id(), code = rejection.code(), "an activity elsewhere is not followed");
                Ok(Err(Next::ACK))
            }
            Err(error) => Err(error),
        }
    }

    /// Asks about it until it has ended: as the one who started it, or as anybody after a crash.
    pub async fn follow_elsewhere(
        &self,
        task: &Task,
        lease: &mut Option<Lease>,
        held: Held,
    ) -> Result<Next, EngineError> {
        let request = &task.call.request;
        let tool = self.pipeline.registry.now(&request.tool);
        let (Some(remote), Some(lease)) = (tool.and_then(|tool| tool.remote.clone()), lease.take()) else {
            return Ok(Next::ACK);
        };
        let allow: Allow = self.pipeline.allow(&task.state).await?;
        let mut arguments = request.arguments.as_object().cloned().unwrap_or_default();
        arguments.insert("result".to_owned(), task.call.handle.clone().unwrap_or(Value::Null));
        let places = Places { arguments: &arguments, idempotency_key: &task.idempotency_key, run: task.state.run_id };
        // What no answer gave has no name to be called by.
        let callback = remote.status.callback.as_deref().and_then(|callback| template::complete(callback, places));
        let started = task.call.started_at.unwrap_or(task.state.updated_at);
        let elsewhere = Elsewhere {
            requests: self.tools.requests(),
            remote,
            tenant: task.state.tenant.clone(),
            run: task.state.run_id,
            agent: task.state.agent.clone(),
            trust: request.trust,
            call: task.id(),
            arguments,
            idempotency_key: task.idempotency_key.clone(),
            traceparent: task.span.traceparent(),
            allow,
            started,
            deadline: later(started, request.timeout),
            pace: self.pace,
            callback,
            news: Arc::default(),
        };
        let activity = Activity::of(&task.state, &task.call);
        Ok(match self.activities.follow_remote(activity, elsewhere, lease, held) {
            Ok(Attached::Following) => {
                task.ended("started", None);
                Next::ACK
            }
            Ok(Attached::Held | Attached::Elsewhere) => Next::ACK,
            Err(error) => Next::Done(Outcome::retry(format!("the files of an activity can't be used: {error}"))),
        })
    }
}
