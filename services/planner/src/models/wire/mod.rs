//! The ways in which providers are spoken to: what is asked, and what comes back, whole or in pieces.
//!
//! An answer is read by what it looks like, not by whom it came from: servers that speak like another one often speak like a
//! third as well.

mod anthropic;
mod chat;
mod draft;
mod gemini;
mod responses;
mod sse;

use kernel::budget::Usage;
use serde_json::Value;

use super::{
    Answer, Arguments, Finish, ModelCall, Prompt,
    failure::{self, FailureKind, ModelError},
};
use draft::{Draft, list, text};
pub use sse::{Events, TooLarge};

/// How the last event of a stream begins.
const ENDS: [&str; 3] = ["\"type\":\"response.completed\"", "\"type\":\"message_stop\"", "\"interaction.completed\""];
/// Longest part of a provider's words that an error repeats, in bytes.
const WORDS: usize = 400;

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's chat completions; `true`: at OpenAI itself.
    Chat(bool),
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
}

impl Wire {
    /// The path below the provider's address.
    #[must_use]
    pub fn path(self, model: &str) -> String {
        match self {
            Self::Chat(_) => "chat/completions".to_owned(),
            Self::Responses => "responses".to_owned(),
            Self::Anthropic => "messages".to_owned(),
            Self::Gemini => {
                // A name in a path must stay one part of it.
                let part: String =
                    model.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')).collect();
                format!("models/{}:streamGenerateContent?alt=sse", part.trim_start_matches('.'))
            }
        }
    }

    /// The body of a request.
    #[must_use]
    pub fn request(self, model: &str, prompt: &Prompt) -> Value {
        match self {
            Self::Chat(is_openai) => chat::request(model, prompt, is_openai),
            Self::Responses => responses::request(model, prompt),
            Self::Anthropic => anthropic::request(model, prompt),
            Self::Gemini => gemini::request(prompt),
        }
    }

    /// The headers that carry the key and the version of the protocol.
    #[must_use]
    pub fn headers(self, key: &str) -> Vec<(&'static str, String)> {
        match self {
            Self::Chat(_) | Self::Responses => vec![("authorization", format!("Bearer {key}"))],
            Self::Anthropic => {
                vec![("x-api-key", key.to_owned()), ("anthropic-version", "2023-06-01".to_owned())]
            }
            Self::Gemini => vec![("x-goog-api-key", key.to_owned())],
        }
    }
}

/// Reads an answer, event by event or whole.
#[derive(Debug, Default)]
pub struct Decoder {
    draft: Draft,
    /// How much of the text was told.
    told: usize,
}

/// What an event brought that can be shown at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// More text; empty if there was none.
    More(&'a str),
    /// The answer began anew, with this text.
    Anew(&'a str),
}

impl Decoder {
    /// Takes the data of an event of a stream, or a whole body.
    ///
    /// # Errors
    /// When it says that there will be no answer, or is larger than an answer can be.
    pub fn push(&mut self, data: &str) -> Result<Shown<'_>, ModelError> {
        let data = data.trim();
        // Marks of the end that some servers send beside what says so.
        if data.is_empty() || data == "[DONE]" {
            return Ok(Shown::More(""));
        }
        match serde_json::from_str::<Value>(data) {
            // Gemini without events: a list of pieces.
            Ok(Value::Array(pieces)) => pieces.iter().try_for_each(|piece| self.read_bounded(piece))?,
            Ok(event) => self.read_bounded(&event)?,
            Err(_) => {
                self.draft.garbled += 1;
                // Of an end that can't be read, only the counts are lost.
                let begins: String = data.chars().take(80).filter(|c| !c.is_whitespace()).collect();
                self.draft.lost_end |= ENDS.iter().any(|end| begins.contains(end));
            }
        }
        let anew = std::mem::take(&mut self.draft.restarted);
        let from = if anew { 0 } else { self.told };
        self.told = self.draft.text.len();
        let piece = &self.draft.text[from..];
        Ok(if anew { Shown::Anew(piece) } else { Shown::More(piece) })
    }

    /// Whether the provider has said that this is all.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.draft.is_over
    }

    fn read_bounded(&mut self, event: &Value) -> Result<(), ModelError> {
        self.read(event)?;
        if self.draft.is_too_large() {
            return Err(ModelError::new(FailureKind::Garbled, "the answer is larger than any answer can be"));
        }
        Ok(())
    }

    fn read(&mut self, event: &Value) -> Result<(), ModelError> {
        let draft = &mut self.draft;
        let kind = text(event, "type").unwrap_or_default();
        // An error may stand in any stream, in the middle of it or alone.
        if kind == "response.failed" {
            return Err(failure::in_stream(&event["response"]["error"]));
        }
        if kind == "error" || event.get("error").is_some_and(|error| !error.is_null()) {
            return Err(failure::in_stream(event.get("error").filter(|error| !error.is_null()).unwrap_or(event)));
        }
        let object = text(event, "object").unwrap_or_default();
        let step = text(event, "event_type").unwrap_or_default();
        let is_text = object.starts_with("chat.completion") || object == "text_completion";
        match kind {
            _ if kind.starts_with("response.") => responses::read(draft, kind, event),
            _ if object == "response" && event.get("output").is_some() => {
                if text(event, "status") == Some("failed") {
                    return Err(failure::in_stream(&event["error"]));
                }
                responses::whole(draft, event, false);
            }
            "message" if event.get("content").is_some() => anthropic::whole(draft, event),
            "ping" => {}
            "message_start"
            | "message_delta"
            | "message_stop"
            | "content_block_start"
            | "content_block_delta"
            | "content_block_stop" => anthropic::read(draft, kind, event),
            _ if step.starts_with("interaction.") || step.starts_with("step.") => {
                gemini::read_step(draft, step, event);
            }
            _ if object == "interaction" && event.get("steps").is_some() => gemini::whole(draft, event),
            _ if event.get("candidates").is_some()
                || event.get("promptFeedback").is_some()
                || event.get("usageMetadata").is_some() && event.get("serverContent").is_none() =>
            {
                gemini::read(draft, event);
            }
            _ if is_text || event.get("choices").is_some() => chat::read(draft, event),
            _ => draft.garbled += 1,
        }
        Ok(())
    }

    /// The answer, once everything that came was taken. `asked` is for the name of the model and for counting, should the
    /// server have said nothing of either.
    ///
    /// # Errors
    /// When there is no answer in it: broken off, empty, refused, or nothing that was understood.
    pub fn finish(self, model: &str, asked: &Prompt) -> Result<Answer, ModelError> {
        let Self { mut draft, .. } = self;
        let counted = draft.usage;
        let is_whole = draft.is_over || draft.lost_end && draft.is_settled();
        let usage = |usage: Usage| Usage { model_calls: 1, ..usage };
        if !is_whole {
            let heard = !draft.text.is_empty() || !draft.calls.is_empty() || !draft.reasoning.is_empty();
            let (kind, words) = if draft.garbled > 0 && !heard {
                (FailureKind::Garbled, "what came is no answer of a model")
            } else {
                (FailureKind::Reset, "the answer broke off before its end")
            };
            return Err(ModelError::new(kind, words).spent(usage(counted.unwrap_or_default())));
        }
        let declared = |name: &str| asked.tools.iter().any(|tool| tool.name == name);
        let calls: Vec<_> = std::mem::take(&mut draft.calls)
            .into_iter()
            .map(draft::DraftCall::finish)
            .flat_map(|call| if declared(&call.name) { vec![call] } else { unwrapped(call) })
            .collect();
        let said = Answer {
            model: draft.model.unwrap_or_else(|| model.to_owned()),
            is_counted: counted.is_some(),
            usage: usage(counted.unwrap_or_else(|| super::remote::estimate(model, asked, &draft.text, &calls))),
            finish: finish_of(draft.finish, !calls.is_empty()),
            text: draft.text,
            reasoning: draft.reasoning,
            calls,
            response_id: draft.response_id,
            others: draft.others,
        };
        judged(said, draft.refusal, draft.garbled)
    }
}

