//! Answers that were recorded, played again: for tests and for work without a network.
//!
//! `record:<name>/<provider>:<model>` asks that model and writes down what it says; `replay:<name>` says it again. What was
//! asked is not kept, only a digest of rules and tools: a recording can be shown to others.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::BoxFuture;
use kernel::{RunId, budget::Usage};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Answer, FailureKind, ModelError, OnDelta, Piece, Prompt, Provider};

/// Largest recording that is read, in bytes.
const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// One line of a recording.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// The run that was recorded.
    run: RunId,
    turn: u32,
    ask: u32,
    /// Whether it was asked for a summary before that turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    summary: bool,
    /// `provider:model`.
    model: String,
    /// Digest of rules, instructions and tools.
    asked: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<Answer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

/// An answer that could not be used.
#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    kind: String,
    message: String,
    #[serde(default)]
    usage: Usage,
}

/// Asks another model and writes down what it says.
pub struct RecordProvider {
    inner: Arc<dyn Provider>,
    file: PathBuf,
}

/// Says what was written down.
pub struct ReplayProvider {
    name: String,
    file: PathBuf,
}

/// The file of a recording.
///
/// # Errors
/// When the name is none.
fn file_of(folder: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > 63 || !name.chars().all(legal) {
        let name = kernel::excerpt(name, 80);
        return Err(ModelError::misconfigured(format!(
            "`{name}` is no name of a recording: use letters, digits, `-` and `_`"
        )));
    }
    Ok(folder.join(format!("{name}.jsonl")))
}

impl RecordProvider {
    /// Records what `inner` says.
    ///
    /// # Errors
    /// When the name is none.
    pub fn new(folder: &Path, name: &str, inner: Arc<dyn Provider>) -> Result<Self, ModelError> {
        Ok(Self { inner, file: file_of(folder, name)? })
    }

    async fn record(&self, prompt: &Prompt, on_delta: OnDelta<'_>) -> Result<Answer, ModelError> {
        let result = self.inner.answer(prompt, on_delta).await;
        let (answer, failure) = match &result {
            Ok(answer) => (Some(answer.clone()), None),
            // What passes by itself is nothing to play again.
            Err(error) if error.is_transient() => return result,
            Err(error) => {
                let ModelError { kind, message, usage, .. } = error.clone();
                (None, Some(Failure { kind: kind.as_str().to_owned(), message, usage }))
            }
        };
        let line = Line {
            run: prompt.run_id,
            turn: prompt.turn,
            ask: prompt.ask,
            summary: prompt.asks_for_summary(),
            model: format!("{}:{}", self.inner.provider(), self.inner.model()),
            asked: digest(prompt),
            answer,
            failure,
        };
        // The answer is paid for: it counts even if it could not be written down.
        if let Err(error) = append(&self.file, &line) {
            tracing::error!(%error, file = %self.file.display(), "an answer was not recorded");
        }
        result
    }
}

fn append(file: &Path, line: &Line) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    // One write: lines of several planners do not mix.
    std::fs::OpenOptions::new().create(true).append(true).open(file)?.write_all(text.as_bytes())
}

impl ReplayProvider {
    /// Plays the recording of this name.
    ///
    /// # Errors
    /// When the name is none.
    pub fn new(folder: &Path, name: &str) -> Result<Self, ModelError> {
        Ok(Self { name: name.to_owned(), file: file_of(folder, name)? })
    }

    fn replay(&self, prompt: &Prompt) -> Result<Answer, ModelError> {
        let problem = |what: String| ModelError::misconfigured(format!("recording `{}`: {what}", self.name));
        let bytes = std::fs::metadata(&self.file).map_err(|error| problem(error.to_string()))?.len();
        if bytes > FILE_BYTES {
            return Err(problem(format!("{bytes} bytes are more than {FILE_BYTES}")));
        }
        let text = std::fs::read_to_string(&self.file).map_err(|error| problem(error.to_string()))?;
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let read: Line =
                serde_json::from_str(line).map_err(|error| problem(format!("line {}: {error}", number + 1)))?;
            lines.push(read);
        }
        // Of several recorded runs the last one is played.
        let run = lines.last().map(|line| line.run).ok_or_else(|| problem("it is empty".to_owned()))?;
        let asked = (prompt.turn, prompt.ask, prompt.asks_for_summary());
        let is_it = |line: &Line| line.run == run && (line.turn, line.ask, line.summary) == asked;
        let what = if asked.2 { ", summary" } else { "" };
        let place = format!("turn {}, ask {}{what}", prompt.turn, prompt.ask);
        let line = lines
            .into_iter()
            .rev()
            .find(is_it)
            .ok_or_else(|| problem(format!("there is no answer for {place}: record it again")))?;
        if line.asked != digest(prompt) {
            tracing::warn!(recording = self.name, place, "rules or tools have changed since the recording");
        }
        if let Some(Failure { kind, message, usage }) = line.failure {
            let known = FailureKind::ALL.into_iter().find(|known| known.as_str() == kind);
            return Err(ModelError::new(known.unwrap_or(FailureKind::Unusable), message).spent(usage));
        }
        let answer = line.answer.ok_or_else(|| problem(format!("{place} has neither answer nor failure")))?;
        // A model that named its run names this one now.
        let said = serde_json::to_string(&answer).map_err(|error| problem(error.to_string()))?;
        let said = said.replace(&run.to_string(), &prompt.run_id.to_string());
        serde_json::from_str(&said).map_err(|error| problem(error.to_string()))
    }
}

impl Provider for RecordProvider {
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(self.record(prompt, on_delta))
    }

    fn provider(&self) -> &str {
        self.inner.provider()
    }

    fn model(&self) -> &str {
        self.inner.model()
    }
}

impl Provider for ReplayProvider {
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(async move {
            let answer = self.replay(prompt)?;
            if !answer.text.is_empty() {
                on_delta(Piece::More(&answer.text));
            }
            Ok(answer)
        })
    }

    fn provider(&self) -> &str {
        "replay"
    }

    fn model(&self) -> &str {
        &self.name
    }
}

fn digest(prompt: &Prompt) -> String {
    let mut hasher = Sha256::new();
    hasher.update(&prompt.system);
    for tool in prompt.tools.iter() {
        hasher.update(&tool.name);
        hasher.update(tool.schema.to_string());
    }
    hex::encode(hasher.finalize())
}
