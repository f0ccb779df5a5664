//! Models behind one trait: asked with a prompt, answering with text and calls, or failing in one of four ways.

pub mod prices;
pub mod remote;
pub mod router;
pub mod scripted;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kernel::{RunId, budget::Usage};
use serde_json::Value;

pub use router::{Answered, Models, ModelsOptions};

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
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The model that answered, as the provider names it.
    pub model: String,
    /// Its text.
    pub text: String,
    /// Its calls, in order.
    pub calls: Vec<ModelCall>,
    /// What it consumed; the cost is added by [`Models`].
    pub usage: Usage,
    /// Why it stopped.
    pub finish: Finish,
    /// The provider's own name for the answer.
    pub response_id: Option<String>,
}

/// A call as a model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// The provider's id, if it gave one.
    pub id: Option<String>,
    /// The name called.
    pub name: String,
    /// With what.
    pub arguments: Arguments,
}

/// Arguments of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// JSON.
    Json(Value),
    /// Text that is not JSON.
    Malformed(String),
}

/// Why a model stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// A model call that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Overload, a time-out, a broken connection: the same call may work later.
    #[error("{message}")]
    Transient {
        /// What happened.
        message: String,
        /// When the provider wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It will never work like this: no such model, no key, a request that is refused.
    #[error("{0}")]
    Permanent(String),
    /// The model or its provider will not answer this.
    #[error("refused: {0}")]
    Refused(String),
    /// What came back is no answer: empty, or not what the provider's protocol says.
    #[error("{0}")]
    Invalid(String),
}

impl ModelError {
    /// Transient, without a wish of the provider.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient { message: message.into(), retry_after: None }
    }

    /// A word for metrics and spans.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Transient { .. } => "transient",
            Self::Permanent(_) => "permanent",
            Self::Refused(_) => "refused",
            Self::Invalid(_) => "invalid",
        }
    }
}

/// Takes pieces of text while an answer is under way.
pub type OnDelta<'a> = &'a (dyn Fn(&str) + Send + Sync);

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

impl std::str::FromStr for ModelName {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text.split_once(':') {
            Some((provider, model)) if !provider.trim().is_empty() && !model.trim().is_empty() => {
                Ok(Self { provider: provider.trim().to_ascii_lowercase(), model: model.trim().to_owned() })
            }
            _ => Err(ModelError::Permanent(format!(
                "`{}` is not provider:model, such as openai:gpt-5-mini or scripted:loop-steps",
                kernel::excerpt(text, 80)
            ))),
        }
    }
}
