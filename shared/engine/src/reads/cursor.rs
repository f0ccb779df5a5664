//! Where a page ends: opaque to whoever holds it.

use kernel::Timestamp;
use uuid::Uuid;

/// A place in a list that has the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The time that the list is ordered by.
    pub(crate) at: Timestamp,
    /// Which of those of the same time.
    pub(crate) id: Uuid,
}

/// A text that is not a cursor of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor: pass on `next` of the page before, or leave it out to begin anew")]
pub struct InvalidCursor;

impl Cursor {
    /// 48 hex digits: the time in microseconds, then the id.
    pub(crate) fn encode(self) -> String {
        format!("{:016x}{}", self.at.as_microsecond(), self.id.simple())
    }

    pub(crate) fn decode(text: &str) -> Result<Self, InvalidCursor> {
        let (time, id) = text.split_at_checked(16).ok_or(InvalidCursor)?;
        let micros = i64::from_str_radix(time, 16).map_err(|_| InvalidCursor)?;
        let at = Timestamp::from_microsecond(micros).map_err(|_| InvalidCursor)?;
        let id = Uuid::try_parse(id).map_err(|_| InvalidCursor)?;
        Ok(Self { at, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_trip_and_nonsense_is_refused() {
        let cursor = Cursor { at: Timestamp::from_microsecond(1_750_000_000_123_456).unwrap(), id: Uuid::now_v7() };
        assert_eq!(Cursor::decode(&cursor.encode()), Ok(cursor));
        for text in ["", "0", "zz", "00000000000000é", &"f".repeat(48), &"0".repeat(47), "000000000000000000"] {
            assert_eq!(Cursor::decode(text), Err(InvalidCursor), "{text}");
        }
    }
}
