//! When a schedule fires: its pattern on the wall clock of its zone, as points in time.
//!
//! Between two changes of the clock the wall clock is the time line moved by an offset, so each such stretch is searched as
//! one; what a change leaves out or repeats is dealt with where two stretches meet.

use std::time::Duration;

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};
use kernel::schedule::DstPolicy;

use super::cron::CronPattern;

/// The times at which a schedule fires.
#[derive(Clone, Debug)]
pub struct Cadence {
    pattern: CronPattern,
    zone: TimeZone,
    dst: DstPolicy,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// The times of a schedule, one after the other.
#[derive(Clone, Debug)]
pub struct Times<'a> {
    cadence: &'a Cadence,
    stretch: Stretch,
    /// The next wall clock time that the pattern fits; none if there is none.
    wall: Option<DateTime>,
    last: Timestamp,
}

/// A time between two changes of the clock.
#[derive(Clone, Debug)]
struct Stretch {
    /// The change that it begins with; none if there was none.
    start: Option<Timestamp>,
    /// The offset before that.
    before: Offset,
    offset: Offset,
    /// The change that it ends with.
    end: Option<Timestamp>,
}

impl Cadence {
    /// The times of a pattern on the wall clock of a zone.
    #[must_use]
    pub const fn new(pattern: CronPattern, zone: TimeZone, dst: DstPolicy) -> Self {
        Self { pattern, zone, dst, from: None, until: None }
    }

    /// Only those between two times, both included.
    #[must_use]
    pub const fn between(mut self, from: Option<Timestamp>, until: Option<Timestamp>) -> Self {
        self.from = from;
        self.until = until;
        self
    }

    /// The first time after `after`; none if it never comes.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.after(after).next()
    }

    /// The times after `after`, in order.
    #[must_use]
    pub fn after(&self, after: Timestamp) -> Times<'_> {
        let just_before = |from: Timestamp| from.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(from);
        let last = self.from.map_or(after, |from| after.max(just_before(from)));
        let stretch = Stretch::around(&self.zone, last);
        let wall = self.pattern.after(whole_second(stretch.offset.to_datetime(last)));
        Times { cadence: self, stretch, wall, last }
    }

    /// The last time in (`after`, `until`]. Looks back further and further, so that it costs little however many there are.
    #[must_use]
    pub fn last_between(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        const DAY: u64 = 24 * 3600;
        for back in [60, 3600, DAY, 32 * DAY, 367 * DAY, 100_000 * DAY] {
            let begin = until.checked_sub(Duration::from_secs(back)).map_or(after, |begin| begin.max(after));
            let last = self.after(begin).take_while(|time| *time <= until).last();
            if last.is_some() || begin == after {
                return last;
            }
        }
        None
    }

    /// The first wall clock time of a stretch that counts in it.
    fn first_wall(&self, stretch: &Stretch) -> Option<DateTime> {
        let offset = if self.fires_when_repeated() { stretch.offset } else { stretch.offset.max(stretch.before) };
        stretch.start.map(|start| offset.to_datetime(start))
    }

    /// Hours that are counted as they pass know of no change of the clock.
    fn fires_when_left_out(&self) -> bool {
        !self.pattern.is_every_hour() && self.dst != DstPolicy::Skip
    }

    fn fires_when_repeated(&self) -> bool {
        self.pattern.is_every_hour() || self.dst == DstPolicy::Twice
    }
}

impl Times<'_> {
    /// The next time; it may be the one before, if a time that was left out and another fall together.
    fn step(&mut self) -> Option<Timestamp> {
        let cadence = self.cadence;
        let mut wall = self.wall?;
        loop {
            if let Some(first) = cadence.first_wall(&self.stretch).filter(|first| wall < *first) {
                wall = cadence.pattern.at_or_after(first)?;
            }
            let offset = self.stretch.offset;
            let Some(end) = self.stretch.end.filter(|end| offset.to_datetime(*end) <= wall) else {
                self.wall = cadence.pattern.after(wall);
                return offset.to_timestamp(wall).ok();
            };
            self.stretch = Stretch::around(&cadence.zone, end);
            let resumes = self.stretch.offset.to_datetime(end);
            if wall < resumes && cadence.fires_when_left_out() {
                self.wall = Some(wall);
                return Some(end);
            }
            if cadence.fires_when_repeated() && self.stretch.before > self.stretch.offset {
                wall = cadence.pattern.at_or_after(resumes)?;
            }
        }
    }
}

