//! The rules of an agent for a tool, compiled: one pass over each line, behind a prefilter.

use std::time::Duration;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};
use kernel::agent::{AgentSpec, ObserveRule};
use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use crate::packs::{self, DEFAULT_PACK, PackRule};

/// How long a failure waits for more evidence unless the agent says otherwise.
const SETTLE: Duration = Duration::from_secs(2);
/// Most memory that one pattern may compile to, and all of them together.
const PATTERN_BYTES: usize = 1 << 20;
const SET_BYTES: usize = 64 << 20;
/// Most patterns of one agent for one tool; those beyond are named and left out.
const MAX_PATTERNS: usize = 500;
/// A time stamp that CI systems put in front of every line.
const START: &str = r"^(?:\[?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[:\s]\s*)?\s*";
/// Score of a rule of the agent itself, above every shipped one.
const OWN_SCORE: u8 = 100;
/// Score of lines that only follow from a failure.
const CONSEQUENCE_SCORE: u8 = 20;
/// Most bytes of a phase's name.
const PHASE_BYTES: usize = 60;

/// Bounds that hold for every agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of evidence in one observation.
    pub evidence_bytes: usize,
    /// Least time between two notes about progress.
    pub progress_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { evidence_bytes: 2048, progress_every: Duration::from_secs(10) }
    }
}

/// What a line says, by the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// It shows a failure.
    pub failure: Option<Failure>,
    /// It says that something went well.
    pub success: bool,
    /// How far it has come.
    pub progress: Option<Progress>,
}

/// A line that shows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which rule, by its place.
    pub rule: usize,
    /// How likely the line is the cause itself.
    pub score: u8,
    /// Worth waking for while the program runs.
    pub wakes: bool,
    /// Lines before it that explain it.
    pub before: usize,
    /// Lines after it that explain it.
    pub after: usize,
    /// Where in the line, roughly.
    pub at: usize,
}

/// How far the output says that the program is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// In the program's own words: outside text.
    pub phase: Option<String>,
    /// Of the whole.
    pub percent: Option<u8>,
}

enum Kind {
    Failure { score: u8, wakes: bool, before: u8, after: u8 },
    Ignore,
    Success,
    Progress(Box<Regex>),
}

/// Compiled rules. Cheap to share, never changed.
pub struct Rules {
    set: RegexSet,
    kinds: Vec<Kind>,
    names: Vec<String>,
    /// Words of which one is on every line that can match; none if there are patterns that need no word.
    prefilter: Option<AhoCorasick>,
    /// No output for this long needs a decision.
    pub silence: Option<Duration>,
    /// How long a failure waits for more evidence.
    pub settle: Duration,
    /// Bounds.
    pub limits: Limits,
    /// What could not be used, for people.
    pub problems: Vec<String>,
}

impl Rules {
    /// The rules that `agent` has for the output of `tool`; the default pack, if it has none.
    #[must_use]
    pub fn for_tool(agent: Option<&AgentSpec>, tool: &str, limits: Limits) -> Self {
        let rules = agent.map(|agent| agent.observe.as_slice()).unwrap_or_default();
        let fits = |rule: &&ObserveRule| match &rule.tool {
            Some(named) => named == tool,
            None => rule.service.is_none(),
        };
        Self::compile(&merge(rules.iter().filter(fits)), limits)
    }

    /// Compiles a rule. What cannot be used is named in [`Rules::problems`], the rest works: an observer that is half
    /// deaf is better than none.
    #[must_use]
    pub fn compile(rule: &ObserveRule, limits: Limits) -> Self {
        let mut builder = Builder::default();
        builder.own(rule);
        let named = if rule.packs.is_empty() { vec![DEFAULT_PACK.to_owned()] } else { rule.packs.clone() };
        let (found, unknown) = packs::resolve(&named);
        for name in unknown {
            let known = packs::names().collect::<Vec<_>>().join(", ");
            builder.problems.push(format!("there is no pack `{name}`; there are {known}"));
        }
        for (name, pack) in found {
            builder.pack(name, pack);
        }
        builder.build(rule, limits)
    }

    /// The name of a rule, such as `cargo.panic` or `failure[0]`.
    #[must_use]
    pub fn name(&self, rule: usize) -> &str {
        self.names.get(rule).map_or("", String::as_str)
    }

