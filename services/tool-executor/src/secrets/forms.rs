//! The forms in which a secret may come back: as it is, and as programs write it on its way.

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Shorter values are not searched for: they would be found everywhere.
const MIN_VALUE: usize = 6;
/// Longer ones are no secrets, and would keep a stream waiting.
const MAX_VALUE: usize = 4 * 1024;
/// Shorter encoded forms are not searched for.
const MIN_FORM: usize = 8;
/// A line of a secret of several lines that is long enough to be one by itself.
const MIN_LINE: usize = 16;

/// All forms of a value that are worth searching for, each once.
pub(super) fn of(value: &str) -> Vec<Vec<u8>> {
    if !(MIN_VALUE..=MAX_VALUE).contains(&value.len()) {
        return Vec::new();
    }
    let mut forms = vec![value.as_bytes().to_vec()];
    let encoded = json(value).into_iter().chain(percent(value)).chain(hexadecimal(value)).chain(base64(value));
    forms.extend(encoded.filter(|form| form.len() >= MIN_FORM).map(String::into_bytes));
    forms.extend(lines(value));
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// As in a JSON text, with and without escaped slashes.
fn json(value: &str) -> [String; 2] {
    let quoted = serde_json::Value::from(value).to_string();
    let plain = quoted[1..quoted.len() - 1].to_owned();
    let slashes = plain.replace('/', "\\/");
    [plain, slashes]
}

/// As in a URL: whatever is not plain in upper and in lower case, and a space as `%20` or `+`.
fn percent(value: &str) -> [String; 4] {
    let encode = |upper: bool, plus: bool| {
        value.bytes().fold(String::new(), |mut text, byte| {
            match byte {
                b' ' if plus => text.push('+'),
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') => {
                    text.push(char::from(byte));
                }
                byte if upper => text += &format!("%{byte:02X}"),
                byte => text += &format!("%{byte:02x}"),
            }
            text
        })
    };
    [encode(true, false), encode(false, false), encode(true, true), encode(false, true)]
}

fn hexadecimal(value: &str) -> [String; 2] {
    let lower = value.bytes().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let upper = lower.to_ascii_uppercase();
    [lower, upper]
}

/// As within a longer text in base64: for each place that the value can have in a group of three bytes, the characters that
/// do not depend on what stands around it.
fn base64(value: &str) -> Vec<String> {
    let inside = |alphabet: &GeneralPurpose, before: usize| {
        let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(value.bytes()).collect();
        let text = alphabet.encode(&bytes);
        let (from, to) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
        text.get(from..to).unwrap_or_default().to_owned()
    };
    [STANDARD_NO_PAD, URL_SAFE_NO_PAD]
        .iter()
        .flat_map(|alphabet| (0..3).map(move |before| inside(alphabet, before)))
        .collect()
}

/// Of a value of several lines, such as a key: each line that could be shown by itself. Its frame is no secret.
fn lines(value: &str) -> impl Iterator<Item = Vec<u8>> {
    let several = value.contains('\n');
    let lines = value.lines().map(str::trim).filter(move |_| several);
    lines.filter(|line| line.len() >= MIN_LINE && !line.starts_with("-----")).map(|line| line.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_wherever_it_stands_in_base64() {
        let value = "hunter2-s3cr3t?/\u{fc}";
        let forms = of(value);
        for around in ["", "a", "ab", "user:", "Basic x"] {
            for behind in ["", "z", "zz"] {
                for alphabet in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                    let text = alphabet.encode(format!("{around}{value}{behind}"));
                    let found = forms.iter().any(|form| text.as_bytes().windows(form.len()).any(|part| part == form));
                    assert!(found, "{text}");
                }
            }
        }
    }

    #[test]
    fn what_is_too_short_or_too_long_has_no_form() {
        assert!(of("12345").is_empty());
        assert!(of(&"x".repeat(MAX_VALUE + 1)).is_empty());
        assert!(of("123456").len() > 1);
    }

    #[test]
    fn the_lines_of_a_key_count_by_themselves() {
        let key = "-----BEGIN KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ\nshort\n-----END KEY-----\n";
        let forms = of(key);
        assert!(forms.contains(&b"MC4CAQAwBQYDK2VwBCIEIJ".to_vec()));
        assert!(!forms.iter().any(|form| form.as_slice() == b"short" || form.as_slice() == b"-----BEGIN KEY-----"));
    }
}
