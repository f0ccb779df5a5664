//! People of identity providers: who gets in with what their provider gave them, and with nothing else.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use ingress::Config;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::{Door, PATIENCE, answer, config, eventually, json_of};
use crate::provider::{Key, Provider, encoded, now, unsigned};

/// A door, with a file of issuers.
struct Home {
    door: Door,
    file: tempfile::NamedTempFile,
}

impl Home {
    async fn open(rules: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rules).unwrap();
        let path = file.path().to_owned();
        Self { door: Door::open_with(|config| config.issuers = path).await, file }
    }

    /// A request with any token.
    fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.door.http.request(method, format!("{}{path}", self.door.url)).bearer_auth(token)
    }

    async fn get(&self, path: &str, token: &str) -> Response {
        self.request(Method::GET, path, token).send().await.unwrap()
    }

    async fn session(&self, token: &str) -> Value {
        json_of(self.get("/v1/session", token).await).await
    }

    /// The status that a token is answered with, and the reason if there is one.
    async fn told(&self, token: &str) -> (u16, String) {
        let (status, body) = answer(self.get("/v1/session", token).await).await;
        let word = if body["reason"].is_null() { &body["code"] } else { &body["reason"] };
        (status.as_u16(), word.as_str().unwrap_or_default().to_owned())
    }
}

fn changed(mut claims: Value, name: &str, value: impl Into<Value>) -> Value {
    claims[name] = value.into();
    claims
}

fn without(mut claims: Value, name: &str) -> Value {
    claims.as_object_mut().unwrap().remove(name);
    claims
}

#[tokio::test]
async fn a_person_gets_in_with_what_their_provider_gave_them() {
    let keys: Vec<Key> =
        ["RS256", "PS384", "ES256", "ES384", "EdDSA"].iter().map(|algorithm| Key::make(algorithm, algorithm)).collect();
    let provider = Provider::start(&keys.iter().collect::<Vec<_>>()).await;
    let home = Home::open(&provider.rules("tenant: acme")).await;
    for key in &keys {
        let session = home.session(&key.sign(&provider.claims("ann", "use"))).await;
        let name = format!("{}#ann", provider.url);
        assert_eq!((&session["name"], &session["tenant"]), (&json!(name), &json!("acme")), "{}", key.id);
        assert_eq!((&session["display"], &session["roles"]), (&json!("ann of the realm"), &json!(["user"])));
        assert!(session["expires_at"].is_string(), "{session}");
    }
    // What their roles allow, and no more.
    let run = home.door.run().await;
    let pause = format!("/v1/runs/{run}/pause");
    let token = |role| keys[2].sign(&provider.claims("ann", role));
    for (role, looks, pauses) in
        [("see", true, false), ("use", true, false), ("run", true, true), ("none", false, false)]
    {
        let token = token(role);
        assert_eq!(home.get("/v1/runs", &token).await.status().is_success(), looks, "{role}");
        let response = home.request(Method::POST, &pause, &token).json(&json!({})).send().await.unwrap();
        assert_eq!(response.status() != StatusCode::FORBIDDEN, pauses, "{role}");
        if !pauses {
            let challenge = response.headers()["www-authenticate"].to_str().unwrap().to_owned();
            assert!(challenge.contains("insufficient_scope"), "{challenge}");
            assert_eq!(answer(response).await.1["code"], "insufficient_role");
        }
    }
    // An API token is as good as before, and its name is never a person's.
    assert_eq!(home.session("acme-viewer").await["name"], "acme-viewer");
    let body = json!({"name": format!("{}#ann", provider.url), "roles": ["operator"]});
    let made = home.request(Method::POST, "/v1/tokens", &token("rule")).json(&body).send().await.unwrap();
    let (status, problem) = answer(made).await;
    assert_eq!((status.as_u16(), &problem["field"]), (422, &json!("name")));
    home.door.close().await;
}

