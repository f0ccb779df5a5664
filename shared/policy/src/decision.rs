//! What comes out: the answer, who gave it, and what it obliges to.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason of a denial when no policy fits the call. Ids with a colon are the runtime's; a policy can't have one.
pub const NO_MATCH: &str = "runtime:no-match";
/// The reason of a denial when the arguments are too deep, too many or too long to be judged.
pub const ARGUMENTS_BEYOND_LIMITS: &str = "runtime:arguments-beyond-limits";
/// The reason of a denial when a fact of the request can't be put into policy terms.
pub const NOT_JUDGED: &str = "runtime:not-judged";

/// May the call happen? Ordered from free to forbidden, so that `max` is the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It may.
    Allow,
    /// Only if a person agrees.
    Ask,
    /// It may not.
    Deny,
}

impl Answer {
    /// The name used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What whoever carries the call out must do beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Obligation {
    /// Do a dry run first and show its result.
    DryRunFirst,
    /// Two different people must agree: a permit with it asks, also without `@ask`.
    TwoPeople,
    /// Read back afterwards whether the effect is there.
    VerifyAfter,
}

impl Obligation {
    /// Every obligation.
    pub const ALL: [Self; 3] = [Self::DryRunFirst, Self::TwoPeople, Self::VerifyAfter];

    /// The name used in `@obligation` and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DryRunFirst => "dry_run_first",
            Self::TwoPeople => "two_people",
            Self::VerifyAfter => "verify_after",
        }
    }

    /// The obligation of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|obligation| obligation.as_str() == name)
    }
}

/// A policy that decided, and its words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reason {
    /// The policy's `@id`, or one of the runtime's own.
    pub policy: String,
    /// Its `@reason`, or the words of its `@ask`.
    pub text: String,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// May it happen?
    pub answer: Answer,
    /// The policies that gave this answer, ordered by id; never empty.
    pub reasons: Vec<Reason>,
    /// What the policies that permit the call, freely or by asking, oblige to; empty if denied.
    pub obligations: BTreeSet<Obligation>,
    /// The version of the policies that decided.
    pub policy_version: String,
}

impl Decision {
    /// The reasons in one line, for a person or a model.
    #[must_use]
    pub fn explanation(&self) -> String {
        self.reasons.iter().map(|reason| reason.text.as_str()).collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.reasons.iter().map(|reason| reason.policy.as_str()).collect();
        write!(f, "{} by {}", self.answer, policies.join(", "))?;
        for obligation in &self.obligations {
            write!(f, ", {}", obligation.as_str())?;
        }
        Ok(())
    }
}
