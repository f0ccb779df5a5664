//! Hears that runs are cancelled, ended or held while their turns are under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool, atomic::Ordering},
};

use bus::{Bus, BusError, Subject, Subscription, subject};
use futures::{StreamExt, stream};
use kernel::RunId;
use tokio_util::sync::CancellationToken;

/// Events after which no turn of the run can be committed.
const ENDS: [&str; 4] = ["run.cancel_requested", "run.cancelled", "run.failed", "run.completed"];
/// The event after which no model call begins.
const PAUSE: &str = "run.paused";

/// Who is interested, by run.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    active: Arc<Mutex<HashMap<RunId, Vec<Arc<Flags>>>>>,
}

#[derive(Debug, Default)]
struct Flags {
    ended: CancellationToken,
    paused: AtomicBool,
}

/// One turn's ear. Dropping it ends the interest.
#[derive(Debug)]
pub struct Interrupt {
    run: RunId,
    flags: Arc<Flags>,
    all: Interrupts,
}

impl Interrupts {
    /// Listens until `stop` is cancelled. These are doorbells: whoever is woken, or not, is told the truth at the commit.
    ///
    /// # Errors
    /// When the bus does not let it listen.
    pub async fn listen(bus: &Bus, stop: CancellationToken) -> Result<Self, BusError> {
        let interrupts = Self::default();
        let mut all: Vec<Subscription> = Vec::new();
        for event in ENDS.into_iter().chain([PAUSE]) {
            all.push(bus.subscribe(&subject::evt_of_type(event)).await?);
        }
        let heard = interrupts.clone();
        tokio::spawn(async move {
            let mut all = stream::select_all(all);
            while let Some(Some(message)) = stop.run_until_cancelled(all.next()).await {
                heard.hear(&message.subject);
            }
        });
        Ok(interrupts)
    }

    /// For a turn of `run`.
    #[must_use]
    pub fn of(&self, run: RunId) -> Interrupt {
        let flags = Arc::new(Flags::default());
        self.lock().entry(run).or_default().push(Arc::clone(&flags));
        Interrupt { run, flags, all: self.clone() }
    }

    fn hear(&self, subject: &str) {
        let Ok(Subject::Event { entity, verb, run, .. }) = Subject::parse(subject) else { return };
        let Ok(run) = run.parse::<RunId>() else { return };
        let paused = format!("{entity}.{verb}") == PAUSE;
        for flags in self.lock().get(&run).into_iter().flatten() {
            if paused {
                flags.paused.store(true, Ordering::Relaxed);
            } else {
                flags.ended.cancel();
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Vec<Arc<Flags>>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupt {
    /// Runs `future`, unless the run ends first: then nothing comes out.
    pub async fn or_ended<F: Future>(&self, future: F) -> Option<F::Output> {
        self.flags.ended.run_until_cancelled(future).await
    }

    /// Whether the run was held since the turn began.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.flags.paused.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        let mut active = self.all.lock();
        if let Some(flags) = active.get_mut(&self.run) {
            flags.retain(|flags| !Arc::ptr_eq(flags, &self.flags));
            if flags.is_empty() {
                active.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_run_stops_its_turns_only() {
        let interrupts = Interrupts::default();
        let (mine, other) = (RunId::mint(), RunId::mint());
        let (turn, another) = (interrupts.of(mine), interrupts.of(other));
        interrupts.hear(&subject::evt(PAUSE, "default", mine));
        assert!(turn.is_paused() && !another.is_paused());
        assert_eq!(turn.or_ended(async { 1 }).await, Some(1));
        interrupts.hear(&subject::evt("run.cancelled", "default", mine));
        assert_eq!(turn.or_ended(std::future::pending::<()>()).await, None);
        assert_eq!(another.or_ended(async { 2 }).await, Some(2));
        drop((turn, another));
        assert!(interrupts.lock().is_empty());
    }
}
