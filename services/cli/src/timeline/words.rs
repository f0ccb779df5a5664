//! Amounts as people say them.

use jiff::{SignedDuration, Timestamp};

/// A span of time: `12ms`, `7.6s`, `2m 03s`, `1h 02m`, `3d 4h`.
pub fn span(span: SignedDuration) -> String {
    let millis = span.as_millis().max(0);
    // Rounded to what is shown, so that a second that lacks a millisecond is a second.
    let (tenths, seconds, minutes) = ((millis + 50) / 100, (millis + 500) / 1000, (millis + 30_000) / 60_000);
    match millis {
        0..950 => format!("{millis}ms"),
        950..59_950 => format!("{}.{}s", tenths / 10, tenths % 10),
        59_950..3_599_500 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3_599_500..86_370_000 => format!("{}h {:02}m", minutes / 60, minutes % 60),
        _ => format!("{}d {}h", (minutes + 30) / 1440, (minutes + 30) % 1440 / 60),
    }
}

/// A time relative to a beginning, in a fixed width as far as possible: `+7.6s`.
pub fn since(at: Timestamp, start: Timestamp) -> String {
    let passed = at.duration_since(start);
    let seconds = passed.as_secs().max(0);
    match seconds {
        0..100 => format!("+{}.{:02}s", seconds, passed.as_millis().max(0) % 1000 / 10),
        _ => format!("+{}", span(passed).replace(' ', "")),
    }
}

/// How long ago.
pub fn ago(at: Timestamp) -> String {
    let passed = Timestamp::now().duration_since(at);
    if passed.as_secs() < 1 { "just now".to_owned() } else { format!("{} ago", span(passed)) }
}

/// A count with thousands set apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in bytes.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
pub fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number} B"),
        1024..1_048_576 => format!("{:.1} KiB", number as f64 / 1024.0),
        _ => format!("{:.1} MiB", number as f64 / 1_048_576.0),
    }
}

/// Millionths of a dollar.
#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
pub fn dollars(micro: u64) -> String {
    format!("${:.4}", micro as f64 / 1e6)
}

/// `1 line`, `2 lines`.
pub fn many(number: u64, one: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {one}{s}", count(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_said() {
        for (millis, text) in [
            (-5, "0ms"),
            (12, "12ms"),
            (7_650, "7.7s"),
            (2_980, "3.0s"),
            (59_960, "1m 00s"),
            (86_390_000, "1d 0h"),
            (123_000, "2m 03s"),
            (3_720_000, "1h 02m"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(span(SignedDuration::from_millis(millis)), text);
        }
    }

    #[test]
    fn times_are_relative_to_the_start() {
        let start = Timestamp::from_second(1_000).unwrap();
        let at = |millis| start.checked_add(SignedDuration::from_millis(millis)).unwrap();
        assert_eq!(since(at(0), start), "+0.00s");
        assert_eq!(since(at(7_654), start), "+7.65s");
        assert_eq!(since(at(123_000), start), "+2m03s");
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!((count(7), count(1234), count(1_234_567)), ("7".into(), "1,234".into(), "1,234,567".into()));
        assert_eq!((bytes(12), bytes(2048), bytes(3 << 20)), ("12 B".into(), "2.0 KiB".into(), "3.0 MiB".into()));
        assert_eq!((many(1, "line"), many(2, "line")), ("1 line".into(), "2 lines".into()));
        assert_eq!(dollars(12_345), "$0.0123");
    }
}
