//! A record: what a service said at one moment.

use std::{fmt::Write as _, sync::LazyLock};

use jiff::Timestamp;
use memchr::memmem;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::severity::Severity;

/// Most bytes of a record's text that are kept.
pub const MAX_BODY_BYTES: usize = 32 * 1024;
/// Most attributes that are kept.
pub const MAX_ATTRIBUTES: usize = 64;
/// Most bytes of an attribute's text that are kept.
const ATTRIBUTE_BYTES: usize = 1024;
/// Nested attributes are flattened so deep, with dots between the names; what is deeper stays JSON.
const DEPTH: usize = 3;
/// The attribute that says how many bytes of the text were cut off.
const CUT: &str = "escapement.cut_bytes";
/// The attribute of a record that is a data point of a metric: the name of the metric.
const POINT: &str = "escapement.point";
/// The attribute of a data point that does not say how much it is in all, but how much came since the point before it.
const DELTA: &str = "escapement.delta";

/// What a service said at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// When, by the service's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// How bad it is, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// The trace that it belongs to, in lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The span that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    /// Which instance of the service: a pod, a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// What else it says: numbers, words and switches by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub attributes: Map<String, Value>,
}

impl Record {
    /// Reads a line: a JSON object, under whatever names the usual loggers give the fields, or plain text.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Self {
        let object = line.first().filter(|first| **first == b'{').and_then(|_| serde_json::from_slice(line).ok());
        match object {
            Some(object) => Self::from_object(object),
            None => Self::from_text(&String::from_utf8_lossy(line)),
        }
    }

    /// A record that is nothing but text.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let mut record = Self::default();
        record.set_body(text.trim_end());
        record.severity = Severity::in_text(&record.body);
        record.find_trace();
        record
    }

    /// A record of the fields of a JSON object.
    #[must_use]
    pub fn from_object(object: Map<String, Value>) -> Self {
        let mut record = Self::default();
        for (name, value) in object {
            record.take(&name, value);
        }
        if record.severity.is_none() {
            record.severity = Severity::in_text(&record.body);
        }
        record.find_trace();
        record
    }

    fn take(&mut self, name: &str, value: Value) {
        match (name, &value) {
            ("time" | "timestamp" | "@timestamp" | "ts", value) if self.time.is_none() => {
                self.time = instant(value);
                if self.time.is_some() {
                    return;
                }
            }
            ("severity" | "level" | "lvl" | "severity_text" | "severityText" | "log.level", Value::String(word)) => {
                if let Ok(severity) = word.parse() {
                    self.severity = Some(severity);
                    return;
                }
            }
            ("severity_number" | "severityNumber", Value::Number(number)) => {
                self.severity = self.severity.or_else(|| Severity::from_number(number.as_i64()?));
                return;
            }
            ("body" | "message" | "msg" | "log", Value::String(text)) if self.body.is_empty() => {
                self.set_body(text.trim_end());
                return;
            }
            ("trace_id" | "traceId" | "traceID" | "TraceID" | "trace.id", Value::String(id)) if !id.is_empty() => {
                self.trace_id = Some(id.to_ascii_lowercase());
                return;
            }
            ("span_id" | "spanId" | "spanID" | "SpanID" | "span.id", Value::String(id)) if !id.is_empty() => {
                self.span_id = Some(id.to_ascii_lowercase());
                return;
            }
            ("component" | "pod" | "instance" | "host" | "hostname", Value::String(text))
                if self.component.is_none() =>
            {
                self.component = Some(cut(text, ATTRIBUTE_BYTES).to_owned());
                return;
            }
            ("attributes", Value::Object(_)) => {
                if let Value::Object(attributes) = value {
                    attributes.into_iter().for_each(|(name, value)| self.add(&name, value, 0));
                }
                return;
            }
            _ => {}
        }
        self.add(name, value, 0);
    }

    /// Adds an attribute; nested ones are flattened, what is beyond the bounds is left out.
    pub(crate) fn add(&mut self, name: &str, value: Value, depth: usize) {
        let value = match value {
            Value::Null => return,
            Value::Object(nested) if depth < DEPTH => {
                return nested
                    .into_iter()
                    .for_each(|(inner, value)| self.add(&format!("{name}.{inner}"), value, depth + 1));
            }
            Value::Object(_) | Value::Array(_) => Value::String(cut(&value.to_string(), ATTRIBUTE_BYTES).to_owned()),
            Value::String(text) if text.len() > ATTRIBUTE_BYTES => {
                Value::String(cut(&text, ATTRIBUTE_BYTES).to_owned())
            }
            scalar => scalar,
        };
        if self.attributes.len() < MAX_ATTRIBUTES || name == CUT || is_mark(name) {
            self.attributes.insert(cut(name, ATTRIBUTE_BYTES).to_owned(), value);
        }
    }

    pub(crate) fn set_body(&mut self, text: &str) {
        let kept = cut(text, MAX_BODY_BYTES);
        if kept.len() < text.len() {
            self.attributes.insert(CUT.to_owned(), (text.len() - kept.len()).into());
        }
        // NUL can't be stored, and says nothing.
        self.body = kept.replace('\0', "");
    }

    /// A trace id that stands in the text only.
    fn find_trace(&mut self) {
        static TRACE: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new(r#"(?i)\btrace[-_. ]?id["']?\s*[:=]\s*["']?([0-9a-f]{16,32})\b"#).ok());
        let mentions = |text: &str| memmem::find(text.as_bytes(), b"race").is_some();
        if self.trace_id.is_none()
            && mentions(&self.body)
            && let Some(found) = TRACE.as_ref().and_then(|trace| trace.captures(&self.body))
        {
            self.trace_id = found.get(1).map(|id| id.as_str().to_ascii_lowercase());
        }
    }

    /// Whether it is a fault, by its own word.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        self.severity.is_some_and(Severity::is_fault)
    }

    /// Whether the id stands in it: as its trace or span, as an attribute, or as a word of its text.
    #[must_use]
    pub fn mentions(&self, id: &str) -> bool {
        let is = |field: &Option<String>| field.as_deref().is_some_and(|have| have.eq_ignore_ascii_case(id));
        is(&self.trace_id)
            || is(&self.span_id)
            || self.attributes.values().any(|value| value.as_str().is_some_and(|text| has_word(text, id)))
            || has_word(&self.body, id)
    }

    /// The number under this name, also if it was written as text.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        let value = self.attributes.get(name)?;
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
        number.is_finite().then_some(number)
    }

    /// Notes that it is a data point of this metric, of delta temporality or not.
    pub(crate) fn set_point(&mut self, metric: &str, is_delta: bool) {
        self.attributes.insert(POINT.to_owned(), cut(metric, ATTRIBUTE_BYTES).into());
        if is_delta {
            self.attributes.insert(DELTA.to_owned(), true.into());
        }
    }

    /// Whether the number under this name is only what came since the data point before: of a sum, or of the count or sum of a
    /// histogram. Any other number is what it is in all.
    #[must_use]
    pub fn is_delta(&self, name: &str) -> bool {
        let Some(metric) = self.attributes.get(POINT).and_then(Value::as_str) else { return false };
        self.attributes.get(DELTA) == Some(&Value::Bool(true))
            && match name.strip_prefix(metric) {
                Some(".count" | ".sum") => true,
                // The mean of a histogram is none.
                Some("") => !self.attributes.contains_key(&format!("{metric}.count")),
                _ => false,
            }
    }

    /// The labels of a data point of a metric: what it says beside its numbers. None of any other record.
    #[must_use]
    pub fn labels(&self) -> Option<impl Iterator<Item = (&str, &Value)>> {
        let metric = self.attributes.get(POINT)?.as_str()?;
        let is_number = move |name: &str| matches!(name.strip_prefix(metric), Some("" | ".count" | ".sum"));
        let all = self.attributes.iter().map(|(name, value)| (name.as_str(), value));
        Some(all.filter(move |(name, _)| !is_mark(name) && !is_number(name)))
    }

    /// Whether an attribute says this, as a text.
    #[must_use]
    pub fn says(&self, name: &str, word: &str) -> bool {
        let as_text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.attributes.get(name).map(as_text).is_some_and(|text| text == word)
    }

    /// As a person would read it: severity, text, attributes.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut shown = self.body.clone();
        if shown.is_empty() {
            for (name, value) in self.attributes.iter().filter(|(name, _)| !is_mark(name)) {
                let separator = if shown.is_empty() { "" } else { " " };
                // Writing to a String can't fail.
                let _ = write!(shown, "{separator}{name}={value}");
            }
        }
        match self.severity {
            Some(severity) if Severity::in_text(&shown).is_none() => {
                format!("{} {shown}", format!("{severity:?}").to_ascii_uppercase())
            }
            _ => shown,
        }
    }
}

