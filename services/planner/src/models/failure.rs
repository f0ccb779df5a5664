//! How calls to models fail, and the rule for each way.

use std::time::Duration;

use kernel::budget::Usage;
use serde_json::Value;

use super::ModelName;

/// Longest part of a provider's words that an error repeats, in bytes.
const WORDS: usize = 400;
/// The longest wait that a provider is granted before it is asked again.
const LONGEST_WISH: Duration = Duration::from_secs(15 * 60);

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Too many requests or tokens in too short a time.
    RateLimited,
    /// The account is used up.
    Exhausted,
    /// The provider has more to do than it can, or fails inside.
    Overloaded,
    /// Nothing came in time.
    TimedOut,
    /// The connection or the answer broke off in the middle.
    Reset,
    /// There was no connection.
    Unreachable,
    /// The provider will not take this request, now or later.
    Rejected,
    /// The key is missing or does not count.
    Unauthorized,
    /// There is no such model or no such place.
    NotFound,
    /// Agent file, scenario or recording do not fit.
    Misconfigured,
    /// Model or provider will not answer this.
    Refused,
    /// Nothing was said.
    Empty,
    /// What came is not what the protocol says.
    Garbled,
    /// The provider could not make out the call that the model wrote.
    MalformedCall,
    /// The answer reached the limit of output.
    CutOff,
    /// Arguments that are no JSON, or do not fit the tool.
    MalformedArguments,
    /// A tool that does not exist.
    UnknownTool,
    /// A call that the policies will not let pass.
    Forbidden,
    /// Anything else about an answer that makes it of no use.
    Unusable,
}

/// What is done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Ask the same model again, later each time, as long as there is time; then the next model. If none answers, the turn is
    /// put off, and taken again.
    Retry,
    /// Ask the next model at once. If none answers, the turn is put off, and taken again.
    NextOrLater,
    /// Ask the next model at once. If none answers, the run ends and says why.
    NextOrStop,
    /// Ask again and say what was wrong, a few times, at last another model. Then the turn is given up, and after a few such
    /// turns the run.
    AskAgain,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::RateLimited,
        Self::Exhausted,
        Self::Overloaded,
        Self::TimedOut,
        Self::Reset,
        Self::Unreachable,
        Self::Rejected,
        Self::Unauthorized,
        Self::NotFound,
        Self::Misconfigured,
        Self::Refused,
        Self::Empty,
        Self::Garbled,
        Self::MalformedCall,
        Self::CutOff,
        Self::MalformedArguments,
        Self::UnknownTool,
        Self::Forbidden,
        Self::Unusable,
    ];

    /// A stable word for logs, metrics and the log of the run.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Exhausted => "exhausted",
            Self::Overloaded => "overloaded",
            Self::TimedOut => "timed_out",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::Rejected => "rejected",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Misconfigured => "misconfigured",
            Self::Refused => "refused",
            Self::Empty => "empty",
            Self::Garbled => "garbled",
            Self::MalformedCall => "malformed_call",
            Self::CutOff => "cut_off",
            Self::MalformedArguments => "malformed_arguments",
            Self::UnknownTool => "unknown_tool",
            Self::Forbidden => "forbidden",
            Self::Unusable => "unusable",
        }
    }

    /// What is done about it.
    #[must_use]
    pub const fn rule(self) -> Rule {
        match self {
            Self::RateLimited | Self::Overloaded | Self::TimedOut | Self::Reset | Self::Unreachable => Rule::Retry,
            Self::Exhausted => Rule::NextOrLater,
            Self::Rejected | Self::Unauthorized | Self::NotFound | Self::Misconfigured | Self::Refused => {
                Rule::NextOrStop
            }
            Self::Empty
            | Self::Garbled
            | Self::MalformedCall
            | Self::CutOff
            | Self::MalformedArguments
            | Self::UnknownTool
            | Self::Forbidden
            | Self::Unusable => Rule::AskAgain,
        }
    }
}

/// A model call that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", if *.kind == FailureKind::Refused { "refused: " } else { "" })]
pub struct ModelError {
    /// In which way.
    pub kind: FailureKind,
    /// What happened.
    pub message: String,
    /// When the provider wants to be asked again.
    pub retry_after: Option<Duration>,
    /// What it cost all the same.
    pub usage: Usage,
}

