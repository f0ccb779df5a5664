//! Models behind one trait: asked with a prompt, answering with text and calls, or failing in one of the ways that have a rule.

pub mod failure;
mod meter;
pub mod places;
pub mod prices;
pub mod recording;
pub mod remote;
pub mod route;
pub mod router;
pub mod scripted;
pub mod wire;

use std::sync::Arc;

use futures::future::BoxFuture;
use kernel::{RunId, budget::Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compaction::SUMMARY_TOOL;

pub use failure::{FailureKind, ModelError, Rule};
pub use route::TurnKind;
pub use router::{Answered, Models, ModelsOptions, Unanswered};

/// A tool as declared to a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDecl {
    /// The name that the model calls: letters, digits, `_` and `-`.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of the arguments.
    pub schema: Value,
}

/// What a model is asked.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Rules and instructions: the stable beginning.
    pub system: String,
    /// What it is about.
    pub user: String,
    /// What may be called.
    pub tools: Arc<[ToolDecl]>,
    /// About how many tokens their declarations take.
    pub tool_tokens: u64,
    /// Most tokens of the answer.
    pub max_output_tokens: u64,
    /// The run that asks.
    pub run_id: RunId,
    /// The number of its turn.
    pub turn: u32,
    /// How often this turn has asked before.
    pub ask: u32,
}

impl Prompt {
    /// Whether it asks for a summary of what went before, not for what to do in the turn.
    #[must_use]
    pub fn asks_for_summary(&self) -> bool {
        self.tools.iter().any(|tool| tool.name == SUMMARY_TOOL)
    }
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The model that answered, as the provider names it.
    pub model: String,
    /// Its text.
    pub text: String,
    /// What it thought before it said that, as far as the provider tells. It is nobody's to act on.
    pub reasoning: String,
    /// Its calls, in order.
    pub calls: Vec<ModelCall>,
    /// What it consumed; the cost is added by [`Models`].
    pub usage: Usage,
    /// Whether the provider has just said so itself. What is played again says nothing of how it counts.
    #[serde(skip)]
    pub is_counted: bool,
    /// Why it stopped.
    pub finish: Finish,
    /// The provider's own name for the answer.
    pub response_id: Option<String>,
    /// Kinds of content that are nothing to the runtime, such as searches that the provider made by itself.
    pub others: Vec<String>,
}

/// A call as a model wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// The provider's id, if it gave one.
    pub id: Option<String>,
    /// The name called.
    pub name: String,
    /// With what.
    pub arguments: Arguments,
}

/// Arguments of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// JSON.
    Json(Value),
    /// Text that is not JSON.
    Malformed(String),
}

/// Why a model stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It had said all.
    #[default]
    Stop,
    /// It wants its calls carried out.
    Calls,
    /// The limit of output was reached.
    Length,
    /// The provider held something back.
    Filtered,
    /// Another reason, by the provider's word.
    Other(String),
}

impl Finish {
    /// A word for logs and the log of the run.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::Calls => "tool_calls",
            Self::Length => "length",
            Self::Filtered => "content_filter",
            Self::Other(word) => word,
        }
    }
}

/// What is heard of an answer while it is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// More text.
    More(&'a str),
    /// The answer begins anew: what was heard of it does not count.
    Anew,
}

/// Takes pieces of text while an answer is under way.
pub type OnDelta<'a> = &'a (dyn Fn(Piece<'_>) + Send + Sync);

/// Somebody who answers prompts.
pub trait Provider: Send + Sync {
    /// Asks once. Dropping the future stops the call.
    fn answer<'a>(&'a self, prompt: &'a Prompt, on_delta: OnDelta<'a>) -> BoxFuture<'a, Result<Answer, ModelError>>;

    /// Name of the provider in the terms of the GenAI conventions, such as `openai`.
    fn provider(&self) -> &str;

    /// Name of the model that is asked for.
    fn model(&self) -> &str;
}

/// A model as written in an agent's file: `provider:model`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelName {
    /// Such as `openai` or `scripted`.
    pub provider: String,
    /// The rest.
    pub model: String,
}

impl std::fmt::Display for ModelName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.provider, self.model)
    }
}

impl std::str::FromStr for ModelName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text.split_once(':') {
            Some((provider, model)) if !provider.trim().is_empty() && !model.trim().is_empty() => {
                Ok(Self { provider: provider.trim().to_ascii_lowercase(), model: model.trim().to_owned() })
            }
            _ => Err(ModelError::misconfigured(format!(
                "`{}` is not provider:model, such as openai:gpt-5-mini or scripted:loop-steps",
                kernel::excerpt(text, 80)
            ))),
        }
    }
}
