//! What a server sends, taken apart with as much patience as can be.

use std::io;

use async_nats::header::{HeaderName, HeaderValue};
use async_nats::{HeaderMap, StatusCode, Subject};
use bytes::{Bytes, BytesMut};
use serde::Deserialize;

/// The longest control line, in bytes: a server's INFO is the longest of them.
const MAX_LINE: usize = 64 * 1024;
/// The largest message, in bytes: no server is configured beyond this.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// One thing that a server says.
#[derive(Debug)]
pub(super) enum Op {
    Message(async_nats::Message),
    Ping,
    Pong,
    Ok,
    Info { tls_required: bool },
    Error(String),
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    tls_required: bool,
}

/// Takes the next whole operation off the buffer, if it is there.
pub(super) fn take(buffer: &mut BytesMut) -> io::Result<Option<Op>> {
    let Some(end) = buffer.windows(2).take(MAX_LINE).position(|pair| pair == b"\r\n") else {
        return if buffer.len() > MAX_LINE { Err(invalid("a line has no end")) } else { Ok(None) };
    };
    let line = &buffer[..end];
    let (verb, rest) = match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
        Some(space) => (&line[..space], &line[space..]),
        None => (line, &line[end..]),
    };
    let op = match verb {
        b"MSG" | b"HMSG" => return take_message(buffer, end, verb == b"HMSG"),
        b"PING" => Op::Ping,
        b"PONG" => Op::Pong,
        b"+OK" => Op::Ok,
        b"INFO" => {
            let info: Info = serde_json::from_slice(rest).map_err(io::Error::other)?;
            Op::Info { tls_required: info.tls_required }
        }
        b"-ERR" => Op::Error(String::from_utf8_lossy(rest).trim().to_owned()),
        _ => return Err(invalid("an operation is unknown")),
    };
    let _ = buffer.split_to(end + 2);
    Ok(Some(op))
}

/// `MSG <subject> <sid> [reply] <total>`, or `HMSG <subject> <sid> [reply] <headers> <total>`, and then the bytes.
fn take_message(buffer: &mut BytesMut, end: usize, has_headers: bool) -> io::Result<Option<Op>> {
    let line = std::str::from_utf8(&buffer[..end]).map_err(|_| invalid("a subject is not UTF-8"))?;
    let words: Vec<&str> = line.split_ascii_whitespace().skip(1).collect();
    let number = |word: &str| word.parse::<usize>().map_err(|_| invalid("a length is no number"));
    let (subject, reply, head, total) = match (has_headers, words.as_slice()) {
        (false, [subject, _, total]) => (subject, None, 0, number(total)?),
        (false, [subject, _, reply, total]) => (subject, Some(reply), 0, number(total)?),
        (true, [subject, _, head, total]) => (subject, None, number(head)?, number(total)?),
        (true, [subject, _, reply, head, total]) => (subject, Some(reply), number(head)?, number(total)?),
        _ => return Err(invalid("a message has another number of words")),
    };
    if head > total || total > MAX_MESSAGE {
        return Err(invalid("a length is out of bounds"));
    }
    if buffer.len() < end + 2 + total + 2 {
        return Ok(None);
    }
    let (subject, reply) = (Subject::from(*subject), reply.map(|reply| Subject::from(*reply)));
    let length = subject.len() + reply.as_ref().map_or(0, |reply| reply.len()) + total;
    let _ = buffer.split_to(end + 2);
    let block = buffer.split_to(head);
    let payload: Bytes = buffer.split_to(total - head).freeze();
    let _ = buffer.split_to(2);
    let (status, description, headers) = read_block(&block);
    let headers = has_headers.then_some(headers);
    Ok(Some(Op::Message(async_nats::Message { subject, reply, payload, headers, status, description, length })))
}

