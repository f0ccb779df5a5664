use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::json;

use super::super::jwt::Jwt;
use super::super::keys::KeySet;
use super::*;

/// When the tokens here are shown.
const NOW: i64 = 1_800_000_000;

fn issuer(change: &str) -> Issuer {
    let text = format!(
        "
- issuer: https://id.example.com
  audiences: [escapement, escapement-cli]
  roles: {{ claim: realm_access.roles, map: {{ ops: operator, all: viewer, in: publisher }} }}
  {change}
"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuers.yaml");
    std::fs::write(&path, text).unwrap();
    super::super::file::read(&path).unwrap().remove(0)
}

fn claims() -> Value {
    json!({
        "iss": "https://id.example.com", "aud": "escapement", "sub": "u-1", "jti": "t-1",
        "iat": NOW - 10, "nbf": NOW - 10, "exp": NOW + 290,
        "realm_access": {"roles": ["ops", "offline_access", "all", "ops"]},
        "email": "ann@example.com", "email_verified": true, "org": "acme",
    })
}

/// What becomes of a token with these claims; `null` takes one away.
fn with(issuer: &Issuer, kind: Option<&str>, changes: &Value) -> Result<Principal, Refusal> {
    let Value::Object(mut claims) = claims() else { unreachable!() };
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.remove(name);
        } else {
            claims.insert(name.clone(), value.clone());
        }
    }
    principal(kind, &claims, issuer, Timestamp::from_second(NOW).unwrap())
}

fn refused(issuer: &Issuer, changes: &Value) -> Option<Refusal> {
    with(issuer, None, changes).err()
}

#[test]
fn a_person_is_known_by_issuer_and_subject_and_may_do_what_their_roles_say() {
    let issuer = issuer("tenant: acme\n  person: { display: email }");
    let ann = with(&issuer, Some("JWT"), &json!({})).unwrap();
    assert_eq!((ann.name.as_str(), ann.tenant.as_str()), ("https://id.example.com#u-1", "acme"));
    assert_eq!((ann.roles, ann.display.as_deref()), (vec![Role::Viewer, Role::Operator], Some("ann@example.com")));
    assert_eq!(ann.until, Timestamp::from_second(NOW + 290 + 60 + 1).ok());
    let nobody =
        with(&issuer, None, &json!({"realm_access": {"roles": ["admin", "operator"]}, "email": "a\u{7}b"})).unwrap();
    assert_eq!(
        (nobody.roles.len(), nobody.display.as_deref()),
        (0, Some("a\u{fffd}b")),
        "our names mean nothing there"
    );
}

#[test]
fn a_long_name_to_call_somebody_by_is_cut_within_its_line() {
    let issuer = issuer("tenant: acme\n  person: { display: name }");
    for (said, shown) in [
        ("a".repeat(200), "a".repeat(200)),
        ("a".repeat(201), "a".repeat(200)),
        ("\u{e9}".repeat(500), "\u{e9}".repeat(100)),
        (format!("a{}", "\u{e9}".repeat(500)), format!("a{}", "\u{e9}".repeat(99))),
        ("\n".repeat(500), "\u{fffd}".repeat(66)),
    ] {
        assert_eq!(with(&issuer, None, &json!({ "name": said })).unwrap().display, Some(shown));
    }
}

#[test]
fn a_token_was_made_in_the_past_and_lasts_no_longer_than_it_may() {
    let issuer = issuer("tenant: acme");
    for (changes, expected) in [
        (json!({"exp": null}), Some(Refusal::Claim)),
        (json!({"exp": 1e300}), Some(Refusal::TooLasting)),
        (json!({"iat": null}), None),
        (json!({"iat": NOW + 60}), None),
        (json!({"iat": NOW + 61}), Some(Refusal::Future)),
        (json!({"iat": "now"}), Some(Refusal::Claim)),
        (json!({"exp": NOW + 24 * 3600}), None),
        (json!({"exp": NOW + 25 * 3600}), Some(Refusal::TooLasting)),
        (json!({"exp": NOW + 25 * 3600, "iat": null}), Some(Refusal::TooLasting)),
        (json!({"exp": NOW + 1, "iat": NOW - 30 * 3600}), Some(Refusal::TooLasting)),
    ] {
        assert_eq!(refused(&issuer, &changes), expected, "{changes}");
    }
    let exact = self::issuer("tenant: acme\n  leeway: 0s\n  longest: 5m");
    assert_eq!(refused(&exact, &json!({})), None);
    assert_eq!(refused(&exact, &json!({"exp": NOW + 291})), Some(Refusal::TooLasting));
}

