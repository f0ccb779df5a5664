//! Cron patterns as the Open Cron Pattern Specification (1.0 to 1.4) has them, over wall clock times: what becomes of those
//! in a time zone is told in `cadence.rs`.

use std::cmp::Ordering;

use croner::{
    Cron,
    errors::CronError as Croner,
    parser::CronParser,
    time::{CivilDateTime, CronDateTime, Resolution, Weekday},
};
use jiff::{SignedDuration, civil::DateTime};

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 256;
/// A pattern that fits no time within so many years never fires.
const YEARS: i16 = 100;

/// A cron pattern.
#[derive(Clone, Debug)]
pub struct CronPattern {
    cron: Cron,
    every_hour: bool,
}

/// What is wrong with a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {remedy}")]
pub struct CronError {
    /// Which field of the pattern; none when it is about the pattern as a whole.
    pub field: Option<&'static str>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub remedy: String,
}

/// A field of a pattern.
struct Field {
    name: &'static str,
    /// What may stand in it.
    takes: &'static str,
    /// Names that may stand for numbers.
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// All fields in order. The first and the last may be left out.
const FIELDS: [Field; 7] = [
    Field { name: "second", takes: "0 to 59", names: &[] },
    Field { name: "minute", takes: "0 to 59", names: &[] },
    Field { name: "hour", takes: "0 to 23", names: &[] },
    Field {
        name: "day of month",
        takes: "1 to 31, `L` for the last day, `15W` for the weekday next to the 15th",
        names: &[],
    },
    Field { name: "month", takes: "1 to 12, or JAN to DEC", names: MONTHS },
    Field {
        name: "day of week",
        takes: "0 to 7 or SUN to SAT, `FRI#2` for the second Friday, `FRI#L` for the last, `+` in front if the day of month \
                must fit too",
        names: DAYS,
    },
    Field { name: "year", takes: "1 to 4999", names: &[] },
];

/// What a nickname stands for. They are written as here, in lower case.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl CronPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// With the field that is wrong, and what it takes.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        if text.len() > MAX_BYTES {
            return Err(whole(
                format!("the pattern is {} bytes long", text.len()),
                format!("give one of {MAX_BYTES} bytes at most"),
            ));
        }
        let text = text.trim();
        let text = if text.starts_with('@') { nickname(text)? } else { text };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let first = match fields.len() {
            5 => 1,
            6 | 7 => 0,
            count => {
                return Err(whole(
                    format!("the pattern has {count} fields"),
                    "give 5 (minute, hour, day of month, month, day of week), 6 with the second first, or 7 with the year \
                     last"
                        .to_owned(),
                ));
            }
        };
        for (text, field) in fields.iter().zip(&FIELDS[first..]) {
            field.check(text)?;
        }
        let cron = CronParser::new().parse(text).map_err(|error| whole(words(&error), "see the fields".to_owned()))?;
        let every_hour = cron.pattern.hours.values().len() == 24;
        Ok(Self { cron, every_hour })
    }

    /// Whether it fires in every hour of a day that it fires on: then it counts hours as they pass, whatever the clock does.
    #[must_use]
    pub const fn is_every_hour(&self) -> bool {
        self.every_hour
    }

    /// Whether it fits this time of the wall clock.
    #[must_use]
    pub fn matches(&self, wall: DateTime) -> bool {
        self.cron.is_time_matching(&Wall(wall)).unwrap_or(false)
    }

    /// The next time of the wall clock that it fits: this very second at the earliest.
    #[must_use]
    pub(crate) fn at_or_after(&self, wall: DateTime) -> Option<DateTime> {
        self.find(wall, true)
    }

    /// The next time of the wall clock that it fits: in the next second at the earliest.
    #[must_use]
    pub(crate) fn after(&self, wall: DateTime) -> Option<DateTime> {
        self.find(wall, false)
    }

    fn find(&self, wall: DateTime, inclusive: bool) -> Option<DateTime> {
        let found = self.cron.find_next_occurrence(&Wall(wall), inclusive).ok()?.0;
        (found.year() - wall.year() <= YEARS).then_some(found)
    }
}

