//! The kind of a line: what is left of it without what differs from one time to the next.

use std::hash::{DefaultHasher, Hash, Hasher};

/// As much of a line tells its kind.
const SHAPE_BYTES: usize = 240;

/// The line without words that hold digits (numbers, ids, times, addresses) and without its place in time.
#[must_use]
pub fn shape(text: &str) -> String {
    let mut shape = String::with_capacity(text.len().min(SHAPE_BYTES));
    let mut word = String::new();
    for letter in text.chars().chain([' ']) {
        if shape.len() >= SHAPE_BYTES {
            break;
        }
        if letter.is_alphanumeric() {
            word.push(letter);
            continue;
        }
        push(&mut shape, &word);
        word.clear();
        // Within an id or a time the separators differ too.
        if !(shape.ends_with('#') && matches!(letter, '-' | ':' | '.' | '_')) {
            shape.push(letter);
        }
    }
    shape.trim().to_owned()
}

fn push(shape: &mut String, word: &str) {
    // Ids in hex may have no digit at all.
    let is_hex = word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !(is_hex || word.chars().any(|letter| letter.is_ascii_digit())) {
        shape.push_str(word);
    } else if !shape.ends_with('#') {
        shape.push('#');
    }
}

/// The kind of a line as a number.
#[must_use]
pub fn kind(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    shape(text).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_kind_have_one_shape() {
        for (one, other) in [
            (
                "16:42:22.382 ERROR t.s.Travel#5 TraceID: ffc8ca7e4c8f [no route 12]",
                "09:01:02.003 ERROR t.s.Travel#5 TraceID: 0abbccdd1 [no route 7]",
            ),
            ("order 0198-ab12-77 failed", "order 77aa-0-1 failed"),
            ("took 1.5s", "took 12.25s"),
            ("user deadbeefcafe gone", "user abcdefabcdef gone"),
        ] {
            assert_eq!(shape(one), shape(other));
        }
        assert_ne!(shape("order failed"), shape("order shipped"));
        assert!(shape(&"long ".repeat(1000)).len() <= SHAPE_BYTES + 8);
    }
}
