//! What `infra/policies/README.md` shows does what it says there.

use std::fs;

use policy::{Answer, Effect, Obligation, Policies, Request, ToolKind, testing};
use serde_json::{Value, json};

use crate::{merge, policies, shipped};

/// The policies of the README: its Cedar blocks that hold a policy.
fn examples() -> String {
    let readme = fs::read_to_string(shipped().join("README.md")).unwrap();
    let blocks = readme.split("```cedar\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("@id")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_examples_of_the_readme_do_what_it_says() {
    let free = "@id(\"free\") permit (principal, action, resource);";
    let set = policies(&format!("{free}\n{}", examples()));
    assert_eq!(set.ids().len(), 7, "{:?}", set.ids());
    let none = json!({});

    let call = merge(&none);
    assert_eq!(set.decide(&call).answer, Answer::Ask);
    assert_eq!(set.decide(&Request { agent: "ci-keeper", ..call }).answer, Answer::Allow);
    assert_eq!(set.decide(&Request { agent: "ci-keeper", tenant: "other", ..call }).answer, Answer::Ask);
    let acme = Request { tenant: "acme", environment: "production", ..call };
    assert_eq!(set.decide(&acme).answer, Answer::Deny);
    assert_eq!(set.decide(&Request { effect: Effect::Read, ..acme }).answer, Answer::Allow);

    let schedule = |agent| {
        let request = Request::new("default", agent, "schedule.create", ToolKind::Builtin, Effect::External, &none);
        set.decide(&Request { trust: policy::Trust::Operator, ..request }).answer
    };
    assert_eq!((schedule("reporter"), schedule("other")), (Answer::Allow, Answer::Ask));

    let refund = |arguments: &Value| {
        let decision =
            set.decide(&Request::new("default", "a", "stripe.refund", ToolKind::Http, Effect::Payment, arguments));
        assert_eq!(decision.answer, Answer::Ask);
        assert!(decision.obligations.contains(&Obligation::VerifyAfter));
        decision.obligations.contains(&Obligation::TwoPeople)
    };
    assert!(!refund(&json!({"amount": 50})));
    for large in [json!({"amount": 50.01}), json!({"amount": 1e30}), json!({"amount": "20"}), json!({})] {
        assert!(refund(&large), "{large}");
    }

    let mail = |to: Value| {
        let arguments = json!({ "to": to });
        let mut request = Request::new("default", "a", "mail.send", ToolKind::Mcp, Effect::Read, &arguments);
        request.trust = policy::Trust::Operator;
        set.decide(&request).answer
    };
    assert_eq!(mail(json!(["ann@example.com"])), Answer::Allow);
    for to in [
        json!(["ann@example.com", "x@evil.example"]),
        json!(["ann@example.com", ["x@evil.example"]]),
        json!([]),
        json!("x@evil.example"),
    ] {
        assert_eq!(mail(to.clone()), Answer::Deny, "{to}");
    }
}

/// The cases of the README: its blocks of JSON that expect something.
fn cases() -> Vec<Value> {
    let readme = fs::read_to_string(shipped().join("README.md")).unwrap();
    let blocks = readme.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.contains("\"expect\"")).map(|block| serde_json::from_str(block).unwrap()).collect()
}

#[test]
fn the_cases_of_the_readme_pass() {
    let cases = cases();
    assert_eq!(cases.len(), 1);
    let (set, shipped) = (policies(&examples()), Policies::embedded());
    for case in &cases {
        let report = testing::run_with(&set, case).unwrap();
        assert!(report.passed() && report.cases == 3, "{report}");
        assert!(!testing::run_with(&shipped, case).unwrap().passed(), "the default pack asks one person");
    }
}

#[test]
fn a_failing_case_says_what_was_expected_and_what_came() {
    let set = policies(&examples());
    let request = json!({"tool": "stripe.refund", "kind": "http", "effect": "payment", "arguments": {"amount": 20}});
    let case = |expect: Value| json!([{"name": "refund", "request": request, "expect": expect}]);
    let good = testing::run_with(&set, &case(json!({"answer": "ask", "obligations": ["verify_after"]}))).unwrap();
    assert!(good.passed(), "{good}");
    assert_eq!(good.untested.len(), 5);
    for expect in [
        json!("allow"),
        json!({"answer": "ask", "policies": ["two-people-for-large-refunds"]}),
        json!({"answer": "ask", "obligations": []}),
    ] {
        let report = testing::run_with(&set, &case(expect)).unwrap();
        assert!(!report.passed());
        let text = report.to_string();
        assert!(text.contains("FAILED refund: expected") && text.contains("ask by read-refunds-back"), "{text}");
        assert!(text.ends_with("1 cases, 1 failed"), "{text}");
    }
}

#[test]
fn a_malformed_case_is_named() {
    let set = policies(&examples());
    for (cases, wanted) in [
        (json!({}), "not an array"),
        (json!([{"name": "x"}]), "test case 0"),
        (json!([{"name": "x", "request": {"tool": "t", "kind": "http", "effect": "red"}, "expect": "ask"}]), "red"),
        (
            json!([{"name": "x", "request": {"tool": "t", "kind": "http", "effect": "read"}, "expect": "askk"}]),
            "expect",
        ),
        (json!([{"name": "x", "request": {"tooll": "t"}, "expect": "ask"}]), "tooll"),
    ] {
        let said = testing::run_with(&set, &cases).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}");
    }
}
