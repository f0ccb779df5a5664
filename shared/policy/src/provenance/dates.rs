//! Dates and times that people write, and what follows from them: `tomorrow`, `May 19th`, `at 10 for one hour`.

use jiff::civil::{Date, Time, Weekday};
use jiff::{Span, ToSpan as _};

/// Of each kind, that many are kept of one text.
const MAX: usize = 200;
const MINUTES_OF_A_DAY: i64 = 24 * 60;

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const NUMBERS: [&str; 13] =
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/// What a text says about time.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    /// Days, with their year if it was said.
    days: Vec<(Option<i16>, i8, i8)>,
    /// Years that stand anywhere, for days without one.
    years: Vec<i16>,
    times: Vec<Time>,
    /// In minutes.
    durations: Vec<i64>,
}

/// A value that is a date, a time, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub date: Option<Date>,
    pub time: Option<Time>,
}

impl Wanted {
    /// `None` if the value is nothing of the kind.
    pub fn read(value: &str) -> Option<Self> {
        if value.len() > 40 {
            return None;
        }
        let zoned = value.strip_suffix('Z').unwrap_or(value);
        if let Some((date, time)) = zoned.split_once(['T', ' ']) {
            return Some(Self { date: Some(iso_date(date)?), time: Some(clock(time)?) });
        }
        iso_date(value)
            .map(|date| Self { date: Some(date), time: None })
            .or_else(|| clock(value).filter(|_| value.contains(':')).map(|time| Self { date: None, time: Some(time) }))
    }
}

impl Moments {
    /// What a text in small letters says. `today` is when it was written.
    pub fn read(text: &str, today: Option<Date>) -> Self {
        let separators = |c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | '"' | '\'' | ';' | '[' | ']');
        let words: Vec<_> = text
            .split(separators)
            .map(|word| word.trim_end_matches(['.', ':', '!', '?']))
            .filter(|word| !word.is_empty())
            .collect();
        let mut moments = Self { years: today.map(Date::year).into_iter().collect(), ..Self::default() };
        for at in 0..words.len() {
            moments.word(&words[at..], today);
        }
        moments
    }

    /// Whether it says this day, and how.
    pub fn names_day(&self, day: Date) -> Option<&'static str> {
        let same = |(year, month, of): &(Option<i16>, i8, i8)| {
            (*month, *of) == (day.month(), day.day())
                && year.map_or_else(|| self.years.contains(&day.year()), |year| year == day.year())
        };
        self.days.iter().any(same).then_some("the day that is named")
    }

    /// Whether it says this time of day, and how.
    pub fn names_time(&self, time: Time) -> Option<&'static str> {
        if self.times.contains(&time) {
            return Some("the time that is named");
        }
        let minutes = |time: Time| i64::from(time.hour()) * 60 + i64::from(time.minute());
        let wanted = minutes(time);
        let sums =
            self.times.iter().flat_map(|start| self.durations.iter().map(move |length| minutes(*start) + length));
        let reached = time.second() == 0 && sums.into_iter().any(|end| end % MINUTES_OF_A_DAY == wanted);
        reached.then_some("the time and the duration that are named")
    }

    fn word(&mut self, words: &[&str], today: Option<Date>) {
        let word = words[0];
        let next = |at: usize| words.get(at).copied().unwrap_or_default();
        if let Some((date, time)) = word.split_once('t').and_then(|(date, time)| Some((iso_date(date)?, clock(time)?)))
        {
            self.day(Some(date.year()), date.month(), date.day());
            self.time(time);
        } else if let Some(date) = iso_date(word) {
            self.day(Some(date.year()), date.month(), date.day());
        } else if let Some(month) = month(word) {
            if let Some(day) = day_of_month(next(1)) {
                self.day(year(next(2)), month, day);
            }
        } else if let Some(time) = spoken_time(word, next(1)) {
            self.time(time);
        } else if let (Some(day), of) = (day_of_month(word), usize::from(next(1) == "of"))
            && let Some(month) = month(next(1 + of))
        {
            self.day(year(next(2 + of)), month, day);
        }
        if let Some(year) = year(word).filter(|year| !self.years.contains(year) && self.years.len() < MAX) {
            self.years.push(year);
        }
        if let Some(length) = duration(word, next(1)).filter(|_| self.durations.len() < MAX) {
            self.durations.push(length);
        }
        if let Some(date) = today.and_then(|today| relative(words, today)) {
            self.day(Some(date.year()), date.month(), date.day());
        }
    }

    fn day(&mut self, year: Option<i16>, month: i8, day: i8) {
        if self.days.len() < MAX {
            self.days.push((year, month, day));
        }
    }

    fn time(&mut self, time: Time) {
        if self.times.len() < MAX {
            self.times.push(time);
        }
    }
}

