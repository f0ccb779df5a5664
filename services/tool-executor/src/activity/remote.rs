//! Activities that go on elsewhere: a job behind HTTP, started by one request and asked about by others.
//!
//! What they answer becomes the output of the call, a line for each change, in the same files as a command's: so it is
//! published, followed and taken up again as any other. Nothing of it is in this process but the questions; whoever has the
//! handle, which is in the log, can ask them.
//!
//! An event from outside may call back: then it is asked at once how it stands, instead of when its time comes. What the event
//! says is not believed, and one that is lost costs no more than that time.

use std::sync::Arc;
use std::time::Duration;

use engine::{Pace, Standing};
use jiff::Timestamp;
use kernel::agent::Allow;
use kernel::call::ErrorClass;
use kernel::tool::HttpRequest;
use kernel::{CallId, RunId, TenantId, Trust, excerpt};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::files::Files;
use crate::outcome::{Content, ToolError};
use crate::registry::FollowUps;
use crate::tools::{Invocation, Requests};

/// How long one question may take.
const ASK_WITHIN: Duration = Duration::from_secs(30);
/// What is kept of an answer as a line of output, in bytes.
const LINE: usize = 4096;
/// Answers in a row that it is not there, before it counts as gone.
const GONE_AFTER: u32 = 3;
/// Least time between two questions that events ask for: anybody may send many.
const NEWS_EVERY: Duration = Duration::from_millis(500);

/// All that it takes to ask about an activity that goes on elsewhere.
pub(crate) struct Elsewhere {
    pub requests: Requests,
    pub remote: FollowUps,
    pub tenant: TenantId,
    pub run: RunId,
    pub agent: String,
    pub trust: Trust,
    pub call: CallId,
    /// Those of the call, and as `result` the answer to its start.
    pub arguments: Map<String, Value>,
    pub idempotency_key: String,
    pub traceparent: String,
    pub allow: Allow,
    pub started: Timestamp,
    pub deadline: Timestamp,
    pub pace: Pace,
    /// The resource about which events call back.
    pub callback: Option<String>,
    /// Rung when one does.
    pub news: Arc<Notify>,
}

/// How it stands, by its own words.
#[derive(Debug, PartialEq, Eq)]
enum Stands {
    GoesOn,
    Done,
    Failed,
}