/// Tokens that let nobody in, each with the reason that is given.
fn bad_tokens(provider: &Provider, keys: &[Key]) -> Vec<(&'static str, String, &'static str)> {
    let (first, second, other) = (&keys[0], &keys[1], &keys[2]);
    let good = provider.claims("ann", "see");
    let header = |changes: Value| {
        let mut header = json!({"alg": "ES256", "kid": first.id, "typ": "JWT"});
        header.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        header
    };
    let with = |name: &str, value: Value| first.sign(&changed(good.clone(), name, value));
    let headed = |changes: Value| first.sign_as(&header(changes), &good);
    let hmac = {
        let signed = unsigned(&header(json!({"alg": "HS256"})), &good);
        // The public key as it is published, for the secret.
        let mut mac = Hmac::<Sha256>::new_from_slice(first.public().to_string().as_bytes()).unwrap();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", encoded(mac.finalize().into_bytes()))
    };
    let intact = first.sign(&good);
    let (head, rest) = intact.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let altered = format!("{head}.{}.{signature}", encoded(provider.claims("ann", "rule").to_string()));
    let stranger = Key::make(&first.id, "ES256");
    let nobody = json!({"alg": "ES256", "typ": "JWT"});
    vec![
        ("no signature", format!("{}.", unsigned(&header(json!({"alg": "none"})), &good)), "algorithm"),
        ("a public key for a secret", hmac, "algorithm"),
        ("an algorithm that is not the key's", headed(json!({"alg": "RS256"})), "key_mismatch"),
        ("another key's name", headed(json!({"kid": second.id})), "signature"),
        ("a key that nobody knows", headed(json!({"kid": "other"})), "unknown_key"),
        ("no key where several fit", first.sign_as(&nobody, &good), "ambiguous_key"),
        ("a stranger's key", stranger.sign(&good), "signature"),
        (
            "a key that it brings along",
            stranger.sign_as(&header(json!({"jwk": stranger.public()})), &good),
            "signature",
        ),
        ("a key that it leads to", other.sign_as(&header(json!({"jku": "http://127.0.0.1:1/"})), &good), "signature"),
        ("altered claims", altered, "signature"),
        ("half a signature", intact[..intact.len() - 6].to_owned(), "signature"),
        ("a demand", headed(json!({"crit": ["exp"]})), "critical_header"),
        ("another type", headed(json!({"typ": "logout+jwt"})), "type"),
        ("another issuer", with("iss", json!("https://id.example.com")), "unknown_issuer"),
        ("nearly the issuer", with("iss", json!(format!("{}/", provider.url))), "unknown_issuer"),
        ("no issuer", first.sign(&without(good.clone(), "iss")), "unknown_issuer"),
        ("another audience", with("aud", json!(["payroll", "crm"])), "audience"),
        ("no audience", first.sign(&without(good.clone(), "aud")), "claim"),
        ("over", with("exp", json!(now() - 120)), "expired"),
        ("no end", first.sign(&without(good.clone(), "exp")), "claim"),
        ("an end in words", with("exp", json!((now() + 60).to_string())), "claim"),
        ("not begun", with("nbf", json!(now() + 600)), "not_yet_valid"),
        ("made tomorrow", with("iat", json!(now() + 24 * 3600)), "issued_in_future"),
        ("for a week", with("exp", json!(now() + 7 * 24 * 3600)), "too_lasting"),
        ("an ID token", with("at_hash", json!("x")), "kind"),
        ("bound to a key", with("cnf", json!({"jkt": "x"})), "bound"),
        ("nobody's", first.sign(&without(good.clone(), "sub")), "person"),
        ("too long", with("padding", json!("x".repeat(20_000))), "too_long"),
        ("encrypted", "eyJhbGciOiJSU0EtT0FFUCJ9.a.b.c.d".to_owned(), "encrypted"),
        ("torn", "eyJhbGciOiJFUzI1NiJ9.e30".to_owned(), "malformed"),
    ]
}