fn nickname(text: &str) -> Result<&'static str, CronError> {
    if let Some((_, pattern)) = NICKNAMES.iter().find(|(name, _)| *name == text) {
        return Ok(pattern);
    }
    let known: Vec<_> = NICKNAMES.iter().map(|(name, _)| *name).collect();
    let message = if text == "@reboot" {
        "`@reboot` never comes: a schedule has no start-up to wait for".to_owned()
    } else {
        format!("`{}` is no nickname", text.chars().take(40).collect::<String>())
    };
    Err(whole(message, format!("use one of {}, alone and in lower case", known.join(", "))))
}

fn whole(message: String, remedy: String) -> CronError {
    CronError { field: None, message, remedy }
}

impl Field {
    /// Whether the text can stand in this field of any pattern.
    fn check(&self, text: &str) -> Result<(), CronError> {
        let error = |message: String| CronError {
            field: Some(self.name),
            message: format!("the {} `{text}` {message}", self.name),
            remedy: format!("it takes `*`, values, lists `1,2`, ranges `1-5` and steps `*/2` of {}", self.takes),
        };
        if let Some(name) = self.foreign(text) {
            return Err(error(format!("holds `{name}`, which is none of its values")));
        }
        let position = FIELDS.iter().position(|field| field.name == self.name).unwrap_or_default();
        let alone: Vec<&str> = (0..FIELDS.len()).map(|field| if field == position { text } else { "*" }).collect();
        CronParser::new()
            .parse(&alone.join(" "))
            .map(drop)
            .map_err(|problem| error(format!("can't be used ({})", words(&problem))))
    }

    /// A piece that is neither a number nor a name of this field. Names stand alone: in `JAN1` there is none.
    fn foreign<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.split([',', '-', '/', '#', '+']).find(|piece| {
            let letters = piece.bytes().any(|byte| byte.is_ascii_alphabetic());
            letters && !self.takes_name(&piece.to_ascii_uppercase())
        })
    }

    fn takes_name(&self, piece: &str) -> bool {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match self.name {
            "day of month" => piece == "L" || piece == "LW" || piece.strip_suffix('W').is_some_and(is_number),
            "day of week" => {
                let day = piece.strip_suffix('L').filter(|day| !day.is_empty()).unwrap_or(piece);
                piece == "L" || is_number(day) || self.names.contains(&day)
            }
            _ => self.names.contains(&piece),
        }
    }
}

fn words(error: &Croner) -> String {
    let words = error.to_string();
    let words = words.rsplit_once(": ").map_or(words.as_str(), |(_, words)| words);
    words.trim_end_matches('.').to_owned()
}

/// A time of the wall clock, as croner sees it: without a zone, so that every one of them comes once.
#[derive(Clone)]
struct Wall(DateTime);

impl CronDateTime for Wall {
    fn to_civil(&self) -> CivilDateTime {
        let part = |value: i8| u32::try_from(value).unwrap_or_default();
        let at = self.0;
        CivilDateTime::from_ymd_hms_opt(
            at.year().into(),
            part(at.month()),
            part(at.day()),
            part(at.hour()),
            part(at.minute()),
            part(at.second()),
        )
        .expect("jiff's civil times exist")
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.0.weekday().to_sunday_zero_offset().unsigned_abs().into())
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, Croner> {
        let small = |value: u32| i8::try_from(value).map_err(|_| Croner::InvalidTime);
        let year = i16::try_from(civil.year()).map_err(|_| Croner::InvalidDate)?;
        let at = DateTime::new(
            year,
            small(civil.month())?,
            small(civil.day())?,
            small(civil.hour())?,
            small(civil.minute())?,
            small(civil.second())?,
            0,
        );
        at.map(|at| Resolution::Single(Self(at))).map_err(|_| Croner::InvalidDate)
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
