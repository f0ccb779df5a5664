//! From frames to lines: exact offsets and numbers, however the output was cut into frames.
//!
//! A line ends at LF. A CR inside of a line is what progress bars use to write over themselves: the pieces between them
//! are handed out one by one, each with its own offset, under the number of their line.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use memchr::{memchr_iter, memchr2};
use serde::{Deserialize, Serialize};

/// Most bytes of a line that are looked at. The rest of it is counted and passed over.
pub const LINE_BYTES: usize = 16 * 1024;
/// Gaps that may still be filled by output that comes late; the oldest beyond are given up.
const GAPS: usize = 32;

/// A line, or a piece of one between two CRs, without its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Byte offset of its first byte in the stream.
    pub offset: u64,
    /// Number of the line, from 0.
    pub number: u64,
    /// Its bytes, at most [`LINE_BYTES`].
    pub bytes: &'a [u8],
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// Bytes that had not been seen before.
    pub new: u64,
    /// Bytes that are missing in front of it.
    pub gap: u64,
    /// Bytes that were missing before, and came late.
    pub late: u64,
}

/// Puts frames together and takes lines out. What it holds fits into a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Splitter {
    /// Offset of the next byte.
    next: u64,
    /// Number of the line that the next byte belongs to.
    number: u64,
    /// Offset of the line, or piece, that has not ended.
    start: u64,
    /// What is there of it.
    #[serde(with = "bytes_as_base64", skip_serializing_if = "Vec::is_empty")]
    partial: Vec<u8>,
    /// The last byte was a CR, so that an LF ends no other line.
    after_cr: bool,
    /// Output that has not come, by first byte and byte after the last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<(u64, u64)>,
}

impl Splitter {
    /// Offset of the next byte that it waits for: all before it is dealt with.
    #[must_use]
    pub const fn next_offset(&self) -> u64 {
        self.next
    }