impl ModelError {
    /// A failure that cost nothing.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, usage: Usage::default() }
    }

    /// Something in agent file, scenario or configuration that will never work.
    pub fn misconfigured(message: impl Into<String>) -> Self {
        Self::new(FailureKind::Misconfigured, message)
    }

    /// The same with what it cost.
    #[must_use]
    pub const fn spent(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// The same with the provider's wish.
    #[must_use]
    pub fn after(mut self, wish: Option<Duration>) -> Self {
        self.retry_after = wish.map(|wish| wish.min(LONGEST_WISH));
        self
    }

    /// Whether the turn may work later as it is.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind.rule(), Rule::Retry | Rule::NextOrLater)
    }

    /// Whether the model should hear what was wrong.
    #[must_use]
    pub const fn is_to_be_told(&self) -> bool {
        matches!(self.kind.rule(), Rule::AskAgain)
    }

    /// Of the failures of several models the one that leaves more hope: what may pass is tried again, and what can be said
    /// better is said better.
    #[must_use]
    pub fn or_better(self, before: Option<Self>) -> Self {
        let hope = |error: &Self| match error.kind.rule() {
            Rule::Retry | Rule::NextOrLater => 2,
            Rule::AskAgain => 1,
            Rule::NextOrStop => 0,
        };
        match before {
            Some(before) if hope(&before) > hope(&self) => before,
            _ => self,
        }
    }

    /// As it is kept with the turn.
    #[must_use]
    pub fn noted(&self, model: &ModelName, rule: &str) -> kernel::model::ModelFailure {
        kernel::model::ModelFailure {
            model: model.to_string(),
            kind: self.kind.as_str().to_owned(),
            rule: rule.to_owned(),
            message: kernel::excerpt(&self.message, 240),
            times: 1,
        }
    }
}

/// What a provider says with a status that is not success.
#[must_use]
pub fn with_status(status: u16, headers: &reqwest::header::HeaderMap, body: &str) -> ModelError {
    let parsed = serde_json::from_str::<Value>(body).ok();
    // Google wraps it in a list now and then.
    let said =
        parsed.as_ref().map(|value| value.get(0).unwrap_or(value)).map(|value| value.get("error").unwrap_or(value));
    let words = said.and_then(words_of).unwrap_or_else(|| one_line(body));
    let code = said.map(code_of).unwrap_or_default();
    let kind = match status {
        _ if is_used_up(&code) => FailureKind::Exhausted,
        402 => FailureKind::Exhausted,
        401 | 403 => FailureKind::Unauthorized,
        404 => FailureKind::NotFound,
        408 | 504 => FailureKind::TimedOut,
        429 => FailureKind::RateLimited,
        409 | 425 | 500..=599 => FailureKind::Overloaded,
        _ => FailureKind::Rejected,
    };
    let wish = asked_for(headers).or_else(|| said.and_then(wish_in));
    ModelError::new(kind, kernel::excerpt(&format!("status {status}: {words}"), WORDS)).after(wish)
}

/// What a provider says in the middle of an answer.
#[must_use]
pub fn in_stream(error: &Value) -> ModelError {
    let code = code_of(error);
    let number = error.get("code").or_else(|| error.get("status")).and_then(Value::as_u64);
    let kind = match (code.as_str(), number) {
        (code, _) if is_used_up(code) => FailureKind::Exhausted,
        (code, _) if code.contains("rate_limit") || code.contains("resource_exhausted") => FailureKind::RateLimited,
        (_, Some(429)) => FailureKind::RateLimited,
        (code, number)
            if code.contains("authentication")
                || code.contains("invalid_api_key")
                || code.contains("permission")
                || matches!(number, Some(401 | 403)) =>
        {
            FailureKind::Unauthorized
        }
        (code, number) if code.contains("not_found") || number == Some(404) => FailureKind::NotFound,
        (code, number)
            if code.contains("invalid")
                || code.contains("too_long")
                || code.contains("too_large")
                || code.contains("context_length")
                || number == Some(400) =>
        {
            FailureKind::Rejected
        }
        (code, _) if code.contains("content_filter") || code.contains("safety") => FailureKind::Refused,
        (code, number) if code.contains("timeout") || matches!(number, Some(408 | 504)) => FailureKind::TimedOut,
        _ => FailureKind::Overloaded,
    };
    let words = words_of(error).unwrap_or_else(|| one_line(&error.to_string()));
    ModelError::new(kind, kernel::excerpt(&words, WORDS)).after(wish_in(error))
}

fn is_used_up(code: &str) -> bool {
    ["insufficient_quota", "billing", "insufficient_balance", "credit"].iter().any(|word| code.contains(word))
}

/// Type, code and status of an error, in lower case.
fn code_of(error: &Value) -> String {
    let word = |field: &str| error.get(field).and_then(Value::as_str).unwrap_or_default();
    ["type", "code", "status"].map(word).join(" ").to_ascii_lowercase()
}

fn words_of(error: &Value) -> Option<String> {
    let words = error.as_str().or_else(|| error.get("message").and_then(Value::as_str));
    words.map(one_line).filter(|words| !words.is_empty())
}