/// Reads a header block, whatever it is: bytes that are no text become U+FFFD, lines that are no header are left out.
fn read_block(block: &[u8]) -> (Option<StatusCode>, Option<String>, HeaderMap) {
    let text = String::from_utf8_lossy(block);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default().strip_prefix("NATS/1.0").unwrap_or_default().trim();
    let (status, description) = first.split_once(' ').unwrap_or((first, ""));
    let description = Some(description.trim()).filter(|text| !text.is_empty()).map(str::to_owned);
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim().replace(['\r', '\n'], " ");
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    }
    (status.parse().ok(), description, headers)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(wire: &[u8]) -> async_nats::Message {
        let mut buffer = BytesMut::from(wire);
        let Some(Op::Message(message)) = take(&mut buffer).unwrap() else { panic!("no message") };
        assert!(buffer.is_empty());
        message
    }

    fn with_block(block: &[u8]) -> async_nats::Message {
        let mut wire = format!("HMSG in.a.b.c 1 $JS.ACK.x {} {}\r\n", block.len(), block.len() + 4).into_bytes();
        wire.extend_from_slice(block);
        wire.extend_from_slice(b"body\r\n");
        message(&wire)
    }

    #[test]
    fn reads_what_a_server_says() {
        let plain = message(b"MSG a.b 1 4\r\nbody\r\n");
        assert_eq!((plain.subject.as_str(), plain.reply, &plain.payload[..]), ("a.b", None, &b"body"[..]));
        let reply = message(b"MSG a.b 1 re.ply 0\r\n\r\n");
        assert_eq!(reply.reply.unwrap().as_str(), "re.ply");
        let status = message(b"HMSG inbox 1 49 49\r\nNATS/1.0 408 Request Timeout\r\nNats-Pending: 7\r\n\r\n\r\n");
        assert_eq!((status.status.unwrap().as_u16(), status.description.as_deref()), (408, Some("Request Timeout")));
        assert_eq!(status.headers.unwrap().get("Nats-Pending").unwrap().as_str(), "7");
        let mut buffer = BytesMut::from(&b"INFO {\"tls_required\":true}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'no'\r\n"[..]);
        assert!(matches!(take(&mut buffer), Ok(Some(Op::Info { tls_required: true }))));
        assert!(matches!(take(&mut buffer), Ok(Some(Op::Ping))));
        assert!(matches!(take(&mut buffer), Ok(Some(Op::Pong))));
        assert!(matches!(take(&mut buffer), Ok(Some(Op::Ok))));
        assert!(matches!(take(&mut buffer), Ok(Some(Op::Error(error))) if error == "'no'"));
        assert!(matches!(take(&mut buffer), Ok(None)));
    }

    #[test]
    fn makes_the_best_of_a_bad_block() {
        let headers = |block: &[u8]| with_block(block).headers.unwrap();
        assert_eq!(headers(b"NATS/1.0\r\nce-id: a\rb\r\n\r\n").get("ce-id").unwrap().as_str(), "a b");
        assert_eq!(headers(b"NATS/1.0\r\nce-id: \xff\r\n\r\n").get("ce-id").unwrap().as_str(), "\u{FFFD}");
        assert_eq!(headers(b"NATS/1.0\r\nno colon\r\nbad name: x\r\ngood: y\r\n\r\n").len(), 1);
        assert!(headers(b"").is_empty());
        assert!(headers(b"\xff\xfe").is_empty());
    }

    #[test]
    fn refuses_what_is_no_protocol() {
        for bad in [
            &b"MSG a 1 x\r\n"[..],
            b"HMSG a 1 5 4\r\n",
            b"MSG a\r\n",
            b"HELLO\r\n",
            b"MSG a 1 99999999999\r\n",
            b"INFO x\r\n",
        ] {
            assert!(take(&mut BytesMut::from(bad)).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert!(take(&mut BytesMut::from(&vec![b'x'; MAX_LINE + 2][..])).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take(&mut buffer) {}
        }

        #[test]
        fn every_block_and_body_arrive_in_any_pieces(
            block in proptest::collection::vec(any::<u8>(), 0..100),
            body in proptest::collection::vec(any::<u8>(), 0..100),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut wire = format!("HMSG in.a 1 {} {}\r\n", block.len(), block.len() + body.len()).into_bytes();
            wire.extend_from_slice(&block);
            wire.extend_from_slice(&body);
            wire.extend_from_slice(b"\r\n");
            let cut = cut.index(wire.len());
            let mut buffer = BytesMut::from(&wire[..cut]);
            prop_assert!(take(&mut buffer).unwrap().is_none());
            buffer.extend_from_slice(&wire[cut..]);
            let Some(Op::Message(message)) = take(&mut buffer).unwrap() else { panic!("no message") };
            prop_assert_eq!(&message.payload[..], &body[..]);
            prop_assert!(buffer.is_empty());
        }
    }
}
