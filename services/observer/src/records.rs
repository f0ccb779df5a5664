//! Lines that are records: JSON objects, or `key=value` pairs.

use engine::Filter;
use kernel::observe::{FieldOp, Meaning, RecordRule};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use crate::{prefix, rules::Progress, text};

/// The longest line that is read as a record.
const LINE_BYTES: usize = 16 * 1024;
/// Pairs of a line that are read, and how many make it a record.
const PAIRS: usize = 64;
const PAIRS_AT_LEAST: usize = 2;
/// Most memory of a pattern.
const PATTERN_BYTES: usize = 1 << 20;

/// A line, read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record(Value);

impl Record {
    /// Whether a line can be one, at a glance.
    pub(crate) fn can_be(line: &[u8]) -> bool {
        memchr::memchr2(b'{', b'=', line).is_some()
    }

    /// Reads a line.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        if line.len() > LINE_BYTES || !Self::can_be(line) {
            return None;
        }
        let body = line[prefix::len(line)..].trim_ascii();
        if body.first() == Some(&b'{') {
            return serde_json::from_slice(body).ok().filter(Value::is_object).map(Self);
        }
        pairs(std::str::from_utf8(body).ok()?).map(|pairs| Self(Value::Object(pairs)))
    }

    /// A record of a service's log. Its own fields are called as loggers call them: `severity` and `level`, `body`, `message` and
    /// `msg`, `component`, `trace_id`, `span_id`; what else it says has its own name, and text that is a record itself is read too.
    pub(crate) fn of_log(record: &signals::Record) -> Self {
        let mut all = Map::new();
        if let Some(Value::Object(inner)) = Self::read(record.body.as_bytes()).map(|inner| inner.0) {
            all.extend(inner);
        }
        // Of a name and one with more parts the shorter comes first, and stays.
        let mut attributes: Vec<_> = record.attributes.iter().collect();
        attributes.sort_unstable_by_key(|(name, _)| *name);
        for (name, value) in attributes {
            nest(&mut all, name, value.clone());
        }
        let severity = record.severity.and_then(|severity| serde_json::to_value(severity).ok());
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let own = [
            ("severity", severity.clone()),
            ("level", severity),
            ("body", Some(record.body.as_str().into())),
            ("message", Some(record.body.as_str().into())),
            ("msg", Some(record.body.as_str().into())),
            ("component", text(&record.component)),
            ("trace_id", text(&record.trace_id)),
            ("span_id", text(&record.span_id)),
        ];
        for (name, value) in own {
            if let Some(value) = value {
                all.entry(name).or_insert(value);
            }
        }
        Self(Value::Object(all))
    }

    /// A field, with dots into objects. A name that has dots itself is found too.
    pub(crate) fn field(&self, path: &str) -> Option<&Value> {
        self.0.get(path).or_else(|| path.split('.').try_fold(&self.0, |value, part| value.get(part)))
    }

    /// A field as a number, also if it was written as a text.
    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        number(self.field(path)?)
    }

    /// What it says about progress, under the usual names.
    pub(crate) fn progress(&self, most: usize) -> Progress {
        let text = |name: &&str| self.field(name).and_then(Value::as_str);
        let phase = ["phase", "stage", "status", "step", "message", "msg"].iter().find_map(text);
        let percent = ["percent", "progress"].iter().find_map(|name| self.number(name));
        Progress {
            phase: phase.map(|phase| text::window(phase.trim(), 0, most).into_owned()),
            percent: percent.filter(|percent| (0.0..=100.0).contains(percent)).map(|percent| percent as u8),
        }
    }
}

