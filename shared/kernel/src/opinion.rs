//! A second opinion: a small model that is asked where the observer's rules are unsure, if an agent names one.
//!
//! It answers by choosing, never in words of its own, so that nothing that it was shown speaks through it. What the rules found
//! stands whatever it says: all that it can do is to have somebody look who would have slept.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{agent::Models, budget::Usage};

/// A model that gives second opinions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Adviser {
    /// `provider:model`, or several to fall back on in this order. No other model of the agent is asked in its place.
    pub model: Models,
    /// When it is asked.
    #[serde(default)]
    pub when: AskWhen,
}

/// When a second opinion is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskWhen {
    /// At the end of an activity, if its status says that it went well while its output holds what would have woken the run
    /// had it gone on, and no program's own last word says how it went. At most once for each call.
    #[default]
    Unsure,
}

/// What came of asking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecondOpinion {
    /// `provider:model`, as far as one was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it said; without that the rules' word stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub said: Option<Opinion>,
    /// Why there is no opinion: `late`, `unreachable`, `refused`, `garbled`, or how the model failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// What asking cost.
    pub usage: Usage,
}

/// What a model says of output that it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Opinion {
    /// Whether it is out of the ordinary.
    pub anomaly: bool,
    /// Whether something has to be decided because of it.
    pub decision_needed: bool,
    /// Why.
    pub why: Why,
}

/// The reasons that there are to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It failed, and its status hides that.
    Failed,
    /// A part of the work failed or was left out.
    Incomplete,
    /// Something failed that was expected to, or was dealt with.
    Expected,
    /// It only looks like a failure.
    Harmless,
    /// The output does not tell.
    Unclear,
}

impl SecondOpinion {
    /// Nobody said anything, for this reason.
    #[must_use]
    pub fn none(failed: impl Into<String>) -> Self {
        Self { failed: Some(failed.into()), ..Self::default() }
    }

    /// Whether it says that the rules have missed something.
    #[must_use]
    pub fn objects(&self) -> bool {
        self.said.is_some_and(|said| said.anomaly || said.decision_needed)
    }
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Failed, Self::Incomplete, Self::Expected, Self::Harmless, Self::Unclear];

    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Incomplete => "incomplete",
            Self::Expected => "expected",
            Self::Harmless => "harmless",
            Self::Unclear => "unclear",
        }
    }

    /// The same in a clause.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Failed => "it failed, and its status hides that",
            Self::Incomplete => "a part of the work failed or was left out",
            Self::Expected => "what failed was expected to fail, or was dealt with",
            Self::Harmless => "it only looks like a failure",
            Self::Unclear => "the output does not tell how it went",
        }
    }
}
