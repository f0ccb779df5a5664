//! Server-sent events, as they come off the wire.

/// Most bytes of one event; more is no stream of ours.
const MOST: usize = 16 * 1024 * 1024;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its name; `message` unless given.
    pub event: String,
    /// The id that a new stream may begin after: the last one given, also by an earlier event.
    pub id: Option<String>,
    /// Its data, lines joined.
    pub data: String,
}

/// Takes bytes as they come and gives events as they are complete.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    event: String,
    data: Option<String>,
    id: Option<String>,
    retry: Option<u64>,
    begun: bool,
}

/// The stream is none of ours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {MOST} bytes")]
pub struct TooLarge;

impl Parser {
    /// A stream that continues after `id`.
    pub fn after(id: Option<String>) -> Self {
        Self { id, ..Self::default() }
    }

    /// How long the server wants to be left alone after a break, in milliseconds.
    pub const fn retry(&self) -> Option<u64> {
        self.retry
    }

    /// Takes some bytes and gives the events that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, TooLarge> {
        self.buffer.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some((line, used)) = self.next_line() {
            self.buffer.drain(..used);
            frames.extend(self.take_line(&line));
        }
        let held = self.buffer.len() + self.data.as_ref().map_or(0, String::len);
        if held > MOST { Err(TooLarge) } else { Ok(frames) }
    }

    /// The first whole line and the bytes that it takes up. A line ends by CR, LF or CRLF, and a CR at the very end may be
    /// half of a CRLF.
    fn next_line(&mut self) -> Option<(String, usize)> {
        if !self.begun && self.buffer.len() >= 3 {
            self.begun = true;
            if self.buffer.starts_with("\u{feff}".as_bytes()) {
                self.buffer.drain(..3);
            }
        }
        let end = self.buffer.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
        let used = match (self.buffer[end], self.buffer.get(end + 1)) {
            (b'\r', None) => return None,
            (b'\r', Some(b'\n')) => end + 2,
            _ => end + 1,
        };
        Some((String::from_utf8_lossy(&self.buffer[..end]).into_owned(), used))
    }

    fn take_line(&mut self, line: &str) -> Option<Frame> {
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()).filter(|id| !id.is_empty()),
            "retry" => self.retry = value.parse().ok().or(self.retry),
            // A comment (an empty field), or what a later server may say.
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<Frame> {
        let event = std::mem::take(&mut self.event);
        let data = self.data.take()?;
        let event = if event.is_empty() { "message".to_owned() } else { event };
        Some(Frame { event, id: self.id.clone(), data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}: hello\nretry: 250\n\nevent: snapshot\nid: 7\ndata: {\"a\":\ndata: 1}\n\nevent: delta\r\ndata:x\r\n\r\nid: 8\rdata\r\rdata: cut";

    fn frame(event: &str, id: &str, data: &str) -> Frame {
        Frame { event: event.into(), id: Some(id.into()), data: data.into() }
    }

    #[test]
    fn reads_all_that_the_standard_allows() {
        let mut parser = Parser::default();
        let frames = parser.feed(STREAM.as_bytes()).unwrap();
        assert_eq!(
            frames,
            [frame("snapshot", "7", "{\"a\":\n1}"), frame("delta", "7", "x"), frame("message", "8", "")]
        );
        assert_eq!(parser.retry(), Some(250));
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_are_cut() {
        let whole = Parser::default().feed(STREAM.as_bytes()).unwrap();
        for size in 1..20 {
            let mut parser = Parser::default();
            let pieces = STREAM.as_bytes().chunks(size).flat_map(|piece| parser.feed(piece).unwrap());
            assert_eq!(pieces.collect::<Vec<_>>(), whole, "pieces of {size}");
        }
    }

    #[test]
    fn an_id_outlives_a_break_and_an_event_without_data_is_none() {
        let mut parser = Parser::after(Some("41".into()));
        assert!(parser.feed(b"event: ping\n\n").unwrap().is_empty());
        assert_eq!(parser.feed(b"data: x\n\n").unwrap(), [frame("message", "41", "x")]);
    }

    #[test]
    fn a_stream_without_end_of_line_is_given_up() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1024 * 1024];
        assert!((0..20).any(|_| parser.feed(&piece) == Err(TooLarge)));
    }
}