impl Elsewhere {
    /// Asks until it has ended, and leaves in its files what it said and how it ended. `ending` says why it is to be ended.
    pub(super) async fn ask_to_the_end(self, files: Files, mut ending: watch::Receiver<Option<&'static str>>) {
        let (mut last, mut number, mut missing) = (String::new(), 0, 0);
        let mut dense_from = Instant::now();
        loop {
            match self.ask(&self.remote.status.http).await {
                Ok(content) => {
                    missing = 0;
                    let (line, stands) = self.read(&content);
                    if line != last {
                        self.keep(&files, &line);
                        // What moves is watched.
                        dense_from = Instant::now();
                        last = line;
                    }
                    match stands {
                        Stands::GoesOn => {}
                        Stands::Done => return self.ended(&files, 0),
                        Stands::Failed => return self.ended(&files, 1),
                    }
                }
                Err(error) => {
                    let line = format!("[it could not be asked how it stands: {}]", excerpt(&error.message, LINE));
                    if error.class() != ErrorClass::Retry {
                        missing += 1;
                    }
                    if line != last {
                        self.keep(&files, &line);
                        dense_from = Instant::now();
                        last = line;
                    }
                    if missing >= GONE_AFTER {
                        self.reason(&files, "lost");
                        return self.ended(&files, 1);
                    }
                }
            }
            number += 1;
            let reason = *ending.borrow_and_update();
            if let Some(reason) = reason {
                // Its end is asked for at each look, until there is one.
                self.reason(&files, reason);
                if self.end().await {
                    return self.ended(&files, 1);
                }
            }
            let pause = self.pause(dense_from.elapsed(), reason.is_some(), number);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.news() => metrics::counter!("tool_executor_callbacks_total").increment(1),
                Ok(()) = ending.changed() => {}
            }
        }
    }

    /// Waits until an event calls back, but not just after a question.
    async fn news(&self) {
        tokio::time::sleep(NEWS_EVERY).await;
        self.news.notified().await;
    }

    fn pause(&self, dense_for: Duration, ends: bool, number: u64) -> Duration {
        if ends {
            return self.pace.shortest;
        }
        let now = Timestamp::now();
        let span = |from: Timestamp, to: Timestamp| Duration::try_from(to.duration_since(from)).unwrap_or_default();
        let standing = Standing { age: span(self.started, now).min(dense_for), left: Some(span(now, self.deadline)) };
        self.pace.jittered(standing, self.call.0, number)
    }

    /// Asks for its end. Whether there is nothing more to wait for: no way to end it, or it is unknown there.
    async fn end(&self) -> bool {
        let Some(cancel) = &self.remote.cancel else { return true };
        match self.ask(cancel).await {
            Ok(_) => false,
            Err(error) if error.class() == ErrorClass::Retry => false,
            Err(error) => {
                tracing::warn!(call = %self.call, %error, "an activity elsewhere could not be ended");
                true
            }
        }
    }

    async fn ask(&self, http: &HttpRequest) -> Result<Content, ToolError> {
        let invocation = Invocation {
            tenant: &self.tenant,
            run: self.run,
            agent: &self.agent,
            trust: self.trust,
            call: self.call,
            arguments: &self.arguments,
            idempotency_key: &self.idempotency_key,
            traceparent: &self.traceparent,
            allow: &self.allow,
            timeout: ASK_WITHIN,
        };
        self.requests.send(http, invocation).await
    }

    /// The line that an answer makes, and how it stands.
    fn read(&self, content: &Content) -> (String, Stands) {
        let status = &self.remote.status;
        let word = content.value.as_ref().and_then(|value| value.pointer(&status.state));
        let word = match word {
            Some(Value::String(word)) => word.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let is = |words: &[String]| words.iter().any(|known| known.eq_ignore_ascii_case(&word));
        let stands = match (is(&status.done), is(&status.failed)) {
            (true, _) => Stands::Done,
            (_, true) => Stands::Failed,
            _ => Stands::GoesOn,
        };
        let answer = match &content.value {
            Some(value) => self.requests.visible(value.clone()).to_string(),
            None => self.requests.shown(&String::from_utf8_lossy(&content.bytes)).replace('\n', " "),
        };
        let answer = excerpt(&answer, LINE);
        (format!("{}: {answer}", if word.is_empty() { "(no word)" } else { &word }), stands)
    }

    fn keep(&self, files: &Files, line: &str) {
        if let Err(error) = files.add_output(format!("{line}\n").as_bytes()) {
            tracing::warn!(call = %self.call, %error, "what an activity elsewhere says could not be kept");
        }
    }

    fn reason(&self, files: &Files, reason: &str) {
        if let Err(error) = files.set_reason(reason) {
            tracing::warn!(call = %self.call, %error, "could not note why an activity is being ended");
        }
    }

    fn ended(&self, files: &Files, status: i32) {
        if let Err(error) = files.set_exit(status) {
            tracing::error!(call = %self.call, %error, "the end of an activity elsewhere could not be kept");
        }
    }
}

/// What a call is known by elsewhere, from the answer to its start: bounded, since it is in the log and in the state.
pub(crate) fn handle(answer: Option<Value>) -> Value {
    /// The most that is kept.
    const MOST: usize = 8192;
    match answer {
        Some(answer) if answer.to_string().len() <= MOST => answer,
        Some(Value::Object(fields)) => {
            // What identifies is short; what is long describes.
            let short = |value: &Value| !value.is_array() && !value.is_object() && value.to_string().len() <= 256;
            let kept = fields.into_iter().filter(|(_, value)| short(value)).take(24);
            Value::Object(kept.collect())
        }
        Some(_) => json!({}),
        None => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_bounded_and_keeps_what_identifies() {
        assert_eq!(handle(Some(json!({"id": 7}))), json!({"id": 7}));
        let long = json!({"id": 7, "url": "http://h/7", "log": "x".repeat(10_000), "steps": [1, 2]});
        assert_eq!(handle(Some(long)), json!({"id": 7, "url": "http://h/7"}));
        assert_eq!(handle(None), json!({}));
    }
}
