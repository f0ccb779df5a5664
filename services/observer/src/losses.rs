//! Signals that the stream dropped before they were read: it keeps the newest ones when it is full.
//!
//! They are found by their numbers: what stands between the last message that was read and the first one that is still there
//! is gone. Other partitions' messages are among them, so the count is the most that it may be; and only a stream that is full
//! drops what nobody has read.

use bus::{Bus, BusError};
use engine::SignalGap;
use jiff::{SignedDuration, Timestamp};

const STREAM: &str = "SIGNALS";
/// As long as the stream keeps anything.
const LONGEST: SignedDuration = SignedDuration::from_hours(24);

/// How far one partition was read, as far as losses go.
#[derive(Debug)]
pub(crate) struct Losses {
    /// All up to this message were read, or are known to be gone.
    through: u64,
    at: Timestamp,
}

impl Losses {
    /// From where the last reader stopped.
    pub(crate) async fn since_last(bus: &Bus, consumer: &str) -> Result<Self, BusError> {
        let through = bus.consumer_status(consumer).await?.acknowledged;
        let at = Timestamp::now().checked_sub(LONGEST).unwrap_or(Timestamp::MIN);
        Ok(Self { through, at })
    }

    /// All up to this message were read just now.
    pub(crate) fn read(&mut self, seq: u64) {
        if seq > self.through {
            (self.through, self.at) = (seq, Timestamp::now());
        }
    }

    /// What has been dropped since, if anything. `is_caught_up`: all that is there was read.
    pub(crate) async fn look(&mut self, bus: &Bus, is_caught_up: bool) -> Result<Option<SignalGap>, BusError> {
        let status = bus.stream_status(STREAM).await?;
        if is_caught_up {
            self.read(status.last_seq);
        }
        let most = bus.topology().stream(STREAM).map_or(u64::MAX, |stream| stream.limits.max_bytes);
        let gap = self.gap(status.first_seq, Timestamp::now());
        Ok(gap.filter(|_| status.bytes >= most / 10 * 9))
    }

    fn gap(&mut self, first: u64, now: Timestamp) -> Option<SignalGap> {
        let dropped = first.saturating_sub(1).saturating_sub(self.through);
        // Before anything was ever read nothing can be missing from it.
        let is_gap = dropped > 0 && self.through > 0;
        let from = self.at;
        if dropped > 0 {
            (self.through, self.at) = (first - 1, now);
        }
        is_gap.then(|| SignalGap {
            tenant: None,
            service: None,
            from,
            to: now,
            messages: dropped,
            why: "dropped".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_the_last_read_and_the_first_that_is_there_is_gone() {
        let now = Timestamp::now();
        let mut losses = Losses { through: 10, at: now };
        assert_eq!(losses.gap(11, now), None);
        assert_eq!(losses.gap(21, now).unwrap().messages, 10);
        assert_eq!(losses.gap(21, now), None, "it is noted once");
        losses.read(40);
        assert_eq!(losses.gap(30, now), None);
        assert_eq!(Losses { through: 0, at: now }.gap(500, now), None);
    }
}
