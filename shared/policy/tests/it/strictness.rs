use policy::{
    ARGUMENTS_BEYOND_LIMITS, Answer, ArgumentProvenance, BudgetLeft, Decision, NO_MATCH, NOT_JUDGED, Obligation,
    Request, Trust,
};
use serde_json::{Value, json};

use crate::{merge, policies};

const FREE: &str = "@id(\"free\") permit (principal, action, resource);";
const ASK: &str = "@id(\"ask\") @ask(\"a person must see it\") permit (principal, action, resource);";
const FORBID: &str = "@id(\"no\") @reason(\"never\") forbid (principal, action, resource);";

fn by(decision: &Decision) -> Vec<&str> {
    decision.reasons.iter().map(|reason| reason.policy.as_str()).collect()
}

/// A policy that permits if `condition` holds.
fn when(condition: &str) -> String {
    format!("@id(\"when\") permit (principal, action, resource) when {{ {condition} }};")
}

fn holds(condition: &str, request: &Request<'_>) -> bool {
    policies(&when(condition)).decide(request).answer == Answer::Allow
}

#[test]
fn the_strictest_wins_in_any_order() {
    let arguments = json!({});
    for (set, answer, wanted) in [
        ([FREE, "", ""], Answer::Allow, "free"),
        ([FREE, ASK, ""], Answer::Ask, "ask"),
        ([ASK, FREE, ""], Answer::Ask, "ask"),
        ([ASK, FREE, FORBID], Answer::Deny, "no"),
        ([FORBID, "", ""], Answer::Deny, "no"),
    ] {
        let decision = policies(&set.join("\n")).decide(&merge(&arguments));
        assert_eq!((decision.answer, by(&decision)), (answer, vec![wanted]), "{set:?}");
    }
}

#[test]
fn nothing_that_fits_is_a_denial() {
    let arguments = json!({});
    let decision = policies(&when("principal.tenant == \"other\"")).decide(&merge(&arguments));
    assert_eq!((decision.answer, by(&decision)), (Answer::Deny, vec![NO_MATCH]));
    assert_eq!(decision.explanation(), "no policy allows it");
}

