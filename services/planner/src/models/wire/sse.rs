//! Server-sent events out of the bytes of a body, however they are cut.

/// The largest event that is taken, in bytes.
const EVENT_BYTES: usize = 8 * 1024 * 1024;

/// An event that is larger than anything that a provider sends.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Gathers events. Of each only its data is kept: all providers say in it what it is.
#[derive(Debug, Default)]
pub struct Events {
    /// The line under way.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, which a line feed may follow.
    after_return: bool,
    /// The data of the event under way; none if there is none yet.
    data: Option<Vec<u8>>,
}

impl Events {
    /// Takes the next bytes and gives the data of each event that they complete.
    ///
    /// # Errors
    /// [`TooLarge`] for an event without end.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLarge> {
        let mut done = Vec::new();
        for &byte in bytes {
            let is_second = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if is_second => {}
                b'\n' | b'\r' => done.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        if self.line.len() + self.data.as_ref().map_or(0, Vec::len) > EVENT_BYTES {
            return Err(TooLarge);
        }
        Ok(done)
    }

    /// What is left when the body ends without an empty line.
    pub fn finish(&mut self) -> Option<String> {
        let last = self.end_line();
        last.or_else(|| self.data.take().map(text))
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take().map(text);
        }
        let value = line.strip_prefix(b"data:")?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => self.data = Some(value.to_vec()),
        }
        None
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_end_at_empty_lines_of_any_kind() {
        for end in ["\n", "\r\n", "\r"] {
            let body = [": hello", "event: x", "data: {\"a\":", "data:1}", "", "id: 4", "data: ✓", ""].join(end) + end;
            let mut events = Events::default();
            assert_eq!(events.push(body.as_bytes()).unwrap(), ["{\"a\":\n1}", "✓"], "{end:?}");
            assert_eq!(events.finish(), None);
        }
        let mut events = Events::default();
        assert_eq!(events.push(b"data: a\n\ndata: b").unwrap(), ["a"]);
        assert_eq!(events.finish().as_deref(), Some("b"));
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut events = Events::default();
        let piece = vec![b'x'; 1024 * 1024];
        assert!((0..10).any(|_| events.push(&piece).is_err()));
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(body in "(data: [a-z✓]{0,5}(\r\n|\n|\r)|:[a-z]*\n|\n|\r\n){0,20}", at in 0usize..200) {
            let bytes = body.as_bytes();
            let (mut whole, mut cut) = (Events::default(), Events::default());
            let expected = whole.push(bytes).unwrap();
            let at = at.min(bytes.len());
            let mut got = cut.push(&bytes[..at]).unwrap();
            got.extend(cut.push(&bytes[at..]).unwrap());
            prop_assert_eq!(got, expected);
            prop_assert_eq!(cut.finish(), whole.finish());
        }
    }
}
