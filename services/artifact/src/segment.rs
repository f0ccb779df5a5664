//! Pieces of raw output, joined into segments that stand without each other.

use bytes::Bytes;
use memchr::memchr_iter;

/// Strength of the compression: logs shrink about tenfold, at some hundred MB/s.
const LEVEL: i32 = 3;

/// A piece as it came.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Byte offset in the call's output.
    pub(crate) offset: u64,
    /// Number of the line that it begins in, from 0.
    pub(crate) line: u64,
    pub(crate) body: Bytes,
}

/// Output without a gap: the bytes `from..to`, the lines `from_line..to_line`, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) from_line: u64,
    pub(crate) to_line: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Stretch {
    fn add(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
        self.to += body.len() as u64;
    }

    fn count_lines(mut self) -> Self {
        let ends = memchr_iter(b'\n', &self.bytes).count() as u64;
        let is_open = self.bytes.last().is_some_and(|last| *last != b'\n');
        self.to_line = self.from_line + ends + u64::from(is_open);
        self
    }
}

/// Joins pieces in whatever order they came, each byte once.
pub(crate) fn join(mut pieces: Vec<Piece>) -> Vec<Stretch> {
    pieces.retain(|piece| !piece.body.is_empty());
    pieces.sort_by_key(|piece| (piece.offset, std::cmp::Reverse(piece.body.len())));
    let mut stretches: Vec<Stretch> = Vec::new();
    for Piece { offset, line, body } in pieces {
        match stretches.last_mut() {
            Some(last) if offset <= last.to => {
                let seen = usize::try_from(last.to - offset).unwrap_or(usize::MAX).min(body.len());
                last.add(&body[seen..]);
            }
            _ => {
                let mut stretch =
                    Stretch { from: offset, to: offset, from_line: line, to_line: line, bytes: Vec::new() };
                stretch.add(&body);
                stretches.push(stretch);
            }
        }
    }
    stretches.into_iter().map(Stretch::count_lines).collect()
}

/// Makes bytes small.
///
/// # Errors
/// When memory is out.
pub(crate) fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::bulk::compress(bytes, LEVEL)
}

/// Brings `size` bytes back.
///
/// # Errors
/// When they are not what was made small.
pub(crate) fn decompress(small: &[u8], size: usize) -> std::io::Result<Vec<u8>> {
    let bytes = zstd::bulk::decompress(small, size)?;
    if bytes.len() == size {
        Ok(bytes)
    } else {
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{} bytes instead of {size}", bytes.len())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn piece(text: &[u8], from: usize, to: usize) -> Piece {
        let line = memchr_iter(b'\n', &text[..from]).count() as u64;
        Piece { offset: from as u64, line, body: Bytes::copy_from_slice(&text[from..to]) }
    }

    #[test]
    fn gaps_part_and_overlaps_join() {
        let text = b"one\ntwo\nthree\nfour\n";
        let stretches =
            join(vec![piece(text, 14, 19), piece(text, 4, 6), piece(text, 0, 5), piece(text, 0, 5), piece(text, 5, 5)]);
        let shown: Vec<_> =
            stretches.iter().map(|found| (found.from, found.to, found.from_line, found.to_line)).collect();
        assert_eq!(shown, [(0, 6, 0, 2), (14, 19, 3, 4)]);
        assert_eq!(stretches[0].bytes, b"one\ntw");
    }

    proptest! {
        #[test]
        fn joined_bytes_are_the_original(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 1..300),
            cuts in proptest::collection::vec((0usize..300, 0usize..40), 1..30),
        ) {
            let pieces: Vec<_> = cuts.iter().map(|(from, len)| {
                let from = (*from).min(text.len());
                piece(&text, from, (from + len).min(text.len()))
            }).collect();
            let covered: std::collections::BTreeSet<u64> =
                pieces.iter().flat_map(|piece| piece.offset..piece.offset + piece.body.len() as u64).collect();
            let stretches = join(pieces);
            let joined: u64 = stretches.iter().map(|stretch| stretch.to - stretch.from).sum();
            prop_assert_eq!(joined, covered.len() as u64);
            for stretch in &stretches {
                let (from, to) = (stretch.from as usize, stretch.to as usize);
                prop_assert_eq!(&stretch.bytes[..], &text[from..to]);
                prop_assert_eq!(stretch.from_line, memchr_iter(b'\n', &text[..from]).count() as u64);
                let small = compress(&stretch.bytes).unwrap();
                prop_assert_eq!(decompress(&small, to - from).unwrap(), &text[from..to]);
                prop_assert!(decompress(&small, to - from + 1).is_err());
            }
        }
    }
}
