//! Segments of raw output: how frames become them, and how bytes are read out of them again.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Level of zstd: text of builds shrinks to about a tenth at this speed.
const LEVEL: i32 = 3;

/// Frames of one call that wait to be stored, by their offset.
#[derive(Debug, Default)]
pub struct Frames {
    frames: BTreeMap<u64, (u64, Bytes)>,
    bytes: usize,
}

/// Bytes without a gap, ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the first byte.
    pub from_offset: u64,
    /// Offset behind the last.
    pub to_offset: u64,
    /// Number of the first line, from 0.
    pub from_line: u64,
    /// Number behind the last; a line that was begun counts.
    pub to_line: u64,
    /// The bytes.
    pub content: Vec<u8>,
}

impl Frames {
    /// Adds a frame. One that is there already changes nothing.
    pub fn add(&mut self, offset: u64, line: u64, content: Bytes) {
        self.bytes += content.len();
        if let Some((_, replaced)) = self.frames.insert(offset, (line, content)) {
            self.bytes -= replaced.len();
        }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What waits, as pieces without gaps; nothing waits any more.
    pub fn take(&mut self) -> Vec<Piece> {
        self.bytes = 0;
        let mut pieces: Vec<Piece> = Vec::new();
        for (offset, (line, content)) in std::mem::take(&mut self.frames) {
            match pieces.last_mut() {
                Some(piece) if offset <= piece.to_offset => piece.extend(offset, &content),
                _ => {
                    let mut piece = Piece {
                        from_offset: offset,
                        to_offset: offset,
                        from_line: line,
                        to_line: line,
                        content: Vec::new(),
                    };
                    piece.extend(offset, &content);
                    pieces.push(piece);
                }
            }
        }
        pieces.retain(|piece| !piece.content.is_empty());
        pieces
    }
}

impl Piece {
    /// Adds what is new of `content`, which begins at `offset`, at or before the end.
    fn extend(&mut self, offset: u64, content: &[u8]) {
        let known = usize::try_from(self.to_offset - offset).unwrap_or(usize::MAX);
        let Some(fresh) = content.get(known..) else { return };
        self.content.extend_from_slice(fresh);
        self.to_offset += fresh.len() as u64;
        let ended = self.content.iter().filter(|byte| **byte == b'\n').count() as u64;
        let begun = u64::from(self.content.last().is_some_and(|byte| *byte != b'\n'));
        self.to_line = self.from_line + ended + begun;
    }

    /// The bytes, compressed.
    pub fn compress(&self) -> std::io::Result<Vec<u8>> {
        zstd::encode_all(self.content.as_slice(), LEVEL)
    }
}

/// The bytes of a stored segment.
pub fn decompress(stored: &[u8]) -> std::io::Result<Vec<u8>> {
    zstd::decode_all(stored)
}

/// Puts segments together to the bytes `from..to`, as far as they go without a gap.
#[derive(Debug)]
pub struct Range {
    next: u64,
    to: u64,
    bytes: Vec<u8>,
}

impl Range {
    /// Nothing yet of `from..to`.
    pub fn new(from: u64, to: u64) -> Self {
        Self { next: from, to, bytes: Vec::new() }
    }

    /// Takes what is wanted of a segment that begins at `from`. False when there is a gap before it, or all is there.
    pub fn take(&mut self, from: u64, content: &[u8]) -> bool {
        if from > self.next || self.next >= self.to {
            return false;
        }
        let end = from + content.len() as u64;
        if end > self.next {
            let skip = usize::try_from(self.next - from).unwrap_or(usize::MAX);
            let most = usize::try_from(self.to.min(end) - self.next).unwrap_or(usize::MAX);
            let wanted = &content[skip..skip + most];
            self.bytes.extend_from_slice(wanted);
            self.next += wanted.len() as u64;
        }
        true
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_order_and_repetition_of_frames_gives_the_same_bytes(
            text in "[a-z\n]{0,400}",
            cuts in prop::collection::vec(1usize..40, 0..40),
            order in any::<u64>(),
            from in 0u64..420,
            length in 0u64..420,
        ) {
            let (mut frames, mut at, mut list) = (Frames::default(), 0, Vec::new());
            for cut in cuts.into_iter().chain([text.len()]) {
                let end = (at + cut).min(text.len());
                let line = text[..at].matches('\n').count() as u64;
                list.push((at as u64, line, Bytes::copy_from_slice(&text.as_bytes()[at..end])));
                at = end;
            }
            list.sort_by_key(|(offset, ..)| offset.wrapping_mul(order | 1).rotate_left(7));
            for (offset, line, content) in list.iter().chain(list.iter().take(3)) {
                frames.add(*offset, *line, content.clone());
            }
            let pieces = frames.take();
            prop_assert!(pieces.len() <= 1);
            let mut range = Range::new(from, from + length);
            for piece in &pieces {
                let lines = text.lines().count() as u64;
                prop_assert_eq!((piece.from_line, piece.to_line), (0, lines));
                range.take(piece.from_offset, &decompress(&piece.compress().unwrap()).unwrap());
            }
            let wanted: Vec<u8> = text.bytes().skip(from as usize).take(length as usize).collect();
            prop_assert_eq!(range.into_bytes(), wanted);
        }
    }

    #[test]
    fn a_gap_makes_two_pieces_and_ends_a_range() {
        let mut frames = Frames::default();
        frames.add(0, 0, Bytes::from_static(b"one\n"));
        frames.add(10, 3, Bytes::from_static(b"four\n"));
        let pieces = frames.take();
        assert_eq!(pieces.len(), 2);
        let mut range = Range::new(0, 100);
        assert!(range.take(0, &pieces[0].content));
        assert!(!range.take(10, &pieces[1].content));
        assert_eq!(range.into_bytes(), b"one\n");
    }
}
