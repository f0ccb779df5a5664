use std::sync::LazyLock;

use policy::{ArgumentProvenance, EFFECTS, Effect, Policies, Request, TRUSTS, ToolKind, Trust, digest};
use proptest::prelude::*;
use serde_json::{Map, Number, Value};

static POLICIES: LazyLock<Policies> = LazyLock::new(Policies::embedded);

/// Any JSON, of any numbers and any text.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|float| Number::from_f64(float).map_or(Value::Null, Value::Number)),
        (any::<i32>(), 0..6).prop_map(|(digits, places)| Value::from(f64::from(digits) / 10f64.powi(places))),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..8)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn provenance() -> impl Strategy<Value = Vec<ArgumentProvenance>> {
    let pointer = prop_oneof![any::<String>(), "(/[a-z0-9~]{0,3}){0,4}"];
    let trust = prop::sample::select(TRUSTS.to_vec());
    let entry = (pointer, trust, any::<String>());
    let entry = entry.prop_map(|(pointer, trust, source)| ArgumentProvenance { pointer, trust, source });
    prop::collection::vec(entry, 0..6)
}

/// The same value with the keys of every object in the opposite order.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(key, field)| (key.clone(), reversed(field))).collect();
            Value::Object(fields.into_iter().rev().collect::<Map<_, _>>())
        }
        plain => plain.clone(),
    }
}

/// The same value with one plain value in it changed.
fn changed(value: &Value) -> Value {
    match value {
        Value::Array(items) if !items.is_empty() => {
            let mut items = items.clone();
            items[0] = changed(&items[0]);
            Value::Array(items)
        }
        Value::Object(fields) if !fields.is_empty() => {
            let mut fields = fields.clone();
            if let Some(field) = fields.values_mut().next() {
                *field = changed(field);
            }
            Value::Object(fields)
        }
        Value::String(text) => Value::from(format!("{text}.")),
        Value::Null => Value::from(false),
        _ => Value::Null,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn any_call_is_judged_without_a_panic(
        arguments in any_json(),
        matters in provenance(),
        (tenant, agent, tool, environment) in any::<(String, String, String, String)>(),
        kind in prop::sample::select(ToolKind::ALL.to_vec()),
        effect in prop::sample::select(EFFECTS.to_vec()),
        (confined, named_host, named_command, in_workspace) in any::<(bool, Option<bool>, Option<bool>, Option<bool>)>(),
        seconds in prop::option::of(-377_705_023_201i64..253_402_207_200),
    ) {
        let request = Request {
            matters: &matters,
            confined,
            named_host,
            named_command,
            in_workspace,
            environment: &environment,
            now: seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok()),
            ..Request::new(&tenant, &agent, &tool, kind, effect, &arguments)
        };
        let decision = POLICIES.decide(&request);
        prop_assert!(!decision.reasons.is_empty());
        prop_assert_eq!(&decision, &POLICIES.decide(&request), "the same question has the same answer");
        if effect >= Effect::Destructive {
            prop_assert_ne!(decision.answer, policy::Answer::Allow);
        }
        let outside = effect == Effect::External && request.deciding_trust() == Trust::Untrusted;
        if outside && kind != ToolKind::Kernel {
            prop_assert_ne!(decision.answer, policy::Answer::Allow);
        }
    }

    #[test]
    fn a_digest_does_not_know_the_order_of_keys(value in any_json()) {
        prop_assert_eq!(digest(&value), digest(&reversed(&value)));
    }

    #[test]
    fn a_digest_survives_writing_and_reading(value in any_json()) {
        let read: Value = serde_json::from_str(&value.to_string()).unwrap();
        prop_assert_eq!(digest(&value), digest(&read));
    }

    #[test]
    fn a_digest_notices_a_change(value in any_json()) {
        prop_assert_ne!(digest(&value), digest(&changed(&value)));
    }
}
