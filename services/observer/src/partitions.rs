//! Who reads which partition: leases, taken one after the other so that observers that start together share.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bus::PARTITIONS;
use engine::Lease;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    meter,
    partition::{Means, Partition, PartitionError},
};

/// The wait before another partition, for each that is held already: who has fewer is faster.
const SPREAD: Duration = Duration::from_millis(50);
/// The wait when none is free, or the leases can't be reached.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The wait before a partition that could not be read is tried again.
const FAILED: Duration = Duration::from_secs(1);

/// The partitions that an observer reads at the moment. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<BTreeSet<u8>>>);

impl Held {
    /// Their numbers.
    pub(crate) fn numbers(&self) -> BTreeSet<u8> {
        self.set().clone()
    }

    /// Adds one, and says how many there are now.
    fn add(&self, number: u8) -> usize {
        let mut held = self.set();
        held.insert(number);
        meter::partitions(held.len());
        held.len()
    }

    fn remove(&self, number: u8) {
        let mut held = self.set();
        held.remove(&number);
        meter::partitions(held.len());
    }

    fn clear(&self) {
        self.set().clear();
        meter::partitions(0);
    }

    fn set(&self) -> std::sync::MutexGuard<'_, BTreeSet<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes partitions and reads them.
pub(crate) struct Partitions {
    means: Means,
    holder: String,
    lease: Duration,
    /// Where this instance begins to look: each somewhere else.
    first: u8,
    held: Held,
    reading: JoinSet<u8>,
}

impl Partitions {
    pub(crate) fn new(means: Means, lease: Duration, held: Held) -> Self {
        let holder = means.engine.options().instance.clone();
        let first = Uuid::now_v7().as_bytes()[15] % PARTITIONS;
        Self { means, holder, lease, first, held, reading: JoinSet::new() }
    }

    /// Takes free partitions and reads them until told to stop; then waits until each is left in order.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(done) = self.reading.join_next() => {
                    match done {
                        Ok(number) => self.held.remove(number),
                        // A panic took its number along: all are looked at again.
                        Err(error) => {
                            tracing::error!(%error, "the reader of a partition ended badly");
                            self.reading.shutdown().await;
                            self.held.clear();
                        }
                    }
                }
                () = tokio::time::sleep(pause) => pause = self.take_one(&stop).await,
            }
        }
        while self.reading.join_next().await.is_some() {}
        self.held.clear();
    }

    /// Takes a free partition, if there is one, and says when to look again.
    async fn take_one(&mut self, stop: &CancellationToken) -> Duration {
        let held = self.held.numbers();
        let wanted: Vec<u8> = (0..PARTITIONS)
            .map(|number| (number + self.first) % PARTITIONS)
            .filter(|number| !held.contains(number))
            .collect();
        let names: Vec<String> = wanted.iter().map(|number| lease_name(*number)).collect();
        let leases = self.means.engine.leases();
        let held = match leases.held_many(&names).await {
            Ok(held) => held,
            Err(error) => {
                tracing::warn!(%error, "can't see which partitions are free");
                return LOOK_AGAIN;
            }
        };
        let Some(free) = wanted.into_iter().zip(held).find_map(|(number, held)| (!held).then_some(number)) else {
            return LOOK_AGAIN;
        };
        match leases.acquire(&lease_name(free), &self.holder, self.lease).await {
            Ok(Some(lease)) => {
                let held = self.held.add(free);
                self.reading.spawn(read(free, self.means.clone(), lease, stop.clone()));
                SPREAD * u32::try_from(held).unwrap_or(u32::MAX)
            }
            // Somebody was faster.
            Ok(None) => SPREAD,
            Err(error) => {
                tracing::warn!(%error, partition = free, "can't take a partition");
                LOOK_AGAIN
            }
        }
    }
}

fn lease_name(number: u8) -> String {
    format!("observer/{number}")
}

/// Reads a partition for as long as its lease holds. What can't be read is tried again, the lease is kept.
async fn read(number: u8, means: Means, lease: Lease, stop: CancellationToken) -> u8 {
    let reading = async {
        loop {
            let outcome = match Partition::open(number, means.clone()).await {
                Ok(partition) => {
                    tracing::debug!(partition = number, "reading a partition");
                    partition.run(stop.clone()).await
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => break,
                Err(error) => {
                    report(number, &error);
                    let again = tokio::time::sleep(FAILED);
                    if stop.run_until_cancelled(again).await.is_none() {
                        break;
                    }
                }
            }
        }
    };
    tokio::select! {
        biased;
        // From now on somebody else may read it: not one step further.
        () = lease.lost() => tracing::warn!(partition = number, "lost a partition"),
        () = reading => {}
    }
    lease.release().await;
    number
}

fn report(number: u8, error: &PartitionError) {
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    tracing::warn!(partition = number, "a partition can't be read, trying again: {error}{source}");
}
