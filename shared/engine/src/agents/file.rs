//! Agent files: what people write, and what is wrong with it, by line and column.

use std::collections::BTreeSet;

use kernel::{
    agent::{AgentSpec, Trigger},
    child::MAX_CHILDREN,
    units::Duration,
};
use serde::de::DeserializeOwned;

use crate::matching::Filter;

/// The largest file that is taken, in bytes.
pub const MAX_FILE_BYTES: usize = 256 * 1024;

/// Most bytes of what is said about a file: it may quote what stands in there, however long that is.
const MESSAGE_BYTES: usize = 2048;

/// Most bytes of the name of a service.
const SERVICE_BYTES: usize = 128;

/// What is wrong with an agent file or a tool file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(*.line, *.column))]
pub struct AgentFileError {
    /// Line, from 1; none when it is about the file as a whole.
    pub line: Option<u64>,
    /// Column, from 1.
    pub column: Option<u64>,
    /// What is wrong and what would be right.
    pub message: String,
}

fn place(line: Option<u64>, column: Option<u64>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!("line {line}, column {column}: "),
        _ => String::new(),
    }
}

/// Reads an agent file.
///
/// # Errors
/// With line and column, when it is no YAML, has a field that does not exist, or says what cannot be.
pub fn parse(yaml: &str) -> Result<AgentSpec, AgentFileError> {
    let spec: AgentSpec = read_yaml(yaml)?;
    match problem(&spec) {
        Some(problem) => Err(problem.place_in(yaml)),
        None => Ok(spec),
    }
}

/// Reads a document into its type, within bounds on its size.
pub(crate) fn read_yaml<T: DeserializeOwned>(yaml: &str) -> Result<T, AgentFileError> {
    if yaml.len() > MAX_FILE_BYTES {
        let message =
            format!("the file is {} bytes, more than the {MAX_FILE_BYTES} that are taken: shorten it", yaml.len());
        return Err(AgentFileError { line: None, column: None, message });
    }
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        let at = error.location();
        AgentFileError {
            line: at.map(|at| at.line()),
            column: at.map(|at| at.column()),
            message: kernel::excerpt(&super::words::of(&error), MESSAGE_BYTES),
        }
    })
}

/// Something in a file that reads well and cannot be.
pub(crate) struct Problem<'a> {
    /// The text that is wrong, to be looked for in the file.
    text: &'a str,
    message: String,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(text: &'a str, message: impl Into<String>) -> Self {
        Self { text, message: message.into() }
    }

    /// Says where in the file it is: where the text first stands, as far as it is written there as it was read.
    pub(crate) fn place_in(self, yaml: &str) -> AgentFileError {
        let first_line = self.text.lines().next().map(str::trim).filter(|line| !line.is_empty());
        let before = first_line.and_then(|line| whole(yaml, line).or_else(|| yaml.find(line))).map(|at| &yaml[..at]);
        let line = before.map(|before| before.matches('\n').count() + 1);
        let column = before.map(|before| before.rsplit('\n').next().unwrap_or(before).chars().count() + 1);
        let number = |count: Option<usize>| count.and_then(|count| u64::try_from(count).ok());
        AgentFileError {
            line: number(line),
            column: number(column),
            message: kernel::excerpt(&self.message, MESSAGE_BYTES),
        }
    }
}

/// Where `text` stands by itself, not as a part of a word.
fn whole(yaml: &str, text: &str) -> Option<usize> {
    let cut = |letter: Option<char>| !letter.is_some_and(char::is_alphanumeric);
    yaml.match_indices(text)
        .map(|(at, _)| at)
        .find(|at| cut(yaml[..*at].chars().next_back()) && cut(yaml[at + text.len()..].chars().next()))
}

fn problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    if !is_name(&spec.name) {
        return Some(Problem::new(&spec.name, "`name` must be 1 to 63 of a-z, 0-9 and `-`, and not begin with `-`"));
    }
    if spec.instructions.trim().is_empty() {
        return Some(Problem::new("instructions", "`instructions` are empty: say what the agent is to do"));
    }
    model_problem(spec)
        .or_else(|| names_problem(spec))
        .or_else(|| spec.triggers.iter().find_map(trigger_problem))
        .or_else(|| spec.observe.iter().find_map(super::observe::problem))
        .or_else(|| super::watch::problem(&spec.watch, &spec.tools))
        .or_else(|| super::steering::problem(spec))
        .or_else(|| amounts_problem(spec))
}

