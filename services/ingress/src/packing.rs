//! Streams in gzip, piece by piece: what was written can be read at once, and nothing is kept between two pieces, so that
//! thousands of open streams cost no more than without it.
//!
//! Each piece is a run of deflate blocks that refers to nothing before it and ends at a byte. So a new compressor may take up
//! where the last one left off; all that goes on from piece to piece is the check sum.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use flate2::{Compress, Compression, Crc, FlushCompress};
use futures::StreamExt as _;

/// What a gzip stream begins with: deflate, no name, no time.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// The last block, with nothing in it.
const LAST_BLOCK: [u8; 2] = [3, 0];
/// What a small piece may grow by, its flush included.
const SLACK: usize = 1024;

/// A gzip stream in the making.
struct Packer {
    crc: Crc,
    begun: bool,
}

impl Packer {
    fn new() -> Self {
        Self { crc: Crc::new(), begun: false }
    }

    fn head(&mut self) -> Vec<u8> {
        if std::mem::replace(&mut self.begun, true) { Vec::new() } else { HEAD.to_vec() }
    }

    /// The piece, packed. None if it can't be, which does not happen to pieces in memory.
    fn pack(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let mut packed = self.head();
        // Room for the worst case: what is flushed in several goes is not surely whole.
        packed.reserve(piece.len() + piece.len() / 8 + SLACK);
        let mut compress = Compress::new(Compression::fast(), false);
        compress.compress_vec(piece, &mut packed, FlushCompress::Full).ok()?;
        let is_whole = u64::try_from(piece.len()).is_ok_and(|bytes| compress.total_in() == bytes);
        if !is_whole || packed.len() == packed.capacity() {
            return None;
        }
        self.crc.update(piece);
        Some(packed)
    }

    fn finish(&mut self) -> Vec<u8> {
        let mut packed = self.head();
        packed.extend(LAST_BLOCK);
        packed.extend(self.crc.sum().to_le_bytes());
        packed.extend(self.crc.amount().to_le_bytes());
        packed
    }
}

/// Whether the caller takes gzip.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.trim().parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

/// The response with its body in gzip.
pub(crate) fn packed(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    let pieces = body.into_data_stream().map(Some).chain(futures::stream::iter([None]));
    let packed = pieces.scan(Packer::new(), |packer, piece| {
        let packed = match piece {
            Some(Ok(piece)) => {
                packer.pack(&piece).ok_or_else(|| axum::Error::new("a piece of a stream can't be packed"))
            }
            Some(Err(error)) => Err(error),
            None => Ok(packer.finish()),
        };
        futures::future::ready(Some(packed.map(Bytes::from)))
    });
    Response::from_parts(parts, Body::from_stream(packed))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn each_piece_can_be_read_when_it_has_come() {
        let pieces: Vec<Vec<u8>> = (0..50_u32)
            .map(|number| {
                let mut state = number;
                let noise = std::iter::repeat_with(move || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                });
                noise.take((number * number * 40) as usize).collect()
            })
            .collect();
        let mut packer = Packer::new();
        let (mut wire, mut plain) = (Vec::new(), Vec::<u8>::new());
        for piece in &pieces {
            wire.extend(packer.pack(piece).unwrap());
            plain.extend(piece);
            let mut read = vec![0; plain.len()];
            flate2::read::GzDecoder::new(&wire[..]).read_exact(&mut read).unwrap();
            assert!(read == plain, "{} bytes", plain.len());
        }
        wire.extend(packer.finish());
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&wire[..]).read_to_end(&mut read).unwrap();
        assert!(read == plain);
    }

    #[test]
    fn nothing_packs_to_an_empty_file() {
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&Packer::new().finish()[..]).read_to_end(&mut read).unwrap();
        assert!(read.is_empty());
    }

    #[test]
    fn gzip_is_sent_to_those_who_take_it() {
        let takes = |text: &str| {
            takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_str(text).unwrap())]))
        };
        assert!(takes("gzip") && takes("br, GZIP;q=0.5") && takes("deflate,gzip"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes("x-gzip") && !takes_gzip(&HeaderMap::new()));
    }
}