/// Puts a value under a name with dots where an expression looks for it: `http.status` into `http`. A name whose first part
/// is taken by something that is no object stays as it is.
fn nest(into: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        Some((first, rest)) if !first.is_empty() && !rest.is_empty() => {
            match into.entry(first).or_insert_with(|| Value::Object(Map::new())) {
                Value::Object(inner) => nest(inner, rest, value),
                _ => drop(into.insert(name.to_owned(), value)),
            }
        }
        _ => drop(into.insert(name.to_owned(), value)),
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// `level=error msg="it broke" took=3`.
fn pairs(line: &str) -> Option<Map<String, Value>> {
    let mut pairs = Map::new();
    let mut rest = line;
    while pairs.len() < PAIRS {
        let Some(equals) = rest.find('=') else { break };
        let key = rest[..equals].rsplit([' ', '\t']).next().unwrap_or_default();
        let after = &rest[equals + 1..];
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted.find('"').map_or((quoted, ""), |end| (&quoted[..end], &quoted[end + 1..])),
            None => after.find([' ', '\t']).map_or((after, ""), |end| (&after[..end], &after[end..])),
        };
        let is_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '@');
        if !key.is_empty() && key.chars().all(is_name) {
            let number = value.parse::<i64>().map(Value::from).or_else(|_| value.parse::<f64>().map(Value::from));
            pairs.insert(key.to_owned(), number.unwrap_or_else(|_| value.into()));
        }
        rest = left;
    }
    (pairs.len() >= PAIRS_AT_LEAST).then_some(pairs)
}

/// What records mean.
#[derive(Default)]
pub(crate) struct RecordRules(Vec<(Test, Meaning, usize)>);

enum Test {
    Field { path: String, op: FieldOp, value: Value, pattern: Option<Regex> },
    Condition(Box<Filter>),
}

