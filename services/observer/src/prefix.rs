//! What systems put in front of every line: times, levels, steps. Rules look at what is behind it.

/// Most pieces of a prefix.
const PIECES: usize = 4;

/// Where the line itself begins: behind time stamps and marks of the system that recorded it.
#[must_use]
pub fn len(line: &[u8]) -> usize {
    let mut at = 0;
    for _ in 0..PIECES {
        let rest = &line[at..];
        let piece = stamp(rest).or_else(|| level(rest)).or_else(|| step(rest)).or_else(|| container(rest));
        match piece {
            Some(len) if len > 0 => at += len,
            _ => break,
        }
    }
    at
}

/// A time: `2026-07-30T10:39:20.7140484Z `, `[task 2025-02-13T22:07:05.241Z] `, `10:39:20,123 - `.
fn stamp(line: &[u8]) -> Option<usize> {
    let start = blanks(line);
    let mut at = start;
    let bracket = line.get(at) == Some(&b'[');
    at += usize::from(bracket);
    if bracket && line[at..].starts_with(b"task ") {
        at += 5;
    }
    if !line.get(at)?.is_ascii_digit() {
        return None;
    }
    let body = line[at..].iter().take(40).take_while(|byte| is_of_time(**byte)).count();
    let text = &line[at..at + body];
    let colons = text.iter().filter(|byte| **byte == b':').count();
    // A date and a time may have a blank between them.
    let is_date = text.len() == 10 && text[4] == b'-' && text[7] == b'-';
    at += body;
    if is_date && line.get(at) == Some(&b' ') {
        let time = stamp(&line[at..])?;
        return Some(at + time + usize::from(bracket && line.get(at + time) == Some(&b']')));
    }
    if colons < 2 || text.len() < 8 {
        return None;
    }
    if line.get(at) == Some(&b']') {
        at += 1;
    }
    let blank = blanks(&line[at..]);
    if blank == 0 && at < line.len() && !matches!(line[at - 1], b']' | b':' | b'Z') {
        return None;
    }
    at += blank;
    if line[at..].starts_with(b"- ") || line[at..].starts_with(b"| ") {
        at += 2;
    }
    Some(at)
}

const fn is_of_time(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'-' | b':' | b'.' | b',' | b'T' | b'Z' | b'+' | b'/')
}

/// A level that says nothing: `    INFO - `, `DEBUG: `.
fn level(line: &[u8]) -> Option<usize> {
    let start = blanks(line);
    let rest = &line[start..];
    let word = ["INFO", "DEBUG", "WARNING", "WARN", "NOTICE", "TRACE"]
        .iter()
        .find(|word| rest.starts_with(word.as_bytes()))?;
    let mut at = start + word.len();
    let blank = blanks(&line[at..]);
    at += blank;
    match line.get(at)? {
        b'-' if blank > 0 && line.get(at + 1) == Some(&b' ') => at += 1,
        _ => return None,
    }
    Some(at + blanks(&line[at..]))
}

/// A step of an image's build: `#12 3.456 `.
fn step(line: &[u8]) -> Option<usize> {
    let digits =
        |from: usize| line.get(from..).map_or(0, |rest| rest.iter().take_while(|byte| byte.is_ascii_digit()).count());
    if line.first() != Some(&b'#') {
        return None;
    }
    let number = digits(1);
    let at = 1 + number;
    if number == 0 || line.get(at) != Some(&b' ') {
        return None;
    }
    let whole = digits(at + 1);
    let dot = at + 1 + whole;
    if whole == 0 || line.get(dot) != Some(&b'.') {
        return Some(at + 1);
    }
    let end = dot + 1 + digits(dot + 1);
    (line.get(end) == Some(&b' ')).then_some(end + 1)
}

/// The name of a container: `web-1  | `.
fn container(line: &[u8]) -> Option<usize> {
    let name = line
        .iter()
        .take(64)
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        .count();
    if name < 3 || !line[name - 1].is_ascii_digit() || !line[0].is_ascii_alphabetic() {
        return None;
    }
    let at = name + blanks(&line[name..]);
    (at > name && line[at..].starts_with(b"| ")).then_some(at + 2)
}

fn blanks(line: &[u8]) -> usize {
    line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn prefixes_are_passed_over() {
        for (line, rest) in [
            ("2026-07-30T10:39:20.7140484Z ##[error]x", "##[error]x"),
            ("[task 2025-02-13T22:07:05.241Z] 22:07:05     INFO - TEST-PASS", "TEST-PASS"),
            ("[2026-07-30 10:39:20] error", "error"),
            ("2026-07-30 10:39:20,123 - boom", "boom"),
            ("10:39:20.5 x", "x"),
            ("#12 3.456 E: no such package", "E: no such package"),
            ("#7 ERROR: failed", "ERROR: failed"),
            ("web-1  | panic", "panic"),
            ("    indented", "    indented"),
            ("INFO: a", "INFO: a"),
            ("ERROR - x", "ERROR - x"),
            ("12:34 x", "12:34 x"),
            ("src/a.c:3:5: error", "src/a.c:3:5: error"),
            ("3:5: error", "3:5: error"),
            ("3 | let a", "3 | let a"),
            ("", ""),
        ] {
            assert_eq!(&line[super::len(line.as_bytes())..], rest, "{line}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_survived(line in proptest::collection::vec(prop_oneof![Just(b'['), Just(b':'), Just(b' '), Just(b'1'), any::<u8>()], 0..60)) {
            prop_assert!(super::len(&line) <= line.len());
        }
    }
}
