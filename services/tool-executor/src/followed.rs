//! Calls that became tasks of MCP servers: asked about beside the line of messages, so that they hold no place in it however
//! long they take.
//!
//! Which task a call became is kept in Postgres. Whoever has the call's lease asks; if that executor goes away, the call is a
//! started one that nobody is at, and the scheduler rings for it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{Lease, McpTask, SubmitError};
use kernel::CallId;
use kernel::agent::Allow;
use serde_json::Map;
use service::Shutdown;
use tokio::sync::mpsc;

use crate::beside::Held;
use crate::dispatch::{Dispatcher, Next};
use crate::mcp::Remote;
use crate::outcome::Happened;
use crate::task::Task;

/// How often it is looked whether the run of a task is ending, in case nobody says so.
const LOOK: Duration = Duration::from_secs(5);

/// A task to be asked about, with what is held for its call.
pub(crate) struct Followed {
    pub task: Task,
    pub remote_task: McpTask,
    pub remote: Remote,
    pub lease: Lease,
    pub held: Held,
}

/// The tasks that this process asks about. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Following {
    calls: Arc<Mutex<HashSet<CallId>>>,
    begin: mpsc::UnboundedSender<Followed>,
}

impl Following {
    /// With the end from which [`follow_all`] takes them.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Followed>) {
        let (begin, begun) = mpsc::unbounded_channel();
        (Self { calls: Arc::default(), begin }, begun)
    }

    /// Whether this process asks about the task of a call.
    pub fn has(&self, call: CallId) -> bool {
        self.calls().contains(&call)
    }

    /// Has a task asked about from now on. Is nobody there to do it, its lease is let go of.
    pub fn follow(&self, followed: Followed) {
        let call = followed.task.id();
        self.calls().insert(call);
        if self.begin.send(followed).is_err() {
            self.calls().remove(&call);
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashSet<CallId>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks about all tasks that it is given, each by itself, until the executor stops.
pub(crate) async fn follow_all(
    dispatcher: Arc<Dispatcher>,
    mut begun: mpsc::UnboundedReceiver<Followed>,
    shutdown: Shutdown,
) {
    let stopping = shutdown.stopping();
    while let Some(Some(followed)) = stopping.run_until_cancelled(begun.recv()).await {
        let (dispatcher, stopping) = (dispatcher.clone(), stopping.clone());
        shutdown.spawn(async move {
            let Followed { task, remote_task, remote, lease, held } = followed;
            metrics::gauge!("tool_executor_mcp_tasks").increment(1.0);
            let asking = dispatcher.ask_to_the_end(&task, &remote_task, &remote);
            let ended = tokio::select! {
                ended = asking => Some(ended),
                () = lease.lost() => None,
                () = stopping.cancelled() => None,
            };
            metrics::gauge!("tool_executor_mcp_tasks").decrement(1.0);
            match ended {
                Some(Ok(_)) => held.release().await,
                // The scheduler rings for it.
                Some(Err(error)) => {
                    tracing::warn!(call = %task.id(), %error, "the end of a task can't be recorded now")
                }
                None => tracing::info!(call = %task.id(), "a task is left to another executor"),
            }
            dispatcher.following.calls().remove(&task.id());
            lease.release().await;
        });
    }
}

impl Dispatcher {
    /// The call goes on as a task, which is asked about from now on.
    pub fn follow_task(
        &self,
        task: &Task,
        remote_task: McpTask,
        remote: Remote,
        lease: &mut Option<Lease>,
        held: Held,
    ) -> Next {
        if let Some(lease) = lease.take() {
            task.ended("started", None);
            let task = task.after(task.state.clone(), task.call.clone());
            self.following.follow(Followed { task, remote_task, remote, lease, held });
        }
        Next::ACK
    }

    /// The task's end is the call's.
    async fn ask_to_the_end(&self, task: &Task, remote_task: &McpTask, remote: &Remote) -> Result<Next, SubmitError> {
        let (arguments, allow) = (Map::new(), Allow::default());
        let asking = self.tools.mcp.resume(remote_task, remote, task.invocation(&arguments, &allow));
        let outcome = tokio::select! {
            // First, so that there is something to cancel when the other one looks.
            biased;
            outcome = asking => outcome,
            never = self.cancel_with_run(task) => match never {},
        };
        match outcome {
            Ok(content) => self.complete(task, content, Duration::ZERO).await,
            Err(error) if error.happened == Happened::Unknown && task.call.is_started() => {
                self.doubt(task, &format!("{}: {error}", error.code)).await
            }
            Err(error) => self.fail(task, &error, Duration::ZERO).await,
        }
    }

    /// Cancels a task once its run is ending: also one that was ending before this process knew of it.
    async fn cancel_with_run(&self, task: &Task) -> std::convert::Infallible {
        let run = task.state.run_id;
        loop {
            match self.engine.load(run).await {
                Ok(Some(state)) if state.ending.is_some() => self.tools.mcp.cancel_run(run),
                Ok(_) => {}
                Err(error) => tracing::debug!(run_id = %run, %error, "can't look whether the run of a task is ending"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