/// Whether an attribute is our own word about a data point.
fn is_mark(name: &str) -> bool {
    name == POINT || name == DELTA
}

/// Whether `word` stands in `text` and is no part of a longer word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let (text, word) = (text.as_bytes(), word.as_bytes());
    !word.is_empty()
        && memmem::find_iter(text, word).any(|at| {
            !is_part(at.checked_sub(1).and_then(|before| text.get(before))) && !is_part(text.get(at + word.len()))
        })
}

/// RFC 3339, or a count since 1970 in the unit that its size suggests.
fn instant(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => {
            let text = text.trim();
            text.parse().ok().or_else(|| text.parse::<f64>().ok().and_then(since_epoch))
        }
        Value::Number(number) => number.as_f64().and_then(since_epoch),
        _ => None,
    }
}

fn since_epoch(number: f64) -> Option<Timestamp> {
    // Seconds stay below 10^11 until the year 5138.
    let micros = match number {
        n if !n.is_finite() || n <= 0.0 => return None,
        n if n < 1e11 => n * 1e6,
        n if n < 1e14 => n * 1e3,
        n if n < 1e17 => n,
        n => n / 1e3,
    };
    Timestamp::from_microsecond(micros as i64).ok()
}

/// The first `max` bytes, at a character.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=text.len().min(max)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usual_loggers_are_understood() {
        for line in [
            r#"{"time":"2026-01-02T03:04:05Z","severity":"ERROR","body":"no room","trace_id":"AB12","pod":"a-1","n":3}"#,
            r#"{"ts":1767323045,"level":"error","msg":"no room","traceId":"ab12","hostname":"a-1","attributes":{"n":3}}"#,
            r#"{"@timestamp":"1767323045000","lvl":"err","message":"no room","trace.id":"ab12","component":"a-1","n":3}"#,
        ] {
            let record = Record::from_line(line.as_bytes());
            assert_eq!(record.time.unwrap().to_string(), "2026-01-02T03:04:05Z", "{line}");
            assert_eq!((record.severity, record.body.as_str()), (Some(Severity::Error), "no room"), "{line}");
            assert_eq!(
                (record.trace_id.as_deref(), record.component.as_deref()),
                (Some("ab12"), Some("a-1")),
                "{line}"
            );
            assert_eq!(record.number("n"), Some(3.0), "{line}");
        }
    }

    #[test]
    fn text_says_its_severity_and_its_trace() {
        let line =
            "16:42:22.382 WARN t.s.Travel#5 TraceID: ffc8ca7e4c8f06c75142c880d5595d96 SpanID: 4 [ERROR codes read]";
        let record = Record::from_line(line.as_bytes());
        assert_eq!(record.severity, Some(Severity::Warn));
        assert_eq!(record.trace_id.as_deref(), Some("ffc8ca7e4c8f06c75142c880d5595d96"));
        assert_eq!(Record::from_text("all is well").severity, None);
        assert_eq!(Record::from_line(b"{not json").body, "{not json");
    }

    #[test]
    fn ids_are_whole_words() {
        let record = Record::from_line(br#"{"msg":"paid order-17 for r-9","request":"q:77","trace_id":"AA"}"#);
        for id in ["order-17", "r-9", "77", "aa"] {
            assert!(record.mentions(id), "{id}");
        }
        for id in ["order-1", "der-17", "7", "a", ""] {
            assert!(!record.mentions(id), "{id}");
        }
    }

    #[test]
    fn what_is_large_is_cut_and_says_so() {
        let record = Record::from_text(&"ä".repeat(MAX_BODY_BYTES));
        assert_eq!(record.body.len(), MAX_BODY_BYTES);
        assert_eq!(record.number(CUT), Some(MAX_BODY_BYTES as f64));
        let many: Map<String, Value> = (0..500).map(|n| (format!("a{n}"), json!({"b": {"c": [1, 2]}}))).collect();
        let record = Record::from_object(many);
        assert_eq!(record.attributes.len(), MAX_ATTRIBUTES);
        assert_eq!(record.attributes["a0.b.c"], json!("[1,2]"));
    }

    #[test]
    fn what_is_written_reads_back() {
        let record = Record::from_line(
            br#"{"ts":"2026-01-02T03:04:05Z","level":"warn","msg":"a","trace_id":"ab","q":{"depth":7}}"#,
        );
        let line = serde_json::to_vec(&record).unwrap();
        assert_eq!(Record::from_line(&line), record);
        assert_eq!(record.number("q.depth"), Some(7.0));
        assert_eq!(record.shown(), "WARN a");
    }
}
