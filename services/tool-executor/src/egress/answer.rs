//! What comes back: as much as may be read, unpacked, and how long the other side asks to wait.

use std::io::Read as _;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header;

use super::{EgressError, chain};

/// What came back.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Media type with its parameters; empty if none was given.
    pub media_type: String,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The body, up to the cap.
    pub body: Vec<u8>,
    /// Whether there was more.
    pub truncated: bool,
}

/// Reads an answer, up to `cap` bytes of its body.
pub(super) async fn read(mut response: reqwest::Response, cap: usize) -> Result<Response, EgressError> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type = text(header::CONTENT_TYPE).unwrap_or_default();
    let retry_after = text(header::RETRY_AFTER).and_then(|text| pause(text.trim(), Timestamp::now()));
    let encoding = text(header::CONTENT_ENCODING).unwrap_or_default().trim().to_ascii_lowercase();
    let status = response.status().as_u16();
    let mut body = Vec::new();
    let mut truncated = false;
    while let Some(chunk) = response.chunk().await.map_err(|error| EgressError::Broken(chain(&error)))? {
        let room = cap - body.len();
        truncated = chunk.len() > room;
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if truncated {
            break;
        }
    }
    let packed = Response { status, media_type, retry_after, body, truncated };
    Ok(if matches!(encoding.as_str(), "" | "identity") { packed } else { unpacked(packed, &encoding, cap) })
}

/// The answer of a server that packs though nobody asked it to. What is packed too tightly is cut, and what can't be
/// unpacked is binary content.
fn unpacked(packed: Response, encoding: &str, cap: usize) -> Response {
    let limit = u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1);
    let mut body = Vec::new();
    let read = match encoding {
        "gzip" | "x-gzip" => {
            flate2::read::MultiGzDecoder::new(packed.body.as_slice()).take(limit).read_to_end(&mut body)
        }
        "deflate" => flate2::read::ZlibDecoder::new(packed.body.as_slice()).take(limit).read_to_end(&mut body),
        _ => return Response { media_type: "application/octet-stream".to_owned(), ..packed },
    };
    if read.is_err() && body.is_empty() {
        return Response { media_type: "application/octet-stream".to_owned(), ..packed };
    }
    let truncated = packed.truncated || read.is_err() || body.len() > cap;
    body.truncate(cap);
    Response { body, truncated, ..packed }
}

/// What `Retry-After` asks for: seconds, or a date.
pub(crate) fn pause(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let until = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_given_in_seconds_or_by_a_date() {
        let now: Timestamp = "2015-10-21T07:27:00Z".parse().unwrap();
        assert_eq!(pause("120", now), Some(Duration::from_secs(120)));
        assert_eq!(pause("Wed, 21 Oct 2015 07:28:00 GMT", now), Some(Duration::from_secs(60)));
        assert_eq!(pause("Wed, 21 Oct 2015 07:26:00 GMT", now), Some(Duration::ZERO), "it is over");
        assert_eq!(pause("soon", now), None);
    }

    #[test]
    fn what_is_packed_is_unpacked_within_bounds() {
        use std::io::Write as _;
        let pack = |text: &[u8]| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            packer.write_all(text).unwrap();
            packer.finish().unwrap()
        };
        let answer = |body: Vec<u8>, encoding: &str| {
            let media_type = "text/plain".to_owned();
            let packed = Response { status: 200, media_type, retry_after: None, body, truncated: false };
            unpacked(packed, encoding, 1000)
        };
        let good = answer(pack(b"hello"), "gzip");
        assert_eq!((good.body.as_slice(), good.truncated), (b"hello".as_slice(), false));
        let bomb = answer(pack(&vec![0; 10 << 20]), "gzip");
        assert_eq!((bomb.body.len(), bomb.truncated), (1000, true));
        let broken = answer(b"not packed".to_vec(), "gzip");
        assert_eq!(
            (broken.body.as_slice(), broken.media_type.as_str()),
            (b"not packed".as_slice(), "application/octet-stream")
        );
        assert_eq!(answer(b"x".to_vec(), "br").media_type, "application/octet-stream");
    }
}
