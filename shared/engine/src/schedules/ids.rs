//! What follows from a schedule and one of its times, the same for whoever asks: so that a firing is one, whoever fires it.

use std::time::Duration;

use jiff::Timestamp;
use kernel::RunId;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The id of a run that begins at `at` because of `name`: the same whenever and wherever that is handled again.
///
/// Shaped as a UUIDv7, so that it sorts among the others: in the place of the random bits stand those of a hash.
#[must_use]
pub fn run_id_at(at: Timestamp, name: &str) -> RunId {
    let hash = Sha256::digest(name);
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    let millis = u64::try_from(at.as_millisecond()).unwrap_or_default();
    RunId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// The run of a firing.
pub(super) fn run_id(schedule_id: Uuid, fire_at: Timestamp) -> RunId {
    run_id_at(fire_at, &name(schedule_id, fire_at))
}

/// The id of the event of a firing.
pub(super) fn event_id(schedule_id: Uuid, fire_at: Timestamp) -> String {
    format!("{schedule_id}/{fire_at}")
}

/// By how much a firing is put off: less than `most`.
pub(super) fn jitter(schedule_id: Uuid, fire_at: Timestamp, most: Duration) -> Duration {
    let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return Duration::ZERO;
    }
    let hash = Sha256::digest(format!("jitter/{}", name(schedule_id, fire_at)));
    let mut number = [0; 8];
    number.copy_from_slice(&hash[..8]);
    Duration::from_millis(u64::from_be_bytes(number) % millis)
}

fn name(schedule_id: Uuid, fire_at: Timestamp) -> String {
    format!("schedule/{schedule_id}/{}", fire_at.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firing_has_one_run_that_sorts_by_time() {
        let schedule = Uuid::nil();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(run_id(schedule, at(7)), run_id(schedule, at(7)));
        assert_ne!(run_id(schedule, at(7)), run_id(Uuid::max(), at(7)));
        assert!(run_id(schedule, at(7)) < run_id(schedule, at(8)));
        assert_eq!(run_id(schedule, at(7)).0.get_version_num(), 7);
    }

    #[test]
    fn jitter_is_spread_and_always_the_same() {
        let most = Duration::from_secs(60);
        let of = |second| jitter(Uuid::nil(), Timestamp::from_second(second).unwrap(), most);
        let all: Vec<_> = (0..200).map(of).collect();
        assert!(all.iter().all(|jitter| *jitter < most));
        assert_eq!(all, (0..200).map(of).collect::<Vec<_>>());
        let early = all.iter().filter(|jitter| **jitter < most / 2).count();
        assert!((60..140).contains(&early), "{early}");
        assert_eq!(jitter(Uuid::nil(), Timestamp::UNIX_EPOCH, Duration::ZERO), Duration::ZERO);
    }
}