/// Whether this time only says "that day": its first or last minute.
pub fn is_edge_of_day(time: Time) -> bool {
    time == Time::midnight() || (time.hour(), time.minute()) == (23, 59)
}

fn iso_date(word: &str) -> Option<Date> {
    (word.len() == 10 && word.as_bytes()[4] == b'-').then(|| word.parse().ok())?
}

/// `10:30`, `10:30:00`.
fn clock(word: &str) -> Option<Time> {
    let mut parts = word.split(':');
    let mut part = || parts.next().map(|part| part.parse::<i8>().ok().filter(|_| !part.is_empty() && part.len() <= 2));
    let (hour, minute, second) = (part()??, part()??, part());
    let second = second.map_or(Some(0), |second| second)?;
    if word.contains(['+', '-']) || word.matches(':').count() > 2 {
        return None;
    }
    Time::new(hour, minute, second, 0).ok()
}

/// `10:30`, `10:30am`, `10 am`, `10am`, `noon`, `midnight`.
fn spoken_time(word: &str, next: &str) -> Option<Time> {
    match word {
        "noon" => return Time::new(12, 0, 0, 0).ok(),
        "midnight" => return Some(Time::midnight()),
        _ => {}
    }
    let half = |text: &str| match text.trim_end_matches('.') {
        "am" | "a.m" => Some(false),
        "pm" | "p.m" => Some(true),
        _ => None,
    };
    let split = word.find(|c: char| c.is_ascii_alphabetic()).map(|at| word.split_at(at));
    let (digits, afternoon) = match split {
        Some((digits, rest)) => (digits, Some(half(rest)?)),
        None => (word, half(next)),
    };
    let time = match afternoon {
        None => return clock(digits),
        Some(_) if !digits.contains(':') => Time::new(digits.parse().ok()?, 0, 0, 0).ok()?,
        Some(_) => clock(digits)?,
    };
    let hour = match (time.hour(), afternoon?) {
        (12, false) => 0,
        (hour @ 1..=11, true) => hour + 12,
        (hour @ 0..=12, _) => hour,
        _ => return None,
    };
    Time::new(hour, time.minute(), time.second(), 0).ok()
}

fn month(word: &str) -> Option<i8> {
    let short = |name: &&str| word.len() >= 3 && (**name == *word || (word.len() <= 4 && name.starts_with(word)));
    MONTHS.iter().zip(1..).find(|(name, _)| short(name)).map(|(_, number)| number)
}

fn day_of_month(word: &str) -> Option<i8> {
    let word = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
    word.parse().ok().filter(|day| (1..=31).contains(day) && word.len() <= 2)
}

fn year(word: &str) -> Option<i16> {
    word.get(..4)
        .filter(|_| word.len() == 4 || word.as_bytes().get(4) == Some(&b'-'))
        .and_then(|start| start.parse().ok().filter(|year| (1900..2200).contains(year)))
}

fn count(word: &str) -> Option<i64> {
    let spoken = NUMBERS.iter().zip(0..).find(|(name, _)| **name == word).map(|(_, number)| number);
    let article = matches!(word, "a" | "an").then_some(1);
    spoken.or(article).or_else(|| word.parse().ok()).filter(|number| (0..=1000).contains(number))
}

