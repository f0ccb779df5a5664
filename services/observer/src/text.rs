//! A line as a person would see it: without colours and control characters, and always valid text.

use std::borrow::Cow;

use memchr::memchr;

const ESCAPE: u8 = 0x1b;
/// As much of a line tells it from others.
const NORMAL_BYTES: usize = 200;

/// Raw output without ANSI escape sequences.
#[must_use]
pub fn plain(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr(ESCAPE, bytes).is_some() { Cow::Owned(strip_escapes(bytes)) } else { Cow::Borrowed(bytes) }
}

/// Whether a text holds characters that are not to be seen.
pub(crate) fn has_controls(text: &str) -> bool {
    text.bytes().any(|byte| (byte < 0x20 && byte != b'\t') || matches!(byte, 0x7f | 0xc2))
}

/// The visible text of raw output: escape sequences and control characters (but the tab) taken out, what is not UTF-8
/// replaced.
#[must_use]
pub fn visible(bytes: &[u8]) -> Cow<'_, str> {
    let text = match plain(bytes) {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    };
    if has_controls(&text) {
        Cow::Owned(text.chars().filter(|letter| !letter.is_control() || *letter == '\t').collect())
    } else {
        text
    }
}

/// Without ANSI escape sequences (ECMA-48: CSI, OSC and other strings, two-byte escapes).
fn strip_escapes(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = memchr(ESCAPE, rest) {
        plain.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        rest = &rest[escape_len(rest)..];
    }
    plain.extend_from_slice(rest);
    plain
}

/// How many of the bytes after ESC belong to its sequence.
fn escape_len(after: &[u8]) -> usize {
    match after.first() {
        Some(b'[') => {
            let body = after[1..].iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
            let has_final = after.get(1 + body).is_some_and(|byte| (0x40..0x7f).contains(byte));
            1 + body + usize::from(has_final)
        }
        // A string, ended by BEL or ESC \. One without an end is left as text: better shown than lost.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let end = after.iter().position(|byte| matches!(*byte, 0x07 | ESCAPE));
            match end {
                Some(at) if after[at] == 0x07 => at + 1,
                Some(at) if after.get(at + 1) == Some(&b'\\') => at + 2,
                _ => 1,
            }
        }
        Some(0x20..0x30) => 2.min(after.len()),
        Some(0x30..0x7f) => 1,
        _ => 0,
    }
}

/// `text` without what differs from one repetition to the next: numbers, hashes, addresses. For telling repetitions.
#[must_use]
pub fn normal(text: &str) -> String {
    let mut normal = String::with_capacity(text.len().min(NORMAL_BYTES));
    let mut in_number = false;
    for letter in text.trim().chars() {
        if normal.len() >= NORMAL_BYTES {
            break;
        }
        let digit = letter.is_ascii_digit();
        if !digit {
            normal.push(letter);
        } else if !in_number {
            normal.push('#');
        }
        in_number = digit;
    }
    normal
}

/// At most `max` bytes of `text` around the byte `around`, cut at characters, with `…` where something is gone.
#[must_use]
pub fn window(text: &str, around: usize, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    // A cut costs three bytes on each side.
    let max = max.saturating_sub(6).max(1);
    let from = around.saturating_sub(max / 3).min(text.len() - max.min(text.len()));
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let to = (0..=(from + max).min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(from);
    let to = to.max(from);
    let before = if from > 0 { "…" } else { "" };
    let after = if to < text.len() { "…" } else { "" };
    Cow::Owned(format!("{before}{}{after}", &text[from..to]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colours_and_controls_are_taken_out() {
        for (raw, wanted) in [
            (&b"plain"[..], "plain"),
            (b"\x1b[1m\x1b[31merror\x1b[0m: x", "error: x"),
            (b"\x1b[38;5;9mred\x1b[K", "red"),
            (b"\x1b]0;title\x07text", "text"),
            (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            (b"\x1b(Btext", "text"),
            (b"a\x00b\x08c\td", "abc\td"),
            (b"bad \xff utf8", "bad \u{fffd} utf8"),
            (b"cut \x1b[3", "cut "),
            (b"cut \x1b", "cut "),
        ] {
            assert_eq!(visible(raw), wanted);
        }
    }

    #[test]
    fn repetitions_are_told() {
        assert_eq!(normal(" took 123 ms at 0x7f"), normal("took 9 ms at 0x10f"));
        assert_ne!(normal("test a failed"), normal("test b failed"));
    }

    proptest! {
        #[test]
        fn visible_text_holds_no_controls(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = visible(&raw).into_owned();
            prop_assert!(text.chars().all(|letter| !letter.is_control() || letter == '\t'));
        }

        #[test]
        fn windows_are_bounded(text in "\\PC{0,80}", around in 0usize..100, max in 8usize..60) {
            let cut = window(&text, around, max);
            prop_assert!(cut.len() <= max, "{} > {max}", cut.len());
        }
    }
}
