//! Questions that nobody answered in time: no answer is a no.

use std::time::Duration;

use engine::{DueApproval, Engine, EngineError, SubmitError, Timers};
use kernel::{Command, command::ExpireApproval};
use service::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{span_of, standing::Steward};

/// Questions that are expired at once.
const BATCH: u32 = 256;
/// Pause after a look that failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Expires questions. Any number of instances may: the second time does nothing.
pub(crate) struct Expiry {
    engine: Engine,
    timers: Timers,
    steward: Steward,
    tracer: Tracer,
    every: Duration,
}

impl Expiry {
    pub(crate) fn new(engine: &Engine, steward: Steward, tracer: Tracer, every: Duration) -> Self {
        Self { engine: engine.clone(), timers: engine.timers(), steward, tracer, every }
    }

    /// Expires until told to stop.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut pause = self.every;
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            pause = match self.expire().await {
                Ok(()) => self.every,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "can't look for overdue questions at the moment"
                    );
                    PAUSE
                }
            };
        }
    }

    async fn expire(&self) -> Result<(), EngineError> {
        self.steward.settle().await?;
        let due = self.timers.due_approvals(BATCH).await?;
        futures::future::join_all(due.iter().map(|due| self.expire_one(due))).await.into_iter().collect()
    }

    async fn expire_one(&self, due: &DueApproval) -> Result<(), EngineError> {
        let Some(run) = self.engine.load_at_least(due.run_id, 0, |_| true).await? else { return Ok(()) };
        let (span, cause) = span_of(&self.tracer, "expire_approval", &run);
        let command = Command::ExpireApproval(ExpireApproval { approval_id: due.approval_id });
        match self.engine.submit_on(&run, command, format!("expire/{}", due.approval_id), cause).await {
            Ok(committed) => {
                if !committed.events.is_empty() {
                    metrics::counter!("approval_expired_total").increment(1);
                    span.in_scope(|| tracing::info!(approval_id = %due.approval_id, "nobody decided in time"));
                }
                Ok(())
            }
            // Somebody decided, or the run ended, meanwhile.
            Err(SubmitError::Rejected(rejection)) => {
                span.in_scope(|| tracing::debug!(approval_id = %due.approval_id, %rejection, "not expired"));
                Ok(())
            }
            Err(SubmitError::Engine(error)) => Err(error),
        }
    }
}
