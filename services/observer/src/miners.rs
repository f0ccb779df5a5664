//! What is usual in the output of each source: a miner for the lines of each agent and tool, kept over calls and restarts.
//!
//! Each partition learns by itself, since one observer at a time reads it. What is lost with a crash is learned again, and
//! decides nothing: it only weighs evidence.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use engine::ObserverCheckpoint;
use kernel::{CallId, RunId, RunState};
use uuid::Uuid;

use crate::templates::Miner;

/// Sources of a partition that are kept; each takes less than a megabyte.
const KEPT: usize = 16;
/// Least time between two times that what was learned is stored.
const STORE_EVERY: Duration = Duration::from_secs(10);

/// Whose lines are each other's background.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(String);

impl Source {
    pub(crate) fn new(run: &RunState, tool: &str) -> Self {
        Self(format!("{}/{}/{tool}", run.tenant, run.agent))
    }

    /// What its miner is stored under, beside the calls.
    pub(crate) fn id(&self, partition: u8) -> CallId {
        let name = format!("escapement:miner/{partition}/{}", self.0);
        CallId::from_uuid(Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()))
    }
}

struct Kept {
    miner: Miner,
    used: Instant,
}

/// The miners of a partition.
pub(crate) struct Miners {
    partition: u8,
    kept: HashMap<Source, Kept>,
    stored: Instant,
}

impl Miners {
    pub(crate) fn new(partition: u8) -> Self {
        Self { partition, kept: HashMap::new(), stored: Instant::now() }
    }

    pub(crate) fn has(&self, source: &Source) -> bool {
        self.kept.contains_key(source)
    }

    /// Puts a source's miner in place, as it was stored if it was.
    pub(crate) fn open(&mut self, source: &Source, stored: Option<&ObserverCheckpoint>) {
        let read = |stored: &ObserverCheckpoint| {
            serde_json::from_str(stored.state.get())
                .inspect_err(|error| tracing::warn!(%error, "what was learned can't be read, it is learned anew"))
                .ok()
        };
        let miner = stored.and_then(read).unwrap_or_default();
        self.make_room();
        self.kept.insert(source.clone(), Kept { miner, used: Instant::now() });
    }

    /// A source's miner.
    pub(crate) fn of(&mut self, source: &Source) -> &mut Miner {
        if !self.has(source) {
            self.make_room();
        }
        let fresh = || Kept { miner: Miner::default(), used: Instant::now() };
        let kept = self.kept.entry(source.clone()).or_insert_with(fresh);
        kept.used = Instant::now();
        &mut kept.miner
    }

    /// The one that was used least recently goes.
    fn make_room(&mut self) {
        if self.kept.len() >= KEPT {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(source, _)| source.clone());
            oldest.map(|source| self.kept.remove(&source));
        }
    }

    /// What has been learned and not stored, if it is time.
    pub(crate) fn take_unstored(&mut self) -> Vec<ObserverCheckpoint> {
        if self.stored.elapsed() < STORE_EVERY {
            return Vec::new();
        }
        self.stored = Instant::now();
        let mut checkpoints = Vec::new();
        for (source, kept) in &mut self.kept {
            if !kept.miner.take_changed() {
                continue;
            }
            match serde_json::value::to_raw_value(&kept.miner) {
                Ok(state) => checkpoints.push(ObserverCheckpoint {
                    call_id: source.id(self.partition),
                    run_id: RunId(Uuid::nil()),
                    stream_seq: 0,
                    state,
                }),
                Err(error) => tracing::error!(%error, "what was learned can't be written"),
            }
        }
        checkpoints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_bounded_and_come_back_as_they_were() {
        let source = |number: usize| Source(format!("t/a/{number}"));
        let mut miners = Miners::new(3);
        for number in 0..100 {
            miners.of(&source(number)).line(b"hello world");
            miners.open(&source(number + 1000), None);
        }
        assert!(miners.kept.len() <= KEPT + 1);
        let state = serde_json::value::to_raw_value(miners.of(&source(99))).unwrap();
        let id = source(99).id(3);
        assert_ne!(id, source(99).id(4));
        let stored = ObserverCheckpoint { call_id: id, run_id: RunId(Uuid::nil()), stream_seq: 0, state };
        let mut next = Miners::new(3);
        next.open(&source(99), Some(&stored));
        assert_eq!(next.of(&source(99)).len(), 1);
    }
}
