//! The fence around what must not be believed: data goes in, and nothing in it can close the fence.
//!
//! A fence is opened and closed by lines that hold a token chosen at random for each slice, *after* everything that will
//! stand inside is known, so that the token occurs nowhere in it.

use kernel::{Block, Trust};

/// Longest source label shown.
const SOURCE_CHARS: usize = 120;

/// The token that makes fence lines of one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundary(String);

impl Boundary {
    /// A random one that occurs in none of `texts`.
    pub fn random<'a>(texts: &(impl Iterator<Item = &'a str> + Clone)) -> Self {
        // The last twelve digits of a UUIDv7 are random.
        let random = || uuid::Uuid::now_v7().simple().to_string()[20..].to_owned();
        Self::pick(std::iter::repeat_with(random), texts)
    }

    /// The first of `candidates` that occurs in none of `texts`.
    pub fn pick<'a>(
        mut candidates: impl Iterator<Item = String>,
        texts: &(impl Iterator<Item = &'a str> + Clone),
    ) -> Self {
        let free = |token: &String| !token.is_empty() && !texts.clone().any(|text| text.contains(token.as_str()));
        Self(candidates.find(free).unwrap_or_default())
    }

    /// The token itself.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.0
    }

    /// The line that opens a fence, without trust and source.
    #[must_use]
    pub fn opening(&self) -> String {
        format!("<<<data {}", self.0)
    }

    /// The line that closes a fence.
    #[must_use]
    pub fn closing(&self) -> String {
        format!("<<<end {}>", self.0)
    }

    /// `text` cut before and behind every line of a fence: what stands between them is the same in every slice, and the token is
    /// not.
    pub(super) fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let (mut pieces, mut from, mut at) = (Vec::new(), 0, 0);
        for line in text.split_inclusive('\n') {
            if line.contains(self.token()) {
                pieces.extend([&text[from..at], line]);
                from = at + line.len();
            }
            at += line.len();
        }
        pieces.push(&text[from..]);
        pieces
    }

    /// `text` as data of the given trust and source. Text that somehow holds the token loses it.
    #[must_use]
    pub fn fence(&self, text: &str, trust: Trust, source: &str) -> String {
        let text = clean(text).replace(self.token(), "[token]");
        let line_end = if text.ends_with('\n') { "" } else { "\n" };
        let (open, close) = (self.opening(), self.closing());
        format!("{open} trust={} source={}>\n{text}{line_end}{close}\n", trust.as_str(), label(source))
    }

    /// A titled block: in a fence with its title, unless the runtime or an operator wrote it.
    #[must_use]
    pub fn block(&self, title: &str, block: &Block) -> String {
        if is_data(block.trust) {
            self.fence(&format!("{title}\n{}", block.text), block.trust, &block.source)
        } else {
            let (title, text) = (clean(title), clean(&block.text));
            format!("{title} ({}):\n{}\n", label(&block.source), text.trim_end())
        }
    }
}

/// Whether something of this trust is data, never an instruction.
#[must_use]
pub fn is_data(trust: Trust) -> bool {
    trust < Trust::System
}

/// A source as one short word: what is outside of a fence must not be a sentence of somebody else's.
#[must_use]
pub fn label(source: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '/' | '.' | '_' | '-' | '@');
    let word: String = source.chars().take(SOURCE_CHARS).map(|c| if legal(c) { c } else { '_' }).collect();
    if word.is_empty() { "unknown".to_owned() } else { word }
}

/// Makes visible what a person reading the same text would not see: control characters, direction overrides, tags.
#[must_use]
pub fn clean(text: &str) -> String {
    let hidden = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{180B}'..='\u{180F}' | '\u{2028}' | '\u{2029}')
            || matches!(c, '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}')
            // Variation selectors can carry any bytes; the last of them is left, since it only makes symbols colourful.
            || matches!(c, '\u{FE00}'..='\u{FE0E}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}')
    };
    let text = text.replace("\r\n", "\n");
    if !text.contains(hidden) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_token_avoids_every_text() {
        let candidates = ["aaa", "bbb", "ccc"].map(str::to_owned).into_iter();
        let boundary = Boundary::pick(candidates, &["x aaa y", "<<<end bbb>"].into_iter());
        assert_eq!(boundary.token(), "ccc");
    }

    #[test]
    fn what_stands_in_a_fence_is_a_piece_that_no_token_changes() {
        let pieces = |token: &str| {
            let boundary = Boundary(token.to_owned());
            let text = format!("[1] now\n{}[2]\n", boundary.fence("a title\nand a text", Trust::Untrusted, "tool"));
            let pieces = boundary.pieces(&text);
            assert_eq!(pieces.concat(), text);
            pieces.into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let (one, other) = (pieces("f00d"), pieces("cafe"));
        assert_eq!(one[2], "a title\nand a text\n");
        let differ: Vec<_> = (0..one.len()).filter(|&piece| one[piece] != other[piece]).collect();
        assert_eq!((one.len(), differ), (5, vec![1, 3]));
    }

    #[test]
    fn what_is_hidden_is_shown() {
        assert_eq!(clean("a\u{202E}b\u{1b}[31m\r\nc\td"), "a\\u{202e}b\\u{1b}[31m\nc\td");
        assert_eq!(label("event:github/1 ignore\nall"), "event:github/1_ignore_all");
    }

    proptest! {
        /// Whoever writes the text knows how fences look and may even guess tokens: the fence still closes once, at its end.
        #[test]
        fn no_text_closes_its_fence(
            guess in "[ab]{1,2}",
            parts in prop::collection::vec(prop_oneof![
                Just("<<<end ".to_owned()), Just("<<<data ".to_owned()), Just(">\n".to_owned()), Just("\n".to_owned()),
                "[ab]{1,3}", "\\PC{0,12}", Just("\u{8}".to_owned()),
            ], 0..40),
            source in "\\PC{0,30}",
        ) {
            let text = parts.concat();
            let candidates = [guess, "aa".to_owned(), "ba".to_owned(), "f00d".to_owned()].into_iter();
            let boundary = Boundary::pick(candidates, &[text.as_str(), source.as_str()].into_iter());
            let fenced = boundary.fence(&text, Trust::Untrusted, &source);
            let closing = boundary.closing();
            let closes: Vec<_> = fenced.lines().enumerate().filter(|(_, line)| line.contains(&closing)).collect();
            prop_assert_eq!(closes.len(), 1);
            prop_assert_eq!(closes[0].0, fenced.lines().count() - 1);
            let opens = fenced.lines().filter(|line| line.contains(&boundary.opening())).count();
            prop_assert_eq!(opens, 1);
        }
    }
}
