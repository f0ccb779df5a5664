//! What can be said of a call before all is known that decides it.
//!
//! The planner looks at a call before it is committed. It does not know where the call will be carried out, what it will find
//! there, or what else the run will have spent by then. So it asks for a denial that holds *whatever* those facts turn out to
//! be: the policies are rewritten once, so that they no longer mention them, each towards what denies less. Of a `forbid`
//! every part that mentions such a fact counts as not fulfilled, of a `permit` as fulfilled; through `!`, `unless`, `&&` and
//! `||` that is the whole of logic that is needed. What the rewritten set denies, the policies themselves deny in any case.

use std::collections::BTreeSet;

use cedar_policy::{Policy, PolicyId, PolicySet};
use serde_json::{Value, json};

use crate::decision::{Answer, Decision, NO_MATCH, Obligation};
use crate::pack::{Pack, Rule, RuleKind};
use crate::policies::Policies;
use crate::request::Request;

/// What whoever asks does not know. Never known are what a call reaches (`confined`, `named_host`, `named_command`,
/// `named_path`, `in_workspace`) and what is left of the budget, since both are found out where and when it is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unknown {
    /// Where the arguments come from: `deciding_trust`, `untrusted`, and `trust` and `source` of the arguments.
    pub origins: bool,
    /// `environment`.
    pub environment: bool,
}

/// What holds whatever the unknown facts turn out to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// The call is denied, for these reasons.
    pub denial: Option<Decision>,
    /// It comes with these obligations, if it is not denied.
    pub obligations: BTreeSet<Obligation>,
    /// It is not certain that it is denied, and a `forbid` may fit, depending on where the arguments come from.
    pub hinges_on_origins: bool,
}

/// What is foreseen with.
#[derive(Debug)]
pub(crate) struct Foresight {
    /// What it denies is denied.
    pub certain: Policies,
    /// What a `forbid` of it fits may be denied, depending on origins; none if those are known or nothing mentions them.
    pub doubtful: Option<Policies>,
}

impl Foresight {
    /// Out of a set of policies.
    ///
    /// # Errors
    /// [`NotRewritten`], which is a mistake of ours.
    pub(crate) fn new(pack: &Pack, version: &str, unknown: Unknown) -> Result<Self, NotRewritten> {
        let certain = Policies::of(rewritten(pack, unknown)?, version.to_owned());
        let doubtful = if unknown.origins { by_origins(pack, unknown)? } else { None };
        Ok(Self { certain, doubtful: doubtful.map(|pack| Policies::of(pack, version.to_owned())) })
    }

    /// What holds of a call.
    pub(crate) fn of(&self, request: &Request<'_>) -> Foreseen {
        let decision = self.certain.decide(request);
        if decision.answer == Answer::Deny {
            return Foreseen { denial: Some(decision), ..Foreseen::default() };
        }
        let forbids =
            |policies: &Policies| policies.decide(request).reasons.iter().any(|reason| reason.policy != NO_MATCH);
        Foreseen {
            denial: None,
            obligations: decision.obligations,
            hinges_on_origins: self.doubtful.as_ref().is_some_and(forbids),
        }
    }
}

/// Ways not to know.
pub(crate) const WAYS: usize = 4;
/// Facts of a call's surroundings, which only whoever carries it out knows.
const SURROUNDINGS: [&str; 6] = ["confined", "named_host", "named_command", "named_path", "in_workspace", "budget"];
/// Facts about where arguments come from, of the context and of an argument.
const ORIGINS: [&str; 2] = ["deciding_trust", "untrusted"];
const ORIGIN_OF_ARGUMENT: [&str; 2] = ["trust", "source"];

/// Why policies can't be rewritten: Cedar does not read what it wrote itself. Then nothing is foreseen.
#[derive(Debug, thiserror::Error)]
#[error("the policy {id} can't be rewritten: {problem}")]
pub(crate) struct NotRewritten {
    id: PolicyId,
    problem: String,
}

impl NotRewritten {
    fn new(policy: &Policy, problem: impl std::fmt::Display) -> Self {
        Self { id: policy.id().clone(), problem: problem.to_string() }
    }
}

impl Unknown {
    /// Its number among the ways.
    pub(crate) fn number(self) -> usize {
        usize::from(self.origins) + 2 * usize::from(self.environment)
    }

