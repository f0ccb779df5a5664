//! Policies are tested by cases: a request, and what must come out. Behind `esc policy test`.
//!
//! ```json
//! [{
//!   "name": "a stranger's address is asked about",
//!   "request": {
//!     "tool": "mail.send", "effect": "external", "kind": "mcp",
//!     "arguments": {"to": "x@example.com"},
//!     "matters": [{"pointer": "/to", "trust": "untrusted", "source": "tool:http.get"}]
//!   },
//!   "expect": {"answer": "ask", "policies": ["ask-untrusted"]}
//! }]
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision::{Answer, Decision, Obligation};
use crate::error::PolicyError;
use crate::policies::Policies;
use crate::request::{ArgumentProvenance, BudgetLeft, Effect, Request, ToolKind, Trust};

/// What the cases brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The version of the policies that were tested.
    pub policy_version: String,
    /// How many cases there were.
    pub cases: usize,
    /// Those that came out otherwise than expected.
    pub failures: Vec<Failure>,
    /// Policies that gave no answer in any case: tested by nothing.
    pub untested: Vec<String>,
}

impl Report {
    /// Whether every case came out as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "FAILED {}: {}; decided: {}", failure.name, failure.difference, failure.decision)?;
        }
        for id in &self.untested {
            writeln!(f, "no case is decided by {id}")?;
        }
        write!(f, "{} cases, {} failed", self.cases, self.failures.len())
    }
}

/// A case that came out otherwise than expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The case's name.
    pub name: String,
    /// What was expected and is not so.
    pub difference: String,
    /// What came out.
    pub decision: Decision,
}

/// Runs cases (an array of them) against the policies of a directory.
///
/// # Errors
/// If the policies can't be loaded, or a case is not well-formed.
pub fn run(dir: &Path, cases: &Value) -> Result<Report, PolicyError> {
    run_with(&Policies::load(dir)?, cases)
}

/// Runs cases (an array of them) against `policies`.
///
/// # Errors
/// If a case is not well-formed.
pub fn run_with(policies: &Policies, cases: &Value) -> Result<Report, PolicyError> {
    let malformed = |index, message: String| PolicyError::Cases { index, message };
    let cases = cases.as_array().ok_or_else(|| malformed(0, "the cases are not an array".to_owned()))?;
    let mut untested: BTreeSet<&str> = policies.ids().into_iter().collect();
    let mut failures = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let case = Case::deserialize(case).map_err(|error| malformed(index, error.to_string()))?;
        let decision = policies.decide(&case.request.lend());
        for reason in &decision.reasons {
            untested.remove(reason.policy.as_str());
        }
        if let Some(difference) = case.expect.difference(&decision) {
            failures.push(Failure { name: case.name, difference, decision });
        }
    }
    Ok(Report {
        policy_version: policies.version().to_owned(),
        cases: cases.len(),
        failures,
        untested: untested.into_iter().map(str::to_owned).collect(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    request: CaseRequest,
    expect: Expectation,
}

/// A [`Request`] that owns its parts; what is not said is the least favourable.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseRequest {
    #[serde(default = "default_tenant")]
    tenant: String,
    #[serde(default = "default_agent")]
    agent: String,
    tool: String,
    kind: ToolKind,
    effect: Effect,
    #[serde(default)]
    idempotent: bool,
    #[serde(default = "lowest_trust")]
    trust: Trust,
    #[serde(default)]
    arguments: Value,
    #[serde(default)]
    matters: Vec<ArgumentProvenance>,
    #[serde(default)]
    confined: bool,
    named_host: Option<bool>,
    named_command: Option<bool>,
    named_path: Option<bool>,
    in_workspace: Option<bool>,
    #[serde(default)]
    environment: String,
    #[serde(default)]
    budget_left: BudgetLeft,
    now: Option<Timestamp>,
}

fn default_tenant() -> String {
    "default".to_owned()
}

fn default_agent() -> String {
    "agent".to_owned()
}

const fn lowest_trust() -> Trust {
    Trust::Untrusted
}

impl CaseRequest {
    fn lend(&self) -> Request<'_> {
        Request {
            tenant: &self.tenant,
            agent: &self.agent,
            tool: &self.tool,
            kind: self.kind,
            effect: self.effect,
            idempotent: self.idempotent,
            trust: self.trust,
            arguments: &self.arguments,
            matters: &self.matters,
            confined: self.confined,
            named_host: self.named_host,
            named_command: self.named_command,
            named_path: self.named_path,
            in_workspace: self.in_workspace,
            environment: &self.environment,
            budget_left: self.budget_left,
            now: self.now,
        }
    }
}

/// Only the answer, or more.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expect must be allow, ask or deny, or {answer, policies, obligations}")]
enum Expectation {
    Answer(Answer),
    Detailed(Detailed),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detailed {
    answer: Answer,
    /// Exactly these policies gave the answer.
    policies: Option<BTreeSet<String>>,
    /// Exactly these obligations.
    obligations: Option<BTreeSet<Obligation>>,
}

impl Expectation {
    fn difference(&self, decision: &Decision) -> Option<String> {
        let (answer, policies, obligations) = match self {
            Self::Answer(answer) => (*answer, None, None),
            Self::Detailed(expected) => (expected.answer, expected.policies.as_ref(), expected.obligations.as_ref()),
        };
        if answer != decision.answer {
            return Some(format!("expected {answer}"));
        }
        let decided: BTreeSet<_> = decision.reasons.iter().map(|reason| reason.policy.clone()).collect();
        if let Some(policies) = policies.filter(|policies| **policies != decided) {
            return Some(format!("expected it by {policies:?}"));
        }
        obligations
            .filter(|obligations| **obligations != decision.obligations)
            .map(|obligations| format!("expected the obligations {obligations:?}"))
    }
}
