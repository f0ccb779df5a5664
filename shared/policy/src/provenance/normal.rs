//! One form for what means the same, and finding a value as a whole within a text.

use unicode_normalization::UnicodeNormalization as _;

/// Characters that a person reading the text would not see.
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t' | '\r'))
        || matches!(c,
            '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF9}'..='\u{FFFB}'
            | '\u{E0000}'..='\u{E0FFF}')
}

/// A text that is looked in: compatibility forms unified, without what can't be seen, white space as single blanks.
pub fn text(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    for c in text.nfkc().filter(|c| !is_hidden(*c)) {
        if !c.is_whitespace() {
            normal.push(c);
        } else if !normal.is_empty() && !normal.ends_with(' ') {
            normal.push(' ');
        }
    }
    normal.truncate(normal.trim_end().len());
    normal
}

/// A normalised text of a person's with a blank between sentences that they ran together: `see example.com.They say so`. Only
/// where the word has no other capital letter, and the next sentence goes on behind its first word: who writes a host in
/// capital letters writes more than the last part so.
pub fn sentences(text: &str) -> String {
    let parted = text.split(' ').collect::<Vec<_>>();
    let count = parted.len();
    let word = |(at, word): (usize, &&str)| {
        let split = word.rsplit_once('.').filter(|(before, first)| {
            let mut letters = first.chars();
            at + 1 < count
                && letters.next().is_some_and(char::is_uppercase)
                && first.chars().count() >= SENTENCE
                && letters.all(char::is_lowercase)
                && before.chars().any(char::is_alphanumeric)
                && !before.chars().any(char::is_uppercase)
        });
        split.map_or_else(|| (*word).to_owned(), |(before, first)| format!("{before}. {first}"))
    };
    parted.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// Letters of the first word of a sentence from which on it is no last part of a host, such as `Uk`.
const SENTENCE: usize = 4;

/// A value that is looked for, if it is what it looks like. One that holds hidden characters or compatibility forms is not:
/// what the tool would be given then is not what the operator wrote, however much it looks like it. (A letter of another
/// script that looks the same is another letter to begin with, and is not found.)
pub fn value(value: &str) -> Option<String> {
    let plain = !value.chars().any(is_hidden) && value.nfkc().eq(value.nfc());
    let normal = text(value);
    (plain && !normal.is_empty()).then_some(normal)
}

/// Whether capital and small letters make no difference to what the value means: mail addresses, hosts, names.
pub fn is_caseless(value: &str) -> bool {
    let address = value.contains('@') && !value.contains(['/', ' ']);
    let host = !value.contains(['/', ' ']) && value.contains('.') && !value.contains('_');
    let name = value.chars().all(|c| c.is_alphabetic() || matches!(c, ' ' | '\'' | '-' | '.'));
    address || host || name
}

/// A URL or mail address without what may be left out when people write it.
pub fn bare(value: &str) -> &str {
    let scheme = SCHEMES.iter().find(|scheme| starts_with(value, scheme));
    let rest = scheme.map_or(value, |scheme| &value[scheme.len()..]);
    // `https://ann@example.com` is another thing than the mail address in it.
    let value = if value.contains("//") && rest.contains('@') { value } else { rest };
    value.strip_suffix('/').filter(|bare| !bare.is_empty()).unwrap_or(value)
}

/// Schemes that people leave out.
const SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

fn starts_with(text: &str, start: &str) -> bool {
    text.as_bytes().get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
}

/// Whether `text` holds `value` as a whole: not as a part of a longer word, address, path or number.
pub fn holds(text: &str, value: &str) -> bool {
    text.match_indices(value).any(|(at, _)| begins(&text[..at]) && ends(&text[at + value.len()..]))
}

/// Characters that hold words, addresses, paths and numbers together.
fn is_inner(c: char) -> bool {
    c.is_alphanumeric()
        || matches!(c, '.' | '_' | '-' | '@' | '/' | '\\' | ':' | '+' | '%' | '#' | '?' | '=' | '&' | '~' | '$' | '*')
}

/// Whether a value may begin behind `before`.
fn begins(before: &str) -> bool {
    let before = SCHEMES
        .iter()
        .find(|scheme| ends_with(before, scheme))
        .map_or(before, |scheme| &before[..before.len() - scheme.len()]);
    // `#general` and `@ann` name the channel and the person, `$20` the amount.
    let before = before.strip_suffix(['#', '@', '$', '€', '£', '*', ':', '=']).unwrap_or(before);
    !before.ends_with(is_inner)
}

fn ends_with(text: &str, end: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= end.len() && bytes[bytes.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
}

/// Whether a value may end in front of `after`.
fn ends(after: &str) -> bool {
    // Marks that end a sentence, and the slash at the end of an address, stand behind the value if nothing goes on.
    let rest = after.trim_start_matches(['.', ':', '!', '?', '/', '*', '-']);
    let marks = after.len() - rest.len();
    if marks == 0 { !after.starts_with(is_inner) } else { !rest.starts_with(is_inner) && marks <= 3 }
}
