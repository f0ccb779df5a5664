//! Where tools say that something is wrong: file, line, column and message, as compilers and linters write them.
//!
//! Looked for only in what is shown or asked for, never on every line.

use regex::{Captures, Regex, RegexBuilder};
use serde::Serialize;

use crate::packs::{FindingPart, FindingRule};

/// Most memory of a pattern.
const PATTERN_BYTES: usize = 1 << 20;
/// Longest line that is looked at, and longest message that is kept.
const LINE_BYTES: usize = 4096;
const MESSAGE_BYTES: usize = 400;
/// A message whose place has not come within so many lines has none.
const PATIENCE: usize = 3;

/// Something that a tool found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The file, as the tool wrote it.
    pub file: String,
    /// From 1.
    pub line: Option<u32>,
    /// As the tool counts.
    pub column: Option<u32>,
    /// `error`, `warning` and the like, in the tool's word.
    pub severity: Option<String>,
    /// What it said.
    pub message: String,
    /// Which of the given lines said it, from 0.
    pub at: usize,
}

impl Found {
    /// `file:line:column`, as far as it is known.
    #[must_use]
    pub fn place(&self) -> String {
        let number = |number: Option<u32>| number.map(|number| format!(":{number}")).unwrap_or_default();
        format!("{}{}{}", self.file, number(self.line), number(self.line.and(self.column)))
    }
}

struct Rule {
    regex: Regex,
    only: Option<FindingPart>,
}

/// Finds them.
#[derive(Default)]
pub(crate) struct Finder(Vec<Rule>);

impl Finder {
    /// Compiles rules; the first that fits a line counts.
    pub(crate) fn new(rules: &[&FindingRule], problems: &mut Vec<String>) -> Self {
        let compile = |rule: &&FindingRule| {
            let regex = RegexBuilder::new(&rule.pattern).size_limit(PATTERN_BYTES).build();
            regex
                .map(|regex| Rule { regex, only: rule.only })
                .inspect_err(|error| problems.push(format!("a pattern for findings can't be used: {error}")))
                .ok()
        };
        Self(rules.iter().filter_map(compile).collect())
    }

    /// What is found in these lines, in their order.
    pub(crate) fn find<'l>(&self, lines: impl IntoIterator<Item = &'l str>) -> Vec<Found> {
        let mut search = Search::default();
        for (at, line) in lines.into_iter().enumerate() {
            let line = &line[..line.floor_char_boundary(LINE_BYTES)];
            let fitting = self.0.iter().find_map(|rule| Some((rule, rule.regex.captures(line)?)));
            if let Some((rule, groups)) = fitting {
                search.take(rule.only, &groups, at);
            }
        }
        search.found
    }
}

#[derive(Default)]
struct Search {
    found: Vec<Found>,
    /// The file that lines without one are about.
    file: Option<String>,
    /// A message whose place is to come, and its line.
    message: Option<(Option<String>, String, usize)>,
    /// A place whose message is to come, and its line.
    place: Option<(String, Option<u32>, Option<u32>, usize)>,
}

impl Search {
    fn take(&mut self, only: Option<FindingPart>, groups: &Captures<'_>, at: usize) {
        let text = |name| groups.name(name).map(|group| group.as_str().trim().to_owned());
        let message = || shortened(&text("message").unwrap_or_default());
        match only {
            Some(FindingPart::Nothing) => {}
            Some(FindingPart::File) => self.file = text("file"),
            Some(FindingPart::Where) => {
                let number = |name| text(name).and_then(|text| text.parse().ok());
                let file = text("file").unwrap_or_default();
                self.place = Some((file, number("line"), number("col"), at));
            }
            Some(FindingPart::Message) => self.take_message(text("severity"), message(), at),
            Some(FindingPart::Place) => {
                let pending = self.message.take().filter(|(.., said)| at - said <= PATIENCE);
                if let Some((severity, message, said)) = pending {
                    self.add(groups, severity, message, said);
                }
            }
            None => self.add(groups, text("severity"), message(), at),
        }
    }

    /// A message, of the place before or of the one to come.
    fn take_message(&mut self, severity: Option<String>, message: String, at: usize) {
        match self.place.take().filter(|(.., said)| at - said <= PATIENCE) {
            Some((file, line, column, _)) => self.found.push(Found { file, line, column, severity, message, at }),
            None => self.message = Some((severity, message, at)),
        }
    }

    fn add(&mut self, groups: &Captures<'_>, severity: Option<String>, message: String, at: usize) {
        let number = |name| groups.name(name).and_then(|group| group.as_str().trim().parse().ok());
        let file = groups.name("file").map(|group| group.as_str().trim().to_owned()).or_else(|| self.file.clone());
        let Some(file) = file.filter(|file| !file.is_empty()) else { return };
        self.found.push(Found { file, line: number("line"), column: number("col"), severity, message, at });
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MESSAGE_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder() -> Finder {
        let rules: Vec<FindingRule> = serde_saphyr::from_str(
            r#"
- { pattern: '^\s*(?P<severity>error|warning)(?:\[\w+\])?: (?P<message>.+)$', only: message }
- { pattern: '^\s*--> (?P<file>[^:]+):(?P<line>\d+):(?P<col>\d+)$', only: place }
- { pattern: '^(?P<file>[^\s:]+):(?P<line>\d+):(?P<col>\d+): (?P<message>.+)$' }
- { pattern: '^\s+(?P<line>\d+):(?P<col>\d+)\s+(?P<severity>error|warning)\s+(?P<message>.+)$' }
- { pattern: '^(?P<file>/\S+\.\w+)$', only: file }
"#,
        )
        .unwrap();
        let mut problems = Vec::new();
        let finder = Finder::new(&rules.iter().collect::<Vec<_>>(), &mut problems);
        assert_eq!(problems, [""; 0]);
        finder
    }

    #[test]
    fn findings_on_one_line_in_two_and_under_a_file_are_read() {
        let text = "error[E0308]: mismatched types\n --> src/lib.rs:3:5\n  |\na.go:1:2: vet: bad\n/x/y.js\n  2:10  error  unused\n --> nowhere:1:1";
        let found = finder().find(text.lines());
        let shown: Vec<(String, &str, usize)> =
            found.iter().map(|found| (found.place(), found.message.as_str(), found.at)).collect();
        let wanted =
            [("src/lib.rs:3:5", "mismatched types", 0), ("a.go:1:2", "vet: bad", 3), ("/x/y.js:2:10", "unused", 5)];
        assert_eq!(shown, wanted.map(|(place, message, at)| (place.to_owned(), message, at)));
    }
}