    /// What the line says.
    #[must_use]
    pub fn look(&self, line: &str) -> Hits {
        let word = match &self.prefilter {
            Some(words) => match words.find(line) {
                Some(word) => word.start(),
                None => return Hits::default(),
            },
            None => 0,
        };
        let matched = self.set.matches(line);
        let mut hits = Hits::default();
        let mut ignored = false;
        for rule in matched {
            match &self.kinds[rule] {
                Kind::Failure { score, wakes, before, after } => {
                    let (before, after) = (usize::from(*before), usize::from(*after));
                    let found = Failure { rule, score: *score, wakes: *wakes, before, after, at: word };
                    hits.failure = Some(stronger(hits.failure, found));
                }
                Kind::Ignore => ignored = true,
                Kind::Success => hits.success = true,
                Kind::Progress(regex) => {
                    hits.progress = hits.progress.or_else(|| progress(regex, line));
                }
            }
        }
        if ignored {
            // What the agent itself calls a failure is one, whatever it looks like.
            hits.failure = hits.failure.filter(|found| found.score == OWN_SCORE);
        }
        hits
    }
}

impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rules")
            .field("patterns", &self.names.len())
            .field("problems", &self.problems)
            .finish_non_exhaustive()
    }
}

/// A line that only follows from a failure shows no cause, whatever else it looks like; otherwise the higher score counts.
fn stronger(have: Option<Failure>, found: Failure) -> Failure {
    match have {
        None => found,
        Some(have) if have.score == OWN_SCORE || found.score == OWN_SCORE => {
            if have.score >= found.score {
                have
            } else {
                found
            }
        }
        Some(have) if have.score == CONSEQUENCE_SCORE => have,
        Some(_) if found.score == CONSEQUENCE_SCORE => found,
        Some(have) => {
            if have.score >= found.score {
                have
            } else {
                found
            }
        }
    }
}

fn progress(regex: &Regex, line: &str) -> Option<Progress> {
    let groups = regex.captures(line)?;
    let number = |name| groups.name(name).and_then(|found| found.as_str().parse::<f64>().ok());
    let percent = number("percent").or_else(|| {
        let (done, all) = (number("n")?, number("m")?);
        (all > 0.0 && done <= all).then(|| 100.0 * done / all)
    });
    let numbers = ["percent", "n", "m"].map(|name| groups.name(name).map(|found| found.range()));
    let phase = groups.iter().skip(1).flatten().find(|group| !numbers.contains(&Some(group.range())));
    let phase = phase.map(|group| crate::text::window(group.as_str().trim(), 0, PHASE_BYTES).into_owned());
    Some(Progress {
        phase,
        percent: percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent| percent as u8),
    })
}

/// Several rules for the same output as one.
fn merge<'a>(rules: impl Iterator<Item = &'a ObserveRule>) -> ObserveRule {
    rules.fold(ObserveRule::default(), |mut all, rule| {
        all.packs.extend(rule.packs.iter().cloned());
        all.failure.extend(rule.failure.iter().cloned());
        all.success.extend(rule.success.iter().cloned());
        all.progress.extend(rule.progress.iter().cloned());
        all.silence = all.silence.or(rule.silence);
        all.settle = all.settle.or(rule.settle);
        all
    })
}

#[derive(Default)]
struct Builder {
    patterns: Vec<String>,
    kinds: Vec<Kind>,
    names: Vec<String>,
    words: Vec<String>,
    /// A pattern needs no certain word.
    wordless: bool,
    problems: Vec<String>,
}

impl Builder {
    /// The agent's own patterns.
    fn own(&mut self, rule: &ObserveRule) {
        for (index, pattern) in rule.failure.iter().enumerate() {
            let kind = |_| Kind::Failure { score: OWN_SCORE, wakes: true, before: 2, after: 4 };
            self.add_own(format!("failure[{index}]"), pattern, kind);
        }
        for (index, pattern) in rule.success.iter().enumerate() {
            self.add_own(format!("success[{index}]"), pattern, |_| Kind::Success);
        }
        for (index, pattern) in rule.progress.iter().enumerate() {
            self.add_own(format!("progress[{index}]"), pattern, |regex| Kind::Progress(Box::new(regex)));
        }
    }