impl RecordRules {
    /// Adds a rule that is known by `place`.
    pub(crate) fn add(&mut self, rule: &RecordRule, place: usize) -> Result<(), String> {
        let test = match (&rule.condition, &rule.path) {
            (Some(condition), _) => {
                Test::Condition(Box::new(Filter::compile(condition).map_err(|error| error.to_string())?))
            }
            (None, Some(path)) => {
                let value = rule.value.clone().unwrap_or(Value::Null);
                let pattern = match (rule.op, value.as_str()) {
                    (FieldOp::Matches, Some(pattern)) => {
                        let pattern = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
                        Some(pattern.map_err(|error| error.to_string())?)
                    }
                    _ => None,
                };
                Test::Field { path: path.clone(), op: rule.op, value, pattern }
            }
            (None, None) => return Err("it names neither a field nor a condition".to_owned()),
        };
        self.0.push((test, rule.means, place));
        Ok(())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules that a record fits.
    pub(crate) fn of<'r>(&'r self, record: &'r Record) -> impl Iterator<Item = (usize, Meaning)> + 'r {
        let fitting = self.0.iter().filter(|(test, ..)| test.fits(record));
        fitting.map(|(_, means, place)| (*place, *means))
    }
}

impl Test {
    fn fits(&self, record: &Record) -> bool {
        match self {
            // What can't be evaluated on this record, such as for a field that is not there, does not fit it.
            Self::Condition(filter) => filter.matches(&json!({ "data": record.0 })).unwrap_or(false),
            Self::Field { path, op, value, pattern } => {
                let Some(have) = record.field(path) else { return *op == FieldOp::Missing };
                compare(have, *op, value, pattern.as_ref())
            }
        }
    }
}

fn compare(have: &Value, op: FieldOp, value: &Value, pattern: Option<&Regex>) -> bool {
    let ordered = |fits: fn(f64, f64) -> bool| match (number(have), number(value)) {
        (Some(have), Some(value)) => fits(have, value),
        _ => false,
    };
    let written = || match have {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match op {
        FieldOp::Exists => true,
        FieldOp::Missing => false,
        FieldOp::Eq => is_equal(have, value),
        FieldOp::Ne => !is_equal(have, value),
        FieldOp::Lt => ordered(|have, value| have < value),
        FieldOp::Le => ordered(|have, value| have <= value),
        FieldOp::Gt => ordered(|have, value| have > value),
        FieldOp::Ge => ordered(|have, value| have >= value),
        FieldOp::Contains => value.as_str().is_some_and(|part| written().to_lowercase().contains(&part.to_lowercase())),
        FieldOp::Matches => pattern.is_some_and(|pattern| pattern.is_match(&written())),
    }
}

fn is_equal(have: &Value, value: &Value) -> bool {
    match (have, value) {
        (Value::String(have), Value::String(value)) => have.eq_ignore_ascii_case(value),
        _ if number(have).is_some() && number(value).is_some() => number(have) == number(value),
        _ => have == value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(yaml: &str) -> RecordRules {
        let mut rules = RecordRules::default();
        rules.add(&serde_saphyr::from_str(yaml).unwrap(), 7).unwrap();
        rules
    }

    fn fits(yaml: &str, line: &str) -> bool {
        let rules = rule(yaml);
        Record::read(line.as_bytes()).is_some_and(|record| rules.of(&record).next() == Some((7, Meaning::Failure)))
    }

    #[test]
    fn fields_are_compared() {
        let line = r#"2026-07-30T10:39:20Z {"level":"ERROR","http":{"status":503},"took":"17","a.b":1}"#;
        for (yaml, wanted) in [
            ("{ path: level, op: eq, value: error }", true),
            ("{ path: level, op: ne, value: error }", false),
            ("{ path: http.status, op: ge, value: 500 }", true),
            ("{ path: http.status, op: lt, value: 500 }", false),
            ("{ path: took, op: gt, value: 16.5 }", true),
            ("{ path: a.b }", true),
            ("{ path: nope, op: missing }", true),
            ("{ path: nope, op: eq, value: 1 }", false),
            ("{ path: level, op: contains, value: rro }", true),
            ("{ path: http.status, op: matches, value: '^5\\d\\d$' }", true),
            ("{ where: 'data.http.status == 503 && data.level != \"info\"' }", true),
            ("{ where: 'data.nope > 3' }", false),
        ] {
            assert_eq!(fits(yaml, line), wanted, "{yaml}");
        }
    }

    #[test]
    fn records_of_services_are_read_under_the_names_that_loggers_give() {
        for line in [
            r#"{"time":"2026-01-02T03:04:05Z","severity":"ERROR","body":"no room","attributes":{"http.status":503,"took":"17"}}"#,
            r#"{"level":"error","msg":"no room","http":{"status":503},"took":17}"#,
            r#"{"log":"{\"level\":\"error\",\"msg\":\"no room\",\"http\":{\"status\":503},\"took\":17}"}"#,
            "level=error msg=\"no room\" http.status=503 took=17",
        ] {
            let record = Record::of_log(&signals::Record::from_line(line.as_bytes()));
            for yaml in [
                "{ path: level, op: eq, value: error }",
                "{ path: msg, op: contains, value: no room }",
                "{ path: http.status, op: ge, value: 500 }",
                "{ path: took, op: lt, value: 18 }",
                "{ path: trace_id, op: missing }",
            ] {
                assert!(rule(yaml).of(&record).next().is_some(), "{yaml}: {line}: {record:?}");
            }
        }
        let record =
            signals::Record::from_line(br#"{"msg":"x","http":{"status":503},"a":1,"a.b":2,"severity":"WARN"}"#);
        let record = Record::of_log(&record);
        assert!(rule("{ where: 'data.http.status == 503 && data.severity == \"warn\"' }").of(&record).next().is_some());
        assert_eq!((record.number("a"), record.number("a.b")), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn pairs_are_records_too() {
        let line = r#"time=now level=error msg="it broke down" took=12.5 ok"#;
        assert!(fits("{ path: msg, op: contains, value: broke }", line));
        assert!(fits("{ path: took, op: gt, value: 12 }", line));
        for line in ["a=b", "plain text", "{broken", "[1]", "x"] {
            assert_eq!(Record::read(line.as_bytes()), None, "{line}");
        }
    }
}