fn one_line(text: &str) -> String {
    let words = text.chars().take(4 * WORDS).collect::<String>();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `Retry-After`, in seconds or as a date, and its kin in milliseconds.
fn asked_for(headers: &reqwest::header::HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str| text(name)?.parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"));
    if let Some(seconds) = seconds {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = jiff::fmt::rfc2822::parse(text("retry-after")?).ok()?.timestamp();
    Duration::try_from(at.duration_since(jiff::Timestamp::now())).ok()
}

/// A wish in the body: Google's `retryDelay`, or OpenAI's "try again in 1.2s".
fn wish_in(error: &Value) -> Option<Duration> {
    let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
    let delay = details.filter_map(|detail| detail.get("retryDelay")).find_map(Value::as_str);
    if let Some(seconds) = delay.and_then(|delay| delay.strip_suffix('s')?.parse().ok()) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let words = error.get("message").and_then(Value::as_str)?;
    let (_, after) = words.split_once("try again in ")?;
    let number: String = after.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let unit = &after[number.len()..];
    let scale = if unit.starts_with("ms") {
        0.001
    } else if unit.starts_with('s') {
        1.0
    } else {
        return None;
    };
    Duration::try_from_secs_f64(number.trim_end_matches('.').parse::<f64>().ok()? * scale).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(status: u16, headers: &[(&'static str, &str)], body: &Value) -> ModelError {
        let headers = headers
            .iter()
            .map(|(name, value)| (reqwest::header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        with_status(status, &headers, &body.to_string())
    }

    #[test]
    fn every_status_has_its_kind() {
        for (code, kind) in [
            (400, FailureKind::Rejected),
            (401, FailureKind::Unauthorized),
            (402, FailureKind::Exhausted),
            (403, FailureKind::Unauthorized),
            (404, FailureKind::NotFound),
            (408, FailureKind::TimedOut),
            (409, FailureKind::Overloaded),
            (413, FailureKind::Rejected),
            (422, FailureKind::Rejected),
            (429, FailureKind::RateLimited),
            (500, FailureKind::Overloaded),
            (503, FailureKind::Overloaded),
            (504, FailureKind::TimedOut),
            (529, FailureKind::Overloaded),
        ] {
            assert_eq!(status(code, &[], &json!({"error": {"message": "no"}})).kind, kind, "{code}");
        }
        let used_up = status(429, &[], &json!({"error": {"type": "insufficient_quota", "message": "pay"}}));
        assert_eq!((used_up.kind, used_up.message.as_str()), (FailureKind::Exhausted, "status 429: pay"));
        assert_eq!(
            with_status(502, &Default::default(), "<html>\n bad gateway").message,
            "status 502: <html> bad gateway"
        );
    }

    #[test]
    fn wishes_are_heard_wherever_they_stand() {
        let seconds = |error: ModelError| error.retry_after.map(|wish| wish.as_millis());
        assert_eq!(seconds(status(429, &[("retry-after", "7")], &json!({}))), Some(7000));
        assert_eq!(seconds(status(503, &[("retry-after-ms", "250"), ("retry-after", "9")], &json!({}))), Some(250));
        let google = json!({"error": {"details": [{"@type": "x"}, {"retryDelay": "34.4s"}]}});
        assert_eq!(seconds(status(429, &[], &google)), Some(34_400));
        let openai = json!({"error": {"message": "Rate limit reached. Please try again in 1.5s. Visit"}});
        assert_eq!(seconds(status(429, &[], &openai)), Some(1500));
        assert_eq!(seconds(status(429, &[("retry-after", "-1")], &json!({}))), None);
        assert_eq!(seconds(status(429, &[("retry-after", "1e99")], &json!({}))), None);
        let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&soon).unwrap();
        assert!(seconds(status(429, &[("retry-after", &date)], &json!({}))).is_some_and(|wish| wish > 50_000));
        let never = status(429, &[("retry-after", "99999999")], &json!({}));
        assert_eq!(never.retry_after, Some(LONGEST_WISH), "nobody is waited for that long");
    }

    #[test]
    fn errors_in_a_stream_have_their_kind() {
        for (error, kind) in [
            (json!({"type": "overloaded_error", "message": "Overloaded"}), FailureKind::Overloaded),
            (json!({"type": "invalid_request_error", "message": "no"}), FailureKind::Rejected),
            (json!({"code": 429, "status": "RESOURCE_EXHAUSTED"}), FailureKind::RateLimited),
            (json!({"code": "insufficient_quota"}), FailureKind::Exhausted),
            (json!({"type": "authentication_error"}), FailureKind::Unauthorized),
            (json!("it went wrong"), FailureKind::Overloaded),
            (json!({}), FailureKind::Overloaded),
        ] {
            assert_eq!(in_stream(&error).kind, kind, "{error}");
        }
    }

    #[test]
    fn what_may_pass_is_worth_more_than_what_will_not() {
        let busy = ModelError::new(FailureKind::Overloaded, "busy");
        let no_key = ModelError::new(FailureKind::Unauthorized, "no key");
        let empty = ModelError::new(FailureKind::Empty, "nothing");
        assert_eq!(no_key.clone().or_better(Some(busy.clone())), busy);
        assert_eq!(busy.clone().or_better(Some(no_key.clone())), busy);
        assert_eq!(no_key.clone().or_better(None), no_key);
        assert_eq!(no_key.or_better(Some(empty.clone())), empty);
    }
}
