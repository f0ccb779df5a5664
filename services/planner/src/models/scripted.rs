//! A model that plays a scenario from a file: for tests, demonstrations and load, with nothing to pay.

pub mod scenario;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures::future::BoxFuture;
use kernel::{RunId, budget::Usage};
use serde_json::{Map, Value};

use super::{Answer, Arguments, FailureKind, Finish, ModelCall, ModelError, OnDelta, Piece, Prompt, Provider};
use crate::compaction::SUMMARY_TOOL;
use scenario::{Captures, Scenario, ScriptedCall, ScriptedError, ScriptedFinish, Step, fill, fill_value};

/// Time between two pieces of a slow answer.
const PIECE: Duration = Duration::from_millis(50);
/// Runs whose used steps are remembered.
const MAX_RUNS: usize = 10_000;

/// The scenarios of a folder; a file that changes is read again.
pub struct Scenarios {
    folder: PathBuf,
    read: Mutex<HashMap<String, (SystemTime, Arc<Scenario>)>>,
    used: Mutex<HashSet<(RunId, usize)>>,
}

impl Scenarios {
    /// The scenarios in `folder`.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, read: Mutex::default(), used: Mutex::default() }
    }

    /// The model that plays the scenario of this name.
    #[must_use]
    pub fn provider(scenarios: &Arc<Self>, name: &str) -> ScriptedProvider {
        ScriptedProvider { scenarios: Arc::clone(scenarios), name: name.to_owned() }
    }

    fn get(&self, name: &str) -> Result<Arc<Scenario>, ModelError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if name.is_empty() || !name.chars().all(legal) {
            return Err(ModelError::misconfigured(format!("`{name}` is no name of a scenario")));
        }
        let path = self.folder.join(format!("{name}.yaml"));
        let unreadable = |error: std::io::Error| {
            ModelError::misconfigured(format!("scenario {} can't be read: {error}", path.display()))
        };
        let changed = std::fs::metadata(&path).and_then(|about| about.modified()).map_err(unreadable)?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, scenario)) = read.get(name)
            && *when == changed
        {
            return Ok(Arc::clone(scenario));
        }
        let yaml = std::fs::read_to_string(&path).map_err(unreadable)?;
        let scenario = Scenario::parse(name, &yaml).map_err(|error| ModelError::misconfigured(error.to_string()))?;
        let scenario = Arc::new(scenario);
        read.insert(name.to_owned(), (changed, Arc::clone(&scenario)));
        Ok(scenario)
    }

    fn is_used(&self, run: RunId, step: usize) -> bool {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).contains(&(run, step))
    }

    fn use_up(&self, run: RunId, step: usize) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() >= MAX_RUNS {
            used.clear();
        }
        used.insert((run, step));
    }
}

/// A model that plays one scenario.
pub struct ScriptedProvider {
    scenarios: Arc<Scenarios>,
    name: String,
}

impl ScriptedProvider {
    async fn play(&self, prompt: &Prompt, on_delta: OnDelta<'_>) -> Result<Answer, ModelError> {
        let scenario = self.scenarios.get(&self.name)?;
        let summarises = prompt.asks_for_summary();
        let found = scenario.find(prompt.turn, &prompt.user, |index, step| {
            // Who is asked for a summary plays no turn, and who plays a turn writes none.
            let writes_one = step.calls.iter().any(|call| call.tool == SUMMARY_TOOL);
            writes_one != summarises || (step.once && self.scenarios.is_used(prompt.run_id, index))
        });
        let Some((index, step, mut captures)) = found else {
            let problem = format!("scenario `{}` has no step for turn {} as it is", self.name, prompt.turn);
            return Err(ModelError::misconfigured(problem));
        };
        if step.once {
            self.scenarios.use_up(prompt.run_id, index);
        }
        captures.insert("run_id".to_owned(), prompt.run_id.to_string());
        captures.insert("turn".to_owned(), prompt.turn.to_string());
        let bad = |problem| {
            ModelError::misconfigured(format!("scenario `{}`, step `{}`: {problem}", self.name, step.label()))
        };
        let text = step.text.as_deref().map(|text| fill(text, &captures)).transpose().map_err(bad)?.unwrap_or_default();
        let calls =
            step.calls.iter().map(|call| call_of(call, &captures)).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        let slow = step.slow.map(kernel::units::Duration::std).unwrap_or_default();
        speak(&text, slow, on_delta).await;
        if let Some(error) = &step.error {
            return Err(failure(error));
        }
        let finish = finish_of(step);
        let usage = usage_of(step, prompt, &text, &calls);
        if finish == Finish::Filtered {
            return Err(ModelError::new(FailureKind::Refused, text).spent(usage));
        }
        Ok(Answer { model: self.name.clone(), text, calls, usage, finish, ..Answer::default() })
    }
}

impl Provider for ScriptedProvider {
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>> {
        Box::pin(self.play(prompt, on_delta))
    }

    fn provider(&self) -> &str {
        "scripted"
    }

    fn model(&self) -> &str {
        &self.name
    }
}

/// Says the text: at once, or in pieces spread over `slow`.
async fn speak(text: &str, slow: Duration, on_delta: OnDelta<'_>) {
    if slow.is_zero() {
        if !text.is_empty() {
            on_delta(Piece::More(text));
        }
        return;
    }
    let pieces = usize::try_from(slow.as_millis() / PIECE.as_millis()).unwrap_or(1).max(1);
    let size = text.chars().count().div_ceil(pieces).max(1);
    let letters: Vec<char> = text.chars().collect();
    let mut said = letters.chunks(size);
    let between = slow / u32::try_from(pieces).unwrap_or(1);
    for _ in 0..pieces {
        if let Some(piece) = said.next() {
            on_delta(Piece::More(&piece.iter().collect::<String>()));
        }
        tokio::time::sleep(between).await;
    }
}

fn call_of(call: &ScriptedCall, captures: &Captures) -> Result<ModelCall, String> {
    let arguments = match (&call.malformed, &call.arguments) {
        (Some(raw), _) => Arguments::Malformed(fill(raw, captures)?),
        (None, Some(value)) => Arguments::Json(fill_value(value, captures)?),
        (None, None) => Arguments::Json(Value::Object(Map::new())),
    };
    Ok(ModelCall { id: call.id.clone(), name: call.tool.clone(), arguments })
}

fn failure(error: &ScriptedError) -> ModelError {
    let kind = super::failure::with_status(error.status, &reqwest::header::HeaderMap::new(), "").kind;
    let message = format!("the scenario fails with status {}", error.status);
    ModelError::new(kind, message).after(error.retry_after.map(kernel::units::Duration::std))
}

fn finish_of(step: &Step) -> Finish {
    match step.finish {
        Some(ScriptedFinish::Length) => Finish::Length,
        Some(ScriptedFinish::Filtered) => Finish::Filtered,
        Some(ScriptedFinish::Stop) => Finish::Stop,
        None if step.calls.is_empty() => Finish::Stop,
        None => Finish::Calls,
    }
}

fn usage_of(step: &Step, prompt: &Prompt, text: &str, calls: &[ModelCall]) -> Usage {
    let usage = Usage { model_calls: 1, ..Usage::default() };
    if let Some(said) = step.usage {
        return Usage { input_tokens: said.input, cached_tokens: said.cached, output_tokens: said.output, ..usage };
    }
    Usage { model_calls: 1, ..super::remote::estimate("", prompt, text, calls) }
}