/// `one hour`, `30 minutes`, `4-hour`.
fn duration(word: &str, next: &str) -> Option<i64> {
    let (number, unit) = word.split_once('-').unwrap_or((word, next));
    let unit = match unit.trim_end_matches('s') {
        "hour" | "hr" => 60,
        "minute" | "min" => 1,
        _ => return None,
    };
    Some(count(number)? * unit)
}

/// `today`, `tomorrow`, `in three days`, `on Monday`.
fn relative(words: &[&str], today: Date) -> Option<Date> {
    let next = |at: usize| words.get(at).copied().unwrap_or_default();
    let plus = |span: Span| today.checked_add(span).ok();
    match words[0] {
        "today" | "tonight" => Some(today),
        "tomorrow" => plus(1.day()),
        "yesterday" => plus((-1).days()),
        "in" if next(2).starts_with("day") => plus(count(next(1))?.days()),
        "in" if next(2).starts_with("week") => plus(count(next(1))?.weeks()),
        word => {
            let place = WEEKDAYS.iter().position(|name| *name == word)?;
            let weekday = Weekday::from_monday_zero_offset(i8::try_from(place).ok()?).ok()?;
            today.nth_weekday(1, weekday).ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::{date, time};

    use super::*;

    fn moments(text: &str) -> Moments {
        Moments::read(&text.to_lowercase(), Some(date(2024, 5, 15)))
    }

    #[test]
    fn days_are_read_as_people_write_them() {
        for (text, day) in [
            ("on 2024-05-19, please", date(2024, 5, 19)),
            ("on May 19th", date(2024, 5, 19)),
            ("from January 11th to January 15th 2025", date(2025, 1, 11)),
            ("the 14th of November", date(2024, 11, 14)),
            ("19 Sept 2023.", date(2023, 9, 19)),
            ("tomorrow", date(2024, 5, 16)),
            ("in two weeks", date(2024, 5, 29)),
            ("on Monday", date(2024, 5, 20)),
            ("at 2024-05-19T10:00", date(2024, 5, 19)),
        ] {
            assert!(moments(text).names_day(day).is_some(), "{text}");
        }
        for (text, day) in
            [("May 19th", date(2023, 5, 19)), ("2024-05-19", date(2024, 5, 20)), ("19", date(2024, 5, 19))]
        {
            assert!(moments(text).names_day(day).is_none(), "{text}");
        }
    }

    #[test]
    fn times_and_durations_are_read() {
        for (text, at) in [
            ("at 10:00 or at 16:00", time(16, 0, 0, 0)),
            ("at 9:30 PM", time(21, 30, 0, 0)),
            ("at 10am", time(10, 0, 0, 0)),
            ("at 12 am", time(0, 0, 0, 0)),
            ("at noon", time(12, 0, 0, 0)),
            ("at 12:00 for one hour", time(13, 0, 0, 0)),
            ("a 1-hour long event at 10:00", time(11, 0, 0, 0)),
            ("at 23:30 for 90 minutes", time(1, 0, 0, 0)),
        ] {
            assert!(moments(text).names_time(at).is_some(), "{text}");
        }
        for (text, at) in [("at 10:00", time(11, 0, 0, 0)), ("10", time(10, 0, 0, 0)), ("99:99", time(0, 0, 0, 0))] {
            assert!(moments(text).names_time(at).is_none(), "{text}");
        }
    }

    #[test]
    fn what_is_a_date_is_told_from_what_is_not() {
        let wanted = Wanted { date: Some(date(2024, 5, 19)), time: Some(time(12, 0, 0, 0)) };
        assert_eq!(Wanted::read("2024-05-19 12:00"), Some(wanted));
        assert_eq!(Wanted::read("2024-05-19T12:00:00Z"), Some(wanted));
        assert_eq!(Wanted::read("2024-05-19").map(|wanted| wanted.time), Some(None));
        for value in ["2024-05-19 12:00; rm -rf", "1200", "", "2024-13-01", "10:00+02:00", "May 19th"] {
            assert_eq!(Wanted::read(value), None, "{value}");
        }
    }
}
