use std::fs;
use std::time::Instant;

use policy::{ArgumentProvenance, Policies, Trust, testing};
use serde_json::{Value, json};

use crate::{merge, shipped};

#[test]
fn the_shipped_cases_pass_and_leave_no_policy_untested() {
    let cases: Value = serde_json::from_str(&fs::read_to_string(shipped().join("tests.json")).unwrap()).unwrap();
    let report = testing::run(&shipped(), &cases).unwrap();
    assert!(report.passed(), "{report}");
    assert_eq!(report.untested, Vec::<String>::new());
    assert_eq!(report.cases, cases.as_array().unwrap().len());
}

#[test]
fn the_program_carries_the_same_policies() {
    let loaded = Policies::load(&shipped()).unwrap();
    let embedded = Policies::embedded();
    assert_eq!(loaded.version(), embedded.version());
    assert_eq!(loaded.ids(), embedded.ids());
    assert_eq!(loaded.version().len(), 64);
}

#[test]
fn a_decision_is_cheap() {
    let policies = Policies::embedded();
    let arguments = json!({"repo": "a/b", "number": 7, "method": "squash", "labels": ["x", "y"]});
    let matters = [ArgumentProvenance { pointer: "/repo".into(), trust: Trust::Operator, source: "operator".into() }];
    let request = policy::Request { matters: &matters, ..merge(&arguments) };
    let batch = || {
        let (rounds, start) = (100, Instant::now());
        for _ in 0..rounds {
            std::hint::black_box(policies.decide(std::hint::black_box(&request)));
        }
        start.elapsed() / rounds
    };
    let each = (0..20).map(|_| batch()).min().unwrap();
    println!("a decision takes {each:?}");
    // Unoptimised and on a loaded machine, in its best moment; it only notices if policies are parsed again for every
    // decision.
    assert!(each.as_millis() < 10, "{each:?}");
}
