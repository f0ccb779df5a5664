//! A scenario file: how a scripted model answers, by turn and by what it sees.

use std::collections::BTreeMap;

use kernel::units::Duration;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

/// Largest compiled regular expression, in bytes.
const REGEX_BYTES: usize = 4 * 1024 * 1024;

/// A scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, as in `scripted:<name>`.
    pub name: String,
    /// What it plays.
    #[serde(default)]
    pub description: String,
    /// In this order: the first that matches answers.
    pub steps: Vec<Step>,
}

/// One way to answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// For people and errors.
    #[serde(default)]
    pub name: Option<String>,
    /// When it matches; always, if nothing is said.
    #[serde(default)]
    pub when: When,
    /// What must not be seen.
    #[serde(default)]
    pub unless: Patterns,
    /// Answer at most once for each run, as long as the process lives.
    #[serde(default)]
    pub once: bool,
    /// Text beside the calls.
    #[serde(default)]
    pub text: Option<String>,
    /// Calls, in order.
    #[serde(default)]
    pub calls: Vec<ScriptedCall>,
    /// Take this long, with the text in pieces.
    #[serde(default)]
    pub slow: Option<Duration>,
    /// Fail instead.
    #[serde(default)]
    pub error: Option<ScriptedError>,
    /// What was consumed; counted from the texts if it is not said.
    #[serde(default)]
    pub usage: Option<ScriptedUsage>,
    /// Why the model stopped; by what it said, if it is not said.
    #[serde(default)]
    pub finish: Option<ScriptedFinish>,
}

/// When a step matches: all that is given must hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The number of the turn, or `2..5` for the 2nd to the 5th.
    pub turn: Option<Turns>,
    /// Regular expressions, each of which is found in what the turn sees; their named groups can be used in the answer.
    pub sees: Patterns,
}

/// A range of turns, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    first: u32,
    last: u32,
}

/// Regular expressions.
#[derive(Debug, Default)]
pub struct Patterns(Vec<Regex>);

/// A call that a scripted model makes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// A verb or a tool.
    pub tool: String,
    /// With what; `{{name}}` in a text is a captured group, `{{run_id}}` or `{{turn}}`. A text that is nothing but
    /// `{{name|json}}` becomes the captured JSON.
    #[serde(default)]
    pub arguments: Option<Value>,
    /// Arguments as raw text instead, that need not be JSON.
    #[serde(default)]
    pub malformed: Option<String>,
    /// The provider's id of the call.
    #[serde(default)]
    pub id: Option<String>,
}

/// A failure to play.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedError {
    /// HTTP status: 408, 429 and 5xx pass, others do not.
    pub status: u16,
    /// When to ask again.
    #[serde(default)]
    pub retry_after: Option<Duration>,
}

/// Tokens to report.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedUsage {
    /// Sent.
    pub input: u64,
    /// Of those, cached.
    #[serde(default)]
    pub cached: u64,
    /// Received.
    pub output: u64,
}

/// Why a scripted model stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptedFinish {
    /// All said.
    Stop,
    /// Cut off.
    Length,
    /// Held back.
    Filtered,
}

/// A scenario file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scenario `{name}`: {problem}")]
pub struct ScenarioError {
    /// Which scenario.
    pub name: String,
    /// What is wrong, with line and column.
    pub problem: String,
}