#[tokio::test]
async fn nobody_gets_in_with_anything_else_and_each_is_told_why() {
    let keys = ["one", "two", "three"].map(|id| Key::make(id, "ES256"));
    let (provider, elsewhere) = (Provider::start(&[&keys[0], &keys[1]]).await, Provider::start(&[&keys[2]]).await);
    let rules = provider.rules("tenant: acme") + &elsewhere.rules("tenant_claim: { claim: org }");
    let home = Home::open(&rules).await;
    for (what, token, reason) in bad_tokens(&provider, &keys) {
        let response = home.get("/v1/session", &token).await;
        let challenge = response.headers()["www-authenticate"].to_str().unwrap().to_owned();
        assert!(
            challenge.starts_with("Bearer ") && challenge.contains(r#"error="invalid_token""#),
            "{what}: {challenge}"
        );
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{what}");
        let (status, problem) = answer(response).await;
        assert_eq!(
            (status.as_u16(), &problem["code"], &problem["reason"]),
            (401, &json!("invalid_token"), &json!(reason)),
            "{what}"
        );
        assert!(challenge.contains(problem["detail"].as_str().unwrap()), "{what}: {challenge}");
        assert!(problem["remedy"].is_string() && !problem.to_string().contains("payroll"), "{what}: {problem}");
    }
    // One issuer's key is no other's, and who belongs to no tenant here is told so.
    let foreign = keys[2].sign(&provider.claims("ann", "see"));
    assert_eq!(home.told(&foreign).await, (401, "unknown_key".to_owned()));
    let homeless = keys[2].sign(&without(elsewhere.claims("ann", "see"), "org"));
    assert_eq!(home.told(&homeless).await, (403, "no_tenant".to_owned()));
    let ours = keys[2].sign(&changed(elsewhere.claims("ann", "see"), "org", "default"));
    assert_eq!(home.told(&ours).await, (403, "no_tenant".to_owned()), "nobody chooses the tenant that runs the house");
    let metrics = home.door.http.get(format!("{}/metrics", home.door.url)).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains(r#"ingress_jwt_refused_total{reason="signature"}"#), "{metrics}");
    home.door.close().await;
}

#[tokio::test]
async fn two_issuers_know_two_people_by_one_name_and_tenants_stay_apart() {
    let (key, other_key) = (Key::make("k", "ES256"), Key::make("k", "EdDSA"));
    let (provider, other) = (Provider::start(&[&key]).await, Provider::start(&[&other_key]).await);
    let rules = provider.rules("tenant: acme") + &other.rules("tenant_claim: { claim: org }");
    let home = Home::open(&rules).await;
    let ann = key.sign(&provider.claims("u-1", "run"));
    let namesake = other_key.sign(&other.claims("u-1", "run"));
    let outsider = other_key.sign(&changed(other.claims("u-1", "rule"), "org", "other"));
    let run = home.door.run().await;
    let path = format!("/v1/runs/{run}/pause");
    for (token, is_inside) in [(&ann, true), (&namesake, true), (&outsider, false)] {
        let (status, body) =
            answer(home.request(Method::POST, &path, token).json(&json!({})).send().await.unwrap()).await;
        assert!(![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status), "{body}");
        assert_eq!(status != StatusCode::NOT_FOUND, is_inside, "{status} {body}");
    }
    // The trail tells them apart, and says what each was called.
    let trail =
        json_of(home.door.request(Method::GET, "/v1/audit?action=runs.pause", "admin").send().await.unwrap()).await;
    let mut actors: Vec<_> =
        trail["items"].as_array().unwrap().iter().map(|entry| entry["actor"].as_str().unwrap()).collect();
    actors.sort_unstable();
    let mut expected = [format!("{}#u-1", provider.url), format!("{}#u-1", other.url)];
    expected.sort_unstable();
    assert_eq!(actors, expected, "{trail}");
    assert_eq!(trail["items"][0]["evidence"]["actor_display"], "u-1 of the realm", "{trail}");
    home.door.close().await;
}

#[tokio::test]
async fn a_new_key_counts_once_it_is_needed_and_an_old_one_no_longer_than_it_is_published() {
    let (old, new) = (Key::make("old", "ES256"), Key::make("new", "ES256"));
    let provider = Provider::start(&[&old]).await;
    let home = Home::open(&provider.rules("tenant: acme\n  keys: { refresh: 1s, again: 1s }")).await;
    let token = |key: &Key| key.sign(&provider.claims("ann", "see"));
    assert_eq!(home.told(&token(&old)).await.0, 200);
    provider.publish(&[&new, &old]);
    eventually("the new key counts", || async { (home.told(&token(&new)).await.0 == 200).then_some(()) }).await;
    assert_eq!(home.told(&token(&old)).await.0, 200, "both do while both are published");
    provider.publish(&[&new]);
    let refused = || async { (home.told(&token(&old)).await == (401, "unknown_key".to_owned())).then_some(()) };
    eventually("the old key is forgotten", refused).await;
    assert_eq!(home.told(&token(&new)).await.0, 200);
    home.door.close().await;
}

#[tokio::test]
async fn keys_that_can_not_be_read_again_are_used_on_for_a_while() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    provider.set_down(true);
    let home = Home::open(&provider.rules("tenant: acme\n  keys: { refresh: 1s, again: 1s, keep: 2s }")).await;
    let token = key.sign(&provider.claims("ann", "see"));
    let response = home.get("/v1/session", &token).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "the token may be good: nobody can tell");
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(answer(response).await.1["code"], "issuer_unavailable");
    assert_eq!(home.told("acme-viewer").await.0, 200, "others get in");
    let is = |status: u16| {
        let (home, token) = (&home, &token);
        move || async move { (home.told(token).await.0 == status).then_some(()) }
    };
    provider.set_down(false);
    eventually("it is there", is(200)).await;
    provider.set_down(true);
    let stranger = key.sign_as(&json!({"alg": "ES256", "kid": "unheard of"}), &provider.claims("ann", "see"));
    // It may be one of the provider's newest.
    let unheard = || async { (home.told(&stranger).await.0 == 503).then_some(()) };
    eventually("a new key can't be asked for", unheard).await;
    eventually("the keys are too old", is(503)).await;
    provider.set_down(false);
    eventually("it is there again", is(200)).await;
    home.door.close().await;
}

