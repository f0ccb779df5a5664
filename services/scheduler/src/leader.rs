//! Which of several schedulers does the upkeep. A hint: two at once do no harm, none at all lasts a few seconds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use engine::{Engine, Leases};
use tokio_util::sync::CancellationToken;

/// The lease that says who it is.
const LEASE: &str = "scheduler/upkeep";
/// How long a leader that died is waited for.
const TTL: Duration = Duration::from_secs(6);
/// How often the others ask.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Whether this scheduler does the upkeep.
pub(crate) struct Leader {
    leases: Leases,
    instance: String,
    leads: Arc<AtomicBool>,
}

impl Leader {
    pub(crate) fn new(engine: &Engine) -> Self {
        let instance = engine.options().instance.clone();
        Self { leases: engine.leases(), instance, leads: Arc::new(AtomicBool::new(false)) }
    }

    /// Whether it is this one, as far as is known.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Takes the lease whenever it is free, until told to stop.
    pub(crate) async fn keep(&self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            match self.leases.acquire(LEASE, &self.instance, TTL).await {
                Ok(Some(lease)) => {
                    tracing::debug!("does the upkeep from now on");
                    self.leads.store(true, Ordering::Relaxed);
                    let _ = stop.run_until_cancelled(lease.lost()).await;
                    self.leads.store(false, Ordering::Relaxed);
                    lease.release().await;
                    continue;
                }
                Ok(None) => self.leads.store(false, Ordering::Relaxed),
                Err(error) => {
                    // Upkeep by all of them is better than by none.
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "no leases: does the upkeep with the others"
                    );
                    self.leads.store(true, Ordering::Relaxed);
                }
            }
            let _ = stop.run_until_cancelled(tokio::time::sleep(ASK_EVERY)).await;
        }
    }
}