    /// Lines that have begun.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.number + (self.next > self.start) as u64
    }

    /// Takes a frame: what of it was seen before is skipped, a gap ends the line that was open, and what comes late for a
    /// gap is looked at by itself. `first_line` is the number of the line that the frame begins in, and counts only at gaps.
    pub fn feed(&mut self, offset: u64, first_line: Option<u64>, body: &[u8], mut each: impl FnMut(Line<'_>)) -> Fed {
        let late = if offset < self.next { self.fill(offset, first_line, body, &mut each) } else { 0 };
        let gap = offset.saturating_sub(self.next);
        if gap > 0 {
            self.finish(&mut each);
            if self.gaps.len() == GAPS {
                self.gaps.remove(0);
            }
            self.gaps.push((self.next, offset));
            self.next = offset;
            self.start = offset;
            self.number = first_line.unwrap_or(self.number);
            self.after_cr = false;
        }
        let new = &body[within(self.next - offset, body)..];
        self.split(new, &mut each);
        Fed { new: new.len() as u64, gap, late }
    }

    /// Hands out the lines of what fits into gaps. Lines that are cut by the edge of a gap come out in pieces.
    fn fill(&mut self, offset: u64, first_line: Option<u64>, body: &[u8], each: &mut impl FnMut(Line<'_>)) -> u64 {
        let end = offset + body.len() as u64;
        let mut filled = 0;
        for (from, to) in std::mem::take(&mut self.gaps) {
            let (start, stop) = (from.max(offset), to.min(end));
            if start >= stop {
                self.gaps.push((from, to));
                continue;
            }
            let (before, piece) = body[..within(stop - offset, body)].split_at(within(start - offset, body));
            let number = first_line.unwrap_or_default() + memchr_iter(b'\n', before).count() as u64;
            let mut late = Self { next: start, start, number, ..Self::default() };
            late.split(piece, each);
            late.finish(&mut *each);
            filled += stop - start;
            self.gaps.extend([(from, start), (stop, to)].into_iter().filter(|(from, to)| from < to));
        }
        filled
    }

    /// Hands out the line that has no end, if there is one: the output is over.
    pub fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.partial.is_empty() {
            each(Line { offset: self.start, number: self.number, bytes: &self.partial });
            self.partial.clear();
        }
        if self.next > self.start {
            self.number += 1;
            self.start = self.next;
        }
    }

    fn split(&mut self, body: &[u8], each: &mut impl FnMut(Line<'_>)) {
        let mut rest = body;
        while let Some(at) = memchr2(b'\n', b'\r', rest) {
            let is_cr = rest[at] == b'\r';
            // An empty piece before a CR shows nothing; an LF right after a CR only ends the line that was handed out.
            if at > 0 || !self.partial.is_empty() || !(is_cr || self.after_cr) {
                self.emit(&rest[..at], each);
            }
            self.next += at as u64 + 1;
            self.start = self.next;
            self.after_cr = is_cr;
            self.number += u64::from(!is_cr);
            rest = &rest[at + 1..];
        }
        if !rest.is_empty() {
            self.hold(rest);
            self.next += rest.len() as u64;
            self.after_cr = false;
        }
    }

    fn emit(&mut self, tail: &[u8], each: &mut impl FnMut(Line<'_>)) {
        if self.partial.is_empty() {
            let bytes = &tail[..tail.len().min(LINE_BYTES)];
            each(Line { offset: self.start, number: self.number, bytes });
        } else {
            self.hold(tail);
            each(Line { offset: self.start, number: self.number, bytes: &self.partial });
            self.partial.clear();
        }
    }

    fn hold(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES - self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// `at` as a place in `body`.
fn within(at: u64, body: &[u8]) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX).min(body.len())
}

/// A half line is kept byte by byte: it may end in the middle of a character.
mod bytes_as_base64 {
    use serde::{Deserializer, Serializer, de::Error as _};

    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let mut bytes = BASE64.decode(String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        bytes.truncate(LINE_BYTES);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (u64, u64, Vec<u8>);

    fn lines(chunks: &[&[u8]]) -> (Vec<Owned>, Splitter) {
        let mut splitter = Splitter::default();
        let mut found = Vec::new();
        let mut offset = 0;
        for chunk in chunks {
            splitter.feed(offset, None, chunk, |line| found.push((line.offset, line.number, line.bytes.to_vec())));
            offset += chunk.len() as u64;
        }
        splitter.finish(|line| found.push((line.offset, line.number, line.bytes.to_vec())));
        (found, splitter)
    }

    fn shown(found: &[Owned]) -> Vec<(u64, u64, &str)> {
        found.iter().map(|(offset, number, bytes)| (*offset, *number, std::str::from_utf8(bytes).unwrap())).collect()
    }

    #[test]
    fn lines_cross_frames() {
        let (found, splitter) = lines(&[b"one\ntw", b"o\n", b"\nfour"]);
        assert_eq!(shown(&found), [(0, 0, "one"), (4, 1, "two"), (8, 2, ""), (9, 3, "four")]);
        assert_eq!(splitter.lines(), 4);
    }

    #[test]
    fn progress_bars_and_crlf() {
        let (found, splitter) = lines(&[b" 10%\r 20%\r", b"\r 30%\ndone\r", b"\nlast\r\n"]);
        let wanted = [(0, 0, " 10%"), (5, 0, " 20%"), (11, 0, " 30%"), (16, 1, "done"), (22, 2, "last")];
        assert_eq!(shown(&found), wanted);
        assert_eq!(splitter.lines(), 3);
    }

    #[test]
    fn duplicates_are_skipped_and_gaps_counted() {
        let mut splitter = Splitter::default();
        let mut found = Vec::new();
        let mut feed = |offset, line, body: &str| {
            splitter.feed(offset, line, body.as_bytes(), |line| {
                found.push((line.offset, line.number, String::from_utf8_lossy(line.bytes).into_owned()));
            })
        };
        assert_eq!(feed(0, Some(0), "a\nbb"), Fed { new: 4, gap: 0, late: 0 });
        assert_eq!(feed(0, Some(0), "a\nbb"), Fed::default());
        assert_eq!(feed(2, Some(1), "bbc\nd"), Fed { new: 3, gap: 0, late: 0 });
        assert_eq!(feed(100, Some(9), "tail\n"), Fed { new: 5, gap: 93, late: 0 });
        let wanted = [(0, 0, "a"), (2, 1, "bbc"), (6, 2, "d"), (100, 9, "tail")];
        assert_eq!(found, wanted.map(|(offset, number, text)| (offset, number, text.to_owned())));
    }

    #[test]
    fn what_comes_late_fills_its_gap() {
        let mut splitter = Splitter::default();
        let mut found = Vec::new();
        let mut feed = |offset, line, body: &str| {
            splitter.feed(offset, Some(line), body.as_bytes(), |line| {
                found.push((line.offset, line.number, String::from_utf8_lossy(line.bytes).into_owned()));
            })
        };
        feed(0, 0, "a\n");
        assert_eq!(feed(8, 4, "e\n"), Fed { new: 2, gap: 6, late: 0 });
        assert_eq!(feed(0, 0, "a\nb\nc\n"), Fed { new: 0, gap: 0, late: 4 });
        assert_eq!(feed(4, 2, "c\nd\ne\nf\n"), Fed { new: 2, gap: 0, late: 2 });
        assert_eq!(feed(0, 0, "a\nb\nc\nd\n"), Fed::default());
        let wanted = [(0, 0, "a"), (8, 4, "e"), (2, 1, "b"), (4, 2, "c"), (6, 3, "d"), (10, 5, "f")];
        assert_eq!(found, wanted.map(|(offset, number, text)| (offset, number, text.to_owned())));
        assert!(splitter.gaps.is_empty());
    }

    #[test]
    fn long_lines_are_cut_and_counted() {
        let long = vec![b'x'; LINE_BYTES * 3];
        let (found, splitter) = lines(&[&long, b"yy\n", b"next\n"]);
        assert_eq!(found[0].2.len(), LINE_BYTES);
        assert_eq!(found[1], (LINE_BYTES as u64 * 3 + 3, 1, b"next".to_vec()));
        assert_eq!(splitter.lines(), 2);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_lines(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>(), Just(b'a')], 0..400),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let whole = lines(&[&text]);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            cuts.insert(0, 0);
            cuts.push(text.len());
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let parts = lines(&chunks);
            prop_assert_eq!(&whole.0, &parts.0);
            prop_assert_eq!(whole.1.lines(), parts.1.lines());
            for (offset, _, bytes) in &whole.0 {
                let start = usize::try_from(*offset).unwrap();
                prop_assert_eq!(&text[start..start + bytes.len()], &bytes[..]);
            }
        }

        #[test]
        fn a_checkpoint_changes_nothing(text in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
            let cut = cut.min(text.len());
            let mut found = Vec::new();
            let mut splitter = Splitter::default();
            splitter.feed(0, None, &text[..cut], |line| found.push((line.offset, line.number, line.bytes.to_vec())));
            let stored = serde_json::to_string(&splitter).unwrap();
            let mut splitter: Splitter = serde_json::from_str(&stored).unwrap();
            // What came before the checkpoint is delivered again.
            splitter.feed(0, None, &text, |line| found.push((line.offset, line.number, line.bytes.to_vec())));
            splitter.finish(|line| found.push((line.offset, line.number, line.bytes.to_vec())));
            prop_assert_eq!(found, lines(&[&text]).0);
        }
    }
}
