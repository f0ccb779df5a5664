//! Documents cut into passages: at headings and paragraphs, so that each says something by itself.

use super::Chunk;

/// About how many bytes a passage has, and how many at most.
const WANTED: usize = 1_200;
const MOST: usize = 2_000;
/// Most bytes of the headings that a passage stands under.
const HEADING_BYTES: usize = 300;

/// Cuts a text. Headings are those of Markdown; text without any is cut by its paragraphs.
#[must_use]
pub fn chunks_of(text: &str) -> Vec<Chunk> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut cutter = Cutter::default();
    let mut in_code = false;
    for line in text.split_inclusive('\n') {
        let bare = line.trim();
        if bare.starts_with("```") || bare.starts_with("~~~") {
            in_code = !in_code;
        }
        match heading_of(bare).filter(|_| !in_code) {
            Some((level, title)) => {
                cutter.flush();
                cutter.headings.truncate(level - 1);
                cutter.headings.resize(level - 1, String::new());
                cutter.headings.push(title.to_owned());
            }
            None => cutter.line(line),
        }
    }
    cutter.flush();
    cutter.chunks
}

fn heading_of(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let title = line.get(level..)?.strip_prefix(' ')?.trim().trim_end_matches('#').trim();
    ((1..=6).contains(&level) && !title.is_empty()).then_some((level, title))
}

#[derive(Default)]
struct Cutter {
    headings: Vec<String>,
    text: String,
    chunks: Vec<Chunk>,
}

impl Cutter {
    fn line(&mut self, line: &str) {
        // A paragraph ends, and there is enough.
        if line.trim().is_empty() && self.text.len() >= WANTED {
            self.flush();
            return;
        }
        if self.text.len() + line.len() > MOST {
            self.flush();
        }
        let mut rest = line;
        while rest.len() > MOST {
            let at = cut_before(rest, MOST);
            self.text.push_str(&rest[..at]);
            self.flush();
            rest = &rest[at..];
        }
        self.text.push_str(rest);
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        let text = text.trim_matches('\n').trim_end();
        if text.trim().is_empty() {
            return;
        }
        let headings: Vec<_> = self.headings.iter().filter(|heading| !heading.is_empty()).map(String::as_str).collect();
        let heading = kernel::excerpt(&headings.join(" > "), HEADING_BYTES);
        self.chunks.push(Chunk { heading, text: text.to_owned() });
    }
}

/// Where to cut a line that has no end: after a space, if there is one in its second half.
fn cut_before(text: &str, most: usize) -> usize {
    let mut at = most;
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    text[..at].rfind(' ').filter(|space| *space > most / 2).map_or(at, |space| space + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passages_stand_under_their_headings() {
        let text = "Intro.\n\n# Pay\nOn the 5th.\n\n## Late\n```\n# no heading\n```\nCall Ann.\n# Leave\nAsk first.\n";
        let chunks = chunks_of(text);
        let shown: Vec<_> = chunks.iter().map(|chunk| (chunk.heading.as_str(), chunk.text.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("", "Intro."),
                ("Pay", "On the 5th."),
                ("Pay > Late", "```\n# no heading\n```\nCall Ann."),
                ("Leave", "Ask first."),
            ]
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_passage_is_too_long(text in "([a-zé ]{0,300}\n{0,3}){0,40}") {
            let chunks = chunks_of(&text);
            prop_assert!(chunks.iter().all(|chunk| chunk.text.len() <= MOST));
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(chunks.iter().map(|chunk| letters(&chunk.text)).collect::<String>(), letters(&text));
        }
    }
}
