//! The record of what a turn saw.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trust::Trust;

/// What went into a causal slice, what was cut, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// In the order in which the model saw them.
    pub sections: Vec<Section>,
    /// Tokens in all, as counted before the call.
    pub tokens: u64,
    /// Tokens that the slice could have had.
    pub budget: u64,
    /// The encoding that the tokens were counted with, such as `o200k_base`. None: by the length of the texts, since the model's own is
    /// not public.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_by: Option<String>,
    /// Digest of the agent definition, of the tool catalogue and of the policies in force.
    #[serde(default)]
    pub digests: Vec<String>,
}

/// One part of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Section {
    /// Such as `objective`, `facts`, `history`.
    pub name: String,
    /// The lowest trust in it.
    pub trust: Trust,
    /// Where its content stands in the log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seqs: Vec<crate::Seq>,
    /// What it was taken from beside the log, such as `memory:<id>/<revision>` or `knowledge:<collection>/<document>#<chunk>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// Tokens that it took.
    pub tokens: u64,
    /// What was left out of it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}