#[test]
fn a_token_is_of_the_kind_that_is_wanted() {
    let (access, id) = (issuer("tenant: acme"), issuer("tenant: acme\n  accept: id"));
    for (changes, as_access, as_id) in [
        (json!({}), None, None),
        (json!({"aud": ["other", "escapement-cli"]}), None, Some(Refusal::Audience)),
        (json!({"aud": ["other", "escapement"], "azp": "escapement"}), None, None),
        (json!({"aud": ["other", "escapement"], "azp": "other"}), None, Some(Refusal::Audience)),
        (json!({"typ": "Bearer"}), None, Some(Refusal::Kind)),
        (json!({"typ": "ID"}), Some(Refusal::Kind), None),
        (json!({"typ": "Refresh"}), Some(Refusal::Kind), Some(Refusal::Kind)),
        (json!({"at_hash": "x"}), Some(Refusal::Kind), None),
        (json!({"cnf": {"jkt": "x"}}), Some(Refusal::Bound), Some(Refusal::Bound)),
        (json!({"events": {}}), Some(Refusal::Type), Some(Refusal::Type)),
    ] {
        assert_eq!((refused(&access, &changes), refused(&id, &changes)), (as_access, as_id), "{changes}");
    }
    for (kind, as_access, as_id) in [
        ("JWT", None, None),
        ("jwt", None, None),
        ("at+jwt", None, Some(Refusal::Kind)),
        ("application/at+JWT", None, Some(Refusal::Kind)),
        ("logout+jwt", Some(Refusal::Type), Some(Refusal::Type)),
        ("dpop+jwt", Some(Refusal::Type), Some(Refusal::Type)),
        ("", Some(Refusal::Type), Some(Refusal::Type)),
    ] {
        let refused = |issuer| with(issuer, Some(kind), &json!({})).err();
        assert_eq!((refused(&access), refused(&id)), (as_access, as_id), "{kind}");
    }
}

#[test]
fn a_name_is_a_name() {
    let issuer = issuer("tenant: acme");
    for sub in [json!(null), json!(7), json!(""), json!("a\nb"), json!("x".repeat(256)), json!(["u-1"])] {
        assert_eq!(refused(&issuer, &json!({ "sub": sub })), Some(Refusal::Person), "{sub}");
    }
    let by_email = self::issuer("tenant: acme\n  person: { id: email }");
    assert_eq!(with(&by_email, None, &json!({})).unwrap().name, "https://id.example.com#ann@example.com");
    for verified in [json!(null), json!(false), json!("true"), json!(1)] {
        assert_eq!(refused(&by_email, &json!({ "email_verified": verified })), Some(Refusal::Person), "{verified}");
    }
}

#[test]
fn people_and_tokens_can_be_cut_off() {
    for (refuse, expected) in [
        ("people: [u-1]", Some(Refusal::Revoked)),
        ("people: [u-2]", None),
        ("tokens: [t-1]", Some(Refusal::Revoked)),
        ("tokens: [t-2]", None),
        ("issued_before: 2027-01-15T07:59:49Z", None),
        ("issued_before: 2027-01-15T07:59:51Z", Some(Refusal::Revoked)),
    ] {
        let issuer = issuer(&format!("tenant: acme\n  refuse: {{ {refuse} }}"));
        assert_eq!(refused(&issuer, &json!({})), expected, "{refuse}");
    }
    let of_tokens = issuer("tenant: acme\n  refuse: { tokens: [t-2] }");
    assert_eq!(refused(&of_tokens, &json!({"jti": null})), Some(Refusal::Revoked), "nobody knows which it is");
    assert_eq!(refused(&of_tokens, &json!({"jti": 2})), Some(Refusal::Claim));
    let of_old = issuer("tenant: acme\n  refuse: { issued_before: 2020-01-01T00:00:00Z }");
    assert_eq!(refused(&of_old, &json!({"iat": null})), Some(Refusal::Revoked), "nobody knows since when it is");
}

