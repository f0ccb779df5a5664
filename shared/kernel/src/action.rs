//! An action on a service, by whomever, and what came of it. A fact of its own: it belongs to no run, though one may have asked.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    call::Observation,
    ids::{ActionId, CallId, RunId, TenantId},
};

/// Who did what to which service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Action {
    /// Its id.
    pub action_id: ActionId,
    /// Whose.
    pub tenant: TenantId,
    /// The service that it was done to, as its records name it.
    pub service: String,
    /// Who did it: a user, a job, an agent.
    pub actor: String,
    /// What was done, in words or as a request line.
    pub what: String,
    /// What it should lead to, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expects: Option<String>,
    /// The id of the request, as it stands in the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The id of the session; what else happens in it is not told apart, so it only counts if there is no nearer id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The trace of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Instances of the service that it went to, if they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub components: Vec<String>,
    /// When it was done.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The run that asks what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The call that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// Who recorded it: the name of the credential, or a service.
    pub recorded_by: String,
}

impl Action {
    /// The ids by which its lines are known, nearest first.
    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        let near: Vec<&str> = self.request_id.iter().chain(&self.trace_id).map(String::as_str).collect();
        if near.is_empty() { self.session_id.iter().map(String::as_str).collect() } else { near }
    }
}

/// What came of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    /// What was expected has happened.
    TookEffect,
    /// It has not, and will not.
    Failed,
    /// It is still under way.
    InProgress,
    /// Nobody can say from here.
    Unsure,
}

impl ActionOutcome {
    /// The name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TookEffect => "took_effect",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Unsure => "unsure",
        }
    }
}

/// A look at the world, and what it showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// By which tool.
    pub tool: String,
    /// Whether it showed the effect; none if it could not be looked at.
    pub holds: Option<bool>,
    /// What was seen, or why nothing.
    pub words: String,
}

/// The conclusion about an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ActionConclusion {
    /// What came of it.
    pub outcome: ActionOutcome,
    /// The last stage that its lines show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What is told: what changed, the evidence, what is missing.
    pub observation: Observation,
    /// How it was cross-checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verified: Vec<Verified>,
}
