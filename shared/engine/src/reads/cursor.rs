//! Where a page ends: opaque to whoever holds it.

use kernel::{RunId, Timestamp};
use uuid::Uuid;

/// A place in the list of runs, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) created_at: Timestamp,
    pub(crate) run_id: RunId,
}

/// A text that is not a cursor of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor: pass on `next` of the page before, or leave it out to begin anew")]
pub struct InvalidCursor;

impl Cursor {
    /// 48 hex digits: the time in microseconds, then the run.
    pub(crate) fn encode(self) -> String {
        format!("{:016x}{}", self.created_at.as_microsecond(), self.run_id.0.simple())
    }

    pub(crate) fn decode(text: &str) -> Result<Self, InvalidCursor> {
        let (time, run) = text.split_at_checked(16).ok_or(InvalidCursor)?;
        let micros = i64::from_str_radix(time, 16).map_err(|_| InvalidCursor)?;
        let created_at = Timestamp::from_microsecond(micros).map_err(|_| InvalidCursor)?;
        let run_id = Uuid::try_parse(run).map(RunId).map_err(|_| InvalidCursor)?;
        Ok(Self { created_at, run_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_trip_and_nonsense_is_refused() {
        let cursor =
            Cursor { created_at: Timestamp::from_microsecond(1_750_000_000_123_456).unwrap(), run_id: RunId::mint() };
        assert_eq!(Cursor::decode(&cursor.encode()), Ok(cursor));
        for text in ["", "0", "zz", "00000000000000é", &"f".repeat(48), &"0".repeat(47), "000000000000000000"] {
            assert_eq!(Cursor::decode(text), Err(InvalidCursor), "{text}");
        }
    }
}
