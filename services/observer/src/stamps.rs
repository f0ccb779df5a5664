//! The clock of a log that is there already: the stamps in front of its lines.

use std::sync::LazyLock;

use jiff::civil::{Date, Time};
use regex::bytes::{Captures, Regex};

/// A stamp that is so much later than the one before it, in milliseconds, is quoted from elsewhere; one that is earlier is
/// late, or quoted too.
const STRAY_MS: i64 = 24 * 3_600_000;
const DAY_MS: i64 = 24 * 3_600_000;

static STAMP: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pattern = concat!(
        r"^\s{0,8}\[?(?:task )?(?:(?P<date>\d{4}-\d\d-\d\d)[T ])?",
        r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?(?:[\]\s:,-]|$)"
    );
    Regex::new(pattern).ok()
});

/// Time as a log tells it: from 0 at its first stamp on, never back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    first: Option<i64>,
    last: i64,
    /// Its stamps have dates, so a time without one is something else.
    is_dated: bool,
}

impl Clock {
    /// Milliseconds since the first stamp, when this line was written; as before, if it does not say.
    pub(crate) fn at(&mut self, line: &[u8]) -> i64 {
        if let Some(at) = self.read(line) {
            let first = *self.first.get_or_insert(at - self.last);
            let since = at.saturating_sub(first);
            if (self.last..self.last + STRAY_MS).contains(&since) {
                self.last = since;
            }
        }
        self.last
    }

    fn read(&mut self, line: &[u8]) -> Option<i64> {
        // Nearly all lines without a stamp have no digit there.
        if !line.iter().take(16).any(u8::is_ascii_digit) {
            return None;
        }
        let found = STAMP.as_ref()?.captures(line)?;
        let time: Time = text(&found, "time")?.parse().ok()?;
        let of_day = time.duration_since(Time::midnight()).as_millis();
        let of_day = i64::try_from(of_day).ok()? + part_ms(&found);
        let Some(date) = text(&found, "date") else {
            return (!self.is_dated).then(|| self.of_some_day(of_day));
        };
        if !std::mem::replace(&mut self.is_dated, true) {
            // What came before was no clock that goes on here.
            self.first = None;
        }
        let date: Date = date.parse().ok()?;
        let days = i64::try_from(date.duration_since(Date::constant(1970, 1, 1)).as_millis()).ok()?;
        let zone = text(&found, "zone").and_then(zone_ms).unwrap_or(0);
        Some(days + of_day - zone)
    }

    /// A time of day, on the day that makes it the next one after the last.
    fn of_some_day(&self, of_day: i64) -> i64 {
        let Some(first) = self.first else { return of_day };
        let last = first + self.last;
        let day = last.div_euclid(DAY_MS);
        // After midnight it begins anew; a little earlier is only late.
        let is_next_day = last.rem_euclid(DAY_MS) - of_day > DAY_MS / 2;
        (day + i64::from(is_next_day)) * DAY_MS + of_day
    }
}

fn text<'l>(found: &Captures<'l>, name: &str) -> Option<&'l str> {
    std::str::from_utf8(found.name(name)?.as_bytes()).ok()
}

/// The fraction of a second, in milliseconds.
fn part_ms(found: &Captures<'_>) -> i64 {
    let digits = text(found, "part").unwrap_or_default().bytes().chain(*b"000").take(3);
    digits.fold(0, |part, digit| part * 10 + i64::from(digit - b'0'))
}

/// How far a zone is before UTC: `+02:00`.
fn zone_ms(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return Some(0),
    };
    let digits: String = zone.chars().filter(char::is_ascii_digit).collect();
    let number: i64 = digits.parse().ok()?;
    Some(sign * (number / 100 * 60 + number % 100) * 60_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In seconds.
    fn times(lines: &[&str]) -> Vec<i64> {
        let mut clock = Clock::default();
        lines.iter().map(|line| clock.at(line.as_bytes()) / 1000).collect()
    }

    #[test]
    fn a_log_tells_its_time_by_the_stamps_that_systems_use() {
        for lines in [
            ["2026-07-30T10:39:20.7140484Z a", "2026-07-30T10:39:21.9Z b", "no stamp", "2026-07-30T12:39:25.8+02:00 c"],
            [
                "[task 2025-02-13T23:59:58.000Z] a",
                "[task 2025-02-13T23:59:59.186Z] b",
                "",
                "[task 2025-02-14T00:00:03.000Z] c",
            ],
            [
                "2026-07-30 10:39:20,000 - a",
                "2026-07-30 10:39:21,186 - b",
                "12:00:00 other",
                "2026-07-30 10:39:25,000 - c",
            ],
            ["23:59:57.000 a", "23:59:58.186 b", "17 tests", "00:00:02 c"],
            ["[2026-07-30 10:39:20.000] a", "[2026-07-30 10:39:21.186] b", "x", "[2026-07-30 10:39:25.000] c"],
        ] {
            assert_eq!(times(&lines), [0, 1, 1, 5], "{lines:?}");
        }
    }

    #[test]
    fn it_never_goes_back_and_follows_no_stray() {
        let lines = [
            "2026-07-30T10:00:00Z a",
            "2026-07-30T10:00:09Z b",
            "2019-01-01T00:00:00Z built",
            "2031-01-01T00:00:00Z expires",
            "2026-07-30T10:00:05Z late",
            "2026-07-30T10:00:10Z c",
            "99:99:99 no time",
        ];
        assert_eq!(times(&lines), [0, 9, 9, 9, 9, 10, 10]);
    }
}