pub(crate) fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn model_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    let models = spec.model.all();
    let of_kinds = spec.routes.hard.iter().chain(&spec.routes.evaluation);
    let mut others = of_kinds.chain(spec.observer.iter().map(|adviser| &adviser.model));
    if models.is_empty() || others.any(|models| models.all().is_empty()) {
        return Some(Problem::new("model", "`model` is empty: name at least one, as `provider:model`"));
    }
    let fits =
        |model: &str| model.split_once(':').is_some_and(|(provider, name)| !provider.is_empty() && !name.is_empty());
    if spec.routes.thrift.as_ref().is_some_and(|thrift| !(0.0..=1.0).contains(&thrift.below)) {
        return Some(Problem::new("below", "`below` of `thrift` is a share from 0 to 1, such as 0.2"));
    }
    let advisers = spec.observer.iter().flat_map(|adviser| adviser.model.all());
    let bad = models.iter().chain(spec.routes.all()).chain(advisers).find(|model| !fits(model))?;
    Some(Problem::new(
        bad,
        format!("`{bad}` is not a model: write `provider:model`, such as `openai:gpt-5` or `scripted:answer`"),
    ))
}

fn names_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    let mut seen = BTreeSet::new();
    for tool in &spec.tools {
        if !is_tool_name(tool) && !tool.strip_suffix(".*").is_some_and(is_name) {
            return Some(Problem::new(
                tool,
                format!(
                    "`{tool}` is not the name of a tool: use 1 to 63 letters, digits, `.`, `_` or `-`, such as `shell.run`, \
                     or `<server>.*` for all of an MCP server"
                ),
            ));
        }
        if !seen.insert(tool) {
            return Some(Problem::new(tool, format!("tool `{tool}` is there twice: leave one out")));
        }
    }
    let mut seen = BTreeSet::new();
    for agent in &spec.agents {
        if !is_name(agent) {
            return Some(Problem::new(agent, format!("`{agent}` in `agents` is not the name of an agent")));
        }
        if !seen.insert(agent) {
            return Some(Problem::new(agent, format!("agent `{agent}` is there twice: leave one out")));
        }
    }
    if spec.max_children.is_some_and(|most| !(1..=MAX_CHILDREN).contains(&(most as usize))) {
        return Some(Problem::new("max_children", format!("`max_children` must be 1 to {MAX_CHILDREN}")));
    }
    let beside =
        spec.knowledge.iter().map(|name| ("knowledge", name)).chain(spec.skills.iter().map(|name| ("skills", name)));
    if let Some((field, name)) = beside.into_iter().find(|(_, name)| !is_name(name)) {
        return Some(Problem::new(name, format!("`{name}` in `{field}` must be 1 to 63 of a-z, 0-9 and `-`")));
    }
    let empty = spec.allow.hosts.iter().chain(&spec.allow.commands).find(|text| text.trim().is_empty());
    empty.map(|_| Problem::new("allow", "`allow` has an empty entry: leave it out"))
}

/// What a tool may be called: what providers take in the name of a function, once dots are replaced.
pub(crate) fn is_tool_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=63).contains(&text.len()) && text.bytes().all(plain)
}

/// How long a start may be held back.
const LONGEST_HELD: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);
/// Most events that one run is started with.
const MOST_GATHERED: u32 = 1000;

fn trigger_problem(trigger: &Trigger) -> Option<Problem<'_>> {
    if trigger.on.trim_end_matches('*').is_empty() {
        return Some(Problem::new(
            "on",
            "`on` would fit every event: name a type, such as `github.push` or `github.*`",
        ));
    }
    if trigger.signal.as_ref().is_some_and(|service| service.trim().is_empty() || service.len() > SERVICE_BYTES) {
        let words = format!("`signal` names the service whose record the event becomes, in 1 to {SERVICE_BYTES} bytes");
        return Some(Problem::new("signal", words));
    }
    if trigger.signal.is_none() && trigger.start.input.trim().is_empty() {
        let words = format!(
            "the trigger on `{}` does not say what a run is to reach: add `start: {{ input: \"...\" }}`",
            trigger.on
        );
        return Some(Problem::new(&trigger.on, words));
    }
    let expressions = [("where", &trigger.filter), ("key", &trigger.key)];
    let wrong = expressions.into_iter().find_map(|(name, expression)| {
        let expression = expression.as_deref()?;
        let error = Filter::compile(expression).err()?;
        Some(Problem::new(expression, format!("`{name}` of the trigger on `{}`: {error}", trigger.on)))
    });
    wrong.or_else(|| pacing_problem(trigger))
}