#[test]
fn a_tenant_is_fixed_or_said_and_default_is_never_chosen() {
    let tenant = |rule: &str, org: Value| {
        with(&issuer(rule), None, &json!({ "org": org })).map(|principal| principal.tenant.as_str().to_owned())
    };
    let (plain, mapped) =
        ("tenant_claim: { claim: org }", "tenant_claim: { claim: org, map: { o-1: acme, home: default } }");
    assert_eq!(tenant(plain, json!("acme")).as_deref(), Ok("acme"));
    assert_eq!(tenant(plain, json!(["acme"])).as_deref(), Ok("acme"));
    assert_eq!(tenant(mapped, json!("o-1")).as_deref(), Ok("acme"));
    assert_eq!(tenant(mapped, json!("home")).as_deref(), Ok("default"), "the file says so");
    for org in [
        json!("default"),
        json!("Acme"),
        json!("../x"),
        json!(""),
        json!(7),
        json!(["acme", "other"]),
        json!({}),
        json!(null),
    ] {
        assert_eq!(tenant(plain, org.clone()), Err(Refusal::NoTenant), "{org}");
    }
    assert_eq!(tenant(mapped, json!("acme")), Err(Refusal::NoTenant));
}

#[test]
fn a_claim_is_found_where_the_path_leads() {
    let Value::Object(claims) = json!({
        "a": {"b": ["x", 1, "y"], "b.c": "dotted"}, "https://example.com/roles": ["z"], "scope": "openid esc:run", "groups": "one group",
        "email": "a@example.com",
    }) else {
        unreachable!()
    };
    for (path, expected) in [
        ("a.b", &["x", "y"][..]),
        (r"a.b\.c", &["dotted"]),
        ("https://example.com/roles", &["z"]),
        ("scope", &["openid", "esc:run"]),
        ("groups", &["one group"]),
        ("a", &[]),
        ("a.b.c", &[]),
        ("missing", &[]),
        ("email", &[]),
    ] {
        assert_eq!(ClaimPath::parse(path).unwrap().texts(&claims), expected, "{path}");
    }
    for path in ["", ".", "a.", ".a", "a..b", r"a\"] {
        assert_eq!(ClaimPath::parse(path), None, "{path}");
    }
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        Just(json!("escapement")),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map(prop_oneof!["roles", ".{0,5}"], inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_signed_claims_are_too_much(
        kind in proptest::option::of(".{0,12}"),
        said in proptest::collection::btree_map(
            prop_oneof![
                "iss", "aud", "exp", "nbf", "iat", "jti", "sub", "azp", "typ", "org", "realm_access", "email", "email_verified"
            ],
            anything(),
            0..13,
        ),
    ) {
        let issuer = issuer("tenant_claim: { claim: org }\n  accept: id\n  person: { display: email }");
        let _ = with(&issuer, kind.as_deref(), &json!(said));
        // And all the way from the text of a token.
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let public = URL_SAFE_NO_PAD.encode(pair.public_key());
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}).to_string();
        let header = json!({"alg": "EdDSA", "typ": kind});
        let mut claims = json!({"iss": "https://id.example.com", "aud": "escapement", "exp": 4e9});
        for (name, value) in said {
            claims[name] = value;
        }
        let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes())));
        if let Ok(jwt) = Jwt::read(&token) {
            let told = KeySet::read(keys.as_bytes()).unwrap().verify(&jwt, &issuer.validation());
            prop_assert_ne!(told.as_ref().err(), Some(&Refusal::Signature));
            if let Ok(claims) = told {
                let _ = principal(jwt.header.typ.as_deref(), &claims, &issuer, Timestamp::now());
            }
        }
    }
}