#[test]
fn obligations_of_all_permits_add_up_and_a_denial_has_none() {
    let arguments = json!({});
    let set = "@id(\"a\") @obligation(\"verify_after\") permit (principal, action, resource);
               @id(\"b\") @ask(\"why\") @obligation(\"two_people, dry_run_first\") permit (principal, action, resource);";
    let decision = policies(set).decide(&merge(&arguments));
    assert_eq!(decision.answer, Answer::Ask);
    assert_eq!(decision.obligations.into_iter().collect::<Vec<_>>(), Obligation::ALL);
    let decision = policies(&format!("{set}\n{FORBID}")).decide(&merge(&arguments));
    assert!(decision.obligations.is_empty());
}

#[test]
fn a_permit_that_takes_two_people_asks_with_or_without_words() {
    let arguments = json!({});
    for (annotations, words) in [("", "two takes two people"), ("@reason(\"it is a lot\")", "it is a lot")] {
        let two =
            format!("@id(\"two\") {annotations} @obligation(\"two_people\") permit (principal, action, resource);");
        let decision = policies(&format!("{FREE} {two}")).decide(&merge(&arguments));
        assert_eq!((decision.answer, by(&decision)), (Answer::Ask, vec!["two"]));
        assert_eq!(decision.explanation(), words);
        assert!(decision.obligations.contains(&Obligation::TwoPeople));
        let asked = policies(&format!("{ASK} {two}")).decide(&merge(&arguments));
        assert_eq!(by(&asked), ["ask", "two"], "both say why");
        assert_eq!(policies(&format!("{two} {FORBID}")).decide(&merge(&arguments)).answer, Answer::Deny);
    }
}

#[test]
fn a_policy_that_fails_never_loosens() {
    // Overflows when evaluated; the validator can't know.
    let broken = "when { context.arguments.hasTag(\"/n\") && context.arguments.getTag(\"/n\") has integer &&
                    context.arguments.getTag(\"/n\").integer * 2 > 3 };";
    let permit = format!("permit (principal, action, resource) {broken}");
    let arguments = json!({"n": i64::MAX});
    let decide = |set: String| policies(&set).decide(&merge(&arguments));
    let decision = decide(format!("{FREE} @id(\"b\") @reason(\"r\") forbid (principal, action, resource) {broken}"));
    assert_eq!((decision.answer, by(&decision)), (Answer::Deny, vec!["b"]));
    assert!(decision.explanation().contains("could not be evaluated"), "{decision:?}");
    let decision = decide(format!("{FREE} @id(\"b\") @ask(\"r\") {permit}"));
    assert_eq!((decision.answer, by(&decision)), (Answer::Ask, vec!["b"]));
    let decision = decide(format!("{FREE} @id(\"b\") @obligation(\"two_people\") {permit}"));
    assert_eq!((decision.answer, decision.obligations.len()), (Answer::Ask, 1));
    let decision = decide(format!("@id(\"b\") {permit}"));
    assert_eq!((decision.answer, by(&decision)), (Answer::Deny, vec![NO_MATCH]));
}

#[test]
fn who_and_what_are_told_apart() {
    let arguments = json!({});
    let request = merge(&arguments);
    assert!(holds("principal == Agent::\"default/keeper\" && principal in Tenant::\"default\"", &request));
    assert!(!holds("principal == Agent::\"default/keeper\"", &Request { tenant: "other", ..request }));
    assert!(holds("resource == Tool::\"github.merge\" && resource.name like \"github.*\"", &request));
    assert!(holds("action == Action::\"external\" && action in Action::\"side_effect\"", &request));
    assert!(!holds("action in Action::\"dangerous\"", &request));
    let payment = Request { effect: policy::Effect::Payment, ..request };
    assert!(holds("action in Action::\"dangerous\" && action in Action::\"side_effect\"", &payment));
    assert!(!holds("resource.idempotent", &request));
    assert!(holds("resource.idempotent", &Request { idempotent: true, ..request }));
}

#[test]
fn facts_of_the_call_can_be_asked_about() {
    let arguments = json!({});
    let left = BudgetLeft { cost_micro_usd: Some(5), tokens: Some(u64::MAX), ..BudgetLeft::default() };
    let request = Request {
        trust: Trust::System,
        environment: "production",
        budget_left: left,
        now: Some("2026-11-29T23:15:00.1234567Z".parse().unwrap()),
        ..merge(&arguments)
    };
    assert!(holds("context.trust == Trust::\"system\" && context.environment == \"production\"", &request));
    assert!(holds("context.budget has cost_micro_usd && context.budget.cost_micro_usd < 6", &request));
    assert!(holds("context.budget has tokens && context.budget.tokens > 1 && !(context.budget has turns)", &request));
    assert!(holds("context has time && context.time.toTime() > duration(\"23h\")", &request));
    assert!(holds("context has time && context.time.toDate() == datetime(\"2026-11-29\")", &request));
}

#[test]
fn a_time_that_cedar_does_not_know_is_denied() {
    let arguments = json!({});
    let request = Request { now: Some("-000050-01-01T00:00:00Z".parse().unwrap()), ..merge(&arguments) };
    let decision = policies(FREE).decide(&request);
    assert_eq!((decision.answer, by(&decision)), (Answer::Deny, vec![NOT_JUDGED]));
}

#[test]
fn arguments_can_be_asked_about_by_pointer() {
    let arguments = json!({"to": ["a", "b"], "mixed": ["a", ["b"], null], "n": 2.0, "sum": 12.5, "deep": {"a/b~c": true}, "none": null});
    let request = merge(&arguments);
    let argument = |pointer: &str, condition: &str| {
        let get = format!("context.arguments.getTag(\"{pointer}\")");
        holds(&format!("context.arguments.hasTag(\"{pointer}\") && {}", condition.replace("$", &get)), &request)
    };
    assert!(argument("/to", "$.kind == \"array\" && [\"a\", \"b\", \"c\"].containsAll($.items)"));
    assert!(argument("/mixed", "$.items == [\"a\", \"\"]"));
    assert!(argument("/to/1", "$.text == \"b\""));
    assert!(argument("", "$.kind == \"object\" && $.items.contains(\"sum\")"));
    assert!(argument("/n", "$ has integer && $.integer == 2"));
    assert!(argument("/sum", "$ has decimal && $.decimal.greaterThan(decimal(\"12.4\"))"));
    assert!(argument("/deep/a~1b~0c", "$ has boolean && $.boolean"));
    assert!(!argument("/none", "true"));
    assert!(!argument("/absent", "true"));
    assert!(argument("/n", "!($ has trust)"));
}

#[test]
fn provenance_speaks_for_what_is_below_and_lowers_what_is_above() {
    let arguments = json!({"to": ["a", {"b": "c"}], "cc": ["d"], "body": "x"});
    let entry = |pointer: &str, trust| ArgumentProvenance { pointer: pointer.into(), trust, source: pointer.into() };
    let matters = [
        entry("/to", Trust::Operator),
        entry("/to/1", Trust::Untrusted),
        entry("/cc/0", Trust::Trusted),
        entry("/cc/0", Trust::System),
    ];
    let request = Request { matters: &matters, trust: Trust::Operator, ..merge(&arguments) };
    let trust = |pointer: &str, trust: &str, source: &str| {
        let get = format!("context.arguments.getTag(\"{pointer}\")");
        holds(
            &format!(
                "context.arguments.hasTag(\"{pointer}\") && {get} has trust && {get}.trust == Trust::\"{trust}\" &&
                 {get} has source && {get}.source == \"{source}\""
            ),
            &request,
        )
    };
    assert!(trust("/to", "untrusted", "/to/1"));
    assert!(trust("/to/0", "operator", "/to"));
    assert!(trust("/to/1/b", "untrusted", "/to/1"));
    assert!(trust("/cc", "trusted", "/cc/0"));
    assert!(trust("", "untrusted", "/to/1"));
    assert!(holds("!(context.arguments.hasTag(\"/body\") && context.arguments.getTag(\"/body\") has trust)", &request));
    assert!(holds("context.deciding_trust == Trust::\"untrusted\" && context.untrusted == [\"/to/1\"]", &request));
    let unknown = Request { matters: &[], ..request };
    assert!(holds("context.deciding_trust == Trust::\"operator\" && context.untrusted.isEmpty()", &unknown));
}

#[test]
fn arguments_beyond_the_limits_are_denied_even_if_all_is_free() {
    let set = policies(FREE);
    let deep = (0..=policy::MAX_DEPTH).fold(json!(1), |inner, _| json!([inner]));
    let many = Value::from(vec![0; policy::MAX_VALUES]);
    let long = json!("x".repeat(policy::MAX_BYTES + 1));
    for arguments in [deep, many, long] {
        let decision = set.decide(&merge(&arguments));
        assert_eq!((decision.answer, by(&decision)), (Answer::Deny, vec![ARGUMENTS_BEYOND_LIMITS]));
    }
}

#[test]
fn a_remembered_decision_is_the_one_that_would_be_made() {
    // The shipped set mentions no changing fact, so it remembers; with one policy about arguments it does not.
    let mut sets = vec![policy::Policies::embedded()];
    let about =
        "@id(\"one\") @reason(\"no\") forbid (principal, action, resource) when { context.arguments.hasTag(\"/no\") };";
    sets.push(policies(&format!("{FREE}\n{about}")));
    for set in sets {
        for (arguments, trust) in [
            (json!({"to": "x"}), Trust::Untrusted),
            (json!({"to": "y"}), Trust::Operator),
            (json!({"no": 1}), Trust::Operator),
            (json!({"to": "x"}), Trust::Untrusted),
        ] {
            let matters = [ArgumentProvenance { pointer: "/to".into(), trust, source: "here".into() }];
            let request = Request { matters: &matters, ..merge(&arguments) };
            let fresh = policy::Policies::embedded();
            let remembered = set.decide(&request);
            if set.ids() == fresh.ids() {
                assert_eq!(remembered, fresh.decide(&request));
            } else {
                assert_eq!(remembered.answer == Answer::Deny, arguments.get("no").is_some());
            }
        }
        let deep = (0..=policy::MAX_DEPTH).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(by(&set.decide(&merge(&deep))), [ARGUMENTS_BEYOND_LIMITS]);
    }
}