/// What can't hold a start back.
fn pacing_problem(trigger: &Trigger) -> Option<Problem<'_>> {
    let fits = |span: Duration| span.as_millis() > 0 && span.std() <= LONGEST_HELD;
    let words = |name: &'static str, words: String| {
        Some(Problem::new(name, format!("`{name}` of the trigger on `{}` {words}", trigger.on)))
    };
    let spans = "must be longer than 0 and at most 7d".to_owned();
    if (trigger.holds_back() || trigger.wake) && trigger.signal.is_some() {
        return Some(Problem::new(
            "signal",
            "a trigger with `signal` starts no run, so that there is nothing to hold back",
        ));
    }
    if trigger.key.is_some() && !trigger.holds_back() {
        let what = "`debounce`, `batch`, `throttle` or `concurrency`";
        return words("key", format!("tells apart what {what} hold back, and there is none of them"));
    }
    if trigger.debounce.is_some_and(|it| !fits(it.quiet()) || it.at_most() < it.quiet()) {
        return words("debounce", format!("{spans}, and `at_most` no shorter than `quiet`"));
    }
    if trigger.batch.is_some_and(|batch| !fits(batch.within) || !(1..=MOST_GATHERED).contains(&batch.size)) {
        return words("batch", format!("takes 1 to {MOST_GATHERED} events, and its `within` {spans}"));
    }
    if trigger.throttle.is_some_and(|throttle| !fits(throttle.per) || throttle.runs == 0) {
        return words("throttle", format!("lets at least 1 run start, and its `per` {spans}"));
    }
    if trigger.concurrency == Some(0) {
        return words("concurrency", "must be at least 1: with none, no run would ever start".to_owned());
    }
    None
}

