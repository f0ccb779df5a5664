//! Finding known secrets in texts and in streams.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};

use super::forms;

/// Searches for every form of every known secret at once.
#[derive(Default)]
pub(super) struct Finder {
    /// None as long as there is nothing to search for.
    forms: Option<AhoCorasick>,
    /// The forms themselves, and the secret of each, in the order of the automaton's patterns.
    patterns: Vec<(Vec<u8>, String)>,
    longest: usize,
}

impl Finder {
    pub fn new(values: &BTreeMap<String, Vec<String>>) -> Self {
        let mut patterns: Vec<(Vec<u8>, String)> = Vec::new();
        for (name, values) in values {
            let forms = values.iter().flat_map(|value| forms::of(value));
            patterns.extend(forms.map(|form| (form, name.clone())));
        }
        let longest = patterns.iter().map(|(form, _)| form.len()).max().unwrap_or(0);
        // Leftmost and longest: a secret within a secret is covered by the outer one.
        let built =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns.iter().map(|(form, _)| form));
        let forms = built.inspect_err(|error| tracing::error!(%error, "secrets can't be searched for")).ok();
        Self { forms: forms.filter(|_| longest > 0), patterns, longest }
    }

    /// The text with the name of each secret in its place.
    pub fn named<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let Some(forms) = &self.forms else { return Cow::Borrowed(text) };
        let mut shown = String::new();
        let mut from = 0;
        for found in forms.find_iter(text) {
            // A form is a text, so it begins and ends between characters.
            shown += &text[from..found.start()];
            shown += &format!("[secret {}]", self.patterns[found.pattern().as_usize()].1);
            from = found.end();
        }
        if from == 0 {
            return Cow::Borrowed(text);
        }
        shown += &text[from..];
        Cow::Owned(shown)
    }

    /// Overwrites each secret in place.
    pub fn mask(&self, bytes: &mut [u8]) {
        let Some(forms) = &self.forms else { return };
        let found: Vec<_> = forms.find_iter(&*bytes).map(|found| found.range()).collect();
        for range in found {
            bytes[range].fill(b'*');
        }
    }

    /// The largest cut up to `length` that goes through no secret of `bytes`, whole or just begun at their end.
    pub fn safe_cut(&self, bytes: &[u8], length: usize) -> usize {
        let Some(forms) = &self.forms else { return length };
        let begun = self.begun(bytes);
        let cut = length.min(begun);
        // One that was found can't begin in what is held back, so this is settled in one go.
        let through = forms.find_iter(bytes).find(|found| found.start() < cut && cut < found.end());
        through.map_or(cut, |found| found.start())
    }

    /// Where at the end of `bytes` a secret may have begun of which the rest is not there yet.
    fn begun(&self, bytes: &[u8]) -> usize {
        let first = bytes.len().saturating_sub(self.longest.saturating_sub(1));
        let may_begin = |at: &usize| {
            let rest = &bytes[*at..];
            self.patterns.iter().any(|(form, _)| form.len() > rest.len() && form.starts_with(rest))
        };
        (first..bytes.len()).find(may_begin).unwrap_or(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn finder(values: &[&str]) -> Finder {
        let values = values.iter().enumerate().map(|(i, value)| (format!("S{i}"), vec![(*value).to_owned()]));
        Finder::new(&values.collect())
    }

    #[test]
    fn every_form_is_named() {
        let finder = finder(&["p@ss w/rd\"1"]);
        for text in
            ["p@ss w/rd\"1", "p%40ss%20w%2Frd%221", "p%40ss+w%2frd%221", "p@ss w\\/rd\\\"1", "7040737320772f72642231"]
        {
            assert_eq!(finder.named(&format!("<{text}>")), "<[secret S0]>", "{text}");
        }
        assert!(matches!(finder.named("nothing"), Cow::Borrowed("nothing")));
    }

    #[test]
    fn a_cut_goes_through_no_secret() {
        let finder = finder(&["abcdefgh", "efghijklmn"]);
        assert_eq!(finder.safe_cut(b"xx abcdefgh yy", 14), 14);
        assert_eq!(finder.safe_cut(b"xx abcdefgh yy", 6), 3);
        assert_eq!(finder.safe_cut(b"xx abcd", 7), 3, "it may have begun");
        assert_eq!(finder.safe_cut(b"xx abxy", 7), 7);
        assert_eq!(finder.safe_cut(b"abcdefgh", 8), 0, "its end may be the begin of another");
    }

    proptest! {
        #[test]
        fn no_secret_comes_through_however_a_stream_is_cut(
            parts in prop::collection::vec(prop_oneof!["[a-d]{0,9}", Just("abcdabcd".to_owned()), Just("bcdabcdabb".to_owned())], 0..12),
            step in 1_usize..17,
        ) {
            let finder = finder(&["abcdabcd", "bcdabcdabb"]);
            let stream = parts.concat().into_bytes();
            let (mut out, mut from) = (Vec::new(), 0);
            let mut end = 0;
            while end < stream.len() {
                end = (end + step).min(stream.len());
                let buffer = &stream[from..end];
                let cut = if end == stream.len() { buffer.len() } else { finder.safe_cut(buffer, buffer.len()) };
                let mut frame = buffer[..cut].to_vec();
                finder.mask(&mut frame);
                out.extend(frame);
                from += cut;
            }
            prop_assert_eq!(out.len(), stream.len());
            for secret in [b"abcdabcd".as_slice(), b"bcdabcdabb"] {
                prop_assert!(!out.windows(secret.len()).any(|part| part == secret));
            }
        }
    }
}