    /// Whether a fact of the context is not known.
    fn hides(self, fact: &str) -> bool {
        SURROUNDINGS.contains(&fact)
            || (self.origins && ORIGINS.contains(&fact))
            || (self.environment && fact == "environment")
    }

    /// Whether the conditions of a policy (in Cedar's JSON form) mention what is not known.
    fn is_in_conditions(self, policy: &Value) -> bool {
        policy["conditions"].as_array().into_iter().flatten().any(|condition| self.is_in(&condition["body"]))
    }

    /// Whether an expression (in Cedar's JSON form) mentions what is not known, or may.
    fn is_in(self, expression: &Value) -> bool {
        match expression {
            Value::Array(items) => items.iter().any(|item| self.is_in(item)),
            Value::Object(fields) => fields.iter().any(|(operator, operands)| self.is_in_operation(operator, operands)),
            _ => false,
        }
    }

    fn is_in_operation(self, operator: &str, operands: &Value) -> bool {
        let left = &operands["left"];
        match operator {
            // All of it at once.
            "Var" => operands == "context",
            "Value" => false,
            // Its keys are names, and no operators.
            "Record" => operands.as_object().is_none_or(|fields| fields.values().any(|field| self.is_in(field))),
            "." | "has" if left["Var"] == "context" => {
                first_attribute(operands).is_none_or(|attribute| self.hides(attribute))
            }
            "." | "has" if left.get("getTag").is_some() => {
                let attribute = first_attribute(operands);
                let of_origin = attribute.is_none_or(|attribute| ORIGIN_OF_ARGUMENT.contains(&attribute));
                (self.origins && of_origin) || self.is_in(&left["getTag"])
            }
            // An argument as a whole has its origin in it.
            "getTag" => self.origins || self.is_in(operands),
            _ => self.is_in(operands),
        }
    }
}

/// The attribute that is looked at; of a path of them the first.
fn first_attribute(operands: &Value) -> Option<&str> {
    let attribute = &operands["attr"];
    attribute.as_str().or_else(|| attribute[0].as_str())
}

/// The rewritten set of policies.
///
/// # Errors
/// [`NotRewritten`], which is a mistake of ours.
pub(crate) fn rewritten(pack: &Pack, unknown: Unknown) -> Result<Pack, NotRewritten> {
    let mut to = Pack { set: PolicySet::new(), rules: Default::default(), vocabulary: pack.vocabulary.clone() };
    for policy in pack.set.policies() {
        let Some(rule) = pack.rules.get(policy.id()) else { continue };
        match &rule.kind {
            RuleKind::Forbid => add(&mut to, policy, policy.id().clone(), false, unknown, rule.clone())?,
            RuleKind::Permit { ask, obligations } => {
                let kind = |obligations| RuleKind::Permit { ask: *ask, obligations };
                let free = Rule { reason: rule.reason.clone(), kind: kind(BTreeSet::new()) };
                add(&mut to, policy, policy.id().clone(), true, unknown, free)?;
                if !obligations.is_empty() {
                    // It obliges only if it certainly fits. No id of a policy has such a sign.
                    let id = PolicyId::new(format!("{}#certain", policy.id()));
                    let certain = Rule { reason: rule.reason.clone(), kind: kind(obligations.clone()) };
                    add(&mut to, policy, id, false, unknown, certain)?;
                }
            }
        }
    }
    Ok(to)
}

/// Every `forbid` that turns on where arguments come from, fitting wherever it could; none if there is none.
fn by_origins(pack: &Pack, unknown: Unknown) -> Result<Option<Pack>, NotRewritten> {
    let known = Unknown { origins: false, ..unknown };
    let mut to = Pack { set: PolicySet::new(), rules: Default::default(), vocabulary: pack.vocabulary.clone() };
    for policy in pack.set.policies() {
        let Some(rule) = pack.rules.get(policy.id()).filter(|rule| matches!(rule.kind, RuleKind::Forbid)) else {
            continue;
        };
        let written = policy.to_json().map_err(|error| NotRewritten::new(policy, error))?;
        // What it mentions beside them stays unknown also if they are looked for.
        if unknown.is_in_conditions(&written) && !known.is_in_conditions(&written) {
            add(&mut to, policy, policy.id().clone(), true, unknown, rule.clone())?;
        }
    }
    Ok((!to.rules.is_empty()).then_some(to))
}