/// An answer that can be used, or why it can't.
fn judged(said: Answer, refusal: Option<String>, garbled: usize) -> Result<Answer, ModelError> {
    let silent = said.text.trim().is_empty() && said.calls.is_empty();
    let withheld = said.finish == Finish::Filtered || refusal.as_ref().is_some_and(|_| silent);
    if withheld {
        let words = refusal.filter(|words| !words.trim().is_empty()).unwrap_or_else(|| said.text.clone());
        let words = if words.trim().is_empty() { "the provider held the answer back".to_owned() } else { words };
        return Err(ModelError::new(FailureKind::Refused, kernel::excerpt(&words, WORDS)).spent(said.usage));
    }
    let is_misfire =
        matches!(&said.finish, Finish::Other(word) if word.contains("function_call") || word.contains("tool_call"));
    if is_misfire && said.calls.is_empty() {
        let words = format!("the provider could not read the call that the model wrote ({})", said.finish.as_str());
        return Err(ModelError::new(FailureKind::MalformedCall, words).spent(said.usage));
    }
    if silent && said.finish != Finish::Length {
        let words = if garbled > 0 { "what came is no answer of a model" } else { "the answer was empty" };
        let kind = if garbled > 0 { FailureKind::Garbled } else { FailureKind::Empty };
        return Err(ModelError::new(kind, words).spent(said.usage));
    }
    Ok(said)
}

/// What is said of the end, or what the calls say where nothing is; a call is a call, whatever is said.
fn finish_of(said: Option<Finish>, has_calls: bool) -> Finish {
    match said {
        Some(Finish::Stop) | None if has_calls => Finish::Calls,
        Some(said) => said,
        None => Finish::Stop,
    }
}

/// Some models write several calls as one of a tool that nobody declared, named `parallel`.
fn unwrapped(call: ModelCall) -> Vec<ModelCall> {
    let is_wrapper = matches!(call.name.as_str(), "parallel" | "multi_tool_use.parallel" | "multi_tool_use_parallel");
    let Arguments::Json(value) = &call.arguments else { return vec![call] };
    let inner: Vec<_> = list(value, "tool_uses")
        .enumerate()
        .filter_map(|(number, used)| {
            let name = text(used, "recipient_name")?;
            let arguments = used.get("parameters").or_else(|| used.get("arguments")).cloned();
            Some(ModelCall {
                id: call.id.as_ref().map(|id| format!("{id}_{number}")),
                name: name.strip_prefix("functions.").unwrap_or(name).to_owned(),
                arguments: Arguments::Json(arguments.unwrap_or_else(|| Value::Object(serde_json::Map::new()))),
            })
        })
        .collect();
    if is_wrapper && !inner.is_empty() { inner } else { vec![call] }
}

#[cfg(test)]
mod tests;