/// What named groups have captured.
pub type Captures = BTreeMap<String, String>;

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ScenarioError`], with line and column.
    pub fn parse(name: &str, yaml: &str) -> Result<Self, ScenarioError> {
        let error = |problem| ScenarioError { name: name.to_owned(), problem };
        let scenario: Self = serde_saphyr::from_str(yaml).map_err(|problem| error(problem.to_string()))?;
        if scenario.name != name {
            return Err(error(format!("the file says it is `{}`: name it like the file", scenario.name)));
        }
        for (index, step) in scenario.steps.iter().enumerate() {
            if let Some(problem) = step.problem() {
                return Err(error(format!("step {} ({}): {problem}", index + 1, step.label())));
            }
        }
        Ok(scenario)
    }

    /// The first step that matches, what it captured, and its place; `skips` says which steps are not played.
    pub fn find(
        &self,
        turn: u32,
        sees: &str,
        skips: impl Fn(usize, &Step) -> bool,
    ) -> Option<(usize, &Step, Captures)> {
        self.steps.iter().enumerate().find_map(|(index, step)| {
            if skips(index, step) {
                return None;
            }
            step.matches(turn, sees).map(|captures| (index, step, captures))
        })
    }
}

impl Step {
    /// Its name, or what it does.
    #[must_use]
    pub fn label(&self) -> &str {
        let call = || self.calls.first().map(|call| call.tool.as_str());
        self.name.as_deref().or_else(call).unwrap_or("unnamed")
    }

    fn problem(&self) -> Option<String> {
        let answers = self.text.is_some() || !self.calls.is_empty() || self.finish.is_some();
        if self.error.is_some() == answers {
            return Some("give either `error`, or an answer of `text`, `calls` or `finish`".to_owned());
        }
        let both = self.calls.iter().find(|call| call.arguments.is_some() && call.malformed.is_some())?;
        Some(format!("the call of `{}` has `arguments` and `malformed`: give one", both.tool))
    }

    fn matches(&self, turn: u32, sees: &str) -> Option<Captures> {
        if self.when.turn.is_some_and(|turns| !turns.holds(turn)) {
            return None;
        }
        if self.unless.0.iter().any(|pattern| pattern.is_match(sees)) {
            return None;
        }
        let mut captures = Captures::new();
        for pattern in &self.when.sees.0 {
            let found = pattern.captures(sees)?;
            for name in pattern.capture_names().flatten() {
                if let Some(group) = found.name(name) {
                    captures.insert(name.to_owned(), group.as_str().to_owned());
                }
            }
        }
        Some(captures)
    }
}

/// `text` with its `{{places}}` filled.
///
/// # Errors
/// A place that nothing was captured for.
pub fn fill(text: &str, captures: &Captures) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or_else(|| format!("`{{{{` without `}}}}` in `{text}`"))?;
        let name = name.trim();
        let value = captures.get(name).ok_or_else(|| format!("nothing was captured as `{name}`"))?;
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// As [`fill`], in every text of a value.
///
/// # Errors
/// As [`fill`], or a `|json` place whose text is not JSON.
pub fn fill_value(value: &Value, captures: &Captures) -> Result<Value, String> {
    match value {
        Value::String(text) => {
            let name = text.strip_prefix("{{").and_then(|rest| rest.strip_suffix("|json}}"));
            let Some(name) = name.filter(|name| !name.contains('{')) else {
                return fill(text, captures).map(Value::String);
            };
            let name = name.trim();
            let raw = captures.get(name).ok_or_else(|| format!("nothing was captured as `{name}`"))?;
            serde_json::from_str(raw).map_err(|error| format!("`{name}` is not JSON: {error}"))
        }
        Value::Array(values) => {
            values.iter().map(|value| fill_value(value, captures)).collect::<Result<_, _>>().map(Value::Array)
        }
        Value::Object(fields) => {
            let filled = fields.iter().map(|(key, value)| Ok((key.clone(), fill_value(value, captures)?)));
            filled.collect::<Result<_, String>>().map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}

impl Turns {
    const fn holds(self, turn: u32) -> bool {
        self.first <= turn && turn <= self.last
    }
}

impl<'de> Deserialize<'de> for Turns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(u32),
            Range(String),
        }
        let range = match Written::deserialize(deserializer)? {
            Written::One(turn) => Some((turn, turn)),
            Written::Range(text) => text.split_once("..").and_then(|(first, last)| {
                let last = if last.is_empty() { u32::MAX } else { last.trim_start_matches('=').parse().ok()? };
                Some((first.parse().ok()?, last))
            }),
        };
        let (first, last) = range.ok_or_else(|| D::Error::custom("`turn` is a number, `2..5` or `2..`"))?;
        Ok(Self { first, last })
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            One(String),
            Several(Vec<String>),
        }
        let texts = match Written::deserialize(deserializer)? {
            Written::One(text) => vec![text],
            Written::Several(texts) => texts,
        };
        // `^` and `$` stand for the ends of lines: what a turn sees has many.
        let compile = |text: String| RegexBuilder::new(&text).multi_line(true).size_limit(REGEX_BYTES).build();
        texts.into_iter().map(compile).collect::<Result<_, _>>().map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const YAML: &str = r#"
name: demo
steps:
  - when: {turn: 1}
    calls: [{tool: shell.run, arguments: {command: "make {{run_id}}"}}]
  - name: mend
    when: {turn: "2..4", sees: ['FAILED (?P<test>\w+)', '(?P<got>\d+) != (?P<want>\d+)']}
    unless: "test result: ok"
    once: true
    calls:
      - {tool: file.write, arguments: {path: "{{test}}.py", line: "{{got|json}}"}}
  - when: {turn: "3.."}
    error: {status: 429, retry_after: 2s}
"#;

    #[test]
    fn the_first_step_that_matches_answers() {
        let scenario = Scenario::parse("demo", YAML).unwrap();
        let find = |turn, sees, used: bool| {
            scenario.find(turn, sees, |_, step| step.once && used).map(|(index, _, captures)| (index, captures))
        };
        assert_eq!(find(1, "", false).unwrap().0, 0);
        let (index, captures) = find(2, "FAILED half_up\n7 != 8", false).unwrap();
        assert_eq!((index, captures["test"].as_str(), captures["want"].as_str()), (1, "half_up", "8"));
        assert!(find(2, "FAILED half_up\n7 != 8", true).is_none(), "once");
        assert!(find(2, "FAILED half_up\n7 != 8\ntest result: ok", false).is_none(), "unless");
        assert_eq!(find(9, "", false).unwrap().0, 2);
    }

    #[test]
    fn places_are_filled() {
        let captures = Captures::from([("a".to_owned(), "x".to_owned()), ("n".to_owned(), "7".to_owned())]);
        let filled = fill_value(&json!({"p": ["{{a}}/{{ n }}", "{{n|json}}", true]}), &captures).unwrap();
        assert_eq!(filled, json!({"p": ["x/7", 7, true]}));
        assert!(fill("{{b}}", &captures).unwrap_err().contains("`b`"));
        assert!(fill("{{b", &captures).is_err());
        assert!(fill_value(&json!("{{a|json}}"), &captures).unwrap_err().contains("not JSON"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (yaml, words) in [
            ("name: demo\nsteps:\n  - whn: {turn: 1}\n    text: x\n", ["whn", "line 3"]),
            ("name: demo\nsteps:\n  - when: {sees: '('}\n    text: x\n", ["unclosed", "line 3"]),
            ("name: demo\nsteps:\n  - when: {turn: soon}\n    text: x\n", ["2..5", "line 3"]),
            ("name: other\nsteps: []\n", ["`other`", "demo"]),
            ("name: demo\nsteps:\n  - when: {turn: 1}\n", ["step 1", "`error`"]),
            ("name: demo\nsteps:\n  - calls: [{tool: a, arguments: {}, malformed: x}]\n", ["step 1", "malformed"]),
        ] {
            let error = Scenario::parse("demo", yaml).unwrap_err().to_string();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
