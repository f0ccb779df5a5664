//! How often what goes on outside is looked at: densely after its start, near its deadline and after an anomaly, sparsely in
//! between. A push that comes makes no look superfluous: it may have been the last one before a connection broke.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

/// The curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The shortest pause, from the start on.
    pub shortest: Duration,
    /// The longest pause, in steady state.
    pub longest: Duration,
    /// The pause as a share of the time since the start or the last anomaly: at 0.2, something that began ten minutes ago is
    /// looked at every two minutes.
    pub share: f64,
}

/// How something stands, as far as its pace goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Since its start, or since the last anomaly if that is later.
    pub age: Duration,
    /// Until its deadline, if it has one that is still to come.
    pub left: Option<Duration>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { shortest: Duration::from_secs(5), longest: Duration::from_secs(15 * 60), share: 0.2 }
    }
}

impl Pace {
    /// The pause before the next look at something.
    #[must_use]
    pub fn pause(&self, standing: Standing) -> Duration {
        let share = if self.share.is_finite() { self.share.clamp(0.01, 1.0) } else { 0.2 };
        let shortest = self.shortest.max(Duration::from_millis(10));
        let steady = standing.age.mul_f64(share).clamp(shortest, self.longest.max(shortest));
        match standing.left {
            // Half of what is left each time, so that the last look is shortly before.
            Some(left) => steady.min((left / 2).max(shortest)),
            None => steady,
        }
    }

    /// The pause of the `number`th look, drawn from three quarters to five quarters of it by `seed`: things that began together
    /// are not looked at together, and every instance that asks draws the same.
    #[must_use]
    pub fn jittered(&self, standing: Standing, seed: impl std::hash::Hash, number: u64) -> Duration {
        let mut hasher = DefaultHasher::new();
        (seed, number).hash(&mut hasher);
        let drawn = (hasher.finish() >> 40) as f64 / (1u64 << 24) as f64;
        self.pause(standing).mul_f64(0.75 + drawn / 2.0)
    }

    /// Whether a look at something that began `age` ago falls into the last `window`. Nobody remembers when it was looked at
    /// last: its looks follow from when it began, so that any instance can take over.
    #[must_use]
    pub fn is_due(
        &self,
        age: Duration,
        left: Option<Duration>,
        window: Duration,
        seed: impl std::hash::Hash + Copy,
    ) -> bool {
        let begin = age.saturating_sub(window);
        // The looks before `begin` are skipped by what the curve can't be faster than.
        let (mut at, mut number) = (Duration::ZERO, 0);
        while at <= age {
            if at > begin || (number == 0 && begin.is_zero()) {
                return true;
            }
            let standing = Standing { age: at, left: left.map(|left| left + (age - at)) };
            at += self.jittered(standing, seed, number);
            number += 1;
            if number > MOST_LOOKS {
                // Of something so old the sequence is cut: from here on it is even.
                let longest = self.longest.max(self.shortest).as_millis().max(1);
                return (age.as_millis() / longest) != (begin.as_millis() / longest);
            }
        }
        false
    }
}

/// Looks that are followed one by one from the start: with the default curve about a month.
const MOST_LOOKS: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(age: u64, left: Option<u64>) -> Duration {
        Pace::default().pause(Standing { age: Duration::from_secs(age), left: left.map(Duration::from_secs) })
    }

    #[test]
    fn dense_at_first_sparse_later_dense_before_the_deadline() {
        assert_eq!(at(0, None), 5 * SECOND);
        assert_eq!(at(600, None), 120 * SECOND);
        assert_eq!(at(1_000_000, None), 900 * SECOND);
        assert_eq!(at(1_000_000, Some(600)), 300 * SECOND);
        assert_eq!(at(1_000_000, Some(3)), 5 * SECOND);
    }

    #[test]
    fn every_look_falls_into_one_window_whoever_asks() {
        let pace = Pace { shortest: SECOND, longest: 60 * SECOND, share: 0.2 };
        for seed in ["a", "b"] {
            let due: Vec<u64> =
                (0..600).filter(|age| pace.is_due(Duration::from_secs(*age), None, SECOND, seed)).collect();
            assert_eq!(due.first(), Some(&0), "at once");
            assert!((20..60).contains(&due.len()), "{due:?}");
            let dense = due.iter().filter(|age| **age < 60).count();
            let sparse = due.iter().filter(|age| **age >= 540).count();
            assert!(dense > 8 && sparse <= 3, "{due:?}");
            // A leader that was gone for a minute finds what fell into it, once.
            assert!(pace.is_due(Duration::from_secs(300), None, 120 * SECOND, seed));
        }
        let day = Duration::from_secs(24 * 3600);
        assert!(pace.is_due(400 * day, None, 61 * SECOND, "old"));
    }

    #[test]
    fn what_began_together_is_not_looked_at_together() {
        let pace = Pace::default();
        let standing = Standing { age: Duration::from_secs(600), left: None };
        let drawn: std::collections::BTreeSet<_> = (0..50).map(|seed| pace.jittered(standing, seed, 3)).collect();
        assert!(drawn.len() > 40);
        assert!(drawn.iter().all(|pause| *pause >= 90 * SECOND && *pause <= 150 * SECOND));
    }
}
