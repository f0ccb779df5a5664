//! What a text refers to: addresses, links, and numbers of accounts. A text may be worded by anybody, but where it sends
//! its reader, and whose numbers it gives away, matters.

use super::normal;

/// Endings that are more often files than hosts.
const FILE_ENDINGS: [&str; 26] = [
    "txt", "md", "pdf", "doc", "docx", "xls", "xlsx", "ppt", "pptx", "csv", "json", "yaml", "yml", "toml", "xml",
    "html", "rs", "py", "js", "ts", "sh", "log", "png", "jpg", "gif", "zip",
];
/// Digits from which on a word is the number of something: an account, a card, a telephone. Postal codes have fewer.
const MANY_DIGITS: usize = 8;
/// Digits from which on a word of digits and letters is.
const MIXED_DIGITS: usize = 6;
/// Longer words of letters and digits are keys or encoded text.
const LONG_WORD: usize = 24;
/// References that are looked for in one text.
const MAX: usize = 200;

/// A text as references are looked for in it: full stops of other scripts end the labels of hosts too.
pub fn plain(text: &str) -> String {
    normal::text(text).replace(['\u{3002}', '\u{FF61}'], ".")
}

/// The references in a text, and whether these are all.
pub fn references(text: &str) -> (Vec<&str>, bool) {
    let mut found: Vec<_> = words(text).filter(|word| refers(word)).take(MAX + 1).collect();
    let complete = found.len() <= MAX;
    found.truncate(MAX);
    (found, complete)
}

/// What stands between blanks, quotes and brackets, without the marks around it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let separators = |c: char| {
        c.is_whitespace()
            || matches!(c, '"' | '\'' | '`' | '<' | '>' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | ',' | ';')
    };
    let words = text.split(separators).map(|word| word.trim_end_matches(['.', ':', '!', '?', '*']));
    words.map(|word| word.trim_start_matches(['*', ':', '='])).filter(|word| !word.is_empty())
}

/// Where a text leads: links, and hosts with something behind them. A host by itself is one only if the argument is named for it
/// (`named`): many words with dots in them are something else.
pub fn links(text: &str, named: bool) -> Vec<&str> {
    words(text).filter(|word| leads(word, named)).collect()
}

fn leads(word: &str, named: bool) -> bool {
    let begins = |start: &str| word.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
    let goes_on = || word.contains(['/', '?', '#', ':']);
    word.contains("://") || begins("//") || begins("www.") || named || (is_host(word) && goes_on())
}

fn refers(word: &str) -> bool {
    word.contains("://")
        || word.starts_with("mailto:")
        || is_address(word)
        || is_host(word)
        || is_number_of_something(word)
}

fn is_address(word: &str) -> bool {
    word.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.'))
}

fn is_host(word: &str) -> bool {
    let (host, path) = word.split_once(['/', '?', '#']).map_or((word, false), |(host, _)| (host, true));
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    let Some((name, last)) = host.rsplit_once('.') else { return false };
    let letters = last.chars().count() >= 2 && last.chars().all(char::is_alphabetic);
    let file = !path && !host.starts_with("www.") && FILE_ENDINGS.contains(&last.to_ascii_lowercase().as_str());
    let label = name.rsplit('.').next().unwrap_or_default();
    letters && !file && label.chars().any(char::is_alphanumeric)
}

fn is_number_of_something(word: &str) -> bool {
    if is_time(word) {
        return false;
    }
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let letters = word.chars().filter(|c| c.is_alphabetic()).count();
    digits >= MANY_DIGITS || (digits >= MIXED_DIGITS && letters > 0) || (letters + digits >= LONG_WORD && digits > 0)
}

/// Dates and times have many digits, and say nothing that a text could not.
fn is_time(word: &str) -> bool {
    word.parse::<jiff::civil::Date>().is_ok() || word.parse::<jiff::civil::DateTime>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_addresses_and_numbers_are_seen_and_plain_words_are_not() {
        for word in [
            "www.secure-systems-252.com",
            "https://x.y/z",
            "ann@example.com",
            "evil.example/a?b",
            "4237-4252-7456-2574",
            "HGK137803",
            "US133000000121212121212",
            "aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ1",
            "evil.xyz",
        ] {
            assert_eq!(references(&format!("see ({word}).")).0, [word]);
        }
        for word in
            ["report.pdf", "2024-05-15", "75002", "160-0023", "e.g.", "1.5", "10:30", "v1.2.3", "2024-05-15T10:00"]
        {
            assert!(references(word).0.is_empty(), "{word}");
        }
    }

    #[test]
    fn too_many_are_told() {
        assert!(!references(&"a@b.example ".repeat(MAX + 1)).1);
    }
}
