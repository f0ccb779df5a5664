//! Calls that may not begin yet, since another one is in their way: remembered here, so that their messages hold no place in
//! the line and whoever is in nobody's way goes on.
//!
//! What is in the way is looked at again and again, later and later; once it is gone their run is rung for, and the call
//! takes the way of any other. An executor that dies forgets them: they are requested calls that nobody is at, which the
//! scheduler rings for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::EngineError;
use kernel::call::Call;
use kernel::tool::CallKind;
use kernel::{CallId, RunId, RunState};
use tokio::sync::Notify;

use crate::beside;
use crate::dispatch::{Dispatcher, is_open};

/// Shortest and longest pause between two looks at what is in a call's way.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// How often it is looked which of them are due.
const TICK: Duration = Duration::from_millis(100);
/// Calls that are remembered; the others are left to the scheduler.
const MOST: usize = 10_000;

/// Calls that wait.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    calls: Mutex<HashMap<CallId, Waiting>>,
    /// Rung when there is one.
    some: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    run: RunId,
    due: Instant,
    pause: Duration,
}

impl Parked {
    /// Remembers a call, or that it still waits.
    pub fn park(&self, run: RunId, call: CallId, now: Instant) {
        let mut calls = self.calls();
        if calls.len() >= MOST && !calls.contains_key(&call) {
            return;
        }
        let pause = calls.get(&call).map_or(PAUSE.0, |before| (before.pause * 2).min(PAUSE.1));
        calls.insert(call, Waiting { run, due: now + pause, pause });
        self.some.notify_one();
    }

    /// Waits until it may be that one is due.
    async fn wait(&self) {
        if self.calls().is_empty() {
            self.some.notified().await;
        }
        tokio::time::sleep(TICK).await;
    }

    /// It waits no longer.
    pub fn forget(&self, call: CallId) {
        self.calls().remove(&call);
    }

    fn due(&self, now: Instant) -> Vec<(CallId, RunId)> {
        self.calls()
            .iter()
            .filter(|(_, waiting)| waiting.due <= now)
            .map(|(call, waiting)| (*call, waiting.run))
            .collect()
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<CallId, Waiting>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rings for calls that may begin by now, as long as it is polled.
pub(crate) async fn ring(dispatcher: &Dispatcher) {
    loop {
        dispatcher.parked.wait().await;
        let now = Instant::now();
        for (call, run) in dispatcher.parked.due(now) {
            // Later, whatever comes of it: the bell may be lost.
            dispatcher.parked.park(run, call, now);
            if let Err(error) = dispatcher.ring_if_free(run, call).await {
                tracing::debug!(run_id = %run, %call, %error, "can't look at what is in a call's way at the moment");
            }
        }
    }
}

impl Dispatcher {
    async fn ring_if_free(&self, run: RunId, call_id: CallId) -> Result<(), EngineError> {
        let state = self.engine.load(run).await?;
        let call = state.as_ref().and_then(|state| Some((state, state.calls.get(&call_id)?)));
        // What holds it back otherwise rings by itself when that is over.
        let held_back = |state: &RunState, call: &Call| {
            call.put_off.is_some() || ((state.paused || state.ending.is_some()) && !call.request.is_compensation())
        };
        match call.filter(|(state, call)| is_open(call) && !held_back(state, call)) {
            None => self.parked.forget(call_id),
            // For an executor that has room; the scheduler rings for that.
            Some((_, call)) if call.request.kind == CallKind::Activity && !self.activities.has_room() => {}
            // It is somebody's, or another one still goes first.
            Some((state, call)) if self.ahead(state, call).await?.is_some() => {}
            Some(_) => {
                self.engine.outbox().ring(run).await?;
            }
        }
        Ok(())
    }

    /// The call of the same turn that has to end before this one may begin; none that is frozen, for as long as a person wants.
    pub async fn ahead<'s>(&self, state: &'s RunState, call: &Call) -> Result<Option<&'s Call>, EngineError> {
        let mut held_up = Vec::new();
        while let Some(other) = beside::ahead(state, call, &self.pipeline.registry, &held_up) {
            if other.is_started() || self.kill_switch.holds(state, &other.request.tool).await?.is_none() {
                return Ok(Some(other));
            }
            held_up.push(other.request.call_id);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_looked_at_later_and_later_until_it_is_forgotten() {
        let (parked, run, call, now) = (Parked::default(), RunId::mint(), CallId::mint(), Instant::now());
        parked.park(run, call, now);
        assert!(parked.due(now).is_empty());
        assert_eq!(parked.due(now + PAUSE.0), [(call, run)]);
        (0..20).for_each(|_| parked.park(run, call, now));
        assert!(parked.due(now + PAUSE.0).is_empty());
        assert_eq!(parked.due(now + PAUSE.1), [(call, run)], "no later than that");
        parked.forget(call);
        assert!(parked.due(now + PAUSE.1).is_empty());
    }
}