#[tokio::test]
async fn strangers_do_not_have_the_provider_asked_again_and_again() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    provider.set_open(false);
    let rules = provider.rules(&format!(
        "tenant: acme\n  keys: {{ url: \"{}/keys\", refresh: 1h, again: 1h, keep: 1d }}",
        provider.url
    ));
    let home = Home::open(&rules).await;
    let made_up = |number: usize| {
        key.sign_as(&json!({"alg": "ES256", "kid": format!("made-up-{number}")}), &provider.claims("mallory", "rule"))
    };
    let tokens: Vec<_> = (0..40).map(made_up).collect();
    let asking = futures::future::join_all(tokens.iter().map(|token| home.told(token)));
    let answering = async {
        eventually("the provider is asked", || async { (provider.asked() > 0).then_some(()) }).await;
        provider.set_open(true);
    };
    for told in futures::join!(asking, answering).0 {
        assert_eq!(told, (401, "unknown_key".to_owned()));
    }
    for number in 40..60 {
        assert_eq!(home.told(&made_up(number)).await, (401, "unknown_key".to_owned()));
    }
    assert_eq!(home.told(&key.sign(&provider.claims("ann", "see"))).await.0, 200);
    assert_eq!(provider.asked(), 1);
    home.door.close().await;
}

/// An open stream, and the token that it was opened with: one that is good for so long.
async fn stream(home: &Home, path: &str, token: impl Fn() -> String) -> Response {
    // On a machine that stands still for a while such a token may be over before it is shown.
    eventually("the stream opens", || async {
        let response = home.get(path, &token()).await;
        (response.status() == StatusCode::OK).then_some(response)
    })
    .await
}

#[tokio::test]
async fn an_open_stream_ends_with_its_token() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    let home = Home::open(&provider.rules("tenant: acme\n  leeway: 0s")).await;
    let run = home.door.run().await;
    let short = || key.sign(&changed(provider.claims("ann", "see"), "exp", now() + 2));
    let response = stream(&home, &format!("/v1/runs/{run}/stream"), short).await;
    let end = async { response.bytes_stream().for_each(|_| async {}).await };
    // Sooner than the stream would look by itself.
    tokio::time::timeout(Duration::from_secs(25), end).await.expect("the stream ends");
    home.door.close().await;
}

#[tokio::test]
async fn a_person_who_is_cut_off_is_out_at_once_and_so_are_their_streams() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    let home = Home::open(&provider.rules("tenant: acme")).await;
    let run = home.door.run().await;
    let (ann, bob) = (key.sign(&provider.claims("ann", "see")), key.sign(&provider.claims("bob", "see")));
    let mut opened = stream(&home, &format!("/v1/runs/{run}/stream"), || ann.clone()).await;
    opened.chunk().await.unwrap().unwrap();
    // What can't be used changes nothing.
    std::fs::write(home.file.path(), "nonsense").unwrap();
    assert_eq!(home.told(&ann).await.0, 200);
    std::fs::write(home.file.path(), provider.rules("tenant: acme\n  refuse: { people: [ann] }")).unwrap();
    let refused = || async { (home.told(&ann).await == (401, "revoked".to_owned())).then_some(()) };
    eventually("ann is out", refused).await;
    assert_eq!(home.told(&bob).await.0, 200);
    let end = async { while let Ok(Some(_)) = opened.chunk().await {} };
    tokio::time::timeout(Duration::from_secs(25), end).await.expect("the stream ends");
    std::fs::write(home.file.path(), "[]").unwrap();
    let refused = || async { (home.told(&bob).await == (401, "unknown_issuer".to_owned())).then_some(()) };
    eventually("the issuer is gone", refused).await;
    home.door.close().await;
}

