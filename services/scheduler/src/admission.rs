//! Queued runs begin when their tenant has room.

use std::time::Duration;

use bus::Subscription;
use engine::{Engine, EngineError, Queued, Reads, SubmitError};
use futures::{FutureExt as _, StreamExt as _};
use kernel::Command;
use service::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{leader::Leader, span_of};

/// Runs that are admitted at once.
const BATCH: u32 = 256;
/// Pause while runs are queued: an ended one makes room at any time.
const BUSY: Duration = Duration::from_millis(250);
/// Pause while none is; a doorbell cuts it short.
const IDLE: Duration = Duration::from_secs(5);

/// Admits queued runs.
pub(crate) struct Admission {
    engine: Engine,
    reads: Reads,
    tracer: Tracer,
    max_running: u32,
}

impl Admission {
    pub(crate) fn new(engine: &Engine, tracer: Tracer, max_running: u32) -> Self {
        Self { engine: engine.clone(), reads: engine.reads(), tracer, max_running }
    }

    /// Admits until told to stop.
    pub(crate) async fn run(&self, leader: &Leader, mut bells: Subscription, stop: CancellationToken) {
        let mut pause = BUSY;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                Some(_) = bells.next() => while bells.next().now_or_never().flatten().is_some() {},
            }
            if !leader.leads() {
                pause = IDLE;
                continue;
            }
            pause = match self.admit().await {
                Ok(true) => BUSY,
                Ok(false) => IDLE,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "can't look at the queue at the moment");
                    IDLE
                }
            };
        }
    }

    /// Admits those that there is room for. Says whether any are queued.
    async fn admit(&self) -> Result<bool, EngineError> {
        let queue = self.reads.queued(self.max_running, BATCH).await?;
        let admitting = queue.iter().filter(|queued| queued.has_room).map(|queued| self.admit_one(queued));
        futures::future::join_all(admitting).await;
        Ok(!queue.is_empty())
    }

    async fn admit_one(&self, queued: &Queued) {
        let run = queued.run_id;
        let (span, cause) = span_of(&self.tracer, "admit", run, queued.sampled);
        match self.engine.submit(run, Command::Admit, "admit", cause).await {
            Ok(_) => metrics::counter!("scheduler_runs_admitted_total").increment(1),
            // Ended or held meanwhile.
            Err(SubmitError::Rejected(rejection)) => {
                span.in_scope(|| tracing::debug!(%rejection, "a queued run is not admitted"));
            }
            Err(error) => {
                span.record_error("submit", &error);
                let error = &error as &dyn std::error::Error;
                span.in_scope(|| tracing::warn!(error, "a queued run could not be admitted, it is tried again"));
            }
        }
    }
}
