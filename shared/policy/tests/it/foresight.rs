//! What is foreseen must hold whatever turns out later.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use policy::{
    Answer, ArgumentProvenance, BudgetLeft, EFFECTS, Effect, Foreseen, NO_MATCH, Obligation, Policies, Request, TRUSTS,
    ToolKind, Trust, Unknown,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{merge, policies};

const ALL: Unknown = Unknown { origins: true, environment: true };
const SURROUNDINGS: Unknown = Unknown { origins: false, environment: false };

/// Policies of every form in which something unknown may stand.
const PACKS: [&str; 8] = [
    "@id(\"free\") permit (principal, action, resource);
     @id(\"no-deploy\") @reason(\"nobody deploys\") forbid (principal, action, resource == Tool::\"x.deploy\");",
    "@id(\"free\") permit (principal, action, resource);
     @id(\"prod\") @reason(\"not there\") forbid (principal, action in Action::\"side_effect\", resource)
       when { context.environment == \"production\" && principal.name == \"keeper\" };",
    "@id(\"free\") permit (principal, action, resource);
     @id(\"strangers\") @reason(\"strangers\") forbid (principal, action == Action::\"external\", resource)
       unless { context.deciding_trust != Trust::\"untrusted\" || resource.name == \"x.safe\" };",
    "@id(\"confined\") permit (principal, action, resource) when { context.confined && context.trust != Trust::\"untrusted\" };",
    "@id(\"named\") permit (principal, action == Action::\"read\", resource)
       when { context has named_host && context.named_host };
     @id(\"rest\") @ask(\"why\") @obligation(\"dry_run_first\") permit (principal, action == Action::\"external\", resource);",
    "@id(\"free\") permit (principal, action, resource);
     @id(\"to\") @reason(\"only inside\") forbid (principal, action, resource)
       unless { context.arguments.hasTag(\"/to\") && context.arguments.getTag(\"/to\").text like \"*@example.com\" };
     @id(\"tag\") @reason(\"a stranger's\") forbid (principal, action, resource)
       when { context.arguments.hasTag(\"/to\") && context.arguments.getTag(\"/to\") has trust
              && context.arguments.getTag(\"/to\").trust == Trust::\"untrusted\" };",
    "@id(\"checked\") @obligation(\"verify_after\") permit (principal, action, resource) when { !context.confined || principal.name == \"keeper\" };
     @id(\"two\") @ask(\"both\") @obligation(\"two_people\") permit (principal, action, resource)
       when { context.budget has tokens && context.budget.tokens < 10 || resource.name == \"x.deploy\" };",
    "@id(\"free\") permit (principal, action, resource);
     @id(\"odd\") @reason(\"it overflows\") forbid (principal, action, resource)
       when { if context.confined then resource.name == \"x.deploy\"
              else (context.budget has tokens && context.budget.tokens + 1 > 5) };
     @id(\"whole\") @reason(\"as a whole\") forbid (principal, action, resource)
       when { context.untrusted.contains(\"/to\") && !(context.environment == \"test\") };",
];

static SETS: LazyLock<Vec<Policies>> =
    LazyLock::new(|| PACKS.iter().map(|pack| policies(pack)).chain([Policies::embedded()]).collect());

/// What is known of a call.
#[derive(Clone, Debug)]
struct Call {
    agent: &'static str,
    tool: &'static str,
    kind: ToolKind,
    effect: Effect,
    trust: Trust,
    arguments: Value,
}

/// What is not, or may not be.
#[derive(Clone, Debug)]
struct Rest {
    matters: Vec<ArgumentProvenance>,
    confined: bool,
    named: [Option<bool>; 4],
    environment: &'static str,
    tokens: Option<u64>,
}

fn call() -> impl Strategy<Value = Call> {
    let to = prop::sample::select(vec![json!({}), json!({"to": "ann@example.com"}), json!({"to": "eve@evil.example"})]);
    (
        prop::sample::select(vec!["keeper", "other"]),
        prop::sample::select(vec!["x.deploy", "x.safe", "x.send"]),
        prop::sample::select(ToolKind::ALL.to_vec()),
        prop::sample::select(EFFECTS.to_vec()),
        prop::sample::select(TRUSTS.to_vec()),
        to,
    )
        .prop_map(|(agent, tool, kind, effect, trust, arguments)| Call {
            agent,
            tool,
            kind,
            effect,
            trust,
            arguments,
        })
}

fn rest() -> impl Strategy<Value = Rest> {
    let trust = prop::option::of(prop::sample::select(TRUSTS.to_vec()));
    let matters = trust.prop_map(|trust| {
        let entry = |trust| ArgumentProvenance { pointer: "/to".to_owned(), trust, source: "somewhere".to_owned() };
        trust.into_iter().map(entry).collect()
    });
    let tokens = prop::sample::select(vec![None, Some(0), Some(5), Some(u64::MAX)]);
    let environment = prop::sample::select(vec!["", "test", "production"]);
    (matters, any::<bool>(), any::<[Option<bool>; 4]>(), environment, tokens).prop_map(
        |(matters, confined, named, environment, tokens)| Rest { matters, confined, named, environment, tokens },
    )
}

fn request<'a>(call: &'a Call, rest: &'a Rest) -> Request<'a> {
    let [named_host, named_command, named_path, in_workspace] = rest.named;
    Request {
        trust: call.trust,
        matters: &rest.matters,
        confined: rest.confined,
        named_host,
        named_command,
        named_path,
        in_workspace,
        environment: rest.environment,
        budget_left: BudgetLeft { tokens: rest.tokens, ..BudgetLeft::default() },
        ..Request::new("default", call.agent, call.tool, call.kind, call.effect, &call.arguments)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_foreseen_holds_whatever_turns_out(
        set in 0..=PACKS.len(),
        call in call(),
        guessed in rest(),
        turns_out in prop::collection::vec(rest(), 1..8),
        (origins, environment) in any::<(bool, bool)>(),
    ) {
        let (policies, unknown) = (&SETS[set], Unknown { origins, environment });
        let foreseen = policies.foresee(&request(&call, &guessed), unknown);
        for mut rest in turns_out {
            if !origins {
                rest.matters.clone_from(&guessed.matters);
            }
            if !environment {
                rest.environment = guessed.environment;
            }
            let request = request(&call, &rest);
            prop_assert_eq!(&policies.foresee(&request, unknown), &foreseen, "it does not follow from what is known");
            let decision = policies.decide(&request);
            if foreseen.denial.is_some() {
                prop_assert_eq!(decision.answer, Answer::Deny, "{} {:?}", decision, rest);
            } else if decision.answer != Answer::Deny {
                prop_assert!(foreseen.obligations.is_subset(&decision.obligations), "{} {:?}", decision, rest);
            }
        }
    }
}

fn of(set: usize, effect: Effect, tool: &'static str, unknown: Unknown) -> Foreseen {
    let arguments = json!({"to": "ann@example.com"});
    let call = Call { agent: "keeper", tool, kind: ToolKind::Http, effect, trust: Trust::Untrusted, arguments };
    let rest =
        Rest { matters: Vec::new(), confined: true, named: [Some(true); 4], environment: "production", tokens: None };
    SETS[set].foresee(&request(&call, &rest), unknown)
}

fn denied_by(foreseen: &Foreseen) -> Vec<&str> {
    foreseen.denial.iter().flat_map(|denial| &denial.reasons).map(|reason| reason.policy.as_str()).collect()
}

#[test]
fn a_denial_is_foreseen_where_nothing_unknown_could_avert_it() {
    assert_eq!(denied_by(&of(0, Effect::Read, "x.deploy", ALL)), ["no-deploy"]);
    // The environment decides, and is known or not.
    assert_eq!(denied_by(&of(1, Effect::External, "x.send", SURROUNDINGS)), ["prod"]);
    assert_eq!(of(1, Effect::External, "x.send", ALL), Foreseen::default());
    // Nobody permits it, however it is confined; and somebody does, if it is.
    assert_eq!(denied_by(&of(3, Effect::Read, "x.send", ALL)), [NO_MATCH]);
    assert_eq!(denied_by(&of(4, Effect::Payment, "x.send", ALL)), [NO_MATCH]);
    assert_eq!(of(4, Effect::Read, "x.send", ALL).denial, None);
    // The default pack denies next to nothing.
    for effect in EFFECTS {
        assert_eq!(of(PACKS.len(), effect, "x.send", ALL), Foreseen::default());
    }
}

#[test]
fn origins_are_said_to_matter_only_where_a_forbid_turns_on_them() {
    let open = of(2, Effect::External, "x.send", ALL);
    assert!(open.denial.is_none() && open.hinges_on_origins);
    assert!(
        !of(2, Effect::External, "x.safe", ALL).hinges_on_origins
            && !of(2, Effect::Read, "x.send", ALL).hinges_on_origins
    );
    // Known: nothing is left open. No argument decides, so the trust of the turn does.
    assert_eq!(denied_by(&of(2, Effect::External, "x.send", SURROUNDINGS)), ["strangers"]);
    assert!(of(5, Effect::External, "x.send", ALL).hinges_on_origins);
    assert!(
        !of(PACKS.len(), Effect::External, "x.send", ALL).hinges_on_origins,
        "the default pack asks, and forbids nothing"
    );
}

#[test]
fn obligations_are_foreseen_of_what_certainly_fits() {
    let obliged = |set, effect, tool| of(set, effect, tool, ALL).obligations;
    assert_eq!(obliged(4, Effect::External, "x.send"), BTreeSet::from([Obligation::DryRunFirst]));
    assert_eq!(obliged(6, Effect::External, "x.send"), BTreeSet::from([Obligation::VerifyAfter]));
    assert_eq!(
        obliged(6, Effect::External, "x.deploy"),
        BTreeSet::from([Obligation::VerifyAfter, Obligation::TwoPeople])
    );
}

#[test]
fn looking_ahead_at_cheap_reads_is_remembered() {
    let (policies, arguments) = (Policies::embedded(), json!({"text": "x"}));
    let request = Request {
        kind: ToolKind::Builtin,
        effect: Effect::Read,
        tool: "test.echo",
        trust: Trust::Operator,
        now: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        ..merge(&arguments)
    };
    let unknown = Unknown { origins: false, environment: true };
    assert_eq!(policies.foresee(&request, unknown), Foreseen::default());
    let (began, rounds) = (std::time::Instant::now(), 10_000);
    for _ in 0..rounds {
        std::hint::black_box(policies.foresee(std::hint::black_box(&request), unknown));
    }
    // How long it took is said and not judged: the machine may be busy.
    eprintln!("{:?} for each look ahead", began.elapsed() / rounds);
}
