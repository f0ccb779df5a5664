//! The messages that a consumer loop has taken and not yet settled.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::message::Delivery;

/// A stored message, told from others even when the stream was lost and numbers anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    stream_seq: u64,
    published_at: Timestamp,
}

impl Key {
    pub(crate) fn of(delivery: &Delivery) -> Self {
        Self { stream_seq: delivery.stream_seq, published_at: delivery.published_at }
    }
}

struct Held {
    delivery: Delivery,
    /// When the server last heard of it.
    touched: Instant,
}

/// Messages taken and not settled: some with a handler, the rest in line.
#[derive(Default)]
pub(crate) struct InFlight {
    held: HashMap<Key, Held>,
    line: VecDeque<Key>,
}

impl InFlight {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes a message in. One that is here already came again because its time ran out at the server; it is not
    /// handled twice, only answered under its newest reply subject.
    pub(crate) fn add(&mut self, delivery: Delivery) {
        let key = Key::of(&delivery);
        let held = Held { delivery, touched: Instant::now() };
        match self.held.entry(key) {
            Entry::Occupied(mut again) => {
                again.insert(held);
            }
            Entry::Vacant(new) => {
                new.insert(held);
                self.line.push_back(key);
            }
        }
    }

    /// The next message that has no handler yet.
    pub(crate) fn next(&mut self) -> Option<(Key, Delivery)> {
        let key = self.line.pop_front()?;
        self.held.get(&key).map(|held| (key, held.delivery.clone()))
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Delivery> {
        self.held.get(&key).map(|held| &held.delivery)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Delivery> {
        self.held.remove(&key).map(|held| held.delivery)
    }

    /// The messages in line, given up.
    pub(crate) fn give_up_line(&mut self) -> Vec<Delivery> {
        let line = std::mem::take(&mut self.line);
        line.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Every message, given up.
    pub(crate) fn give_up_all(&mut self) -> Vec<Delivery> {
        self.line.clear();
        self.held.drain().map(|(_, held)| held.delivery).collect()
    }

    /// The messages that the server has not heard of for so long; they count as mentioned now.
    pub(crate) fn unmentioned_for(&mut self, age: Duration) -> Vec<async_nats::Subject> {
        let now = Instant::now();
        let stale = self.held.values_mut().filter(|held| now.duration_since(held.touched) >= age);
        stale
            .map(|held| {
                held.touched = now;
                held.delivery.reply.clone()
            })
            .collect()
    }
}