/// Adds a policy that mentions nothing unknown, and fits wherever the original could (`fits`) or only where it must.
fn add(
    to: &mut Pack,
    policy: &Policy,
    id: PolicyId,
    fits: bool,
    unknown: Unknown,
    rule: Rule,
) -> Result<(), NotRewritten> {
    let failed = |problem: &dyn std::fmt::Display| NotRewritten::new(policy, problem);
    let mut written = policy.to_json().map_err(|error| failed(&error))?;
    let mut changed = false;
    for condition in written["conditions"].as_array_mut().into_iter().flatten() {
        if unknown.is_in(&condition["body"]) {
            let towards = if condition["kind"] == "unless" { !fits } else { fits };
            condition["body"] = settled(&condition["body"], towards, unknown);
            changed = true;
        }
    }
    let rewritten = if changed {
        Policy::from_json(Some(id.clone()), written).map_err(|error| failed(&error))?
    } else {
        policy.new_id(id.clone())
    };
    to.set.add(rewritten).map_err(|error| failed(&error))?;
    to.rules.insert(id, rule);
    Ok(())
}

/// The expression with every part that mentions something unknown settled, so that the whole comes out as `towards` wherever
/// it could.
fn settled(expression: &Value, towards: bool, unknown: Unknown) -> Value {
    if !unknown.is_in(expression) {
        return expression.clone();
    }
    for operator in ["&&", "||"] {
        if let Some(operands) = expression.get(operator) {
            let side = |side: &str| settled(&operands[side], towards, unknown);
            return json!({ operator: { "left": side("left"), "right": side("right") } });
        }
    }
    if let Some(operands) = expression.get("!") {
        return json!({ "!": { "arg": settled(&operands["arg"], !towards, unknown) } });
    }
    json!({ "Value": towards })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(text: &str) -> Value {
        let policy: Policy =
            format!("permit (principal, action, resource) when {{ {text} }};").parse().expect("a policy");
        policy.to_json().unwrap()["conditions"][0]["body"].clone()
    }

    const NOTHING: Unknown = Unknown { origins: false, environment: false };
    const ORIGINS: Unknown = Unknown { origins: true, environment: false };

    #[test]
    fn what_is_unknown_is_found_wherever_it_is_mentioned() {
        for text in [
            "context.confined",
            "context has named_host && context.named_host",
            "context has budget.turns",
            "context.budget has turns && context.budget.turns > 1",
            "context == {\"a\": 1}",
            "[context].contains(context)",
            "{\"Var\": context.confined} == {\"Var\": true}",
        ] {
            assert!(NOTHING.is_in(&condition(text)), "{text}");
        }
        for text in [
            "context.untrusted.isEmpty()",
            "context[\"deciding_trust\"] == Trust::\"untrusted\"",
            "context.arguments.getTag(\"/to\").trust == Trust::\"operator\"",
            "context.arguments.getTag(\"/to\") has source",
            "context.arguments.getTag(\"/to\") == context.arguments.getTag(\"/cc\")",
        ] {
            assert!(ORIGINS.is_in(&condition(text)) && !NOTHING.is_in(&condition(text)), "{text}");
        }
        for text in [
            "context.trust == Trust::\"untrusted\"",
            "context.arguments.hasTag(\"/to\") && context.arguments.getTag(\"/to\").text like \"*@example.com\"",
            "context.arguments.getTag(\"/to\") has decimal",
            "resource.name == \"context\" && principal.tenant == \"budget\"",
            "{\"Var\": \"context\", \"getTag\": 1} == {\"Var\": \"x\", \"getTag\": 2}",
        ] {
            assert!(!ORIGINS.is_in(&condition(text)), "{text}");
        }
        let environment = condition("context.environment == \"production\"");
        assert!(Unknown { environment: true, ..NOTHING }.is_in(&environment) && !NOTHING.is_in(&environment));
    }

    #[test]
    fn each_part_is_settled_towards_what_is_wanted() {
        let text = "resource.name == \"x\" && !(context.confined || principal.name == \"a\") || context.confined";
        let known = |towards| settled(&condition(text), towards, NOTHING);
        let (name, principal) = (condition("resource.name == \"x\""), condition("principal.name == \"a\""));
        let expected = |value: bool| {
            let inner = json!({"||": {"left": {"Value": !value}, "right": principal.clone()}});
            let left = json!({"&&": {"left": name.clone(), "right": {"!": {"arg": inner}}}});
            json!({"||": {"left": left, "right": {"Value": value}}})
        };
        assert_eq!(known(true), expected(true));
        assert_eq!(known(false), expected(false));
    }
}