fn amounts_problem(spec: &AgentSpec) -> Option<Problem<'_>> {
    if spec.budget.cost_usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
        return Some(Problem::new("cost_usd", "`cost_usd` must be 0 or more dollars"));
    }
    if spec.approval_expiry.as_millis() == 0 {
        return Some(Problem::new("approval_expiry", "`approval_expiry` must be longer than 0: nobody could answer"));
    }
    let too_late = |after: &kernel::units::Duration| after.as_millis() == 0 || *after >= spec.approval_expiry;
    let late = |field: &'static str| {
        let words =
            format!("`{field}` must be longer than 0 and shorter than `approval_expiry`: after that nobody is asked");
        Problem::new(field, words)
    };
    if spec.approval_reminders.iter().any(too_late) {
        return Some(late("approval_reminders"));
    }
    spec.approval_escalation.as_ref().is_some_and(too_late).then(|| late("approval_escalation"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPER: &str = r#"name: ci-keeper
model: scripted:ci-keeper
instructions: |
  Keep the build green.
tools: [shell.run, http.get, github.merge]
skills: [release-notes]
triggers:
  - on: github.push
    where: data.ref == "refs/heads/main"
    start: { input: "Look at the push." }
observe:
  - tool: shell.run
    silence: 60s
    failure: ["error[E", "FAILED"]
budget: { turns: 40, tokens: 200k, cost_usd: 2.00, wall: 3d, tool_calls: 100 }
controls: { evaluator: on, drift: on, compaction: auto }
"#;

    fn error(yaml: &str) -> String {
        parse(yaml).unwrap_err().to_string()
    }

    #[test]
    fn the_file_of_the_contract_reads() {
        let spec = parse(KEEPER).unwrap();
        assert_eq!(spec.name, "ci-keeper");
        assert_eq!(spec.triggers[0].on, "github.push");
        assert_eq!(spec.budget.tokens, Some(200_000));
        assert_eq!(spec.budget.wall.unwrap().as_millis(), 3 * 86_400_000);
        assert_eq!(spec.approval_expiry.as_millis(), 86_400_000);
        assert_eq!(spec.model.all(), ["scripted:ci-keeper"]);
    }

    #[test]
    fn an_unknown_field_is_named_by_line_and_column() {
        let error = parse(&KEEPER.replace("skills:", "skils:")).unwrap_err();
        assert_eq!((error.line, error.column), (Some(6), Some(1)), "{error}");
        assert!(error.message.contains("skils") && error.message.contains("skills"), "{error}");
        let nested = parse(&KEEPER.replace("    where:", "    whre:")).unwrap_err();
        assert_eq!(nested.line, Some(9), "{nested}");
    }

    #[test]
    fn a_filter_that_does_not_compile_is_found_in_the_file() {
        let error = parse(&KEEPER.replace("data.ref ==", "dta.ref ==")).unwrap_err();
        assert_eq!((error.line, error.column), (Some(9), Some(12)), "{error}");
        assert!(error.message.contains("`dta` is not a variable"), "{error}");
    }

    #[test]
    fn each_mistake_has_a_remedy() {
        for (from, to, expect) in [
            ("name: ci-keeper", "name: CI", "`name` must be"),
            ("scripted:ci-keeper", "gpt-5", "provider:model"),
            ("http.get", "shell.run", "twice"),
            ("http.get", "\"curl it\"", "not the name of a tool"),
            ("on: github.push", "on: '*'", "every event"),
            ("\"Look at the push.\"", "\" \"", "start: { input:"),
            ("  - tool: shell.run\n", "  - packs: [cargo]\n", "needs the `tool`"),
            ("2.00", "-1", "dollars"),
            ("skills: [release-notes]", "skills: [../secret]", "`skills`"),
            ("skills: [release-notes]", "knowledge: [Hand Book]", "`knowledge`"),
            ("skills: [release-notes]", "routes: { hard: gpt-5 }", "provider:model"),
            ("skills: [release-notes]", "routes: { thrift: { below: 20, use: x:y } }", "`below`"),
            ("skills: [release-notes]", "observer: { model: gpt-5-nano }", "provider:model"),
            ("skills: [release-notes]", "observer: { model: [] }", "`model` is empty"),
            ("skills: [release-notes]", "observer: { model: x:y, when: always }", "always"),
            ("skills: [release-notes]", "observer: { when: unsure }", "model"),
            ("skills: [release-notes]", "memory: { recall: everything }", "everything"),
            ("skills: [release-notes]", "approval_reminders: [1h, 24h]", "`approval_reminders`"),
            ("skills: [release-notes]", "approval_escalation: 0s", "`approval_escalation`"),
            ("    where:", "    key: data.ref\n    where:", "`key`"),
            ("    where:", "    debounce: 0s\n    where:", "`debounce`"),
            ("    where:", "    debounce: { quiet: 2m, at_most: 1m }\n    where:", "`debounce`"),
            ("    where:", "    batch: { size: 0, within: 1m }\n    where:", "`batch`"),
            ("    where:", "    throttle: { runs: 1, per: 8d }\n    where:", "`throttle`"),
            ("    where:", "    concurrency: 0\n    where:", "`concurrency`"),
            ("    where:", "    concurrency: 1\n    key: dta.x\n    where:", "`dta` is not a variable"),
            ("60s", "60", "a duration such as"),
            ("200k", "lots", "count"),
            ("  Keep the build green.", "", "`instructions` are empty"),
            ("triggers:", "trigger:", "did you mean `triggers`?"),
            ("model: scripted:ci-keeper\n", "", "`model` is missing"),
            ("[shell.run, http.get, github.merge]", "shell.run", "a list is expected"),
            ("start: { input: \"Look at the push.\" }", "start: go on", "fields are expected"),
            ("instructions: |", "\tinstructions: |", "indent with spaces"),
            ("instructions: |\n  Keep", "instructions: Keep: this", "quotes"),
        ] {
            let yaml = KEEPER.replacen(from, to, 1);
            assert_ne!(yaml, KEEPER, "{from}");
            let error = error(&yaml);
            assert!(error.contains(expect), "{to}: {error}");
        }
        assert!(error("").len() > 10);
        assert!(error("name: [").contains("line 1"));
        assert!(error("name: a\nname: b\n").contains("line 2"));
        assert!(error(&"#".repeat(MAX_FILE_BYTES + 1)).contains("bytes"));
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut yaml = "a0: &a0 [x]\n".to_owned();
        for level in 1..40 {
            let before = level - 1;
            yaml.push_str(&format!("a{level}: &a{level} [*a{before}, *a{before}, *a{before}, *a{before}]\n"));
        }
        assert!(parse(&yaml).is_err());
    }
}