#[tokio::test]
async fn the_file_is_followed_while_the_provider_does_not_answer() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    let rules = |more: &str| provider.rules(&format!("tenant: acme\n  {more}"));
    let home = Home::open(&rules("keys: { refresh: 1h, again: 1s, keep: 1h }")).await;
    let run = home.door.run().await;
    let (ann, bob) = (key.sign(&provider.claims("ann", "see")), key.sign(&provider.claims("bob", "see")));
    let mut opened = stream(&home, &format!("/v1/runs/{run}/stream"), || ann.clone()).await;
    opened.chunk().await.unwrap().unwrap();
    provider.set_down(true);
    let write = |more: &str| std::fs::write(home.file.path(), rules(more)).unwrap();
    // It says something else of how long keys count: those that were read are not lost with that.
    write("keys: { refresh: 1s, again: 1s, keep: 1d }\n  refuse: { people: [bob] }");
    let refused = || async { (home.told(&bob).await == (401, "revoked".to_owned())).then_some(()) };
    eventually("bob is out", refused).await;
    assert_eq!(home.told(&ann).await.0, 200);
    write("keys: { refresh: 1s, again: 1s, keep: 1s }");
    eventually("the keys are too old", || async { (home.told(&ann).await.0 == 503).then_some(()) }).await;
    // Nobody can tell whether a token is good, but who is cut off is known.
    write("keys: { refresh: 1s, again: 1s, keep: 1s }\n  refuse: { people: [ann] }");
    let end = async { while let Ok(Some(_)) = opened.chunk().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the stream ends");
    home.door.close().await;
}

#[tokio::test]
async fn a_session_lasts_no_longer_than_its_token() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    let home = Home::open(&provider.rules("tenant: acme\n  leeway: 0s")).await;
    let open = |claims: &Value| home.request(Method::POST, "/v1/session", &key.sign(claims));
    let response = open(&provider.claims("ann", "use")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    let kept: u64 = cookie.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert!((1..=600).contains(&kept) && cookie.contains("HttpOnly"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let by_cookie = home.door.http.get(format!("{}/v1/session", home.door.url)).header("cookie", pair);
    assert_eq!(json_of(by_cookie.send().await.unwrap()).await["name"], format!("{}#ann", provider.url));
    let long = changed(provider.claims("ann", "use"), "groups", vec!["a-group-of-people"; 300]);
    let (status, problem) = answer(open(&long).send().await.unwrap()).await;
    assert_eq!((status.as_u16(), &problem["code"]), (422, &json!("token_too_long")), "{problem}");
    home.door.close().await;
}

#[tokio::test]
async fn a_door_may_know_people_alone_and_does_not_open_with_a_file_that_is_wrong() {
    let key = Key::make("k", "ES256");
    let provider = Provider::start(&[&key]).await;
    let home = Home::open(&provider.rules("tenant: acme")).await;
    let second = Config { issuers: home.file.path().into(), ..config(&home.door.stack, Path::new("")) };
    let mut second = service::spawn("ingress", second, ingress::run).unwrap();
    let url = format!("http://{}/v1/session", second.listening().await.unwrap());
    for (token, status) in [(key.sign(&provider.claims("ann", "see")), 200), ("acme-viewer".to_owned(), 401)] {
        assert_eq!(home.door.http.get(&url).bearer_auth(token).send().await.unwrap().status().as_u16(), status);
    }
    second.stop().await.unwrap();
    let wrong = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(wrong.path(), provider.rules("tenant: acme\n  secret: x")).unwrap();
    for path in [Path::new("/nowhere/issuers.yaml"), wrong.path()] {
        let config = Config { issuers: path.into(), ..config(&home.door.stack, home.door.tokens.path()) };
        let running = service::spawn("ingress", config, ingress::run).unwrap();
        tokio::time::timeout(PATIENCE, running.finished()).await.unwrap();
        assert!(running.stop().await.unwrap_err().is_config());
    }
    home.door.close().await;
}

/// Signed by a library that knows nothing of ours: `infra/tests/test_identity.py` has it serve its keys and says where the tokens are.
#[tokio::test]
async fn tokens_that_another_library_signed_are_read_the_same_way() {
    let Ok(file) = std::env::var("ESC_TEST_SIGNED_TOKENS") else { return };
    let signed: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let home = Home::open(signed["rules"].as_str().unwrap()).await;
    let tokens = signed["tokens"].as_array().unwrap();
    assert!(tokens.len() > 9, "{signed}");
    for token in tokens {
        let told = home.told(token["token"].as_str().unwrap()).await;
        let expected = token["reason"].as_str().map_or((200, String::new()), |reason| (401, reason.to_owned()));
        assert_eq!(told, expected, "{}", token["what"]);
    }
    home.door.close().await;
}
