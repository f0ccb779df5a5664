//! Decisions that are remembered: most calls of a tool by an agent are judged by the same facts.
//!
//! A decision follows from the facts that policies mention. If no policy of a set mentions the arguments, the budget or the
//! time, what is left has few values, and a decision can be kept by them. If one does, nothing is kept.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use cedar_policy::PolicySet;
use serde_json::Value;

use crate::decision::Decision;
use crate::request::{Effect, Request, ToolKind, Trust};

/// Decisions that are kept; then it begins anew.
const MAX: usize = 4096;
/// Bytes of the pointers of untrusted arguments in one entry.
const MAX_POINTERS: usize = 1024;
/// Facts that differ from call to call.
const CHANGING: [&str; 3] = ["arguments", "budget", "time"];

/// Decisions by the facts that they follow from.
#[derive(Debug)]
pub struct Cache {
    /// None: these policies mention facts that differ from call to call.
    kept: Option<RwLock<HashMap<Facts, Decision>>>,
}

/// All facts of a request but the changing ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Facts {
    tenant: String,
    agent: String,
    tool: String,
    kind: ToolKind,
    effect: Effect,
    idempotent: bool,
    trust: Trust,
    deciding: Trust,
    untrusted: Vec<String>,
    confined: bool,
    named: [Option<bool>; 4],
    environment: String,
}

impl Facts {
    /// `None` if they are too many to keep, or unusual enough to be looked at each time.
    fn of(request: &Request<'_>) -> Option<Self> {
        let untrusted = request.matters.iter().filter(|argument| argument.trust == Trust::Untrusted);
        let untrusted: Vec<_> = untrusted.map(|argument| argument.pointer.clone()).collect();
        let usual = request.now.is_none_or(|now| now >= jiff::Timestamp::UNIX_EPOCH);
        if !usual || untrusted.iter().map(String::len).sum::<usize>() > MAX_POINTERS {
            return None;
        }
        Some(Self {
            tenant: request.tenant.to_owned(),
            agent: request.agent.to_owned(),
            tool: request.tool.to_owned(),
            kind: request.kind,
            effect: request.effect,
            idempotent: request.idempotent,
            trust: request.trust,
            deciding: request.deciding_trust(),
            untrusted,
            confined: request.confined,
            named: [request.named_host, request.named_command, request.named_path, request.in_workspace],
            environment: request.environment.to_owned(),
        })
    }
}

impl Cache {
    /// For a set of policies.
    pub fn new(policies: &PolicySet) -> Self {
        let steady =
            policies.policies().all(|policy| policy.to_json().is_ok_and(|json| is_steady(&json["conditions"])));
        Self { kept: steady.then(RwLock::default) }
    }

    /// The decision for these facts: kept, or else made by `decide`.
    pub fn decide(&self, request: &Request<'_>, decide: impl FnOnce() -> Decision) -> Decision {
        let Some((kept, facts)) = self.kept.as_ref().zip(Facts::of(request)) else { return decide() };
        if let Some(decision) = kept.read().unwrap_or_else(PoisonError::into_inner).get(&facts) {
            return decision.clone();
        }
        let decision = decide();
        let mut kept = kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX {
            kept.clear();
        }
        kept.insert(facts, decision.clone());
        decision
    }

    /// Whether decisions are kept at all.
    #[cfg(test)]
    pub const fn keeps(&self) -> bool {
        self.kept.is_some()
    }
}

/// Whether conditions (in Cedar's JSON form) mention no changing fact, and use the context only by the names of its facts.
fn is_steady(conditions: &Value) -> bool {
    match conditions {
        Value::String(text) => !CHANGING.contains(&text.as_str()),
        Value::Array(items) => items.iter().all(is_steady),
        Value::Object(fields) => {
            fields.get("Var").and_then(Value::as_str) != Some("context")
                && fields.iter().all(|(operator, operands)| match operator.as_str() {
                    // `context.fact` and `context has fact`.
                    "." | "has" if is_context(&operands["left"]) => is_steady(&operands["attr"]),
                    _ => is_steady(operands),
                })
        }
        _ => true,
    }
}

fn is_context(operand: &Value) -> bool {
    operand.get("Var").and_then(Value::as_str) == Some("context")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(condition: &str) -> bool {
        let policy = format!("@id(\"a\") permit (principal, action, resource) when {{ {condition} }};");
        Cache::new(&policy.parse().unwrap()).keeps()
    }

    #[test]
    fn only_what_mentions_no_changing_fact_is_kept() {
        for condition in
            ["true", "context.confined", "context has named_host && context.named_host", "resource.name like \"x.*\""]
        {
            assert!(keeps(condition), "{condition}");
        }
        for condition in [
            "context.arguments.hasTag(\"/to\")",
            "context.budget has turns && context.budget.turns > 1",
            "context has time && context.time < datetime(\"2030-01-01\")",
            "context has time",
            "context == {confined: true}",
            "[context].contains(context)",
            "context[\"arguments\"].hasTag(\"/to\")",
        ] {
            assert!(!keeps(condition), "{condition}");
        }
    }
}
