//! What the reader of YAML says about a file, with what to do about it.

use serde_saphyr::{Error, UserMessageFormatter};

/// Words that are longer are not looked for among others.
const LONGEST: usize = 64;

/// What people write where the parser's own words name no remedy.
const REMEDIES: [(&str, &str); 4] = [
    ("found a tab", "indent with spaces"),
    ("tabs", "indent with spaces"),
    (
        "mapping values are not allowed",
        "put a text with a `: ` in it into quotes, or below its field after a `|`, and indent fields of one kind alike",
    ),
    ("did not find expected", "a bracket, a quote or an indentation is not closed before this place"),
];

/// What is wrong, without the place where.
pub(super) fn of(error: &Error) -> String {
    match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => unknown("field", field, expected),
        Error::SerdeUnknownVariant { variant, expected, .. } => unknown("word", variant, expected),
        Error::SerdeMissingField { field, .. } => format!("the field `{field}` is missing: add it"),
        Error::Eof { .. } => "the file is empty, or ends too early".to_owned(),
        Error::Unexpected { expected, .. } => shape(expected),
        error => {
            let text = error.render_with_formatter(&UserMessageFormatter);
            let text = without_place(&text);
            match REMEDIES.iter().find(|(said, _)| text.contains(said)) {
                Some((_, remedy)) => format!("{text}: {remedy}"),
                None => text.to_owned(),
            }
        }
    }
}

fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let next = match nearest(word, known) {
        Some(meant) => format!("did you mean `{meant}`? There are"),
        None => "there are".to_owned(),
    };
    // What stands in a file may hold characters that a terminal would obey.
    format!("unknown {what} `{}`: {next} {}", word.escape_debug(), known.join(", "))
}

/// What should stand there, in words of people who write YAML.
fn shape(expected: &str) -> String {
    match expected {
        "sequence start" => "a list is expected here: `[one, another]`, or lines that begin with `- `".to_owned(),
        "mapping start" => "fields are expected here: `{ name: value }`, or indented lines of `name: value`".to_owned(),
        other if other.contains("scalar") => format!("a single value is expected here ({other})"),
        other => format!("expected {other}"),
    }
}

/// The reader says the place once more at one end of its message.
fn without_place(text: &str) -> &str {
    text.rsplit_once(" at line ").map_or(text, |(message, _)| message).trim()
}

/// The word that was probably meant: two letters off at most, one if it is short.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.chars().count() > LONGEST {
        return None;
    }
    let (apart, meant) = known.iter().map(|known| (distance(word, known), *known)).min()?;
    let off = if meant.chars().count() < 5 { 1 } else { 2 };
    (apart <= off).then_some(meant)
}

/// How many letters have to be put in, taken out or changed to make one word of the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut left = index + 1;
        let mut above_left = std::mem::replace(&mut row[0], left);
        for (cell, other) in row[1..].iter_mut().zip(to.chars()) {
            let changed = above_left + usize::from(letter != other);
            above_left = *cell;
            left = changed.min(above_left + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_is_guessed() {
        let known = ["on", "where", "start", "triggers", "model"];
        for (typed, meant) in [
            ("trigger", Some("triggers")),
            ("modle", Some("model")),
            ("wehre", Some("where")),
            ("om", Some("on")),
            ("event", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, &known), meant, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(100_000), &known), None);
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn a_distance_counts_letters() {
        for (from, to, apart) in [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ä", "a", 1)]
        {
            assert_eq!(distance(from, to), apart, "{from} {to}");
        }
    }
}