    /// A pattern that is no regular expression is taken for the text that it is: `error[E` means what it says.
    fn add_own(&mut self, name: String, pattern: &str, kind: impl FnOnce(Regex) -> Kind) {
        let literal = regex::escape(pattern);
        let (pattern, words) = match compile(pattern) {
            Ok(_) if literal == pattern => (literal, vec![pattern.to_owned()]),
            Ok(_) => (pattern.to_owned(), Vec::new()),
            Err(regex::Error::CompiledTooBig(_)) => {
                self.problems.push(format!("{name} is too large to be matched on every line"));
                return;
            }
            Err(_) => {
                self.problems.push(format!("{name} is no regular expression and is taken as plain text"));
                (literal, vec![pattern.to_owned()])
            }
        };
        if !pattern.is_empty() {
            self.add(name, &pattern, &words, kind);
        }
    }

    fn pack(&mut self, pack: &str, rules: &packs::Pack) {
        let failure =
            |rule: &PackRule, score| Kind::Failure { score, wakes: rule.wakes, before: rule.before, after: rule.after };
        for rule in &rules.failure {
            self.add_shipped(pack, rule, |_| failure(rule, rule.score.min(OWN_SCORE - 1)));
        }
        for rule in &rules.consequence {
            self.add_shipped(pack, rule, |_| failure(rule, CONSEQUENCE_SCORE));
        }
        for rule in &rules.ignore {
            self.add_shipped(pack, rule, |_| Kind::Ignore);
        }
        for rule in &rules.success {
            self.add_shipped(pack, rule, |_| Kind::Success);
        }
        for rule in &rules.progress {
            self.add_shipped(pack, rule, |regex| Kind::Progress(Box::new(regex)));
        }
    }

    fn add_shipped(&mut self, pack: &str, rule: &PackRule, kind: impl FnOnce(Regex) -> Kind) {
        let pattern = rule.pattern.replace("{start}", START);
        self.add(format!("{pack}.{}", rule.id), &pattern, &rule.any, kind);
    }

    fn add(&mut self, name: String, pattern: &str, words: &[String], kind: impl FnOnce(Regex) -> Kind) {
        if self.patterns.len() == MAX_PATTERNS {
            self.problems.push(format!("{name} is left out: there are more than {MAX_PATTERNS} patterns"));
            return;
        }
        match compile(pattern) {
            Ok(regex) => {
                self.kinds.push(kind(regex));
                self.patterns.push(pattern.to_owned());
                self.names.push(name);
                self.wordless |= words.is_empty();
                self.words.extend(words.iter().cloned());
            }
            Err(error) => self.problems.push(format!("{name} can't be used: {error}")),
        }
    }

    fn build(mut self, rule: &ObserveRule, limits: Limits) -> Rules {
        let set = RegexSetBuilder::new(&self.patterns).size_limit(SET_BYTES).build().unwrap_or_else(|error| {
            self.problems.push(format!("the patterns can't be used together: {error}"));
            RegexSet::empty()
        });
        let prefilter = if self.wordless {
            None
        } else {
            // Case is folded for ASCII only, as in the patterns' words. Without a prefilter it is slower, not wrong.
            AhoCorasickBuilder::new().ascii_case_insensitive(true).build(&self.words).ok()
        };
        Rules {
            set,
            kinds: self.kinds,
            names: self.names,
            prefilter,
            silence: rule.silence.map(kernel::units::Duration::std).filter(|silence| !silence.is_zero()),
            settle: rule.settle.map_or(SETTLE, kernel::units::Duration::std),
            limits,
            problems: self.problems,
        }
    }
}

fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(name: &str) -> Rules {
        let rules =
            Rules::compile(&ObserveRule { packs: vec![name.into()], ..ObserveRule::default() }, Limits::default());
        assert_eq!(rules.problems, [""; 0], "{name}");
        rules
    }

    fn failure(rules: &Rules, line: &str) -> Option<String> {
        rules.look(line).failure.map(|found| rules.name(found.rule).to_owned())
    }

    #[test]
    fn every_pack_compiles_and_knows_its_own() {
        for (name, line, rule) in [
            ("generic", "Segmentation fault (core dumped)", "generic.crash"),
            ("generic", "2024-05-01T10:00:00.123Z ValueError: bad value", "generic.exception"),
            ("generic", "make: *** [all] Error 2", "generic.make"),
            ("cargo", "error[E0308]: mismatched types", "cargo.rustc_error"),
            ("cargo", "error: could not compile `x` (lib)", "cargo.could_not_compile"),
            ("cargo", "thread 'tests::a' (123) panicked at src/lib.rs:3:5:", "cargo.panic"),
            ("cargo", "test tests::a ... FAILED", "cargo.test_failed"),
            ("pytest", "E       assert 1 == 2", "pytest.assertion"),
            ("pytest", "FAILED tests/test_a.py::test_b - assert 1 == 2", "pytest.summary"),
            ("npm", "src/a.ts(3,5): error TS2322: Type", "npm.typescript"),
            ("npm", "  ● sum › adds", "npm.jest_case"),
            ("go", "    --- FAIL: TestA/b (0.00s)", "go.test_failed"),
            ("go", "./main.go:3:2: undefined: x", "go.compiler"),
            ("gcc", "main.c:3:5: error: expected ';'", "gcc.compiler"),
            ("gcc", "main.c(3): error C2065: 'x'", "gcc.msvc"),
        ] {
            assert_eq!(failure(&pack(name), line).as_deref(), Some(rule), "{line}");
        }
    }

    #[test]
    fn look_alikes_are_no_failures() {
        for name in packs::names() {
            let rules = pack(name);
            for line in [
                "test result: ok. 12 passed; 0 failed; 0 ignored",
                "0 errors, 3 warnings",
                "Compiling thiserror v2.0.0",
                "cc -Werror -c main.c",
                "failed: 0",
                "copying error_pages/404.html",
                "test error_handling::works ... ok",
                "tests/test_fail.py::test_error PASSED [ 50%]",
            ] {
                let found = rules.look(line).failure;
                assert!(found.is_none_or(|found| !found.wakes && found.score <= 50), "{name}: {line}: {found:?}");
            }
        }
    }

    #[test]
    fn own_patterns_come_first_and_need_not_be_regular_expressions() {
        let failure = vec!["error[E".to_owned(), "FAILED".to_owned(), r"code=\d+".to_owned()];
        let rules = Rules::compile(&ObserveRule { failure, ..ObserveRule::default() }, Limits::default());
        assert_eq!(rules.problems.len(), 1);
        for (line, rule) in [("error[E0001]: x", "failure[0]"), ("3 FAILED", "failure[1]"), ("code=7", "failure[2]")] {
            let found = rules.look(line).failure.unwrap();
            assert_eq!((rules.name(found.rule), found.wakes), (rule, true), "{line}");
        }
        assert_eq!(rules.look("0 FAILED, failed: 0").failure.map(|found| found.score), Some(OWN_SCORE));
    }

    #[test]
    fn progress_is_read() {
        let progress = |rules: &Rules, line: &str| {
            let progress = rules.look(line).progress.unwrap_or_else(|| panic!("{line}"));
            (progress.phase, progress.percent)
        };
        assert_eq!(progress(&pack("generic"), " 45.6% done"), (None, Some(45)));
        assert_eq!(progress(&pack("gcc"), "[12/48] Building"), (None, Some(25)));
        assert_eq!(progress(&pack("gcc"), "[ 45%] Building C object").1, Some(45));
        assert_eq!(progress(&pack("cargo"), "   Compiling serde v1"), (Some("Compiling".into()), None));
        let own = ObserveRule { progress: vec!["stage (\\w+) at (?P<percent>\\d+)".into()], ..ObserveRule::default() };
        let rules = Rules::compile(&own, Limits::default());
        assert_eq!(progress(&rules, "stage link at 7"), (Some("link".into()), Some(7)));
    }

    #[test]
    fn rules_of_a_tool_are_merged_and_others_left_out() {
        let rule = |tool: Option<&str>, failure: &str| ObserveRule {
            tool: tool.map(str::to_owned),
            failure: vec![failure.to_owned()],
            ..ObserveRule::default()
        };
        let rules = [rule(Some("shell.run"), "aaa"), rule(None, "bbb"), rule(Some("other"), "ccc")];
        let service = ObserveRule { service: Some("x".into()), ..rule(None, "ddd") };
        let fits =
            |rule: &&ObserveRule| rule.tool.as_deref().is_none_or(|tool| tool == "shell.run") && rule.service.is_none();
        let merged = merge(rules.iter().chain([&service]).filter(fits));
        assert_eq!(merged.failure, ["aaa", "bbb"]);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let rule = ObserveRule {
            packs: vec!["nope".into()],
            failure: vec![r"\w{1000}{1000}".into(), "good".into()],
            ..ObserveRule::default()
        };
        let rules = Rules::compile(&rule, Limits::default());
        assert_eq!(rules.problems.len(), 2, "{:?}", rules.problems);
        assert!(rules.look("good").failure.is_some());
    }
}
