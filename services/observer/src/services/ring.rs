//! Messages of the last seconds, to be looked at again: an action may be heard of after its lines.
//!
//! What is in here is not acknowledged, so whoever takes over after a crash reads it again and has it too.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use kernel::TenantId;

/// How long a message is held.
const AGE: Duration = Duration::from_secs(10);
/// Messages and bytes that are held at most, by one partition.
const MESSAGES: usize = 8192;
const BYTES: usize = 16 << 20;

/// A message that is held.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) tenant: TenantId,
    pub(super) service: String,
    pub(super) seq: u64,
    pub(super) at: Timestamp,
    pub(super) payload: Bytes,
}

/// The messages, in the order of the stream.
#[derive(Debug, Default)]
pub(super) struct Ring {
    held: VecDeque<Held>,
    bytes: usize,
}

impl Ring {
    pub(super) fn push(&mut self, held: Held) {
        self.bytes += held.payload.len();
        self.held.push_back(held);
        while self.held.len() > MESSAGES || self.bytes > BYTES {
            self.pop();
        }
    }

    /// Lets go of what is old.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let age = SignedDuration::try_from(AGE).unwrap_or(SignedDuration::MAX);
        while self.held.front().is_some_and(|first| now.duration_since(first.at) > age) {
            self.pop();
        }
    }

    /// The first message that must not be acknowledged yet.
    pub(super) fn first(&self) -> Option<u64> {
        self.held.front().map(|held| held.seq)
    }

    pub(super) fn of<'a>(&'a self, tenant: &'a TenantId) -> impl Iterator<Item = &'a Held> {
        self.held.iter().filter(move |held| held.tenant == *tenant)
    }

    fn pop(&mut self) {
        if let Some(held) = self.held.pop_front() {
            self.bytes -= held.payload.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_by_age_number_and_bytes() {
        let mut ring = Ring::default();
        let held = |seq, second: i64, bytes| Held {
            tenant: TenantId::default(),
            service: "a".into(),
            seq,
            at: Timestamp::from_second(second).unwrap(),
            payload: Bytes::from(vec![0; bytes]),
        };
        for seq in 0..10_000 {
            ring.push(held(seq, 0, 10));
        }
        assert_eq!(ring.first(), Some(10_000 - MESSAGES as u64));
        ring.push(held(10_000, 5, BYTES));
        assert_eq!((ring.first(), ring.of(&TenantId::default()).count()), (Some(10_000), 1));
        ring.expire(Timestamp::from_second(15).unwrap());
        assert_eq!(ring.first(), Some(10_000));
        ring.expire(Timestamp::from_second(16).unwrap());
        assert_eq!((ring.first(), ring.bytes), (None, 0));
    }
}
