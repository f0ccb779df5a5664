//! Amounts as people write them in agent files: `60s`, `3d`, `200k`, `2.00` dollars.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A span of time in whole milliseconds, written `250ms`, `60s`, `15m`, `2h`, `3d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Duration {
    /// From whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1000)
    }

    /// In whole milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// As the standard library's type.
    #[must_use]
    pub const fn std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

/// `at` plus `span`, or the end of time.
#[must_use]
pub fn later(at: jiff::Timestamp, span: Duration) -> jiff::Timestamp {
    at.checked_add(jiff::SignedDuration::from_millis(i64::try_from(span.0).unwrap_or(i64::MAX)))
        .unwrap_or(jiff::Timestamp::MAX)
}

/// A text that is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct UnitError {
    text: String,
    wanted: &'static str,
}

impl FromStr for Duration {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError { text: text.to_owned(), wanted: "a duration such as 250ms, 60s, 15m, 2h or 3d" };
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text[..digits].parse().map_err(|_| error())?;
        let scale = match &text[digits..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(error()),
        };
        number.checked_mul(scale).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scale, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")] {
            if self.0 > 0 && self.0.is_multiple_of(scale) {
                return write!(f, "{}{unit}", self.0 / scale);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$" })
    }
}

/// How a count is written, for schemas: a number, or a text such as `200k` or `2M`.
pub struct Count;

impl JsonSchema for Count {
    fn schema_name() -> Cow<'static, str> {
        "Count".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^[0-9]+[kM]?$" }] })
    }
}

/// Reads a count written as a number or as `200k` / `2M`.
///
/// # Errors
/// When it is neither.
pub fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Count {
        Number(u64),
        Text(String),
    }
    match Option::<Count>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Count::Number(number)) => Ok(Some(number)),
        Some(Count::Text(text)) => parse_count(&text).map(Some).map_err(de::Error::custom),
    }
}

fn parse_count(text: &str) -> Result<u64, UnitError> {
    let error = || UnitError { text: text.to_owned(), wanted: "a count such as 500, 200k or 2M" };
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        for (text, millis) in [("250ms", 250), ("60s", 60_000), ("3d", 259_200_000), ("0s", 0)] {
            assert_eq!(text.parse::<Duration>().unwrap().as_millis(), millis);
        }
        for text in ["", "60", "s", "-1s", "1w", "99999999999999999999s", "18446744073709551615d", "1 s", "é"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
        assert_eq!(Duration::from_secs(90).to_string(), "90s");
        assert_eq!(Duration::from_secs(120).to_string(), "2m");
    }

    #[test]
    fn counts_read_as_written() {
        assert_eq!(parse_count("200k"), Ok(200_000));
        assert_eq!(parse_count("2M"), Ok(2_000_000));
        assert!(parse_count("k").is_err());
    }
}
