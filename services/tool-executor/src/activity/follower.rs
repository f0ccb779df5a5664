//! Whoever follows an activity: publishes what it says, ends it when there is a reason to, hands over its input.

use std::time::Duration;

use engine::Lease;
use jiff::Timestamp;
use kernel::call::Exit;
use kernel::command::{Command, ProgressCall};
use kernel::{Block, CallId, Cause, Trust};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::files::Files;
use super::processes::Processes;
use super::tail::{self, Follow, Tail};
use super::{Activities, Activity, Room, input};
use crate::beside::Held;

/// How often it is looked up whether the run still wants an activity, in case the doorbell was not heard.
const STILL_WANTED: Duration = Duration::from_secs(5);

/// What keeps one follower going.
pub(super) struct Follower {
    pub activities: Activities,
    pub activity: Activity,
    pub files: Files,
    pub processes: Processes,
    pub lease: Lease,
    pub wanted: CancellationToken,
    pub beyond: watch::Receiver<Option<&'static str>>,
    pub held: Held,
    /// Why it is to be ended, for whoever asks about one that goes on elsewhere.
    pub ending: Option<watch::Sender<Option<&'static str>>>,
    pub _registered: Registered,
    pub _room: Option<Room>,
}

/// Keeps an activity in the list of those that are followed.
pub(super) struct Registered {
    pub activities: Activities,
    pub call: CallId,
}

impl Follower {
    /// Follows until the activity's end is published, or the lease is lost, or this executor stops: then the command goes
    /// on, and whoever takes the lease follows it.
    pub async fn run(self, follow: Follow, asks: Option<impl Future<Output = ()>>) {
        let call = self.activity.call;
        let stopping = self.activities.inner.shutdown.stopping();
        let following = async { Tail::begin(follow).await?.follow().await };
        let outcome = tokio::select! {
            outcome = following => Some(outcome),
            () = self.lease.lost() => None,
            () = stopping.cancelled() => None,
            never = self.guard() => match never {},
            never = asked(asks) => match never {},
            never = self.input() => match never {},
        };
        let mut over = false;
        match &outcome {
            Some(Ok(exit)) => {
                self.ended(exit);
                over = true;
            }
            Some(Err(error)) => {
                tracing::error!(run_id = %self.activity.run, %call, %error, "an activity can't be followed; it will be taken up again");
            }
            None => tracing::info!(run_id = %self.activity.run, %call, "letting go of an activity, which goes on"),
        }
        self.held.release().await;
        self.lease.release().await;
        if over {
            self.processes.clear().await;
        }
    }

    /// Hands over what is sent to the command, and tells when it waits for something.
    async fn input(&self) -> std::convert::Infallible {
        // The pipe is made before the command is started, or never.
        if !self.files.takes_input() {
            return std::future::pending().await;
        }
        let Activity { run, call, ref tool, .. } = self.activity;
        let (engine, source) = (&self.activities.inner.engine, format!("tool:{tool}/{call}"));
        let asks = |name: String, words: String| {
            let asks = Some(Block::new(words, Trust::Untrusted, source.clone()));
            let command = Command::ProgressCall(Box::new(ProgressCall { asks, ..ProgressCall::of(call) }));
            let cause = Cause { service: "tool-executor".to_owned(), ..Cause::default() };
            async move {
                if let Err(error) = engine.submit(run, command, format!("{call}/{name}"), cause).await {
                    tracing::warn!(%call, %error, "that a command waits for input could not be told");
                }
            }
        };
        input::hand_over(self.files.clone(), call, asks).await
    }

    fn ended(&self, exit: &Exit) {
        let Activity { run, call, tool, .. } = &self.activity;
        tracing::info!(run_id = %run, %call, tool, reason = exit.reason, code = ?exit.code, signal = ?exit.signal, bytes = exit.bytes, "an activity ended");
        let labels = [("tool", tool.clone()), ("outcome", exit.reason.clone())];
        metrics::counter!("tool_executor_activities_ended_total", &labels).increment(1);
    }

    /// Ends the command when there is a reason to. Its exit is found and published by the tail, as any other.
    async fn guard(&self) -> std::convert::Infallible {
        let mut beyond = self.beyond.clone();
        let begun = self.ending.is_none() && self.files.reason().is_some();
        let reason = tokio::select! {
            // Whoever followed it before was about to end it, and may have left it standing still. The reason is known.
            () = std::future::ready(()), if begun => "cancelled",
            () = self.wanted.cancelled() => "cancelled",
            () = self.no_longer_wanted() => "cancelled",
            () = until(self.activity.deadline) => "timeout",
            Ok(reason) = beyond.wait_for(Option::is_some) => reason.unwrap_or("output_cap"),
        };
        let grace = match reason {
            // Whoever multiplies uses every moment for more.
            "process_cap" | "memory_cap" => Duration::ZERO,
            _ => self.activities.inner.limits.kill_grace,
        };
        match &self.ending {
            // It is ended where it goes on, and its end is found there.
            Some(ending) => {
                ending.send_replace(Some(reason));
            }
            None => tail::end(&self.files, &self.processes, reason, grace).await,
        }
        std::future::pending().await
    }

    /// Waits until the run is ending or does not know the call any more.
    async fn no_longer_wanted(&self) {
        loop {
            tokio::time::sleep(STILL_WANTED).await;
            match self.activities.inner.engine.load(self.activity.run).await {
                Ok(Some(state)) if state.ending.is_none() && state.calls.contains_key(&self.activity.call) => {}
                Ok(_) => return,
                // Nothing is known: let it go on.
                Err(error) => tracing::debug!(%error, "could not look up whether an activity is still wanted"),
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.activities.live().remove(&self.call);
        metrics::gauge!("tool_executor_activities").set(self.activities.live().len() as f64);
    }
}

/// Asks to the end; what comes of it is in the files.
async fn asked(asks: Option<impl Future<Output = ()>>) -> std::convert::Infallible {
    if let Some(asks) = asks {
        asks.await;
    }
    std::future::pending().await
}

async fn until(time: Timestamp) {
    let left = time.duration_since(Timestamp::now());
    tokio::time::sleep(Duration::try_from(left).unwrap_or_default()).await;
}