impl Iterator for Times<'_> {
    type Item = Timestamp;

    fn next(&mut self) -> Option<Timestamp> {
        let time = loop {
            let time = self.step()?;
            if time > self.last {
                break time;
            }
        };
        if self.cadence.until.is_some_and(|until| time > until) {
            return None;
        }
        self.last = time;
        Some(time)
    }
}

impl Stretch {
    /// The stretch that holds a point in time; a change belongs to what follows it.
    fn around(zone: &TimeZone, at: Timestamp) -> Self {
        let nanosecond = SignedDuration::from_nanos(1);
        let offset = zone.to_offset(at);
        let start = at.checked_add(nanosecond).ok().and_then(|behind| zone.preceding(behind).next());
        let start = start.map(|change| change.timestamp());
        let before = start.and_then(|start| start.checked_sub(nanosecond).ok()).map(|before| zone.to_offset(before));
        let end = zone.following(at).next().map(|change| change.timestamp());
        Self { start, before: before.unwrap_or(offset), offset, end }
    }
}

fn whole_second(wall: DateTime) -> DateTime {
    wall.with().subsec_nanosecond(0).build().unwrap_or(wall)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cadence(pattern: &str, zone: &str, dst: DstPolicy) -> Cadence {
        Cadence::new(CronPattern::parse(pattern).unwrap(), TimeZone::get(zone).unwrap(), dst)
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// What fires from `from` for so many hours, as it is told in the zone.
    fn told(pattern: &str, zone: &str, dst: DstPolicy, from: &str, hours: i64) -> Vec<String> {
        let from = at(from);
        let until = from.checked_add(SignedDuration::from_hours(hours)).unwrap();
        let in_zone = |time: Timestamp| jiff::ZonedDateTime::new(time, TimeZone::get(zone).unwrap());
        let told = |time| in_zone(time).strftime("%d %H:%M%:z").to_string();
        cadence(pattern, zone, dst).after(from).take_while(|time| *time < until).map(told).collect()
    }

    #[test]
    fn half_past_two_on_the_day_when_it_is_left_out() {
        // New York, 8 March 2026: 02:00 EST is 03:00 EDT.
        let told = |dst| told("30 2 * * *", "America/New_York", dst, "2026-03-07T12:00:00Z", 48);
        assert_eq!(told(DstPolicy::Once), ["08 03:00-04:00", "09 02:30-04:00"]);
        assert_eq!(told(DstPolicy::Twice), ["08 03:00-04:00", "09 02:30-04:00"]);
        assert_eq!(told(DstPolicy::Skip), ["09 02:30-04:00"]);
    }

    #[test]
    fn half_past_one_on_the_day_when_it_is_repeated() {
        // New York, 1 November 2026: 02:00 EDT is 01:00 EST.
        let told = |dst| told("30 1 * * *", "America/New_York", dst, "2026-10-31T12:00:00Z", 48);
        assert_eq!(told(DstPolicy::Once), ["01 01:30-04:00", "02 01:30-05:00"]);
        assert_eq!(told(DstPolicy::Skip), ["01 01:30-04:00", "02 01:30-05:00"]);
        assert_eq!(told(DstPolicy::Twice), ["01 01:30-04:00", "01 01:30-05:00", "02 01:30-05:00"]);
    }

    #[test]
    fn several_times_that_are_left_out_are_one_and_join_what_fires_then() {
        let told = |dst| told("0,15,30 2,3 * * *", "Europe/London", dst, "2026-03-28T12:00:00Z", 24);
        // London, 29 March 2026: 01:00 GMT is 02:00 BST, so nothing of these is left out.
        assert_eq!(told(DstPolicy::Once).len(), 6);
        let told = |dst, pattern| super::tests::told(pattern, "Europe/London", dst, "2026-03-28T12:00:00Z", 24);
        assert_eq!(told(DstPolicy::Once, "0,15,30 1 * * *"), ["29 02:00+01:00"]);
        assert_eq!(told(DstPolicy::Once, "0,15,30 1,2 * * *"), ["29 02:00+01:00", "29 02:15+01:00", "29 02:30+01:00"]);
        assert_eq!(told(DstPolicy::Skip, "0,15,30 1 * * *"), Vec::<String>::new());
    }

    #[test]
    fn every_hour_counts_hours_as_they_pass() {
        for dst in [DstPolicy::Once, DstPolicy::Skip, DstPolicy::Twice] {
            let spring = cadence("30 * * * *", "America/New_York", dst);
            let times: Vec<_> = spring.after(at("2026-03-08T00:00:00Z")).take(24).collect();
            assert!(
                times.windows(2).all(|two| two[1].duration_since(two[0]) == SignedDuration::from_hours(1)),
                "{dst:?}"
            );
            let autumn = cadence("30 * * * *", "America/New_York", dst);
            let times: Vec<_> = autumn.after(at("2026-11-01T00:00:00Z")).take(24).collect();
            assert!(
                times.windows(2).all(|two| two[1].duration_since(two[0]) == SignedDuration::from_hours(1)),
                "{dst:?}"
            );
        }
    }

    #[test]
    fn a_change_of_half_an_hour_and_one_at_midnight() {
        // Lord Howe, 5 April 2026: 02:00 +11:00 is 01:30 +10:30; 4 October: 02:00 is 02:30.
        let autumn = |dst| told("45 1 * * *", "Australia/Lord_Howe", dst, "2026-04-04T00:00:00Z", 24);
        assert_eq!(autumn(DstPolicy::Once), ["05 01:45+11:00"]);
        assert_eq!(autumn(DstPolicy::Twice), ["05 01:45+11:00", "05 01:45+10:30"]);
        let spring = |dst| told("15 2 * * *", "Australia/Lord_Howe", dst, "2026-10-03T00:00:00Z", 24);
        assert_eq!(spring(DstPolicy::Once), ["04 02:30+11:00"]);
        assert_eq!(spring(DstPolicy::Skip), Vec::<String>::new());
        // Sao Paulo, 4 November 2018: there was no midnight.
        let midnight = |dst| told("0 0 * * *", "America/Sao_Paulo", dst, "2018-11-03T12:00:00Z", 24);
        assert_eq!(midnight(DstPolicy::Once), ["04 01:00-02:00"]);
        assert_eq!(midnight(DstPolicy::Skip), Vec::<String>::new());
    }

    #[test]
    fn bounds_are_kept_and_what_never_comes_ends_the_search() {
        let daily = cadence("0 12 * * *", "UTC", DstPolicy::Once);
        let bound = daily.clone().between(Some(at("2030-01-02T12:00:00Z")), Some(at("2030-01-04T12:00:00Z")));
        let days: Vec<_> = bound.after(at("2029-01-01T00:00:00Z")).map(|time| time.to_string()).collect();
        assert_eq!(days, ["2030-01-02T12:00:00Z", "2030-01-03T12:00:00Z", "2030-01-04T12:00:00Z"]);
        for never in ["0 30 2 31 2 *", "0 0 0 1 1 * 2020", "0 0 30 2 *"] {
            assert_eq!(
                cadence(never, "Australia/Melbourne", DstPolicy::Twice).next_after(at("2026-01-01T00:00:00Z")),
                None
            );
        }
        let leap = cadence("0 0 29 2 *", "America/New_York", DstPolicy::Twice);
        assert_eq!(leap.next_after(at("2026-01-01T00:00:00Z")), Some(at("2028-02-29T05:00:00Z")));
        assert_eq!(daily.next_after(Timestamp::MAX), None);
    }

    #[test]
    fn the_last_of_many_is_found_without_looking_at_all() {
        let seconds = cadence("* * * * * *", "UTC", DstPolicy::Once);
        let (begin, end) = (at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00.5Z"));
        assert_eq!(seconds.last_between(begin, end), Some(at("2026-01-01T00:00:00Z")));
        let yearly = cadence("@yearly", "UTC", DstPolicy::Once);
        assert_eq!(yearly.last_between(begin, at("2025-12-31T00:00:00Z")), Some(at("2025-01-01T00:00:00Z")));
        assert_eq!(yearly.last_between(begin, at("2020-12-31T00:00:00Z")), None);
    }
}
