//! Stack traces that say at their end what went wrong, as Python writes them.

use crate::prefix;

/// What a line is within a stack trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Nothing.
    Blank,
    /// A frame, or the code that stands there.
    Frame,
    /// What the trace ends in.
    End,
}

/// Whether a stack trace begins after this line.
pub(super) fn opens(line: &[u8]) -> bool {
    line.trim_ascii_end().ends_with(b"(most recent call last):")
}

/// What a line is within a stack trace: all but its end is indented, behind what systems put in front of every line.
pub(super) fn part(line: &[u8]) -> Part {
    let begin = prefix::len(line);
    let (before, body) = line.split_at(begin);
    if body.trim_ascii().is_empty() {
        return Part::Blank;
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    // One blank parts the prefix from the line itself; the others are the line's own.
    let is_indented =
        body.first().is_some_and(is_blank) || before.iter().rev().take_while(|byte| is_blank(byte)).count() > 1;
    // What pytest puts in front of an error that it shows.
    let is_quoted = body.starts_with(b"E   ");
    if is_indented || (is_quoted && body.get(4).is_some_and(is_blank)) { Part::Frame } else { Part::End }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_from_the_end() {
        assert!(opens(b"2026-07-30T09:15:16.1385005Z Traceback (most recent call last):  "));
        for (line, wanted) in [
            ("  File \"a.py\", line 3, in main", Part::Frame),
            ("2026-07-30T09:15:16.1385005Z   File \"a.py\", line 3, in main", Part::Frame),
            ("2026-07-30T09:15:16.1385005Z ValueError: bad", Part::End),
            ("ValueError: bad", Part::End),
            ("2026-07-30T09:15:16.1385005Z ", Part::Blank),
            ("", Part::Blank),
            ("\t at x", Part::Frame),
        ] {
            assert_eq!(part(line.as_bytes()), wanted, "{line}");
        }
    }
}
